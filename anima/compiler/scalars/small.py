"""Floats of 8, 6 and 4 bits, and integers of 4, 2 and 1: a byte each, computed as f32, or as i8 and u8 and cut.

    f8_e4m3fn 0x3c (1.5)  ->  f32 1.5           f32 500.0  ->  f8_e4m3fn 0x7f (NaN: there is no infinity)

What a format is, is data: its fields, and how it writes infinity and NaN. Values and roundings are those of ml_dtypes.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from anima.compiler.ir.assembly import Builder, Value
from anima.compiler.scalars.base import Num, select
from anima.core import dtypes
from anima.util import record


@record
class FloatFormat:
    """A float with a sign, `exponent` and `mantissa` bits; numbers above `largest` (its bits) are `over`."""

    exponent: int
    mantissa: int
    bias: int
    largest: int  # bits of the largest number
    over: int     # what greater numbers become; with the sign, unless it is all there is
    nan: int      # what NaN becomes
    signed_zero: bool


def _format(dtype: Any) -> FloatFormat:
    info = ml_dtypes.finfo(dtype)

    def bits(x: float) -> int:
        return int(np.asarray(x, np.float32).astype(dtype).view(np.uint8))

    return FloatFormat(info.nexp, info.nmant, 1 - info.minexp, bits(float(info.max)), bits(np.inf), bits(np.nan),
                       bits(-0.0) != 0)


_EXPONENT_ONLY = "f8_e8m0fnu"
FORMATS = {dtypes.short_name(d): _format(d) for d in dtypes.SMALL_FLOATS if dtypes.short_name(d) != _EXPONENT_ONLY}
SMALL_FLOATS = frozenset((*FORMATS, _EXPONENT_ONLY))
HALVES = frozenset(("f16", "bf16", *SMALL_FLOATS))  # computed in f32
SMALL_INTEGERS = {dtypes.short_name(d): dtypes.itemsize_bits(d) for d in (*dtypes.SMALL_SIGNED, *dtypes.SMALL_UNSIGNED)}


def small_to_single(b: Builder, x: Value, dtype: str) -> Value:
    """A small float, exactly, as f32."""
    byte = Num(b, x).cast("zext", "i32")
    if dtype == _EXPONENT_ONLY:
        power = select(byte == 0, 1 << 22, byte << 23)  # the least power is subnormal
        return select(byte == 0xFF, 0x7FC00000, power).number().v
    f = FORMATS[dtype]
    sign = 1 << f.exponent + f.mantissa
    size = byte & (sign - 1)
    # The fields in their places; the exponent is too small by the difference of the biases.
    pattern = ((size << 23 - f.mantissa).number() * 2.0 ** (127 - f.bias)).pattern()
    if f.over != f.largest and f.over & (sign - 1) and f.over != f.nan:  # there is an infinity
        pattern = select(size > f.largest, 0x7FC00000, pattern)
        pattern = select(size == f.over, 0x7F800000, pattern)
    elif f.nan & (sign - 1) and f.nan != f.largest:
        pattern = select(size > f.largest, 0x7FC00000, pattern)
    result = pattern | (byte & sign) << 31 - (f.exponent + f.mantissa)
    if not f.signed_zero:
        result = select(byte == sign, 0x7FC00000, result)
    return result.number().v


def single_to_small(b: Builder, x: Value, dtype: str) -> Value:
    """An f32 as a small float, rounded to nearest even."""
    number = Num(b, x)
    pattern = number.pattern()
    size = pattern & 0x7FFFFFFF
    is_nan = size > 0x7F800000
    if dtype == _EXPONENT_ONLY:
        return _to_power(number, pattern).v
    f = FORMATS[dtype]
    shift, sign = 23 - f.mantissa, 1 << f.exponent + f.mantissa
    normal = (size + ((1 << shift - 1) - 1) + (size.shift_right(shift) & 1)).shift_right(shift) \
        - (127 - f.bias << f.mantissa)
    step = 2.0 ** (1 - f.bias - f.mantissa)  # of subnormal numbers: adding 2**23 of them rounds to whole ones
    anchor = int(np.float32(step * 2.0**23).view(np.uint32))
    subnormal = (size.number() + step * 2.0**23).pattern() - anchor
    least = int(np.float32(2.0 ** (1 - f.bias)).view(np.uint32))
    result = select(size < least, subnormal, normal)
    negative = pattern.shift_right(31 - (f.exponent + f.mantissa)) & sign
    if f.signed_zero:
        result = select(result > f.largest, f.over & (sign - 1), result) | negative
        special = f.nan & (sign - 1)
        # Without NaN it is a zero, of the other sign.
        result = select(is_nan, negative | special if special else negative ^ sign, result)
    else:
        result = select(result == 0, 0, select(result > f.largest, f.over, result | negative))
        result = select(is_nan, f.nan, result)
    return result.cast("trunc", "i8").v


def _to_power(x: Num, pattern: Num) -> Num:
    """The exponent of the nearest power of two (of two the greater); NaN for none."""
    size = pattern & 0x7FFFFFFF
    rounded = (size + 0x400000).shift_right(23)
    rounded = select(size < 0x600000, rounded & 0, rounded)  # the least power is subnormal
    bad = (pattern < 1) | (size > 0x7F7FFFFF)  # zero, negative, infinite or NaN
    return select(bad, 0xFF, select(rounded > 0xFE, 0xFF, rounded)).cast("trunc", "i8")


def byte_of(b: Builder, x: Value, dtype: str) -> Value:
    """A small integer, the lowest bits of a byte, as the i8 or u8 of its value."""
    bits = SMALL_INTEGERS[dtype]
    return x if dtype[0] == "u" else ((Num(b, x) << 8 - bits) >> 8 - bits).v


def cut(b: Builder, x: Value, dtype: str) -> Value:
    """The lowest bits of a byte as a small integer: the others are 0, as ml_dtypes has them in memory."""
    return (Num(b, x) & ((1 << SMALL_INTEGERS[dtype]) - 1)).v
