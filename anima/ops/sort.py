"""Sorting, by one key or several, and the largest elements.

NaNs, all equal, come last; -0 equals 0; complex numbers are ordered by real, then by imaginary part.
`top_k` has -0 below 0 and NaNs as the largest. Derivatives are those of the permutation found.

    >>> sort((jnp.array([2, 1, 2]), jnp.array([0., 1., 2.])))
    (Array([1, 2, 2], dtype=int32), Array([1., 0., 2.], dtype=float32))
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from anima.core import dtypes
from anima.core.avals import ShapedArray, canonicalize_axis, check_countable, tangent_aval
from anima.core.primitive import LARGE, Primitive, ShardingRule, Work, Zero
from anima.core.sharding_rules import each_alike
from anima.core.trace import aval_of
from anima.ops.broadcast import broadcasted_iota, expand_dims, instantiate, shape_of
from anima.ops.family import WIDER
from anima.ops.gather import GatherDimensionNumbers, GatherScatterMode, gather
from anima.ops.shape import batch_at_front


def _sort_keys(x: np.ndarray) -> list[np.ndarray]:
    """Arrays that NumPy orders, the first one foremost, as `x` is to be ordered."""
    if x.dtype.kind == "c":
        return [x.real, x.imag]
    if x.dtype in WIDER:
        return [x.astype(np.float32)]
    return [x]


def _descending_keys(x: np.ndarray) -> np.ndarray:
    """Integers in the opposite order of `x`: the bits of floats in order of their values, NaN above all."""
    if dtypes.issubdtype(x.dtype, np.floating):
        wide = x.astype(np.float32) if x.dtype.itemsize < 4 else x
        signed, most = (np.int32, 0x7FFFFFFF) if wide.dtype.itemsize == 4 else (np.int64, 0x7FFFFFFFFFFFFFFF)
        bits: Any = wide.view(signed)
        x = np.where(bits < 0, bits ^ signed(most), bits)
        nan = np.isnan(wide)
        if nan.any():
            x[nan] = most
    return np.invert(x)


def take_along(x: Any, indices: Any, axis: int) -> Any:
    """`x[..., indices[..., i, ...], ...]` along `axis`, all other axes in step; indices are distinct."""
    if not shape_of(x)[axis]:  # a gather reads an element where it writes none, too
        return instantiate(Zero(aval_of(x).update(shape=shape_of(indices))))
    others = tuple(d for d in range(len(shape_of(x))) if d != axis)
    numbers = GatherDimensionNumbers((), (axis,), (axis,), others, others)
    vectors = expand_dims(indices, (len(shape_of(indices)),))
    return gather(x, vectors, numbers, (1,) * len(shape_of(x)), unique_indices=True,
                  mode=GatherScatterMode.PROMISE_IN_BOUNDS)


def comparisons(aval: ShapedArray, axis: int) -> Work:
    """The comparisons of a sort along an axis: `n log2 n` for n elements."""
    return Work(float(aval.size * max(aval.shape[axis] - 1, 0).bit_length()))


class Sort(Primitive):
    """All operands reordered along `dimension` so that the first `num_keys` of them ascend."""

    makes_nan = False
    exact = True
    large = LARGE
    multiple_results = True

    def work(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], programs: Sequence[Work],
             *, dimension: int, **params: Any) -> Work:
        return comparisons(avals[0], dimension)

    def infer(self, *avals: ShapedArray, dimension: int, is_stable: bool, num_keys: int) -> list[ShapedArray]:
        if not avals:
            raise TypeError("Sort requires at least one operand")
        if any(a.shape != avals[0].shape for a in avals):
            raise TypeError(f"Arguments to sort must have equal shapes, got: {' '.join(str(a.shape) for a in avals)}")
        if not 0 <= dimension < avals[0].ndim:
            raise ValueError(f"sort dimension {dimension} is out of bounds for shape {avals[0].shape}")
        if not 1 <= num_keys <= len(avals):
            raise ValueError(f"{num_keys=} must be between 1 and len(operand)={len(avals)}")
        return list(avals)

    def sharding_rule(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray],
                      *, dimension: int, **params: Any) -> ShardingRule:
        return each_alike(avals[0].shape, avals, outs, (dimension,))

    def eval(self, *xs: np.ndarray, dimension: int, is_stable: bool, num_keys: int) -> list[np.ndarray]:
        keys = [key for x in xs[:num_keys] for key in _sort_keys(x)]
        if len(keys) == 1:
            order = np.argsort(keys[0], dimension, kind="stable")
        else:
            order = np.lexsort(tuple(reversed(keys)), dimension)
        return [np.take_along_axis(x, order, dimension) for x in xs]

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], *, dimension: int, is_stable: bool,
            num_keys: int) -> tuple[Any, Any]:
        params = {"dimension": dimension, "is_stable": is_stable, "num_keys": num_keys}
        if not aval_of(primals[0]).size:
            outs = self.bind(*primals, **params)
            return outs, [Zero(tangent_aval(aval_of(x))) for x in outs]
        place = broadcasted_iota(np.dtype("int32"), shape_of(primals[0]), dimension)
        *outs, order = self.bind(*primals, place, **params)
        return outs, [Zero(t.aval) if isinstance(t, Zero) else take_along(t, order, dimension) for t in tangents]

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[Any], *, dimension: int, is_stable: bool,
              num_keys: int) -> tuple[Any, Any]:
        xs = [batch_at_front(x, d, size) for x, d in zip(args, dims, strict=True)]
        outs = self.bind(*xs, dimension=dimension + 1, is_stable=is_stable, num_keys=num_keys)
        return outs, [0] * len(outs)


class TopK(Primitive):
    """The `k` largest elements along `axis`, in descending order, and where they were."""

    large = LARGE
    makes_nan = False
    multiple_results = True

    def work(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], programs: Sequence[Work],
             *, axis: int, **params: Any) -> Work:
        return comparisons(avals[0], axis)

    def infer(self, x: ShapedArray, *, k: int, axis: int) -> list[ShapedArray]:
        if k < 0:
            raise ValueError(f"k argument to top_k must be nonnegative, got {k}")
        if dtypes.issubdtype(x.dtype, np.complexfloating) or dtypes.is_extended(x.dtype):
            kind = "complex" if dtypes.issubdtype(x.dtype, np.complexfloating) else dtypes.name(x.dtype)
            raise ValueError(f"top_k is not compatible with {kind} inputs.")
        if x.ndim == 0:
            raise TypeError(f"top_k operand must have >= 1 dimension, got {x.shape}")
        if not 0 <= axis < x.ndim:
            raise ValueError(f"axis argument out of range: {axis=} for operand.shape={x.shape}")
        check_countable("top_k", x.shape[axis])
        if k > x.shape[axis]:
            raise ValueError("k argument to top_k must be no larger than size along axis; got "
                             f"{k=} with shape={list(x.shape)} and {axis=}")
        shape = (*x.shape[:axis], k, *x.shape[axis + 1:])
        return [x.update(shape=shape), ShapedArray(shape, np.dtype("int32"), x.weak_type)]

    def sharding_rule(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray],
                      *, axis: int, **params: Any) -> ShardingRule:
        return each_alike(avals[0].shape, avals, outs, (axis,))

    def eval(self, x: np.ndarray, *, k: int, axis: int) -> list[np.ndarray]:
        order = np.argsort(_descending_keys(x), axis, kind="stable").take(range(k), axis)
        return [x[order] if x.ndim == 1 else np.take_along_axis(x, order, axis), order.astype(np.int32)]

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], *, k: int, axis: int) -> tuple[Any, Any]:
        values, indices = self.bind(*primals, k=k, axis=axis)
        t = tangents[0]
        aval = tangent_aval(aval_of(values))
        ts = Zero(aval) if isinstance(t, Zero) or not aval.size else take_along(t, indices, axis)
        return [values, indices], [ts, Zero(tangent_aval(aval_of(indices)))]

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[Any], *, k: int,
              axis: int) -> tuple[Any, Any]:
        d = dims[0]
        return self.bind(args[0], k=k, axis=axis + (axis >= d)), [d, d]


sort_p = Sort("sort")
top_k_p = TopK("top_k")


def sort(operand: Any, dimension: int = -1, is_stable: bool = True, num_keys: int = 1) -> Any:
    """`operand` sorted along `dimension`; of a sequence of arrays of one shape, all by the first `num_keys`.

    Elements with equal keys keep their order (so they do if not `is_stable`). Returns what it was given:
    an array, or a tuple of arrays.
    """
    many = isinstance(operand, (tuple, list))
    operands = tuple(operand) if many else (operand,)
    if not operands:
        raise TypeError("Sort requires at least one operand")
    if not many and num_keys != 1:
        raise ValueError(f"{num_keys=} must equal 1 for a single operand.")
    dimension = canonicalize_axis(dimension, len(shape_of(operands[0])))
    outs = sort_p.bind(*operands, dimension=dimension, is_stable=bool(is_stable), num_keys=operator.index(num_keys))
    return tuple(outs) if many else outs[0]


def sort_key_val(keys: Any, values: Any, dimension: int = -1, is_stable: bool = True) -> tuple[Any, Any]:
    """`keys` sorted along `dimension`, and `values` in the same order."""
    keys, values = sort((keys, values), dimension, is_stable)
    return keys, values


def top_k(operand: Any, k: int, *, axis: int = -1) -> list[Any]:
    """The `k` largest elements along `axis`, largest first, and their int32 indices (the first of equals first).

    ValueError if `k` is negative or larger than the axis, or if the elements are complex.
    """
    axis = canonicalize_axis(axis, len(shape_of(operand)))
    return top_k_p.bind(operand, k=operator.index(k), axis=axis)
