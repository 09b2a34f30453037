"""The incomplete gamma and beta functions of float64, over NumPy arrays and compiled numbers alike.

Series and continued fractions, repeated until no element changes any more. What is raised to a power is so by a
pair of numbers for the exponent, whose terms nearly cancel where it matters. Formula numbers are those of the NIST
Digital Library of Mathematical Functions.

    P(a, x) = x**a e**-x / Gamma(a + 1) * (1 + x/(a + 1) + ...)   for x < a (8.11.4)
"""

from __future__ import annotations

from math import inf, nan, pi

from anima.ops.gamma import RECIPROCAL_GAMMA, Functions, logarithm
from anima.ops.pairs import Number, Pair, fused, two_quotient, two_sum
from anima.ops.series import LGAMMA_NEAR, STIRLING


def scale(a: Number, x: Number, f: Functions) -> Number:
    """x**a e**-x / Gamma(a + 1); its exponent as a pair, as its terms cancel, and Stirling's formula for large a."""
    large = a > 10.0
    zero = a * 0.0
    ratio = two_quotient(Pair(x, zero), Pair(a, zero))
    base = Pair(f.select(large, ratio.hi, x), f.select(large, ratio.lo, 0.0))
    exponent = logarithm(base, f).times(a) + two_sum(f.select(large, a, 0.0), -x)
    inverse = 1.0 / a
    stirling = inverse * f.polynomial(inverse * inverse, STIRLING)
    exponent = exponent.plus(f.select(large, -stirling, 0.0))
    power = f.exp(exponent.hi)
    power = fused(power, exponent.lo, power)
    return power * f.select(large, 1.0 / f.sqrt(a * (2 * pi)), reciprocal_gamma(a, f))


def reciprocal_gamma(a: Number, f: Functions) -> Number:
    """1 / Gamma(1 + a), 0 <= a <= 10."""
    n = f.rint(f.select(a > 10.0, 10.0, a))
    e = a - n
    product = 0.0 * a + 1.0
    for k in range(1, 11):
        product = f.select(n >= float(k), product * (e + float(k)), product)
    return f.polynomial(e, RECIPROCAL_GAMMA) / product


def series(a: Number, x: Number, active: Number, f: Functions) -> tuple[Number, Number]:
    """S = the sum of x**n / ((a + 1) ... (a + n)), and its derivative in a."""
    one, zero = 0.0 * a + 1.0, 0.0 * a

    def step(n: Number, term: Number, harmonic: Number, total: Number, slope: Number) -> tuple[list[Number], Number]:
        n = n + 1.0
        inverse = 1.0 / (a + n)
        term, harmonic = term * x * inverse, harmonic + inverse
        change = term * harmonic
        more = (term > total * 1e-17) | (change > f.abs(slope) * 1e-17)
        return [n, term, harmonic, total + term, slope - change], more

    _, _, _, total, slope = f.repeat(active, [zero, one, zero, one, zero], step)
    return total, slope


def fraction(a: Number, x: Number, active: Number, f: Functions) -> tuple[Number, Number]:
    """F = Gamma(a, x) e**x / x**a by its continued fraction (8.9.2; Lentz's method), and its derivative in a."""
    one, zero = 0.0 * a + 1.0, 0.0 * a
    bottom = x + 1.0 - a
    d = 1.0 / bottom

    def step(i: Number, b: Number, c: Number, c1: Number, d: Number, d1: Number, h: Number,
             h1: Number) -> tuple[list[Number], Number]:
        i, b = i + 1.0, b + 2.0
        top = i * (a - i)  # its derivative in a is i; that of b is -1
        d_new = 1.0 / (top * d + b)
        d1_new = -(d_new * d_new) * (i * d + top * d1 - 1.0)
        c_new = b + top / c
        c1_new = i / c - top * c1 / (c * c) - 1.0
        factor = d_new * c_new
        factor1 = d1_new * c_new + d_new * c1_new
        h1_new = h1 * factor + h * factor1
        more = (f.abs(factor - 1.0) > 1e-16) | (f.abs(h1_new - h1) > f.abs(h1_new) * 1e-16)
        return [i, b, c_new, c1_new, d_new, d1_new, h * factor, h1_new], more

    # c starts infinite: a large number, of which only the reciprocal counts.
    state = [zero, bottom, one * 1e300, zero, d, d * d, d, d * d]
    result = f.repeat(active, state, step)
    return result[6], result[7]


def _rest(a: Number, x: Number, active: Number, f: Functions) -> Number:
    """1 - x**a/Gamma(a + 1) (1 - a x/(a + 1) + a x**2/(2! (a + 2)) - ...), not small for small a and x (8.7.1)."""
    def step(n: Number, power: Number, total: Number) -> tuple[list[Number], Number]:
        power = -power * x / n
        change = power / (a + n)
        return [n + 1.0, power, total + change], f.abs(change) > f.abs(total) * 1e-17

    one = 0.0 * a + 1.0
    _, _, total = f.repeat(active, [one, one, one * 0.0], step)
    less = f.expm1(a * f.log(x) - a * (a - 1.0) * f.polynomial(a - 0.875, LGAMMA_NEAR))  # lgamma(a + 1), a not rounded
    return -(less + a * total * (less + 1.0))


def regions(a: Number, x: Number, f: Functions) -> tuple[Number, Number, Number]:
    """Where the arguments are ordinary, and of these, where the series and where the fraction serves."""
    ordinary = (a > 0.0) & (x > 0.0) & (x < inf) & (a < inf)
    near = x < f.select(a < 1.3, 1.3, a)  # below, the fraction would take many steps, and gather their errors
    return ordinary, ordinary & near, ordinary & ~near


def _igammas(a: Number, x: Number, f: Functions) -> tuple[Number, Number]:
    """The regularized lower and upper incomplete gamma functions."""
    ordinary, near, far = regions(a, x, f)
    size = scale(a, x, f)
    low = size * series(a, x, near, f)[0]
    high = size * a * fraction(a, x, far, f)[0]
    lower = f.select(near, low, 1.0 - high)
    upper = f.select(near, 1.0 - low, high)
    small = near & (a < 1.0)
    upper = f.select(small, _rest(a, x, small, f), upper)
    zero = ((x == 0.0) & (a > 0.0)) | ((a == inf) & (x < inf) & (x >= 0.0))
    full = ((x == inf) & (a > 0.0) & (a < inf)) | ((a == 0.0) & (x > 0.0))
    one = f.select(ordinary, 0.0 * a, 0.0) + 1.0
    lower = f.select(ordinary, lower, f.select(zero, 0.0, f.select(full, one, nan)))
    upper = f.select(ordinary, upper, f.select(zero, 1.0, f.select(full, one * 0.0, nan)))
    return lower, upper


def igamma(a: Number, x: Number, f: Functions) -> Number:
    """P(a, x), the regularized lower incomplete gamma function."""
    return _igammas(a, x, f)[0]


def igammac(a: Number, x: Number, f: Functions) -> Number:
    """Q(a, x) = 1 - P(a, x)."""
    return _igammas(a, x, f)[1]


def _beta_density(a: Number, b: Number, x: Number, f: Functions) -> Number:
    """x**a (1 - x)**b / B(a, b) by a**a e**-a / Gamma(a + 1), which is flat, of a, b and a + b."""
    zero = a * 0.0
    total = two_sum(a, b)

    def part(a: Number, x: Pair) -> Pair:
        return logarithm(two_quotient(x * total, Pair(a, zero)), f).times(a)

    exponent = part(a, Pair(x, zero)) + part(b, two_sum(zero + 1.0, -x))
    power = f.exp(exponent.hi)
    flat = scale(a, a, f) * scale(b, b, f) / scale(total.hi, total.hi, f)
    return fused(power, exponent.lo, power) * flat * (a / total.hi * b)


def betainc(a: Number, b: Number, x: Number, f: Functions) -> Number:
    """I_x(a, b), the regularized incomplete beta function: its continued fraction (8.17.22), of the smaller tail."""
    ordinary = (a > 0.0) & (b > 0.0) & (x > 0.0) & (x < 1.0) & (a < inf) & (b < inf)
    # Up to the mean, so that a small result is no difference from 1, but not where the fraction converges slowly.
    mean = a / (a + b)
    swap = (x > (a + 1.0) / (a + b + 2.0)) & (x > f.select(mean < 0.999, mean, 0.999))
    p, q = f.select(swap, b, a), f.select(swap, a, b)
    near = f.select(swap, 1.0 - x, x)
    one = 0.0 * a + 1.0
    total = p + q

    def ratio(numerator: Number, c: Number, d: Number) -> tuple[Number, Number]:
        d = numerator * d + 1.0
        c = numerator / c + 1.0
        return f.select(c == 0.0, 1e-300, c), 1.0 / f.select(d == 0.0, 1e-300, d)

    def step(m: Number, c: Number, d: Number) -> tuple[list[Number], Number]:
        m = m + 1.0
        twice = p + m * 2.0
        c, d = ratio(m * (q - m) * near / ((twice - 1.0) * twice), c, d)
        c, d = ratio(-(p + m) * (total + m) * near / (twice * (twice + 1.0)), c, d)
        return [m, c, d], f.abs(c * d - 1.0) > 1e-16

    # Lentz's method finds how many terms matter; its product of all factors would have all their errors.
    terms = f.repeat(ordinary, [one * 0.0, one, 1.0 / (1.0 - total * near / (p + 1.0))], step)[0]

    def back(m: Number, v: Number) -> tuple[list[Number], Number]:
        twice = p + m * 2.0
        v = 1.0 - (p + m) * (total + m) * near / (twice * (twice + 1.0)) / v
        v = 1.0 + m * (q - m) * near / ((twice - 1.0) * twice) / v
        return [m - 1.0, v], m > 1.5

    bottom = f.repeat(ordinary & (terms >= 1.0), [terms, one], back)[1]
    tail = 1.0 / (1.0 - total * near / (p + 1.0) / bottom)
    result = _beta_density(a, b, x, f) * tail / p
    result = f.select(swap, 1.0 - result, result)
    # At the limits of a and b all weight is at one end.
    upper, lower = (b == 0.0) | (a == inf), (a == 0.0) | (b == inf)
    one_if = f.select((x == 1.0) | (lower & (x > 0.0)), f.select(ordinary, 0.0 * a, 0.0) + 1.0, 0.0)
    inside = (x == 0.0) | (x == 1.0) | ((upper | lower) & (x > 0.0) & (x < 1.0))
    valid = (a >= 0.0) & (b >= 0.0) & ~(upper & lower)
    return f.select(ordinary, result, f.select(valid & inside, one_if, nan))
