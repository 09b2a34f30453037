"""Bessel functions I, Hurwitz's zeta, polygamma, the incomplete gamma and beta functions, all formulas: in f64.

Series run as loops over whole vectors, until no lane changes any more; f32 goes through f64. The incomplete
functions are those of `ops/incomplete.py`. Formula numbers are those of the NIST Digital Library of Mathematical
Functions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf, nan

from anima.compiler.scalars.arithmetic import MOST_STEPS, State, maximum, repeat
from anima.compiler.scalars.base import Num, polynomial, select
from anima.compiler.scalars.exponential import exp, log, power
from anima.compiler.scalars.special import FORMULAS, digamma, digamma_right, lgamma_right, ndtr_f32
from anima.ops.formula import FORMULAS as SHARED
from anima.ops.incomplete import betainc, fraction, igamma, igammac, regions, scale, series
from anima.ops.series import BERNOULLI, I0_FAR, I0_NEAR, I1_FAR, I1_NEAR


def _in_f64(function: Callable[..., Num], single: Callable[..., Num] | None) -> Callable[..., Num]:
    """The function, computed for f32 by a formula of its own, or in f64."""
    def either(*args: Num) -> Num:
        if args[0].kind.name == "f64":
            return function(*args)
        if single is not None:
            return single(*args)
        return function(*[a.cast("fpext", "double") for a in args]).cast("fptrunc", "float")
    return either


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


def zeta_f64(x: Num, q: Num) -> Num:
    """The sum of (q + k)**-x over k >= 0: ten terms or more, and Euler and Maclaurin's formula (25.11.5)."""
    pole = (q <= 0.0) & (q == q.call("floor"))
    outside = x.compare("ult", 1.0) | ((q <= 0.0) & (x != x.call("floor"))) | q.compare("uno", q)
    exponent = -x

    def step(base: Num, total: Num) -> tuple[State, Num]:
        return [base + 1.0, total + power(base, exponent)], base + 1.0 < start + 10.0

    start = maximum(q, q.const(0.0))
    regular = ~(pole | outside) & (q > -float(MOST_STEPS))
    base, total = repeat(regular, [q, q.const(0.0)], step)
    last = power(base, exponent)
    tail = base / (x - 1.0) + 0.5
    factor = x / base
    square = 1.0 / (base * base)
    for j, c in enumerate(BERNOULLI):
        tail = factor.fma(c, tail)
        factor = factor * (x + float(2 * j + 1)) * (x + float(2 * j + 2)) * square
    result = total + select(last == 0.0, 0.0, last * tail)
    result = select(x == 1.0, inf, result)
    return select(outside, nan, select(pole, inf, result))


def polygamma_f64(m: Num, x: Num) -> Num:
    """The derivative of order m of digamma: (-1)**(m+1) m! zeta(m + 1, x) (25.11.12); NaN unless m = 0, 1, ..."""
    order = select(m > 1.0, m, 1.0)
    size = exp(lgamma_right(order + 1.0)).rint() * zeta_f64(order + 1.0, x)
    half = order * 0.5
    result = select(half == half.rint(), -size, size)
    result = select(m == 0.0, digamma(x), result)
    return select((m >= 0.0) & (m == m.rint()), result, nan)


# Incomplete gamma and beta -------------------------------------------------------------------------


def igamma_f64(a: Num, x: Num) -> Num:
    """P(a, x), the regularized lower incomplete gamma function."""
    return igamma(a, x, FORMULAS)


def igammac_f64(a: Num, x: Num) -> Num:
    """Q(a, x) = 1 - P(a, x)."""
    return igammac(a, x, FORMULAS)


def _order_slope(a: Num, x: Num) -> Num:
    """(dP/da) / (dP/dx) of P(a, x)."""
    _, near, far = regions(a, x, FORMULAS)
    difference = log(x) - digamma_right(a + 1.0)
    total, slope = series(a, x, near, FORMULAS)
    inverse = 1.0 / a
    low = x * inverse * (total * difference + slope)
    value, slope = fraction(a, x, far, FORMULAS)
    high = -x * (value * (difference + inverse) + slope)
    result = select(x == 0.0, 0.0, select(near, low, high))
    return select((a > 0.0) & (x >= 0.0), result, nan)


def igamma_grad_a_f64(a: Num, x: Num) -> Num:
    """dP/da of P(a, x)."""
    slope = _order_slope(a, x)
    return select(slope == 0.0, 0.0, slope * a / x * scale(a, x, FORMULAS))  # which may be tiny


def random_gamma_grad_f64(a: Num, x: Num) -> Num:
    """The derivative in a of a sample x of the gamma distribution of order a: -(dP/da) / (dP/dx)."""
    return -_order_slope(a, x)


def betainc_f64(a: Num, b: Num, x: Num) -> Num:
    """I_x(a, b), the regularized incomplete beta function."""
    return betainc(a, b, x, FORMULAS)


_FUNCTIONS: dict[str, Callable[..., Num]] = {
    "bessel_i0e": bessel_i0e_f64, "bessel_i1e": bessel_i1e_f64, "zeta": zeta_f64, "polygamma": polygamma_f64,
    "igamma": igamma_f64, "igammac": igammac_f64, "igamma_grad_a": igamma_grad_a_f64,
    "random_gamma_grad": random_gamma_grad_f64, "regularized_incomplete_beta": betainc_f64}
_FUNCTIONS |= {name: partial(p.formula, f=FORMULAS) for name, p in SHARED.items()}
_SINGLE = {"ndtr": ndtr_f32}
INCOMPLETE = {name: _in_f64(function, _SINGLE.get(name)) for name, function in _FUNCTIONS.items()}
ARITY = {"bessel_i0e": 1, "bessel_i1e": 1, "regularized_incomplete_beta": 3} | {
    name: len(p.operands) for name, p in SHARED.items()}
