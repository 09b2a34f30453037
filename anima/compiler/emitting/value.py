"""Values while LLVM text is written: numbers, pairs for complex, and indices that know how lanes differ.

Inside a vector loop of width W an index is one of
    uniform   one scalar for all lanes                 i*1024
    affine    a scalar and a constant step per lane    i*1024 + j,  j in lanes k, k+1, ... k+W-1
    general   a vector of W integers                   rem(j, 7)
Affine indices are what makes a load one vector load. Every index knows bounds, so that general ones are
kept in 32 bits where they fit (a gather of 16 lanes is then one instruction, not two).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
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
class Index:
    """An integer of type `index`, with bounds.

    General: `value` is a vector of lanes. Else lane k is `value + moving + offset + k*step`, where `moving` (or
    None) is the vector loop's own counter: apart from what does not change in the loop, as addresses want it.
    """

    value: Value
    step: int = 0
    lo: int = LEAST
    hi: int = MOST
    moving: Value | None = None
    offset: int = 0

    @property
    def general(self) -> bool:
        return self.value.type.width > 1

    @property
    def uniform(self) -> bool:
        return self.step == 0 and self.value.type.width == 1


def constant_index(number: int) -> Index:
    """A number as an index."""
    return Index(ZERO, 0, number, number, None, number)


Complex = tuple[Value, Value]
Val = Value | Complex | Index


def parts(value: Val) -> tuple[Value, ...]:
    """The registers that hold a value."""
    if type(value) is tuple:
        return value
    if isinstance(value, Index):
        assert value.moving is None and not value.offset, "an index in parts is in no register"
        return (value.value,)
    return (value,)  # type: ignore[return-value]


def rebuild(like: Val, values: tuple[Value, ...]) -> Val:
    """A value of the same sort from other registers."""
    if type(like) is tuple:
        return values  # type: ignore[return-value]
    if isinstance(like, Index):
        return Index(values[0])
    return values[0]


def constant_of(value: Value) -> int | None:
    """The number that an integer value is, where its text is one."""
    name = value.name
    return int(name) if name.isdigit() or (name[0] == "-" and name[1:].isdigit()) else None


def i64(number: int) -> Value:
    return Value(str(number), I64)


ZERO = i64(0)


def fits_i32(*indices: Index) -> bool:
    return all(i.lo >= -(1 << 31) and i.hi < 1 << 31 for i in indices)


_FOLD: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "max": max, "min": min, "div": operator.floordiv,
    "rem": operator.mod}
_OPCODE = {"add": "add", "sub": "sub", "mul": "mul", "div": "udiv", "rem": "urem"}
_COMPARE = {"eq": "eq", "ne": "ne", "lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge"}


def bounds(name: str, a: Index, b: Index) -> tuple[int, int]:
    """The range of `name(a, b)`, where that is known from the ranges of the operands."""
    match name:
        case "add":
            lo, hi = a.lo + b.lo, a.hi + b.hi
        case "sub":
            lo, hi = a.lo - b.hi, a.hi - b.lo
        case "mul":
            corners = [x * y for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
            lo, hi = min(corners), max(corners)
        case "max":
            lo, hi = max(a.lo, b.lo), max(a.hi, b.hi)
        case "min":
            lo, hi = min(a.lo, b.lo), min(a.hi, b.hi)
        case "div" if b.lo > 0 and a.lo >= 0:
            lo, hi = a.lo // b.hi, a.hi // b.lo
        case "rem" if b.lo > 0 and a.lo >= 0:
            lo, hi = 0, min(a.hi, b.hi - 1)
        case _:
            lo, hi = LEAST, MOST
    return (lo, hi) if lo >= LEAST and hi <= MOST else (LEAST, MOST)


class Indices:
    """Index arithmetic on a builder; `width` is the number of lanes of the loop being written."""

    def __init__(self, b: Builder) -> None:
        self.b = b
        self.width = 1

    def total(self, index: Index) -> Value:
        """The one number of a uniform index, that of the first lane of an affine one."""
        value = index.value
        if index.moving is not None:
            value = self._scalar("add", value, index.moving)
        return self._scalar("add", value, i64(index.offset)) if index.offset else value

    def lanes(self, index: Index, scalar: str) -> Value:
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
        steps = b.step(type, 0, index.step)
        if constant_of(base) == 0:
            return steps
        return b.op("add", b.splat(base, self.width), steps)

    def _scalar(self, name: str, a: Value, c: Value) -> Value:
        x, y = constant_of(a), constant_of(c)
        if x is not None and y is not None and not (name in ("div", "rem") and y == 0):
            return i64(_FOLD[name](x, y))
        if name == "add" and (x == 0 or y == 0):
            return c if x == 0 else a
        if name == "sub" and y == 0:
            return a
        if name == "mul" and (x == 1 or y == 1):
            return c if x == 1 else a
        if name == "mul" and (x == 0 or y == 0):
            return i64(0)
        if name in ("max", "min"):
            return self.b.intrinsic("s" + name, a, c)
        return self.b.op(_OPCODE[name], a, c, "nsw" if name in ("add", "sub", "mul") else "")

    def arithmetic(self, name: str, a: Index, c: Index) -> Index:
        """`add`, `sub`, `mul`, `div`, `rem`, `max` or `min` of two indices."""
        lo, hi = bounds(name, a, c)
        if not (a.general or c.general):
            if name in ("add", "sub"):
                # One counter stays apart: the left one, or a right one that is added.
                moving, other = a.moving, c.moving
                if moving is None and name == "add":
                    moving, other = other, None
                right = c.value if other is None else self._scalar("add", c.value, other)
                sign = 1 if name == "add" else -1
                return Index(self._scalar(name, a.value, right), a.step + sign * c.step, lo, hi, moving,
                             a.offset + sign * c.offset)
            if name == "mul" and (a.uniform or c.uniform):
                for factor, other_one in ((self.number(a), c), (self.number(c), a)):
                    if factor is not None:
                        return self._scaled(other_one, factor, lo, hi)
            if a.uniform and c.uniform:
                return Index(self._scalar(name, self.total(a), self.total(c)), 0, lo, hi)
        result = Index(i64(0), 0, lo, hi)
        scalar = "i32" if fits_i32(a, c, result) else "i64"
        x, y = self.lanes(a, scalar), self.lanes(c, scalar)
        if name in ("max", "min"):
            result.value = self.b.intrinsic("s" + name, x, y)
        else:
            result.value = self.b.op(_OPCODE[name], x, y)
        return result

    @staticmethod
    def number(index: Index) -> int | None:
        """The constant that an index is."""
        known = None if index.moving is not None or not index.uniform else constant_of(index.value)
        return None if known is None else known + index.offset

    def _scaled(self, a: Index, factor: int, lo: int, hi: int) -> Index:
        if factor == 1:
            return a
        value = a.value if a.moving is None else self._scalar("add", a.value, a.moving)
        return Index(self._scalar("mul", value, i64(factor)), a.step * factor, lo, hi, None, a.offset * factor)

    def compare(self, name: str, a: Index, c: Index) -> Value:
        """A comparison of two indices: i1, a vector where they differ between lanes."""
        if a.uniform and c.uniform:
            return self.b.cmp(_COMPARE[name], self.total(a), self.total(c))
        scalar = "i32" if fits_i32(a, c) else "i64"
        return self.b.cmp(_COMPARE[name], self.lanes(a, scalar), self.lanes(c, scalar))

    def select(self, condition: Value, x: Index, y: Index) -> Index:
        """`x` where `condition`, else `y`."""
        result = Index(i64(0), 0, min(x.lo, y.lo), max(x.hi, y.hi))
        if condition.type.width == 1 and x.uniform and y.uniform:
            result.value = self.b.select(condition, self.total(x), self.total(y))
            return result
        scalar = "i32" if fits_i32(x, y) else "i64"
        result.value = self.b.select(condition, self.lanes(x, scalar), self.lanes(y, scalar))
        return result

    def to_integer(self, index: Index, dtype: str) -> Value:
        """The index as an integer of an array type, modulo its size."""
        scalar = REGISTER[dtype]
        if not index.uniform:
            return self.lanes(index, scalar)
        known = self.number(index)
        if known is not None:
            return self.b.const(Type(scalar), known)
        total = self.total(index)
        return total if scalar == "i64" else self.b.cast("trunc", total, Type(scalar))

    def from_integer(self, value: Value, dtype: str) -> Index:
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
        return Index(value, 0, max(lo, LEAST), min(hi, MOST))


def identity(value: Val) -> tuple[object, ...]:
    """What two values have in common if they are one."""
    if isinstance(value, Index):
        moving = None if value.moving is None else value.moving.name
        return value.value.name, value.value.type, value.step, moving, value.offset
    return tuple((p.name, p.type) for p in parts(value))
