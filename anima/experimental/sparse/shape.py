"""Rearranging BCOO arrays: what becomes of data and indices where dimensions move, are cut, joined, or summed.

    >>> mat = sparse.BCOO.fromdense(jnp.array([[0., 2.], [3., 0.]]))
    >>> sparse.bcoo_transpose(mat, permutation=(1, 0)).indices
    Array([[1, 0],
           [0, 1]], dtype=int32)
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima import lax, numpy as jnp
from anima.api.mapping import vmap
from anima.core.array import Array
from anima.core.avals import Shape
from anima.experimental.sparse.base import install
from anima.experimental.sparse.bcoo import BCOO, parts_of
from anima.experimental.sparse.layout import (
    bcoo_sum_duplicates,
    bcoo_update_layout,
    checked,
    inside,
    linear,
    spread,
    unravelled,
    where_inside,
)


def bcoo_transpose(mat: BCOO, *, permutation: Sequence[int]) -> BCOO:
    """The array with dimension `permutation[i]` as number `i`: batch, sparse and dense ones among themselves.

    Raises:
      NotImplementedError: for permutations that mix these; see `bcoo_update_layout`.
    """
    mat = checked("bcoo_transpose", mat)
    order = tuple(operator.index(p) for p in permutation)
    if sorted(order) != list(range(mat.ndim)):
        raise TypeError(f"bcoo_transpose: {permutation} is not a permutation of {mat.ndim} dimensions.")
    n_batch, n_sparse = mat.n_batch, mat.n_sparse
    batch, sparse, dense = order[:n_batch], order[n_batch: n_batch + n_sparse], order[n_batch + n_sparse:]
    for name, part, first in (("batch", batch, 0), ("sparse", sparse, n_batch), ("dense", dense, n_batch + n_sparse)):
        if sorted(part) != list(range(first, first + len(part))):
            raise NotImplementedError(f"bcoo_transpose: permutation {order} moves {name} dimensions among others, with "
                                      f"n_batch={n_batch} and n_dense={mat.n_dense}.")
    data = jnp.transpose(mat.data, (*batch, n_batch, *(d - n_sparse + 1 for d in dense)))
    indices = jnp.transpose(mat.indices, (*batch, n_batch, n_batch + 1))
    columns = [d - n_batch for d in sparse]
    same = columns == sorted(columns)
    if not same:  # in the other direction, nothing is looked up
        turned = columns == sorted(columns, reverse=True)
        indices = jnp.flip(indices, -1) if turned else indices[..., np.array(columns, np.int32)]
    return BCOO((data, indices), shape=tuple(mat.shape[p] for p in order), unique_indices=mat.unique_indices,
                indices_sorted=mat.indices_sorted and same)


def _split(new: Shape, batch: int, dense: int) -> tuple[int, int]:
    """How many of the first and last sizes have these products; NotImplementedError for none."""
    for n_batch in range(len(new) + 1):
        if math.prod(new[:n_batch]) == batch:
            for n_dense in range(len(new) - n_batch + 1):
                if math.prod(new[len(new) - n_dense:]) == dense:
                    return n_batch, n_dense
    raise NotImplementedError(f"bcoo_reshape: shape {new} would mix batch, sparse and dense dimensions.")


def bcoo_reshape(mat: BCOO, *, new_sizes: Sequence[int], dimensions: Sequence[int] | None = None,
                 sharding: None = None) -> BCOO:
    """The elements in row-major order under another shape; `dimensions` permutes the operand's first.

    Raises:
      NotImplementedError: where batch, sparse and dense dimensions would mix; see `bcoo_update_layout`.
      ValueError: for shapes of too many elements for an index, without x64.
    """
    mat = checked("bcoo_reshape", mat)
    if dimensions is not None:
        mat = bcoo_transpose(mat, permutation=dimensions)
    new = tuple(operator.index(n) for n in new_sizes)
    if math.prod(new) != mat.size:
        raise TypeError(f"bcoo_reshape: cannot reshape an array of shape {mat.shape} into {new}.")
    batch, sparse, dense = parts_of(mat)
    n_batch, n_dense = _split(new, math.prod(batch), math.prod(dense))
    sizes = new[n_batch: len(new) - n_dense]
    data, indices = spread(mat)
    if sizes != sparse:
        places = jnp.where(inside(indices, sparse), linear(indices, sparse) if sparse else 0, math.prod(sparse))
        indices = unravelled(places, sizes, indices.dtype)
    data = jnp.reshape(data, (*new[:n_batch], mat.nse, *new[len(new) - n_dense:]))
    indices = jnp.reshape(indices, (*new[:n_batch], mat.nse, len(sizes)))
    return BCOO((data, indices), shape=new, indices_sorted=mat.indices_sorted, unique_indices=mat.unique_indices)


def bcoo_squeeze(arr: BCOO, *, dimensions: Sequence[int]) -> BCOO:
    """The array without some dimensions of size 1."""
    arr = checked("bcoo_squeeze", arr)
    gone = sorted(operator.index(d) % max(arr.ndim, 1) for d in dimensions)
    if any(arr.shape[d] != 1 for d in gone):
        raise ValueError(f"cannot select an axis to squeeze out which has size not equal to one, got shape={arr.shape} "
                         f"and {dimensions=}")
    n_batch, n_sparse = arr.n_batch, arr.n_sparse
    batch = tuple(d for d in gone if d < n_batch)
    columns = [d for d in range(n_sparse) if d + n_batch not in gone]
    dense = tuple(d - n_sparse + 1 for d in gone if d >= n_batch + n_sparse)
    data, indices = jnp.squeeze(arr.data, (*batch, *dense)), jnp.squeeze(arr.indices, batch)
    if len(columns) < n_sparse:
        valid = inside(indices, parts_of(arr)[1])
        data = _masked(data, valid)
        kept = [parts_of(arr)[1][c] for c in columns]
        indices = where_inside(valid, indices[..., np.array(columns, np.int32)], kept)
    return BCOO((data, indices), shape=tuple(n for d, n in enumerate(arr.shape) if d not in gone),
                indices_sorted=arr.indices_sorted, unique_indices=arr.unique_indices and bool(columns or not n_sparse))


def _masked(data: Any, keep: Any) -> Array:
    """Data of the elements to keep, 0 for others."""
    keep = jnp.expand_dims(keep, tuple(range(keep.ndim, data.ndim)))
    return jnp.where(keep, data, jnp.zeros((), data.dtype))


def bcoo_broadcast_in_dim(mat: BCOO, *, shape: Sequence[int], broadcast_dimensions: Sequence[int],
                          sharding: None = None) -> BCOO:
    """The array repeated along new dimensions, and along those of size 1: dimension `i` is `broadcast_dimensions[i]`.

    New dimensions before all sparse ones are batch dimensions, those behind the first dense one are dense; others are
    sparse, where elements are stored as often as they are repeated.
    """
    mat = checked("bcoo_broadcast_in_dim", mat)
    shape, dims = tuple(operator.index(n) for n in shape), tuple(operator.index(d) for d in broadcast_dimensions)
    if len(dims) != mat.ndim or list(dims) != sorted(set(dims)) or any(not 0 <= d < len(shape) for d in dims):
        raise ValueError(f"bcoo_broadcast_in_dim: broadcast_dimensions {dims} of an array of {mat.ndim} dimensions.")
    if any(n not in (1, shape[d]) for n, d in zip(mat.shape, dims, strict=True)):
        raise ValueError(f"bcoo_broadcast_in_dim: shape {mat.shape} does not fit into {shape} at dimensions {dims}.")
    n_batch, n_sparse, n_dense = mat.n_batch, mat.n_sparse, mat.n_dense
    first_sparse = dims[n_batch] if n_sparse else dims[n_batch] if n_dense else len(shape)
    first_dense = dims[n_batch + n_sparse] if n_dense else len(shape)
    if not n_sparse:
        first_sparse = first_dense
    data, indices = spread(mat)
    nse = mat.nse
    batch, dense = shape[:first_sparse], shape[first_dense:]
    own_dense = (d - first_dense + first_sparse + 1 for d in dims[n_batch + n_sparse:])
    data_dims = (*dims[:n_batch], first_sparse, *own_dense)
    data = lax.broadcast_in_dim(data, (*batch, nse, *dense), data_dims)
    indices = lax.broadcast_in_dim(indices, (*batch, nse, n_sparse), (*dims[:n_batch], first_sparse, first_sparse + 1))
    own = {d - first_sparse: k for k, d in enumerate(dims[n_batch: n_batch + n_sparse])}
    repeated = [d for d in range(first_dense - first_sparse)
                if shape[first_sparse + d] != (mat.shape[n_batch + own[d]] if d in own else 1)]
    if len(own) < first_dense - first_sparse or repeated:
        data, indices = _repeated(data, indices, parts_of(mat)[1], shape[first_sparse:first_dense], own, repeated)
    return BCOO((data, indices), shape=shape, unique_indices=mat.unique_indices,
                indices_sorted=mat.indices_sorted and not repeated)


def _repeated(data: Any, indices: Any, old: Shape, sizes: Shape, own: dict[int, int],
              repeated: Sequence[int]) -> tuple[Array, Array]:
    """Elements once for each index of the `repeated` sparse dimensions; `own[d]` is the column of dimension `d`."""
    axis = indices.ndim - 2
    counts = [sizes[d] for d in repeated]
    copies = math.prod(counts)
    grid = np.indices(counts).reshape(len(counts), copies).T if counts else np.zeros((1, 0), int)
    valid = jnp.expand_dims(inside(indices, old), -1)
    new = []
    for d in range(len(sizes)):
        if d in repeated:
            column = jnp.asarray(grid[:, repeated.index(d)].astype(indices.dtype))
            new.append(jnp.broadcast_to(column, (*indices.shape[:-1], copies)))
        else:
            column = indices[..., own[d], None] if d in own else jnp.zeros((), indices.dtype)
            new.append(jnp.broadcast_to(column, (*indices.shape[:-1], copies)))
    found = where_inside(jnp.broadcast_to(valid, (*indices.shape[:-1], copies)), jnp.stack(new, -1), sizes)
    data = jnp.broadcast_to(jnp.expand_dims(data, axis + 1), (*data.shape[: axis + 1], copies, *data.shape[axis + 1:]))
    shape = data.shape
    return (data.reshape(*shape[:axis], shape[axis] * copies, *shape[axis + 2:]),
            found.reshape(*shape[:axis], shape[axis] * copies, len(sizes)))


def bcoo_concatenate(operands: Sequence[BCOO], *, dimension: int) -> BCOO:
    """Arrays of the same numbers of batch and dense dimensions, one behind the other along a dimension."""
    operands = list(operands)
    if not operands or not all(isinstance(m, BCOO) for m in operands):
        raise ValueError(f"bcoo_concatenate needs a sequence of BCOO arrays, got {operands}.")
    first = operands[0]
    if any((m.n_batch, m.n_sparse, m.n_dense) != (first.n_batch, first.n_sparse, first.n_dense) for m in operands):
        raise ValueError("bcoo_concatenate needs arrays with the same n_batch, n_sparse and n_dense, got "
                         f"{operands}.")
    axis = operator.index(dimension)
    if not 0 <= axis < first.ndim or any(m.shape[:axis] + m.shape[axis + 1:] != first.shape[:axis] +
                                         first.shape[axis + 1:] for m in operands):
        raise ValueError(f"bcoo_concatenate: shapes {[m.shape for m in operands]} along dimension {dimension}.")
    shape = (*first.shape[:axis], sum(m.shape[axis] for m in operands), *first.shape[axis + 1:])
    n_batch, column = first.n_batch, axis - first.n_batch
    parts = [spread(m) for m in operands]
    dtype, index_dtype = jnp.result_type(*(d for d, _ in parts)), jnp.result_type(*(i for _, i in parts))
    parts = [(d.astype(dtype), i.astype(index_dtype)) for d, i in parts]
    unique = all(m.unique_indices for m in operands)
    if column < 0:
        nse = max(m.nse for m in operands)
        padded = [_with_nse(d, i, nse, parts_of(m)[1]) for m, (d, i) in zip(operands, parts, strict=True)]
        data, indices = (jnp.concatenate([p[k] for p in padded], axis) for k in (0, 1))
        return BCOO((data, indices), shape=shape, indices_sorted=all(m.indices_sorted for m in operands),
                    unique_indices=unique)
    sizes, start, moved = shape[n_batch: n_batch + first.n_sparse], 0, []
    for mat, (data, indices) in zip(operands, parts, strict=True):
        valid, own = inside(indices, parts_of(mat)[1]), mat.shape[axis]
        if column < first.n_sparse:
            shift = np.array([start if c == column else 0 for c in range(first.n_sparse)], index_dtype)
            indices = where_inside(valid, indices + shift, sizes)
        else:
            widths = [(0, 0)] * data.ndim
            widths[axis - first.n_sparse + 1] = (start, shape[axis] - start - own)
            data = jnp.pad(data, widths)
        moved.append((data, indices))
        start += own
    data, indices = (jnp.concatenate([p[k] for p in moved], n_batch) for k in (0, 1))
    return BCOO((data, indices), shape=shape, unique_indices=unique and column < first.n_sparse)


def _with_nse(data: Any, indices: Any, nse: int, sizes: Shape) -> tuple[Array, Array]:
    """Elements and as many outside as make `nse`."""
    n_batch, own = indices.ndim - 2, indices.shape[-2]
    if own == nse:
        return data, indices
    more = jnp.broadcast_to(np.array(sizes, indices.dtype), (*indices.shape[:-2], nse - own, len(sizes)))
    zeros = jnp.zeros((*data.shape[:n_batch], nse - own, *data.shape[n_batch + 1:]), data.dtype)
    return jnp.concatenate([data, zeros], n_batch), jnp.concatenate([indices, more], n_batch)


# ---------------------------------------------------------------- parts of arrays

def _picked(mat: BCOO, columns: Callable[[Any], Any], keep: Any, batch: Any, dense: Any,
            shape: Shape) -> BCOO:
    """An array of some of the elements: `batch` and `dense` are applied to those dimensions of data and indices, and
    `columns` to indices; of others than those to `keep`, nothing is left. No more are stored than there is room for."""
    data, indices = spread(mat)
    sizes = shape[mat.n_batch: mat.n_batch + mat.n_sparse]
    indices = where_inside(keep, columns(indices), sizes)
    data, indices = dense(batch(_masked(data, keep))), batch(indices)
    out = BCOO((data, indices), shape=shape, unique_indices=mat.unique_indices)
    room = math.prod(sizes)
    return bcoo_sum_duplicates(out, nse=room) if mat.n_sparse and room < out.nse else out


def bcoo_slice(mat: BCOO, *, start_indices: Sequence[int], limit_indices: Sequence[int],
               strides: Sequence[int] | None = None) -> BCOO:
    """The part of an array from `start_indices` to before `limit_indices`, in steps of `strides`."""
    mat = checked("bcoo_slice", mat)
    starts, limits = (tuple(map(operator.index, given)) for given in (start_indices, limit_indices))
    steps = (1,) * mat.ndim if strides is None else tuple(map(operator.index, strides))
    if not len(starts) == len(limits) == len(steps) == mat.ndim:
        raise ValueError(f"bcoo_slice: indices must be as many as the dimensions of {mat}.")
    if any(not 0 <= a <= b <= n or k < 1 for a, b, k, n in zip(starts, limits, steps, mat.shape, strict=True)):
        raise ValueError(f"bcoo_slice: invalid slice {starts}, {limits}, {steps} of shape {mat.shape}.")
    shape = tuple(-(-(b - a) // k) for a, b, k in zip(starts, limits, steps, strict=True))
    n_batch, n_sparse = mat.n_batch, mat.n_sparse
    slices = [slice(a, b, k) for a, b, k in zip(starts, limits, steps, strict=True)]
    first, last, step = (np.array(v[n_batch: n_batch + n_sparse], mat.indices.dtype) for v in (starts, limits, steps))
    _, indices = spread(mat)
    keep = inside(indices, parts_of(mat)[1]) & jnp.all(
        (indices >= first) & (indices < last) & ((indices - first) % step == 0), -1)
    dense = tuple(slices[n_batch + n_sparse:])
    return _picked(mat, lambda i: (i - first) // step, keep, lambda x: x[tuple(slices[:n_batch])],
                   lambda x: x[(slice(None),) * (n_batch + 1) + dense], shape)


def bcoo_dynamic_slice(mat: BCOO, start_indices: Sequence[Any], slice_sizes: Sequence[int]) -> BCOO:
    """The window of `slice_sizes` at `start_indices`, which may be traced, and are moved so that it is inside."""
    mat = checked("bcoo_dynamic_slice", mat)
    sizes = tuple(map(operator.index, slice_sizes))
    starts = [jnp.asarray(s) for s in start_indices]
    if not len(starts) == len(sizes) == mat.ndim or any(s.ndim for s in starts):
        raise TypeError(f"bcoo_dynamic_slice: start_indices must be scalars, as many as the dimensions of {mat}.")
    if any(not 0 <= s <= n for s, n in zip(sizes, mat.shape, strict=True)):
        raise TypeError(f"bcoo_dynamic_slice: slice_sizes {sizes} of an array of shape {mat.shape}.")
    starts = [jnp.clip(jnp.where(s < 0, s + n, s), 0, n - size)
              for s, n, size in zip(starts, mat.shape, sizes, strict=True)]
    n_batch, n_sparse = mat.n_batch, mat.n_sparse
    _, indices = spread(mat)
    first = [s.astype(indices.dtype) for s in starts[n_batch: n_batch + n_sparse]]
    low = jnp.stack(first) if first else jnp.zeros((0,), indices.dtype)
    keep = inside(indices, parts_of(mat)[1]) & inside(indices - low, sizes[n_batch: n_batch + n_sparse])
    zero = np.int32(0)

    def batch(x: Any) -> Array:
        at = [*starts[:n_batch], *[zero] * (x.ndim - n_batch)]
        return lax.dynamic_slice(x, at, (*sizes[:n_batch], *x.shape[n_batch:]))

    def dense(x: Any) -> Array:
        at = [*[zero] * (n_batch + 1), *starts[n_batch + n_sparse:]]
        window = (*x.shape[: n_batch + 1], *sizes[n_batch + n_sparse:])
        return lax.dynamic_slice(x, at, window)

    return _picked(mat, lambda i: i - low, keep, batch, dense, sizes)


def bcoo_rev(operand: BCOO, dimensions: Sequence[int]) -> BCOO:
    """The array in reverse order along some dimensions."""
    mat = checked("bcoo_rev", operand)
    turned = {operator.index(d) for d in dimensions}
    if any(not 0 <= d < mat.ndim for d in turned) or len(turned) < len(tuple(dimensions)):
        raise TypeError(f"bcoo_rev: dimensions {tuple(dimensions)} of an array of {mat.ndim} dimensions.")
    n_batch, n_sparse = mat.n_batch, mat.n_sparse
    data, indices = spread(mat)
    sizes = parts_of(mat)[1]
    columns = [d for d in range(n_sparse) if d + n_batch in turned]
    if columns:
        last = np.array([sizes[d] - 1 if d in columns else 0 for d in range(n_sparse)], indices.dtype)
        sign = np.array([-1 if d in columns else 1 for d in range(n_sparse)], indices.dtype)
        indices = where_inside(inside(indices, sizes), last + sign * indices, sizes)
    batch = tuple(d for d in turned if d < n_batch)
    dense = tuple(d - n_sparse + 1 for d in turned if d >= n_batch + n_sparse)
    return BCOO((jnp.flip(data, (*batch, *dense)) if batch or dense else data,
                 jnp.flip(indices, batch) if batch else indices), shape=mat.shape,
                unique_indices=mat.unique_indices, indices_sorted=mat.indices_sorted and not columns)


def bcoo_gather(operand: BCOO, start_indices: Any, dimension_numbers: lax.GatherDimensionNumbers,
                slice_sizes: Sequence[int], *, unique_indices: bool = False, indices_are_sorted: bool = False,
                mode: Any = None, fill_value: Any = None) -> BCOO:
    """Windows of an array, one for each index vector; arguments are those of `lax.gather`.

    The dimensions of the index vectors become batch dimensions, before all others of the result.

    Raises:
      NotImplementedError: for windows' dimensions elsewhere, batching dimensions, or a fill_value other than 0.
    """
    mat, numbers = checked("bcoo_gather", operand), jnp.asarray(start_indices)
    dims, sizes = lax.GatherDimensionNumbers(*dimension_numbers), tuple(map(operator.index, slice_sizes))
    kind = lax.GatherScatterMode.from_any("promise_in_bounds" if mode is None else mode)
    outer = numbers.shape[:-1]
    window = tuple(range(len(outer), len(outer) + len(dims.offset_dims)))
    if tuple(dims.offset_dims) != window or dims.operand_batching_dims:
        raise NotImplementedError(f"bcoo_gather: offset_dims must be {window}, and no batching dimensions, got {dims}.")
    fills = not kind.clips
    if fills and kind is not lax.GatherScatterMode.ONE_HOT and not (isinstance(fill_value, (int, float)) and
                                                                     fill_value == 0):
        raise NotImplementedError("bcoo_gather: what is read outside of a sparse array is 0; set fill_value=0.")

    def one(vector: Any) -> BCOO:
        starts: list[Any] = [np.int32(0)] * mat.ndim
        valid = jnp.ones((), bool)
        for j, d in enumerate(dims.start_index_map):
            high = mat.shape[d] - sizes[d]
            valid = valid & (vector[j] >= 0) & (vector[j] <= high)
            starts[d] = jnp.clip(vector[j], 0, high)
        part = bcoo_squeeze(bcoo_dynamic_slice(mat, starts, sizes), dimensions=dims.collapsed_slice_dims)
        return part.like(jnp.where(valid, part.data, jnp.zeros((), part.dtype))) if fills else part

    for _ in outer:
        one = vmap(one)
    return one(numbers)


def bcoo_reduce_sum(mat: BCOO, *, axes: Sequence[int]) -> BCOO:
    """The sums of an array along some axes: elements that fall onto one place stay stored beside each other."""
    mat = checked("bcoo_reduce_sum", mat)
    gone = {operator.index(a) % max(mat.ndim, 1) for a in axes}
    n_batch, n_sparse = mat.n_batch, mat.n_sparse
    data, indices = spread(mat)
    sizes = parts_of(mat)[1]
    dense = tuple(d - n_sparse + 1 for d in gone if d >= n_batch + n_sparse)
    if dense:
        data = jnp.sum(data, dense, dtype=data.dtype)
    columns = [c for c in range(n_sparse) if c + n_batch not in gone]
    if len(columns) < n_sparse:
        valid = inside(indices, sizes)
        data = _masked(data, valid)
        indices = where_inside(valid, indices[..., np.array(columns, np.int32)], [sizes[c] for c in columns])
    batch = [d for d in range(n_batch) if d in gone]
    if batch:
        order = [*(d for d in range(n_batch) if d not in gone), *batch, n_batch]
        data = jnp.transpose(data, (*order, *range(n_batch + 1, data.ndim)))
        indices = jnp.transpose(indices, (*order, n_batch + 1))
        kept, nse = data.shape[: n_batch - len(batch)], math.prod(data.shape[n_batch - len(batch): n_batch + 1])
        data = data.reshape(*kept, nse, *data.shape[n_batch + 1:])
        indices = indices.reshape(*kept, nse, indices.shape[-1])
    same = len(columns) == n_sparse and not batch
    return BCOO((data, indices), shape=tuple(n for d, n in enumerate(mat.shape) if d not in gone),
                unique_indices=mat.unique_indices and same,
                indices_sorted=mat.indices_sorted and not batch and columns == list(range(len(columns))))


def with_layout_of(mat: BCOO, other: BCOO) -> BCOO:
    """An array with the numbers of batch and dense dimensions that another one has."""
    return bcoo_update_layout(mat, n_batch=other.n_batch, n_dense=other.n_dense, on_inefficient=None)


install(BCOO, {"transpose": bcoo_transpose})
