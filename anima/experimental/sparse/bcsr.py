"""BCSR: matrices by rows, in batches: the columns of stored elements, and where each row begins among them.

    BCSR((data, indices, indptr), shape=(*batch, rows, columns, *dense))

Elements from `indptr[i]` to before `indptr[i + 1]` are those of row `i`; what is behind the last row fills up arrays of
a fixed length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from anima import numpy as jnp, tree
from anima.core import dtypes
from anima.core.array import Array
from anima.core.avals import Shape
from anima.experimental.sparse.base import JAXSparse, rebuilt, shape_with_batch
from anima.experimental.sparse.bcoo import BCOO
from anima.experimental.sparse.layout import (
    bcoo_fromdense,
    bcoo_sort_indices,
    bcoo_sum_duplicates,
    bcoo_todense,
    compiled,
    elements_at,
    spread,
)
from anima.experimental.sparse.product import bcoo_dot_general, checked_numbers
from anima.experimental.sparse.shape import bcoo_broadcast_in_dim, bcoo_concatenate, bcoo_transpose
from anima.ops import sparse as ops


@tree.register_pytree_node_class
class BCSR(JAXSparse):
    """A matrix by rows, in batches.

    Args:
      args: (data, indices, indptr): data [*batch, nse, *dense], columns [*batch, nse], where rows begin
        [*batch, rows + 1].
      shape: (*batch, rows, columns, *dense).
      indices_sorted, unique_indices: promises about the columns of each row.

    Raises:
      ValueError: for shapes that do not fit. TypeError: for indices that are no integers.

    >>> sparse.BCSR.fromdense(jnp.eye(3)).indptr
    Array([0, 1, 2, 3], dtype=int32)
    """

    data: Any
    indices: Any
    indptr: Any
    indices_sorted: bool
    unique_indices: bool

    def __init__(self, args: tuple[Any, Any, Any], *, shape: Any, indices_sorted: bool = False,
                 unique_indices: bool = False):
        super().__init__(args, shape=shape)
        self.data, self.indices, self.indptr = map(jnp.asarray, args)
        self.indices_sorted, self.unique_indices = bool(indices_sorted), bool(unique_indices)
        for x in (self.indices, self.indptr):
            if not dtypes.issubdtype(x.dtype, np.integer):
                raise TypeError(f"BCSR: indices must be integers, got {dtypes.name(x.dtype)}.")
        n_batch = self.indices.ndim - 1
        fits = (self.indptr.ndim == n_batch + 1 and n_batch >= 0 and len(self.shape) == n_batch + 2 + self.n_dense
                and self.n_dense >= 0 and self.indptr.shape[-1] == self.shape[n_batch] + 1
                and self.data.shape[n_batch:] == (self.nse, *self.shape[n_batch + 2:])
                and all(n in (1, full) for x in (self.data, self.indices, self.indptr)
                        for n, full in zip(x.shape[:n_batch], self.shape[:n_batch], strict=True)))
        if not fits:
            raise ValueError(f"Invalid BCSR: data {self.data.shape}, indices {self.indices.shape} and indptr "
                             f"{self.indptr.shape} for shape {self.shape}.")

    @property
    def nse(self) -> int:
        return int(self.indices.shape[-1])

    @property
    def dtype(self) -> Any:
        return self.data.dtype

    @property
    def n_batch(self) -> int:
        """The number of batch dimensions."""
        return int(self.indices.ndim) - 1

    @property
    def n_sparse(self) -> int:
        """The number of sparse dimensions: 2."""
        return 2

    @property
    def n_dense(self) -> int:
        """The number of dense dimensions."""
        return int(self.data.ndim - self.indices.ndim)

    def _layout_text(self) -> str:
        return "".join(f", {name}={n}" for name, n in (("n_batch", self.n_batch), ("n_dense", self.n_dense)) if n)

    def tree_flatten(self) -> tuple[tuple[Any, Any, Any], dict[str, Any]]:
        return (self.data, self.indices, self.indptr), {
            "shape": self.shape, "indices_sorted": self.indices_sorted, "unique_indices": self.unique_indices}

    @classmethod
    def tree_unflatten(cls, aux_data: Any, children: Any) -> BCSR:
        data, indices, indptr = children
        shape = aux_data["shape"]
        if hasattr(indices, "ndim") and hasattr(data, "ndim") and hasattr(indptr, "ndim"):
            n_dense = max(data.ndim - indices.ndim, 0)
            shape = shape_with_batch(shape, 2 + n_dense, (indices, 1), (data, 1 + n_dense), (indptr, 1))
        return rebuilt(cls, ("data", "indices", "indptr"), children,
                       {**aux_data, "shape": shape})

    def like(self, data: Any) -> BCSR:
        """The same elements with other values."""
        return BCSR((data, self.indices, self.indptr), shape=self.shape, indices_sorted=self.indices_sorted,
                    unique_indices=self.unique_indices)

    @classmethod
    def fromdense(cls, mat: Any, *, nse: int | None = None, index_dtype: Any = np.int32, n_dense: int = 0,
                  n_batch: int = 0) -> BCSR:
        """The nonzero elements of a dense array; see `bcsr_fromdense`."""
        return bcsr_fromdense(mat, nse=nse, index_dtype=index_dtype, n_dense=n_dense, n_batch=n_batch)

    @classmethod
    def from_bcoo(cls, arr: BCOO) -> BCSR:
        """The array with two sparse dimensions that a BCOO array is, its elements in order."""
        if arr.n_sparse != 2:
            raise NotImplementedError(f"BCSR.from_bcoo needs two sparse dimensions; got {arr}.")
        arr = bcoo_sort_indices(arr)
        data, indices = spread(arr)
        count = arr.shape[arr.n_batch]
        rows = indices[..., 0].reshape(math.prod(indices.shape[:-2]), arr.nse)
        pointers = compiled(partial(_pointers, rows=count), rows.size, rows)
        pointers = pointers.reshape(*indices.shape[:-2], count + 1).astype(indices.dtype)
        return cls((data, indices[..., 1], pointers), shape=arr.shape, indices_sorted=True,
                   unique_indices=arr.unique_indices)

    @classmethod
    def from_scipy_sparse(cls, mat: Any, *, index_dtype: Any = None, n_dense: int = 0, n_batch: int = 0) -> BCSR:
        """A matrix of `scipy.sparse`; its columns are marked as sorted and unique where they are.

        Raises:
          NotImplementedError: for n_dense or n_batch other than 0.
        """
        if n_dense or n_batch:
            raise NotImplementedError("BCSR.from_scipy_sparse with nonzero n_dense or n_batch.")
        mat = mat.tocsr()
        dtype = np.int32 if index_dtype is None else index_dtype
        return cls((mat.data, mat.indices.astype(dtype), mat.indptr.astype(dtype)), shape=mat.shape,
                   indices_sorted=bool(mat.has_sorted_indices), unique_indices=bool(mat.has_canonical_format))

    def to_bcoo(self) -> BCOO:
        """The same elements, in the same order, as a BCOO array."""
        data, indices, pointers = _spread(self)
        flat = pointers.reshape(math.prod(indices.shape[:-1]), pointers.shape[-1])
        rows = compiled(partial(_numbers, entries=self.nse), indices.size, flat)
        rows = rows.reshape(indices.shape).astype(indices.dtype)
        count, outside = self.shape[self.n_batch: self.n_batch + 2]
        columns = jnp.where(rows < count, indices, np.array(outside, rows.dtype))
        return BCOO((data, jnp.stack([rows, columns], -1)), shape=self.shape, indices_sorted=self.indices_sorted,
                    unique_indices=self.unique_indices)

    def todense(self) -> Array:
        return bcsr_todense(self)

    def transpose(self, *args: Any, **kwargs: Any) -> BCSR:
        """The array with its dimensions in another order (by default, in reverse): its elements are sorted anew."""
        order = kwargs.pop("axes", args[0] if len(args) == 1 and not isinstance(args[0], int) else args or None)
        order = tuple(reversed(range(self.ndim))) if order is None else tuple(order)
        moved = bcoo_transpose(self.to_bcoo(), permutation=order)
        return BCSR.from_bcoo(moved)

    def sum_duplicates(self, nse: int | None = None, remove_zeros: bool = True) -> BCSR:
        """The same array with each place once, in order, as `nse` elements; see `bcoo_sum_duplicates`."""
        return BCSR.from_bcoo(bcoo_sum_duplicates(self.to_bcoo(), nse, remove_zeros))


def _pointers(rows_of_entries: Any, *, rows: int) -> Array:
    return ops.row_pointers(rows_of_entries, rows)


def _numbers(pointers: Any, *, entries: int) -> Array:
    return ops.row_numbers(pointers, entries)


def _spread(mat: BCSR) -> tuple[Array, Array, Array]:
    """Data, columns and pointers with all batch dimensions whole."""
    batch = mat.shape[: mat.n_batch]
    data, indices, pointers = (
        x if x.shape[: len(batch)] == batch else jnp.broadcast_to(x, batch + x.shape[len(batch):])
        for x in (mat.data, mat.indices, mat.indptr))
    return data, indices, pointers


def bcsr_fromdense(mat: Any, *, nse: int | None = None, n_batch: int = 0, n_dense: int = 0,
                   index_dtype: Any = jnp.int32) -> BCSR:
    """The nonzero elements of a dense array of two sparse dimensions; arguments as of `bcoo_fromdense`.

    Raises:
      ValueError: unless there are two sparse dimensions.
    """
    mat = jnp.asarray(mat)
    if mat.ndim - n_batch - n_dense != 2:
        raise ValueError("bcsr_fromdense: must have 2 sparse dimensions.")
    return BCSR.from_bcoo(bcoo_fromdense(mat, nse=nse, n_batch=n_batch, n_dense=n_dense, index_dtype=index_dtype))


def bcsr_todense(mat: BCSR) -> Array:
    """The dense array with these elements: those at one place are added up."""
    return bcoo_todense(mat.to_bcoo())


def bcsr_extract(indices: Any, indptr: Any, mat: Any) -> Array:
    """The data of a BCSR array with these `indices` and `indptr`: the elements of the dense array `mat` there."""
    indices, indptr, mat = jnp.asarray(indices), jnp.asarray(indptr), jnp.asarray(mat)
    data = jnp.zeros((*indices.shape, *mat.shape[indices.ndim + 1:]), mat.dtype)
    _, places = spread(BCSR((data, indices, indptr), shape=mat.shape).to_bcoo())
    return elements_at(places, mat)


def bcsr_sum_duplicates(mat: BCSR, nse: int | None = None) -> BCSR:
    """The same array with each place once, in order, as `nse` elements; see `bcoo_sum_duplicates`."""
    return mat.sum_duplicates(nse)


def bcsr_broadcast_in_dim(mat: BCSR, *, shape: Sequence[int], broadcast_dimensions: Sequence[int],
                          sharding: None = None) -> BCSR:
    """The array repeated along new batch or dense dimensions; see `bcoo_broadcast_in_dim`."""
    return BCSR.from_bcoo(bcoo_broadcast_in_dim(mat.to_bcoo(), shape=shape, broadcast_dimensions=broadcast_dimensions))


def bcsr_concatenate(operands: Sequence[BCSR], *, dimension: int) -> BCSR:
    """Arrays one behind the other along a dimension; see `bcoo_concatenate`."""
    return BCSR.from_bcoo(bcoo_concatenate([m.to_bcoo() for m in operands], dimension=dimension))


def bcsr_dot_general(lhs: Any, rhs: Any, *, dimension_numbers: Any, precision: None = None,
                     preferred_element_type: Any = None, out_sharding: None = None) -> Any:
    """`lax.dot_general` where operands are BCSR arrays; see `bcoo_dot_general`.

    Products of rows with a dense array run by rows; all others as those of the BCOO array with the same elements.
    """
    if not isinstance(lhs, BCSR) and not isinstance(rhs, BCSR):
        raise TypeError(f"bcsr_dot_general needs a BCSR array, got {type(lhs).__name__} and {type(rhs).__name__}.")
    if isinstance(lhs, BCSR) and not isinstance(rhs, JAXSparse):
        x = jnp.asarray(rhs)
        (lc, rc), (lb, rb) = checked_numbers("bcsr_dot_general", lhs.shape, x.shape, dimension_numbers)
        if lc == (lhs.n_batch + 1,) and lb == tuple(range(lhs.n_batch)) and not lhs.n_dense:
            dtype = jnp.result_type(lhs.data, x) if preferred_element_type is None else \
                dtypes.canonicalize_dtype(preferred_element_type)
            run = partial(_row_product, contracted=rc[0], batch=rb, dtype=dtype)
            return compiled(run, lhs.data.size, *_spread(lhs), x)
    one, two = (m.to_bcoo() if isinstance(m, BCSR) else m for m in (lhs, rhs))
    return bcoo_dot_general(one, two, dimension_numbers=dimension_numbers, precision=precision,
                            preferred_element_type=preferred_element_type)


def _row_product(data: Any, indices: Any, pointers: Any, x: Any, *, contracted: int, batch: Sequence[int],
                 dtype: Any) -> Array:
    """[batch, rows, free axes of x]."""
    if dtype == np.bool_:
        return _row_product((data != 0).astype(np.int32), indices, pointers, x != 0, contracted=contracted, batch=batch,
                            dtype=np.dtype(np.int32)) != 0
    free = [a for a in range(x.ndim) if a not in batch and a != contracted]
    sizes: Shape = tuple(x.shape[a] for a in free)
    outer = indices.shape[:-1]
    count = math.prod(outer)
    x = jnp.transpose(x.astype(dtype), (*batch, contracted, *free))
    x = x.reshape(count, x.shape[len(batch)], math.prod(sizes))
    flat = [a.reshape(count, a.shape[-1]) for a in (data.astype(dtype), indices, pointers)]
    out = ops.row_product(*flat, x) if count else jnp.zeros((0, flat[2].shape[1] - 1, x.shape[2]), dtype)
    return out.reshape(*outer, pointers.shape[-1] - 1, *sizes)
