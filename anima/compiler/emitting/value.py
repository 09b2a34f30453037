"""Values while LLVM text is written: numbers, pairs for complex, and indices that know how lanes differ.

Inside a vector loop of width W an index is one of
    uniform   one scalar for all lanes                 i*1024
    affine    a scalar and a constant step per lane    i*1024 + j,  j in lanes k, k+1, ... k+W-1
    general   a vector of W integers                   rem(j, 7), or max(j - 1, 0), which is known to be clamped
Affine indices are what makes a load one vector load. Every index knows bounds, so that general ones are
kept in 32 bits where they fit (a gather of 16 lanes is then one instruction, not two).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from anima.compiler.ir.assembly import Builder, Type, Value
from anima.compiler.scalars.small import SMALL_FLOATS, SMALL_INTEGERS, byte_of
from anima.core import dtypes

I1, I8, I32, I64, PTR = Type("i1"), Type("i8"), Type("i32"), Type("i64"), Type("ptr")
LEAST, MOST = -(1 << 63), (1 << 63) - 1



class _Types(dict[str, str]):
    def __missing__(self, dtype: str) -> str:
        raise NotImplementedError(f"compiled code has no arithmetic of {dtype}")


# Of each scalar type: its LLVM type in a register (of a part, for complex) and in memory. A bf16 is its bits: LLVM
# moves a `bfloat` by way of instructions that flush subnormals, and does not know all vectors of it.
REGISTER = _Types({"bool": "i1", "index": "i64", "i8": "i8", "u8": "i8", "i16": "i16", "u16": "i16", "i32": "i32",
                   "u32": "i32", "i64": "i64", "u64": "i64", "f16": "half", "bf16": "i16", "f32": "float",
                   "f64": "double", "c64": "float", "c128": "double",
                   **dict.fromkeys((*SMALL_FLOATS, *SMALL_INTEGERS), "i8")})
MEMORY = _Types({**REGISTER, "bool": "i8"})
COMPLEX_TYPES = frozenset(("c64", "c128"))
NUMPY = {dtypes.short_name(d): d for d in dtypes.ALL_DTYPES}
NUMPY["index"] = np.dtype("int64")
INTEGER_BITS = {"i8": 8, "u8": 8, "i16": 16, "u16": 16, "i32": 32, "u32": 32, "i64": 64, "u64": 64,
                **dict.fromkeys(SMALL_INTEGERS, 8)}


def itemsize(dtype: str) -> int:
    """Bytes of one element of a buffer."""
    return NUMPY[dtype].itemsize


@dataclass(slots=True)
class LaneIndex:
    """An integer of type `index`, with bounds.

    General: `value` is a vector of lanes. Else lane k is `value + moving + offset + k*step`, where `moving` (or
    None) is the vector loop's own counter: apart from what does not change in the loop, as addresses want it.

    `clamped`: (an affine index, its least and most value, or None) that a general one is.
    """

    value: Value
    step: int = 0
    lo: int = LEAST
    hi: int = MOST
    moving: Value | None = None
    offset: int = 0
    clamped: Clamped | None = None

    @property
    def general(self) -> bool:
        return self.value.type.width > 1

    @property
    def uniform(self) -> bool:
        return self.step == 0 and self.value.type.width == 1

    def extend(self, index: LaneIndex, coefficient: int) -> None:
        """Adds to the bounds those of an index times its coefficient."""
        ends = index.lo * coefficient, index.hi * coefficient
        self.lo, self.hi = self.lo + min(ends), self.hi + max(ends)
        if self.lo < LEAST or self.hi > MOST:
            self.lo, self.hi = LEAST, MOST


Clamped = tuple[LaneIndex, LaneIndex | None, LaneIndex | None]


def constant_index(number: int) -> LaneIndex:
    """A number as an index."""
    return LaneIndex(ZERO, 0, number, number, None, number)


Complex = tuple[Value, Value]
Val = Value | Complex | LaneIndex


def parts(value: Val) -> tuple[Value, ...]:
    """The registers that hold a value."""
    if type(value) is tuple:
        return value
    if isinstance(value, LaneIndex):
        assert value.moving is None and not value.offset, "an index in parts is in no register"
        return (value.value,)
    return (value,)  # type: ignore[return-value]


def rebuild(like: Val, values: tuple[Value, ...]) -> Val:
    """A value of the same sort from other registers."""
    if type(like) is tuple:
        return values  # type: ignore[return-value]
    if isinstance(like, LaneIndex):
        return LaneIndex(values[0])
    return values[0]


def constant_of(value: Value) -> int | None:
    """The number that an integer value is, where its text is one."""
    name = value.name
    return int(name) if name.isdigit() or (name[0] == "-" and name[1:].isdigit()) else None


def i64(number: int) -> Value:
    return Value(str(number), I64)


ZERO = i64(0)


def fits_i32(*indices: LaneIndex) -> bool:
    return all(i.lo >= -(1 << 31) and i.hi < 1 << 31 for i in indices)


_FOLD: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "mul": operator.mul, "max": max, "min": min, "div": operator.floordiv, "rem": operator.mod}
_OPCODE = {"add": "add", "mul": "mul", "div": "udiv", "rem": "urem"}
_COMPARE = {"eq": "eq", "ne": "ne", "lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge"}


class Indices:
    """Index arithmetic on a builder; `width` is the number of lanes of the loop being written. `known` has the values
    that were computed already in blocks that dominate this one; `last` is the last lane with an iteration of its own,
    if those after it do its once more (None: all have one)."""

    def __init__(self, b: Builder) -> None:
        self.b = b
        self.width = 1
        self.known: dict[object, Val] = {}
        self.last: Value | None = None

    def lane(self, number: int, step: int) -> Value:
        """How far from the first lane's the place of a lane is, in steps of an affine index."""
        if self.last is None or number == 0:
            return i64(number * step)
        return self._op("mul", self._op("min", self.last, i64(number)), i64(step))

    def steps(self, type: Type, step: int) -> Value:
        """So for all lanes."""
        if self.last is None:
            return self.b.step(type, 0, step)
        last = self.last if type.scalar == "i64" else self.b.cast("trunc", self.last, type.element)
        lanes = self.b.intrinsic("smin", self.b.step(type), self.b.splat(last, type.width))
        return lanes if step == 1 else self.b.op("mul", lanes, self.b.const(type, step))

    def total(self, index: LaneIndex) -> Value:
        """The one number of a uniform index, that of the first lane of an affine one."""
        value = index.value
        if index.moving is not None:
            value = self._op("add", value, index.moving)
        return self._op("add", value, i64(index.offset)) if index.offset else value

    def lanes(self, index: LaneIndex, scalar: str) -> Value:
        """The index in every lane, as integers of kind `scalar` (modulo its size)."""
        b, type = self.b, Type(scalar, self.width)
        if index.general:
            have = index.value.type.bits
            if have == type.bits:
                return index.value
            return b.cast("sext" if have < type.bits else "trunc", index.value, type)
        base = self.total(index)
        if scalar != "i64":
            known = constant_of(base)
            base = b.cast("trunc", base, type.element) if known is None else b.const(type.element, known)
        if self.width == 1:
            return base
        if index.step == 0:
            return b.splat(base, self.width)
        steps = self.steps(type, index.step)
        if constant_of(base) == 0:
            return steps
        return b.op("add", b.splat(base, self.width), steps)

    def _both(self, a: LaneIndex, c: LaneIndex, *results: LaneIndex) -> tuple[Value, Value]:
        """Two indices as one number each, or in lanes."""
        if a.uniform and c.uniform:
            return self.total(a), self.total(c)
        scalar = "i32" if fits_i32(a, c, *results) else "i64"
        return self.lanes(a, scalar), self.lanes(c, scalar)

    def _op(self, name: str, a: Value, c: Value) -> Value:
        x, y = constant_of(a), constant_of(c)
        if x is not None and y is not None and not (name in ("div", "rem") and y == 0):
            return i64(_FOLD[name](x, y))
        if name == "add" and (x == 0 or y == 0):
            return c if x == 0 else a
        key = name, a.name, c.name, a.type
        if key not in self.known:
            flags = "nsw" if name in ("add", "mul") and a.type.width == 1 else ""
            self.known[key] = (self.b.intrinsic("s" + name, a, c) if name in ("max", "min") else
                               self.b.op(_OPCODE[name], a, c, flags))
        return self.known[key]  # type: ignore[return-value]

    def sum(self, values: Sequence[LaneIndex], coefficients: Sequence[int], const: int = 0) -> LaneIndex:
        """`const` and each index times its coefficient: first what is one number for all lanes and a step."""
        total = constant_index(const)
        for index, c in sorted(zip(values, coefficients, strict=True), key=lambda term: term[0].general):
            if index.general:
                total = self._with_lanes(total, index, c)
                continue
            value, moving = index.value, index.moving
            if moving is not None and c == 1 and total.moving is None:
                total.moving, moving = moving, None  # one counter stays apart
            if moving is not None:
                value = self._op("add", value, moving)
            if c != 1:
                value = self._op("mul", value, i64(c))
            total.value = self._op("add", total.value, value)
            total.step += c * index.step
            total.offset += c * index.offset
            total.extend(index, c)
        return total

    def _with_lanes(self, total: LaneIndex, index: LaneIndex, c: int) -> LaneIndex:
        """`total` and a general index times its coefficient."""
        result = LaneIndex(ZERO, 0, total.lo, total.hi)
        result.extend(index, c)
        factor = constant_index(c)
        scalar = "i32" if fits_i32(total, index, factor, result) else "i64"
        key = "sum", scalar, self.width, c, *identity(total), *identity(index)
        if key not in self.known:
            value = self.lanes(index, scalar)
            if c != 1:
                value = self._op("mul", value, self.lanes(factor, scalar))
            self.known[key] = value if self.number(total) == 0 else self._op("add", self.lanes(total, scalar), value)
        result.value = self.known[key]  # type: ignore[assignment]
        if index.clamped is not None and c == 1 and total.uniform:
            free, least, most = (None if i is None else self.sum((i, total), (1, 1)) for i in index.clamped)
            result.clamped = free, least, most  # type: ignore[assignment]
        return result

    def arithmetic(self, name: str, a: LaneIndex, c: LaneIndex) -> LaneIndex:
        """`div`, `rem`, `max` or `min` of two indices."""
        result = LaneIndex(ZERO)
        match name:
            case "max":
                result.lo, result.hi = max(a.lo, c.lo), max(a.hi, c.hi)
            case "min":
                result.lo, result.hi = min(a.lo, c.lo), min(a.hi, c.hi)
            case "div" if c.lo > 0 and a.lo >= 0:
                result.lo, result.hi = a.lo // c.hi, a.hi // c.lo
            case "rem" if c.lo > 0 and a.lo >= 0:
                result.lo, result.hi = 0, min(a.hi, c.hi - 1)
        result.value = self._op(name, *self._both(a, c, result))
        if result.general:
            result.clamped = _clamped(name, a, c)
        return result

    @staticmethod
    def number(index: LaneIndex) -> int | None:
        """The constant that an index is."""
        known = None if index.moving is not None or not index.uniform else constant_of(index.value)
        return None if known is None else known + index.offset

    def compare(self, name: str, a: LaneIndex, c: LaneIndex) -> Value:
        """A comparison of two indices: i1, a vector where they differ between lanes."""
        return self.b.cmp(_COMPARE[name], *self._both(a, c))

    def select(self, condition: Value, x: LaneIndex, y: LaneIndex) -> LaneIndex:
        """`x` where `condition`, else `y`."""
        result = LaneIndex(i64(0), 0, min(x.lo, y.lo), max(x.hi, y.hi))
        if condition.type.width == 1 and x.uniform and y.uniform:
            result.value = self.b.select(condition, self.total(x), self.total(y))
            return result
        scalar = "i32" if fits_i32(x, y) else "i64"
        result.value = self.b.select(condition, self.lanes(x, scalar), self.lanes(y, scalar))
        return result

    def to_integer(self, index: LaneIndex, dtype: str) -> Value:
        """The index as an integer of an array type, modulo its size."""
        scalar = REGISTER[dtype]
        if not index.uniform:
            return self.lanes(index, scalar)
        known = self.number(index)
        if known is not None:
            return self.b.const(Type(scalar), known)
        total = self.total(index)
        return total if scalar == "i64" else self.b.cast("trunc", total, Type(scalar))

    def from_integer(self, value: Value, dtype: str) -> LaneIndex:
        """An integer (or bool) as an index."""
        signed = dtype[0] == "i"
        if dtype in SMALL_INTEGERS:
            value = byte_of(self.b, value, dtype)
        bits = INTEGER_BITS.get(dtype, 1)
        lo, hi = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        small = value.type.width > 1 and (bits < 32 or (signed and bits == 32))
        scalar = "i32" if small else "i64"
        type = Type(scalar, value.type.width)
        if value.type.bits != type.bits:
            if not value.name.startswith("%") and value.type.width == 1:
                number = int({"true": "1", "false": "0"}.get(value.name, value.name))
                return constant_index(number if signed or number >= 0 else number + (1 << bits))
            value = self.b.cast("sext" if signed else "zext", value, type)
        return LaneIndex(value, 0, max(lo, LEAST), min(hi, MOST))


def _clamped(name: str, a: LaneIndex, c: LaneIndex) -> Clamped | None:
    """The clamped affine index that `max` or `min` of two indices is."""
    if not c.uniform:
        return None
    free, least, most = (a, None, None) if a.clamped is None else a.clamped
    if free.general:
        return None
    if name == "max" and least is most is None:
        return free, c, None
    return (free, least, c) if name == "min" and most is None else None


def identity(value: Val) -> tuple[object, ...]:
    """What two values have in common if they are one."""
    if isinstance(value, LaneIndex):
        moving = None if value.moving is None else value.moving.name
        return value.value.name, value.value.type, value.step, moving, value.offset
    return tuple((p.name, p.type) for p in parts(value))
