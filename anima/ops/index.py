"""Reading and writing one window of an array at a computed place: dynamic slices.

The window's start is clamped so that it lies inside. Negative indices count from the end: the functions
below add the size where an index is negative (three equations; none for indices known while tracing), the
primitives know nothing of it. Gather and scatter, the general case, are in `gather.py` and exported here.

    >>> dynamic_slice(jnp.arange(5), (3,), (3,))
    Array([2, 3, 4], dtype=int32)
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from anima.core import dtypes
from anima.core.array import Array, ConcreteArray
from anima.core.avals import Shape, ShapedArray, canonicalize_axis, check_countable
from anima.core.dims import index_of
from anima.core.placement import pulls
from anima.core.primitive import Linear, ShardingRule
from anima.core.sharding_rules import dimensions
from anima.core.trace import aval_of
from anima.ops import elementwise as el
from anima.ops.broadcast import Movement, as_shape, element_shape, same_dtype, scalar, shape_of, zeros
from anima.ops.gather import (
    GatherDimensionNumbers,
    GatherScatterMode,
    ScatterDimensionNumbers,
    gather,
    gather_p,
    index_take,
    scatter,
    scatter_add,
    scatter_add_p,
    scatter_apply,
    scatter_max,
    scatter_max_p,
    scatter_min,
    scatter_min_p,
    scatter_mul,
    scatter_mul_p,
    scatter_p,
    scattered,
)
from anima.ops.index_types import index_operand, narrow_index
from anima.ops.shape import batch_at_front, concatenate, expand_dims, shape_of_arg, squeeze, unstack

__all__ = [
    "GatherDimensionNumbers", "GatherScatterMode", "ScatterDimensionNumbers", "dynamic_index_in_dim", "dynamic_slice",
    "dynamic_slice_in_dim", "dynamic_slice_p", "dynamic_update_index_in_dim", "dynamic_update_slice",
    "dynamic_update_slice_in_dim", "dynamic_update_slice_p", "gather", "gather_p", "index_operand", "index_take",
    "narrow_index", "scatter", "scatter_add", "scatter_add_p", "scatter_apply", "scatter_max", "scatter_max_p",
    "scatter_min", "scatter_min_p", "scatter_mul", "scatter_mul_p", "scatter_p", "scattered"]


def _check_indices(name: str, x: ShapedArray, indices: Sequence[ShapedArray]) -> None:
    if len(indices) != x.ndim:
        raise ValueError("Length of slice indices must match number of operand dimensions "
                         f"({len(indices)} vs {x.shape})")
    if any(i.shape for i in indices):
        raise TypeError(f"start_indices arguments to {name} must be scalars, got indices "
                        f"({', '.join(map(repr, indices))})")
    kinds = [i.dtype for i in indices]
    if any(k != kinds[0] or not dtypes.issubdtype(k, np.integer) for k in kinds):
        raise TypeError(f"index arguments to {name} must be integers of the same type, got: "
                        f"{', '.join(map(dtypes.name, kinds))}")


def _window(shape: Shape, indices: Sequence[np.ndarray], sizes: Shape) -> tuple[slice, ...]:
    """The clamped window as slices; trailing axes without an index (of random keys) are whole."""
    starts = [min(max(int(i), 0), n - size) for i, n, size in zip(indices, shape, sizes, strict=False)]
    return tuple(builtins.slice(a, a + size) for a, size in zip(starts, sizes, strict=False))


def _as_gather(shape: Shape, sizes: Shape, indices: Sequence[Any], dims: Sequence[Any],
               size: int) -> tuple[Any, GatherDimensionNumbers]:
    """Index vectors of a batch of windows, and dimension numbers. Axes spanned whole need no index that is known to be
    0; of others, checks may want to know whether they are."""
    axes = [a for a, (n, s) in enumerate(zip(shape, sizes, strict=True)) if n != s or _known_index(indices[a]) != 0]
    columns = [expand_dims(batch_at_front(indices[a], dims[a], size), (1,)) for a in axes]
    vectors = concatenate(columns, 1) if columns else zeros(ShapedArray((index_of(size), 0), aval_of(indices[0]).dtype))
    return vectors, GatherDimensionNumbers(tuple(range(len(shape))), (), tuple(axes))


class DynamicSlice(Movement):
    """The window of `slice_sizes` that starts at the indices, one scalar for each axis."""

    cost = 2.0
    moved = 1

    def infer(self, x: ShapedArray, *indices: ShapedArray, slice_sizes: Shape) -> ShapedArray:
        _check_indices("dynamic_slice", x, indices)
        if len(slice_sizes) != x.ndim:
            raise TypeError("slice slice_sizes must have length equal to the number of dimensions of the operand, got "
                            f"slice_sizes {slice_sizes} for operand shape {x.shape}.")
        if any(s > n for s, n in zip(slice_sizes, x.shape, strict=True)):
            raise TypeError("slice slice_sizes must be less than or equal to operand shape, got slice_sizes "
                            f"{slice_sizes} for operand shape {x.shape}.")
        if any(s < 0 for s in slice_sizes):
            raise TypeError("slice slice_sizes must be greater than or equal to zero, got slice_sizes of "
                            f"{slice_sizes}.")
        return x.update(shape=slice_sizes)

    def sharding_rule(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], **params: Any) -> ShardingRule:
        cut = {k for k, (n, m) in enumerate(zip(avals[0].shape, outs[0].shape, strict=True)) if n != m}
        return dimensions(avals, outs)._replace(resized=frozenset(cut))

    def on_parts(self, params: dict[str, Any], avals: Sequence[ShapedArray],
                 outs: Sequence[ShapedArray]) -> dict[str, Any]:
        return {**params, "slice_sizes": outs[0].shape}

    def eval(self, x: np.ndarray, *indices: np.ndarray, slice_sizes: Shape) -> np.ndarray:
        return x[_window(x.shape, indices, slice_sizes)]

    def adjoint(self, ct: Any, x: Linear, *indices: Any, slice_sizes: Shape) -> Sequence[Any]:
        return [dynamic_update_slice_p.bind(zeros(x.aval), ct, *indices)] + [None] * len(indices)

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[Any], *,
              slice_sizes: Shape) -> tuple[Any, int]:
        (x, *indices), (d, *index_dims) = args, dims
        if all(k is None for k in index_dims):
            at = _zero_index(indices)
            return self.bind(x, *indices[:d], at, *indices[d:],
                             slice_sizes=(*slice_sizes[:d], index_of(size), *slice_sizes[d:])), d
        shape = shape_of(x) if d is None else tuple(n for i, n in enumerate(shape_of(x)) if i != d)
        vectors, numbers = _as_gather(shape, slice_sizes, indices, index_dims, size)
        return gather_p.batch(size, (x, vectors), (d, 0), dimension_numbers=numbers, slice_sizes=slice_sizes,
                              mode=GatherScatterMode.CLIP, fill_value=None, unique_indices=True,
                              indices_are_sorted=True)

    def physical(self, avals: Sequence[ShapedArray], params: dict[str, Any]) -> dict[str, Any]:
        return {"slice_sizes": params["slice_sizes"] + element_shape(avals[0])}


class DynamicUpdateSlice(Movement):
    """The operand with the window that starts at the indices replaced by an update of its size."""

    updates = True
    moved = 2

    def infer(self, x: ShapedArray, update: ShapedArray, *indices: ShapedArray) -> ShapedArray:
        if update.ndim != x.ndim:
            raise TypeError("dynamic_update_slice update must have the same rank as operand, got update shape "
                            f"{update.shape} for operand shape {x.shape}.")
        _check_indices("dynamic_update_slice", x, indices)
        if any(s > n for s, n in zip(update.shape, x.shape, strict=True)):
            raise TypeError("dynamic_update_slice update shape must be smaller than operand shape, got update shape "
                            f"{update.shape} for operand shape {x.shape}.")
        same_dtype("dynamic_update_slice", (x, update))
        return x.update(weak_type=False)

    def sharding_rule(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], **params: Any) -> ShardingRule:
        partly = frozenset(k for k, (n, m) in enumerate(zip(avals[0].shape, avals[1].shape, strict=True)) if n != m)
        return dimensions(avals, outs)._replace(exchanged=partly, resized=partly)

    def eval(self, x: np.ndarray, update: np.ndarray, *indices: np.ndarray) -> np.ndarray:
        out = x.copy()
        out[_window(x.shape, indices, update.shape)] = update
        return out

    def adjoint(self, ct: Any, x: Any, update: Any, *indices: Any) -> Sequence[Any]:
        shape, ct_x, ct_update = shape_of_arg(update), None, None
        if isinstance(x, Linear):
            ct_x = self.bind(ct, zeros(x.aval.update(shape=shape)), *indices)
        if isinstance(update, Linear):
            ct_update = dynamic_slice_p.bind(ct, *indices, slice_sizes=shape)
        return [ct_x, ct_update] + [None] * len(indices)

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[Any]) -> tuple[Any, int]:
        x, update, *indices = args
        x, update = batch_at_front(x, dims[0], size), batch_at_front(update, dims[1], size)
        if all(k is None for k in dims[2:]):
            return self.bind(x, update, _zero_index(indices), *indices), 0
        vectors, numbers = _as_gather(shape_of(x)[1:], shape_of(update)[1:], indices, dims[2:], size)
        return scatter_p.batch(size, (x, vectors, update), (0, 0, 0), mode=GatherScatterMode.CLIP,
                               dimension_numbers=ScatterDimensionNumbers(*numbers), unique_indices=True,
                               indices_are_sorted=True)

    def physical(self, avals: Sequence[ShapedArray], params: dict[str, Any]) -> dict[str, Any]:
        return {}


dynamic_slice_p = DynamicSlice("dynamic_slice")
dynamic_update_slice_p = DynamicUpdateSlice("dynamic_update_slice")


def _zero_index(indices: Sequence[Any]) -> Any:
    return scalar(0, aval_of(indices[0]).dtype if indices else np.dtype("int32"))


def _known_index(x: Any) -> int | None:
    """The value of an index known while tracing; None of others."""
    if isinstance(x, (int, np.integer)) and not isinstance(x, bool):
        return int(x)
    if isinstance(x, (ConcreteArray, np.ndarray)) and not x.shape and dtypes.issubdtype(x.dtype, np.integer) and (
            not pulls(x)):
        return int(np.asarray(x))
    return None


def _start_indices(name: str, shape: Shape, given: Any, allow_negative: bool | Sequence[bool]) -> list[Any]:
    """Start indices as scalars of one integer type, those below 0 counted from the end.

    8 and 16 bit indices become 32 bits wide first, or adding the size could overflow.
    """
    indices = list(unstack(given) if isinstance(given, (Array, np.ndarray)) and given.ndim == 1 else given)
    if len(indices) != len(shape):
        raise ValueError("Length of slice indices must match number of operand dimensions "
                         f"({len(indices)} vs {shape})")
    allowed = [allow_negative] * len(shape) if isinstance(allow_negative, bool) else list(allow_negative)
    avals = [aval_of(i) for i in indices]
    unknown = [a.dtype for i, a in zip(indices, avals, strict=True) if _known_index(i) is None]
    if any(a.shape for a in avals) or any(not dtypes.issubdtype(k, np.integer) for k in unknown):
        _check_indices(name, ShapedArray(shape, dtypes.bool_), avals)
    wide = any(k.itemsize == 8 for k in unknown)
    one_unsigned = unknown and all(k == unknown[0] for k in unknown) and unknown[0].name in ("uint32", "uint64")
    dtype = unknown[0] if one_unsigned else np.dtype("int64" if wide else "int32")
    return [_start_index(i, n, dtype, ok) for i, n, ok in zip(indices, shape, allowed, strict=True)]


def _start_index(index: Any, size: int, dtype: np.dtype, allow_negative: bool) -> Any:
    known = _known_index(index)
    if known is not None:
        if known < 0 and not allow_negative and not isinstance(index, Array):
            raise ValueError(f"Index {known} is out of bounds for dimension {size} if allow_negative_indices=False")
        info = dtypes.iinfo(dtype)
        return scalar(min(max(known + size * (known < 0 and allow_negative), info.min), info.max), dtype)
    check_countable("an index that is not known", size, dtype)
    narrow = aval_of(index).dtype != dtype
    if not allow_negative or dtypes.issubdtype(aval_of(index).dtype, np.unsignedinteger):
        return el.convert(index, dtype) if narrow else index
    index = el.convert(index, dtype) if narrow else index
    negative = el.lt(index, 0)
    return el.select_n(negative, index, el.add(el.convert(index, dtype), size))


def dynamic_slice(operand: Any, start_indices: Any, slice_sizes: Any, *,
                  allow_negative_indices: bool | Sequence[bool] = True) -> Any:
    """The window of `slice_sizes` of `operand` that starts at `start_indices`, which may be traced.

    Negative indices count from the end; the start is clamped so that the window lies inside.
    """
    shape = shape_of(operand)
    indices = _start_indices("dynamic_slice", shape, start_indices, allow_negative_indices)
    sizes = as_shape(slice_sizes, "slice slice_sizes")
    return dynamic_slice_p.bind(operand, *indices, slice_sizes=sizes)


def dynamic_update_slice(operand: Any, update: Any, start_indices: Any, *,
                         allow_negative_indices: bool | Sequence[bool] = True) -> Any:
    """`operand` with the window of the shape of `update` that starts at `start_indices` replaced by it.

    Negative indices count from the end; the start is clamped so that the window lies inside.
    """
    indices = _start_indices("dynamic_update_slice", shape_of(operand), start_indices, allow_negative_indices)
    return dynamic_update_slice_p.bind(operand, update, *indices)


def _in_dim(ndim: int, axis: int, index: Any, allow_negative: bool) -> tuple[list[Any], list[bool]]:
    starts: list[Any] = [0] * ndim
    allowed = [True] * ndim
    starts[axis], allowed[axis] = index, allow_negative
    return starts, allowed


def dynamic_slice_in_dim(operand: Any, start_index: Any, slice_size: int, axis: int = 0, *,
                         allow_negative_indices: bool = True) -> Any:
    """`dynamic_slice` along one axis, whole along the others."""
    shape = shape_of(operand)
    axis = canonicalize_axis(axis, len(shape))
    starts, allowed = _in_dim(len(shape), axis, start_index, allow_negative_indices)
    sizes = (*shape[:axis], operator.index(slice_size), *shape[axis + 1:])
    return dynamic_slice(operand, starts, sizes, allow_negative_indices=allowed)


def dynamic_index_in_dim(operand: Any, index: Any, axis: int = 0, keepdims: bool = True, *,
                         allow_negative_indices: bool = True) -> Any:
    """The part of `operand` at an `index` along `axis`, which may be traced and is clamped."""
    part = dynamic_slice_in_dim(operand, index, 1, axis, allow_negative_indices=allow_negative_indices)
    return part if keepdims else squeeze(part, (axis,))


def dynamic_update_slice_in_dim(operand: Any, update: Any, start_index: Any, axis: int, *,
                                allow_negative_indices: bool = True) -> Any:
    """`dynamic_update_slice` along one axis, from the start of the others."""
    ndim = len(shape_of(operand))
    starts, allowed = _in_dim(ndim, canonicalize_axis(axis, ndim), start_index, allow_negative_indices)
    return dynamic_update_slice(operand, update, starts, allow_negative_indices=allowed)


def dynamic_update_index_in_dim(operand: Any, update: Any, index: Any, axis: int, *,
                                allow_negative_indices: bool = True) -> Any:
    """`operand` with the part at `index` along `axis` replaced by `update` (with or without that axis)."""
    shape = shape_of(operand)
    axis = canonicalize_axis(axis, len(shape))
    if len(shape_of(update)) != len(shape):
        update = expand_dims(update, (axis,))
    if len(shape_of(update)) != len(shape) or shape_of(update)[axis] != 1:
        raise TypeError(f"dynamic_update_index_in_dim update of shape {shape_of(update)} does not have size 1 along "
                        f"axis {axis} of operand shape {shape}.")
    return dynamic_update_slice_in_dim(operand, update, index, axis, allow_negative_indices=allow_negative_indices)
