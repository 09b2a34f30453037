"""Choosing elements: where, take, nonzero, diagonals, repeat, insert and delete.

Results whose size depends on values need the values, or `size=`: then they are cut or padded to it.

    >>> jnp.where(jnp.array([True, False]), 1, 2.5)
    Array([1. , 2.5], dtype=float32, weak_type=True)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from anima.api.eager import of_numbers, repeated
from anima.api.jit import staged
from anima.core import dtypes
from anima.core.array import Array
from anima.core.avals import canonicalize_axis, slice_ends
from anima.core.dims import Dim
from anima.core.trace import Tracer, aval_of
from anima.numpy.creation import asarray
from anima.numpy.elementwise import broadcast_array, constant_like, floor_divide, remainder, select_where, to_bool
from anima.numpy.indexing import take_indexed
from anima.numpy.manipulation import broadcast_shapes, moveaxis, ravel
from anima.numpy.promote import (
    as_array,
    as_arrays,
    as_given,
    as_index,
    canonical_shape,
    convert_operand,
    is_floating,
    is_integer,
    no_out,
    operand,
    promote,
    promote_dtypes,
    static_int,
    static_value,
)
from anima.numpy.reductions import cumsum, sum
from anima.numpy.spaces import whole_range
from anima.ops import elementwise as ew, index as ix, shape as sh, sort as st
from anima.ops.placing import as_asked

ArrayLike = Any
_I32 = np.dtype(np.int32)
_COMPARED = 1 << 12  # comparisons of positions with ends, up to which these take less than to count ends


# ---------------------------------------------------------------- where

@staged
def _where(condition: Any, x: Any, y: Any) -> Array:
    return select_where(condition, *promote("where", x, y))


@of_numbers
def where(condition: ArrayLike, x: ArrayLike | None = None, y: ArrayLike | None = None, /, *,
          size: int | None = None, fill_value: Any = None) -> Any:
    """`x` where `condition` holds, `y` elsewhere; with one argument, `nonzero(condition)`.

    >>> jnp.where(jnp.arange(3) > 1, 10, jnp.arange(3))
    Array([ 0,  1, 10], dtype=int32)
    """
    if x is None and y is None:
        return nonzero(condition, size=size, fill_value=fill_value)
    if size is not None or fill_value is not None:
        raise ValueError("size and fill_value arguments cannot be used in three-term where function.")
    condition, x, y = (operand("where", v, i) for i, v in enumerate((condition, x, y)))
    for v in (x, y):
        aval_of(v)  # OverflowError for an integer that is too large, outside of `jit` too
    return _where(to_bool(condition), x, y)


@repeated
def select(condlist: Sequence[ArrayLike], choicelist: Sequence[ArrayLike], default: ArrayLike = 0) -> Array:
    """Of each choice where its condition is the first to hold; `default` where none does."""
    if len(condlist) != len(choicelist):
        raise ValueError(f"condlist must have length equal to choicelist ({len(condlist)} vs {len(choicelist)})")
    if not len(condlist):
        raise ValueError("condlist must be non-empty")
    *choices, result = promote_dtypes("select", *choicelist, default)
    for condition, choice in zip(condlist[::-1], choices[::-1], strict=True):
        result = select_where(to_bool(operand("select", condition)), choice, result)
    return result


@repeated
def choose(a: ArrayLike, choices: Any, out: None = None, mode: str = "raise") -> Array:
    """From `choices[a[i]]` the element i; `mode` "clip" or "wrap" for numbers that name no choice."""
    no_out("choose", out)
    count = len(choices)
    which = as_index(_around(a, count) if mode == "wrap" else a, "choose")
    if not is_integer(which.dtype):
        raise ValueError("`a` array must be integer typed")
    if mode == "raise":
        value = static_value(which, "The error occurred because anima.numpy.choose was called with mode='raise'; use "
                                    "mode='clip' or mode='wrap' for traced values.")
        if np.any((value < 0) | (value >= count)):
            raise ValueError("invalid entry in choice array")
    elif mode == "wrap":
        which = _around(which, count)
    elif mode == "clip":
        which = _clipped(which, count)
    else:
        raise ValueError(f"mode={mode!r} not understood. Must be 'raise', 'wrap', or 'clip'")
    parts = promote_dtypes("choose", *choices)
    shape = broadcast_shapes(which.shape, *(p.shape for p in parts))
    which = broadcast_array(ix.narrow_index(which), shape)
    return ew.select_n(which, *(broadcast_array(ew.convert(p, p.dtype), shape) for p in parts))


# ---------------------------------------------------------------- nonzero

def nonzero(a: ArrayLike, *, size: int | None = None, fill_value: Any = None) -> tuple[Array, ...]:
    """The indices of nonzero elements, one array for each axis.

    With `size`, exactly that many: the first ones, or padded with `fill_value` (0; one number, or one for each axis),
    whose dtype joins that of the indices. Without, the values must be known: ConcretizationTypeError otherwise.
    """
    x = as_array(a, "nonzero")
    if not x.ndim:
        raise ValueError("Calling nonzero on 0d arrays is not allowed. Use anima.numpy.atleast_1d(scalar).nonzero() "
                         "instead.")
    if size is None:
        value = static_value(x, "The size argument of anima.numpy.nonzero must be statically specified to use "
                                "anima.numpy.nonzero within transformations.",
                             "anima.numpy.nonzero(mask, size=n), or anima.numpy.where(mask, x, y), which chooses "
                             "between two arrays")
        found = tuple(asarray(i.astype(dtypes.default_int())) for i in np.nonzero(value))
        if fill_value is None:
            return found
        fills = _fill_values(fill_value, x.ndim)
        return tuple(promote_dtypes("nonzero", i, fill)[0] for i, fill in zip(found, fills, strict=True))
    return _nonzero(x, static_int(size, "The size argument of anima.numpy.nonzero must be static."), fill_value)


def _nonzero(x: Array, size: int, fill_value: Any) -> tuple[Array, ...]:
    """Each nonzero element writes its position at its rank among them; the rest goes to one more place at the end."""
    dtype = dtypes.default_int()
    mask = ravel(as_array(to_bool(x)))
    if not mask.size or not size:
        none = sh.full((size,), 0, dtype)
        return tuple(broadcast_array(promote_dtypes("nonzero", none, f)[1], (size,))
                     for f in _fill_values(fill_value, x.ndim))
    rank = ew.sub(cumsum(ew.convert_element_type(mask, _I32)), np.int32(1))
    last = sh.full_like(rank, size)
    place = ew.select_n(mask, last, ew.min(last, rank))
    numbers = ix.ScatterDimensionNumbers((), (0,), (0,))
    flat = ix.scatter(sh.full((size + 1,), 0, dtype), sh.expand_dims(place, (1,)), sh.iota(dtype, mask.size), numbers,
                      mode=ix.GatherScatterMode.FILL_OR_DROP, unique_indices=False)
    flat = sh.slice_in_dim(flat, 0, size)
    found = ew.lt(sh.iota(dtype, size), ew.convert_element_type(sum(mask, dtype=dtype), dtype))
    out = []
    for axis, fill in enumerate(_fill_values(fill_value, x.ndim)):
        stride = math.prod(x.shape[axis + 1:])
        index = ew.rem(ew.div(flat, dtype.type(stride)), dtype.type(x.shape[axis]))
        out.append(select_where(found, *promote_dtypes("nonzero", index, fill)))
    return tuple(out)


def _fill_values(fill_value: Any, count: int) -> tuple[Any, ...]:
    fill_value = 0 if fill_value is None else fill_value
    if isinstance(fill_value, tuple):
        if len(fill_value) != count:
            raise ValueError(f"fill_value tuple must have length {count}, got {len(fill_value)}")
        return fill_value
    return (fill_value,) * count


def flatnonzero(a: ArrayLike, *, size: int | None = None, fill_value: Any = None) -> Array:
    """The indices of nonzero elements in the flattened array; see `nonzero`."""
    return nonzero(ravel(a), size=size, fill_value=fill_value)[0]


def argwhere(a: ArrayLike, *, size: int | None = None, fill_value: Any = None) -> Array:
    """The indices of nonzero elements, one row for each; see `nonzero`."""
    x = as_array(a, "argwhere")
    if not x.ndim:
        count = size if size is not None else int(bool(static_value(x, "Its value is a size.", "argwhere(x, size=n)")))
        return sh.full((count, 0), 0, dtypes.default_int())
    indices = nonzero(x, size=size, fill_value=fill_value)
    return sh.concatenate([sh.expand_dims(i, (1,)) for i in indices], 1)


@repeated
def extract(condition: ArrayLike, arr: ArrayLike, *, size: int | None = None, fill_value: ArrayLike = 0) -> Array:
    """The elements of `arr` where `condition` holds, flattened."""
    return compress(ravel(condition), ravel(arr), size=size, fill_value=fill_value)


@repeated
def compress(condition: ArrayLike, a: ArrayLike, axis: int | None = None, *, size: int | None = None,
             fill_value: ArrayLike = 0, out: None = None) -> Array:
    """The parts of `a` along `axis` (None: flattened) where `condition` holds."""
    no_out("compress", out)
    mask, x = as_array(condition, "compress", 0), as_array(a, "compress", 1)
    if mask.ndim != 1:
        raise ValueError("condition must be a 1D array")
    if axis is None:
        axis, x = 0, ravel(x)
    axis = canonicalize_axis(axis, x.ndim)
    common = min(mask.size, x.shape[axis])
    extra = sh.slice_in_dim(mask, common, mask.size)
    if extra.size and not isinstance(extra, Tracer) and bool(np.any(np.asarray(extra))):
        raise ValueError("condition contains entries that are out of bounds")
    mask, x = sh.slice_in_dim(mask, 0, common), sh.slice_in_dim(x, 0, common, axis=axis)
    if size is None:
        (index,) = nonzero(mask)
        return take(x, index, axis, mode="clip")
    (index,) = nonzero(mask, size=size, fill_value=common)
    fill = as_array(convert_operand(operand("compress", fill_value), x.dtype, False))
    if not common:
        return broadcast_array(fill, (*x.shape[:axis], size, *x.shape[axis + 1:]))
    found = take(x, ew.min(constant_like(index, common - 1), index), axis, mode="clip")
    real = sh.broadcast_in_dim(ew.lt(index, constant_like(index, common)), found.shape, (axis,))
    return select_where(real, found, fill)


# ---------------------------------------------------------------- take and put

@of_numbers
def take(a: ArrayLike, indices: ArrayLike, axis: int | None = None, out: None = None, mode: str | None = None,
         unique_indices: bool = False, indices_are_sorted: bool = False, fill_value: Any = None) -> Array:
    """The parts of `a` at `indices` along `axis` (None: of the flattened array).

    Out of bounds, `mode` None or "fill" gives `fill_value` (NaN, or the least integer), "clip" the nearest
    element (negative indices are the first), "wrap" counts around.
    """
    no_out("take", out)
    x = as_array(a, "take", 0)
    if axis is None:
        axis, x = 0, ravel(x)
    axis = canonicalize_axis(axis, x.ndim)
    size = x.shape[axis]
    index = as_index(_around(indices, size) if mode == "wrap" else indices, "take", 1)
    if not size and index.size:
        raise IndexError(f"take: non-empty jnp.take() from axis {axis}, which is empty: there is no index within it.")
    if index.dtype == np.bool_:
        index = ew.convert(index, _I32, False)
    if not is_integer(index.dtype):
        raise ValueError(f"take requires integer indices, got dtype {dtypes.name(index.dtype)}")
    if mode == "raise":
        raise NotImplementedError("The 'raise' mode to anima.numpy.take is not supported.")
    gather_mode, wrap = _take_mode(mode)
    if mode == "wrap":
        index = _around(index, size)
    if fill_value is not None:
        fill_value = static_value(fill_value, "the fill_value of anima.numpy.take").item()
    return take_indexed(x, (slice(None),) * axis + (index,), mode=gather_mode, fill_value=fill_value,
                        unique_indices=unique_indices, indices_are_sorted=indices_are_sorted,
                        wrap_negative_indices=wrap) if index.ndim or mode != "clip" else \
        take_indexed(x, (slice(None),) * axis + (_clipped(index, size),))


def _clipped(index: Array, size: int) -> Array:
    """Indices brought into 0 .. size - 1, as far as their dtype goes."""
    kind = index.dtype.type
    return ew.clamp(kind(0), index, kind(min(size - 1, dtypes.iinfo(index.dtype).max)))


def _from_start(index: Array, size: int) -> Array:
    """Indices with those that count from the end counted from the start."""
    wide = ew.convert(index, _I32, False) if index.dtype.itemsize < 4 else index  # it must hold the size
    return select_where(ew.lt(wide, constant_like(wide, 0)), ew.add(wide, constant_like(wide, size)), wide)


def _around(index: Any, size: int) -> Any:
    """Indices modulo `size`; those of NumPy before they lose their upper half."""
    if isinstance(index, (np.ndarray, np.generic)) and index.dtype.kind in "iu" and not isinstance(size, Dim):
        return np.remainder(index, size) if 0 < size <= np.iinfo(index.dtype).max else index
    if not isinstance(index, Array) or not size:
        return index
    wide = ew.convert(index, _I32, False) if index.dtype.itemsize < 4 else index  # it must hold the size
    return remainder(wide, constant_like(wide, size))


def _take_mode(mode: str | None) -> tuple[Any, bool]:
    if mode is None or mode == "fill":
        return ix.GatherScatterMode.FILL_OR_DROP, True
    if mode == "clip":
        return ix.GatherScatterMode.CLIP, False
    if mode == "wrap":
        return ix.GatherScatterMode.PROMISE_IN_BOUNDS, False
    raise ValueError(f"Invalid mode '{mode}' for np.take")


@repeated
def take_along_axis(arr: ArrayLike, indices: ArrayLike, axis: int | None = -1, mode: Any = None, fill_value: Any = None,
                    *, wrap_negative_indices: bool | None = None) -> Array:
    """`arr[..., indices[..., i, ...], ...]`: along `axis`, elements named one by one.

    Other axes broadcast. Out of bounds: as in `take`; `mode` may also be "promise_in_bounds", under which negative
    indices do not count from the end unless `wrap_negative_indices` is given.
    """
    x, index = as_array(arr, "take_along_axis", 0), as_index(indices, "take_along_axis", 1)
    if not is_integer(index.dtype):
        raise TypeError(f"take_along_axis indices must be of integer type, got {dtypes.name(index.dtype)}")
    if axis is None:
        if index.ndim != 1:
            raise ValueError(f"take_along_axis indices must be 1D if axis=None, got shape {index.shape}")
        return take_along_axis(ravel(x), index, 0, mode, fill_value, wrap_negative_indices=wrap_negative_indices)
    if x.ndim != index.ndim:
        raise ValueError(f"indices and arr must have the same number of dimensions; {index.ndim} vs. {x.ndim}")
    axis = canonicalize_axis(axis, x.ndim)
    x, index = _broadcast_others(x, index, axis)
    return _gather_along(x, index, axis, mode, fill_value, wrap_negative_indices)


def _broadcast_others(x: Array, index: Array, axis: int) -> tuple[Array, Array]:
    """Both with equal sizes in all axes but `axis`."""
    others = broadcast_shapes(*((*s[:axis], 1, *s[axis + 1:]) for s in (x.shape, index.shape)))
    return tuple(broadcast_array(v, (*others[:axis], v.shape[axis], *others[axis + 1:]))  # type: ignore[return-value]
                 for v in (x, index))


def _gather_along(x: Array, index: Array, axis: int, mode: Any, fill_value: Any, wrap: bool | None) -> Array:
    size = x.shape[axis]
    mode = ix.GatherScatterMode.from_any(mode)
    if not size:
        return sh.full(index.shape, 0, x.dtype)
    index = ix.narrow_index(index)
    if mode != ix.GatherScatterMode.PROMISE_IN_BOUNDS if wrap is None else wrap:
        index = ew.select_n(ew.lt(index, np.int32(0)), index, ew.add(index, np.int32(size)))
    others = tuple(i for i in range(x.ndim) if i != axis)
    numbers = ix.GatherDimensionNumbers((), (axis,), (axis,), others, others)
    return ix.gather(x, sh.expand_dims(index, (x.ndim,)), numbers, (1,) * x.ndim, mode=mode, fill_value=fill_value)


def _not_in_place(name: str, inplace: bool, kind: type[Exception] = ValueError) -> None:
    if inplace:
        raise kind(f"anima.numpy.{name}: arrays are immutable, pass inplace=False and use the returned copy.")


def put_along_axis(arr: ArrayLike, indices: ArrayLike, values: ArrayLike, axis: int | None, inplace: bool = True, *,
                   mode: Any = None) -> Array:
    """A copy of `arr` with `values` where `take_along_axis` would read; `inplace=False` must be passed."""
    _not_in_place("put_along_axis", inplace)
    x, index, new = as_arrays("put_along_axis", arr, ix.index_operand(indices), values)
    if axis is None:
        return sh.reshape(put_along_axis(ravel(x), ravel(index), ravel(broadcast_array(new, index.shape)), 0, False,
                                         mode=mode), x.shape)
    axis = canonicalize_axis(axis, x.ndim)
    if index.ndim != x.ndim:
        raise ValueError("put_along_axis needs indices of as many dimensions as the array has: the shapes are "
                         f"{index.shape} and {x.shape}")
    shape = broadcast_shapes((*x.shape[:axis], 1, *x.shape[axis + 1:]), index.shape)
    index = broadcast_array(index, (*x.shape[:axis], shape[axis], *x.shape[axis + 1:]))
    grid = tuple(sh.broadcasted_iota(_I32, index.shape, i) if i != axis else index for i in range(x.ndim))
    return x.at[grid].set(new, mode=mode)


def put(a: ArrayLike, ind: ArrayLike, v: ArrayLike, mode: str | None = None, *, inplace: bool = True) -> Array:
    """A copy of `a` with the flattened elements `ind` set to `v`, repeated as needed."""
    _not_in_place("put", inplace)
    x, new = as_array(a, "put", 0), as_array(v, "put", 2)
    index = as_index(_around(ind, x.size) if mode == "wrap" else ind, "put", 1)
    if not index.size or not new.size:
        return x
    if mode == "raise":
        raise NotImplementedError("The 'raise' mode to anima.numpy.put is not supported.")
    if mode not in (None, "wrap", "clip"):
        raise ValueError(f"mode should be one of 'wrap' or 'clip'; got {mode=}")
    index, new = ravel(index), ravel(new)
    new = sh.slice_in_dim(sh.tile(new, (-(-index.size // new.size),)), 0, index.size)
    if mode == "wrap":
        index = _around(index, x.size)
    else:
        index = _clipped(index if mode == "clip" else _from_start(index, x.size), x.size)
    return sh.reshape(ravel(x).at[index].set(new), x.shape)


def place(arr: ArrayLike, mask: ArrayLike, vals: ArrayLike, *, inplace: bool = True) -> Array:
    """A copy of `arr` with the elements where `mask` holds set to `vals` in turn."""
    _not_in_place("place", inplace)
    x, condition, new = as_arrays("place", arr, mask, vals)
    if x.size != condition.size:
        raise ValueError("place: arr and mask must be the same size")
    if not x.size:
        return x
    if not new.size:
        raise ValueError("Cannot place values from an empty array")
    mask = ravel(as_array(to_bool(condition)))
    rank = ew.sub(cumsum(ew.convert_element_type(mask, _I32)), np.int32(1))  # among the elements that are set
    values = convert_operand(take(ravel(new), _around(rank, new.size), mode="clip"), x.dtype, x.weak_type)
    return sh.reshape(select_where(mask, values, ravel(x)), x.shape)


# ---------------------------------------------------------------- repeat, insert, delete

@repeated
def repeat(a: ArrayLike, repeats: ArrayLike, axis: int | None = None, *, total_repeat_length: int | None = None,
           out_sharding: Any = None) -> Array:
    """Each part of `a` along `axis` (None: flattened) repeated `repeats` times.

    Traced `repeats` need `total_repeat_length`: the result is cut or padded with its last part.
    """
    if out_sharding is not None:
        return as_asked("repeat", None, out_sharding, repeat, a, repeats, axis, total_repeat_length=total_repeat_length)
    x = as_array(a, "repeat")
    if axis is None:
        axis, x = 0, ravel(x)
    x = x if x.ndim else ravel(x)
    axis = canonicalize_axis(axis, x.ndim)
    counts = as_array(repeats if not isinstance(repeats, (list, tuple)) else np.asarray(repeats), "repeat", 1)
    if counts.ndim > 1:
        raise ValueError(f"repeats must be a scalar or 1D, got shape {counts.shape}")
    if total_repeat_length is None:
        known = static_value(counts, "When jit-compiling anima.numpy.repeat, the total number of repeats must be "
                                     "static. To fix this, either specify a static value for `repeats`, or pass a "
                                     "static value to `total_repeat_length`.", "")
        return _repeat_known(x, known, axis)
    size = x.shape[axis]
    ends = cumsum(broadcast_array(ew.convert(counts, _I32, False), (size,)))
    if total_repeat_length * size <= _COMPARED:
        positions = sh.iota(_I32, total_repeat_length)
        index = sum(ew.le(sh.broadcast_in_dim(ends, (total_repeat_length, size), (1,)),
                          sh.broadcast_in_dim(positions, (total_repeat_length, size), (0,))), axis=1, dtype=_I32)
    else:  # how many parts end up to each position
        index = cumsum(sh.full((total_repeat_length,), 0, _I32).at[ends].add(np.int32(1), mode="drop"))
    return take(x, ew.min(index, np.int32(max(size - 1, 0))), axis, mode="clip")


def _repeat_known(x: Array, counts: np.ndarray, axis: int) -> Array:
    if np.any(counts < 0):
        raise ValueError("repeats may not contain negative values.")
    if counts.size == 1:
        n = int(counts.reshape(()))
        spread = sh.broadcast_in_dim(x, (*x.shape[:axis + 1], n, *x.shape[axis + 1:]),
                                     [i if i <= axis else i + 1 for i in range(x.ndim)])
        return sh.reshape(spread, (*x.shape[:axis], x.shape[axis] * n, *x.shape[axis + 1:]))
    if counts.size != x.shape[axis]:
        raise ValueError(f"repeats has {counts.size} entries, but axis {axis} has size {x.shape[axis]}")
    return take(x, np.repeat(np.arange(x.shape[axis], dtype=_I32), counts), axis, mode="clip")


@repeated
def insert(arr: ArrayLike, obj: Any, values: ArrayLike, axis: int | None = None) -> Array:
    """`arr` with `values` inserted before the indices `obj` along `axis` (None: flattened).

    Indices may be traced: then those beyond the ends are those of the ends. IndexError for others out of bounds,
    ValueError for what are no whole numbers: masks, for one.
    """
    x, obj, new = as_array(arr, "insert", 0), as_given(obj), as_array(values, "insert", 2)
    if not isinstance(obj, (slice, Dim)):
        obj = obj if isinstance(obj, Array) else np.asarray(obj)
        if obj.ndim > 1 or (0 not in obj.shape and not dtypes.issubdtype(obj.dtype, np.integer)):
            raise ValueError("insert: obj must be a slice, a whole number or one dimension of them; a mask is none.")
    if axis is None:
        axis, x = 0, ravel(x)
    axis = canonicalize_axis(axis, x.ndim)
    size = x.shape[axis]
    if isinstance(obj, Tracer) or isinstance(size, Dim):
        where_ = ix.narrow_index(as_array(whole_range(*slice_ends(obj, size)) if isinstance(obj, slice) else obj))
        where_ = ew.clamp(np.int32(0), ew.select_n(ew.lt(where_, np.int32(0)), where_, ew.add(where_, np.int32(size))),
                          np.int32(size))
    else:
        where_ = np.arange(*obj.indices(size)) if isinstance(obj, slice) else np.asarray(obj)
        if np.any((where_ < -size) | (where_ > size)):
            raise IndexError(f"index {where_} is out of bounds for axis {axis} with size {size}")
        where_ = np.where(where_ < 0, where_ + size, where_).astype(_I32)
    if new.ndim > x.ndim:
        raise ValueError(f"insert: cannot broadcast values of shape {new.shape} to {x.ndim} dimensions.")
    new = sh.broadcast_to_rank(new, x.ndim)
    if where_.size == 1 and not where_.ndim:
        new = moveaxis(new, 0, axis)
    count = new.shape[axis] if where_.size == 1 else where_.size
    new = broadcast_array(ew.convert(new, x.dtype, x.weak_type), (*x.shape[:axis], count, *x.shape[axis + 1:]))
    source = _insertion(where_, size, count)
    return take(sh.concatenate([x, new], axis), source, axis, mode="clip")


def _insertion(where: Any, size: int, count: int) -> Any:
    """For each element after an insertion: which it is of those before (0 to size), or of the new ones (from size on).
    """
    if isinstance(where, np.ndarray):
        places = where.reshape(-1) + np.zeros(count, _I32)
        places[np.argsort(places, kind="stable")] += np.arange(count, dtype=_I32)
        source = np.full(size + count, -1, _I32)
        source[places] = size + np.arange(count)
        source[source < 0] = np.arange(size)
        return source
    numbers = sh.iota(_I32, count)
    before, order = st.sort((broadcast_array(ravel(where), (count,)), numbers), num_keys=1)
    new = sh.full((size + count,), -1, _I32).at[ew.add(before, numbers)].set(ew.add(order, np.int32(size)))
    old = ew.sub(cumsum(ew.convert(ew.lt(new, np.int32(0)), _I32)), np.int32(1))
    return ew.max(new, ew.select_n(ew.lt(new, np.int32(0)), new, old))


@repeated
def delete(arr: ArrayLike, obj: Any, axis: int | None = None, *, assume_unique_indices: bool = False) -> Array:
    """`arr` without the parts `obj` (an int, a slice, a mask, or indices) along `axis` (None: flattened)."""
    x, obj = as_array(arr, "delete"), as_given(obj)
    if axis is None:
        axis, x = 0, ravel(x)
    axis = canonicalize_axis(axis, x.ndim)
    size = x.shape[axis]
    if isinstance(size, Dim) and isinstance(obj, slice):
        return _delete_traced(x, whole_range(*slice_ends(obj, size)), axis, True)
    if isinstance(obj, slice):
        gone = np.arange(*obj.indices(size))
    elif isinstance(obj, Tracer) or (isinstance(size, Dim) and not np.ndim(obj)):
        return _delete_traced(x, as_array(obj), axis, assume_unique_indices)
    else:
        gone = np.asarray(obj)
        if gone.dtype == np.bool_:
            if gone.shape != (size,):
                raise ValueError(f"delete: a mask of shape {gone.shape} does not fit axis {axis} of size {size}")
            gone = np.nonzero(gone)[0]
        elif gone.dtype.kind not in "iu" and gone.size:
            raise IndexError("arrays used as indices must be of integer (or boolean) type")
        elif np.any((gone < -size) | (gone >= size)):
            raise IndexError(f"index {gone} is out of bounds for axis {axis} with size {size}")
    gone = gone.astype(int)
    gone = np.where(gone < 0, gone + size, gone)
    return take(x, np.setdiff1d(np.arange(size), gone).astype(_I32), axis, mode="clip")


def _delete_traced(x: Array, index: Array, axis: int, unique: bool) -> Array:
    if index.ndim and not unique:
        static_value(index, "The error arose for the 'obj' argument of anima.numpy.delete(): how many places are gone "
                            "says how large the result is. Pass assume_unique_indices=True if they differ.")
    size = x.shape[axis]
    index = ravel(ix.narrow_index(index))
    index = _from_start(index, size)
    keep = sh.full((size,), True, np.bool_).at[index].set(False)
    (kept,) = nonzero(keep, size=size - index.size)
    return take(x, kept, axis, mode="clip")


# ---------------------------------------------------------------- indices of flattened arrays

@repeated
def unravel_index(indices: ArrayLike, shape: Any) -> tuple[Array, ...]:
    """The index along each axis of positions in a flattened array, of their type; out of bounds, the nearest."""
    index, sizes = as_index(indices, "unravel_index"), canonical_shape(shape)
    if not (is_integer(index.dtype) or is_floating(index.dtype)):
        raise TypeError(f"unravel_index requires indices that are numbers, got dtype {dtypes.name(index.dtype)}")
    total = math.prod(sizes)
    if not total:
        return tuple(sh.full_like(index, 0) for _ in sizes)
    dtype, weak = index.dtype, index.weak_type
    wide = _I32 if is_integer(dtype) else np.dtype(np.float32)
    flat = ew.convert(index, wide, weak) if dtype.itemsize < 4 else index  # it must hold the total
    limits = dtypes.iinfo(flat.dtype) if is_integer(dtype) else dtypes.finfo(flat.dtype)
    flat = ew.min(constant_like(flat, min(total - 1, int(limits.max))), flat)
    if not dtypes.issubdtype(dtype, np.unsignedinteger):
        flat = ew.max(constant_like(flat, max(-total, int(limits.min))), flat)
    out: list[Array] = []
    for n in sizes[::-1]:  # rounded down, so that negative positions count from the end
        size = constant_like(flat, min(n, int(limits.max)))
        out.append(ew.convert(remainder(flat, size), dtype, weak))
        flat = floor_divide(flat, size)
    return tuple(out[::-1])


@repeated
def ravel_multi_index(multi_index: Sequence[ArrayLike], dims: Sequence[int], mode: str = "raise", order: str = "C", *,
                      dtype: Any = None) -> Array:
    """The positions in a flattened array of indices along each axis; `mode` for out of bounds, as in `choose`, or
    "ignore" where nothing is."""
    if len(multi_index) != len(dims):
        raise ValueError(f"len(multi_index)={len(multi_index)} != len(dims)={len(dims)}")
    sizes = canonical_shape(tuple(dims))
    indices = promote_dtypes("ravel_multi_index", *multi_index)
    if any(not is_integer(i.dtype) for i in indices):
        raise TypeError("only int indices permitted")
    if order not in ("C", "F"):
        raise ValueError(f"invalid order={order!r}. Expected 'C' or 'F'")
    wanted = indices[0].dtype if dtype is None else dtypes.check_user_dtype(dtype, "ravel_multi_index")
    if math.prod(sizes) - 1 > dtypes.iinfo(wanted).max:
        raise ValueError(f"ravel_multi_index: dtype {dtypes.name(wanted)} cannot hold the positions in an array of the "
                         f"shape {sizes}. Pass a wider `dtype`.")
    indices = [_index_in_bounds(i, n, mode) for i, n in zip(indices, sizes, strict=True)]
    if order == "F":
        indices, sizes = indices[::-1], sizes[::-1]
    total: Any = 0
    for i, n in zip(indices, sizes, strict=True):
        total = ew.add(*promote("ravel_multi_index", ew.mul(*promote("ravel_multi_index", total, n)), i))
    return ew.convert_element_type(total, wanted)


def _index_in_bounds(index: Array, size: int, mode: str) -> Array:
    if mode == "raise":
        value = static_value(index, "The error occurred in anima.numpy.ravel_multi_index with mode='raise'; use "
                                    "mode='clip' or mode='wrap' for traced values.")
        if np.any((value < 0) | (value >= size)):
            raise ValueError("invalid entry in coordinates array")
        return index
    if mode == "clip":
        return _clipped(index, size)
    if mode == "wrap":
        return _around(index, size)
    if mode == "ignore":
        return index
    raise ValueError(f"invalid mode={mode!r}. Expected 'raise', 'wrap', 'clip' or 'ignore'")
