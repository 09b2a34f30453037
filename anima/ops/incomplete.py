"""The incomplete gamma and beta functions in float64, over NumPy arrays and compiled numbers alike.

Series and continued fractions, repeated until no element changes any more. Their steps divide nothing: numerators and
denominators are carried apart, of numbers scaled by a power of two. What is raised to a power is so by a pair of
numbers for the exponent, whose terms nearly cancel where it matters; results that are rounded to float32 need fewer
terms, and one number. Formula numbers are those of the NIST Digital Library of Mathematical Functions.

    P(a, x) = x**a e**-x / Gamma(a + 1) * (1 + x/(a + 1) + ...)   for x < a (8.11.4)
"""

from __future__ import annotations

from math import inf, nan, pi

from anima.ops.gamma import LOGARITHM, RECIPROCAL_GAMMA, Functions, logarithm
from anima.ops.pairs import Number, Pair, fused, two_product, two_quotient, two_sum
from anima.ops.series import ERFC, LGAMMA_NEAR, STIRLING

# Temme's C_k(eta), as their Taylor series to what |eta| < 0.11 needs, of terms that are divided by 1000**k (8.12.11)
UNIFORM = (
    (-0.3333333333333333, 0.08333333333333333, -0.014814814814814815, 0.0011574074074074073, 0.0003527336860670194,
     -0.0001787551440329218, 3.919263178522438e-05, -2.185448510679992e-06, -1.85406221071516e-06,
     8.296711340953087e-07, -1.7665952736826078e-07),
    (-0.001851851851851852, -0.003472222222222222, 0.0026455026455026454, -0.0009902263374485596,
     0.00020576131687242798, -4.018775720164609e-07, -1.8098550334489977e-05, 7.64916091608111e-06),
    (0.004133597883597883, -0.0026813271604938273, 0.0007716049382716049, 2.0093878600823047e-06,
     -0.0001073665322636516),
    (0.0006494341563786008, 0.00022947209362139917))
HUGE = 2.0**332  # products of two numbers of this size are finite


def _tolerance(f: Functions) -> float:
    """Of the terms that are left out."""
    return 2e-11 if f.single else 1e-17


def _unit(x: Number, f: Functions) -> Number:
    """The power of two that makes x a number from 1/sqrt(2) to 2."""
    return f.power_of_two(-f.split(f.select(x > 1e300, 1e300, x))[1])


# Powers --------------------------------------------------------------------------------------------


def scale(a: Number, x: Number, f: Functions) -> Number:
    """x**a e**-x / Gamma(a + 1); its exponent as a pair, as its terms cancel, and Stirling's formula for large a."""
    large = a > _large(f)
    inverse = 1.0 / a
    if f.single:
        power = f.exp(a * _logarithm(f.select(large, x * inverse, x), (x - a) * inverse, large, f)
                      - f.select(large, _stirling(inverse, f), x))
    else:
        zero = a * 0.0
        ratio = two_quotient(Pair(x, zero), Pair(a, zero))
        base = Pair(f.select(large, ratio.hi, x), f.select(large, ratio.lo, 0.0))
        exponent = logarithm(base, f).times(a) + two_sum(f.select(large, a, 0.0), -x)
        exponent = exponent.plus(f.select(large, -_stirling(inverse, f), 0.0))
        power = f.exp(exponent.hi)
        power = fused(power, exponent.lo, power)
    return power * f.select(large, 1.0 / f.sqrt(a * (2 * pi)), reciprocal_gamma(a, f))


def _large(f: Functions) -> float:
    """From where Stirling's formula serves."""
    return 5.0 if f.single else 10.0


def _stirling(inverse: Number, f: Functions) -> Number:
    """log(Gamma(a + 1) e**a / (a**a sqrt(2 pi a))), for large a = 1 / inverse."""
    return inverse * f.polynomial(inverse * inverse, STIRLING)


def _logarithm(v: Number, z: Number, large: Number, f: Functions) -> Number:
    """log(v) - z where large, which is small to second order for small z = v - 1, and log(v) elsewhere."""
    s = z / (z + 2.0)
    square = s * s
    near = s * (square * f.polynomial(square, LOGARITHM[1:9]) - z)
    log = f.log(v)
    return f.select(large, f.select(f.abs(z) < 0.29, near, log - z), log)


def reciprocal_gamma(a: Number, f: Functions) -> Number:
    """1 / Gamma(1 + a), for a >= 0 that are not large."""
    large = _large(f)
    n = f.rint(f.select(a > large, large, a))
    e = a - n
    product = 0.0 * a + 1.0
    for k in range(1, int(large) + 1):
        product = f.select(n >= float(k), product * (e + float(k)), product)
    return f.polynomial(e, RECIPROCAL_GAMMA[:16] if f.single else RECIPROCAL_GAMMA) / product


# The incomplete gamma functions --------------------------------------------------------------------


def _sum(a: Number, x: Number, active: Number, f: Functions) -> Number:
    """S = the sum of x**n / ((a + 1) ... (a + n))."""
    one, zero, tolerance = 0.0 * a + 1.0, 0.0 * a, _tolerance(f)
    unit = _unit(f.select(a > 1.0, a, 1.0), f)
    first, ratio = a * unit, x * unit

    def step(n: Number, power: Number, top: Number, bottom: Number) -> tuple[list[Number], Number]:
        for _ in range(2):
            n = n + 1.0
            factor = fused(n, unit, first)
            power, bottom = power * ratio, bottom * factor
            top = fused(top, factor, power)
        return [n, power, top, bottom], power > top * tolerance

    _, _, top, bottom = f.repeat(active, [zero, one, one, one], step)
    return top / bottom


def _fraction(a: Number, x: Number, active: Number, f: Functions) -> Number:
    """Gamma(a, x) e**x / x**a by its continued fraction (8.9.2), whose numerators have a known determinant."""
    one, zero, tolerance = 0.0 * a + 1.0, 0.0 * a, _tolerance(f)
    unit = _unit(x, f)
    twice, scaled = unit * 2.0, a * unit
    first = (x + 1.0 - a) * unit

    def step(i: Number, b: Number, top: Number, last_top: Number, bottom: Number, last_bottom: Number,
             between: Number) -> tuple[list[Number], Number]:
        for _ in range(2):
            i, b = i + unit, b + twice
            factor = i * (scaled - i)
            top, last_top = fused(top, b, factor * last_top), top
            bottom, last_bottom = fused(bottom, b, factor * last_bottom), bottom
            between = between * factor
        more = f.abs(between) > top * last_bottom * tolerance
        return [i, b, top, last_top, bottom, last_bottom, between], more

    result = f.repeat(active, [zero, first, one, zero, first, one, one], step)
    return result[2] / result[4] * unit


def _rest(a: Number, x: Number, active: Number, f: Functions) -> Number:
    """1 - x**a/Gamma(a + 1) (1 - a x/(a + 1) + a x**2/(2! (a + 2)) - ...), not small for small a and x (8.7.1)."""
    tolerance = _tolerance(f)

    def step(n: Number, power: Number, total: Number) -> tuple[list[Number], Number]:
        inverse, power = 1.0 / (n * (a + n)), -power * x
        change = power * inverse
        return [n + 1.0, power * (a + n) * inverse, total + change], f.abs(change) > f.abs(total) * tolerance

    one = 0.0 * a + 1.0
    _, _, total = f.repeat(active, [one, one, one * 0.0], step)
    less = f.expm1(a * f.log(x) - a * (a - 1.0) * f.polynomial(a - 0.875, LGAMMA_NEAR))  # lgamma(a + 1), a not rounded
    return -(less + a * total * (less + 1.0))


def _uniform(a: Number, x: Number, size: Number, f: Functions) -> Number:
    """The smaller of P(a, x) and Q(a, x) for large a near x: Temme's expansion (8.12.3, 8.12.4)."""
    inverse = 1.0 / a
    z = (x - a) * inverse
    half = 1.0 / (z + 2.0)
    s = z * half
    square = s * s
    eta = z * f.sqrt(2.0 * half * (1.0 - s * half * f.polynomial(square, LOGARITHM[1:9])))
    y = f.abs(eta) * f.sqrt(a * 0.5)
    erfcx = f.polynomial((y - 4.0) / (y + 4.0), ERFC) / (y * 2.0 + 1.0)
    total = f.polynomial(eta, UNIFORM[3])
    for coefficients in UNIFORM[2::-1]:
        total = fused(total, inverse, f.polynomial(eta, coefficients))
    rest = _stirling(inverse, f)
    more = rest * (rest * (rest * (1.0 / 6.0) + 0.5) + 1.0)  # exp(rest) - 1
    root = f.sqrt(a * (2 * pi))
    tail = fused(erfcx * 0.5, root, f.select(z < 0.0, -total, total))
    return size * fused(more, tail, tail)


def regions(a: Number, x: Number, f: Functions) -> tuple[Number, Number, Number]:
    """Where the arguments are ordinary, and of these, where the series and where the fraction serves."""
    ordinary = (a > 0.0) & (x > 0.0) & (x < inf) & (a < inf)
    near = x < f.select(a < 1.3, 1.3, a)  # below, the fraction would take many steps, and gather their errors
    return ordinary, ordinary & near, ordinary & ~near


def _igammas(a: Number, x: Number, f: Functions) -> tuple[Number, Number, Number]:
    """P(a, x) and Q(a, x), but one as 1 minus the other, and where that is P."""
    ordinary, near, far = regions(a, x, f)
    size = scale(a, x, f)
    middle = (a > 1000.0) & (f.abs(x - a) < a * 0.1)
    low = size * _sum(a, x, near & ~middle, f)
    high = size * a * _fraction(a, x, far & ~middle, f)
    smaller = f.select(near, low, high)
    smaller = f.if_any(ordinary & middle, smaller, lambda: _uniform(a, x, size, f))
    return ordinary, near, smaller


def igamma(a: Number, x: Number, f: Functions) -> Number:
    """P(a, x), the regularized lower incomplete gamma function."""
    ordinary, near, smaller = _igammas(a, x, f)
    zero, full = _ends(a, x)
    ends = f.select(zero, 0.0, f.select(full, f.select(ordinary, 0.0 * a, 0.0) + 1.0, nan))
    return f.select(ordinary, f.select(near, smaller, 1.0 - smaller), ends)


def igammac(a: Number, x: Number, f: Functions) -> Number:
    """Q(a, x) = 1 - P(a, x)."""
    ordinary, near, smaller = _igammas(a, x, f)
    upper = f.select(near, 1.0 - smaller, smaller)
    small = near & (a < (0.03 if f.single else 1.0)) & (upper < 0.5)
    upper = f.if_any(small, upper, lambda: _rest(a, x, small, f))
    zero, full = _ends(a, x)
    ends = f.select(full, 0.0, f.select(zero, f.select(ordinary, 0.0 * a, 0.0) + 1.0, nan))
    return f.select(ordinary, upper, ends)


def _ends(a: Number, x: Number) -> tuple[Number, Number]:
    """Where P is 0 and where it is 1, if not both are ordinary."""
    zero = ((x == 0.0) & (a > 0.0)) | ((a == inf) & (x < inf) & (x >= 0.0))
    return zero, ((x == inf) & (a > 0.0) & (a < inf)) | ((a == 0.0) & (x > 0.0))


# Their derivatives in a ----------------------------------------------------------------------------


def series(a: Number, x: Number, active: Number, f: Functions) -> tuple[Number, Number]:
    """S = the sum of x**n / ((a + 1) ... (a + n)), and its derivative in a."""
    one, zero, tolerance = 0.0 * a + 1.0, 0.0 * a, _tolerance(f)

    def step(n: Number, term: Number, harmonic: Number, total: Number, slope: Number) -> tuple[list[Number], Number]:
        n = n + 1.0
        inverse = 1.0 / (a + n)
        term, harmonic = term * x * inverse, harmonic + inverse
        change = term * harmonic
        more = (term > total * tolerance) | (change > f.abs(slope) * tolerance)
        return [n, term, harmonic, total + term, slope - change], more

    _, _, _, total, slope = f.repeat(active, [zero, one, zero, one, zero], step)
    return total, slope


def fraction(a: Number, x: Number, active: Number, f: Functions) -> tuple[Number, Number]:
    """F = Gamma(a, x) e**x / x**a by its continued fraction (8.9.2; Lentz's method), and its derivative in a."""
    one, zero, tolerance = 0.0 * a + 1.0, 0.0 * a, max(_tolerance(f), 1e-16)
    bottom = x + 1.0 - a
    d = 1.0 / bottom

    def step(i: Number, b: Number, c: Number, c1: Number, d: Number, d1: Number, h: Number,
             h1: Number) -> tuple[list[Number], Number]:
        i, b = i + 1.0, b + 2.0
        top = i * (a - i)  # its derivative in a is i; that of b is -1
        d_new = 1.0 / (top * d + b)
        d1_new = -(d_new * d_new) * (i * d + top * d1 - 1.0)
        inverse = 1.0 / c
        quotient = top * inverse
        c_new = b + quotient
        c1_new = (i - quotient * c1) * inverse - 1.0
        factor = d_new * c_new
        factor1 = d1_new * c_new + d_new * c1_new
        h1_new = h1 * factor + h * factor1
        more = (f.abs(factor - 1.0) > tolerance) | (f.abs(h1_new - h1) > f.abs(h1_new) * tolerance)
        return [i, b, c_new, c1_new, d_new, d1_new, h * factor, h1_new], more

    # c starts infinite: a large number, of which only the reciprocal counts.
    state = [zero, bottom, one * 1e300, zero, d, d * d, d, d * d]
    result = f.repeat(active, state, step)
    return result[6], result[7]


# The incomplete beta function ----------------------------------------------------------------------


def _beta_density(a: Number, b: Number, x: Number, f: Functions) -> Number:
    """x**a (1 - x)**b / B(a, b), by v**v e**-v / Gamma(v + 1), which is flat, for large v of a, b and a + b."""
    zero = a * 0.0
    total = two_sum(a, b)
    large, many = [v > _large(f) for v in (a, b)], total.hi > _large(f)
    base = Pair(f.select(many, total.hi, 1.0), f.select(many, total.lo, 0.0))
    rest = f.select(many, _stirling(1.0 / total.hi, f), 0.0)
    flat = f.select(many, f.sqrt(total.hi * (2 * pi)), 1.0 / reciprocal_gamma(total.hi, f))
    for v, big in zip((a, b), large, strict=True):
        rest = rest - f.select(big, _stirling(1.0 / v, f), 0.0)
        flat = flat * f.select(big, 1.0 / f.sqrt(v * (2 * pi)), reciprocal_gamma(v, f))
    if f.single:
        y = 1.0 - x
        difference = fused(x, b, -(y * a))  # x = (a + difference) / total
        for v, z, e, big in zip((a, b), (x, y), (difference, -difference), large, strict=True):
            inverse = 1.0 / v
            log = _logarithm(z * base.hi * f.select(big, inverse, 1.0), e * inverse, big, f)
            rest = fused(v, log, rest) - f.select(many & ~big, total.hi * z, 0.0)
        power = f.exp(rest)
    else:
        def part(v: Number, z: Pair, big: Number) -> Pair:
            return logarithm(two_quotient(z * base, Pair(f.select(big, v, 1.0), zero)), f).times(v)

        exponent = part(a, Pair(x, zero), large[0]) + part(b, two_sum(zero + 1.0, -x), large[1])
        for v, big in zip((a, b), large, strict=True):
            exponent = exponent.plus(f.select(many & ~big, -v, 0.0))
        exponent = exponent.plus(rest)
        power = f.exp(exponent.hi)
        power = fused(power, exponent.lo, power)
    return power * flat * (a / total.hi * b)


def _rescaling(x: Number, one: Number, f: Functions) -> Number:
    """A power of two that keeps x from overflow and underflow."""
    size = f.abs(x)
    return f.select(size > HUGE, 1.0 / HUGE, f.select(size < 1.0 / HUGE, HUGE, one))


def _beta_fraction(p: Number, q: Number, x: Number, excess: Number, active: Number, f: Functions) -> Number:
    """I_x(p, q) B(p, q) / (x**p (1 - x)**q), `excess` being p - (p + q) x: every second convergent of 8.17.22.

    Those are a fraction too (Didonato & Morris, 1992, 9), of positive terms up to the q-th: with c_m = p + 2m + 1,
    1/(b_0 + a_1/(b_1 + ...)), a_m = m (q - m) x**2 (p + m - 1) (p + q + m - 1) / c_(m-1)**2, and
    b_m = m + m (q - m) x / c_(m-1) + (p + m) (excess + 1 + m (2 - x)) / c_m, here times c_(m-1) c_m but for b_0 c_0.
    """
    one, zero, tolerance = 0.0 * p + 1.0, 0.0 * p, _tolerance(f)
    unit = _unit(p + 1.0, f)
    first, second, total = p * unit, q * unit, (p + q) * unit
    start, growth, twice, limit = (excess + 1.0) * unit, 2.0 - x, unit * 2.0, unit * 1.5

    def terms(m: Number) -> tuple[Number, Number]:
        c = first + m * 2.0 + unit
        last_c = c - twice
        rest, last = second - m, m - unit  # whose sums with small p and q lose nothing of these
        a = m * (rest * x) * ((first + last) * ((total + last) * x))
        a = a * f.select(m > limit, c * (last_c - twice), c)
        return a, fused(m * c, fused(rest, x, last_c), (first + m) * fused(m, growth, start) * last_c)

    def step(m: Number, top: Number, last_top: Number, bottom: Number, last_bottom: Number,
             between: Number) -> tuple[list[Number], Number]:
        m = m + unit
        a, b = terms(m)
        top, last_top = fused(top, b, a * last_top), top
        bottom, last_bottom = fused(bottom, b, a * last_bottom), bottom
        between = between * a
        more = f.abs(between) > f.abs(top * last_bottom) * tolerance
        size = _rescaling(bottom, one, f)
        return [m, top * size, last_top * size, bottom * size, last_bottom * size, between * size * size], more

    end = first * start
    m, top, _, bottom, _, _ = f.repeat(active, [zero, one, zero, end, one, one], step)
    if not f.single:
        # Numerators and denominators gather errors: they say how many terms matter, then summed from the last one.
        def back(m: Number, top: Number, bottom: Number) -> tuple[list[Number], Number]:
            a, b = terms(m)
            top, bottom = a * bottom, fused(bottom, b, top)
            size = _rescaling(bottom, one, f)
            return [m - unit, top * size, bottom * size], m > limit

        _, rest, top = f.repeat(active, [m, zero, one], back)
        bottom = fused(top, end, rest)
    return top / bottom * ((first + unit) * unit)


def betainc(a: Number, b: Number, x: Number, f: Functions) -> Number:
    """I_x(a, b), the regularized incomplete beta function: its continued fraction, of the smaller tail."""
    ordinary = (a > 0.0) & (b > 0.0) & (x > 0.0) & (x < 1.0) & (a < inf) & (b < inf)
    # Up to the mean, so that a small result is no difference from 1, but not where the fraction converges slowly.
    mean = a / (a + b)
    swap = (x > (a + 1.0) / (a + b + 2.0)) & (x > f.select(mean < 0.999, mean, 0.999))
    p, q = f.select(swap, b, a), f.select(swap, a, b)
    near = f.select(swap, 1.0 - x, x)
    total, product = two_sum(a, b), two_product(a + b, x)
    excess = ((a - product.hi) - product.lo) - total.lo * x
    fraction = _beta_fraction(p, q, near, f.select(swap, -excess, excess), ordinary, f)
    result = _beta_density(a, b, x, f) * fraction
    result = f.select(swap, 1.0 - result, result)
    # At the limits of a and b all weight is at one end.
    upper, lower = (b == 0.0) | (a == inf), (a == 0.0) | (b == inf)
    one_if = f.select((x == 1.0) | (lower & (x > 0.0)), f.select(ordinary, 0.0 * a, 0.0) + 1.0, 0.0)
    inside = (x == 0.0) | (x == 1.0) | ((upper | lower) & (x > 0.0) & (x < 1.0))
    valid = (a >= 0.0) & (b >= 0.0) & ~(upper & lower)
    return f.select(ordinary, result, f.select(valid & inside, one_if, nan))
