"""The gamma function and quotients of its values, over NumPy arrays of float64 and compiled numbers alike.

    beta(a, b) = Gamma(a) Gamma(b) / Gamma(a + b)        poch(z, m) = Gamma(z + m) / Gamma(z)

Powers are those of pairs of numbers: a**a e**-a / Gamma(a + 1) is flat, and what remains are exponents such as
a log(a/(a+b)) + b log(b/(a+b)), whose terms cancel.
"""

from __future__ import annotations

from math import inf, log, nan, pi, sqrt

from anima.ops.gamma import SINE, Functions, logarithm, whole
from anima.ops.incomplete import reciprocal_gamma, scale
from anima.ops.pairs import Number, Pair, fused, two_quotient, two_sum
from anima.ops.series import STIRLING


def _gamma_right(x: Number, f: Functions) -> Number:
    """Gamma(x), x > 0; Stirling's formula beyond 10."""
    high = f.select(x < 10.0, 10.0, f.select(x > 200.0, 200.0, x))
    exponent = logarithm(Pair(high, 0.0 * high), f).times(high - 0.5) + Pair(-high, 0.0 * high)
    power = f.exp(exponent.hi)
    inverse = 1.0 / high
    rest = exponent.lo + inverse * f.polynomial(inverse * inverse, STIRLING)
    far = fused(power, f.expm1(rest), power) * sqrt(2 * pi)
    low = f.select(x > 10.0, 10.0, x)
    return f.select(x > 171.7, inf, f.select(x > 10.0, far, 1.0 / (low * reciprocal_gamma(low, f))))


def _half_turns(x: Number, rest: Number, f: Functions) -> Number:
    """sin(pi (x + rest)) / pi, for a rest of a rounding."""
    n = f.rint(x)
    e = (x - n) + rest
    size = e * f.polynomial(e * e, SINE)
    return f.select(whole(n * 0.5, f), size, -size)


def gamma(x: Number, f: Functions, rest: Number = 0.0) -> Number:
    """The gamma function of x + rest; left of 0 by reflection, NaN at its poles but for 0."""
    a = f.abs(x)
    right = _gamma_right(f.select(a == 0.0, 1.0, a), f)
    negative = f.select(x < 0.0, x, -0.5)
    left = -1.0 / negative / (_half_turns(negative, rest, f) * right)
    result = f.select(x < 0.0, left, right)
    return f.select((x < 0.0) & whole(x, f), nan, f.select(x == 0.0, 1.0 / x, result))


def _beta_parts(a: Number, b: Number, f: Functions) -> tuple[Pair, Number]:
    """Exponent and factor of the beta function of positive numbers."""
    zero = 0.0 * a + 0.0 * b
    total = two_sum(a, b)

    def part(x: Number) -> Pair:
        return logarithm(two_quotient(Pair(x, zero), total), f).times(x)

    small, large = f.select(a < b, a, b), f.select(a < b, b, a)
    ratio = small / total.hi
    tail = part(large)
    flat = ratio < 1e-18  # where the quotient of `large` and the sum rounds to 1
    tail = Pair(f.select(flat, -small, tail.hi), f.select(flat, 0.0, tail.lo))
    exponent = part(small) + tail
    return exponent, scale(total.hi, total.hi, f) / (scale(a, a, f) * scale(b, b, f)) / small * (total.hi / large)


def _positive(x: Number, f: Functions) -> Number:
    return f.select((x > 0.0) & (x < 1e300), x, 1.0)


def beta(a: Number, b: Number, f: Functions) -> Number:
    """The beta function; of a negative number, by Gamma."""
    both = (a > 0.0) & (b > 0.0) & (a < 1e300) & (b < 1e300)
    exponent, factor = _beta_parts(_positive(a, f), _positive(b, f), f)
    power = f.exp(exponent.hi)
    regular = fused(power, exponent.lo, power) * factor
    regular = f.select(a == 1.0, 1.0 / b, f.select(b == 1.0, 1.0 / a, regular))
    other = gamma(a, f) * gamma(b, f) / gamma(a + b, f)
    low, high = f.select(a < b, a, b), f.select(a < b, b, a)
    limit = f.select((low == 0.0) & (high >= 0.0), inf, f.select((high == inf) & (low > 0.0), 0.0, other))
    return f.select(both, regular, limit)


def _stirling(x: Number, large: Number, f: Functions) -> Number:
    """log Gamma(x + 1) - x log x + x - log(2 pi x) / 2 where x is large, else 0."""
    inverse = 1.0 / f.select(large, x, 1.0)
    return f.select(large, inverse * f.polynomial(inverse * inverse, STIRLING), 0.0)


def betaln(a: Number, b: Number, f: Functions) -> Number:
    """The logarithm of the beta function of positive numbers; at 0 and infinity its limits.

    Gamma(x + 1) is the reciprocal of a polynomial up to 10, sqrt(2 pi x) x**x e**-x beyond, for x = a, b and a + b. Of
    the powers of the smaller x and the larger y of a and b, and of s = x + y, there remain x log(x / s) + y log(y / s)
    where x and y are large, x - x log s where x is small, and nothing where s is.
    """
    both = (a > 0.0) & (b > 0.0) & (a < 1e300) & (b < 1e300)
    least, most = f.select(a < b, a, b), f.select(a < b, b, a)
    x, y = f.select(both, least, 1.0), f.select(both, most, 1.0)
    s, tiny = x + y, x < 1e-280  # whose reciprocal may overflow
    big = [v > 10.0 for v in (x, y, s)]
    shared = f.log(f.select(big[0], x / s, s))
    low = f.select(big[0], x * shared, x - x * shared)
    high = f.select(big[1], y * f.log1p(-x / s), y - y * shared)
    exponent = f.select(big[2], low + high, 0.0)
    rest = _stirling(x, big[0], f) + _stirling(y, big[1], f) - _stirling(s, big[2], f)
    flat = [f.select(large, 1.0 / f.sqrt(f.select(large, v, 1.0) * (2 * pi)), reciprocal_gamma(v, f))
            for v, large in zip((x, y, s), big, strict=True)]
    factor = flat[2] / (flat[0] * flat[1]) / f.select(tiny, x * 2.0**200, x) * (s / y)
    regular = exponent + (f.select(tiny, rest + 200.0 * log(2.0), rest) + f.log(factor))
    other = f.select(x == 1.0, y, x)  # B(1, y) = 1 / y
    regular = f.select((x == 1.0) | (y == 1.0), 0.0 - f.log(other), regular)
    limit = f.select((most >= 1e300) & (least > 0.0), -inf, 0.0 * a + nan)
    limit = f.select((least == 0.0) & (most >= 0.0), inf, limit)
    return f.select(both, regular, limit)


def _slope(x: Number, f: Functions) -> Number:
    """About digamma(x), where a rounding of x matters."""
    return f.select(x > 2.0, f.log(x) - 0.5 / x, 0.0)


def _rising(z: Pair, s: Pair, f: Functions) -> Number:
    """Gamma(s) / Gamma(z), both positive."""
    zero = 0.0 * z.hi
    high = logarithm(Pair(s.hi, zero), f).times(s.hi)
    low = logarithm(Pair(z.hi, zero), f).times(z.hi)
    exponent = (high + -low) + two_sum(z.hi, -s.hi)
    rest = s.lo * _slope(s.hi, f) - z.lo * _slope(z.hi, f)
    power = f.exp(exponent.hi)
    quotient = scale(z.hi, z.hi, f) / scale(s.hi, s.hi, f) * (z.hi / s.hi)
    direct = fused(power, f.expm1(exponent.lo + rest), power) * quotient
    small = (z.hi < 30.0) & (s.hi < 30.0)
    near = _gamma_right(f.select(small, s.hi, 1.0), f) / _gamma_right(f.select(small, z.hi, 1.0), f)
    return f.select(small, fused(near, rest, near), direct)


def poch(z: Number, m: Number, f: Functions) -> Number:
    """Pochhammer's symbol: left of 0 by reflection; at the poles of both its limit for whole m."""
    total = two_sum(z, m)
    s = total.hi
    positive = (z > 0.0) & (s > 0.0)
    negative = (z <= 0.0) & (s <= 0.0)
    # (z)_m = sin(pi z) / sin(pi (z + m)) (1 - z - m)_m; the signs alone differ for whole m
    start = two_sum(0.0 * s + 1.0, -f.select(negative, s, 0.0))
    end = two_sum(0.0 * z + 1.0, -f.select(negative, z, 0.0))
    rest = f.select(positive | negative, total.lo, 0.0)
    right = _rising(Pair(f.select(positive, z, start.hi), f.select(positive, 0.0, start.lo - rest)),
                    Pair(f.select(positive, s, end.hi), f.select(positive, rest, end.lo)), f)
    turns = f.select(whole(m, f), f.select(whole(m * 0.5, f), 0.0 * m + 1.0, -1.0),
                     _half_turns(z, 0.0, f) / _half_turns(s, total.lo, f))
    left = right * turns
    mixed = gamma(s, f, total.lo) / gamma(f.select(z == 0.0, 1.0, z), f)
    mixed = f.select((z <= 0.0) & whole(z, f), 0.0, mixed)
    result = f.select(positive, right, f.select(negative, left, mixed))
    pole = negative & whole(z, f) & ~whole(m, f)
    return f.select(m == 0.0, 0.0 * z + 1.0, f.select(pole, 0.0, result))
