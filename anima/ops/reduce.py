"""Reductions: over whole axes (sum, product, extremes, logic), their positions, and running along one axis.

    >>> reduce_max(jnp.array([[1., 3.], [3., 2.]]), (0,))
    Array([3., 3.], dtype=float32)

A maximum reached several times shares its derivative equally among the places. Products differentiate
without dividing, so that zeros are harmless: pairs of factors, then pairs of products, and so on.
Running reductions differentiate as the same doubling scan on (value, tangent) pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima.core import dtypes
from anima.core.avals import (
    Shape,
    ShapedArray,
    canonicalize_axis,
    check_countable,
    reduced_shape,
    tangent_aval,
)
from anima.core.primitive import LARGE, Linear, Primitive, ShardingRule, Work, Zero
from anima.core.sharding_rules import each_alike, without
from anima.core.trace import aval_of
from anima.ops import reference
from anima.ops.broadcast import expand_dims, reduce_sum, reduce_sum_p, shape_of
from anima.ops.elementwise import add, convert, div, eq, exp, is_finite, log, max, min, mul, real, select_n_p, sub
from anima.ops.family import ARRAY, BITS, INEXACT, ORDERED, WIDER, constant, is_kind
from anima.ops.shape import concatenate, pad, reshape, rev, slice_in_dim, squeeze, transpose

__all__ = [
    "argmax", "argmax_p", "argmin", "argmin_p", "cumlogsumexp", "cumlogsumexp_p", "cummax", "cummax_p",
    "cummin", "cummin_p", "cumprod", "cumprod_p", "cumsum", "cumsum_p", "reduce_and", "reduce_and_p",
    "reduce_max", "reduce_max_p", "reduce_min", "reduce_min_p", "reduce_or", "reduce_or_p", "reduce_prod",
    "reduce_prod_p", "reduce_sum", "reduce_sum_p", "reduce_xor", "reduce_xor_p"]

NUMERIC = (np.number,)


def largest(dtype: Any) -> Any:
    """The value that `min` leaves alone: infinity, or the largest integer."""
    if dtypes.issubdtype(dtype, np.integer):
        return dtypes.iinfo(dtype).max
    return True if dtype == dtypes.bool_ else np.inf


def smallest(dtype: Any) -> Any:
    """The value that `max` leaves alone: minus infinity, or the smallest integer."""
    if dtypes.issubdtype(dtype, np.integer):
        return dtypes.iinfo(dtype).min
    return False if dtype == dtypes.bool_ else -np.inf


def in_wider(fun: Callable[..., Any], x: np.ndarray, *args: Any, **kwargs: Any) -> Any:
    """`fun` computed in float32 for smaller floats (a byte for smaller integers), rounded once."""
    wide = WIDER.get(x.dtype)
    if wide is None:
        return fun(x, *args, **kwargs)
    out = fun(x.astype(wide), *args, **kwargs)
    return out.astype(x.dtype)


class Reduce(Primitive):
    """Combines all elements along `axes`. `ufunc` reduces; `identity(dtype)` is the result of nothing."""

    cost = 1.0  # for each element of the operand
    large = LARGE

    def __init__(self, name: str, ufunc: np.ufunc | reference.Extreme, accepts: tuple[type, ...],
                 identity: Callable[[Any], Any]):
        super().__init__(name)
        self.ufunc, self.accepts, self.identity = ufunc, accepts, identity

    def infer(self, x: ShapedArray, *, axes: Shape) -> ShapedArray:
        if not is_kind(x.dtype, self.accepts):
            if self.accepts is BITS:
                raise TypeError("logical reduction requires operand dtype bool or int, "
                                f"got {dtypes.name(x.dtype)}.")
            kinds = ", ".join(k.__name__.rstrip("_") for k in self.accepts)
            raise TypeError(f"{self.name} does not accept dtype {dtypes.name(x.dtype)}. "
                            f"Accepted dtypes are subtypes of {kinds}.")
        return ShapedArray(reduced_shape(x, axes), x.dtype, x.weak_type and self.accepts is not BITS)

    def sharding_rule(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray],
                      *, axes: Shape, **params: Any) -> ShardingRule:
        return without(axes, avals[0], outs)

    def work(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], programs: Sequence[Work],
             **params: Any) -> Work:
        return Work(float(max(avals[0].size - outs[0].size, 0)))

    def eval(self, x: np.ndarray, *, axes: Shape) -> Any:
        if 0 in x.shape:
            kept = tuple(n for i, n in enumerate(x.shape) if i not in axes)
            return np.full(kept, self.identity(x.dtype)).astype(x.dtype)
        return in_wider(self._reduce, x, tuple(axes))

    def _reduce(self, x: np.ndarray, axes: Shape) -> Any:
        if self.ufunc is np.multiply:
            return np.multiply.reduce(x, axis=axes, dtype=x.dtype)
        return self.ufunc.reduce(x, axis=axes)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], *, axes: Shape) -> tuple[Any, Any]:
        x, t = primals[0], tangents[0]
        out = self.bind(x, axes=axes)
        if isinstance(t, Zero):
            return out, Zero(tangent_aval(aval_of(out)))
        return out, self.tangent(t, out, x, axes)

    def tangent(self, t: Any, out: Any, x: Any, axes: Shape) -> Any:
        """The tangent of the result; only called for inexact dtypes."""
        raise self._missing("Forward-mode differentiation")

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], *,
              axes: Shape) -> tuple[Any, int]:
        d = dims[0]
        assert d is not None
        return self.bind(args[0], axes=tuple(a + (a >= d) for a in axes)), d - sum(a < d for a in axes)


class ReduceExtreme(Reduce):
    """`reduce_max` or `reduce_min`."""

    makes_nan = False
    exact = True
    keeps_nan = True

    def sharding_rule(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray],
                      *, axes: Shape, **params: Any) -> ShardingRule:
        return without(axes, avals[0], outs, "max" if self.ufunc is reference.maximum else "min")

    def tangent(self, t: Any, out: Any, x: Any, axes: Shape) -> Any:
        if not aval_of(x).size:  # the extreme of nothing is constant
            return Zero(tangent_aval(aval_of(out)))
        at = convert(eq(x, expand_dims(out, axes)), x.dtype)
        return div(reduce_sum(mul(t, at), axes), reduce_sum(at, axes))


class ReduceProd(Reduce):
    """The product along axes."""

    def tangent(self, t: Any, out: Any, x: Any, axes: Shape) -> Any:
        if not aval_of(x).size:
            return Zero(tangent_aval(aval_of(out)))
        kept = tuple(i for i in range(len(x.shape)) if i not in axes)
        count = aval_of(x).size // aval_of(out).size
        x, t = (reshape(transpose(v, kept + tuple(axes)), out.shape + (count,)) for v in (x, t))
        while count > 1:
            if count % 2:  # a factor of one, with no tangent
                widths = [(0, 0, 0)] * len(kept) + [(0, 1, 0)]
                x, t = pad(x, constant(1, x.dtype), widths), pad(t, constant(0, t.dtype), widths)
            half = (count + 1) // 2
            (x, t), (y, u) = ((slice_in_dim(x, i, j, axis=-1), slice_in_dim(t, i, j, axis=-1))
                              for i, j in ((0, half), (half, 2 * half)))
            x, t, count = mul(x, y), add(mul(t, y), mul(x, u)), half
        return squeeze(t, (len(kept),))


reduce_prod_p = ReduceProd("reduce_prod", np.multiply, NUMERIC, lambda dtype: 1)
reduce_max_p = ReduceExtreme("reduce_max", reference.maximum, ARRAY, smallest)
reduce_min_p = ReduceExtreme("reduce_min", reference.minimum, ARRAY, largest)
reduce_and_p = Reduce("reduce_and", np.bitwise_and, BITS, lambda dtype: np.invert(np.zeros((), dtype)))
reduce_or_p = Reduce("reduce_or", np.bitwise_or, BITS, lambda dtype: 0)
reduce_xor_p = Reduce("reduce_xor", np.bitwise_xor, BITS, lambda dtype: 0)


def _over(primitive: Primitive, operand: Any, axes: Sequence[int]) -> Any:
    axes = tuple(canonicalize_axis(a, len(shape_of(operand))) for a in axes)
    return primitive.bind(operand, axes=axes)


def reduce_prod(operand: Any, axes: Sequence[int]) -> Any:
    """The product of `operand` over `axes`, in its own dtype."""
    return _over(reduce_prod_p, operand, axes)


def reduce_max(operand: Any, axes: Sequence[int]) -> Any:
    """The largest element over `axes`; NaN if there is one, minus infinity if there is none at all."""
    return _over(reduce_max_p, operand, axes)


def reduce_min(operand: Any, axes: Sequence[int]) -> Any:
    """The smallest element over `axes`; NaN if there is one, infinity if there is none at all."""
    return _over(reduce_min_p, operand, axes)


def reduce_and(operand: Any, axes: Sequence[int]) -> Any:
    """The bits that all elements over `axes` have, of bools or integers."""
    return _over(reduce_and_p, operand, axes)


def reduce_or(operand: Any, axes: Sequence[int]) -> Any:
    """The bits that some element over `axes` has, of bools or integers."""
    return _over(reduce_or_p, operand, axes)


def reduce_xor(operand: Any, axes: Sequence[int]) -> Any:
    """The bits that an odd number of elements over `axes` have, of bools or integers."""
    return _over(reduce_xor_p, operand, axes)


# ---------------------------------------------------------------- positions

class ArgExtreme(Primitive):
    """The first index of the largest or smallest element along one axis; a NaN counts as either."""

    exact = True
    large = LARGE

    def __init__(self, name: str, fun: Callable[..., Any]):
        super().__init__(name)
        self.fun = fun

    def work(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], programs: Sequence[Work],
             **params: Any) -> Work:
        return Work(float(max(avals[0].size - outs[0].size, 0)))

    def infer(self, x: ShapedArray, *, axes: Shape, index_dtype: Any) -> ShapedArray:
        (axis,) = axes
        if not 0 <= axis < x.ndim:
            raise ValueError(f"Invalid axis {axis} for operand shape {x.shape}")
        if x.shape[axis] < 1:
            raise ValueError("argmin and argmax require non-empty reduced dimension. "
                             f"operand.shape={x.shape} {axis=}")
        if not is_kind(x.dtype, ORDERED):
            raise TypeError(f"{self.name} does not accept dtype {dtypes.name(x.dtype)}. "
                            "Accepted dtypes are subtypes of integer, floating, bool.")
        if not dtypes.issubdtype(index_dtype, np.integer):
            raise TypeError(f"index_dtype must be an integer type, but got {dtypes.name(index_dtype)}")
        check_countable(self.name, x.shape[axis], index_dtype)
        return ShapedArray(x.shape[:axis] + x.shape[axis + 1:], index_dtype)

    def sharding_rule(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray],
                      *, axes: Shape, **params: Any) -> ShardingRule:
        return without(axes, avals[0], outs)

    def eval(self, x: np.ndarray, *, axes: Shape, index_dtype: Any) -> Any:
        wide = WIDER.get(x.dtype)
        return self.fun(x if wide is None else x.astype(wide), axis=axes[0]).astype(index_dtype)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        out = self.bind(*primals, **params)
        return out, Zero(tangent_aval(aval_of(out)))

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], *, axes: Shape,
              index_dtype: Any) -> tuple[Any, int]:
        (axis,), d = axes, dims[0]
        assert d is not None
        return self.bind(args[0], axes=(axis + (axis >= d),), index_dtype=index_dtype), d - (axis < d)


argmax_p = ArgExtreme("argmax", np.argmax)
argmin_p = ArgExtreme("argmin", np.argmin)


def argmax(operand: Any, axis: int, index_dtype: Any) -> Any:
    """The first index of the largest element along `axis` (of the first NaN, if any), as `index_dtype`."""
    return _position(argmax_p, operand, axis, index_dtype)


def argmin(operand: Any, axis: int, index_dtype: Any) -> Any:
    """The first index of the smallest element along `axis` (of the first NaN, if any), as `index_dtype`."""
    return _position(argmin_p, operand, axis, index_dtype)


def _position(primitive: Primitive, operand: Any, axis: int, index_dtype: Any) -> Any:
    axis = canonicalize_axis(axis, len(shape_of(operand)))
    return primitive.bind(operand, axes=(axis,), index_dtype=dtypes.canonicalize_dtype(index_dtype))


# ---------------------------------------------------------------- running along an axis

Pair = Sequence[Any]


def prefixes(combine: Callable[[list[Any], list[Any]], list[Any]], xs: list[Any], axis: int) -> list[Any]:
    """The running results of `combine` on lists of arrays, by Blelloch's even-odd method.

    Pairs are combined and scanned: these are the odd places; one more combination gives the even ones.
    """
    n = xs[0].shape[axis]
    if n < 2:
        return xs
    paired = n - n % 2
    pairs = combine([slice_in_dim(x, 0, paired - 1, 2, axis) for x in xs],
                    [slice_in_dim(x, 1, paired, 2, axis) for x in xs])
    odd = prefixes(combine, pairs, axis)
    later = [slice_in_dim(x, 2, n, 2, axis) for x in xs]
    before = [slice_in_dim(x, 0, y.shape[axis], axis=axis) for x, y in zip(odd, later, strict=True)]
    even = combine(before, later) if later[0].shape[axis] else later
    even = [concatenate([slice_in_dim(x, 0, 1, axis=axis), y], axis) for x, y in zip(xs, even, strict=True)]
    return [_interleaved(a, b, axis) for a, b in zip(even, odd, strict=True)]


def _interleaved(even: Any, odd: Any, axis: int) -> Any:
    """even[0], odd[0], even[1], ...; `even` may have one element more."""
    count = odd.shape[axis]
    pairs = [expand_dims(x, (axis + 1,)) for x in (slice_in_dim(even, 0, count, axis=axis), odd)]
    mixed = reshape(concatenate(pairs, axis + 1), (*odd.shape[:axis], 2 * count, *odd.shape[axis + 1:]))
    if even.shape[axis] == count:
        return mixed
    return concatenate([mixed, slice_in_dim(even, count, count + 1, axis=axis)], axis)


class Cumulative(Primitive):
    """The reduction of every prefix (suffix, if `reverse`) along one axis.

    `combine` takes two (value, tangent) pairs to one.
    """

    large = LARGE

    def __init__(self, name: str, accumulate: Callable[..., Any], accepts: tuple[type, ...],
                 combine: Callable[[Pair, Pair], Pair]):
        super().__init__(name)
        self.accumulate, self.accepts, self.combine = accumulate, accepts, combine

    def work(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], programs: Sequence[Work],
             *, axis: int, **params: Any) -> Work:
        size = avals[0].size
        return Work(float(size - size // max(avals[0].shape[axis], 1)))

    def infer(self, x: ShapedArray, *, axis: int, reverse: bool) -> ShapedArray:
        if not is_kind(x.dtype, self.accepts):
            kinds = ", ".join(k.__name__ for k in self.accepts)
            raise TypeError(f"{self.name} does not accept dtype {dtypes.name(x.dtype)}. "
                            f"Accepted dtypes are subtypes of {kinds}.")
        if not 0 <= axis < x.ndim:
            raise ValueError(f"axis {axis} is out of bounds for array of shape {x.shape}")
        return x

    def sharding_rule(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray],
                      *, axis: int, **params: Any) -> ShardingRule:
        return each_alike(avals[0].shape, avals, outs, (axis,))

    def eval(self, x: np.ndarray, *, axis: int, reverse: bool) -> Any:
        turn = (slice(None),) * axis + (slice(None, None, -1),)
        out = in_wider(self.accumulate, x[turn] if reverse else x, axis).astype(x.dtype, copy=False)
        return out[turn] if reverse else out

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], *, axis: int,
            reverse: bool) -> tuple[Any, Any]:
        x, t = primals[0], tangents[0]
        out = self.bind(x, axis=axis, reverse=reverse)
        if isinstance(t, Zero):
            return out, Zero(tangent_aval(aval_of(out)))
        return out, self.tangent(t, x, axis, reverse)

    def tangent(self, t: Any, x: Any, axis: int, reverse: bool) -> Any:
        pair = [rev(v, (axis,)) for v in (x, t)] if reverse else [x, t]
        _, t = prefixes(lambda before, here: [*self.combine(before, here)], pair, axis)
        return rev(t, (axis,)) if reverse else t

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], *, axis: int,
              reverse: bool) -> tuple[Any, int]:
        d = dims[0]
        assert d is not None
        return self.bind(args[0], axis=axis + (axis >= d), reverse=reverse), d


class CumSum(Cumulative):
    """The running sum, which is linear; its adjoint runs the other way."""

    def tangent(self, t: Any, x: Any, axis: int, reverse: bool) -> Any:
        return self.bind(t, axis=axis, reverse=reverse)

    def transpose(self, ct: Any, x: Any, *, axis: int, reverse: bool) -> Sequence[Any]:
        if not isinstance(x, Linear):
            return [None]
        return [Zero(x.aval) if isinstance(ct, Zero) else self.bind(ct, axis=axis, reverse=not reverse)]


def _add_up(x: np.ndarray, axis: int) -> np.ndarray:
    # One running sum rounds n times: in float64 that costs nothing.
    exact = {np.dtype(np.float32): np.float64, np.dtype(np.complex64): np.complex128}.get(x.dtype, x.dtype)
    return np.cumsum(x, axis=axis, dtype=exact)


def _extreme(choose: Any) -> Callable[[Pair, Pair], Pair]:
    return lambda before, here: choose.jvp((before[0], here[0]), (before[1], here[1]))


def _product(before: Pair, here: Pair) -> Pair:
    (x, t), (y, u) = before, here
    return mul(x, y), add(mul(t, y), mul(x, u))


def _log_add(before: Pair, here: Pair) -> Pair:
    """log(e^x + e^y) and its tangent, a mean of the tangents weighted by e^x and e^y."""
    (x, t), (y, u) = before, here
    is_complex = dtypes.issubdtype(x.dtype, np.complexfloating)
    top = max(real(x), real(y)) if is_complex else max(x, y)
    top = select_n_p.bind(is_finite(top), constant(0, top.dtype), top)
    top = convert(top, x.dtype)
    p, q = exp(sub(x, top)), exp(sub(y, top))
    total = add(p, q)
    nothing = eq(total, 0)
    total = select_n_p.bind(nothing, total, constant(1, x.dtype))
    log_total = select_n_p.bind(nothing, log(total), constant(-np.inf, x.dtype))
    return add(log_total, top), div(add(mul(t, p), mul(u, q)), total)


def _log_sums(x: np.ndarray, axis: int) -> np.ndarray:
    """The logarithm of running sums of exponentials; the principal one of complex numbers."""
    if x.dtype.kind != "c":
        return np.logaddexp.accumulate(x, axis)
    out = np.empty_like(x)
    rows, found = np.moveaxis(x, axis, 0), np.moveaxis(out, axis, 0)
    total = np.full(found.shape[1:], -np.inf, x.dtype)
    for k, row in enumerate(rows):
        top = np.maximum(total.real, row.real)
        top = np.where(np.isfinite(top), top, top.dtype.type(0))
        total = found[k, ...] = np.log(np.exp(total - top) + np.exp(row - top)) + top
    return out


cumsum_p = CumSum("cumsum", _add_up, NUMERIC, _product)
cumprod_p = Cumulative("cumprod", lambda x, axis: np.cumprod(x, axis=axis, dtype=x.dtype), NUMERIC, _product)
cummax_p = Cumulative("cummax", reference.maximum.accumulate, NUMERIC, _extreme(max))
cummin_p = Cumulative("cummin", reference.minimum.accumulate, NUMERIC, _extreme(min))
cumlogsumexp_p = Cumulative("cumlogsumexp", _log_sums, INEXACT, _log_add)


def _along(primitive: Primitive, operand: Any, axis: int, reverse: bool) -> Any:
    axis = canonicalize_axis(axis, len(shape_of(operand)))
    return primitive.bind(operand, axis=axis, reverse=bool(reverse))


def cumsum(operand: Any, axis: int = 0, reverse: bool = False) -> Any:
    """The sum of everything up to (from, if `reverse`) each place along `axis`."""
    return _along(cumsum_p, operand, axis, reverse)


def cumprod(operand: Any, axis: int = 0, reverse: bool = False) -> Any:
    """The product of everything up to (from, if `reverse`) each place along `axis`."""
    return _along(cumprod_p, operand, axis, reverse)


def cummax(operand: Any, axis: int = 0, reverse: bool = False) -> Any:
    """The largest element up to (from, if `reverse`) each place along `axis`; NaN from a NaN on."""
    return _along(cummax_p, operand, axis, reverse)


def cummin(operand: Any, axis: int = 0, reverse: bool = False) -> Any:
    """The smallest element up to (from, if `reverse`) each place along `axis`; NaN from a NaN on."""
    return _along(cummin_p, operand, axis, reverse)


def cumlogsumexp(operand: Any, axis: int = 0, reverse: bool = False) -> Any:
    """log of the sum of exp of everything up to (from, if `reverse`) each place along `axis`."""
    return _along(cumlogsumexp_p, operand, axis, reverse)
