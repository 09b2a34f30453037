"""Functions defined by integrals, over NumPy arrays of float64 and compiled numbers alike.

    expn(n, x)     the integral of exp(-x t) / t**n over t > 1         (exponential integrals)
    dawsn(n, x)    the derivative of order n of Dawson's integral
    erfcx(n, x)    exp(x**2) i^n erfc(x), the repeated integrals of the complementary error function

What has derivatives that cancel has its order as an operand. Formula numbers are those of the NIST Digital Library of
Mathematical Functions; coefficients are in `expansions.py`.
"""

from __future__ import annotations

import math
from math import inf, nan, pi

from anima.ops import expansions as table
from anima.ops.gamma import Functions, whole
from anima.ops.gamma_quotients import gamma
from anima.ops.pairs import Number, fused, two_product
from anima.ops.series import ERFC, ERFC_LOW, ERFC_NEAR


def _clip(x: Number, low: float, high: float, f: Functions) -> Number:
    """`x` between two bounds; NaN stays."""
    return f.select(x < low, low, f.select(x > high, high, x))


def exp_square(x: Number, factor: float, f: Functions) -> Number:
    """exp(factor * x**2), with the rounding error of the square."""
    square = two_product(x, x)
    power = f.exp(square.hi * factor)
    return f.select(power < inf, fused(power, square.lo * factor, power), power)


# ---------------------------------------------------------------- error functions


def scaled_erfc(x: Number, f: Functions) -> Number:
    """exp(x**2) erfc(x) for x >= 0."""
    finite, small = f.select(x > 1e300, 1e300, x), f.select(x < 0.5, x, 0.5)
    far = (f.polynomial((finite - 4.0) / (finite + 4.0), ERFC) + ERFC_LOW) / (x * 2.0 + 1.0)
    return f.select(x < 0.5, fused(small, f.polynomial(small, ERFC_NEAR), 1.0), far)


def erfcx(n: Number, x: Number, f: Functions) -> Number:
    """I[n] = exp(x**2) i^n erfc(x), from I[-1] = 2/sqrt(pi) = 2 x I[0] + 2 I[1], I[n-1] = 2 x I[n] + 2 (n+1) I[n+1]."""
    a = f.abs(x)
    right = scaled_erfc(a, f)
    left = exp_square(f.select(a > 27.0, 27.0, a), 1.0, f) * 2.0 - right
    left = f.select(a > 26.7, inf, left)
    zeroth = f.select(x < 0.0, left, right)
    first = math.sqrt(1 / pi) - x * zeroth

    def step(k: Number, last: Number, now: Number) -> tuple[list[Number], Number]:
        return [k + 1.0, now, (last - x * now * 2.0) / (k * 2.0 + 2.0)], k + 1.0 < n

    zero = 0.0 * f.select(a < inf, a, 0.0) + 0.0 * n
    inner = f.repeat((n > 1.0) & (x < 1.0), [zero + 1.0, zeroth, first], step)[2]

    def back(k: Number, ratio: Number, product: Number) -> tuple[list[Number], Number]:
        ratio = 1.0 / (far * 2.0 + ratio * (k * 2.0 + 2.0))
        return [k - 1.0, ratio, f.select(k <= n, product * ratio, product)], k > 0.5

    far = f.select(x < 1.0, 1.0, x)
    count = n + f.rint(240.0 / (far * far)) + 20.0
    outer = f.repeat((n > 0.0) & (x >= 1.0), [count, zero, zero + 2 / math.sqrt(pi)], back)[2]  # ratios I[k] / I[k-1]
    result = f.select(n == 0.0, zeroth, f.select(x >= 1.0, outer, inner))
    return f.select((n >= 0.0) & whole(n, f), result, nan)


def _beyond(a: Number, f: Functions) -> tuple[Number, Number]:
    """What the normal distribution has beyond a >= 0, with the rounding error of a**2, and exp(a**2 / 2) times that."""
    scaled = scaled_erfc(a * math.sqrt(0.5), f) * 0.5
    return exp_square(f.select(a > 40.0, 40.0, a), -0.5, f) * scaled, scaled


def ndtr(x: Number, f: Functions) -> Number:
    """The normal distribution function, erfc(-x / sqrt(2)) / 2."""
    tail, _ = _beyond(f.abs(x), f)
    return f.select(x < 0.0, tail, 1.0 - tail)


def log_ndtr(x: Number, f: Functions) -> Number:
    """Its logarithm."""
    a = f.abs(x)
    tail, scaled = _beyond(a, f)
    result = f.log1p(f.select(x < 0.0, scaled - 1.0, -tail))
    return f.select(x < 0.0, result - a * a * 0.5, result)


def dawsn(n: Number, x: Number, f: Functions) -> Number:
    """Of order n, from D[1] = 1 - 2 x D[0], D[n+1] = -2 x D[n] - 2 n D[n-1]; beyond 6.5 from 7.12.1's series."""
    a = f.abs(x)
    low, middle = _clip(a, 0.0, 3.0, f), _clip(a, 3.0, 6.5, f)
    inner = f.select(a < 3.0, low * f.polynomial(low * low * (2 / 9) - 1.0, table.DAWSON_NEAR),
                     f.polynomial((middle - 4.75) / 1.75, table.DAWSON_MIDDLE) / middle)
    far = f.select(a < 6.5, 6.5, a)

    def step(k: Number, last: Number, now: Number, term: Number) -> tuple[list[Number], Number]:
        return [k + 1.0, now, (a * now + k * last) * -2.0, -(term * (k + 1.0)) / far], k + 1.0 < n

    one = 0.0 * f.select(a < inf, a, 0.0) + 0.0 * n + 1.0
    start = f.select(n == 0.0, 0.5 / far, -0.5 / far / far)
    _, _, higher, start = f.repeat(n > 1.0, [one, inner, 1.0 - a * inner * 2.0, start], step)

    def series(k: Number, term: Number, total: Number) -> tuple[list[Number], Number]:
        term = term * ((k * 2.0 + n + 1.0) / far) * ((k * 2.0 + n + 2.0) / far) / (k * 4.0 + 4.0)
        return [k + 1.0, term, total + term], (f.abs(term) > f.abs(total) * 1e-17) & (k < 40.0)

    outer = f.repeat(a > 6.5, [one - 1.0, start, start], series)[2]
    result = f.select(a > 6.5, outer, f.select(n == 0.0, inner, higher))
    even = whole(n * 0.5, f)
    result = f.select((x < 0.0) & even, -result, result)
    result = f.select((n == 0.0) & (x == 0.0), x, result)
    return f.select((n >= 0.0) & whole(n, f), result, nan)


def ndtri(p: Number, f: Functions) -> Number:
    """The inverse of the normal distribution function."""
    q = p - 0.5
    near = _clip(q, -0.425, 0.425, f)
    centre = near * f.polynomial(near * near / 0.0903125 - 1.0, table.NDTRI_CENTRE)

    def outside() -> Number:
        tail = _clip(f.select(q < 0.0, p, 1.0 - p), 5e-324, 0.075, f)
        w = f.sqrt(f.log(tail) * -2.0)
        middle, far = _clip(w, 2.276, 8.0, f), _clip(w, 8.0, 38.61, f)
        size = w * f.select(w < 8.0, f.polynomial((middle - 5.138) / 2.862, table.NDTRI_MIDDLE),
                            f.polynomial((far - 23.305) / 15.305, table.NDTRI_TAIL))
        size = f.select((p == 0.0) | (p == 1.0), inf, size)
        return f.select((p >= 0.0) & (p <= 1.0), f.select(q < 0.0, -size, size), nan)

    return f.if_any(f.abs(q) >= 0.425, centre, outside)


def owens_t(h: Number, a: Number, f: Functions) -> Number:
    """Owen's T function: exp(-h**2 (1 + x**2) / 2) / (2 pi (1 + x**2)) summed over 0 < x < a (Owen, 1956).

    By Gauss's rule where a is below 1, T(h, a) = (Q(h) + Q(ah)) / 2 - Q(h) Q(ah) - T(ah, 1/a) elsewhere.
    """
    first, b = f.abs(h), f.select(f.abs(a) > 1e300, 1e300, f.abs(a))
    first = f.select(first > 100.0, 100.0, first)
    second = f.select(b > 1.0, f.select(first * b > 100.0, 100.0, first * b), first)
    swap = b > 1.0
    end = f.select(swap, 1.0 / f.select(swap, b, 1.0), b)
    reach = 9.0 / f.select(second < 1.0, 1.0, second)  # beyond, nothing is left of the integrand
    half = f.select(end > reach, reach, end) * 0.5
    total = 0.0 * half
    for node, weight in zip(table.NODES, table.WEIGHTS, strict=True):
        for x in (half + half * node, half - half * node):
            u = x * second
            total = total + f.exp(u * u * -0.5) / (x * x + 1.0) * weight
    core = exp_square(second, -0.5, f) * total * half / (2 * pi)

    def upper(k: Number) -> Number:
        return exp_square(k, -0.5, f) * erfcx(0.0 * k, k * math.sqrt(0.5), f) * 0.5

    one, other = upper(first), upper(second)
    result = f.select(swap, (one + other) * 0.5 - one * other - core, core)
    result = f.select(a < 0.0, -result, result)
    return f.select((h == h) & (a == a), result, nan)


# ---------------------------------------------------------------- exponential, sine and cosine integrals


def expn(n: Number, x: Number, f: Functions) -> Number:
    """E[n](x): by n E[n+1] = exp(-x) - x E[n] (8.19.12) below 1, and a continued fraction (8.19.17) elsewhere; of
    orders that are not whole, left of 1, by 8.19.10."""
    power = f.exp(-x)
    low, high = _clip(x, 0.0, 1.0, f), _clip(x, 1.0, 1e4, f)
    first = f.select(x < 1.0, f.polynomial(low * 2.0 - 1.0, table.E1_NEAR) - f.log(low),
                     power * f.polynomial((high - 4.0) / (high + 2.0), table.E1_FAR) / high)
    one = 0.0 * low + 0.0 * n + 1.0

    def up(k: Number, e: Number) -> tuple[list[Number], Number]:
        return [k + 1.0, (power - x * e) / k], k + 1.0 < n

    integer = whole(n, f)
    rising = (n > 1.0) & (n < 20.0) & (x < 1.0) & integer
    ascended = f.repeat(rising, [one, first], up)[1]

    def down(k: Number, e: Number) -> tuple[list[Number], Number]:
        return [k - 1.0, (power - (k - 1.0) * e) / x], k - 1.0 > n

    falling = (n < 0.0) & (x > 0.0) & integer
    descended = f.repeat(falling, [one - 1.0, power / x], down)[1]

    def back(k: Number, v: Number) -> tuple[list[Number], Number]:
        return [k - 1.0, x + n + k * 2.0 - (k + 1.0) * (n + k) / v], k > 0.5

    mixed = ~integer & (x < 1.0) & (x > 0.0) & (n < 20.0)

    def series(k: Number, term: Number, total: Number) -> tuple[list[Number], Number]:
        term = -term * x / k
        change = term / (k + 1.0 - n)
        return [k + 1.0, term, total + change], f.abs(change) > f.abs(total) * 1e-17

    order = f.select(mixed, n, 0.5)
    total = f.repeat(mixed, [one, one, 1.0 / (1.0 - order)], series)[2]
    general = gamma(1.0 - order, f) * f.exp((order - 1.0) * f.log(f.select(mixed, x, 1.0))) - total

    fraction = (((n > 1.0) & ~rising) | (~integer & (x >= 1.0))) & ~mixed & (x < inf)
    count = one * 100.0
    bottom = f.repeat(fraction, [count, x + n + count * 2.0 + 2.0], back)[1]
    result = f.select(fraction, power / bottom, f.select(n > 0.0, f.select(n == 1.0, first, ascended), descended))
    result = f.select(mixed, general, result)
    result = f.select(x == 0.0, f.select(n > 1.0, 1.0 / (n - 1.0), inf), f.select(x == inf, 0.0, result))
    return f.select((x >= 0.0) & (n == n), result, nan)


def expi(x: Number, f: Functions) -> Number:
    """Ei(x): -E[1](-x) left of 0; its root factored out below 6; exp(x) / x times a flat function beyond."""
    left = -expn(0.0 * x + 1.0, f.select(x < 0.0, -x, 1.0), f)
    low = _clip(x, 0.0, 6.0, f)
    root, rest = table.EI_ROOT
    distance = (low - root) - rest
    logarithm = f.select(low < 0.2, f.log(low / root), f.log1p(f.select(low < 0.2, 0.0, distance) / root))
    near = fused(distance, f.polynomial(low / 3.0 - 1.0, table.EI_NEAR), logarithm)
    high = _clip(x, 6.0, 800.0, f)
    large = high > 700.0  # where exp(x) may overflow, but not yet exp(x) / x
    power = f.exp(f.select(large, high - 10.0, high)) / high
    flat = 0.0 * high
    for start, end, coefficients in zip(table.EI_ENDS, table.EI_ENDS[1:], table.EI_FAR, strict=False):
        low_inverse, width = 1.0 / end, 1.0 / start - 1.0 / end
        t = (1.0 / f.select(high < start, start, high) - low_inverse) * (2.0 / width) - 1.0
        flat = f.select(high >= start, f.polynomial(t, coefficients), flat)
    far = power * flat * f.select(large, math.exp(10.0), 0.0 * high + 1.0)
    result = f.select(x < 0.0, left, f.select(x < 6.0, near, far))
    return f.select(x == 0.0, -inf, result)


def _auxiliary(x: Number, f: Functions) -> tuple[Number, Number]:
    """f(x) and g(x) of 6.2.17 and 6.2.18, for x >= 4."""
    t = (x - 12.0) / (x + 4.0)
    return f.polynomial(t, table.SICI_F) / x, f.polynomial(t, table.SICI_G) / x / x


def sine_integral(x: Number, f: Functions) -> Number:
    a = f.abs(x)
    low, high = f.select(a > 4.0, 4.0, a), _clip(a, 4.0, 1e300, f)
    cosine, sine = _auxiliary(high, f)
    far = (pi / 2 - cosine * f.cos(high)) - sine * f.sin(high)
    result = f.select(a < 4.0, low * f.polynomial(low * low * 0.125 - 1.0, table.SI_NEAR), far)
    return f.select(x == 0.0, x, f.select(x < 0.0, -result, result))


def cosine_integral(x: Number, f: Functions) -> Number:
    """Ci(|x|), which is the real part of Ci(x) left of 0."""
    a = f.abs(x)
    low, high = f.select(a > 4.0, 4.0, a), _clip(a, 4.0, 1e300, f)
    root, rest = table.CI_ROOT
    distance = (low - root) - rest
    logarithm = f.select(low < 0.3, f.log(low / root), f.log1p(f.select(low < 0.3, 0.0, distance) / root))
    near = fused(distance * (low + root), f.polynomial(low * low * 0.125 - 1.0, table.CI_NEAR), logarithm)
    sine, cosine = _auxiliary(high, f)
    result = f.select(a < 4.0, near, sine * f.sin(high) - cosine * f.cos(high))
    return f.select(a == inf, f.select(x > 0.0, 0.0 * low, nan), result)


# ---------------------------------------------------------------- Fresnel's and Spence's


def _quarter_turns(x: Number, f: Functions) -> Number:
    """x**2 less a multiple of 4."""
    square = two_product(x, x)
    high = square.hi - f.rint(square.hi * 0.25) * 4.0
    return high + (square.lo - f.rint(square.lo * 0.25) * 4.0)


def _fresnel(x: Number, f: Functions) -> tuple[Number, Number]:
    """S and C."""
    a = f.abs(x)
    low, high = f.select(a > 1.6, 1.6, a), _clip(a, 1.6, 1e100, f)
    square = low * low
    t = square * square / 3.2768 - 1.0
    angle = _quarter_turns(high, f) * (pi / 2)
    sine, cosine = f.sin(angle), f.cos(angle)
    square_high = high * high
    u = (square_high - 6.56) / (square_high + 1.44)
    wide = f.polynomial(u, table.FRESNEL_F) / (high * pi)
    thin = f.polynomial(u, table.FRESNEL_G) / (high * pi) / (square_high * pi)
    s = f.select(a < 1.6, low * square * f.polynomial(t, table.FRESNEL_S), 0.5 - (wide * cosine + thin * sine))
    c = f.select(a < 1.6, low * f.polynomial(t, table.FRESNEL_C), 0.5 + (wide * sine - thin * cosine))
    return f.select(x < 0.0, -s, s), f.select(x < 0.0, -c, c)


def fresnel_sine(x: Number, f: Functions) -> Number:
    return _fresnel(x, f)[0]


def fresnel_cosine(x: Number, f: Functions) -> Number:
    return _fresnel(x, f)[1]


def spence(x: Number, f: Functions) -> Number:
    """The dilogarithm of 1 - x: inversion (25.12.4) beyond 3/2, reflection (25.12.6) below 1/2."""
    y = f.select(x > 2.0, 1.0 / f.select(x > 2.0, x, 1.0), x)
    outer = x > 1.5
    between = (y > 1.5) & (y <= 2.0)
    small = y < 0.5
    w = f.select(between, 1.0 / f.select(between, y, 1.0) - 1.0, f.select(small, -y, y - 1.0))
    w = _clip(w, -0.5, 0.5, f)
    result = 0.0 - w * f.polynomial(w * 2.0, table.SPENCE)
    safe = f.select(small & (y > 0.0), y, 0.25)
    result = f.select(small, pi * pi / 6 - f.log(safe) * f.log1p(-safe) - result, result)
    result = f.select(y == 0.0, pi * pi / 6, result)
    logarithm = f.log(f.select(outer, x, 1.0))
    result = f.select(outer, -(logarithm * logarithm * 0.5) - result, result)
    return f.select(x >= 0.0, result, nan)
