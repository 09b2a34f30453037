"""Arithmetic, comparison, bits, rounding: operations whose results are exact or rounded once.

Integers wrap around and nothing traps: `x div 0` is -1 (all ones if unsigned), `x rem 0` is `x`,
`INT_MIN div -1` is `INT_MIN`, and a shift by the width or more moves every bit out. Booleans are i1.

    rem(x, y) = x - trunc(x / y) * y, exactly, also where x / y is as large as 2**277
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from math import inf, nan

from anima.compiler.ir.assembly import Type, Value
from anima.compiler.scalars.base import Num, select

Function = Callable[..., Num]
State = list[Num]
MOST_STEPS = 20000


def _is_constant(x: Num) -> bool:
    return not x.v.name.startswith("%")


def _divides_plainly(y: Num) -> bool:
    """Whether a divisor is known to be neither 0 nor -1, at which processors trap."""
    number = re.fullmatch(r"(?:splat \(i\d+ )?(-?\d+)\)?", y.v.name)
    return number is not None and int(number[1]) not in (0, -1)


# Integers: `signed` is a keyword because LLVM's integers carry no sign ------------------------------


def integer_div(x: Num, y: Num, signed: bool) -> Num:
    """The quotient, truncated toward zero; -1 (all ones) for division by zero."""
    bits, b = x.type.bits, x.b
    if _divides_plainly(y):
        return Num(b, b.op("sdiv" if signed else "udiv", x.v, y.v))
    if signed:
        overflow = (y == -1) & (x == -(1 << bits - 1))
        divisor = select((y == 0) | overflow, 1, y)
    else:
        divisor = select(y == 0, 1, y)
    if x.type.width == 1 or bits == 64 or _is_constant(y):
        quotient = Num(b, b.op("sdiv" if signed else "udiv", x.v, divisor.v))
    else:
        # Vectors have no integer division. A quotient of two 32-bit integers is at least 2**-32 away
        # (relatively) from the next integer, so that of two doubles truncates to the right one.
        scalar = "double" if bits == 32 else "float"
        up, down = ("sitofp", "fptosi") if signed else ("uitofp", "fptoui")
        quotient = (x.cast(up, scalar) / divisor.cast(up, scalar)).cast(down, x.type.scalar)
    return select(y == 0, -1, quotient)


def integer_rem(x: Num, y: Num, signed: bool) -> Num:
    """The remainder, with the sign of the dividend; `x` for division by zero."""
    if _divides_plainly(y):
        return Num(x.b, x.b.op("srem" if signed else "urem", x.v, y.v))
    if x.type.width > 1 and x.type.bits < 64 and not _is_constant(y):
        return select(y == 0, x, x - integer_div(x, y, signed) * y)
    divisor = select((y == 0) | (y == -1) if signed else y == 0, 1, y)
    b = x.b
    return select(y == 0, x, Num(b, b.op("srem" if signed else "urem", x.v, divisor.v)))


def integer_sign(x: Num, signed: bool) -> Num:
    """-1, 0 or 1."""
    one = select(x == 0, x.const(0), 1)
    return select(x < 0, -1, one) if signed else one


def _amount(x: Num, amount: Num) -> Num:
    """An amount to shift by. On NVIDIA GPUs it is of 32 bits, and LLVM takes the low ones, whatever is asked of it."""
    if x.type.bits < 64 or not x.b.module.triple.startswith("nvptx"):
        return amount
    return Num(x.b, x.b.intrinsic("umin", amount.v, 64))


def shift_left(x: Num, amount: Num) -> Num:
    amount = _amount(x, amount)
    return select(amount.compare("ult", x.type.bits), x << amount, 0)


def shift_right_logical(x: Num, amount: Num) -> Num:
    amount = _amount(x, amount)
    return select(amount.compare("ult", x.type.bits), x.shift_right(amount), 0)


def shift_right_arithmetic(x: Num, amount: Num) -> Num:
    last = x.type.bits - 1
    return x >> select(amount.compare("ult", last), amount, last)


def mulhi(x: Num, y: Num, signed: bool) -> Num:
    """The upper half of the product."""
    bits = x.type.bits
    extend, wide = "sext" if signed else "zext", f"i{2 * bits}"
    product = x.cast(extend, wide) * y.cast(extend, wide)
    return product.shift_right(bits).cast("trunc", x.type.scalar)


def clz(x: Num) -> Num:
    """The number of leading zero bits."""
    return Num(x.b, x.b.flagged("ctlz", x.v))


# Floating point ------------------------------------------------------------------------------------


def maximum(x: Num, y: Num, zeros: bool = True) -> Num:
    """The greater; NaN if either is NaN; 0 is greater than -0 (either of them if not `zeros`)."""
    return _extreme("ogt", x, y, zeros)


def minimum(x: Num, y: Num, zeros: bool = True) -> Num:
    """The lesser; NaN if either is NaN; -0 is less than 0 (either of them if not `zeros`)."""
    return _extreme("olt", x, y, zeros)


def _extreme(predicate: str, x: Num, y: Num, zeros: bool) -> Num:
    # The select is y when unordered: NaN in y passes, NaN in x needs a second select.
    if _is_constant(y):
        x, y = y, x
    greater = predicate == "ogt"
    if _is_constant(x):
        if zeros and x.v.name == x.const(0.0 if greater else -0.0).v.name:
            predicate = "oge" if greater else "ole"  # the zero that wins against the other one
        return x if x.v.name == x.const(nan).v.name else _choose(predicate, x, y)
    chosen = _choose(predicate, x, y)
    if not zeros:
        return select(x.compare("uno", x), x, chosen)
    # Chosen either way around, both are the same but where x and y are equal, zeros of both signs among them, or one
    # is NaN: then one is x and the other y.
    a, b = chosen.pattern(), _choose(predicate, y, x).pattern()
    return select(x.compare("uno", y), x + y, (a & b).number()) if greater else (a | b).number()


def sign(x: Num) -> Num:
    """-1, 1, or the argument itself if it is zero or NaN."""
    return select(x.compare("ueq", 0.0), x, x.const(1.0).copysign(x))


def round_away(x: Num) -> Num:
    """The nearest integer, halves away from zero."""
    below_half = 0.49999997019767761 if x.kind.name == "f32" else 0.49999999999999994
    return (x + x.const(below_half).copysign(x)).call("trunc")


def nextafter(x: Num, y: Num) -> Num:
    """The next number after x in the direction of y: one step of the bit pattern."""
    pattern = x.pattern()
    away = (y > x).v
    outward = Num(x.b, x.b.op("xor", away, (pattern < 0).v))
    step = (pattern + select(outward, pattern.const(1), -1)).number()
    least = pattern.const(1).number().copysign(y)
    result = select(x == y, y, select(x == 0.0, least, step))
    return select(x.compare("uno", y), x + y, result)


def is_finite(x: Num) -> Num:
    return x.abs() < inf


def rem(x: Num, y: Num) -> Num:
    """C's fmod: exact, with the sign of the dividend.

    A quotient that is no greater than the mantissa's whole numbers is one more than it should be at the most, so that
    the fma is exact. Where some lane has a larger one, or what is no number, `long_rem` is called. A quotient by a
    constant is a product, by a little more than the inverse: it may be one more, but never one less.
    """
    b, ax, ay, bits = x.b, x.abs(), y.abs(), x.kind.mantissa - 1
    if _is_constant(y):
        quotient, bits = ax * (1.0 / ay * (1.0 + 2.0**(1 - bits))), bits - 3
    else:
        quotient = ax / ay
    quotient = quotient.call("trunc")
    left = (-quotient).fma(ay, ax)
    left = select(left < 0.0, left + ay, left).copysign(x)

    def other() -> Num:
        symbol = f"anima.support.long_rem.{x.kind.name}.v{x.type.width}"
        b.module.declare(symbol, [x.type, x.type], x.type)
        called = b.call(symbol, [x.v, y.v], x.type)
        assert called is not None
        return Num(b, called)

    return if_any(quotient.compare("uge", 2.0**bits) | (ay == inf), left, other)


def long_rem(x: Num, y: Num) -> Num:
    """`rem` of any numbers: while some lane has |x| >= |y|, subtract the multiple q * (2**k |y|) with the largest k
    that leaves q a whole number that fits in the mantissa."""
    b, kind = x.b, x.kind
    ax, ay = x.abs(), y.abs()
    valid = (ax < inf) & (ay > 0.0)
    start = select(valid & (ay < inf), ax, 0.0)
    before, body, done = b.block, b.label("fmod"), b.label("fmod.done")
    b.branch(body)
    b.place(body)
    phi = b.phi(x.type, (start.v, before))
    rest = Num(b, phi)
    places = exponent(rest) - exponent(ay) - (kind.mantissa - 1)
    places = select(places > 0, places, 0)
    half = places >> 1
    scaled = ay * ((half + kind.bias) << kind.mantissa).number()
    scaled = scaled * ((places - half + kind.bias) << kind.mantissa).number()
    quotient = (rest / scaled).call("trunc")
    left = (-quotient).fma(scaled, rest)
    left = select(left < 0.0, left + scaled, left)
    left = select(rest >= ay, left, rest)
    phi.add(left.v, b.block)
    b.branch_if(any_lane(left >= ay), body, done)
    b.place(done)
    left = select(ay < inf, left, ax)
    return select(valid, left, (x * y) / (x * y)).copysign(x)


def exponent(x: Num) -> Num:
    """The exponent of a positive number, below that of the least normal for subnormals; an integer."""
    kind = x.kind
    small = x < kind.tiny
    scaled = select(small, x * 2.0**kind.mantissa, x)
    return scaled.pattern().shift_right(kind.mantissa) - select(small, kind.bias + kind.mantissa,
                                                                 scaled.pattern().const(kind.bias))


def any_lane(condition: Num) -> Value:
    """A scalar i1: whether the condition holds in any lane."""
    b, type = condition.b, condition.type
    if type.width == 1:
        return condition.v
    return b.intrinsic("vector.reduce.or", condition.v, result=type.element)


def repeat(active: Num, state: State, step: Callable[..., tuple[State, Num]]) -> State:
    """`state` after steps that each give a new state, and which lanes go on; lanes that stopped keep theirs."""
    b, counter = active.b, Type("i64")
    before, body, done = b.block, b.label("step"), b.label("done")
    b.branch(body)
    b.place(body)
    count = b.phi(counter, (0, before))
    going = b.phi(active.type, (active.v, before))
    phis = [b.phi(s.type, (s.v, before)) for s in state]
    current = [Num(b, p) for p in phis]
    proposed, more = step(*current)
    following = [select(Num(b, going), new, old) for new, old in zip(proposed, current, strict=True)]
    still = Num(b, going) & more
    advanced = b.op("add", count, 1)
    count.add(advanced, b.block)
    going.add(still.v, b.block)
    for phi, s in zip(phis, following, strict=True):
        phi.add(s.v, b.block)
    unfinished = b.op("and", any_lane(still), b.cmp("slt", advanced, MOST_STEPS))
    b.branch_if(unfinished, body, done)
    b.place(done)
    return following


def if_any(condition: Num, result: Num, compute: Callable[[], Num]) -> Num:
    """`compute()` in the lanes of the condition, `result` in the others; nothing is computed if there are none."""
    b = condition.b
    before, rare, done = b.block, b.label("rare"), b.label("done")
    b.branch_if(any_lane(condition), rare, done, likely=False)
    b.place(rare)
    mixed = select(condition, compute(), result)
    after = b.block
    b.branch(done)
    b.place(done)
    return Num(b, b.phi(result.type, (result.v, before), (mixed.v, after)))


def reduce_precision(x: Num, exponent_bits: int, mantissa_bits: int) -> Num:
    """Rounded to fewer mantissa bits (ties to even) and a smaller range (infinity above, zero below)."""
    kind = x.kind
    pattern = x.pattern()
    drop = kind.mantissa - mantissa_bits
    if drop > 0:
        last = pattern.shift_right(drop) & 1
        pattern = (pattern + (last + ((1 << drop - 1) - 1))) & -(1 << drop)
    rounded = pattern.number()
    if exponent_bits < kind.bits - 1 - kind.mantissa:
        bias = (1 << exponent_bits - 1) - 1
        size = rounded.abs()
        rounded = select(size >= 2.0 ** (bias + 1), x.const(inf).copysign(x), rounded)
        rounded = select(size < 2.0 ** (1 - bias), x.const(0.0).copysign(x), rounded)
    return select(x.compare("uno", x), x, rounded)


# On the bits of 16-bit floats: f32 has other neighbours and other subnormals.


_QUIET_NAN = {"f16": 0x7E00, "bf16": 0x7FC0}
SMALL_FIELDS = {"f16": (5, 10), "bf16": (8, 7)}  # bits of exponent and mantissa


def small_nextafter(x: tuple[Num, Num], y: tuple[Num, Num], dtype: str) -> Num:
    """The pattern of the next number after x in the direction of y, for patterns and their values in f32."""
    (pattern, wide), (target, wide_target) = x, y
    outward = Num(pattern.b, pattern.b.op("xor", (wide_target > wide).v, (pattern < 0).v))
    step = pattern + select(outward, pattern.const(1), -1)
    least = (target & -0x8000) | 1
    result = select(wide == wide_target, target, select(wide == 0.0, least, step))
    return select(wide.compare("uno", wide_target), _QUIET_NAN[dtype], result)


def small_reduce_precision(pattern: Num, wide: Num, dtype: str, mantissa_bits: int) -> Num:
    """The pattern rounded to fewer mantissa bits (ties to even); NaN stays."""
    drop = SMALL_FIELDS[dtype][1] - mantissa_bits
    if drop <= 0:
        return pattern
    last = pattern.shift_right(drop) & 1
    rounded = (pattern + (last + ((1 << drop - 1) - 1))) & -(1 << drop)
    return select(wide.compare("uno", wide), pattern, rounded)


# Either --------------------------------------------------------------------------------------------


def clamp(low: Num, x: Num, high: Num, signed: bool = True) -> Num:
    """min(max(x, low), high); NaN stays."""
    if x.type.is_float:
        return minimum(maximum(x, low), high)
    less, more = ("slt", "sgt") if signed else ("ult", "ugt")
    raised = select(x.compare(less, low), low, x)
    return select(raised.compare(more, high), high, raised)


def integer_pow(x: Num, y: int) -> Num:
    """x**y by repeated squaring; 1 / x**-y for negative y (floating point only)."""
    if y < 0:
        if not x.type.is_float:
            raise TypeError(f"an integer to the power {y} is no integer")
        return 1.0 / integer_pow(x, -y)
    result, square = None, x
    while y:
        if y & 1:
            result = square if result is None else result * square
        y >>= 1
        if y:
            square = square * square
    return x.const(1) if result is None else result


def compare(predicate: str, x: Num, y: Num) -> Num:
    return x.compare(predicate, y)


def _choose(predicate: str, x: Num, y: Num) -> Num:
    return select(x.compare(predicate, y), x, y)


FLOAT: dict[str, Function] = {
    "add": Num.__add__, "sub": Num.__sub__, "mul": Num.__mul__, "div": Num.__truediv__, "neg": Num.__neg__,
    "add_any": Num.__add__, "abs": Num.abs, "max": maximum, "min": minimum, "sign": sign,
    # In reductions the order is free, and so is the sign of a zero.
    "max_of_many": partial(maximum, zeros=False), "min_of_many": partial(minimum, zeros=False), "sqrt": Num.sqrt,
    "floor": lambda x: x.call("floor"), "ceil": lambda x: x.call("ceil"), "trunc": lambda x: x.call("trunc"),
    "nextafter": nextafter, "is_finite": is_finite, "clamp": clamp, "reduce_precision": reduce_precision,
    "square": lambda x: x * x, "integer_pow": integer_pow, "copysign": Num.copysign,
    **{name: partial(compare, predicate) for name, predicate in
       {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}.items()}}


def _whole(signed: bool) -> dict[str, Function]:
    letter = "s" if signed else "u"
    return {
        "add": Num.__add__, "sub": Num.__sub__, "mul": Num.__mul__, "neg": Num.__neg__,
        "add_any": Num.__add__, "mulhi": partial(mulhi, signed=signed),
        "div": partial(integer_div, signed=signed), "rem": partial(integer_rem, signed=signed),
        "abs": (lambda x: Num(x.b, x.b.flagged("abs", x.v))) if signed else (lambda x: x),
        "sign": partial(integer_sign, signed=signed), "clamp": partial(clamp, signed=signed),
        "max": partial(_choose, letter + "gt"), "min": partial(_choose, letter + "lt"),
        "and": Num.__and__, "or": Num.__or__, "xor": Num.__xor__, "not": Num.__invert__,
        "shift_left": shift_left, "shift_right_logical": shift_right_logical,
        "shift_right_arithmetic": shift_right_arithmetic, "clz": clz,
        "population_count": lambda x: x.call("ctpop"), "square": lambda x: x * x, "integer_pow": integer_pow,
        "floor": lambda x: x, "ceil": lambda x: x, "round": lambda x, rounding_method=0: x,
        "eq": partial(compare, "eq"), "ne": partial(compare, "ne"),
        **{name: partial(compare, letter + name) for name in ("lt", "le", "gt", "ge")}}


SIGNED = _whole(True)
UNSIGNED = _whole(False)
# On i1, addition saturates (or) and multiplication is and, as NumPy's for booleans.
BOOLEAN: dict[str, Function] = {
    "and": Num.__and__, "or": Num.__or__, "xor": Num.__xor__, "not": Num.__invert__, "add": Num.__or__,
    "mul": Num.__and__, "max": Num.__or__, "min": Num.__and__, "clamp": partial(clamp, signed=False),
    "eq": partial(compare, "eq"), "ne": partial(compare, "ne"),
    **{name: partial(compare, "u" + name) for name in ("lt", "le", "gt", "ge")}}
