"""Differences, integrals, interpolation and convolution along an axis.

    >>> jnp.gradient(jnp.arange(4.) ** 2)
    Array([1., 2., 4., 5.], dtype=float32)
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from anima.api.eager import compiled, repeated
from anima.core import dtypes
from anima.core.array import Array
from anima.core.avals import canonicalize_axis
from anima.core.trace import aval_of
from anima.numpy.elementwise import broadcast_array, floor_divide, less, multiply, remainder, select_where
from anima.numpy.manipulation import ravel
from anima.numpy.promote import (
    as_array,
    convert_operand,
    inexact,
    is_complex,
    normalize_axes,
    operand,
    promote_dtypes,
    promote_dtypes_inexact,
    static_int,
    to_rank,
)
from anima.numpy.reductions import cumsum, sum
from anima.numpy.selection import take
from anima.numpy.sorting import argsort, searchsorted
from anima.ops import elementwise as ew, shape as sh
from anima.ops.convolution import conv_general_dilated

ArrayLike = Any


def _from(x: Array, start: int, stop: int, axis: int) -> Array:
    return sh.slice_in_dim(x, start, stop, axis=axis)


# ---------------------------------------------------------------- differences

@repeated
def diff(a: ArrayLike, n: int = 1, axis: int = -1, prepend: ArrayLike | None = None,
         append: ArrayLike | None = None) -> Array:
    """The n-th differences of neighbours along `axis`, of `a` between `prepend` and `append`."""
    x = as_array(a, "diff")
    n = static_int(n, "'n' argument of anima.numpy.diff")
    if n == 0:
        return x
    if n < 0:
        raise ValueError(f"order must be non-negative but got {n}")
    if not x.ndim:
        raise ValueError(f"diff requires input that is at least one dimensional; got {x}")
    axis = canonicalize_axis(axis, x.ndim)
    parts = [p for p in (prepend, x, append) if p is not None]
    if len(parts) > 1:
        arrays = promote_dtypes("diff", *parts)
        edge = (*x.shape[:axis], 1, *x.shape[axis + 1:])
        x = sh.concatenate([broadcast_array(p, edge) if not p.ndim else p for p in arrays], axis)
    for _ in range(n):
        size = x.shape[axis]
        after, before = _from(x, min(size, 1), size, axis), _from(x, 0, max(size - 1, 0), axis)
        x = ew.ne(after, before) if x.dtype == np.bool_ else ew.sub(after, before)
    return x


@repeated
def ediff1d(ary: ArrayLike, to_end: ArrayLike | None = None, to_begin: ArrayLike | None = None) -> Array:
    """The differences of neighbours in the flattened array, between `to_begin` and `to_end`; TypeError for bools."""
    x = ravel(as_array(ary, "ediff1d"))
    if x.dtype == np.bool_:
        raise TypeError("ediff1d: bools have no differences; convert them to integers.")
    parts = [diff(x)]
    if to_begin is not None:
        parts.insert(0, ravel(ew.convert(as_array(to_begin), x.dtype, False)))
    if to_end is not None:
        parts.append(ravel(ew.convert(as_array(to_end), x.dtype, False)))
    return sh.concatenate(parts, 0)


@repeated
def gradient(f: ArrayLike, *varargs: ArrayLike, axis: Any = None, edge_order: int | None = None) -> Any:
    """Central differences (one-sided at the ends) along each of `axis`, in a list if there are several.

    `varargs` are the distances between neighbours (one for all, one per axis) or the coordinates.
    """
    if edge_order is not None:
        raise NotImplementedError("The 'edge_order' argument to anima.numpy.gradient is not supported.")
    x, *given = promote_dtypes_inexact("gradient", f, *varargs)
    axes = normalize_axes(axis, x.ndim)
    if any(x.shape[i] < 2 for i in axes):
        raise ValueError("Shape of array too small for a numerical gradient: at least 2 elements are required.")
    given = given or [as_array(convert_operand(1.0, x.dtype, x.weak_type))]
    spacings = given if len(given) == len(axes) else given * len(axes)
    if len(spacings) != len(axes):
        raise TypeError(f"Invalid number of spacing arguments {len(varargs)} for axes={axes}")
    results = [_gradient_along(x, h, i) for h, i in zip(spacings, axes, strict=True)]
    return results[0] if isinstance(axis, int) or len(axes) == 1 else results


def _gradient_along(x: Array, h: Array, axis: int) -> Array:
    n = x.shape[axis]
    if h.ndim:
        return _gradient_at(x, h, axis)
    inner = ew.mul(ew.sub(_from(x, 2, n, axis), _from(x, 0, n - 2, axis)), _half(x))
    first = ew.sub(_from(x, 1, 2, axis), _from(x, 0, 1, axis))
    last = ew.sub(_from(x, n - 1, n, axis), _from(x, n - 2, n - 1, axis))
    return ew.div(sh.concatenate([first, inner, last], axis), h)


def _half(x: Array) -> Any:
    return 0.5 if x.weak_type else x.dtype.type(0.5)


def _gradient_at(x: Array, coordinates: Array, axis: int) -> Array:
    n = x.shape[axis]
    if coordinates.ndim != 1 or coordinates.size != n:
        raise ValueError("when 1d, distances must match the length of the corresponding dimension")
    steps = diff(coordinates)
    shaped = [1] * x.ndim
    shaped[axis] = n - 2
    before = sh.reshape(_from(steps, 0, n - 2, 0), shaped)
    after = sh.reshape(_from(steps, 1, n - 1, 0), shaped)
    low, middle, high = _from(x, 0, n - 2, axis), _from(x, 1, n - 1, axis), _from(x, 2, n, axis)
    rising, falling = ew.div(ew.sub(high, middle), after), ew.div(ew.sub(middle, low), before)
    inner = ew.div(ew.add(ew.mul(rising, before), ew.mul(falling, after)), ew.add(before, after))
    first = ew.div(ew.sub(_from(x, 1, 2, axis), _from(x, 0, 1, axis)), steps[0])
    last = ew.div(ew.sub(_from(x, n - 1, n, axis), _from(x, n - 2, n - 1, axis)), steps[-1])
    return sh.concatenate([first, inner, last], axis)


@repeated
def trapezoid(y: ArrayLike, x: ArrayLike | None = None, dx: ArrayLike = 1.0, axis: int = -1) -> Array:
    """The integral of `y` along `axis` by the trapezoidal rule, at coordinates `x` or with step `dx`."""
    if x is None:
        values, step = promote_dtypes("trapezoid", inexact("trapezoid", y), dx)
        axis = canonicalize_axis(axis, values.ndim)
    else:
        values, points = promote_dtypes_inexact("trapezoid", y, x)
        axis = canonicalize_axis(axis, values.ndim)
        step = diff(points, axis=0 if points.ndim == 1 else axis - values.ndim)
        if points.ndim == 1:
            step = sh.expand_dims(step, [d + 1 for d in range(values.ndim - 1 - axis)])
    n = values.shape[axis]
    less = max(n - 1, 0)
    pairs = ew.add(_from(values, n - less, n, axis), _from(values, 0, less, axis))
    if step.ndim:
        rank = max(step.ndim, pairs.ndim)
        step, pairs = to_rank(step, rank), to_rank(pairs, rank)
    area = sum(multiply(step, pairs), axis=axis - values.ndim)
    return ew.mul(area, area.dtype.type(0.5))


@functools.partial(compiled, static=("axis",))
def unwrap(p: ArrayLike, discont: ArrayLike | None = None, axis: int = -1, period: ArrayLike = 2 * np.pi) -> Array:
    """Angles made continuous along `axis`: jumps of more than `discont` are reduced by multiples of `period`."""
    x = as_array(operand("unwrap", p))
    if is_complex(x.dtype) or is_complex(aval_of(period).dtype):
        raise ValueError("anima.numpy.unwrap does not support complex inputs.")
    if dtypes.issubdtype(x.dtype, np.integer) and dtypes.issubdtype(aval_of(period).dtype, np.integer):
        return _unwrap_whole(*promote_dtypes("unwrap", x, period), discont, axis)
    x, whole = (as_array(convert_operand(v, v.dtype, False)) for v in promote_dtypes_inexact("unwrap", x, period))
    if not x.shape[axis]:
        return x
    half = ew.mul(whole, x.dtype.type(0.5))
    limit = half if discont is None else as_array(convert_operand(operand("unwrap", discont), x.dtype, False))
    axis = canonicalize_axis(axis, x.ndim)
    jumps = diff(x, axis=axis)
    reduced = ew.sub(remainder(ew.add(jumps, half), whole), half)
    upwards = ew.and_(ew.eq(reduced, ew.neg(half)), ew.gt(jumps, x.dtype.type(0)))
    reduced = select_where(upwards, half, reduced)
    correction = select_where(ew.lt(ew.abs(jumps), limit), sh.full_like(jumps, 0), ew.sub(reduced, jumps))
    n = x.shape[axis]
    return sh.concatenate([_from(x, 0, 1, axis), ew.add(_from(x, 1, n, axis), cumsum(correction, axis))], axis)


def _unwrap_whole(x: Array, period: Array, discont: Any, axis: int) -> Array:
    """`unwrap` of integers with a whole period: nothing is rounded."""
    axis = canonicalize_axis(axis, x.ndim)
    two, zero = x.dtype.type(2), x.dtype.type(0)
    half = floor_divide(period, two)
    jumps = diff(x, axis=axis)
    reduced = ew.sub(remainder(ew.add(jumps, half), period), half)
    tie = ew.and_(ew.eq(ew.rem(period, two), zero), ew.and_(ew.eq(reduced, ew.neg(half)), ew.gt(jumps, zero)))
    reduced = select_where(tie, half, reduced)
    small = less(ew.mul(ew.abs(jumps), two), period) if discont is None else less(ew.abs(jumps), discont)
    correction = select_where(small, sh.full_like(jumps, 0), ew.sub(reduced, jumps))
    rest = ew.add(_from(x, 1, x.shape[axis], axis), cumsum(correction, axis))
    return sh.concatenate([_from(x, 0, 1, axis), rest], axis)


# ---------------------------------------------------------------- interpolation

@repeated
def interp(x: ArrayLike, xp: ArrayLike, fp: ArrayLike, left: Any = None, right: Any = None,
           period: ArrayLike | None = None) -> Array:
    """The piecewise linear function through the points (xp, fp), xp increasing, at `x`.

    Outside: `left` and `right` (default: the first and last of fp; "extrapolate" goes on), or with `period`.
    """
    if np.shape(xp) != np.shape(fp) or np.ndim(xp) != 1:
        raise ValueError(f"xp and fp must be one-dimensional arrays of equal size, got shapes {np.shape(xp)} and "
                         f"{np.shape(fp)}")
    at, points, *cycle = promote_dtypes_inexact("interp", x, xp, *[] if period is None else [period])
    if is_complex(at.dtype):
        raise ValueError("interp: places x and xp cannot be complex.")
    sides = [side for side in (left, right) if period is None and side is not None and not isinstance(side, str)]
    (values, *_) = promote_dtypes("interp", inexact("interp", fp), at, *sides)
    if (isinstance(left, str) and left != "extrapolate") or (isinstance(right, str) and right != "extrapolate"):
        raise ValueError("the only valid string value of `left` and `right` is 'extrapolate'")
    if cycle:
        at, points, values = _periodic(at, points, values, cycle[0])
    n = points.size
    segment = ew.clamp(np.int32(1), ew.convert_element_type(searchsorted(points, at, side="right"), np.int32),
                       np.int32(max(n - 1, 1)))
    low = ew.sub(segment, np.int32(1))
    (x0, x1, y0, y1) = (take(v, i, mode="clip") for v in (points, values) for i in (low, segment))
    width = ew.sub(x1, x0)
    # Subnormal widths, whose inverses in derivatives may be infinite, count as none. Small differences are scaled
    # before the division by a small width, as its derivative divides by the width's square, which may be zero.
    tiny = ew.lt(ew.abs(width), np.asarray(dtypes.finfo(width.dtype).smallest_normal, width.dtype))
    width = select_where(tiny, sh.full_like(width, 1), width)
    scale = ew.stop_gradient_p.bind(width)
    fraction = ew.div(ew.div(ew.sub(at, x0), scale), ew.div(width, scale))
    fraction = ew.convert_element_type(fraction, y0.dtype) if fraction.dtype != y0.dtype else fraction
    result = select_where(tiny, y0, ew.add(y0, ew.mul(fraction, ew.sub(y1, y0))))
    if period is None:
        for side, outside, end in ((left, ew.lt(at, points[0]), 0), (right, ew.gt(at, points[-1]), -1)):
            if isinstance(side, str):
                continue
            edge = values[end] if side is None else operand("interp", side)
            edge = as_array(convert_operand(edge, result.dtype, False))
            result = select_where(outside, edge, result)
    return result


def _periodic(at: Array, points: Array, values: Array, period: Array) -> tuple[Array, Array, Array]:
    if period.ndim:
        raise ValueError(f"period must be a scalar; got {period}")
    whole = ew.abs(period)
    at, points = remainder(at, whole), remainder(points, whole)
    order = argsort(points)
    points, values = take(points, order, mode="clip"), take(values, order, mode="clip")
    points = sh.concatenate([ew.sub(_from(points, points.size - 1, points.size, 0), whole), points,
                             ew.add(_from(points, 0, 1, 0), whole)], 0)
    return at, points, sh.concatenate([_from(values, values.size - 1, values.size, 0), values,
                                       _from(values, 0, 1, 0)], 0)


# ---------------------------------------------------------------- convolution

@compiled
def convolve(a: ArrayLike, v: ArrayLike, mode: str = "full", *, precision: Any = None,
             preferred_element_type: Any = None) -> Array:
    """The convolution of two vectors: "full" overlap, the "same" size as the longer, or "valid" overlap only."""
    a, v = _vectors("convolve", a, v, preferred_element_type)
    if a.size < v.size:
        a, v = v, a
    return _slide(a, sh.rev(v, (0,)), mode, precision, preferred_element_type)


@compiled
def correlate(a: ArrayLike, v: ArrayLike, mode: str = "valid", *, precision: Any = None,
              preferred_element_type: Any = None) -> Array:
    """The cross-correlation of two vectors, the second conjugated; `mode` as in `convolve`."""
    a, v = _vectors("correlate", a, v, preferred_element_type)
    v = ew.conj(v) if is_complex(v.dtype) else v
    if a.size >= v.size:
        return _slide(a, v, mode, precision, preferred_element_type)
    return sh.rev(_slide(v, a, mode, precision, preferred_element_type), (0,))


def _vectors(name: str, a: Any, v: Any, preferred: Any) -> tuple[Array, Array]:
    a, v = promote_dtypes_inexact(name, a, v) if preferred is None else promote_dtypes(name, a, v)
    if a.ndim != 1 or v.ndim != 1:
        raise ValueError(f"{name}() only support 1-dimensional inputs.")
    if not a.size or not v.size:
        raise ValueError(f"{name}: inputs cannot be empty, got shapes {a.shape} and {v.shape}.")
    return a, v


def _slide(a: Array, v: Array, mode: str, precision: Any, preferred: Any) -> Array:
    """Sums of products of `v` with each of its places along the longer `a`."""
    m = v.size
    if mode == "valid":
        low = high = 0
    elif mode == "same":
        low, high = m // 2, m - m // 2 - 1
    elif mode == "full":
        low = high = m - 1
    else:
        raise ValueError("mode must be one of ['full', 'same', 'valid']")
    a, v = (sh.expand_dims(x, (0, 1)) for x in (a, v))
    out = conv_general_dilated(a, v, (1,), ((low, high),), precision=precision, preferred_element_type=preferred)
    return sh.squeeze(out, (0, 1))
