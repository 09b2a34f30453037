"""Conversion between dtypes.

A number too large for an integer type becomes its nearest bound and NaN becomes 0; integers wrap around;
anything but zero is True. What becomes a float is rounded once.

    f32 256.0 -> u8 255        i32 256 -> u8 0        f32 nan -> i32 0
"""

from __future__ import annotations

from typing import Any

from anima.compiler.ir.assembly import Builder, Type, Value
from anima.compiler.ir.loops import PARTS
from anima.compiler.scalars.base import Num, select
from anima.compiler.scalars.small import (
    HALVES,
    SMALL_FLOATS,
    SMALL_INTEGERS,
    byte_of,
    cut,
    single_to_small,
    small_to_single,
)

_SCALARS = {"bool": "i1", "i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64", "u8": "i8", "u16": "i16",
            "u32": "i32", "u64": "i64", "f16": "half", "bf16": "i16", "f32": "float", "f64": "double",
            **dict.fromkeys((*SMALL_FLOATS, *SMALL_INTEGERS), "i8")}
_SIGNED = frozenset(("i8", "i16", "i32", "i64"))
_FLOATS = frozenset(("f32", "f64", *HALVES))


def llvm_type(dtype: str, width: int = 1) -> Type:
    """The LLVM type of `width` lanes of a real dtype, in a register (a bool is an i1)."""
    if dtype not in _SCALARS:
        raise NotImplementedError(f"compiled code has no arithmetic of {dtype}")
    return Type(_SCALARS[dtype], width)


def convert(b: Builder, x: Any, from_dtype: str, to_dtype: str) -> Any:
    """The value `x` of one dtype as another; complex values are pairs, and lose their imaginary part."""
    if from_dtype == to_dtype:
        return x
    if to_dtype in PARTS:
        part = PARTS[to_dtype]
        if from_dtype in PARTS:
            return tuple(convert(b, p, PARTS[from_dtype], part) for p in x)
        real = convert(b, x, from_dtype, part)
        return real, b.const(real.type, 0.0)
    if from_dtype in PARTS:
        return convert(b, x[0], PARTS[from_dtype], to_dtype)
    target = llvm_type(to_dtype, x.type.width)
    llvm_type(from_dtype)
    if from_dtype in SMALL_INTEGERS:  # as the byte that it is
        return convert(b, byte_of(b, x, from_dtype), f"{from_dtype[0]}8", to_dtype)
    if to_dtype == "bool":
        if from_dtype in HALVES:
            x = to_f32(b, x, from_dtype)
        return b.cmp("une" if x.type.is_float else "ne", x, 0)
    if from_dtype in _FLOATS:
        if to_dtype in _FLOATS:
            return _float_to_float(b, x, from_dtype, to_dtype)
        if from_dtype in HALVES:
            x = to_f32(b, x, from_dtype)
        if to_dtype in SMALL_INTEGERS:
            return _float_to_small(Num(b, x), SMALL_INTEGERS[to_dtype], to_dtype[0] == "i").v
        return _float_to_int(Num(b, x), target, to_dtype in _SIGNED).v
    if to_dtype in _FLOATS:
        return _int_to_float(b, x, from_dtype, to_dtype)
    if to_dtype in SMALL_INTEGERS:
        return cut(b, x if x.type.bits == 8 else convert(b, x, from_dtype, "u8"), to_dtype)
    if target.bits == x.type.bits:
        return x
    if target.bits < x.type.bits:
        return b.cast("trunc", x, target)
    return b.cast("sext" if from_dtype in _SIGNED else "zext", x, target)


def to_f32(b: Builder, x: Value, dtype: str) -> Value:
    """An f16, or the bits of a bf16 or of a smaller float, as f32, exactly."""
    if dtype in SMALL_FLOATS:
        return small_to_single(b, x, dtype)
    if dtype == "f16":
        return b.cast("fpext", x, x.type.of("float")) if b.module.converts_halves else _half_to_single(Num(b, x)).v
    wide = Num(b, x).cast("zext", "i32") << 16
    return wide.number().v


def _float_to_float(b: Builder, x: Value, from_dtype: str, to_dtype: str) -> Value:
    if from_dtype in HALVES:
        return _float_to_float(b, to_f32(b, x, from_dtype), "f32", to_dtype)
    if from_dtype == to_dtype:
        return x
    if to_dtype == "f64":
        return b.cast("fpext", x, x.type.of("double"))
    if to_dtype == "f32":
        return b.cast("fptrunc", x, x.type.of("float"))
    single = Num(b, x) if from_dtype == "f32" else _round_to_odd(Num(b, x))
    if to_dtype == "f16":
        return single.cast("fptrunc", "half").v if b.module.converts_halves else _single_to_half(single).v
    if to_dtype in SMALL_FLOATS:
        return single_to_small(b, single.v, to_dtype)
    # Done on the bits: the instruction (vcvtneps2bf16) would flush subnormals.
    pattern = single.pattern()
    rounded = (pattern + ((pattern.shift_right(16) & 1) + 0x7FFF)).shift_right(16)
    quiet = pattern.shift_right(16) | 0x40
    rounded = select(single.compare("uno", single), quiet, rounded)
    return rounded.cast("trunc", "i16").v


def _half_to_single(x: Num) -> Num:
    """An f16 as f32 by its bits, as the instruction does it: exactly, and a NaN becomes a quiet one."""
    bits = x.cast("bitcast", "i16").cast("zext", "i32")
    size = (bits & 0x7FFF) << 13  # the fields in their places; the exponent is too small by 127 - 15
    finite = (size.number() * 2.0**112).pattern()
    special = select(size > 0x7C00 << 13, size | 0x7FC00000, size | 0x7F800000)
    return (select(size < 0x7C00 << 13, finite, special) | (bits & 0x8000) << 16).number()


def _single_to_half(x: Num) -> Num:
    """An f32 as f16 by its bits, as the instruction does it: to nearest even, and a NaN becomes a quiet one."""
    pattern = x.pattern()
    size = pattern & 0x7FFFFFFF
    # The carry of the rounding may go on into the exponent, up to infinity.
    normal = (size - (112 << 23) + 0xFFF + (size.shift_right(13) & 1)).shift_right(13)
    # One half has its last bit where f16 has that of its subnormal numbers: the addition rounds.
    subnormal = (size.number() + 0.5).pattern() - (126 << 23)
    result = select(size < 113 << 23, subnormal, normal)
    result = select(size < 143 << 23, result, 0x7C00)
    result = select(size > 0x7F800000, size.shift_right(13) & 0x1FF | 0x7E00, result)
    return (result | pattern.shift_right(16) & 0x8000).cast("trunc", "i16").cast("bitcast", "half")


def _round_to_odd(x: Num) -> Num:
    """An f64 as f32 such that rounding again to fewer bits is right (Boldo & Melquiond, 2008): inexact
    results are truncated and get an odd last bit."""
    near = x.cast("fptrunc", "float")
    back = near.cast("fpext", "double")
    pattern = near.pattern()
    # One step toward zero where the rounding went away from it (infinity steps to the largest number).
    lower = select(back.abs() > x.abs(), pattern - 1, pattern)
    odd = select((back == x) | x.compare("uno", x), pattern, lower | 1)
    return odd.number()


def _float_to_small(x: Num, bits: int, signed: bool) -> Num:
    low, high = (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1) if signed else (0.0, 2.0**bits - 1)
    inside = select(x.compare("uno", x), 0.0, x.at_most(high).at_least(low))
    return inside.cast("fptosi", "i32").cast("trunc", "i8") & ((1 << bits) - 1)


def _float_to_int(x: Num, target: Type, signed: bool) -> Num:
    bits = target.bits
    low = -(2.0 ** (bits - 1)) if signed else 0.0
    top = 2.0 ** (bits - 1 if signed else bits)
    opcode = "fptosi" if signed else "fptoui"
    precision = 24 if x.type.scalar == "float" else 53
    if bits < precision:
        # Both bounds are exact: clamp, drop NaN, and convert by way of an i32, which every target has.
        clamped = x.at_most(top - 1.0).at_least(low)
        clamped = select(x.compare("uno", x), 0.0, clamped)
        if bits == 32:
            return clamped.cast(opcode, "i32")
        return clamped.cast("fptosi", "i32").cast("trunc", target.scalar)
    inside = x < top
    whole = select(inside, x.at_least(low), 0.0).cast(opcode, target.scalar)
    return select(x >= top, (1 << (bits - 1 if signed else bits)) - 1, whole)


def _int_to_float(b: Builder, x: Value, from_dtype: str, to_dtype: str) -> Value:
    opcode = "sitofp" if from_dtype in _SIGNED else "uitofp"
    if to_dtype in ("f32", "f64"):
        return b.cast(opcode, x, llvm_type(to_dtype, x.type.width))
    # Through a type that holds the integer exactly; of more than 54 bits, the last ones only tell that they are not 0.
    exact = "f32" if x.type.bits <= 16 else "f64"
    if x.type.bits == 64:
        number = Num(b, x)
        rest = number & 0x7FF
        odd = select(rest == 0, number, (number - rest) | 0x800)
        in_reach = (number + (1 << 53)).compare("ult", 1 << 54) if from_dtype in _SIGNED else number.compare(
            "ult", 1 << 53)
        x = select(in_reach, number, odd).v
    return _float_to_float(b, b.cast(opcode, x, llvm_type(exact, x.type.width)), exact, to_dtype)
