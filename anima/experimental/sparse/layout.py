"""How elements of BCOO arrays are stored: to and from dense arrays, in order, each once, in batches or not.

    >>> sparse.bcoo_fromdense(jnp.array([[0., 2.], [3., 0.]])).indices
    Array([[0, 1],
           [1, 0]], dtype=int32)
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np

from anima import errors, lax, numpy as jnp
from anima.api.jit import jit
from anima.api.mapping import vmap
from anima.core import dtypes
from anima.core.array import Array
from anima.core.avals import Shape
from anima.core.trace import Tracer, ensure_compile_time_eval
from anima.experimental.sparse.base import SparseEfficiencyError, SparseEfficiencyWarning, install
from anima.experimental.sparse.bcoo import BCOO, parts_of

COMPILED = 4096  # elements from which on an operation is compiled where it would run at once


def checked(name: str, mat: Any) -> BCOO:
    """TypeError unless `mat` is a BCOO array."""
    if not isinstance(mat, BCOO):
        raise TypeError(f"{name} needs a BCOO array, got {type(mat).__name__}.")
    return mat


def compiled(function: Callable[..., Any], size: int, *args: Any) -> Any:
    """`function(*args)`, compiled if that is worth it; `function` is of a module, and partial to all that is static."""
    if size < COMPILED:
        return function(*args)
    static = function.keywords if isinstance(function, partial) else {}
    whole = function.func if isinstance(function, partial) else function
    return _jitted(whole, tuple(static))(*args, **static)


_known: dict[Any, Callable[..., Any]] = {}


def _jitted(function: Callable[..., Any], static: tuple[str, ...]) -> Callable[..., Any]:
    key = function, static
    return _known.setdefault(key, jit(function, static_argnames=static))


# ---------------------------------------------------------------- indices

def inside(indices: Any, sizes: Sequence[int]) -> Array:
    """Whether all parts of an index, the last dimension, are inside of an array of these sizes."""
    wide = indices if dtypes.itemsize_bits(indices.dtype) >= 32 else indices.astype(np.int32)
    limits = np.minimum(np.array(sizes, np.int64), int(dtypes.iinfo(wide.dtype).max)).astype(wide.dtype)
    return jnp.all((wide >= 0) & (wide < limits), -1)


def where_inside(keep: Any, indices: Any, sizes: Sequence[int]) -> Array:
    """Indices, but those that are not to be kept are outside: the sizes themselves."""
    return jnp.where(keep[..., None], indices, np.array(sizes, indices.dtype))


def index_dtype_for(sizes: Sequence[int], dtype: Any) -> Any:
    """The dtype of row-major places in an array of these sizes: int64 where they need it, and there is one."""
    if math.prod(sizes) <= np.iinfo(np.int32).max:
        return np.dtype(np.int32)
    if dtypes.canonicalize_dtype(np.int64) != np.int64:
        raise ValueError(f"A place among {math.prod(sizes)} elements of shape {tuple(sizes)} does not fit into an "
                         "int32: enable x64 for more.")
    return np.dtype(np.int64)


def linear(indices: Any, sizes: Sequence[int]) -> Array:
    """Row-major places of indices, the last dimension; the number of elements for those outside."""
    if len(sizes) == 1:
        return indices[..., 0]
    dtype = index_dtype_for(sizes, indices.dtype)
    place = jnp.zeros(indices.shape[:-1], dtype)
    for d, size in enumerate(sizes):
        place = place * dtype.type(size) + indices[..., d].astype(dtype)
    return jnp.where(inside(indices, sizes), place, dtype.type(math.prod(sizes)))


def unravelled(places: Any, sizes: Sequence[int], dtype: Any) -> Array:
    """Indices [..., rank] of row-major places; outside for those outside."""
    out, rest, total = [], places, math.prod(sizes)
    for size in reversed(sizes):
        out.append(rest % max(size, 1))
        rest = rest // max(size, 1)
    if not out:
        return jnp.zeros((*places.shape, 0), dtype)
    found = jnp.stack(out[::-1], -1).astype(dtype)
    return where_inside((places >= 0) & (places < total), found, sizes)


def spread(mat: BCOO) -> tuple[Array, Array]:
    """Data and indices, with all batch dimensions whole."""
    batch, _, _ = parts_of(mat)
    data, indices = (x if x.shape[: len(batch)] == batch else jnp.broadcast_to(x, batch + x.shape[len(batch):])
                     for x in (mat.data, mat.indices))
    return data, indices


def over_batch(function: Callable[..., Any], mat: BCOO, *others: Any) -> Any:
    """`function(data, indices, *others)` of each element of the batch, results stacked."""
    data, indices = spread(mat)
    for _ in range(mat.n_batch):
        function = vmap(function)
    return function(data, indices, *others)


# ---------------------------------------------------------------- dense arrays

def bcoo_todense(mat: BCOO) -> Array:
    """The dense array with these elements: those at one place are added up.

    >>> sparse.bcoo_todense(sparse.BCOO((jnp.array([1., 2.]), jnp.array([[1], [1]])), shape=(3,)))
    Array([0., 3., 0.], dtype=float32)
    """
    mat = checked("bcoo_todense", mat)
    data, indices = spread(mat)
    return compiled(partial(_todense, shape=mat.shape, unique=mat.unique_indices), data.size, data, indices)


def _windows(n_batch: int, n_sparse: int, n_dense: int) -> tuple[Any, ...]:
    """Dimension numbers of elements among a dense array's, as gathers and scatters have them."""
    sparse = tuple(range(n_batch, n_batch + n_sparse))
    batch = tuple(range(n_batch))
    return tuple(range(n_batch + 1, n_batch + 1 + n_dense)), sparse, sparse, batch, batch


def _todense(data: Any, indices: Any, *, shape: Shape, unique: bool) -> Array:
    n_batch, n_sparse = indices.ndim - 2, indices.shape[-1]
    out = jnp.zeros(shape, data.dtype)
    if not out.size or not data.size:
        return out
    if not n_sparse:
        return jnp.sum(data, n_batch, dtype=data.dtype)
    numbers = lax.ScatterDimensionNumbers(*_windows(n_batch, n_sparse, data.ndim - 1 - n_batch))
    if data.dtype == np.bool_:
        return lax.scatter_max(out.astype(np.uint8), indices, data.astype(np.uint8), numbers, mode="drop") != 0
    return lax.scatter_add(out, indices, data, numbers, mode="drop", unique_indices=False)


def elements_at(indices: Any, dense: Any) -> Array:
    """The elements of a dense array [*batch, *sparse, *dense] at indices [*batch, nse, n_sparse], 0 outside."""
    n_batch, n_sparse = indices.ndim - 2, indices.shape[-1]
    window = dense.shape[n_batch + n_sparse:]
    shape = (*indices.shape[:-1], *window)
    if not dense.size or not math.prod(shape):
        return jnp.zeros(shape, dense.dtype)
    if not n_sparse:
        return jnp.broadcast_to(jnp.expand_dims(dense, n_batch), shape)
    numbers = lax.GatherDimensionNumbers(*_windows(n_batch, n_sparse, len(window)))
    sizes = (1,) * (n_batch + n_sparse) + window
    return lax.gather(dense, indices, numbers, sizes, mode="fill", fill_value=0)


def bcoo_extract(sparr: BCOO, arr: Any, *, assume_unique: bool | None = None) -> BCOO:
    """The elements of a dense array at the indices of a sparse one.

    Args:
      sparr: a BCOO array; its values do not matter.
      arr: an array of its shape.
      assume_unique: that indices are; where they are not, each of the equal ones gets the value. By default, as
        `sparr.unique_indices` says; where that is False, the first of equal indices gets the value, others 0, so that
        they add up to it.
    """
    sparr, arr = checked("bcoo_extract", sparr), jnp.asarray(arr)
    if arr.shape != sparr.shape:
        raise ValueError(f"bcoo_extract: arrays of shapes {sparr.shape} and {arr.shape}.")
    _, indices = spread(sparr)
    values = elements_at(indices, arr)
    if not (sparr.unique_indices if assume_unique is None else assume_unique):
        first = over_batch(lambda data, index: _first_of_equal(index), BCOO(
            (values, indices), shape=sparr.shape))
        first = jnp.expand_dims(first, tuple(range(first.ndim, values.ndim)))
        values = jnp.where(first, values, jnp.zeros((), values.dtype))
    return BCOO((values, indices), shape=sparr.shape, indices_sorted=sparr.indices_sorted,
                unique_indices=sparr.unique_indices)


def _count(mask: Any, nse: int | None, name: str) -> int:
    """The number of elements to store: as many as are given, or as there are in any element of the batch."""
    if nse is not None:
        return operator.index(nse)
    most = jnp.max(jnp.sum(mask, -1), initial=0) if mask.size else 0
    if isinstance(most, Tracer) and most.concrete() is None:
        raise errors.ConcretizationTypeError(
            most, f"The nse argument of {name} must be given, as a number, where the array is traced.",
            f"{name}(..., nse=n)")
    return int(most)


def known(mat: Any) -> Any:
    """Around what is to be known of an array, while a function is traced too, if the array is."""
    return nullcontext() if isinstance(mat, Tracer) else ensure_compile_time_eval()


def bcoo_fromdense(mat: Any, *, nse: int | None = None, n_batch: int = 0, n_dense: int = 0,
                   index_dtype: Any = jnp.int32) -> BCOO:
    """The nonzero elements of a dense array, in order.

    Args:
      mat: an array.
      nse: the number of elements to store: the first ones, or all and as many outside; by default, as many as there are
        (in an element of the batch), which must be known: not while tracing.
      n_batch, n_dense: how many dimensions, from the first and from the last, are batch and dense ones.
      index_dtype: of the indices.

    >>> sparse.bcoo_fromdense(jnp.array([0., 3.]), nse=2).indices
    Array([[1],
           [2]], dtype=int32)
    """
    mat = jnp.asarray(mat)
    if n_batch < 0 or n_dense < 0 or n_batch + n_dense > mat.ndim:
        raise ValueError(f"bcoo_fromdense: {n_batch=} and {n_dense=} of an array of shape {mat.shape}.")
    sizes = mat.shape[n_batch: mat.ndim - n_dense]
    batch, total = mat.shape[:n_batch], math.prod(sizes)
    with known(mat):
        mask = mat != 0
        if n_dense:
            mask = jnp.any(mask, tuple(range(mat.ndim - n_dense, mat.ndim)))
        mask = jnp.reshape(mask, (math.prod(batch), total))
        count = _count(mask, nse, "bcoo_fromdense")
    index_dtype = dtypes.canonicalize_dtype(index_dtype)
    pick = partial(_nonzero_places, count=count)
    places = compiled(pick, mask.size, mask)
    indices = jnp.reshape(unravelled(places, sizes, index_dtype), (*batch, count, len(sizes)))
    data = elements_at(indices, mat)
    if not sizes:  # there is no index outside: one element is stored, others are 0
        first = jnp.expand_dims(jnp.reshape(places < total, (*batch, count)), tuple(range(n_batch + 1, data.ndim)))
        data = jnp.where(first, data, jnp.zeros((), data.dtype))
    return BCOO((data, indices), shape=mat.shape, indices_sorted=True, unique_indices=bool(sizes) or count <= 1)


def _nonzero_places(mask: Any, *, count: int) -> Array:
    """Of each row of a mask, the first `count` places where it holds; its length for those that are missing."""
    total = mask.shape[1]
    return vmap(lambda row: jnp.nonzero(row, size=count, fill_value=total)[0])(mask) if mask.shape[0] else \
        jnp.zeros((0, count), np.int32)


# ---------------------------------------------------------------- order, duplicates

def _order(indices: Any) -> tuple[Array, Array]:
    """Indices [nse, n_sparse] in lexicographic order, and where each was."""
    nse, n_sparse = indices.shape
    iota = jnp.arange(nse, dtype=np.int32)
    if not n_sparse:
        return indices, iota
    *columns, order = lax.sort([*(indices[:, d] for d in range(n_sparse)), iota], num_keys=n_sparse)
    return jnp.stack(columns, -1), order


def _begins(indices: Any) -> Array:
    """Whether an index is another than the one before, in a list that is in order."""
    if not indices.shape[0]:
        return jnp.zeros((0,), bool)
    changes = jnp.any(indices[1:] != indices[:-1], -1)
    return jnp.concatenate([jnp.ones((1,), bool), changes])


def _first_of_equal(indices: Any) -> Array:
    """Whether an index is the first one of its kind."""
    in_order, order = _order(indices)
    return jnp.zeros(order.shape, bool).at[order].set(_begins(in_order))


def bcoo_sort_indices(mat: BCOO) -> BCOO:
    """The same elements in lexicographic order of their indices, those outside last; equal ones stay in order."""
    mat = checked("bcoo_sort_indices", mat)

    sizes = parts_of(mat)[1]

    def in_order(data: Any, indices: Any) -> tuple[Any, Any]:
        indices, order = _order(where_inside(inside(indices, sizes), indices, sizes))
        return jnp.take(data, order, axis=0), indices

    data, indices = (mat.data, mat.indices) if mat.indices_sorted else over_batch(in_order, mat)
    return BCOO((data, indices), shape=mat.shape, indices_sorted=True, unique_indices=mat.unique_indices)


def bcoo_sum_duplicates(mat: BCOO, nse: int | None = None, remove_zeros: bool = False) -> BCOO:
    """The same array with each index once, in order.

    Args:
      mat: a BCOO array.
      nse: the number of stored elements of the result: the first ones, or all and as many outside; by default, as many
        as there are different indices, which must be known: not while tracing.
      remove_zeros: leave out elements that are stored and 0, as the method does.

    Raises:
      ValueError: without `nse` while tracing.

    >>> mat = sparse.BCOO((jnp.array([1., 2., 3.]), jnp.array([[1], [0], [1]])), shape=(3,))
    >>> sparse.bcoo_sum_duplicates(mat).data
    Array([2., 4.], dtype=float32)
    """
    mat = checked("bcoo_sum_duplicates", mat)
    sizes = parts_of(mat)[1]
    data, indices = spread(mat)
    keep = inside(indices, sizes)
    if remove_zeros:
        stored = jnp.any(data != 0, tuple(range(mat.n_batch + 1, data.ndim))) if mat.n_dense else data != 0
        keep = keep & stored
    indices = where_inside(keep, indices, sizes)
    if nse is None:
        def count(data: Any, index: Any) -> Array:
            in_order, _ = _order(index)
            return jnp.sum(_begins(in_order) & inside(in_order, sizes))

        if isinstance(data, Tracer) or isinstance(indices, Tracer):
            raise ValueError("bcoo_sum_duplicates: nse must be given where the array is traced, as by jit and vmap.")
        counts = over_batch(count, BCOO((data, indices), shape=mat.shape))
        nse = int(jnp.max(counts, initial=0))

    def total(data: Any, index: Any) -> tuple[Any, Any]:
        in_order, order = _order(index)
        begins = _begins(in_order)
        number = jnp.cumsum(begins.astype(np.int32)) - 1
        found = jnp.full((nse, len(sizes)), np.array(sizes, index.dtype), index.dtype)
        found = found.at[number].set(in_order, mode="drop")
        valid = inside(in_order, sizes)
        number = jnp.where(valid, number, nse)
        return add_at(jnp.take(data, order, axis=0), number, nse), found

    new_data, new_indices = over_batch(total, BCOO((data, indices), shape=mat.shape))
    if not remove_zeros:  # then places are those of the indices alone, which may be shared along the batch
        shared = [k for k in range(mat.n_batch) if mat.indices.shape[k] == 1]
        new_indices = _first_along(new_indices, shared)
        new_data = _first_along(new_data, [k for k in shared if mat.data.shape[k] == 1])
    return BCOO((new_data, new_indices), shape=mat.shape, indices_sorted=True, unique_indices=True)


def _first_along(x: Any, axes: Sequence[int]) -> Any:
    return x[tuple(slice(0, 1) if k in axes else slice(None) for k in range(x.ndim))] if axes else x


def add_at(data: Any, places: Any, count: int) -> Array:
    """The sums of the rows of `data` with equal places, below `count`."""
    if data.dtype == np.bool_:
        return add_at(data.astype(np.int32), places, count) != 0
    return jnp.zeros((count, *data.shape[1:]), data.dtype).at[places].add(data, mode="drop")


# ---------------------------------------------------------------- batch and dense dimensions

def bcoo_update_layout(mat: BCOO, *, n_batch: int | None = None, n_dense: int | None = None,
                       on_inefficient: str | None = "error") -> BCOO:
    """The same array with other numbers of batch and dense dimensions.

    Args:
      mat: a BCOO array.
      n_batch, n_dense: how many there are to be; by default, as many as there are.
      on_inefficient: what to do if more elements have to be stored than there are, as where sparse dimensions become
        dense: "error", "warn", or None.

    Raises:
      SparseEfficiencyError: if the result is inefficient and `on_inefficient` is "error".
    """
    mat = checked("bcoo_update_layout", mat)
    batch, dense = (own if given is None else operator.index(given)
                    for given, own in ((n_batch, mat.n_batch), (n_dense, mat.n_dense)))
    if batch < 0 or dense < 0 or batch + dense > mat.ndim:
        raise ValueError(f"bcoo_update_layout: n_batch={batch} and n_dense={dense} of shape {mat.shape}.")
    if on_inefficient not in ("error", "warn", None):
        raise ValueError(f"bcoo_update_layout: on_inefficient must be 'error', 'warn' or None, got {on_inefficient!r}.")
    for name, old, new, sizes in (("n_batch", mat.n_batch, batch, mat.shape[mat.n_batch:batch]),
                                  ("n_dense", mat.n_dense, dense, mat.shape[mat.ndim - dense:mat.ndim - mat.n_dense])):
        if math.prod(sizes) > 1 and on_inefficient is not None:
            text = (f"For an array of shape {mat.shape}, more {name} ({new} for {old}) means that zeros are stored. To "
                    "allow it, set the on_inefficient argument of bcoo_update_layout to ")
            if on_inefficient == "error":
                raise SparseEfficiencyError(text + "'warn' or None.")
            warnings.warn(text + "None.", SparseEfficiencyWarning, stacklevel=errors.user_stacklevel())
    while mat.n_dense > dense:
        mat = _dense_to_sparse(mat)
    while mat.n_batch > batch:
        mat = _batch_to_sparse(mat)
    while mat.n_dense < dense:
        mat = _sparse_to_dense(mat)
    while mat.n_batch < batch:
        mat = _sparse_to_batch(mat)
    return mat


def _dense_to_sparse(mat: BCOO) -> BCOO:
    """The first dense dimension becomes the last sparse one."""
    data, indices = spread(mat)
    axis = mat.n_batch
    size, nse = data.shape[axis + 1], mat.nse
    own = jnp.broadcast_to(jnp.arange(size, dtype=indices.dtype)[:, None], (*indices.shape[:-1], size, 1))
    others = jnp.broadcast_to(jnp.expand_dims(indices, -2), (*indices.shape[:-1], size, mat.n_sparse))
    new = jnp.concatenate([others, own], -1).reshape(*indices.shape[:-2], nse * size, mat.n_sparse + 1)
    sizes = mat.shape[axis: axis + mat.n_sparse + 1]
    new = where_inside(inside(new, sizes), new, sizes)
    return BCOO((data.reshape(*data.shape[:axis], nse * size, *data.shape[axis + 2:]), new), shape=mat.shape,
                indices_sorted=mat.indices_sorted and (mat.n_sparse > 0 or nse <= 1),
                unique_indices=mat.unique_indices)


def _batch_to_sparse(mat: BCOO) -> BCOO:
    """The last batch dimension becomes the first sparse one."""
    data, indices = spread(mat)
    axis = mat.n_batch - 1
    size, nse = data.shape[axis], mat.nse
    own = jnp.broadcast_to(jnp.arange(size, dtype=indices.dtype)[:, None, None], (*indices.shape[:-1], 1))
    new = jnp.concatenate([own, indices], -1).reshape(*indices.shape[:axis], size * nse, mat.n_sparse + 1)
    sizes = mat.shape[axis: axis + 1 + mat.n_sparse]
    new = where_inside(inside(new, sizes), new, sizes)
    return BCOO((data.reshape(*data.shape[:axis], size * nse, *data.shape[axis + 2:]), new), shape=mat.shape,
                unique_indices=mat.unique_indices)


def _sparse_to_dense(mat: BCOO) -> BCOO:
    """The last sparse dimension becomes the first dense one."""
    if not mat.n_sparse:
        raise ValueError(f"bcoo_update_layout: there are not so many dimensions in shape {mat.shape}.")
    data, indices = spread(mat)
    axis, size = mat.n_batch, parts_of(mat)[1][-1]
    here = indices[..., -1:] == jnp.arange(size, dtype=indices.dtype)
    here = jnp.expand_dims(here, tuple(range(axis + 2, data.ndim + 1)))
    new = jnp.where(here, jnp.expand_dims(data, axis + 1), jnp.zeros((), data.dtype))
    return BCOO((new, indices[..., :-1]), shape=mat.shape, indices_sorted=mat.indices_sorted)


def _sparse_to_batch(mat: BCOO) -> BCOO:
    """The first sparse dimension becomes the last batch one."""
    if not mat.n_sparse:
        raise ValueError(f"bcoo_update_layout: there are not so many dimensions in shape {mat.shape}.")
    data, indices = spread(mat)
    axis, sizes = mat.n_batch, parts_of(mat)[1]
    numbers = jnp.arange(sizes[0], dtype=indices.dtype)[:, None]
    here = jnp.expand_dims(indices[..., 0], axis) == numbers
    rest = jnp.broadcast_to(jnp.expand_dims(indices[..., 1:], axis), (*here.shape, mat.n_sparse - 1))
    kept = jnp.expand_dims(here, tuple(range(axis + 2, data.ndim + 1)))
    new = jnp.where(kept, jnp.expand_dims(data, axis), jnp.zeros((), data.dtype))
    return BCOO((new, where_inside(here, rest, sizes[1:])), shape=mat.shape)


install(BCOO, {"fromdense": bcoo_fromdense, "todense": bcoo_todense, "sort_indices": bcoo_sort_indices,
               "sum_duplicates": bcoo_sum_duplicates, "update_layout": bcoo_update_layout})
