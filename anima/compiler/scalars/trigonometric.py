"""Trigonometric functions and their inverses.

The argument is reduced by a multiple of pi/2 in three parts (Cody & Waite, 1980), kept as a sum of two
numbers; only if some lane is too large for that is a function called that multiplies by as many bits of
2/pi as it takes (Payne & Hanek, 1983).

    sin(x) = +-sin(r) or +-cos(r),   n = nearest integer to x * 2/pi,   r = x - n * pi/2
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan

from anima.compiler.ir.assembly import Builder, Type
from anima.compiler.scalars.arithmetic import any_lane
from anima.compiler.scalars.base import Kind, Num, polynomial, quotient, select
from anima.ops.pairs import Pair, quick_two_sum, two_product

TWO_OVER_PI = 0.6366197723675814
# pi/2 as a sum of three numbers, and the largest argument that they serve.
HALF_PI = {"f32": (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15),
           "f64": (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)}
LARGE = {"f32": 40000.0, "f64": 2.0**25}
# sin(r) = r + r**3 * P(r**2) and cos(r) = 1 - r**2/2 + r**4 * P(r**2), |r| <= pi/4
SIN = {"f32": (-0.16666653752326965, 0.0083320839330554, -0.00019504323427099735),
       "f64": (-0.16666666666666624, 0.008333333333320042, -0.00019841269827856485, 2.7557312999926018e-06,
               -2.505064782491231e-08, 1.5890309866079122e-10)}
COS = {"f32": (0.04166664183139801, -0.0013887184904888272, 2.4418201064690948e-05),
       "f64": (0.041666666666666574, -0.0013888888888869534, 2.480158728663575e-05, -2.7557313535443455e-07,
               2.08756129492147e-09, -1.1353972045738566e-11)}
# atan(t) = t + t**3 * P(t**2), |t| <= tan(pi/8)
ATAN = {"f32": (-0.3333331346511841, 0.1999843418598175, -0.142427459359169, 0.1058739423751831,
                -0.06060602888464928),
        "f64": (-0.33333333333333187, 0.19999999999949733, -0.14285714279788947, 0.11111110762236422,
                -0.09090897125946089, 0.07692048634043892, -0.06662968878087125, 0.05846882295747701,
                -0.05034670189882678, 0.03794453917601957, -0.01777347345009855)}
# asin(t) = t + t**3 * P(t**2), |t| <= 1/2
ASIN = {"f32": (0.16666753590106964, 0.07495231926441193, 0.04547841474413872, 0.02414071373641491,
                0.04223094508051872),
        "f64": (0.16666666666666763, 0.0749999999997009, 0.04464285717529564, 0.030381942674815393,
                0.022372215918491818, 0.017351595287110732, 0.013981020914861086, 0.011397275002011202,
                0.010789414719777875, 0.0036718582765046426, 0.021791382707303495, -0.021117683005281183,
                0.03270272054778801)}
TAN_EIGHTH_PI = 0.41421356237309503

# 64 zero bits, then the first 1216 bits of 2/pi, in words of 64.
_BITS = (
    "0000000000000000"
    "A2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561B7246E3A424D"
    "D2E006492EEA09D1921CFE1DEB1CB129A73EE88235F52EBB4484E99C7026B45F7E413991D639"
    "835339F49C845F8BBDF9283B1FF897FFDE05980FEF2F118B5A0A6D1F6D367ECF27CB09B74F46"
    "3F669E5FEA2D7527BAC7EBE5F17B3D0739F78A5292EA6BFB5FB11F8D5D0856033046FC7B6BAB")
_WORDS = [int(_BITS[i:i + 16], 16) for i in range(0, len(_BITS), 16)]


# Reduction -----------------------------------------------------------------------------------------


def _reduce(x: Num) -> tuple[Pair, Num]:
    """r and n with x = r + n * pi/2, for |x| < LARGE."""
    first, second, third = HALF_PI[x.kind.name]
    n = (x * TWO_OVER_PI).rint()
    near = n.fma(-first, x)  # exact
    product = two_product(n, second)
    r = near - product.hi
    # Exact too, although |near| may be the smaller: it is a multiple of the other's last place.
    rest = (near - r) - product.hi
    return Pair(r, n.fma(-third, rest - product.lo)), n.to_int()


def _reduce_large(x: Num) -> tuple[Pair, Num]:
    """r and n (modulo 4) with x = r + n * pi/2, for any finite f64 (a scalar).

    x = m * 2**e with a whole m of 53 bits. Bits of 2/pi that only add multiples of 4 to x * 2/pi are
    skipped, 192 bits follow: enough to leave 60 good bits in the worst case, where the first 62 of the
    fraction vanish. The product modulo 2**192 is n in its top 2 bits, and the fraction.
    """
    b = x.b
    table = b.module.constant("anima.two_over_pi", "i64", [*_WORDS, 0])
    pattern = x.abs().pattern()
    mantissa = (pattern & ((1 << 52) - 1)) | (1 << 52)
    start = pattern.shift_right(52) - (1075 + 2 - 64)
    start = select((start < 0) | (start > 1040), 0, start)  # small, infinite or NaN: no matter
    word, shift = start.shift_right(6), start & 63
    words = [Num(b, b.load(Type("i64"), b.gep("i64", table, (word + i).v))) for i in range(4)]
    window = [words[i].call("fshl", words[i + 1], shift).cast("zext", "i128") for i in range(3)]
    wide = mantissa.cast("zext", "i128")
    product = ((wide * window[0]) << 64) + wide * window[1] + (wide * window[2]).shift_right(64)
    top, rest = product.shift_right(64).cast("trunc", "i64"), product.cast("trunc", "i64")
    fraction = (top << 2) | rest.shift_right(62)  # times 2**-64: in [-1/2, 1/2) as a signed number
    n = top.shift_right(62) + fraction.shift_right(63)
    high = (fraction & -(1 << 32)).to_float() * 2.0**-64
    low = (fraction & 0xFFFFFFFF).to_float() * 2.0**-64
    tail = (rest << 2).shift_right(11).to_float() * 2.0**-117
    part = quick_two_sum(high, low)
    part = quick_two_sum(part.hi, part.lo + tail)
    r = part * Pair(part.hi.const(HALF_PI["f64"][0]), part.hi.const(HALF_PI["f64"][1]))
    negative = x < 0.0
    return Pair(select(negative, -r.hi, r.hi), select(negative, -r.lo, r.lo)), select(negative, 0 - n, n)


def _with_reduction(name: str, combine: Callable[[Pair, Num], Num], x: Num) -> Num:
    """`combine(r, n)` for the reduced argument; the long way round only if some lane needs it."""
    b, kind = x.b, x.kind
    result = combine(*_reduce(x))
    large = x.abs() >= LARGE[kind.name]
    before, slow, done = b.block, b.label("large"), b.label("reduced")
    b.branch_if(any_lane(large), slow, done, likely=False)
    b.place(slow)
    # Rare, so one function serves every width: it works in memory, on one number after another.
    symbol = f"anima.support.{name}_large.{kind.name}.v0"
    memory = b.alloca(x.type)
    b.store(x.v, memory)
    b.module.declare(symbol, [memory.type, Type("i64")])
    b.call(symbol, [memory, b.const(Type("i64"), x.type.width)])
    mixed = select(large, Num(b, b.load(x.type, memory)), result)
    after = b.block
    b.branch(done)
    b.place(done)
    return Num(b, b.phi(x.type, (result.v, before), (mixed.v, after)))


def _large(combine: Callable[[Pair, Num], Num], x: Num) -> Num:
    """`combine(r, n)` by the long reduction; NaN for infinity."""
    wide = x if x.kind.name == "f64" else x.cast("fpext", "double")
    r, n = _reduce_large(wide)
    if x.kind.name == "f32":
        high = r.hi.cast("fptrunc", "float")
        low = (r.hi - high.cast("fpext", "double")).cast("fptrunc", "float")
        r, n = Pair(high, low), n.cast("trunc", "i32")
    return select(x.abs() < inf, combine(r, n), nan)


# Sine, cosine, tangent -----------------------------------------------------------------------------


def _sin_and_cos(r: Pair) -> tuple[Pair, Pair]:
    """sin and cos of a reduced argument."""
    name, x = r.hi.kind.name, r.hi
    z = x * x
    near = z.fma(-0.5, 1.0)
    sine = Pair(x, (z * x).fma(polynomial(z, SIN[name]), r.lo))
    cosine = Pair(near, (z * z).fma(polynomial(z, COS[name]), -(x * r.lo)))
    return sine, cosine


def _flip(x: Num, n: Num) -> Num:
    """x, or -x where bit 1 of n is set."""
    return (x.pattern() ^ ((n & 2) << x.kind.bits - 2)).number()


def _sin_of(r: Pair, n: Num) -> Num:
    sine, cosine = _sin_and_cos(r)
    return _flip(select((n & 1) == 0, sine.value(), cosine.value()), n)


def _cos_of(r: Pair, n: Num) -> Num:
    return _sin_of(r, n + 1)


def _tan_of(r: Pair, n: Num) -> Num:
    sine, cosine = _sin_and_cos(r)
    # What 1 - z/2 lost in rounding matters to a quotient.
    lost = (r.hi * r.hi).fma(-0.5, 1.0 - cosine.hi)
    cosine = quick_two_sum(cosine.hi, cosine.lo + lost)
    sine = quick_two_sum(sine.hi, sine.lo)
    even = (n & 1) == 0
    bottom = Pair(select(even, cosine.hi, sine.hi), select(even, cosine.lo, sine.lo))
    return quotient(select(even, sine.hi, -cosine.hi), bottom, select(even, sine.lo, -cosine.lo))


def sin(x: Num) -> Num:
    """The sine, of any argument."""
    return select(x == 0.0, x, _with_reduction("sin", _sin_of, x))


def cos(x: Num) -> Num:
    """The cosine, of any argument."""
    return _with_reduction("cos", _cos_of, x)


def tan(x: Num) -> Num:
    """The tangent, of any argument."""
    return select(x == 0.0, x, _with_reduction("tan", _tan_of, x))


def large_loop(b: Builder, name: str, kind: Kind) -> None:
    """The body of a function (ptr, count) that replaces numbers in memory by their `name` (sin, cos, tan)."""
    combine = {"sin": _sin_of, "cos": _cos_of, "tan": _tan_of}[name]
    pointer, count = b.params
    loop, done = b.label("loop"), b.label("done")
    b.branch(loop)
    b.place(loop)
    i = b.phi(Type("i64"), (0, "entry"))
    address = b.gep(kind.scalar, pointer, i)
    b.store(_large(combine, Num(b, b.load(Type(kind.scalar), address))).v, address)
    following = b.op("add", i, 1)
    i.add(following, b.block)
    b.branch_if(b.cmp("slt", following, count), loop, done)
    b.place(done)
    b.ret()


# Inverses ------------------------------------------------------------------------------------------


def _asin_core(x: Num) -> tuple[Num, Num, Num, Num]:
    """|x| > 1/2; t, which is |x|, or sqrt((1 - |x|)/2) if so; asin(t) - t; |x|."""
    a = x.abs()
    big = a > 0.5
    half = a.fma(-0.5, 0.5)
    z = select(big, half, a * a)
    t = select(big, half.sqrt(), a)
    return big, t, t * z * polynomial(z, ASIN[x.kind.name]), a


def asin(x: Num) -> Num:
    """The arcsine: pi/2 - 2 asin(sqrt((1 - |x|)/2)) for |x| > 1/2."""
    big, t, rest, _ = _asin_core(x)
    high, low, _ = HALF_PI[x.kind.name]
    first = t.fma(-2.0, high)
    lost = t.fma(-2.0, high - first)
    large = first + (lost - rest.fma(2.0, -low))
    return select(big, large, t + rest).copysign(x)


def acos(x: Num) -> Num:
    """The arccosine: 2 asin(sqrt((1 - x)/2)) for x > 1/2, and so on."""
    big, t, rest, _ = _asin_core(x)
    high, low, _ = HALF_PI[x.kind.name]
    negative = x < 0.0
    # base + factor * (t + rest), base one of 0, pi/2, pi
    base_high = select(big, select(negative, x.const(2 * high), 0.0), high)
    base_low = select(big, select(negative, x.const(2 * low), 0.0), low)
    factor = select(big, select(negative, x.const(-2.0), 2.0), select(negative, x.const(1.0), -1.0))
    return t.fma(factor, base_high) + rest.fma(factor, base_low)


def _atan_core(numerator: Num, denominator: Num, quarters: Num) -> Num:
    """quarters * pi/4 + atan(numerator / denominator)."""
    name = numerator.kind.name
    high, low, _ = HALF_PI[name]
    t = numerator / denominator
    z = t * t
    rest = (t * z).fma(polynomial(z, ATAN[name]), quarters * (low / 2))
    return quarters.fma(high / 2, t + rest)


def atan(x: Num) -> Num:
    """The arctangent: pi/4 + atan((a - 1)/(a + 1)) or pi/2 + atan(-1/a) for larger a = |x|."""
    a = x.abs()
    middle, large = a > TAN_EIGHTH_PI, a > 1 / TAN_EIGHTH_PI
    numerator = select(large, -1.0, select(middle, a - 1.0, a))
    denominator = select(large, a, select(middle, a + 1.0, 1.0))
    quarters = select(large, 2.0, select(middle, a.const(1.0), 0.0))
    return _atan_core(numerator, denominator, quarters).copysign(x)


def atan2(y: Num, x: Num) -> Num:
    """The angle of (x, y) in [-pi, pi]: atan of the smaller over the larger, plus quarters of pi."""
    ax, ay = x.abs(), y.abs()
    steep = ay > ax
    large, small = select(steep, ay, ax), select(steep, ax, ay)
    middle = (small > large * TAN_EIGHTH_PI) | (small == inf)
    unit = select(large > 1.0, large.const(0.5), 1.0)  # the sum below must not overflow
    total = select(middle, (small * unit) + (large * unit), large)
    difference = select(middle, (small * unit) - (large * unit), small)
    difference = select(small == inf, 0.0, difference)
    total = select((large == 0.0) | (small == inf), 1.0, total)
    left = x.pattern() < 0
    quarters = select(middle, large.const(1.0), 0.0)
    quarters = select(steep, 2.0 - quarters, quarters)
    quarters = select(left, 4.0 - quarters, quarters)
    turned = Num(x.b, x.b.op("xor", steep.v, left.v))
    angle = _atan_core(select(turned, -difference, difference), total, quarters)
    return select(x.compare("uno", y), nan, angle.copysign(y))
