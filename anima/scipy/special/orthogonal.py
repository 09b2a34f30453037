"""Bessel functions, spherical harmonics and hypergeometric functions."""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import numpy as np

import anima.numpy as jnp
from anima.api.autodiff import jvp
from anima.api.eager import compiled
from anima.lax.control import fori_loop, while_loop
from anima.numpy.creation import of_sequences
from anima.numpy.functions import bessel_i0, bessel_i1
from anima.numpy.promote import as_array, is_complex, operand, static_int
from anima.ops import formula, special
from anima.ops.elementwise import complex as make_complex, convert
from anima.ops.family import WIDER
from anima.scipy.special.operands import inexact, real
from anima.transforms.custom import custom_jvp
from anima.transforms.symbolic_zeros import SymbolicZero


@compiled
def i0e(x: Any) -> Any:
    """exp(-|x|) I0(x)."""
    return special.bessel_i0e(*inexact("i0e", x))


@compiled
def i0(x: Any) -> Any:
    """The modified Bessel function of the first kind and order 0."""
    return bessel_i0(*inexact("i0", x))


@compiled
def i1e(x: Any) -> Any:
    """exp(-|x|) I1(x)."""
    return special.bessel_i1e(*inexact("i1e", x))


@compiled
def i1(x: Any) -> Any:
    """The modified Bessel function of the first kind and order 1."""
    return bessel_i1(*inexact("i1", x))


# ---------------------------------------------------------------- Bessel


def _miller(count: int, start: int, z: Any) -> Any:
    """J_0 to J_(count-1), by J_(k-1) = 2 k/z J_k - J_(k+1) down from order `start`, so that J_0 + 2 J_2 + ... = 1."""
    small = jnp.abs(z) < 1e-30 if z.dtype == np.float64 else jnp.abs(z) < 1e-15
    inverse = 2 / jnp.where(small, 1, z)
    big = z.dtype.type(1e15)
    orders = jnp.arange(count, dtype=np.int32).reshape((count,) + (1,) * z.ndim)

    def step(i: Any, state: Any) -> Any:
        above, here, total, kept = state
        k = start - i.astype(np.int32)  # `here` is J_k, up to a factor
        below = k.astype(z.dtype) * inverse * here - above
        total = total + jnp.where(k % 2 == 1, jnp.where(k == 1, 1, 2), 0).astype(z.dtype) * below
        kept = jnp.where(orders == k - 1, below[None], kept)
        size = jnp.abs(below)  # near 0, a step multiplies by more than `big`
        scale = jnp.where(size > big, 1 / jnp.maximum(big, size / big), jnp.ones_like(below))
        return here * scale, below * scale, total * scale, kept * scale[None]

    zero = jnp.zeros_like(z)
    start_values = (zero, jnp.full_like(z, 1e-15), zero, jnp.zeros((count, *z.shape), z.dtype))
    _, _, total, kept = fori_loop(0, start, step, start_values)
    at_zero = jnp.zeros_like(kept).at[0].set(1).at[1:2].set(z[None] / 2)
    return jnp.where(small[None], at_zero, kept / total[None])


@functools.partial(compiled, static=("v", "n_iter"))
def bessel_jn(z: Any, *, v: int, n_iter: int = 50) -> Any:
    """The Bessel functions J_0 to J_v of the real numbers `z`, along a new first axis.

    `n_iter` is the order that Miller's recurrence starts from: more than |z| and `v` by about 20.

    >>> anima.scipy.special.bessel_jn(jnp.array([0., 1.]), v=1)
    Array([[1.        , 0.76519763],
           [0.        , 0.44005057]], dtype=float32)
    """
    (z,) = inexact("bessel_jn", z, weak=False)
    if is_complex(z.dtype):
        raise TypeError("bessel_jn does not support complex-valued inputs.")
    wide = convert(z, WIDER.get(z.dtype, z.dtype))  # terms of the recurrence grow
    return convert(_bessel_jn(max(operator.index(v) + 1, 0), operator.index(n_iter), wide), z.dtype)


def _bessel_jn(count: int, start: int, z: Any) -> Any:
    function = custom_jvp(lambda z: _miller(max(count, 1), max(start, count + 20), z)[:count])

    @function.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        (z,), (t,) = primals, tangents
        values = _bessel_jn(count + 1, start, z)  # J_n' = (J_(n-1) - J_(n+1)) / 2
        slopes = jnp.concatenate([-values[1:2], (values[:-2] - values[2:]) / 2])
        return values[:count], t[None] * slopes[:count]

    return function(z)


# ---------------------------------------------------------------- spherical harmonics


def sph_harm_y(n: Any, m: Any, theta: Any, phi: Any, diff_n: int | None = None, n_max: int | None = None) -> Any:
    """The spherical harmonics of degree `n` and order `m` at polar angles `theta` and azimuths `phi`, all vectors.

    `n_max` is the largest degree (default: that in `n`, which is known then). NotImplementedError for `diff_n`.
    """
    if diff_n is not None:
        raise NotImplementedError("The 'diff_n' argument to anima.scipy.special.sph_harm_y is not supported.")
    n, m = (as_array(operand("sph_harm_y", x)) for x in (n, m))
    theta, phi = real("sph_harm_y", theta, phi)
    if n_max is None:
        n_max = static_int(jnp.max(n), "The `n_max` argument of `anima.scipy.special.sph_harm_y` must be statically "
                                       "specified to use `sph_harm_y` within transformations.") if n.size else 0
    n, m, theta, phi = jnp.broadcast_arrays(n, m, theta, phi)
    order, x, sine = jnp.abs(m), jnp.cos(theta), jnp.sin(theta)
    diagonal = jnp.full_like(x, math.sqrt(0.25 / math.pi))
    for k in range(1, n_max + 1):  # the normalized P_m^m
        diagonal = jnp.where(k <= order, diagonal * sine * -math.sqrt((2 * k + 1) / (2 * k)), diagonal)
    before, here, wide = jnp.zeros_like(x), diagonal, order.astype(x.dtype)
    for k in range(1, n_max + 1):  # P_k^m from P_(k-1)^m and P_(k-2)^m
        used = (k > order) & (k <= n)
        gap = jnp.where(used, k * k - wide * wide, 1)
        scale = jnp.sqrt((4 * k * k - 1) / gap)
        last = jnp.sqrt(jnp.maximum((k - 1) ** 2 - wide * wide, 0) / max(4 * (k - 1) ** 2 - 1, 1))
        before, here = jnp.where(used, here, before), jnp.where(used, scale * (x * here - last * before), here)
    size = jnp.where((order > n) | (n < 0), 0, here)
    size = jnp.where((m < 0) & (order % 2 == 1), -size, size)
    angle = m.astype(phi.dtype) * phi
    return make_complex(size * jnp.cos(angle), size * jnp.sin(angle))


# ---------------------------------------------------------------- hypergeometric


def _series(tops: Any, bottoms: Any, x: Any) -> Any:
    """The hypergeometric series, as a program that can be differentiated in its parameters."""
    operands = jnp.broadcast_arrays(*tops, *bottoms, x)
    tops, bottoms, x = operands[:len(tops)], operands[len(tops):-1], operands[-1]
    tiny = float(jnp.finfo(x.dtype).eps) / 64

    def going(state: Any) -> Any:
        k, term, total = state
        return (k < 10000) & jnp.any(jnp.abs(term) * (1 + k.astype(x.dtype)) > jnp.abs(total) * tiny)

    def step(state: Any) -> Any:
        k, term, total = state
        at = k.astype(x.dtype)
        for a in tops:
            term = term * (a + at)
        for b in bottoms:
            term = term / (b + at)
        term = term * x / (at + 1)
        return k + 1, term, total + term

    return while_loop(going, step, (jnp.int32(0), jnp.ones_like(x), jnp.ones_like(x)))[2]


def _with_parameters(function: Any, series: Any, slope: Any, count: int) -> Any:
    """`function` of `count` parameters and x: its derivative in x is `slope`, those in parameters are the series'."""
    whole = custom_jvp(function)

    def rule(primals: Any, tangents: Any) -> Any:
        out = whole(*primals)
        total = jnp.zeros_like(out)
        for i, t in enumerate(tangents):
            if isinstance(t, SymbolicZero):
                continue
            if i == count:
                change = slope(*primals)
            else:  # along all numbers of one operand at once: each result depends on its own alone
                at = primals[i]
                _, change = jvp(lambda p, i=i: series(*primals[:i], p, *primals[i + 1:]), (at,), (jnp.ones_like(at),))
            total = total + t * change
        return out, total

    whole.defjvp(rule, symbolic_zeros=True)
    return whole


def _kummer(a: Any, b: Any, x: Any) -> Any:
    flip = x < 0
    found = _series([jnp.where(flip, b - a, a)], [b], jnp.abs(x))
    return jnp.where(flip, jnp.exp(jnp.where(flip, x, 0)) * found, found)


def _gauss(a: Any, b: Any, c: Any, x: Any) -> Any:
    left = x < 0
    safe = jnp.where(left, x, 0)
    found = _series([a, jnp.where(left, c - b, b)], [c], jnp.where(left, safe / (safe - 1), x))
    return jnp.where(left, jnp.exp(-a * jnp.log1p(-safe)) * found, found)


_hyp1f1 = _with_parameters(
    formula.hyp1f1, _kummer, lambda a, b, x: a / b * _hyp1f1(a + 1, b + 1, x), 2)
_hyp2f1 = _with_parameters(
    formula.hyp2f1, _gauss, lambda a, b, c, x: a * b / c * _hyp2f1(a + 1, b + 1, c + 1, x), 3)


@of_sequences
@compiled
def hyp1f1(a: Any, b: Any, x: Any) -> Any:
    """Kummer's confluent hypergeometric function 1F1(a; b; x), of real numbers.

    >>> anima.scipy.special.hyp1f1(1., 1., jnp.array([0., 1.]))
    Array([1.       , 2.7182817], dtype=float32)
    """
    return _hyp1f1(*real("hyp1f1", a, b, x))


@compiled
def hyp2f1(a: Any, b: Any, c: Any, x: Any) -> Any:
    """Gauss's hypergeometric function 2F1(a, b; c; x), of real numbers: infinite for x > 1 unless a polynomial."""
    a, b, c, x = inexact("hyp2f1", a, b, c, x, weak=False)
    if is_complex(x.dtype):
        raise TypeError("hyp2f1 does not support complex-valued inputs.")
    return _hyp2f1(a, b, c, x)
