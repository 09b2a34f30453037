"""Exponentials, logarithms, hyperbolic functions, powers and roots.

Arguments are reduced by a multiple of ln 2 in two parts (Cody & Waite, 1980) and the rest is a minimax
polynomial (Remez) whose leading terms are exact, so that errors stay about or under 2 units in the last place;
logarithms in powers come from a table, as Tang's (1990). No branches: special cases are selected.

    exp(x) = 2**n * (1 + r + r*r*P(r)),   n = nearest integer to x/ln 2,   r = x - n*ln 2
"""

from __future__ import annotations

from decimal import Context, Decimal, localcontext
from functools import cache
from itertools import accumulate, pairwise
from math import inf, nan

import numpy as np

from anima.compiler.scalars.arithmetic import if_any
from anima.compiler.scalars.base import Kind, Num, lookup, polynomial, quotient, select
from anima.ops.pairs import quick_two_sum, two_product

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
# 2**r = 1 + r * P(r) to 2**-34, |r| <= 1/2: for powers
EXP2_POW_F32 = (0.6931471807016106, 0.24022651076692697, 0.05550410390614832, 0.009618036474529247,
                0.001333390314553957, 0.00015467331139567812, 1.520621986877923e-05)
# sinh(x) = x + x**3 * P(x**2), |x| <= 1
SINH = {
    "f32": (0.1666666716337204, 0.008333350531756878, 0.00019836155115626752, 2.816974529196159e-06),
    "f64": (0.16666666666666669, 0.008333333333333148, 0.000198412698414321, 2.7557319157000134e-06,
            2.5052123147965983e-08, 1.6057258909104832e-10, 7.758774343118773e-13)}
# tanh(x) = x + x**3 * P(x**2), |x| < 0.55
TANH = {
    "f32": (-0.33333316445350647, 0.13332544267177582, -0.0538475476205349, 0.02105071395635605, -0.00624285452067852),
    "f64": (-0.333333333333333, 0.1333333333332658, -0.053968253963736605, 0.021869488385139878, -0.00886323258910359,
            0.003592091899166292, -0.0014555419570388612, 0.0005884406530776099, -0.00023337137325479373,
            8.330122768533892e-05, -1.948492533272988e-05)}
# e**2r, |r| <= ln(2)/4
EXP_TWICE = {
    "f32": (1.0, 2.0, 2.000000238418579, 1.3333091735839844, 0.6666364669799805, 0.26812857389450073,
            0.08999121189117432),
    "f64": (1.0, 2.0000000000000013, 2.000000000000002, 1.3333333333325834, 0.666666666665177, 0.2666666668069948,
            0.08888888916714716, 0.025396814703406226, 0.006349185146322113, 0.0014112899673621043,
            0.00028289341905306676, 4.706520845887842e-05)}
# The bits of a**(-1/3) are about these minus a third of those of a.
CBRT_BITS = 0x553EE978D4FDF3B7


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
    scale = power_of_two(n - float(halvings) if halvings else n)
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


def power_of_two(n: Num) -> Num:
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
    """x + x**3 P(x**2) below 0.55; from there on 1 - 2 / (e**2x + 1), so that 1 - tanh**2 is good too."""
    kind, a = x.kind, x.abs()
    square = x * x
    small = a.fma(square * polynomial(square, TANH[kind.name]), a)
    near = a.at_most(9.02 if kind.name == "f32" else 19.07)  # there the result is 1
    # n, the nearest integer to 2x/ln 2, comes to stand in the last bits of a sum, and 2**n = 2**n's bits are they.
    shift = 1.5 * 2.0**kind.mantissa + kind.bias
    place = near.fma(2.0 * LOG2E, shift)
    r = (place - shift).fma(-0.5 * LN2[kind.name][0], near)  # ln 2 in one part: the larger n, the less e**2x says
    total = polynomial(r, EXP_TWICE[kind.name]).fma((place.pattern() << kind.mantissa).number(), 1.0)
    return select(a < 0.55, small, 1.0 - 2.0 / total).copysign(x)


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
    bits, pattern = x.kind.mantissa, x.pattern()
    if normal:
        z, k = _normalised(pattern, x.kind)
        return z, k.to_float()
    # Subnormal numbers are found by their patterns: z waits for it, and flags of floating-point comparisons come late.
    small = pattern < 1 << bits
    z, k = _normalised(select(small, (x * 2.0 ** (bits + 1)).pattern(), pattern), x.kind)
    return z, (k - select(small, k.const(bits + 1), 0)).to_float()


def _normalised(pattern: Num, kind: Kind) -> tuple[Num, Num]:
    """`normalised` for the pattern of a number that is not subnormal; k as an integer."""
    offset = pattern - ROOT_HALF[kind.name]
    return ((offset & ((1 << kind.mantissa) - 1)) + ROOT_HALF[kind.name]).number(), offset >> kind.mantissa


def split(x: Num) -> tuple[Num, Num]:
    """f and k with x = 2**k * (1 + f), as `normalised`."""
    z, k = normalised(x)
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
    z, k = _normalised(u.pattern(), u.kind)
    # The sum is 2**k * (z + error * 2**-k); where that is no normal number, the error is of none.
    scale = ((k.const(u.kind.bias) - k).call("smax", k.const(0)) << u.kind.mantissa).number()
    return _log_of(error.fma(scale, z - 1.0), k.to_float(), x, zero)


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
    """1 / sqrt(x) by a step of Newton's method, with the product's rounding error: rounded correctly, but for one
    significand of f32, wherever it starts. Where an instruction knows 14 bits, nothing is divided."""
    guess = x.rsqrt_guess()
    near = 1.0 / x.sqrt() if guess is None else guess
    product = x * near
    special = product.compare("uno", product)  # 0 and infinity: what is near is exact
    if guess is not None:
        error = (-product).fma(near, 1.0)  # 1 - x * near**2
        near = (near * error).fma(0.5 if x.kind.name == "f32" else error.fma(0.375, 0.5), near)
        product = x * near
    error = (-x.fma(near, -product)).fma(near, (-product).fma(near, 1.0))
    return select(special, near if guess is None else guess, (near * error.fma(0.375, 0.5)).fma(error, near))


def cbrt(x: Num) -> Num:
    """From r = a**(-1/3), near enough: minus a third of the exponent by arithmetic on the bits (Kahan)."""
    a = x.abs()
    y = (_cbrt_f32 if x.kind.name == "f32" else _cbrt_f64)(a)
    return select(a.compare("ult", inf) & (a != 0.0), y.copysign(x), x)


def _inverse_cbrt(a: Num) -> Num:
    """a**(-1/3) of f64, so that 1 - a r**3 is at most 0.102 for positive numbers that are normal."""
    # The pattern is the logarithm, near enough; a third of its upper half is one of 32 bits, times 2**32.
    third = a.pattern().shift_right(32) * 0x55555556
    return (third.const(CBRT_BITS) - third).number()


def _cbrt_f32(a: Num) -> Num:
    """In f64 a r**2 (1 - h)**(-2/3), h = 1 - a r**3, by its series to 2**-31."""
    wide = a.cast("fpext", "double")
    r = _inverse_cbrt(wide)
    near = wide * r
    h = (-near).fma(r * r, 1.0)
    near = near * r
    series = [*accumulate(range(1, 9), lambda c, n: c * (n - 1 / 3) / n, initial=1.0)][1:]
    return (near * h).fma(polynomial(h, series), near).cast("fptrunc", "float")


def _cbrt_f64(a: Num) -> Num:
    """a r**2 and a step of Newton's from there, after two steps for r that divide by nothing: the series of
    r (1 - h)**(-1/3), h = 1 - a r**3."""
    small = a < 2.0**-960  # the rests below must not be subnormal
    scaled = select(small, a * 2.0**108, a)
    r = _inverse_cbrt(scaled)
    for _ in range(2):
        h = (-(scaled * r)).fma(r * r, 1.0)
        r = (r * h).fma(polynomial(h, (1 / 3, 2 / 9, 14 / 81)), r)
    y = scaled * r * r
    square = two_product(y, y)
    rest = (-y).fma(square.lo, (-y).fma(square.hi, scaled))
    y = rest.fma(r * r * (1.0 / 3.0), y)
    return select(small, y * 2.0**-36, y)


def power(x: Num, y: Num) -> Num:
    """x**y as C's pow: exp(y * log|x|), with the logarithm to 11 bits more than the result needs.

    Nothing is looked at on the way where x and the result are ordinary numbers.
    """
    power_of = _power_f32 if x.kind.name == "f32" else _power_f64
    size, ordinary = power_of(x, y, True)
    return if_any(~ordinary, size, lambda: _power_specials(x, y, power_of(x.abs(), y, False)[0]))


def _power_specials(x: Num, y: Num, size: Num) -> Num:
    """x**y from |x|**y."""
    half = y * 0.5
    whole = y == y.rint()
    odd = whole & (half != half.rint())
    negative = x.pattern() < 0
    size = select(negative & odd, -size, size)
    size = select((x < 0.0) & ~whole & (x.abs() < inf), nan, size)
    size = select((x.abs() == 1.0) & (y.abs() == inf), 1.0, size)
    return select((y == 0.0) | (x == 1.0), 1.0, size)


def _power_f32(a: Num, y: Num, plain: bool) -> tuple[Num, Num]:
    """a**y of a >= 0, and whether that was right if it was taken for `plain`: a number, and none near the ends."""
    wide, exponent = a.cast("fpext", "double"), y.cast("fpext", "double")
    z, k = normalised(wide, normal=True)
    r, first, _ = _divided(z)
    square = r * r
    terms = [LOG2E * (-1) ** n / (n + 1) for n in range(5)]
    near = r.fma(terms[0], first.fma(LOG2E, k if plain else _log_specials(k, wide)))
    t = exponent * square.fma(polynomial(r, terms[1:]), near)
    ordinary = (a > 0.0) & (a < inf) & (t.abs() < 300.0)
    t = t if plain else t.at_most(300.0).at_least(-300.0)
    n = t.rint()
    r = t - n
    return (power_of_two(n) * polynomial(r, (1.0, *EXP2_POW_F32))).cast("fptrunc", "float"), ordinary


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


def _power_f64(a: Num, y: Num, plain: bool) -> tuple[Num, Num]:
    """As `_power_f32`. The logarithm is a sum of two numbers, to 2**-66, of which the second is small:
    k ln 2 + log c + log(1 + r)."""
    z, k = normalised(a, normal=plain)
    r, first, rest = _divided(z)
    square = two_product(r * -0.5, r)
    linear = quick_two_sum(k.fma(LN2_SHORT[0], first), r)  # the sum of the first is exact
    total = quick_two_sum(linear.hi, square.hi)
    small = (r * r * r).fma(polynomial(r, [(-1) ** n / (n + 3) for n in range(8)]), k.fma(LN2_SHORT[1], rest))
    small = total.lo + (small + (linear.lo + square.lo))
    product = two_product(total.hi if plain else _log_specials(total.hi, a), y)
    t, lo = product.hi, small.fma(y, product.lo)
    ordinary = (a >= a.kind.tiny) & (a < inf) & (t.abs() < 700.0)
    if not plain:
        lo = select((a > 0.0) & (a < inf) & (t.abs() < 800.0), lo, 0.0)
        t = t.at_most(800.0).at_least(-800.0)
    high, low = LN2["f64"]
    n = (t * LOG2E).rint()
    reduced = quick_two_sum(n.fma(-high, t), n.fma(-low, lo))
    r = reduced.hi
    p = r + (r * r).fma(polynomial(r, EXP["f64"]), reduced.lo)
    if not plain:
        return (p + 1.0).times_power_of_two(n), ordinary
    scale = power_of_two(n)
    return scale.fma(p, scale), ordinary
