"""Bessel functions I, Hurwitz's zeta, polygamma, the incomplete gamma and beta functions: all in f64.

Series and continued fractions run as loops over whole vectors, until no lane changes any more; f32
goes through f64. Formula numbers are those of the NIST Digital Library of Mathematical Functions.

    P(a, x) = x**a e**-x / Gamma(a) * (1/a + x/(a(a+1)) + ...)   for x < a + 1 (8.11.4)
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan, pi

from anima.compiler.scalars_arithmetic import MOST_STEPS, State, maximum, repeat
from anima.compiler.scalars_base import Num, polynomial, select
from anima.compiler.scalars_exponential import exp, expm1, log, power
from anima.compiler.scalars_special import FORMULAS, STIRLING, digamma_f64, digamma_right, lgamma_right
from anima.ops.gamma import RECIPROCAL_GAMMA, logarithm
from anima.ops.pairs import Pair, two_quotient, two_sum
from anima.ops.series import I0_FAR, I0_NEAR, I1_FAR, I1_NEAR, LGAMMA_NEAR

# Bernoulli's numbers: B(2j) / (2j)!
BERNOULLI = (0.08333333333333333, -0.001388888888888889, 3.306878306878307e-05, -8.267195767195768e-07,
             2.08767569878681e-08, -5.284190138687493e-10, 1.3382536530684679e-11, -3.3896802963225827e-13,
             8.586062056277845e-15, -2.174868698558062e-16, 5.509002828360229e-18, -1.3954464685812522e-19)


def _in_f64(function: Callable[..., Num]) -> Callable[..., Num]:
    """The function, computed in f64 for f32."""
    def either(*args: Num) -> Num:
        if args[0].kind.name == "f64":
            return function(*args)
        return function(*[a.cast("fpext", "double") for a in args]).cast("fptrunc", "float")
    either.__doc__ = function.__doc__
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
    result = select(m == 0.0, digamma_f64(x), result)
    return select((m >= 0.0) & (m == m.rint()), result, nan)


# Incomplete gamma ----------------------------------------------------------------------------------


def _scale(a: Num, x: Num) -> Num:
    """x**a e**-x / Gamma(a + 1); its exponent as a pair, as its terms cancel, and Stirling's formula for large a."""
    large = a > 10.0
    zero = a * 0.0
    ratio = two_quotient(Pair(x, zero), Pair(a, zero))
    base = Pair(select(large, ratio.hi, x), select(large, ratio.lo, 0.0))
    exponent = logarithm(base, FORMULAS).times(a) + two_sum(select(large, a, 0.0), -x)
    inverse = 1.0 / a
    stirling = inverse * polynomial(inverse * inverse, STIRLING)
    exponent = exponent.plus(select(large, -stirling, 0.0))
    power = exp(exponent.hi)
    power = power.fma(exponent.lo, power)
    return power * select(large, 1.0 / (a * (2 * pi)).sqrt(), _reciprocal_gamma(a))


def _reciprocal_gamma(a: Num) -> Num:
    """1 / Gamma(1 + a), 0 <= a <= 10."""
    n = a.at_most(10.0).rint()
    e = a - n
    product = a.const(1.0)
    for k in range(1, 11):
        product = select(n >= float(k), product * (e + float(k)), product)
    return polynomial(e, RECIPROCAL_GAMMA) / product


def _series(a: Num, x: Num, active: Num) -> tuple[Num, Num]:
    """S = the sum of x**n / ((a + 1) ... (a + n)), and its derivative in a."""
    one, zero = a.const(1.0), a.const(0.0)

    def step(n: Num, term: Num, harmonic: Num, total: Num, slope: Num) -> tuple[State, Num]:
        n = n + 1.0
        inverse = 1.0 / (a + n)
        term, harmonic = term * x * inverse, harmonic + inverse
        change = term * harmonic
        more = (term > total * 1e-17) | (change > slope.abs() * 1e-17)
        return [n, term, harmonic, total + term, slope - change], more

    _, _, _, total, slope = repeat(active, [zero, one, zero, one, zero], step)
    return total, slope


def _fraction(a: Num, x: Num, active: Num) -> tuple[Num, Num]:
    """F = Gamma(a, x) e**x / x**a by its continued fraction (8.9.2; Lentz's method), and its derivative in a."""
    one, zero = a.const(1.0), a.const(0.0)
    bottom = x + 1.0 - a
    d = 1.0 / bottom

    def step(i: Num, b: Num, c: Num, c1: Num, d: Num, d1: Num, h: Num, h1: Num) -> tuple[State, Num]:
        i, b = i + 1.0, b + 2.0
        top = i * (a - i)  # its derivative in a is i; that of b is -1
        d_new = 1.0 / (top * d + b)
        d1_new = -(d_new * d_new) * (i * d + top * d1 - 1.0)
        c_new = b + top / c
        c1_new = i / c - top * c1 / (c * c) - 1.0
        factor = d_new * c_new
        factor1 = d1_new * c_new + d_new * c1_new
        h1_new = h1 * factor + h * factor1
        more = ((factor - 1.0).abs() > 1e-16) | ((h1_new - h1).abs() > h1_new.abs() * 1e-16)
        return [i, b, c_new, c1_new, d_new, d1_new, h * factor, h1_new], more

    # c starts infinite: a large number, of which only the reciprocal counts.
    state = [zero, bottom, one * 1e300, zero, d, d * d, d, d * d]
    result = repeat(active, state, step)
    return result[6], result[7]


def _rest(a: Num, x: Num, active: Num) -> Num:
    """1 - x**a/Gamma(a + 1) (1 - a x/(a + 1) + a x**2/(2! (a + 2)) - ...), not small for small a and x (8.7.1)."""
    def step(n: Num, power: Num, total: Num) -> tuple[State, Num]:
        power = -power * x / n
        change = power / (a + n)
        return [n + 1.0, power, total + change], change.abs() > total.abs() * 1e-17

    one = a.const(1.0)
    _, _, total = repeat(active, [one, one, one * 0.0], step)
    less = expm1(a * log(x) - a * (a - 1.0) * polynomial(a - 0.875, LGAMMA_NEAR))  # lgamma(a + 1), a not rounded
    return -(less + a * total * (less + 1.0))


def _regions(a: Num, x: Num) -> tuple[Num, Num, Num]:
    """Where the arguments are ordinary, and of these, where the series and where the fraction serves."""
    ordinary = (a > 0.0) & (x > 0.0) & (x < inf) & (a < inf)
    near = x < select(a < 1.0, 1.0, a)
    return ordinary, ordinary & near, ordinary & ~near


def _igammas(a: Num, x: Num) -> tuple[Num, Num]:
    """The regularized lower and upper incomplete gamma functions."""
    ordinary, near, far = _regions(a, x)
    scale = _scale(a, x)
    low = scale * _series(a, x, near)[0]
    high = scale * a * _fraction(a, x, far)[0]
    lower = select(near, low, 1.0 - high)
    upper = select(near, 1.0 - low, high)
    small = near & (a < 1.0)
    upper = select(small, _rest(a, x, small), upper)
    zero = ((x == 0.0) & (a > 0.0)) | ((a == inf) & (x < inf) & (x >= 0.0))
    full = ((x == inf) & (a > 0.0) & (a < inf)) | ((a == 0.0) & (x > 0.0))
    lower = select(ordinary, lower, select(zero, 0.0, select(full, x.const(1.0), nan)))
    upper = select(ordinary, upper, select(zero, 1.0, select(full, x.const(0.0), nan)))
    return lower, upper


def igamma_f64(a: Num, x: Num) -> Num:
    """P(a, x), the regularized lower incomplete gamma function."""
    return _igammas(a, x)[0]


def igammac_f64(a: Num, x: Num) -> Num:
    """Q(a, x) = 1 - P(a, x)."""
    return _igammas(a, x)[1]


def _order_slope(a: Num, x: Num) -> Num:
    """(dP/da) / (dP/dx) of P(a, x)."""
    _, near, far = _regions(a, x)
    difference = log(x) - digamma_right(a + 1.0)
    total, slope = _series(a, x, near)
    inverse = 1.0 / a
    low = x * inverse * (total * difference + slope)
    value, slope = _fraction(a, x, far)
    high = -x * (value * (difference + inverse) + slope)
    result = select(x == 0.0, 0.0, select(near, low, high))
    return select((a > 0.0) & (x >= 0.0), result, nan)


def igamma_grad_a_f64(a: Num, x: Num) -> Num:
    """dP/da of P(a, x)."""
    slope = _order_slope(a, x)
    return select(slope == 0.0, 0.0, slope * _scale(a, x) * a / x)


def random_gamma_grad_f64(a: Num, x: Num) -> Num:
    """The derivative in a of a sample x of the gamma distribution of order a: -(dP/da) / (dP/dx)."""
    return -_order_slope(a, x)


# Incomplete beta -----------------------------------------------------------------------------------


def _beta_density(a: Num, b: Num, x: Num) -> Num:
    """x**a (1 - x)**b / B(a, b) by a**a e**-a / Gamma(a + 1), which is flat, of a, b and a + b."""
    zero = a * 0.0
    total = two_sum(a, b)

    def part(a: Num, x: Pair) -> Pair:
        return logarithm(two_quotient(x * total, Pair(a, zero)), FORMULAS).times(a)

    exponent = part(a, Pair(x, zero)) + part(b, two_sum(zero + 1.0, -x))
    power = exp(exponent.hi)
    flat = _scale(a, a) * _scale(b, b) / _scale(total.hi, total.hi)
    return power.fma(exponent.lo, power) * flat * (a / total.hi * b)


def betainc_f64(a: Num, b: Num, x: Num) -> Num:
    """I_x(a, b), the regularized incomplete beta function: its continued fraction (8.17.22), of the smaller tail."""
    ordinary = (a > 0.0) & (b > 0.0) & (x > 0.0) & (x < 1.0) & (a < inf) & (b < inf)
    swap = x > (a + 1.0) / (a + b + 2.0)
    p, q = select(swap, b, a), select(swap, a, b)
    near = select(swap, 1.0 - x, x)
    one = a.const(1.0)
    total = p + q

    def ratio(numerator: Num, c: Num, d: Num) -> tuple[Num, Num]:
        d = numerator * d + 1.0
        c = numerator / c + 1.0
        return select(c == 0.0, 1e-300, c), 1.0 / select(d == 0.0, 1e-300, d)

    def step(m: Num, c: Num, d: Num, h: Num) -> tuple[State, Num]:
        m = m + 1.0
        twice = p + m * 2.0
        c, d = ratio(m * (q - m) * near / ((twice - 1.0) * twice), c, d)
        h = h * (c * d)
        c, d = ratio(-(p + m) * (total + m) * near / (twice * (twice + 1.0)), c, d)
        return [m, c, d, h * (c * d)], (c * d - 1.0).abs() > 1e-16

    first = 1.0 / (1.0 - total * near / (p + 1.0))
    fraction = repeat(ordinary, [one * 0.0, one, first, first], step)[3]
    result = _beta_density(a, b, x) * fraction / p
    result = select(swap, 1.0 - result, result)
    # At the limits of a and b all weight is at one end.
    upper, lower = (b == 0.0) | (a == inf), (a == 0.0) | (b == inf)
    one_if = select((x == 1.0) | (lower & (x > 0.0)), x.const(1.0), 0.0)
    inside = (x == 0.0) | (x == 1.0) | ((upper | lower) & (x > 0.0) & (x < 1.0))
    valid = (a >= 0.0) & (b >= 0.0) & ~(upper & lower)
    return select(ordinary, result, select(valid & inside, one_if, nan))


_FUNCTIONS: dict[str, Callable[..., Num]] = {
    "bessel_i0e": bessel_i0e_f64, "bessel_i1e": bessel_i1e_f64, "zeta": zeta_f64, "polygamma": polygamma_f64,
    "igamma": igamma_f64, "igammac": igammac_f64, "igamma_grad_a": igamma_grad_a_f64,
    "random_gamma_grad": random_gamma_grad_f64, "regularized_incomplete_beta": betainc_f64}
INCOMPLETE = {name: _in_f64(function) for name, function in _FUNCTIONS.items()}
ARITY = {"bessel_i0e": 1, "bessel_i1e": 1, "regularized_incomplete_beta": 3}
