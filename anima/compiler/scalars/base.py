"""Formulas over LLVM values: operators, constants, bit patterns, polynomials, exact sums and products.

The functions in `scalars*.py` are written as formulas over `Num`, a value with Python's operators that
appends instructions to a `Builder`. Everything works lane by lane, for any vector width and for f32
and f64; `Kind` holds what differs between the two formats.

    >>> from anima.compiler.ir.assembly import ModuleBuilder
    >>> m = ModuleBuilder()
    >>> b = m.function("square_plus_one", [Type("float")], Type("float"))
    >>> x = Num(b, b.params[0])
    >>> b.ret((x * x + 1.0).v)
    >>> print(*b.lines, sep="\\n")
      %v1 = fmul float %p0, %p0
      %v2 = fadd float %v1, 0x3FF0000000000000
      ret float %v2
"""

from __future__ import annotations

from collections.abc import Sequence

from anima.compiler.ir.assembly import Builder, Type, Value
from anima.ops.pairs import Pair
from anima.util import record


@record
class Kind:
    """An IEEE 754 binary format."""

    name: str
    scalar: str
    integer: str
    bits: int
    mantissa: int  # stored bits
    bias: int
    tiny: float  # least normal number


SINGLE = Kind("f32", "float", "i32", 32, 23, 127, 2.0**-126)
DOUBLE = Kind("f64", "double", "i64", 64, 52, 1023, 2.0**-1022)
KINDS = {"f32": SINGLE, "f64": DOUBLE}
_KINDS = {"float": SINGLE, "double": DOUBLE}


def kind_of(type: Type) -> Kind:
    """The format of a floating-point type."""
    return _KINDS[type.scalar]


class Num:
    """An LLVM value with operators; Python numbers become constants of the other operand's type.

    Comparisons are ordered (false for NaN) but for `!=`; `>>` of integers is arithmetic.
    """

    __slots__ = ("b", "v")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, b: Builder, v: Value) -> None:
        self.b = b
        self.v = v

    @property
    def type(self) -> Type:
        return self.v.type

    @property
    def kind(self) -> Kind:
        """The floating-point format."""
        return _KINDS[self.v.type.scalar]

    def _op(self, real: str, whole: str, other: Num | float, swap: bool = False) -> Num:
        mine, yours = self.v, other.v if isinstance(other, Num) else other
        opcode = real if self.v.type.is_float else whole
        return Num(self.b, self.b.op(opcode, yours, mine) if swap else self.b.op(opcode, mine, yours))

    def __add__(self, other: Num | float) -> Num:
        return self._op("fadd", "add", other)

    def __radd__(self, other: float) -> Num:
        return self._op("fadd", "add", other)

    def __sub__(self, other: Num | float) -> Num:
        return self._op("fsub", "sub", other)

    def __rsub__(self, other: float) -> Num:
        return self._op("fsub", "sub", other, swap=True)

    def __mul__(self, other: Num | float) -> Num:
        return self._op("fmul", "mul", other)

    def __rmul__(self, other: float) -> Num:
        return self._op("fmul", "mul", other)

    def __truediv__(self, other: Num | float) -> Num:
        return self._op("fdiv", "sdiv", other)

    def __rtruediv__(self, other: float) -> Num:
        return self._op("fdiv", "sdiv", other, swap=True)

    def __neg__(self) -> Num:
        return Num(self.b, self.b.fneg(self.v)) if self.v.type.is_float else 0 - self

    def __and__(self, other: Num | int) -> Num:
        return self._op("and", "and", other)

    def __or__(self, other: Num | int) -> Num:
        return self._op("or", "or", other)

    def __xor__(self, other: Num | int) -> Num:
        return self._op("xor", "xor", other)

    def __invert__(self) -> Num:
        return self ^ -1

    def __lshift__(self, other: Num | int) -> Num:
        return self._op("shl", "shl", other)

    def __rshift__(self, other: Num | int) -> Num:
        return self._op("ashr", "ashr", other)

    def _compare(self, real: str, whole: str, other: Num | float) -> Num:
        predicate = real if self.v.type.is_float else whole
        return Num(self.b, self.b.cmp(predicate, self.v, other.v if isinstance(other, Num) else other))

    def __lt__(self, other: Num | float) -> Num:
        return self._compare("olt", "slt", other)

    def __le__(self, other: Num | float) -> Num:
        return self._compare("ole", "sle", other)

    def __gt__(self, other: Num | float) -> Num:
        return self._compare("ogt", "sgt", other)

    def __ge__(self, other: Num | float) -> Num:
        return self._compare("oge", "sge", other)

    def __eq__(self, other: Num | float) -> Num:  # type: ignore[override]
        return self._compare("oeq", "eq", other)

    def __ne__(self, other: Num | float) -> Num:  # type: ignore[override]
        return self._compare("une", "ne", other)

    def compare(self, predicate: str, other: Num | float) -> Num:
        """Compare with any LLVM predicate (`ult`, `uge`, `uno`, ...)."""
        return Num(self.b, self.b.cmp(predicate, self.v, other.v if isinstance(other, Num) else other))

    # -- one instruction each -------------------------------------------------------------------

    def const(self, number: float) -> Num:
        """A constant of this type."""
        return Num(self.b, self.b.const(self.v.type, number))

    def call(self, name: str, *args: Num | float) -> Num:
        """An intrinsic of this value (`sqrt`, `floor`, ...) and others."""
        return Num(self.b, self.b.intrinsic(name, self.v, *(a.v if isinstance(a, Num) else a for a in args)))

    def cast(self, opcode: str, scalar: str) -> Num:
        """A conversion to another scalar kind."""
        return Num(self.b, self.b.cast(opcode, self.v, self.v.type.of(scalar)))

    def fma(self, factor: Num | float, term: Num | float) -> Num:
        """`self * factor + term`, rounded once."""
        return self.call("fma", factor, term)

    def abs(self) -> Num:
        return self.call("fabs")

    def sqrt(self) -> Num:
        return self.call("sqrt")

    def rint(self) -> Num:
        """The nearest integer, ties to even."""
        return self.call("roundeven")

    def copysign(self, sign: Num) -> Num:
        """This magnitude with the sign of another number."""
        return self.call("copysign", sign)

    def shift_right(self, amount: Num | int) -> Num:
        """The logical shift."""
        return Num(self.b, self.b.op("lshr", self.v, amount.v if isinstance(amount, Num) else amount))

    def at_most(self, bound: float) -> Num:
        """The lesser of this and a constant; NaN stays (one `minps`)."""
        return select(self > bound, self.const(bound), self)

    def at_least(self, bound: float) -> Num:
        """The greater of this and a constant; NaN stays."""
        return select(self < bound, self.const(bound), self)

    # -- bit patterns ---------------------------------------------------------------------------

    def pattern(self) -> Num:
        """The bits of a floating-point number as an integer of the same size."""
        return self.cast("bitcast", self.kind.integer)

    def number(self) -> Num:
        """The floating-point number with these bits."""
        return self.cast("bitcast", "float" if self.v.type.scalar == "i32" else "double")

    def to_int(self) -> Num:
        """Truncation to an integer of the same size; any value (not poison) if out of range."""
        whole = self.cast("fptosi", self.kind.integer)
        return Num(self.b, self.b.assign(f"freeze {whole.v}", whole.type))

    def to_float(self) -> Num:
        """A signed integer as a floating-point number of the same size."""
        return self.cast("sitofp", "float" if self.v.type.scalar == "i32" else "double")

    def times_power_of_two(self, n: Num) -> Num:
        """`self * 2**n`, rounded once, where n is a float holding an integer, |n| < 2 * bias.

        Elsewhere than on AVX-512, which has the instruction, `self` must be in [0.5, 2] or so: the first of
        two factors must not leave the normal range.
        """
        kind, b, type = self.kind, self.b, self.v.type
        features = b.module.features
        size = type.width * kind.bits
        if "+avx512f" in features and size in (128, 256, 512) and (size == 512 or "+avx512vl" in features):
            return Num(b, _scalef(b, self.v, n.v, size))
        if "+avx512f" in features:
            whole = n.cast("fptosi", "i32")
            whole = Num(b, b.assign(f"freeze {whole.v}", whole.type))
            b.module.declare(f"llvm.ldexp.{type.mangled}.{whole.type.mangled}", [type, whole.type], type)
            return Num(b, b.intrinsic("ldexp", self.v, whole.v))
        whole = n.to_int()
        half = whole >> 1
        first = ((half + kind.bias) << kind.mantissa).number()
        second = ((whole - half + kind.bias) << kind.mantissa).number()
        return self * first * second

    def rsqrt_guess(self) -> Num | None:
        """`1 / sqrt(self)` to 14 bits, the same in vectors of any width; None where no instruction knows it."""
        features = self.b.module.features
        known = "+avx512f" in features and "+avx512vl" in features
        return Num(self.b, _rsqrt14(self.b, self.v)) if known else None


def _scalef(b: Builder, x: Value, n: Value, size: int) -> Value:
    type = x.type
    mask = f"i{max(type.width, 8)}"
    letter = "s" if type.scalar == "float" else "d"
    name = f"llvm.x86.avx512.mask.scalef.p{letter}.{size}"
    rounding = [Type("i32")] if size == 512 else []
    b.module.declare(name, [type, type, type, Type(mask), *rounding], type)
    last = ", i32 4" if rounding else ""
    return b.assign(f"call {type} @{name}({x}, {n}, {type} zeroinitializer, {mask} -1{last})", type)


def _rsqrt14(b: Builder, x: Value) -> Value:
    type = x.type
    lanes, bits = type.width, 32 if type.scalar == "float" else 64
    if lanes * bits > 512:
        low, high = (_rsqrt14(b, b.shuffle(x, b.undef(type), range(start, start + lanes // 2)))
                     for start in (0, lanes // 2))
        return b.shuffle(low, high, range(lanes))
    size = next(size for size in (128, 256, 512) if lanes * bits <= size)
    whole = Type(type.scalar, size // bits)
    if lanes == 1:
        x = b.insert(b.const(whole, 1.0), x, 0)
    elif whole.width > lanes:
        x = b.shuffle(x, b.undef(type), [min(lane, lanes - 1) for lane in range(whole.width)])
    mask = f"i{max(whole.width, 8)}"
    name = f"llvm.x86.avx512.rsqrt14.p{'s' if bits == 32 else 'd'}.{size}"
    b.module.declare(name, [whole, whole, Type(mask)], whole)
    found = b.assign(f"call {whole} @{name}({x}, {whole} zeroinitializer, {mask} -1)", whole)
    if lanes == 1:
        return b.extract(found, 0)
    return b.shuffle(found, b.undef(whole), range(lanes)) if whole.width > lanes else found


def select(condition: Num, x: Num | float, y: Num | float) -> Num:
    """`x` where `condition`, else `y`."""
    b = condition.b
    return Num(b, b.select(condition.v, x.v if isinstance(x, Num) else x, y.v if isinstance(y, Num) else y))


def horner(x: Num, coefficients: Sequence[float | Num]) -> Num:
    """`c[0] + c[1]*x + c[2]*x**2 + ...`, one fma a term: the rounding of all but the last one loses little."""
    last, *rest = [c if isinstance(c, Num) else x.const(c) for c in reversed(coefficients)]
    for c in rest:
        last = x.fma(last, c)
    return last


def polynomial(x: Num, coefficients: Sequence[float]) -> Num:
    """As `horner`, but by pairs, pairs of pairs, and so on (Estrin, "Organization of computer systems", 1960), down to
    three: loops over single numbers wait for log n fma's, not for n."""
    terms = [x.const(c) for c in coefficients]
    while len(terms) > 3:
        pairs = [x.fma(high, low) for low, high in zip(terms[::2], terms[1::2], strict=False)]
        terms, x = pairs + terms[len(pairs) * 2:], x * x
    return horner(x, terms)


def lookup(table: Value, place: Num) -> Num:
    """The f64 numbers at places of a constant table."""
    b, type = place.b, place.type.of("double")
    pointers = b.gep("double", table, place.v)
    return Num(b, b.load(type, pointers) if type.width == 1 else b.gather(type, pointers))


def quotient(top: Num, bottom: Pair, low: Num | None = None) -> Num:
    """(top + low) / (bottom.hi + bottom.lo), with one rounding that matters."""
    inverse = 1.0 / bottom.hi
    q = top * inverse
    error = (-q).fma(bottom.lo, (-q).fma(bottom.hi, top))
    error = error if low is None else error + low
    return error.fma(inverse, q)
