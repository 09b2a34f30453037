"""Sparse arrays made of nothing: empty ones, identities, random ones.

    >>> sparse.eye(3)
    BCOO(float32[3, 3], nse=3)
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima import numpy as jnp, random
from anima.api.mapping import vmap
from anima.core import dtypes
from anima.experimental.sparse.base import JAXSparse
from anima.experimental.sparse.bcoo import BCOO
from anima.experimental.sparse.bcsr import BCSR
from anima.experimental.sparse.coo import COO
from anima.experimental.sparse.csr import CSC, CSR
from anima.experimental.sparse.layout import bcoo_fromdense, bcoo_sort_indices, unravelled

_FORMATS = ("bcoo", "bcsr", "coo", "csr", "csc")


def _check_format(sparse_format: str) -> None:
    if sparse_format not in _FORMATS:
        raise ValueError(f"sparse_format must be one of {', '.join(_FORMATS)}; got {sparse_format!r}.")


def _in_format(mat: BCOO, sparse_format: str) -> Any:
    """A BCOO array, whose elements are in order, as one of another class."""
    if sparse_format == "bcoo":
        return mat
    if mat.ndim != 2 and sparse_format != "bcsr":
        raise ValueError(f"{sparse_format} arrays are matrices; got shape {mat.shape}.")
    if sparse_format == "coo":
        return COO((mat.data, mat.indices[:, 0], mat.indices[:, 1]), shape=mat.shape, rows_sorted=True,
                   cols_sorted=True)
    rows = BCSR.from_bcoo(mat)
    if sparse_format == "bcsr":
        return rows
    if sparse_format == "csr":
        return CSR((rows.data, rows.indices, rows.indptr), shape=mat.shape)
    rows = rows.transpose()
    return CSC((rows.data, rows.indices, rows.indptr), shape=mat.shape)


def empty(shape: Sequence[int], dtype: Any = None, index_dtype: Any = "int32", sparse_format: str = "bcoo",
          **kwds: Any) -> JAXSparse:
    """A sparse array without elements.

    Args:
      shape: its shape.
      dtype, index_dtype: of its elements (by default float32, or float64 with x64) and indices.
      sparse_format: "bcoo", "bcsr", "coo", "csr" or "csc".
      kwds: of "bcoo" and "bcsr", n_batch, n_dense and nse: that many elements, all of them outside.

    Raises:
      ValueError: for another format.
    """
    _check_format(sparse_format)
    shape = tuple(operator.index(n) for n in shape)
    n_batch, n_dense, nse = (operator.index(kwds.pop(name, 0)) for name in ("n_batch", "n_dense", "nse"))
    if kwds:
        raise TypeError(f"empty() got unexpected keyword arguments {sorted(kwds)}.")
    index_dtype = dtypes.canonicalize_dtype(index_dtype)
    sizes = shape[n_batch: len(shape) - n_dense]
    data = jnp.zeros((*shape[:n_batch], nse, *shape[len(shape) - n_dense:]), dtype)
    indices = jnp.broadcast_to(np.array(sizes, index_dtype), (*shape[:n_batch], nse, len(sizes)))
    return _in_format(BCOO((data, indices), shape=shape, indices_sorted=True, unique_indices=True),
                      sparse_format)


def eye(N: int, M: int | None = None, k: int = 0, dtype: Any = None, index_dtype: Any = "int32",
        sparse_format: str = "bcoo", **kwds: Any) -> JAXSparse:
    """A matrix with ones on a diagonal, zeros elsewhere.

    Args:
      N, M: numbers of rows and columns (by default, as many).
      k: which diagonal: 0 is the main one, positive ones are above.
      dtype, index_dtype, sparse_format: as of `empty`.
      kwds: of "bcoo", n_batch and n_dense.

    >>> sparse.eye(2, 3, k=1).todense()
    Array([[0., 1., 0.],
           [0., 0., 1.]], dtype=float32)
    """
    _check_format(sparse_format)
    rows, columns = operator.index(N), operator.index(N if M is None else M)
    k = operator.index(k)
    n_batch, n_dense = (operator.index(kwds.pop(name, 0)) for name in ("n_batch", "n_dense"))
    if kwds:
        raise TypeError(f"eye() got unexpected keyword arguments {sorted(kwds)}.")
    index_dtype = dtypes.canonicalize_dtype(index_dtype)
    count = max(0, min(rows, columns - k) if k >= 0 else min(rows + k, columns))
    first = (max(-k, 0), max(k, 0))
    if n_batch == 1 and not n_dense:
        numbers = np.arange(rows)[:, None] + k
        there = (numbers >= 0) & (numbers < columns)
        mat = BCOO((jnp.asarray(there).astype(jnp.zeros((), dtype).dtype),
                    jnp.asarray(np.where(there, numbers, columns)[..., None].astype(index_dtype))),
                   shape=(rows, columns), indices_sorted=True, unique_indices=True)
    elif n_batch or n_dense:
        mat = bcoo_fromdense(jnp.eye(rows, columns, k, dtype), n_batch=n_batch, n_dense=n_dense,
                             index_dtype=index_dtype)
    else:
        places = np.arange(count)[:, None] + np.array(first)
        mat = BCOO((jnp.ones((count,), dtype), jnp.asarray(places.astype(index_dtype))), shape=(rows, columns),
                   indices_sorted=True, unique_indices=True)
    return _in_format(mat, sparse_format)


def random_bcoo(key: Any, shape: Sequence[int], *, dtype: Any = jnp.float64, indices_dtype: Any = None,
                nse: float = 0.2, n_batch: int = 0, n_dense: int = 0, unique_indices: bool = True,
                sorted_indices: bool = False, generator: Callable[..., Any] = random.uniform, **kwds: Any) -> BCOO:
    """A BCOO array with random elements at random places.

    Args:
      key: a random key.
      shape: its shape.
      dtype, indices_dtype: of its elements (64-bit numbers are narrower without x64) and indices (int32).
      nse: the number of elements, or, below 1, the part of all there is room for.
      n_batch, n_dense: how many dimensions, from the first and from the last, are batch and dense ones.
      unique_indices: no two elements of a matrix are at one place.
      sorted_indices: elements are in order.
      generator: draws the elements: `generator(key, shape=shape, dtype=dtype, **kwds)`.

    Raises:
      ValueError: for an `nse` that does not fit.

    >>> sparse.random_bcoo(anima.random.key(0), (4, 5), nse=4)
    BCOO(float32[4, 5], nse=4)
    """
    shape = tuple(operator.index(n) for n in shape)
    if n_batch < 0 or n_dense < 0 or n_batch + n_dense > len(shape):
        raise ValueError(f"random_bcoo: {n_batch=} and {n_dense=} of shape {shape}.")
    batch, sizes, dense = shape[:n_batch], shape[n_batch: len(shape) - n_dense], shape[len(shape) - n_dense:]
    room = math.prod(sizes)
    if not 0 <= nse < 1 and int(nse) != nse:
        raise ValueError(f"random_bcoo: nse must be a whole number, or a part between 0 and 1; got {nse}.")
    count = math.ceil(nse * room) if 0 < nse < 1 else int(nse)
    if count < 0 or (count > room and unique_indices):
        raise ValueError(f"got {nse=}, expected to be between 0 and {room}")
    index_dtype = dtypes.canonicalize_dtype(np.int32 if indices_dtype is None else indices_dtype)
    keys = random.split(key, 1 + math.prod(batch))
    data = generator(keys[0], shape=(*batch, count, *dense), dtype=dtypes.canonicalize_dtype(dtype), **kwds)

    def places(key: Any) -> Any:
        if not room or not count:
            return jnp.zeros((count, len(sizes)), index_dtype)
        flat = random.choice(key, room, shape=(count,), replace=not unique_indices)
        return unravelled(flat, sizes, index_dtype)

    found = vmap(places)(keys[1:]) if math.prod(batch) else jnp.zeros((0, count, len(sizes)), index_dtype)
    indices = found.reshape(*batch, count, len(sizes))
    mat = BCOO((data, indices), shape=shape, unique_indices=unique_indices)
    return bcoo_sort_indices(mat) if sorted_indices else mat
