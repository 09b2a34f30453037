"""Exponentials, logarithms, hyperbolic functions, powers and roots.

Arguments are reduced by a multiple of ln 2 in two parts (Cody & Waite, 1980) and the rest is a minimax
polynomial (Remez) whose leading terms are exact, so that errors stay about or under 2 units in the last place;
logarithms in powers come from a table, as Tang's (1990). No branches: special cases are selected.

    exp(x) = 2**n * (1 + r + r*r*P(r)),   n = nearest integer to x/ln 2,   r = x - n*ln 2
"""

from __future__ import annotations

from decimal import Context, Decimal, localcontext
from functools import cache
from itertools import pairwise
from math import inf, nan

import numpy as np

from anima.compiler.scalars.base import Num, lookup, polynomial, quotient, select
from anima.ops.pairs import Pair, quick_two_sum, two_product

LOG2E = 1.4426950408889634
LN2_SHORT = (0.6931471805598903, 5.497923018708371e-14)  # the first a multiple of 2**-42
ROOT_HALF = {"f32": 0x3F3504F3, "f64": 0x3FE6A09E667F3BCD}  # the bits of sqrt(1/2)
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
# log(1 + f) = f - f**2/2 + f**3 * P(f), sqrt(1/2) <= 1 + f <= sqrt(2); no quotient, which takes long
LOG = {
    "f32": (0.33333316445350647, -0.25000813603401184, 0.20002314448356628, -0.16624405980110168,
            0.1418028175830841, -0.1312989890575409, 0.1289091557264328, -0.07868511229753494),
    "f64": (0.33333333333333254, -0.24999999999987738, 0.20000000000026083, -0.16666666669867305,
            0.14285714285051504, -0.12499999690887677, 0.11111110858449758, -0.10000015019275141,
            0.09090933176351228, -0.08332925663985351, 0.07691359945776699, -0.07149110588082157,
            0.06686331265462078, -0.0620126375935652, 0.056599675799831994, -0.056454500727918744,
            0.06507481108895051, -0.060732178398439696, 0.02692198669680502)}
# 2**r = 1 + r * P(r) to 2**-45, |r| <= 1/2: for powers
EXP2_POW_F32 = (0.6931471805461005, 0.24022650546750832, 0.05550410941183671, 0.00961816546260099,
                0.0013333451745301433, 0.00015378358296026535, 1.5309561715657744e-05, 1.8484391200613057e-06)
# sinh(x) = x + x**3 * P(x**2), |x| <= 1
SINH = {
    "f32": (0.1666666716337204, 0.008333350531756878, 0.00019836155115626752, 2.816974529196159e-06),
    "f64": (0.16666666666666669, 0.008333333333333148, 0.000198412698414321, 2.7557319157000134e-06,
            2.5052123147965983e-08, 1.6057258909104832e-10, 7.758774343118773e-13)}
# The bits of a**(-1/3) are about these minus a third of those of a: 1 - a r**3 is then at most 0.102.
CBRT_BITS = {"f32": 0x54A1F671, "f64": 0x553EE978D4FDF3B7}


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
    """t / (t + 2), t = e**2|x| - 1; from 2 on 1 - 2 / (t + 2), so that 1 - tanh**2 is good too."""
    t = _expm1((x.abs() * 2.0).at_most(19.0 if x.kind.name == "f32" else 40.0))
    total = t + 2.0
    small = t < 2.0
    ratio = select(small, t, 2.0) / total
    # What the sum lost in rounding matters while it is about 2.
    near = (-ratio).fma((t - (total - 2.0)) * 0.5, ratio)
    return select(small, near, 1.0 - ratio).copysign(x)


def logistic(x: Num) -> Num:
    """1 / (1 + e**-x), from e**-|x| so that nothing overflows and small results keep their accuracy."""
    e = exp(-x.abs())
    total = quick_two_sum(e.const(1.0), e)
    ratio = select(x < 0.0, e, 1.0) / total.hi
    return (-ratio).fma(total.lo * 0.75, ratio)  # 1/2 <= 1 / total <= 1


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


def normalised(x: Num, normal: bool = False) -> tuple[Num, Num]:
    """z and k with x = 2**k * z, sqrt(1/2) <= z < sqrt(2), for finite positive x; z is such for any x."""
    kind = x.kind
    small = x < kind.tiny
    up = kind.mantissa + 1
    scaled = x if normal else select(small, x * 2.0**up, x)
    offset = scaled.pattern() - ROOT_HALF[kind.name]
    k = (offset >> kind.mantissa).to_float()
    z = ((offset & ((1 << kind.mantissa) - 1)) + ROOT_HALF[kind.name]).number()
    return z, k if normal else k - select(small, k.const(up), 0.0)


def split(x: Num, normal: bool = False) -> tuple[Num, Num]:
    """f and k with x = 2**k * (1 + f), as `normalised`."""
    z, k = normalised(x, normal)
    return z - 1.0, k


def _log_of(f: Num, k: Num, x: Num | None = None, zero: float = 0.0) -> Num:
    """log(2**k * (1 + f)), but at infinity, at its pole `zero`, and below that what `x` says."""
    high, low = LN2[f.kind.name]
    last = k if x is None else _log_specials(k, x, zero)  # early: nothing waits for this
    z = f * f
    rest = (z * f).fma(polynomial(f, LOG[f.kind.name]), k * low)
    return last.fma(high, f + z.fma(-0.5, rest))


def _log_specials(k: Num, x: Num, zero: float = 0.0) -> Num:
    """A logarithm's values, or parts that decide on them, at infinity, at its pole, and below it."""
    k = select(x == inf, inf, k)
    k = select(x == zero, -inf, k)
    return select(x.compare("ult", zero), nan, k)


def log(x: Num) -> Num:
    """The natural logarithm."""
    return _log_of(*split(x), x)


def log1p(x: Num) -> Num:
    """log(1 + x): the rounding error of 1 + x is added to the reduced argument."""
    u = x + 1.0
    return log_of_sum(u, select(x == inf, 0.0, x - (u - 1.0)), x, -1.0).copysign(x)


def log_of_sum(u: Num, error: Num, x: Num | None = None, zero: float = 0.0) -> Num:
    """log(u + error) of positive numbers, the second less than an ulp of the first; specials as `_log_of`."""
    f, k = split(u)
    return _log_of(error.fma(_scale((-k).at_least(-100.0)), f), k, x, zero)


def log2(x: Num) -> Num:
    """The logarithm to base 2: k + log(1 + f)/ln 2, the product in two parts."""
    f, k = split(x)
    name = x.kind.name
    y = _log_of(f, k.const(0.0))
    hi = y * LOG2E
    rest = y.fma(LOG2E, -hi) + y * (1.925963033500011e-08 if name == "f32" else 2.0355273740931033e-17)
    return _log_specials(k, x) + (hi + rest)


def asinh(x: Num) -> Num:
    """sign(x) * log1p(a + a*a / (1 + sqrt(1 + a*a))), a = |x|; log(2a) once a*a would overflow or drown 1."""
    a = x.abs()
    limit = 2.0**13 if x.kind.name == "f32" else 2.0**28
    near = a.at_most(limit)
    z = near * near
    small = log1p(near + z / ((z + 1.0).sqrt() + 1.0))
    f, k = split(a)
    large = _log_of(f, k + 1.0, a)
    return select(a > limit, large, small).copysign(x)


def acosh(x: Num) -> Num:
    """log1p(t + sqrt(2t + t*t)), t = x - 1; log(2x) for large x; NaN below 1."""
    limit = 2.0**13 if x.kind.name == "f32" else 2.0**28
    t = x.at_most(limit) - 1.0
    small = log1p(t + (t.fma(t, t * 2.0)).sqrt())
    f, k = split(x)
    large = _log_of(f, k + 1.0, x)
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
    """a r**2 and a step of Newton's from there, r = a**(-1/3): minus a third of the exponent by arithmetic on the bits
    (Kahan), then two steps that divide by nothing: with h = 1 - a r**3, the series of r (1 - h)**(-1/3)."""
    kind = x.kind
    a = x.abs()
    up, least = (48, 2.0**-78) if kind.name == "f32" else (108, 2.0**-960)
    small = a < least  # the rests below must not be subnormal
    scaled = select(small, a * 2.0**up, a)
    # The pattern is the logarithm, near enough; a third of its upper half is one of 32 bits, times 2**32.
    pattern = scaled.pattern()
    third = pattern / 3 if kind.name == "f32" else pattern.shift_right(32) * 0x55555556
    r = (third.const(CBRT_BITS[kind.name]) - third).number()
    for order in (4, 2 if kind.name == "f32" else 4):
        h = (-(scaled * r)).fma(r * r, 1.0)
        r = (r * h).fma(polynomial(h, (1 / 3, 2 / 9, 14 / 81)[:order - 1]), r)
    y = scaled * r * r
    square = two_product(y, y)  # in f32 its rounding is a sixth of a unit of the result
    rest = (-y).fma(square.hi, scaled)
    rest = rest if kind.name == "f32" else (-y).fma(square.lo, rest)
    y = rest.fma(r * r * (1.0 / 3.0), y)
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
    z, k = normalised(wide, normal=True)
    r, first, _ = _divided(z)
    logarithm = r.fma(polynomial(r, [LOG2E * (-1) ** n / (n + 1) for n in range(6)]),
                      first.fma(LOG2E, _log_specials(k, wide)))
    t = (exponent * logarithm).at_most(300.0).at_least(-300.0)
    n = t.rint()
    r = t - n
    return r.fma(polynomial(r, EXP2_POW_F32), 1.0).times_power_of_two(n).cast("fptrunc", "float")


@cache
def _log_table() -> list[float]:
    """1/c, log c, and what that lost in rounding, for the c of each of 128 parts of [sqrt(1/2), sqrt(2)).

    1/c has so few bits that z/c - 1 is exact, at most 0.0081; it is 1 for the parts at 1, whose logarithms are small
    differences else. log c is a multiple of 2**-42, as the first part of ln 2 is: k ln 2 + log c is exact too.
    """
    bounds = (ROOT_HALF["f64"] + (np.arange(129) << 45)).view(np.float64)
    parts = []
    with localcontext(Context(prec=50)):
        for low, high in pairwise(bounds.tolist()):
            bits = 2.0**7 if high < 1.0 else 2.0**8
            inverse = 1.0 if low < 1.0 + 2.0**-7 and high > 1.0 - 2.0**-9 else round(bits * 2.0 / (low + high)) / bits
            logarithm = -Decimal(inverse).ln()
            first = round(float(logarithm) * 2.0**42) / 2.0**42
            parts.append((inverse, first, float(logarithm - Decimal(first))))
    return [number for column in zip(*parts, strict=True) for number in column]


def _divided(z: Num) -> tuple[Num, Num, Num]:
    """r = z/c - 1, and log c in two parts, for the c nearest to z in the table (Tang, 1990)."""
    table = z.b.module.constant("anima.logarithms", "double", _log_table())
    place = (z.pattern() - ROOT_HALF["f64"]).shift_right(45)
    inverse, first, rest = (lookup(table, place + 128 * column) for column in range(3))
    return z.fma(inverse, -1.0), first, rest


def _log_pair(a: Num) -> Pair:
    """log a to 2**-66 for finite positive a: k ln 2 + log c + log(1 + r)."""
    z, k = normalised(a)
    r, first, rest = _divided(z)
    square = two_product(r * -0.5, r)
    coarse = k.fma(LN2_SHORT[0], first)  # exact
    linear = quick_two_sum(coarse, r)
    total = quick_two_sum(linear.hi, square.hi)
    cubic = r * r * r * polynomial(r, [(-1) ** n / (n + 3) for n in range(8)])
    return quick_two_sum(total.hi, k.fma(LN2_SHORT[1], rest) + linear.lo + square.lo + total.lo + cubic)


def _power_f64(a: Num, y: Num) -> Num:
    high, low = LN2["f64"]
    total = _log_pair(a)
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
