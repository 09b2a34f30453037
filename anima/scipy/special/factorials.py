"""The gamma function, its quotients and derivatives, and numbers that are made of them."""

from __future__ import annotations

import functools
import math
import operator
from fractions import Fraction
from typing import Any

import numpy as np

import anima.numpy as jnp
from anima.api.eager import compiled
from anima.core import dtypes
from anima.numpy.promote import as_array, is_complex, operand
from anima.ops import formula, special
from anima.ops.elementwise import complex as make_complex, convert, stop_gradient
from anima.ops.series import STIRLING
from anima.scipy.shapes import along_last
from anima.scipy.special.operands import inexact, real


def gammaln(x: Any) -> Any:
    """log |Gamma(x)|, for real numbers."""
    return special.lgamma(*inexact("gammaln", x))


@compiled
def gammasgn(x: Any) -> Any:
    """The sign of Gamma(x): of a zero its own, NaN at the other poles and at -inf."""
    (x,) = real("gammasgn", x)
    floor = jnp.floor(x)
    odd = jnp.mod(floor, 2) != 0
    left = jnp.where(floor == x, np.nan, jnp.where(odd, -1, 1))
    sign = jnp.where(x < 0, left, jnp.where(x == 0, jnp.copysign(1, x), jnp.where(jnp.isnan(x), np.nan, 1)))
    return sign.astype(x.dtype)


@compiled
def gamma(x: Any) -> Any:
    """The gamma function of real or complex numbers; NaN at its poles left of 0.

    >>> anima.scipy.special.gamma(jnp.array([0.5, 5.]))
    Array([ 1.7724539, 24.       ], dtype=float32)
    """
    (x,) = inexact("gamma", x, weak=False)
    return jnp.exp(_loggamma(x)) if is_complex(x.dtype) else formula.gamma(x)


@compiled
def loggamma(x: Any) -> Any:
    """The principal branch of log Gamma(x), analytic but on the negative real axis; of negative real numbers NaN."""
    (x,) = inexact("loggamma", x)
    return _loggamma(x) if is_complex(x.dtype) else jnp.where(x < 0, np.nan, special.lgamma(x))


def _loggamma(z: Any) -> Any:
    """Stirling's series at z + 10, less the logarithms of 10 factors; left of 0 by reflection."""
    left = z.real < 0
    w = jnp.where(left, 1 - z, z)
    factors = sum(jnp.log(w + k) for k in range(10))
    a = w + 10
    inverse = 1 / a
    series = STIRLING[-1]
    for c in STIRLING[-2::-1]:
        series = series * (inverse * inverse) + c
    right = (a - 0.5) * jnp.log(a) - a + 0.5 * math.log(2 * math.pi) + inverse * series - factors
    # log sin(pi z) that is analytic above the real axis; below it is the conjugate of that above.
    below = (z.imag < 0) | ((z.imag == 0) & jnp.signbit(z.imag))
    upper = jnp.where(below, jnp.conj(z), z)
    upper = make_complex(jnp.where(left, upper.real, 0.5), jnp.where(left, upper.imag, 1.0))
    turn = jnp.exp(2j * math.pi * make_complex(upper.real - jnp.floor(upper.real), upper.imag))
    sine = jnp.log1p(-turn) - math.pi * 1j * upper + (math.pi / 2 * 1j - math.log(2))
    reflected = math.log(math.pi) - jnp.where(below, jnp.conj(sine), sine) - right
    return convert(jnp.where(left, reflected, right), z.dtype, z.weak_type)


def digamma(x: Any) -> Any:
    """The derivative of `gammaln`; NaN at its poles."""
    return special.digamma(*inexact("digamma", x))


@compiled
def polygamma(n: Any, x: Any) -> Any:
    """The derivative of order `n` of `digamma`; NaN for negative `n`. ValueError unless `n` is of an integer type."""
    n = as_array(operand("polygamma", n))
    if not dtypes.issubdtype(n.dtype, np.integer):
        raise ValueError(f"Argument `n` to polygamma must be of integer type. Got dtype {dtypes.name(n.dtype)}.")
    (x,) = real("polygamma", x, weak=True)
    return special.polygamma(*inexact("polygamma", convert(n, x.dtype, n.weak_type), x))


@compiled
def gammainc(a: Any, x: Any) -> Any:
    """The regularized lower incomplete gamma function."""
    return special.igamma(*inexact("gammainc", a, x))


@compiled
def gammaincc(a: Any, x: Any) -> Any:
    """The regularized upper incomplete gamma function."""
    return special.igammac(*inexact("gammaincc", a, x))


@compiled
def beta(a: Any, b: Any) -> Any:
    """Gamma(a) Gamma(b) / Gamma(a + b)."""
    return formula.beta(*real("beta", a, b))


@compiled
def betaln(a: Any, b: Any) -> Any:
    """log |beta(a, b)|, for large a and b too.

    >>> anima.scipy.special.betaln(1e6, 1e6)
    Array(-1.3863e+06, dtype=float32, weak_type=True)
    """
    a, b = real("betaln", a, b, weak=True)
    positive = (a >= 0) & (b >= 0)
    a0, b0 = jnp.where(positive, 1, a), jnp.where(positive, 1, b)
    other = special.lgamma(a0) + special.lgamma(b0) - special.lgamma(a0 + b0)
    return jnp.where(positive, formula.betaln(jnp.where(positive, a, 1), jnp.where(positive, b, 1)), other)


@compiled
def betainc(a: Any, b: Any, x: Any) -> Any:
    """The regularized incomplete beta function I_x(a, b)."""
    return special.betainc(*inexact("betainc", a, b, x))


@compiled
def poch(z: Any, m: Any) -> Any:
    """Pochhammer's symbol (z)_m = Gamma(z + m) / Gamma(z)."""
    return formula.poch(*real("poch", z, m))


@compiled
def factorial(n: Any, exact: bool = False) -> Any:
    """n! = Gamma(n + 1), 0 for negative numbers. NotImplementedError for exact=True."""
    if exact:
        raise NotImplementedError("factorial with exact=True")
    (n,) = real("factorial", n, weak=True)
    return jnp.where(n < 0, 0, formula.gamma(jnp.where(n < 0, 0, n) + 1))


@compiled
def comb(N: Any, k: Any, *, repetition: bool = False) -> Any:
    """How many subsets of `k` things there are of `N` (multisets if `repetition`); 0 where there are none.

    >>> anima.scipy.special.comb(jnp.array([4., 5.]), 2)
    Array([ 6., 10.], dtype=float32)
    """
    N, k = real("comb", N, k, weak=True)
    if repetition:
        N = jnp.where(k == 0, N, N + k - 1)  # one of nothing, of nothing too
    valid = (k >= 0) & (N >= 0) & (k <= N)
    n, m = jnp.where(valid, N, 1), jnp.where(valid, k, 0)
    count = 1 / ((n + 1) * formula.beta(n - m + 1, m + 1))
    whole = (n == jnp.floor(n)) & (m == jnp.floor(m)) & (count < 1 / jnp.finfo(count.dtype).eps)
    count = count + stop_gradient(jnp.where(whole, jnp.round(count) - count, 0))
    return jnp.where(valid, count, 0)


@functools.partial(compiled, static=("d",))
def multigammaln(a: Any, d: Any) -> Any:
    """The logarithm of the multivariate gamma function of dimension `d`, an integer that is known."""
    (a,) = real("multigammaln", a)
    d = int(d)
    a = a[..., None]
    whole = jnp.sum(special.lgamma(a + along_last(-0.5 * np.arange(d), a)), -1)
    return whole + 0.25 * d * (d - 1) * math.log(math.pi)


@compiled
def zeta(x: Any, q: Any = None) -> Any:
    """Hurwitz's zeta function, the sum of (k + q)**-x. NotImplementedError without `q`."""
    if q is None:
        raise NotImplementedError("Riemann zeta function not implemented; pass q != None to compute the Hurwitz Zeta "
                                  "function.")
    return special.zeta(*inexact("zeta", x, q))


@functools.cache
def _bernoulli(n: int) -> tuple[float, ...]:
    """By the Akiyama-Tanigawa algorithm, exactly; infinite where a float is too small."""
    out, row = [], []
    for m in range(n + 1):
        row.append(Fraction(1, m + 1))
        for j in range(m, 0, -1):
            row[j - 1] = j * (row[j - 1] - row[j])
        try:
            out.append(float(row[0]))
        except OverflowError:
            out.append(math.inf if row[0] > 0 else -math.inf)
    return tuple(-b if m == 1 else b for m, b in enumerate(out))


def bernoulli(n: int) -> Any:
    """Bernoulli's numbers B_0 to B_n, B_1 = -1/2. ValueError if `n` is negative.

    >>> anima.scipy.special.bernoulli(2)
    Array([ 1.        , -0.5       ,  0.16666667], dtype=float32)
    """
    n = operator.index(n)
    if n < 0:
        raise ValueError("n must be a non-negative integer.")
    return jnp.asarray(np.array(_bernoulli(n)).astype(dtypes.default_float()))
