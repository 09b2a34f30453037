"""Bessel functions I, Hurwitz's zeta, polygamma, the incomplete gamma and beta functions, all formulas: in f64.

Series run as loops over whole vectors, until no lane changes any more; f32 goes through f64, with fewer terms where
the functions are SINGLE_FORMULAS. The incomplete functions are those of `ops/incomplete.py`. Formula numbers are those
of the NIST Digital Library of Mathematical Functions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf, nan

from anima.compiler.scalars.arithmetic import MOST_STEPS, State, if_any, maximum, repeat
from anima.compiler.scalars.base import Num, polynomial, select
from anima.compiler.scalars.exponential import exp, log, power
from anima.compiler.scalars.special import FORMULAS, SINGLE_FORMULAS, digamma_of, digamma_right, ndtr_f32
from anima.ops.formula import FORMULAS as SHARED
from anima.ops.gamma import Functions
from anima.ops.incomplete import betainc, fraction, igamma, igammac, regions, scale, series
from anima.ops.series import BERNOULLI, I0_FAR, I0_NEAR, I1_FAR, I1_NEAR


def _in_f64(function: Callable[..., Num], single: Callable[..., Num] | None) -> Callable[..., Num]:
    """The function, computed for f32 by a formula of its own, or in f64."""
    def either(*args: Num) -> Num:
        if args[0].kind.name == "f64":
            return function(*args)
        return single(*args) if single is not None else _rounded(function)(*args)
    return either


def _rounded(function: Callable[..., Num]) -> Callable[..., Num]:
    """The function of f64, for f32."""
    return lambda *args: function(*[a.cast("fpext", "double") for a in args]).cast("fptrunc", "float")


# Bessel --------------------------------------------------------------------------------------------


def bessel_i0e_f64(x: Num) -> Num:
    """exp(-|x|) I0(x)."""
    a = x.abs()
    near, far = a.at_most(8.0), 1.0 / a.at_least(8.0)
    small = polynomial(near * near * 0.25, I0_NEAR) * exp(-near)
    return select(a < 8.0, small, polynomial(far, I0_FAR) * far.sqrt())


def bessel_i1e_f64(x: Num) -> Num:
    """exp(-|x|) I1(x)."""
    a = x.abs()
    near, far = a.at_most(8.0), 1.0 / a.at_least(8.0)
    small = polynomial(near * near * 0.25, I1_NEAR) * exp(-near) * (near * 0.5)
    return select(a < 8.0, small, polynomial(far, I1_FAR) * far.sqrt()).copysign(x)


# Zeta ----------------------------------------------------------------------------------------------


def zeta(x: Num, q: Num, f: Functions) -> Num:
    """The sum of (q + k)**-x over k >= 0: some terms or more, and Euler and Maclaurin's formula (25.11.5)."""
    terms, numbers = (6.0, BERNOULLI[:7]) if f.single else (10.0, BERNOULLI)
    pole = (q <= 0.0) & (q == q.call("floor"))
    outside = x.compare("ult", 1.0) | ((q <= 0.0) & (x != x.call("floor"))) | q.compare("uno", q)
    exponent = -x
    odd = x.rint() != (x * 0.5).rint() * 2.0

    def raised(base: Num) -> Num:
        if not f.single:
            return power(base, exponent)
        size = exp(exponent * log(base.abs()))
        return select((base < 0.0) & odd, -size, size)

    def step(base: Num, total: Num, last: Num) -> tuple[State, Num]:
        more, last = base < end, raised(base)
        return [select(more, base + 1.0, base), select(more, total + last, total), last], more

    end = maximum(q, q.const(0.0)) + terms
    regular = ~(pole | outside) & (q > -float(MOST_STEPS))
    base, total, last = repeat(regular, [q, q.const(0.0), q.const(0.0)], step)
    tail = base / (x - 1.0) + 0.5
    factor = x / base
    square = 1.0 / (base * base)
    for j, c in enumerate(numbers):
        tail = factor.fma(c, tail)
        factor = factor * (x + float(2 * j + 1)) * (x + float(2 * j + 2)) * square
    result = total + select(last == 0.0, 0.0, last * tail)
    result = select(x == 1.0, inf, result)
    return select(outside, nan, select(pole, inf, result))


def polygamma(m: Num, x: Num, f: Functions) -> Num:
    """The derivative of order m of digamma: (-1)**(m+1) m! zeta(m + 1, x) (25.11.12); NaN unless m = 0, 1, ..."""
    def step(k: Num, factorial: Num) -> tuple[State, Num]:
        return [k + 1.0, factorial * k], (k < m) & (factorial < inf)

    order = select(m > 1.0, m, 1.0)
    one = m.const(1.0)
    size = repeat(m > 1.0, [one + 1.0, one], step)[1] * zeta(order + 1.0, x, f)
    half = order * 0.5
    result = select(half == half.rint(), -size, size)
    result = if_any(m == 0.0, result, lambda: digamma_of(x, not f.single))
    return select((m >= 0.0) & (m == m.rint()), result, nan)


# Incomplete gamma and beta -------------------------------------------------------------------------


def _order_slope(a: Num, x: Num, f: Functions) -> Num:
    """(dP/da) / (dP/dx) of P(a, x)."""
    _, near, far = regions(a, x, f)
    difference = log(x) - digamma_right(a + 1.0)
    total, slope = series(a, x, near, f)
    inverse = 1.0 / a
    low = x * inverse * (total * difference + slope)
    value, slope = fraction(a, x, far, f)
    high = -x * (value * (difference + inverse) + slope)
    result = select(x == 0.0, 0.0, select(near, low, high))
    return select((a > 0.0) & (x >= 0.0), result, nan)


def igamma_grad_a(a: Num, x: Num, f: Functions) -> Num:
    """dP/da of P(a, x)."""
    slope = _order_slope(a, x, f)
    return select(slope == 0.0, 0.0, slope * a / x * scale(a, x, f))  # which may be tiny


def random_gamma_grad(a: Num, x: Num, f: Functions) -> Num:
    """The derivative in a of a sample x of the gamma distribution of order a: -(dP/da) / (dP/dx)."""
    return -_order_slope(a, x, f)


_EXACT: dict[str, Callable[..., Num]] = {"bessel_i0e": bessel_i0e_f64, "bessel_i1e": bessel_i1e_f64}
_EXACT |= {name: partial(p.formula, f=FORMULAS) for name, p in SHARED.items()}
_SERIES: dict[str, Callable[..., Num]] = {
    "zeta": zeta, "polygamma": polygamma, "igamma": igamma, "igammac": igammac, "igamma_grad_a": igamma_grad_a,
    "random_gamma_grad": random_gamma_grad, "regularized_incomplete_beta": betainc}
INCOMPLETE = {name: _in_f64(function, ndtr_f32 if name == "ndtr" else None) for name, function in _EXACT.items()}
INCOMPLETE |= {name: _in_f64(partial(function, f=FORMULAS), _rounded(partial(function, f=SINGLE_FORMULAS)))
               for name, function in _SERIES.items()}
ARITY = {"bessel_i0e": 1, "bessel_i1e": 1, "regularized_incomplete_beta": 3} | {
    name: len(p.operands) for name, p in SHARED.items()}
