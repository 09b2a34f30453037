"""Rearranging arrays: reshape, transpose, rev, squeeze, slice, concatenate, pad, and what they compose.

Every primitive here only moves elements (`Movement`), so that each is its own derivative and has one of
the others as its transpose: slice and pad undo each other, concatenate is undone by slices.

    >>> grad(lambda x: lax.slice(x, (1,), (3,)).sum())(jnp.ones(4))
    Array([0., 1., 1., 0.], dtype=float32)
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from anima.core import dtypes
from anima.core.array import Array
from anima.core.avals import Shape, ShapedArray, canonicalize_axis
from anima.core.dims import index_of
from anima.core.primitive import Linear, ShardingRule
from anima.core.sharding_rules import dimensions, dims, each_alike, reshaped, without
from anima.core.trace import aval_of
from anima.ops.broadcast import (
    Movement,
    all_weak,
    as_array,
    as_shape,
    broadcast,
    broadcast_in_dim,
    broadcast_in_dim_p,
    broadcast_like,
    broadcast_to,
    broadcast_to_rank,
    broadcasted_iota,
    element_shape,
    empty,
    expand_dims,
    full,
    full_like,
    instantiate,
    iota,
    iota_p,
    reduce_sum,
    reduce_sum_p,
    same_dtype,
    scalar,
    shape_of,
    zeros,
    zeros_like,
)
from anima.ops.placing import as_asked

__all__ = ["Movement", "as_array", "as_shape", "batch_at_front", "broadcast", "broadcast_in_dim", "broadcast_in_dim_p",
    "broadcast_like", "broadcast_to", "broadcast_to_rank", "broadcasted_iota", "collapse", "concatenate",
    "concatenate_p", "element_shape", "empty", "expand_dims", "full", "full_like", "index_in_dim", "instantiate",
    "iota", "iota_p", "moveaxis", "pad", "pad_p", "reduce_sum", "reduce_sum_p", "reshape", "reshape_p", "rev", "rev_p",
    "same_dtype", "scalar", "shape_of", "slice", "slice_in_dim", "slice_p", "split", "squeeze", "squeeze_p", "stack",
    "tile", "transpose", "transpose_p", "unstack", "zeros", "zeros_like"]


class Reshape(Movement):
    """The elements in row-major order under another shape. `dimensions` is always None here."""

    keeps_nan = True

    def is_view(self, operand: ShapedArray, result: ShapedArray) -> bool:
        return True

    def infer(self, x: ShapedArray, *, new_sizes: Shape, dimensions: None = None) -> ShapedArray:
        if any(n < 0 for n in new_sizes):
            raise TypeError(f"reshape new_sizes must all be positive, got {new_sizes}.")
        if math.prod(new_sizes) != x.size:
            raise TypeError(f"reshape total size must be unchanged, got new_sizes {new_sizes} (size "
                            f"{math.prod(new_sizes)}) for shape {x.shape} (size {x.size}).")
        return x.update(shape=new_sizes)

    def sharding_rule(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], **params: Any) -> ShardingRule:
        return reshaped(avals[0].shape, outs[0].shape)

    def on_parts(self, params: dict[str, Any], avals: Sequence[ShapedArray],
                 outs: Sequence[ShapedArray]) -> dict[str, Any]:
        return {**params, "new_sizes": outs[0].shape}

    def eval(self, x: np.ndarray, *, new_sizes: Shape, dimensions: None = None) -> np.ndarray:
        return x.reshape(new_sizes)

    def adjoint(self, ct: Any, x: Linear, *, new_sizes: Shape, dimensions: None = None) -> Sequence[Any]:
        return [reshape(ct, x.aval.shape)]

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[Any], *, new_sizes: Shape,
              dimensions: None = None) -> tuple[Any, int]:
        return reshape(moveaxis(args[0], dims[0], 0), (index_of(size), *new_sizes)), 0

    def physical(self, avals: Sequence[ShapedArray], params: dict[str, Any]) -> dict[str, Any]:
        return {"new_sizes": params["new_sizes"] + element_shape(avals[0]), "dimensions": None}


class Transpose(Movement):
    """Axis `i` of the result is axis `permutation[i]` of the operand."""

    keeps_nan = True

    def infer(self, x: ShapedArray, *, permutation: Shape) -> ShapedArray:
        if sorted(permutation) != list(range(x.ndim)):
            raise TypeError("transpose permutation isn't a permutation of operand dimensions, got permutation "
                            f"{permutation} for operand shape {x.shape}.")
        return x.update(shape=tuple(x.shape[p] for p in permutation))

    def sharding_rule(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray],
                      *, permutation: Shape, **params: Any) -> ShardingRule:
        return ShardingRule([dims(*range(len(permutation)))], [dims(*permutation)])

    def eval(self, x: np.ndarray, *, permutation: Shape) -> np.ndarray:
        return x.transpose(permutation)

    def adjoint(self, ct: Any, x: Linear, *, permutation: Shape) -> Sequence[Any]:
        return [transpose(ct, [permutation.index(i) for i in range(len(permutation))])]

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[Any], *,
              permutation: Shape) -> tuple[Any, int]:
        d = dims[0]
        return transpose(args[0], [d] + [p + (p >= d) for p in permutation]), 0

    def physical(self, avals: Sequence[ShapedArray], params: dict[str, Any]) -> dict[str, Any]:
        return {"permutation": params["permutation"] + _element_axes(avals[0])}


class Rev(Movement):
    """The elements in reverse order along `dimensions`."""

    keeps_nan = True

    def infer(self, x: ShapedArray, *, dimensions: Shape) -> ShapedArray:
        if any(d < 0 for d in dimensions):
            raise TypeError(f"rev dimensions must have every element be nonnegative, got {dimensions}.")
        if len(set(dimensions)) != len(dimensions):
            raise TypeError(f"rev dimensions must be unique, got {dimensions}.")
        if any(d >= x.ndim for d in dimensions):
            raise TypeError("rev dimensions must all be less than operand ndim, got dimensions "
                            f"{dimensions} for operand ndim {x.ndim}.")
        return x

    def sharding_rule(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray],
                      *, dimensions: Shape) -> ShardingRule:
        return each_alike(avals[0].shape, avals, outs)._replace(exchanged=frozenset(dimensions))

    def eval(self, x: np.ndarray, *, dimensions: Shape) -> np.ndarray:
        return np.flip(x, dimensions)

    def adjoint(self, ct: Any, x: Linear, *, dimensions: Shape) -> Sequence[Any]:
        return [rev(ct, dimensions)]

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[Any], *,
              dimensions: Shape) -> tuple[Any, int]:
        d = dims[0]
        return rev(args[0], [k + (k >= d) for k in dimensions]), d

    def physical(self, avals: Sequence[ShapedArray], params: dict[str, Any]) -> dict[str, Any]:
        return params


class Squeeze(Movement):
    """Without the axes `dimensions`, which have size 1."""

    keeps_nan = True

    def is_view(self, operand: ShapedArray, result: ShapedArray) -> bool:
        return True

    def infer(self, x: ShapedArray, *, dimensions: Shape) -> ShapedArray:
        dims = {canonicalize_axis(d, x.ndim) for d in dimensions}
        if len(dims) != len(dimensions):
            raise ValueError(f"dimensions are not unique: {dimensions}")
        if any(x.shape[d] != 1 for d in dims):
            raise ValueError("cannot select an axis to squeeze out which has size not equal to one, got "
                             f"shape={x.shape} and {dimensions=}")
        return x.update(shape=tuple(n for i, n in enumerate(x.shape) if i not in dims))

    def sharding_rule(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray],
                      *, dimensions: Shape, **params: Any) -> ShardingRule:
        rank = avals[0].ndim
        return without([canonicalize_axis(d, rank) for d in dimensions], avals[0], outs)

    def eval(self, x: np.ndarray, *, dimensions: Shape) -> np.ndarray:
        return x.squeeze(dimensions)

    def adjoint(self, ct: Any, x: Linear, *, dimensions: Shape) -> Sequence[Any]:
        return [reshape(ct, x.aval.shape)]

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[Any], *,
              dimensions: Shape) -> tuple[Any, int]:
        d = dims[0]
        return squeeze(args[0], [k + (k >= d) for k in dimensions]), d - sum(k < d for k in dimensions)

    def physical(self, avals: Sequence[ShapedArray], params: dict[str, Any]) -> dict[str, Any]:
        return params


class StridedSlice(Movement):
    """Elements `start, start + stride, ... < limit` along every axis."""

    def infer(self, x: ShapedArray, *, start_indices: Shape, limit_indices: Shape,
              strides: Shape | None = None) -> ShapedArray:
        for what, given in (("start_indices", start_indices), ("limit_indices", limit_indices), ("strides", strides)):
            if given is not None and len(given) != x.ndim:
                raise TypeError(f"slice {what} must have length equal to the number of dimensions of the operand, "
                                f"got {what} {given} for operand shape {x.shape}.")
        sizes = tuple(b - a for a, b in zip(start_indices, limit_indices, strict=True))
        if any(s < 0 for s in sizes):
            raise TypeError(f"slice slice_sizes must be greater than or equal to zero, got slice_sizes of {sizes}.")
        if any(a < 0 for a in start_indices):
            raise TypeError(f"slice start_indices must be greater than or equal to zero, got start_indices of "
                            f"{start_indices}.")
        if any(s > n for s, n in zip(sizes, x.shape, strict=True)):
            raise TypeError("slice slice_sizes must be less than or equal to operand shape, got slice_sizes "
                            f"{sizes} for operand shape {x.shape}.")
        if any(b > n for b, n in zip(limit_indices, x.shape, strict=True)):
            raise TypeError("slice limit_indices must be less than or equal to operand shape, got limit_indices "
                            f"{limit_indices} for operand shape {x.shape}.")
        if strides is not None and any(s <= 0 for s in strides):
            raise TypeError(f"slice strides must be positive, got {strides}")
        return x.update(shape=tuple(-(-s // k) for s, k in zip(sizes, strides or (1,) * x.ndim, strict=True)))

    def sharding_rule(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], **params: Any) -> ShardingRule:
        partly = {k for k, (n, m) in enumerate(zip(avals[0].shape, outs[0].shape, strict=True)) if n != m}
        return dimensions(avals, outs)._replace(exchanged=frozenset(partly))

    def on_parts(self, params: dict[str, Any], avals: Sequence[ShapedArray],
                 outs: Sequence[ShapedArray]) -> dict[str, Any]:
        return {**params, "limit_indices": tuple(map(min, params["limit_indices"], avals[0].shape))}

    def eval(self, x: np.ndarray, *, start_indices: Shape, limit_indices: Shape,
             strides: Shape | None = None) -> np.ndarray:
        return x[tuple(map(builtins.slice, start_indices, limit_indices, strides or (1,) * x.ndim))]

    def adjoint(self, ct: Any, x: Linear, *, start_indices: Shape, limit_indices: Shape,
                strides: Shape | None = None) -> Sequence[Any]:
        config = []
        for n, a, m, k in zip(x.aval.shape, start_indices, shape_of(ct), strides or (1,) * x.aval.ndim, strict=True):
            spread = (m - 1) * k + 1 if m else 0
            config.append((a, n - a - spread, k - 1 if m > 1 else 0))
        return [pad(ct, scalar(0, x.aval.dtype), config)]

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[Any], *, start_indices: Shape,
              limit_indices: Shape, strides: Shape | None = None) -> tuple[Any, int]:
        d = dims[0]
        return slice(args[0], _insert(start_indices, d, 0), _insert(limit_indices, d, index_of(size)),
                     None if strides is None else _insert(strides, d, 1)), d

    def physical(self, avals: Sequence[ShapedArray], params: dict[str, Any]) -> dict[str, Any]:
        inner, strides = element_shape(avals[0]), params["strides"]
        return {"start_indices": params["start_indices"] + (0,) * len(inner),
                "limit_indices": params["limit_indices"] + inner,
                "strides": None if strides is None else strides + (1,) * len(inner)}


class Concatenate(Movement):
    """The operands one after the other along `dimension`."""

    keeps_nan = True

    def infer(self, *avals: ShapedArray, dimension: int) -> ShapedArray:
        shapes = [a.shape for a in avals]
        listed = ", ".join(map(str, shapes))
        if not avals:
            raise TypeError("concatenate expects at least one operand, got 0.")
        if len(set(map(len, shapes))) != 1:
            raise TypeError(f"Cannot concatenate arrays with different numbers of dimensions: got {listed}.")
        if not 0 <= dimension < avals[0].ndim:
            raise TypeError(f"concatenate dimension out of bounds: dimension {dimension} for shapes {listed}.")
        if len({(*s[:dimension], *s[dimension + 1:]) for s in shapes}) != 1:
            raise TypeError("Cannot concatenate arrays with shapes that differ in dimensions other than the one "
                            f"being concatenated: concatenating along dimension {dimension} for shapes {listed}.")
        same_dtype("concatenate", avals)
        shape = _replace(shapes[0], dimension, sum(s[dimension] for s in shapes))
        return avals[0].update(shape=shape, weak_type=all_weak(avals))

    def sharding_rule(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray],
                      *, dimension: int, **params: Any) -> ShardingRule:
        labels = dims(*range(outs[0].ndim))
        return ShardingRule([labels] * len(avals), [labels], exchanged=frozenset((dimension,)))

    def eval(self, *xs: np.ndarray, dimension: int) -> np.ndarray:
        return np.concatenate(xs, dimension)

    def adjoint(self, ct: Any, *xs: Any, dimension: int) -> Sequence[Any]:
        out, end = [], 0
        for x in xs:
            start, end = end, end + shape_of_arg(x)[dimension]
            out.append(slice_in_dim(ct, start, end, axis=dimension) if isinstance(x, Linear) else None)
        return out

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[Any], *,
              dimension: int) -> tuple[Any, int]:
        xs = [batch_at_front(x, d, size) for x, d in zip(args, dims, strict=True)]
        return self.bind(*xs, dimension=dimension + 1), 0

    def physical(self, avals: Sequence[ShapedArray], params: dict[str, Any]) -> dict[str, Any]:
        return params


class Pad(Movement):
    """`padding_config[i] = (low, high, interior)` copies of a value before, after and between the elements
    along axis `i`; negative `low` and `high` remove elements."""

    def infer(self, x: ShapedArray, value: ShapedArray, *, padding_config: tuple[Shape, ...]) -> ShapedArray:
        if x.dtype != value.dtype:
            raise TypeError("pad operand and padding_value must be same dtype: got "
                            f"{dtypes.name(x.dtype)} and {dtypes.name(value.dtype)}.")
        if value.shape:
            raise ValueError(f"padding_value must be a scalar; got np.shape(padding_value)={value.shape}")
        if len(padding_config) != x.ndim:
            raise ValueError("length of padding_config must equal the number of axes of operand, got padding_config "
                             f"{padding_config} for operand shape {x.shape}")
        if any(i < 0 for _, _, i in padding_config):
            raise ValueError("interior padding in padding_config must be nonnegative, "
                             f"got padding_config {padding_config}")
        shape = tuple(lo + hi + _dilated(n, i) for n, (lo, hi, i) in zip(x.shape, padding_config, strict=True))
        if any(n < 0 for n in shape):
            raise ValueError(f"Dimension size after padding is not at least 0, got result shape {shape}, for "
                             f"padding_config {padding_config} and operand shape {x.shape}")
        return x.update(shape=shape, weak_type=all_weak((x, value)))

    def sharding_rule(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray],
                      *, padding_config: Any) -> ShardingRule:
        padded = {k for k, around in enumerate(padding_config) if any(around)}
        return dimensions(avals, outs)._replace(exchanged=frozenset(padded))

    def eval(self, x: np.ndarray, value: np.ndarray, *, padding_config: tuple[Shape, ...]) -> np.ndarray:
        shape = [lo + hi + _dilated(n, i) for n, (lo, hi, i) in zip(x.shape, padding_config, strict=True)]
        out = np.full(shape, value, x.dtype)
        places, taken = [], []
        for n, size, (lo, _, interior) in zip(x.shape, shape, padding_config, strict=True):
            step = interior + 1
            first = max(0, -(lo // step))  # the first element whose place lo + first * step is not negative
            last = max(first, min(n, -((lo - size) // step)))
            taken.append(builtins.slice(first, last))
            places.append(builtins.slice(lo + first * step, lo + last * step if last > first else 0, step))
        out[tuple(places)] = x[tuple(taken)]
        return out

    def adjoint(self, ct: Any, x: Any, value: Any, *, padding_config: tuple[Shape, ...]) -> Sequence[Any]:
        given = shape_of_arg(x)
        ct_x = ct_value = None
        if isinstance(x, Linear):
            core = pad(ct, scalar(0, x.aval.dtype), [(-lo, -hi, 0) for lo, hi, _ in padding_config])
            ct_x = slice(core, (0,) * len(given), shape_of(core), [i + 1 for _, _, i in padding_config])
        if isinstance(value, Linear):
            # The cotangents of everything that is not an element: by axis, slabs before, after and between.
            parts = []
            for axis, (n, (lo, _, interior)) in enumerate(zip(given, padding_config, strict=True)):
                end, step = shape_of(ct)[axis], interior + 1
                first = min(max(lo, 0), end)
                last = min(max(lo + _dilated(n, interior), first), end)
                parts += [slice_in_dim(ct, 0, first, axis=axis), slice_in_dim(ct, last, end, axis=axis)]
                core, elements = slice_in_dim(ct, first, last, axis=axis), (lo - first) % step
                by_residue = [slice_in_dim(core, min(r, last - first), None, step, axis) for r in range(step)]
                ct = by_residue.pop(elements)
                parts += by_residue
            sums = [reshape(reduce_sum(p, range(len(given))), (1,)) for p in parts]
            ct_value = reduce_sum(concatenate(sums, 0), (0,)) if sums else zeros(value.aval)
        return [ct_x, ct_value]

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[Any], *,
              padding_config: tuple[Shape, ...]) -> tuple[Any, int]:
        (x, value), (d, value_dim) = args, dims
        if value_dim is None:
            return self.bind(x, value, padding_config=_insert(padding_config, d, (0, 0, 0))), d
        x = batch_at_front(x, d, size)
        for axis, config in enumerate(padding_config, 1):
            x = _pad_with(x, value, axis, config)
        return x, 0

    def physical(self, avals: Sequence[ShapedArray], params: dict[str, Any]) -> None:
        return None


def _pad_with(x: Any, values: Any, axis: int, config: Shape) -> Any:
    """Pads one axis of `x`, whose leading axis is a batch, with one value for each member of the batch."""
    lo, hi, interior = config

    def block(shape: Shape, dim: int, n: int) -> Any:
        return broadcast_in_dim(values, _replace(shape, dim, n), (0,))

    n = shape_of(x)[axis]
    if interior and n > 1:
        spread = expand_dims(x, (axis + 1,))
        spread = concatenate([spread, block(shape_of(spread), axis + 1, interior)], axis + 1)
        x = reshape(spread, _replace(shape_of(x), axis, n * (interior + 1)))
        x = slice_in_dim(x, 0, _dilated(n, interior), axis=axis)
    n = shape_of(x)[axis]
    before, after = (block(shape_of(x), axis, max(k, 0)) for k in (lo, hi))
    x = concatenate([before, x, after], axis)
    return slice_in_dim(x, max(-lo, 0), shape_of(x)[axis] - max(-hi, 0), axis=axis)


def _dilated(n: int, interior: int) -> int:
    return n + max(n - 1, 0) * interior


def _insert(items: Sequence[Any], at: int, item: Any) -> tuple[Any, ...]:
    return (*items[:at], item, *items[at:])


def _replace(items: Sequence[Any], at: int, item: Any) -> tuple[Any, ...]:
    return (*items[:at], item, *items[at + 1:])


def _element_axes(aval: ShapedArray) -> Shape:
    return tuple(range(aval.ndim, aval.ndim + len(element_shape(aval))))


def shape_of_arg(x: Any) -> Shape:
    """The shape of an argument of a transpose rule, linear or not."""
    return x.aval.shape if isinstance(x, Linear) else shape_of(x)


reshape_p = Reshape("reshape")
transpose_p = Transpose("transpose")
rev_p = Rev("rev")
squeeze_p = Squeeze("squeeze")
slice_p = StridedSlice("slice")
concatenate_p = Concatenate("concatenate")
pad_p = Pad("pad")


def reshape(operand: Any, new_sizes: Any, dimensions: Sequence[int] | None = None, *,
            out_sharding: Any = None) -> Any:
    """The elements of `operand`, in row-major order (of its axes permuted by `dimensions`), as `new_sizes`.

    TypeError if the number of elements differs.
    """
    if out_sharding is not None:
        return as_asked("reshape", None, out_sharding, reshape, operand, new_sizes, dimensions)
    shape = as_shape(new_sizes, "reshape new_sizes")
    if dimensions is not None:
        given = shape_of(operand)
        if sorted(dimensions) != list(range(len(given))):
            raise TypeError("reshape dimensions must be a permutation of operand dimensions, got dimensions "
                            f"{tuple(dimensions)} for shape {given}.")
        operand = transpose(operand, dimensions)
    if shape_of(operand) == shape:
        return as_array(operand)
    return reshape_p.bind(operand, new_sizes=shape, dimensions=None)


def transpose(operand: Any, permutation: Sequence[int]) -> Any:
    """`operand` with its axes permuted: axis `i` of the result is axis `permutation[i]` of the operand."""
    permutation = as_shape(permutation, "transpose permutation")
    if permutation == tuple(range(len(shape_of(operand)))):
        return as_array(operand)
    return transpose_p.bind(operand, permutation=permutation)


def moveaxis(x: Any, source: int, destination: int) -> Any:
    """`x` with one axis moved, the others in order."""
    order = [i for i in range(len(shape_of(x))) if i != source]
    return transpose(x, _insert(order, destination, source))


def batch_at_front(x: Any, dim: int | None, size: int) -> Any:
    """An argument of a batching rule with its batch axis first, repeated if it had none."""
    return broadcast(x, (index_of(size),)) if dim is None else moveaxis(x, dim, 0)


def rev(operand: Any, dimensions: Sequence[int]) -> Any:
    """`operand` in reverse order along each of `dimensions`."""
    dims = as_shape(dimensions, "rev dimensions")
    return rev_p.bind(operand, dimensions=dims) if dims else as_array(operand)


def squeeze(array: Any, dimensions: Sequence[int]) -> Any:
    """`array` without the axes `dimensions`; ValueError if one of them does not have size 1."""
    ndim = len(shape_of(array))
    dims = tuple(canonicalize_axis(d, ndim) for d in dimensions)
    if len(set(dims)) != len(dims):
        raise ValueError(f"dimensions are not unique: {tuple(dimensions)}")
    return squeeze_p.bind(array, dimensions=tuple(sorted(dims))) if dims else as_array(array)


def slice(operand: Any, start_indices: Sequence[int], limit_indices: Sequence[int],
          strides: Sequence[int] | None = None) -> Any:
    """Elements from `start_indices` up to `limit_indices`, along every axis, in steps of `strides`.

    TypeError if the bounds do not lie within the operand.
    """
    start, limit = as_shape(start_indices, "slice start_indices"), as_shape(limit_indices, "slice limit_indices")
    steps = None if strides is None else as_shape(strides, "slice strides")
    if steps is not None and all(k == 1 for k in steps) and len(steps) == len(start):
        steps = None
    if steps is None and limit == shape_of(operand) and not any(start) and len(start) == len(limit):
        return as_array(operand)
    return slice_p.bind(operand, start_indices=start, limit_indices=limit, strides=steps)


def slice_in_dim(operand: Any, start_index: int | None, limit_index: int | None, stride: int = 1,
                 axis: int = 0) -> Any:
    """`slice` along one axis; negative indices count from its end, None is the whole axis."""
    shape = shape_of(operand)
    axis = canonicalize_axis(axis, len(shape))
    ends = (0 if start_index is None else start_index, shape[axis] if limit_index is None else limit_index)
    start, limit = (i + shape[axis] if i < 0 else i for i in map(index_of, ends))
    starts, steps = [0] * len(shape), [1] * len(shape)
    starts[axis], steps[axis] = start, index_of(stride)
    return slice(operand, starts, _replace(shape, axis, limit), steps)


def index_in_dim(operand: Any, index: int, axis: int = 0, keepdims: bool = True) -> Any:
    """The part of `operand` at a static `index` along `axis`; IndexError if it is out of bounds."""
    axis, index = canonicalize_axis(axis, len(shape_of(operand))), operator.index(index)
    size = shape_of(operand)[axis]
    if not -size <= index < size:
        raise IndexError(f"index {index} is out of bounds for axis {axis} with size {size}")
    index %= size
    part = slice_in_dim(operand, index, index + 1, axis=axis)
    return part if keepdims else squeeze(part, (axis,))


def concatenate(operands: Array | Sequence[Any], dimension: int) -> Any:
    """The operands, equal in their element type and all other sizes, joined along `dimension`."""
    operands = list(operands)
    if not operands:
        raise ValueError("concatenate requires a non-empty sequence of arrays")
    if len(operands) == 1 and 0 <= dimension < len(shape_of(operands[0])):
        return as_array(operands[0])
    return concatenate_p.bind(*operands, dimension=operator.index(dimension))


def pad(operand: Any, padding_value: Any, padding_config: Sequence[Sequence[int]]) -> Any:
    """`operand` with `(low, high, interior)` copies of `padding_value` before, after and between its elements.

    One triple for each axis; negative `low` and `high` remove elements.
    """
    config = tuple(as_shape(c, "padding_config") for c in padding_config)
    if any(len(c) != 3 for c in config):
        raise ValueError(f"padding_config must hold triples (low, high, interior), got {config}")
    if not any(map(any, config)) and len(config) == len(shape_of(operand)):
        pad_p.infer(aval_of(operand), aval_of(padding_value), padding_config=config)
        return as_array(operand)
    return pad_p.bind(operand, padding_value, padding_config=config)


def split(operand: Any, sizes: Sequence[int], axis: int = 0) -> list[Any]:
    """`operand` cut along `axis` into parts of the given sizes, which must add up to that of the axis."""
    shape = shape_of(operand)
    axis, sizes = canonicalize_axis(axis, len(shape)), as_shape(sizes, "split sizes")
    if any(n < 0 for n in sizes):
        raise ValueError(f"Sizes passed to split must be nonnegative, got {list(sizes)}")
    if sum(sizes) != shape[axis]:
        raise ValueError(f"Sum of sizes {sum(sizes)} must be equal to dimension {axis} of the operand shape "
                         f"{list(shape)}")
    end = 0
    return [slice_in_dim(operand, end, (end := end + n), axis=axis) for n in sizes]


def stack(operands: Sequence[Any], axis: int = 0) -> Any:
    """The operands, of one shape, side by side along a new axis."""
    shapes = [shape_of(x) for x in operands]
    if not shapes:
        raise ValueError("Need at least one array to stack.")
    if len(set(map(len, shapes))) != 1:
        raise ValueError(f"Cannot stack arrays with different numbers of dimensions: got {_listed(shapes)}.")
    if len(set(shapes)) != 1:
        raise ValueError(f"All input arrays must have the same shape: got {_listed(shapes)}.")
    axis = canonicalize_axis(axis, len(shapes[0]) + 1)
    return concatenate([expand_dims(x, (axis,)) for x in operands], axis)


def unstack(x: Any, axis: int = 0) -> tuple[Any, ...]:
    """The parts of `x` along `axis`, without that axis."""
    axis = canonicalize_axis(axis, len(shape_of(x)))
    return tuple(index_in_dim(x, i, axis, keepdims=False) for i in range(shape_of(x)[axis]))


def tile(operand: Any, reps: Sequence[int]) -> Any:
    """`operand` repeated `reps[i]` times along each axis `i`."""
    shape, reps = shape_of(operand), as_shape(reps, "tile reps")
    if len(reps) != len(shape):
        raise TypeError(f"reps length must be equal to the ndim of x, got {len(reps)=} and x.ndim={len(shape)}.")
    spread = [size for pair in zip(reps, shape, strict=True) for size in pair]
    repeated = broadcast_in_dim(operand, spread, range(1, 2 * len(shape), 2))
    return reshape(repeated, [k * n for k, n in zip(reps, shape, strict=True)])


def collapse(operand: Any, start_dimension: int, stop_dimension: int | None = None) -> Any:
    """`operand` with the axes from `start_dimension` up to `stop_dimension` made one."""
    shape = shape_of(operand)
    lo, hi, _ = builtins.slice(start_dimension, stop_dimension).indices(len(shape))
    if hi < lo:
        raise ValueError(f"Invalid dimension range passed to collapse: {shape}[{lo}:{hi}]")
    return reshape(operand, (*shape[:lo], math.prod(shape[lo:hi]), *shape[hi:]))


def _listed(shapes: Sequence[Shape]) -> str:
    return ", ".join(map(str, shapes))
