"""Reference semantics on NumPy arrays, where NumPy's own function is not what the documents describe.

    divide([5, -7], [0, 2]) == [-1, -3]              integers truncate; by zero gives all ones
    convert([300.0, nan, -1.0], uint8) == [255, 0, 0]   floats saturate
    shift_left(1, 40) == 0                           shifts beyond the width lose everything

Arguments are arrays of the operation's dtypes, small floats already widened to float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from anima.core import dtypes
from anima.ops import complex_functions

_UNSIGNED: dict[int, Any] = {n: np.dtype(f"uint{8 * n}") for n in (1, 2, 4, 8)}
_SIGNED: dict[int, Any] = {n: np.dtype(f"int{8 * n}") for n in (1, 2, 4, 8)}


def _unsigned(x: np.ndarray) -> np.ndarray:
    return x.view(_UNSIGNED[x.dtype.itemsize])


# ---------------------------------------------------------------- arithmetic

def divide(x: np.ndarray, y: np.ndarray) -> Any:
    """Division; of integers, towards zero, and all ones where `y` is zero."""
    if x.dtype.kind not in "iu":
        return complex_functions.divide(x, y) if x.dtype.kind == "c" else np.true_divide(x, y)
    zero = y == 0
    safe = np.where(zero, np.ones_like(y), y)
    quotient = np.floor_divide(x - np.fmod(x, safe), safe)
    return np.where(zero, np.invert(np.zeros_like(y)), quotient)


def remainder(x: np.ndarray, y: np.ndarray) -> Any:
    """Remainder with the sign of `x`; of integers, `x` itself where `y` is zero."""
    if x.dtype.kind not in "iu":
        return np.fmod(x, y)
    zero = y == 0
    return np.where(zero, x, np.fmod(x, np.where(zero, np.ones_like(y), y)))


class Extreme:
    """`np.maximum` or `np.minimum` with the methods of a ufunc: NaN if any is; +0 is larger than -0.

    `negative` says of signs whether a result that is zero is -0: for the maximum, if all are.
    """

    def __init__(self, choose: np.ufunc, negative: np.ufunc):
        self.choose, self.negative = choose, negative

    def __call__(self, x: np.ndarray, y: np.ndarray) -> Any:
        out = self.choose(x, y)
        if out.dtype.kind == "f":
            ties = (x == y) & (out == 0)
            if ties.any():
                return self._signed(out, ties, self.negative(np.signbit(x), np.signbit(y)))
        return out

    def reduce(self, x: np.ndarray, axis: Any) -> Any:
        return self._along("reduce", x, axis)

    def accumulate(self, x: np.ndarray, axis: int) -> Any:
        return self._along("accumulate", x, axis)

    def at(self, x: np.ndarray, index: np.ndarray, y: np.ndarray) -> None:
        signs = np.signbit(x) if x.dtype.kind == "f" else None
        self.choose.at(x, index, y)
        if signs is not None:
            self.negative.at(signs, index, np.signbit(y))
            x[...] = self._signed(x, x == 0, signs)

    def _along(self, method: str, x: np.ndarray, axis: Any) -> Any:
        out = getattr(self.choose, method)(x, axis=axis)
        if x.dtype.kind == "f" and (zeros := out == 0).any():
            return self._signed(out, zeros, getattr(self.negative, method)(np.signbit(x), axis=axis))
        return out

    @staticmethod
    def _signed(out: np.ndarray, where: np.ndarray, negative: np.ndarray) -> np.ndarray:
        zero = out.dtype.type(0)
        return np.where(where, np.where(negative, -zero, zero), out)


maximum = Extreme(np.maximum, np.logical_and)
minimum = Extreme(np.minimum, np.logical_or)


def sign(x: np.ndarray) -> Any:
    """-1, 1, or `x` where it is zero (of either sign) or NaN; of complex numbers, `x / |x|`."""
    if x.dtype.kind == "c":
        return complex_functions.sign(x)
    return np.where(x == 0, x, np.sign(x)) if x.dtype.kind == "f" else np.sign(x)


def square(x: np.ndarray) -> Any:
    """`x * x`."""
    return complex_functions.square(x) if x.dtype.kind == "c" else np.square(x)


def nextafter(x: np.ndarray, y: np.ndarray) -> Any:
    """The number next to `x` towards `y`; `y` itself if they are equal (zeros of either sign)."""
    return np.where(x == y, y, np.nextafter(x, y))


def clamp(low: np.ndarray, x: np.ndarray, high: np.ndarray) -> Any:
    """`x` limited to `[low, high]`; `high` wins where they cross."""
    return minimum(maximum(x, low), high)


def integer_power(x: np.ndarray, y: int) -> Any:
    """`x` multiplied by itself, by repeated squaring from the lowest bit of `y`; the inverse if `y < 0`."""
    if y == 0:
        return np.ones_like(x)
    power, n = x, abs(y)
    out: Any = None
    while n:
        if n & 1:
            out = power if out is None else out * power
        n >>= 1
        if n:
            power = power * power
    return out if y > 0 else divide(np.ones_like(out), out)


def power(x: np.ndarray, y: np.ndarray) -> Any:
    """`x ** y` in the dtype of `x`."""
    y = y.astype(x.dtype, copy=False)
    if x.dtype.kind == "c":
        return complex_functions.power(x, y)
    # Not with a scalar exponent: NumPy would take square roots, of -inf and -0 too, for one half.
    shape = np.broadcast_shapes(x.shape, y.shape)
    return np.power(x, np.full(shape or (1,), y)).reshape(shape)


def expm1(x: np.ndarray) -> Any:
    """`exp(x) - 1`."""
    return complex_functions.expm1(x) if x.dtype.kind == "c" else np.expm1(x)


def log1p(x: np.ndarray) -> Any:
    """`log(1 + x)`."""
    return complex_functions.log1p(x) if x.dtype.kind == "c" else np.log1p(x)


def rsqrt(x: np.ndarray) -> Any:
    """`1 / sqrt(x)`; of complex numbers, on the principal branch."""
    return complex_functions.rsqrt(x) if x.dtype.kind == "c" else np.reciprocal(np.sqrt(x))


def logistic(x: np.ndarray) -> Any:
    """`1 / (1 + exp(-x))` without overflow; float32 through float64."""
    if x.dtype == np.float32:
        return np.reciprocal(1.0 + np.exp(-x.astype(np.float64))).astype(np.float32)
    if x.dtype.kind == "c":
        return complex_functions.logistic(x)
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, np.ones_like(e), e) / (1 + e)


def atan2(x: np.ndarray, y: np.ndarray) -> Any:
    """The angle of the point `(y, x)`; of complex numbers, `-i log((y + i x) / sqrt(x^2 + y^2))`."""
    if x.dtype.kind != "c":
        return np.arctan2(x, y)
    return (-1j * np.log((y + 1j * x) / np.sqrt(x * x + y * y))).astype(x.dtype)


def round_half(x: np.ndarray, rounding_method: int) -> Any:
    """To the nearest integer; halves away from zero (0) or to even (1)."""
    if int(rounding_method) == 1:
        return np.rint(x)
    whole = np.trunc(x)
    # x - trunc(x) is exact; adding one half to x is not.
    return np.where(np.abs(x - whole) >= 0.5, whole + np.copysign(np.ones_like(x), x), whole)


def select(which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    """The case that `which` (bool, or an integer, clamped) names, element by element."""
    out = cases[0]
    for k, case in enumerate(cases[1:], 1):
        out = np.where(which if which.dtype.kind == "b" else which >= k, case, out)
    return out if len(cases) > 1 else np.broadcast_to(out, np.broadcast_shapes(out.shape, which.shape))


# ---------------------------------------------------------------- bits

def _shift(fun: Callable[..., Any], x: np.ndarray, y: np.ndarray, beyond: Any) -> Any:
    amount = _unsigned(y)
    wild = amount >= 8 * x.dtype.itemsize
    return np.where(wild, beyond, fun(x, np.where(wild, np.zeros_like(amount), amount).view(x.dtype)))


def shift_left(x: np.ndarray, y: np.ndarray) -> Any:
    """Bits moved up; 0 for shifts beyond the width."""
    return _shift(np.left_shift, x, y, np.zeros_like(x))


def shift_right_logical(x: np.ndarray, y: np.ndarray) -> Any:
    """Bits moved down, zeros in at the top; 0 for shifts beyond the width."""
    bits = _unsigned(x)
    return _shift(np.right_shift, bits, y, np.zeros_like(bits)).view(x.dtype)


def shift_right_arithmetic(x: np.ndarray, y: np.ndarray) -> Any:
    """Bits moved down, copies of the top bit in; all such copies for shifts beyond the width."""
    bits = x.view(_SIGNED[x.dtype.itemsize])
    return _shift(np.right_shift, bits, y, np.where(bits < 0, np.invert(np.zeros_like(bits)),
                                                    np.zeros_like(bits))).view(x.dtype)


def population_count(x: np.ndarray) -> Any:
    """The number of one bits."""
    return np.bitwise_count(_unsigned(x)).astype(x.dtype)


def count_leading_zeros(x: np.ndarray) -> Any:
    """The number of zero bits above the highest one bit."""
    bits, width = _unsigned(x), 8 * x.dtype.itemsize
    if width == 64:
        high, low = (bits >> np.uint64(32)).astype(np.uint32), bits.astype(np.uint32)
        clz_high, clz_low = count_leading_zeros(high), count_leading_zeros(low)
        return np.where(high == 0, 32 + clz_low, clz_high).astype(x.dtype)
    # frexp's exponent of an exactly held integer is its length in bits.
    return (width - np.frexp(bits.astype(np.float64))[1]).astype(x.dtype)


def multiply_high(x: np.ndarray, y: np.ndarray) -> Any:
    """The upper half of the product in twice the width."""
    width = 8 * x.dtype.itemsize
    if width < 64:
        wide = (_SIGNED if x.dtype.kind == "i" else _UNSIGNED)[2 * x.dtype.itemsize]
        return ((x.astype(wide) * y.astype(wide)) >> wide.type(width)).astype(x.dtype)
    exact = np.vectorize(lambda a, b: int(a) * int(b) >> 64, otypes=[object])
    return exact(x, y).astype(x.dtype)


# ---------------------------------------------------------------- conversions

def convert(x: np.ndarray, new_dtype: Any) -> np.ndarray:
    """`x` in another dtype: floats to integers truncate and saturate, NaN to 0; complex to real drops."""
    old = x.dtype
    if old == new_dtype:
        return x
    if old.kind == "c" and new_dtype.kind != "c":
        x = x.real
    if dtypes.issubdtype(new_dtype, np.integer) and dtypes.issubdtype(x.dtype, np.floating):
        return _saturate(x, new_dtype)
    if new_dtype.kind == "b":
        return x != np.zeros((), x.dtype)
    if max(dtypes.itemsize_bits(old), dtypes.itemsize_bits(new_dtype)) < 8:  # among these, ml_dtypes has no casts
        x = x.astype(np.int8)
    return x.astype(new_dtype)


def _saturate(x: np.ndarray, new_dtype: Any) -> np.ndarray:
    if x.dtype.itemsize < 4:
        x = x.astype(np.float32)
    info = dtypes.iinfo(new_dtype)
    low, high = int(info.min), int(info.max)
    below, above = x < float(low), x >= float(high + 1)
    out = np.where(below | above | np.isnan(x), np.zeros_like(x), x).astype(new_dtype)
    return np.where(above, np.asarray(high, new_dtype), np.where(below, np.asarray(low, new_dtype), out))


def bitcast(x: np.ndarray, new_dtype: Any) -> np.ndarray:
    """The same bytes read as another dtype; a last dimension holds the parts of larger elements."""
    x = np.ascontiguousarray(x).reshape(x.shape)
    old, new = dtypes.itemsize_bits(x.dtype), dtypes.itemsize_bits(new_dtype)
    if min(old, new) < 8:
        bits = np.unpackbits(x[..., None].view(np.uint8), axis=-1, bitorder="little")[..., :old]
        parts = (old // new,) if old > new else ()
        bits = bits.reshape(*(x.shape if old >= new else x.shape[:-1]), *parts, new)
        return np.packbits(bits, axis=-1, bitorder="little").view(new_dtype)[..., 0]
    if x.dtype.itemsize == new_dtype.itemsize:
        return x.view(new_dtype)
    if x.dtype.itemsize > new_dtype.itemsize:
        return x[..., None].view(new_dtype)
    return x.view(new_dtype)[..., 0]


_LAYOUT = {np.dtype(np.float16): (5, 10), dtypes.bfloat16: (8, 7), np.dtype(np.float32): (8, 23),
           np.dtype(np.float64): (11, 52)}


def reduce_precision(x: np.ndarray, exponent_bits: int, mantissa_bits: int) -> np.ndarray:
    """`x` rounded (to even) to fewer bits: too large becomes infinity, too small becomes zero."""
    if x.dtype not in _LAYOUT:
        raise NotImplementedError(f"reduce_precision is not implemented for dtype {x.dtype.name}.")
    exponent_width, mantissa_width = _LAYOUT[x.dtype]
    bits = _unsigned(np.ascontiguousarray(x).reshape(x.shape))
    kind = bits.dtype.type
    sign = bits & kind(1 << (exponent_width + mantissa_width))
    body = bits ^ sign
    if mantissa_bits < mantissa_width:
        drop = mantissa_width - mantissa_bits
        odd = (body >> kind(drop)) & kind(1)
        rounded = body + kind((1 << (drop - 1)) - 1) + odd
        body = (rounded >> kind(drop)) << kind(drop)
    if exponent_bits < exponent_width:
        bias, small_bias = (1 << (exponent_width - 1)) - 1, (1 << (exponent_bits - 1)) - 1
        infinity = kind(((1 << exponent_width) - 1) << mantissa_width)
        largest = kind(((bias + small_bias + 1) << mantissa_width) - 1)
        smallest = kind((bias - small_bias + 1) << mantissa_width)
        body = np.where(body > largest, infinity, np.where(body < smallest, kind(0), body))
    return np.where(np.isnan(x), x, (body | sign).view(x.dtype))
