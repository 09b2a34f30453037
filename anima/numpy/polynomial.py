"""Polynomials as vectors of coefficients, highest power first.

    >>> jnp.polyval(jnp.array([1, 0, -1]), 3)       # x**2 - 1
    Array(8, dtype=int32)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anima.api.eager import compiled, repeated
from anima.control.scan import scan
from anima.core import dtypes
from anima.core.array import Array
from anima.numpy.calculus import convolve
from anima.numpy.creation import eye
from anima.numpy.diagonals import vander
from anima.numpy.elementwise import add, broadcast_array, multiply
from anima.numpy.linalg.decompositions import eigvals
from anima.numpy.linalg.solving import inv, lstsq
from anima.numpy.manipulation import atleast_1d, broadcast_to, roll
from anima.numpy.promote import (
    as_array,
    as_arrays,
    convert_operand,
    promote_dtypes,
    promote_dtypes_inexact,
    static_int,
    static_value,
)
from anima.numpy.reductions import cumsum, sum
from anima.numpy.selection import where
from anima.numpy.sorting import argsort
from anima.ops import elementwise as ew, shape as sh

ArrayLike = Any


@repeated
def polyval(p: ArrayLike, x: ArrayLike, *, unroll: int = 16) -> Array:
    """The polynomial with coefficients `p` at `x`, by Horner's rule; `p` may have further axes, which broadcast.

    Up to `unroll` coefficients, one operation each is recorded; more become a loop.
    """
    p, x = promote_dtypes("polyval", p, x)
    if not p.ndim:
        raise ValueError("polyval: p must have at least one dimension")
    shape = np.broadcast_shapes(p.shape[1:], x.shape)
    start = broadcast_array(ew.convert(as_array(x.dtype.type(0)), x.dtype, x.weak_type and p.weak_type), shape)
    if p.shape[0] <= unroll:
        for coefficient in sh.unstack(p):
            start = add(multiply(start, x), coefficient)
        return start
    result, _ = scan(lambda y, c: (add(multiply(y, x), c), None), start, p, unroll=1)
    return result


def _padded(name: str, a1: Any, a2: Any) -> tuple[Array, Array]:
    """Both with as many coefficients, along their first axis, as the longer one."""
    a, b = promote_dtypes(name, a1, a2)
    if not (a.ndim and b.ndim):
        raise ValueError(f"{name}: coefficients stand along the first axis, of which a scalar has none; got shapes "
                         f"{a.shape} and {b.shape}")
    rest = max(a, b, key=lambda v: (v.shape[0], v.ndim)).shape[1:]
    n = max(a.shape[0], b.shape[0])
    return tuple(sh.pad(broadcast_to(v, (v.shape[0], *rest)), ew.convert(v.dtype.type(0), v.dtype, v.weak_type),
                        [(n - v.shape[0], 0, 0), *((0, 0, 0),) * len(rest)]) for v in (a, b))  # type: ignore[misc]


@repeated
def polyadd(a1: ArrayLike, a2: ArrayLike) -> Array:
    """The sum of two polynomials, or of columns of them: their coefficients stand along the first axis."""
    return add(*_padded("polyadd", a1, a2))


@repeated
def polysub(a1: ArrayLike, a2: ArrayLike) -> Array:
    """The difference of two polynomials, or of columns of them."""
    return ew.sub(*_padded("polysub", a1, a2))


@compiled
def polymul(a1: ArrayLike, a2: ArrayLike, *, trim_leading_zeros: bool = False) -> Array:
    """The product of two polynomials; `trim_leading_zeros` (known values only) drops leading zeros first."""
    a, b = as_arrays("polymul", a1, a2)
    if trim_leading_zeros and (a.size > 1 or b.size > 1):
        a, b = trim_zeros(a, "f"), trim_zeros(b, "f")
        a, b = (v if v.size else sh.full((1,), 0, v.dtype) for v in (a, b))
    a, b = promote_dtypes_inexact("polymul", a, b)
    return convolve(a if a.size else sh.full((1,), 0, a.dtype), b if b.size else sh.full((1,), 0, b.dtype))


def polydiv(u: ArrayLike, v: ArrayLike, *, trim_leading_zeros: bool = False) -> tuple[Array, Array]:
    """(quotient, remainder) of the division of two polynomials."""
    u, v = promote_dtypes_inexact("polydiv", u, v)
    m, n = u.size - 1, v.size - 1
    if v.size == 0:
        raise ZeroDivisionError("polydiv: division by an empty polynomial")
    scale = ew.div(sh.full((), 1, v.dtype), v[0])
    quotient = sh.full((max(m - n + 1, 1),), 0, u.dtype)
    rest = u
    for k in range(m - n + 1):
        d = ew.mul(scale, rest[k])
        quotient = quotient.at[k].set(d)
        rest = rest.at[k:k + n + 1].add(ew.neg(ew.mul(d, v)))
    return quotient, trim_zeros(rest, "f") if trim_leading_zeros else rest


@repeated
def polyder(p: ArrayLike, m: int = 1) -> Array:
    """The m-th derivative of a polynomial."""
    order = static_int(m, "'m' argument of anima.numpy.polyder")
    (p,) = promote_dtypes_inexact("polyder", p)
    if order < 0:
        raise ValueError("Order of derivative must be positive")
    if order == 0:
        return p
    if order >= p.size:
        return sh.full((0,), 0, p.dtype)
    if p.ndim != 1:
        raise ValueError(f"polyder: the coefficients must be 1-dimensional, got the shape {p.shape}")
    powers = np.arange(p.size - 1, order - 1, -1, dtype=np.float64)
    factors = np.prod([powers - i for i in range(order)], axis=0)
    return ew.mul(sh.slice_in_dim(p, 0, p.size - order), as_array(factors.astype(p.dtype)))


@repeated
def polyint(p: ArrayLike, m: int = 1, k: ArrayLike | None = None) -> Array:
    """The m-th integral of a polynomial with the integration constants `k` (default 0)."""
    order = static_int(m, "'m' argument of anima.numpy.polyint")
    p, *given = promote_dtypes_inexact("polyint", p, *([] if k is None else [k]))
    if order < 0:
        raise ValueError("Order of integral must be positive (see polyder)")
    if order == 0:
        return p
    constants = sh.full((order,), 0, p.dtype) if k is None else atleast_1d(given[0])
    if constants.size == 1:
        constants = broadcast_array(sh.reshape(constants, (1,)), (order,))
    if constants.shape != (order,):
        raise ValueError("k must be a scalar or a rank-1 array of length 1 or m.")
    joined = sh.concatenate([as_array(convert_operand(x, p.dtype, False)) for x in (p, constants)], 0)
    n = joined.size
    powers = np.arange(n - 1, -1, -1, dtype=np.float64)
    # The coefficient of x**j was divided by j, j - 1, ...: as often as it was integrated.
    divisors = np.array([np.prod([max(powers[i] - d, 1) for d in range(min(order, int(powers[i])))] or [1])
                         for i in range(n)])
    return ew.div(joined, as_array(divisors.astype(p.dtype)))


@compiled
def poly(seq_of_zeros: ArrayLike) -> Array:
    """The polynomial with the given zeros, and leading coefficient 1; that of a square matrix has its eigenvalues."""
    (zeros,) = map(atleast_1d, promote_dtypes_inexact("poly", seq_of_zeros))
    if zeros.ndim == 2 and zeros.shape[0] == zeros.shape[1]:
        zeros = eigvals(zeros)
    if zeros.ndim != 1:
        raise ValueError("input must be 1d or non-empty square 2d array.")
    if not zeros.size:
        return sh.full((), 1, zeros.dtype)
    result = sh.full((1,), 1, zeros.dtype)
    for zero in sh.unstack(zeros):
        factor = sh.concatenate([sh.full((1,), 1, zeros.dtype), sh.reshape(ew.neg(zero), (1,))], 0)
        result = convolve(result, factor)
    return result


def roots(p: ArrayLike, *, strip_zeros: bool = True) -> Array:
    """The complex zeros of a polynomial, in no order: the eigenvalues of its companion matrix.

    Leading zeros of `p` make fewer of them, for which `p` must be known; with `strip_zeros=False` the zeros that are
    missing are NaN, at the end. ValueError if `p` has several dimensions.
    """
    (p,) = map(atleast_1d, promote_dtypes_inexact("roots", p))
    if p.ndim != 1:
        raise ValueError("Input must be a rank-1 array.")
    if p.size < 2:
        return sh.full((0,), 0, dtypes.to_complex(p.dtype))
    if strip_zeros:
        known = static_value(p, "The error occurred in the anima.numpy.roots() function. To use this within a "
                                "JIT-compiled context, pass strip_zeros=False: leading zeros then give roots of NaN.")
        start = int(np.argmax(known != 0)) if known.any() else p.size
        return _companion_eigenvalues(sh.slice_in_dim(p, min(start, p.size - 1), p.size))
    leading = cumsum(p != 0) == 0
    count = sum(leading)
    p = where(count == p.size, 1, p)
    found = _companion_eigenvalues(roll(p, -count))
    order = argsort(found == 0)  # zeros that stand for leading coefficients, and true ones, come last
    places = sh.iota(np.dtype(np.int32), found.size)
    return where(places < found.size - count, found[order], complex(np.nan, np.nan))


def _companion_eigenvalues(p: Array) -> Array:
    n = p.size - 1
    if n < 1:
        return sh.full((0,), 0, dtypes.to_complex(p.dtype))
    first = sh.expand_dims(ew.neg(ew.div(p[1:], broadcast_array(p[0], (n,)))), (0,))
    return eigvals(sh.concatenate([first, eye(n - 1, n, dtype=p.dtype)], 0))


@repeated
def polyfit(x: ArrayLike, y: ArrayLike, deg: int, rcond: float | None = None, full: bool = False,
            w: ArrayLike | None = None, cov: Any = False) -> Any:
    """The polynomial of degree `deg` that is nearest to y [n] or [n, k] at x [n], in the sense of least squares.

    `w` [n] weighs the differences. With `full` also (residuals, rank, singular values, rcond) of the scaled problem,
    see `linalg.lstsq`; with `cov` the covariance of the coefficients, scaled by the residuals unless `cov` is
    "unscaled". TypeError or ValueError for shapes that do not fit.

    >>> jnp.polyfit(jnp.array([0.0, 1.0, 2.0]), jnp.array([1.0, 3.0, 5.0]), 1).round(3)
    Array([2., 1.], dtype=float32)
    """
    deg = static_int(deg, "'deg' argument of anima.numpy.polyfit")
    x, y = promote_dtypes_inexact("polyfit", x, y)
    if deg < 0:
        raise ValueError("expected deg >= 0")
    if x.ndim != 1:
        raise TypeError("expected 1D vector for x")
    if not x.size:
        raise TypeError("expected non-empty vector for x")
    if y.ndim not in (1, 2):
        raise TypeError("expected 1D or 2D array for y")
    if y.shape[0] != x.size:
        raise TypeError("expected x and y to have same length")
    order, right = deg + 1, y
    left = vander(x, order)
    if w is not None:
        (weights,) = promote_dtypes_inexact("polyfit", w)
        if weights.ndim != 1:
            raise TypeError("expected a 1-d array for weights")
        if weights.size != x.size:
            raise TypeError("expected w and y to have the same length")
        left, right = left * weights[:, None], right * (weights[:, None] if y.ndim == 2 else weights)
    scale = (left * left).sum(axis=0) ** 0.5
    left = left / scale[None, :]
    limit = x.size * float(dtypes.finfo(x.dtype).eps) if rcond is None else rcond
    fitted, residuals, rank, values = lstsq(left, right, limit)
    fitted = fitted / (scale[:, None] if y.ndim == 2 else scale)
    if full:
        return fitted, residuals, rank, values, as_array(limit)
    if not cov:
        return fitted
    spread = inv(left.T @ left) / (scale[:, None] * scale[None, :])
    factor: Any = 1
    if not (isinstance(cov, str) and cov == "unscaled"):
        if x.size <= order:
            raise ValueError("the number of data points must exceed order to scale the covariance matrix")
        factor = residuals / (x.size - order)
    if y.ndim == 1:
        return fitted, spread * (factor[0] if getattr(factor, "size", 0) else factor)
    return fitted, spread[:, :, None] * (factor[None, None, :] if getattr(factor, "ndim", 0) else factor)


def trim_zeros(filt: ArrayLike, trim: str = "fb", axis: Any = None) -> Array:
    """`filt` without zeros at its front ("f") and back ("b"); its values must be known."""
    x = as_array(filt, "trim_zeros")
    value = static_value(x, "Error arose in the `filt` argument of trim_zeros(): the size of the result depends on it.")
    front, back = "f" in trim.lower(), "b" in trim.lower()
    axes = range(x.ndim) if axis is None else [axis] if np.ndim(axis) == 0 else axis
    nonzero = np.argwhere(value != 0)
    index = [slice(None)] * x.ndim
    for i in axes:
        low, high = (nonzero[:, i].min(), nonzero[:, i].max() + 1) if len(nonzero) else (x.shape[i] if front else 0,
                                                                                      x.shape[i] if front else 0)
        index[i] = slice(int(low) if front else None, int(high) if back or not len(nonzero) else None)
    return x[tuple(index)]
