"""Special functions that distributions are made of, in forms that lose no digits in tails or for large parameters.

    log Gamma(x + 1) = x log x - x + excess(x)               excess(x)
    x log(x / m) - x + m >= 0                                deviance(x, m)

so that log(m^k e^-m / k!) = -excess(k) - deviance(k, m), where nothing cancels (Loader, "Fast and accurate computation
of binomial probabilities", 2000). At 0, the slopes of both are infinite and that of their sum is not: sums have rules
of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from anima.core.array import Array
from anima.core.primitive import Zero
from anima.nn.activations import log1mexp
from anima.numpy.elementwise import abs, minimum
from anima.numpy.functions import exp, log, log1p
from anima.numpy.manipulation import broadcast_arrays
from anima.numpy.selection import where
from anima.ops import special
from anima.ops.broadcast import full_like
from anima.ops.formula import betaln, log_ndtr, ndtr
from anima.scipy.logarithms import xlog1py as xlog1py, xlogy as xlogy
from anima.transforms.custom import custom_jvp
from anima.transforms.symbolic_zeros import SymbolicZero

LOG_2PI = math.log(2 * math.pi)


# ---------------------------------------------------------------- factorials, and what is left of them

# Stirling's series: of 1/x, 1/x^3, ...
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
_LARGE = 10.0


def _stirling(x: Array) -> Array:
    """log Gamma(x) - (x - 1/2) log x + x - log(2 pi) / 2, for x >= 10."""
    inverse = 1 / x
    square = inverse * inverse
    total = _STIRLING[-1] * square
    for c in reversed(_STIRLING[1:-1]):
        total = (total + c) * square
    return (total + _STIRLING[0]) * inverse


def excess(x: Array) -> Array:
    """log Gamma(x + 1) - x log x + x for x >= 0, which grows as log(2 pi x) / 2."""
    large = x >= _LARGE
    big, small = where(large, x, _LARGE), where(large, 1, x)
    return where(large, 0.5 * (LOG_2PI + log(big)) + _stirling(big),
                 special.lgamma(small + 1) - xlogy(small, small) + small)


def deviance(x: Array, m: Array) -> Array:
    """x log(x / m) - x + m for x, m >= 0."""
    x, m = broadcast_arrays(x, m)
    zero = x == 0
    safe = where(zero, 1, x)
    total = safe + m
    ratio = where(total < np.inf, (safe - m) / where(total < np.inf, total, 1), -1)
    near = (abs(ratio) < 0.1) | zero
    v, p, q = where(near & ~zero, ratio, 0), where(near, safe, 1), where(near, m, 1)
    square = v * v
    series = full_like(square, 1 / 17)
    for k in range(15, 1, -2):
        series = series * square + 1 / k
    close = (p - q) * v + 2 * p * v * square * series
    far, away = where(near, 1, safe), where(near, 2, m)
    out = where(near, close, where(away == np.inf, np.inf, -far * log(away / far) - far + away))
    return where(zero, m, out)


def log_beta(a: Array, b: Array) -> Array:
    """log of Gamma(a) Gamma(b) / Gamma(a + b) for a, b > 0."""
    return betaln(*broadcast_arrays(a, b))


def log_choose(n: Array, k: Array) -> Array:
    """log of n over k for 0 <= k <= n."""
    return -log1p(n) - log_beta(n - k + 1, k + 1)


def gamma_density(x: Array, a: Array) -> Array:
    """log of x^(a-1) e^-x / Gamma(a) for x, a > 0."""
    x, a = broadcast_arrays(x, a)
    large = a >= _LARGE
    a1, a2 = where(large, a, _LARGE), where(large, 1, a)
    x1 = where(large, x, 1)
    x2 = where(large, 1, x)
    return where(large, log(a1 / x1) - deviance(a1, x1) - excess(a1), (a2 - 1) * log(x2) - x2 - special.lgamma(a2))


def _slope(x: Array, m: Array) -> Array:
    """log m minus the digamma function of x + 1, the slope of `poisson` in x, for x, m >= 0."""
    x, m = broadcast_arrays(x, m)
    large = x >= _LARGE
    big, expected = where(large, x, _LARGE), where(large, m, _LARGE)
    square = 1 / (big * big)
    of_excess = full_like(square, 0)
    for k in range(len(_STIRLING) - 1, -1, -1):
        of_excess = (of_excess - (2 * k + 1) * _STIRLING[k]) * square
    near = (expected > 0.5 * big) & (expected < np.inf)
    log_ratio = where(near, log1p(where(near, expected - big, 0) / big), log(where(near, 1, expected / big)))
    small, mean = where(large, 1, x), where(large, 1, m)
    return where(large, log_ratio - 0.5 / big - of_excess, log(mean) - special.digamma(small + 1))


def _ratio(count: Array, share: Array) -> Array:
    """One by the other, 0 where both are 0."""
    return count / where((count == 0) & (share == 0), 1, share)


def _along(out: Array, *terms: tuple[Any, Any]) -> Array:
    """The sum of tangents times the slopes that functions give, which are made for tangents that are there."""
    there = [tangent * slope() for tangent, slope in terms if not isinstance(tangent, (Zero, SymbolicZero))]
    return sum(there[1:], there[0]) if there else full_like(out, 0)


@custom_jvp
def poisson(x: Array, m: Array) -> Array:
    """log of m^x e^-m / Gamma(x + 1) for x, m >= 0."""
    return -excess(x) - deviance(x, m)


def _poisson_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    (x, m), (dx, dm) = primals, tangents
    out, none = poisson(x, m), (x == 0) & (m == 0)
    return out, _along(out, (dx, lambda: _slope(x, m)),
                       (dm, lambda: where(none, x - 1, (x - m) / where(none, 1, m))))


@custom_jvp
def binomial(n: Array, k: Array, p: Array, q: Array) -> Array:
    """log of n over k times p^k q^(n - k), for p + q = 1."""
    return (excess(n) - excess(k) - excess(n - k)) - deviance(k, n * p) - deviance(n - k, n * q)


def _binomial_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    (n, k, p, q), (dn, dk, dp, dq) = primals, tangents
    out, scale = binomial(n, k, p, q), where(n == 0, 1, n)  # any would do, but with this one nothing cancels
    return out, _along(out, (dn, lambda: _slope(n - k, scale * q) - _slope(n, scale)),
                       (dk, lambda: _slope(k, scale * p) - _slope(n - k, scale * q)),
                       (dp, lambda: _ratio(k, p)), (dq, lambda: _ratio(n - k, q)))


poisson.defjvp(_poisson_jvp, symbolic_zeros=True)
binomial.defjvp(_binomial_jvp, symbolic_zeros=True)


def beta_density(x: Array, y: Array, a: Array, b: Array) -> Array:
    """log of x^(a-1) y^(b-1) / B(a, b) for 0 < x < 1, y = 1 - x, a and b > 0."""
    x, y, a, b = broadcast_arrays(x, y, a, b)
    large = minimum(a, b) >= _LARGE
    a1, b1 = where(large, a, _LARGE), where(large, b, _LARGE)
    a2, b2 = where(large, 1, a), where(large, 1, b)
    log_y = where(x < 0.5, log1p(-x), log(y))
    end = log(x) + log_y
    of_large = binomial(a1 + b1, a1, x, y) + log(a1 * (b1 / (a1 + b1))) - end
    return where(large, of_large, (a2 - 1) * log(x) + (b2 - 1) * log_y - log_beta(a2, b2))


def igamma(a: Array, x: Array) -> Array:
    """The regularized lower incomplete gamma function."""
    return special.igamma(*broadcast_arrays(a, x))


def igammac(a: Array, x: Array) -> Array:
    """The regularized upper incomplete gamma function."""
    return special.igammac(*broadcast_arrays(a, x))


def betainc(a: Array, b: Array, x: Array) -> Array:
    """The regularized incomplete beta function."""
    return special.betainc(*broadcast_arrays(a, b, x))


# ---------------------------------------------------------------- the normal distribution

_FAR = 10.0  # standard deviations from which the asymptotic series is accurate: 24 terms


def log_difference(x: Array, y: Array) -> Array:
    """log(e^x - e^y) for x >= y; -inf where they are equal."""
    equal = x <= y
    return where(equal, where((x == x) & (y == y), -np.inf, np.nan), x + log1mexp(where(equal, 1, x - y)))


def log_ndtr_between(a: Array, b: Array) -> Array:
    """log of the probability that a standard normal number is between a and b >= a."""
    a, b = broadcast_arrays(a, b)
    right, left = a > 0, b < 0
    low = where(right, -b, where(left, a, -1))
    high = where(right, -a, where(left, b, 1))
    one_side = log_difference(log_ndtr(high), log_ndtr(low))
    out = right | left
    around = log1p(-ndtr(where(out, -1, a)) - ndtr(-where(out, 1, b)))
    return where(out, one_side, around)


# ---------------------------------------------------------------- others


def gumbel_density(z: Array) -> Array:
    """log of exp(-z - exp(-z))."""
    end = z == -np.inf
    z = where(end, 0, z)
    return where(end, -np.inf, -(z + exp(-z)))


def gumbel_tail(z: Array) -> Array:
    """log of 1 - exp(-exp(-z))."""
    far = z > 20
    return where(far, -z - 0.5 * exp(-where(far, z, 20)), log1mexp(exp(-where(far, 0, z))))


def power(x: Array, y: Array) -> Array:
    """x^y for x >= 0, y > 0, whose derivatives at 0 are 0."""
    zero = x == 0
    return where(zero, 0, where(zero, 1, x) ** y)
