"""Exponentials, logarithms, hyperbolic functions, powers and roots.

Arguments are reduced by a multiple of ln 2 in two parts (Cody & Waite, 1980) and the rest is a minimax
polynomial (Remez) whose leading terms are exact, so that errors stay under 2 units in the last place;
logarithms of f64 use atanh of (m - 1)/(m + 1), as Tang (1990). No branches: special cases are selected.

    exp(x) = 2**n * (1 + r + r*r*P(r)),   n = nearest integer to x/ln 2,   r = x - n*ln 2
"""

from __future__ import annotations

from math import inf, nan

from anima.compiler.scalars.base import Num, polynomial, quotient, select
from anima.ops.pairs import Pair, quick_two_sum, two_product, two_quotient, two_sum

LOG2E = 1.4426950408889634
LN2 = {"f32": (0.6931471824645996, -1.9046542121259336e-09),
       "f64": (0.6931471805599453, 2.3190468138462996e-17)}

# e**r = 1 + r + r**2 * P(r), |r| <= ln(2)/2, error relative to e**r - 1: 2**-26, 2**-60
EXP = {
    "f32": (0.5, 0.16666536033153534, 0.041666604578495026, 0.008367396891117096, 0.0013922168873250484),
    "f64": (0.5, 0.16666666666666677, 0.041666666666666685, 0.008333333333321594, 0.001388888888885433,
            0.0001984126988648636, 2.4801587402574896e-05, 2.755724344375213e-06, 2.755720327194497e-07,
            2.510944840495823e-08, 2.0935889408618257e-09)}
# 2**r = 1 + r * P(r), |r| <= 1/2
EXP2 = {
    "f32": (0.6931471824645996, 0.24022650718688965, 0.05550377815961838, 0.009618114680051804,
            0.0013381667667999864, 0.00015438995615113527),
    "f64": (0.6931471805599453, 0.24022650695910072, 0.05550410866482345, 0.00961812910762764,
            0.0013333558145989573, 0.00015403530394899785, 1.5252734228961698e-05, 1.3215485667397833e-06,
            1.0177900402060741e-07, 7.055281442564537e-09, 4.478780014161788e-10, 2.5244724833765847e-11)}
# log(1 + f) = f - f**2/2 + f**3 * P(f), sqrt(1/2) <= 1 + f <= sqrt(2)
LOG_F32 = (0.33333316445350647, -0.25000813603401184, 0.20002314448356628, -0.16624405980110168,
           0.1418028175830841, -0.1312989890575409, 0.1289091557264328, -0.07868511229753494)
# log(1 + f) = 2s + s**3 * P(s**2), s = f / (2 + f)
LOG_F64 = (0.6666666666666735, 0.3999999999941115, 0.2857142874325195, 0.22222198476849478,
           0.18183569706344407, 0.15313903840729298, 0.14797504072925358)
# the same to 2**-45, and = 2s + 2/3 s**3 + s**5 * P(s**2) to 2**-65: for powers
LOG_POW_F32 = (0.6666666667584458, 0.39999995605064115, 0.28572111113454046, 0.22176100200377058,
               0.1958551665328468)
LOG_POW_F64 = (0.4000000000000227, 0.28571428570092205, 0.2222222252130204, 0.18181784241263327,
               0.15386763351065538, 0.13256672743888437, 0.13197716462077394)
EXP2_POW_F32 = (0.6931471805461005, 0.24022650546750832, 0.05550410941183671, 0.00961816546260099,
                0.0013333451745301433, 0.00015378358296026535, 1.5309561715657744e-05, 1.8484391200613057e-06)
# sinh(x) = x + x**3 * P(x**2), |x| <= 1
SINH = {
    "f32": (0.1666666716337204, 0.008333350531756878, 0.00019836155115626752, 2.816974529196159e-06),
    "f64": (0.16666666666666669, 0.008333333333333148, 0.000198412698414321, 2.7557319157000134e-06,
            2.5052123147965983e-08, 1.6057258909104832e-10, 7.758774343118773e-13)}


# Exponentials --------------------------------------------------------------------------------------


def reduced_exp(x: Num) -> tuple[Num, Num]:
    """n and p with exp(x) = 2**n * (1 + p), for x of moderate size."""
    name = x.kind.name
    n = (x * LOG2E).rint()
    r = n.fma(-LN2[name][1], n.fma(-LN2[name][0], x))
    return n, (r * r).fma(polynomial(r, EXP[name]), r)


def _expm1(x: Num, halvings: int = 0) -> Num:
    """(e**x - 1) / 2**halvings for x of moderate size; the reduced argument is kept in two parts."""
    name = x.kind.name
    high, low = LN2[name]
    n = (x * LOG2E).rint()
    near = n.fma(-high, x)  # exact
    r = n.fma(-low, near)
    rest = (r * r).fma(polynomial(r, EXP[name]), n.fma(-low, near - r))
    scale = _scale(n - float(halvings) if halvings else n)
    return scale.fma(rest, scale.fma(r, scale - 2.0**-halvings))


def exp(x: Num, halvings: int = 0) -> Num:
    """e**x / 2**halvings, without overflow where the result has none."""
    low, high = (-104.0, 89.0 + halvings) if x.kind.name == "f32" else (-746.0, 710.0 + halvings)
    n, p = reduced_exp(x.at_most(high).at_least(low))
    return (p + 1.0).times_power_of_two(n - float(halvings) if halvings else n)


def exp2(x: Num) -> Num:
    """2**x."""
    low, high = (-151.0, 129.0) if x.kind.name == "f32" else (-1076.0, 1025.0)
    x = x.at_most(high).at_least(low)
    n = x.rint()
    r = x - n
    return r.fma(polynomial(r, EXP2[x.kind.name]), 1.0).times_power_of_two(n)


def _scale(n: Num) -> Num:
    """2**n for a float n that holds the exponent of a normal number."""
    kind = n.kind
    return ((n.to_int() + kind.bias) << kind.mantissa).number()


def expm1(x: Num) -> Num:
    """e**x - 1."""
    low, high = (-18.0, 89.0) if x.kind.name == "f32" else (-40.0, 710.0)
    result = _expm1(x.at_most(high).at_least(low), halvings=1) * 2.0
    # The half of a subnormal number may not be exact; also, this keeps -0.
    return select(x.abs() < x.kind.tiny * 4.0, x, result)


def tanh(x: Num) -> Num:
    """t / (t + 2), t = e**2|x| - 1."""
    t = _expm1((x.abs() * 2.0).at_most(19.0 if x.kind.name == "f32" else 40.0))
    total = t + 2.0
    return quotient(t, Pair(total, t - (total - 2.0))).copysign(x)


def logistic(x: Num) -> Num:
    """1 / (1 + e**-x), from e**-|x| so that nothing overflows and small results keep their accuracy."""
    e = exp(-x.abs())
    return quotient(select(x < 0.0, e, 1.0), quick_two_sum(e.const(1.0), e))


def sinh(x: Num) -> Num:
    """Odd polynomial for |x| < 1; h - 1/(4h) beyond, h = e**|x| / 2."""
    a = x.abs()
    h = exp(a, halvings=1)
    z = x * x
    small = (a * z).fma(polynomial(z, SINH[x.kind.name]), a)
    return select(a < 1.0, small, h - 0.25 / h).copysign(x)


def cosh(x: Num) -> Num:
    """h + 1/(4h), h = e**|x| / 2."""
    h = exp(x.abs(), halvings=1)
    return h + 0.25 / h


# Logarithms ----------------------------------------------------------------------------------------


def split(x: Num) -> tuple[Num, Num]:
    """f and k with x = 2**k * (1 + f), sqrt(1/2) <= 1 + f < sqrt(2), for finite positive x."""
    kind = x.kind
    small = x < kind.tiny
    up = kind.mantissa + 1
    scaled = select(small, x * 2.0**up, x)
    root_half = 0x3F3504F3 if kind.name == "f32" else 0x3FE6A09E667F3BCD
    offset = scaled.pattern() - root_half
    k = (offset >> kind.mantissa).to_float()
    mantissa = ((offset & ((1 << kind.mantissa) - 1)) + root_half).number()
    return mantissa - 1.0, k - select(small, k.const(up), 0.0)


def _log_of(f: Num, k: Num) -> Num:
    """log(2**k * (1 + f))."""
    high, low = LN2[f.kind.name]
    if f.kind.name == "f32":
        z = f * f
        rest = (z * f).fma(polynomial(f, LOG_F32), k * low)
        return k.fma(high, f + z.fma(-0.5, rest))
    s = f / (f + 2.0)
    z = s * s
    square = f * f * 0.5
    rest = s.fma(square + z * polynomial(z, LOG_F64), k * low)
    return k.fma(high, f - (square - rest))


def _log_specials(result: Num, x: Num, zero: float = 0.0) -> Num:
    """A logarithm's values at infinity, at its pole, and below it."""
    result = select(x == inf, inf, result)
    result = select(x == zero, -inf, result)
    return select(x.compare("ult", zero), nan, result)


def log(x: Num) -> Num:
    """The natural logarithm."""
    f, k = split(x)
    return _log_specials(_log_of(f, k), x)


def log1p(x: Num) -> Num:
    """log(1 + x): the rounding error of 1 + x is added to the reduced argument."""
    u = x + 1.0
    return _log_specials(log_of_sum(u, x - (u - 1.0)), x, -1.0).copysign(x)


def log_of_sum(u: Num, error: Num) -> Num:
    """log(u + error) of positive numbers, the second less than an ulp of the first."""
    f, k = split(u)
    return _log_of(error.fma(_scale((-k).at_least(-100.0)), f), k)


def log2(x: Num) -> Num:
    """The logarithm to base 2: k + log(1 + f)/ln 2, the product in two parts."""
    f, k = split(x)
    name = x.kind.name
    y = _log_of(f, k.const(0.0))
    hi = y * LOG2E
    rest = y.fma(LOG2E, -hi) + y * (1.925963033500011e-08 if name == "f32" else 2.0355273740931033e-17)
    return _log_specials(k + (hi + rest), x)


def asinh(x: Num) -> Num:
    """sign(x) * log1p(a + a*a / (1 + sqrt(1 + a*a))), a = |x|; log(2a) once a*a would overflow or drown 1."""
    a = x.abs()
    limit = 2.0**13 if x.kind.name == "f32" else 2.0**28
    near = a.at_most(limit)
    z = near * near
    small = log1p(near + z / ((z + 1.0).sqrt() + 1.0))
    f, k = split(a)
    large = select(a == inf, inf, _log_of(f, k + 1.0))
    return select(a > limit, large, small).copysign(x)


def acosh(x: Num) -> Num:
    """log1p(t + sqrt(2t + t*t)), t = x - 1; log(2x) for large x; NaN below 1."""
    limit = 2.0**13 if x.kind.name == "f32" else 2.0**28
    t = x.at_most(limit) - 1.0
    small = log1p(t + (t.fma(t, t * 2.0)).sqrt())
    f, k = split(x)
    large = select(x == inf, inf, _log_of(f, k + 1.0))
    return select(x.compare("ult", 1.0), nan, select(x > limit, large, small))


def atanh(x: Num) -> Num:
    """log1p(2a / (1 - a)) / 2 with the sign of x, a = |x|."""
    a = x.abs()
    ratio = quotient(a * 2.0, quick_two_sum(a.const(1.0), -a))
    return (log1p(select(a == 1.0, inf, ratio)) * 0.5).copysign(x)


# Powers and roots ----------------------------------------------------------------------------------


def rsqrt(x: Num) -> Num:
    """1 / sqrt(x)."""
    return 1.0 / x.sqrt()


def cbrt(x: Num) -> Num:
    """A third of the exponent by arithmetic on the bits (Kahan), then two steps of Halley's iteration."""
    kind = x.kind
    a = x.abs()
    small = a < kind.tiny
    up = 24 if kind.name == "f32" else 54
    scaled = select(small, a * 2.0**up, a)
    # A third of the bit pattern, as a float: the pattern is the logarithm, near enough.
    third = (scaled.pattern().to_float() * (1.0 / 3.0)).to_int()
    y = (third + (0x2A5137A0 if kind.name == "f32" else 0x2A9F7893782DA1CE)).number()
    for _ in range(2 if kind.name == "f32" else 3):
        other = scaled / (y * y)
        y = y + y * ((other - y) / (other + y * 2.0))
    y = select(small, y * 2.0 ** -(up // 3), y).copysign(x)
    return select(a.compare("ult", inf) & (a != 0.0), y, x)


def power(x: Num, y: Num) -> Num:
    """x**y as C's pow: exp(y * log|x|), with the logarithm to 11 bits more than the result needs."""
    a = x.abs()
    size = _power_f32(a, y) if x.kind.name == "f32" else _power_f64(a, y)
    half = y * 0.5
    whole = y == y.rint()
    odd = whole & (half != half.rint())
    negative = x.pattern() < 0
    size = select(negative & odd, -size, size)
    size = select((x < 0.0) & ~whole & (a < inf), nan, size)
    size = select((a == 1.0) & (y.abs() == inf), 1.0, size)
    return select((y == 0.0) | (x == 1.0), 1.0, size)


def _power_f32(a: Num, y: Num) -> Num:
    wide, exponent = a.cast("fpext", "double"), y.cast("fpext", "double")
    f, k = split(wide)
    s = f / (f + 2.0)
    z = s * s
    logarithm = (s * 2.0 + s * z * polynomial(z, LOG_POW_F32)).fma(LOG2E, k)
    logarithm = _log_specials(logarithm, wide)
    t = (exponent * logarithm).at_most(300.0).at_least(-300.0)
    n = t.rint()
    r = t - n
    return r.fma(polynomial(r, EXP2_POW_F32), 1.0).times_power_of_two(n).cast("fptrunc", "float")


def _power_f64(a: Num, y: Num) -> Num:
    high, low = LN2["f64"]
    f, k = split(a)
    zero = f.const(0.0)
    s = two_quotient(Pair(f, zero), two_sum(f.const(2.0), f))
    z = s * s
    series = z.times(polynomial(z.hi, LOG_POW_F64))
    series = Pair(f.const(0.6666666666666666), f.const(3.700743415417188e-17)) + series
    cubic = s * z * series
    linear = Pair(s.hi * 2.0, s.lo * 2.0) + cubic
    multiple = two_product(k, high)
    total = Pair(multiple.hi, k.fma(low, multiple.lo)) + linear
    hi = _log_specials(total.hi, a)
    ordinary = (a > 0.0) & (a < inf)
    product = two_product(hi, y)
    lo = select(ordinary, total.lo, 0.0).fma(y, product.lo)
    lo = select(product.hi.abs() < 800.0, lo, 0.0)
    t = product.hi.at_most(800.0).at_least(-800.0)
    n = (t * LOG2E).rint()
    first = n.fma(-high, t)
    reduced = quick_two_sum(first, n.fma(-low, lo))
    r = reduced.hi
    p = r + (r * r).fma(polynomial(r, EXP["f64"]), reduced.lo)
    return (p + 1.0).times_power_of_two(n)
