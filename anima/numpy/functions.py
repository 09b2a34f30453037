"""Mathematical functions, element by element: exponentials, trigonometry, rounding, parts of floats.

Integers and bools are taken as the default float (rounding functions leave them as they are).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima.api.eager import compiled, of_numbers, repeated
from anima.core import dtypes
from anima.core.array import Array, ConcreteArray
from anima.core.trace import EVAL, aval_of, remember
from anima.numpy.elementwise import (
    constant_like,
    isfinite,
    isnan,
    named,
    select_where,
    weak_like,
)
from anima.numpy.promote import (
    INEXACT,
    as_array,
    convert_operand,
    inexact,
    inexact_array,
    is_complex,
    is_inexact,
    no_out,
    numpy_dtype_of,
    operand,
    operands,
    promote,
    promote_inexact,
    static_int,
)
from anima.ops import elementwise as ew, shape as sh, special
from anima.ops.index_types import index_operand, narrow_index
from anima.transforms.custom import custom_jvp
from anima.transforms.symbolic_zeros import SymbolicZero

ArrayLike = Any


def _inexact_unary(name: str, primitive: Any, doc: str) -> Callable[..., Any]:
    bind = primitive.bind

    general = repeated(lambda x, /: bind(inexact(name, x)))
    if primitive.as_ufunc is None:
        return named(general, name, doc)

    def function(x: ArrayLike, /) -> Array:
        out = EVAL.again(function, x)
        if out is not NotImplemented:
            return out
        if isinstance(x, Array) and x.aval.dtype in INEXACT:
            return remember(function, primitive, (x,), (x,), bind(x))
        return general(x) if x.__class__ is ConcreteArray else bind(inexact(name, x))

    return named(function, name, doc)


sin = _inexact_unary("sin", ew.sin, "Sine of angles in radians.")
cos = _inexact_unary("cos", ew.cos, "Cosine of angles in radians.")
tan = _inexact_unary("tan", ew.tan, "Tangent of angles in radians.")
arcsin = _inexact_unary("arcsin", ew.asin, "Inverse sine, in [-pi/2, pi/2]; NaN outside of [-1, 1].")
arccos = _inexact_unary("arccos", ew.acos, "Inverse cosine, in [0, pi]; NaN outside of [-1, 1].")
arctan = _inexact_unary("arctan", ew.atan, "Inverse tangent, in [-pi/2, pi/2].")
sinh = _inexact_unary("sinh", ew.sinh, "Hyperbolic sine.")
cosh = _inexact_unary("cosh", ew.cosh, "Hyperbolic cosine.")
tanh = _inexact_unary("tanh", ew.tanh, "Hyperbolic tangent.")
arcsinh = _inexact_unary("arcsinh", ew.asinh, "Inverse hyperbolic sine.")
arccosh = _inexact_unary("arccosh", ew.acosh, "Inverse hyperbolic cosine; NaN below 1.")
arctanh = _inexact_unary("arctanh", ew.atanh, "Inverse hyperbolic tangent; NaN outside of [-1, 1].")
exp = _inexact_unary("exp", ew.exp, "e to the power x.")
exp2 = _inexact_unary("exp2", ew.exp2, "2 to the power x.")
expm1 = _inexact_unary("expm1", ew.expm1, "exp(x) - 1, accurate near 0.")
log = _inexact_unary("log", ew.log, "Natural logarithm; NaN of negative numbers, -inf of 0.")
log1p = _inexact_unary("log1p", ew.log1p, "log(1 + x), accurate near 0.")
sqrt = _inexact_unary("sqrt", ew.sqrt, "Square root; NaN of negative numbers.")
cbrt = _inexact_unary("cbrt", ew.cbrt, "Cube root, also of negative numbers.")
asin, acos, atan, asinh, acosh, atanh = arcsin, arccos, arctan, arcsinh, arccosh, arctanh


@repeated
def log2(x: ArrayLike, /) -> Array:
    """Logarithm to base 2."""
    return _log_of_base(inexact("log2", x), 2)


@repeated
def log10(x: ArrayLike, /) -> Array:
    """Logarithm to base 10."""
    return _log_of_base(inexact("log10", x), 10)


def _log_of_base(x: Array, base: int) -> Array:
    log = ew.log.bind(x)
    if not is_complex(numpy_dtype_of(x)):
        return ew.div.bind(log, constant_like(x, np.log(base)))
    parts = ew.real.bind(log), ew.imag.bind(log)  # a complex quotient would make NaNs of infinite ones
    return ew.complex.bind(*(ew.div.bind(part, constant_like(part, np.log(base))) for part in parts))


def _strong(*operands: Any) -> list[Any]:
    """The operands, strongly typed unless all are scalars; gradients of those that were weakly typed are so, too."""
    if all(np.ndim(x) == 0 for x in operands):
        return list(operands)
    return [convert_operand(x, numpy_dtype_of(x), False) for x in operands]


@repeated
def deg2rad(x: ArrayLike, /) -> Array:
    """Degrees to radians."""
    (x,) = _strong(inexact("deg2rad", x))
    return ew.mul.bind(x, weak_like(x, np.pi / 180))


@repeated
def rad2deg(x: ArrayLike, /) -> Array:
    """Radians to degrees."""
    (x,) = _strong(inexact("rad2deg", x))
    return ew.mul.bind(x, weak_like(x, 180 / np.pi))


radians, degrees = deg2rad, rad2deg


def _along(tangents: Sequence[Any], slopes: Sequence[Any]) -> Any:
    """The tangent of a function of several operands, from its slopes in them."""
    terms = [ew.mul(s, t) for t, s in zip(tangents, slopes, strict=True) if not isinstance(t, SymbolicZero)]
    return functools.reduce(ew.add, terms)


_SINC = [(-1) ** k / math.factorial(2 * k + 1) for k in range(10)]


@repeated
def sinc(x: ArrayLike, /) -> Array:
    """sin(pi x) / (pi x), and 1 at 0, where it is smooth: its power series takes over for |pi x| < 1."""
    (x,) = _strong(inexact_array("sinc", x))
    angle = ew.mul(x, weak_like(x, np.pi))
    near = ew.lt(ew.abs(angle), weak_like(ew.abs(angle), 1))
    squared = ew.square(select_where(near, angle, sh.full_like(angle, 0)))
    series = sh.full_like(angle, _SINC[-1])
    for coefficient in _SINC[-2::-1]:
        series = ew.add(ew.mul(series, squared), weak_like(x, coefficient))
    far = select_where(near, sh.full_like(angle, 1), angle)
    return select_where(near, series, ew.div(ew.sin(far), far))


@compiled
def i0(x: ArrayLike) -> Array:
    """Modified Bessel function of the first kind, order 0."""
    x = inexact("i0", x)
    if is_complex(numpy_dtype_of(x)):
        raise ValueError("i0 does not support complex-valued inputs")
    return bessel_i0(x)


def _times_exp_abs(x: Any, scaled: Any) -> Array:
    """exp(|x|) * scaled, which overflows only if the product does: exp(|x|) is taken in two steps for large x."""
    size = ew.abs.bind(x)
    first = 2 ** math.floor(math.log2(math.log(dtypes.finfo(numpy_dtype_of(x)).max)))
    large = ew.ge(size, first)
    rest = ew.exp(select_where(large, ew.sub(size, first), size))  # the difference is exact
    rest = ew.mul(rest, scaled)
    return select_where(large, ew.mul(rest, math.exp(first)), rest)


@custom_jvp
def bessel_i0(x: Any) -> Array:
    return _times_exp_abs(x, special.bessel_i0e(x))


@custom_jvp
def bessel_i1(x: Any) -> Array:
    return _times_exp_abs(x, special.bessel_i1e(x))


bessel_i0.defjvps(lambda t, y, x: ew.mul(t, bessel_i1(x)))
bessel_i1.defjvps(lambda t, y, x: ew.mul(t, _i1_slope(y, x)))


def _i1_slope(y: Any, x: Any) -> Array:
    """I0(x) - I1(x) / x, which is 1/2 at 0."""
    return ew.sub(bessel_i0(x), special.bessel_i1_over_x(x, y, lambda v: sh.full_like(v, 1)))


@of_numbers
def hypot(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """sqrt(x1**2 + x2**2) without overflow on the way; ValueError for complex numbers."""
    x1, x2 = _strong(*promote_inexact("hypot", x1, x2))
    if is_complex(numpy_dtype_of(x1)):
        raise ValueError("hypot does not support complex-valued inputs")
    return _hypot(x1, x2)


@custom_jvp
def _hypot(x1: Any, x2: Any) -> Array:
    x1, x2 = ew.abs.bind(x1), ew.abs.bind(x2)
    large, small = ew.max.bind(x1, x2), ew.min.bind(x1, x2)
    zero = ew.eq.bind(large, weak_like(large, 0))
    ratio = ew.div.bind(small, select_where(zero, sh.full_like(large, 1), large))
    length = ew.mul.bind(large, ew.sqrt.bind(ew.add.bind(ew.square.bind(ratio), weak_like(ratio, 1))))
    inf = weak_like(large, np.inf)
    infinite = ew.or_.bind(ew.eq.bind(x1, inf), ew.eq.bind(x2, inf))
    return select_where(infinite, inf, select_where(zero, large, length))


def _hypot_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    length = _hypot(*primals)
    zero = ew.eq(length, 0)
    safe = select_where(zero, sh.full_like(length, 1), length)
    infinite = ew.eq(length, np.inf)
    half = sh.full_like(length, 0.5)

    def slope(x: Any) -> Array:
        far = select_where(ew.eq(ew.abs(x), np.inf), ew.sign(x), sh.full_like(x, 0))
        near = ew.div(select_where(infinite, sh.full_like(x, 0), x), safe)
        # At the origin, where it has no derivative, 1/2, as of the larger of two equal sizes.
        return select_where(zero, half, select_where(infinite, far, near))

    return length, _along(tangents, [slope(x) for x in primals])


_hypot.defjvp(_hypot_jvp, symbolic_zeros=True)


@of_numbers
def logaddexp(x: ArrayLike, y: ArrayLike, /) -> Array:
    """log(exp(x) + exp(y)) without overflow on the way."""
    x, y = promote_inexact("logaddexp", x, y)
    return _complex_logaddexp(x, y) if is_complex(numpy_dtype_of(x)) else _logaddexp(x, y)


@custom_jvp
def _logaddexp(x: Any, y: Any) -> Array:
    larger, difference = ew.max.bind(x, y), ew.sub.bind(x, y)
    smooth = ew.add.bind(larger, ew.log1p.bind(ew.exp.bind(ew.neg.bind(ew.abs.bind(difference)))))
    return select_where(isnan(difference), ew.add.bind(x, y), smooth)


def _logaddexp_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    """The parts of exp(x) and exp(y) in their sum; halves for equal infinities, too."""
    difference = ew.sub(*primals)
    tied = ew.and_(ew.eq(*primals), isnan(difference))
    difference = select_where(tied, sh.full_like(difference, 0), difference)
    return _logaddexp(*primals), _along(tangents, [ew.logistic(difference), ew.logistic(ew.neg(difference))])


_logaddexp.defjvp(_logaddexp_jvp, symbolic_zeros=True)


def _complex_logaddexp(x: Any, y: Any) -> Array:
    x, y = _strong(ew.add.bind(x, weak_like(x, 0)), ew.add.bind(y, weak_like(y, 0)))
    first = ew.gt(ew.real(x), ew.real(y))
    larger, smaller = select_where(first, x, y), select_where(first, y, x)
    return ew.add(larger, ew.log1p(ew.exp(ew.sub(smaller, larger))))


@repeated
def logaddexp2(x: ArrayLike, y: ArrayLike, /) -> Array:
    """log2(2**x + 2**y) without overflow on the way."""
    x, y = _strong(*promote_inexact("logaddexp2", x, y))
    log_of_2 = weak_like(x, math.log(2))
    return ew.div.bind(logaddexp(ew.mul.bind(x, log_of_2), ew.mul.bind(y, log_of_2)), log_of_2)


@of_numbers
def heaviside(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """0 where x1 < 0, x2 where x1 == 0, 1 where x1 > 0, NaN where it is NaN."""
    x1, x2 = promote_inexact("heaviside", x1, x2)
    (x1,) = _strong(x1)
    if is_complex(numpy_dtype_of(x1)):
        raise TypeError("heaviside does not support complex-valued inputs")
    zero, one = weak_like(x1, 0), weak_like(x1, 1)
    step = select_where(ew.lt.bind(x1, zero), zero, select_where(ew.gt.bind(x1, zero), one, x2))
    return select_where(isnan(x1), x1, step)


# ---------------------------------------------------------------- rounding

def _rounding(name: str, primitive: Any, doc: str) -> Callable[..., Any]:
    def function(x: ArrayLike, /) -> Array:
        x = operand(name, x)
        dtype = numpy_dtype_of(x)
        return as_array(x) if not is_inexact(dtype) else primitive(x)

    return named(repeated(function), name, doc)


floor = _rounding("floor", ew.floor, "The largest whole number not above x.")
ceil = _rounding("ceil", ew.ceil, "The smallest whole number not below x.")


@repeated
def trunc(x: ArrayLike) -> Array:
    """x without its fraction: rounded towards 0."""
    x = operand("trunc", x)
    if not is_inexact(numpy_dtype_of(x)):
        return as_array(x)
    if is_complex(numpy_dtype_of(x)):
        raise TypeError("trunc does not support complex-valued inputs")
    return select_where(ew.lt.bind(x, constant_like(x, 0)), ew.ceil(x), ew.floor(x))


fix = trunc


def _round_half_even(x: Any) -> Array:
    if is_complex(numpy_dtype_of(x)):
        return ew.complex(_round_half_even(ew.real(x)), _round_half_even(ew.imag(x)))
    return ew.round(x, ew.RoundingMethod.TO_NEAREST_EVEN)


@repeated
def rint(x: ArrayLike, /) -> Array:
    """The nearest whole number, ties to even, as a float."""
    x = operand("rint", x)
    dtype = numpy_dtype_of(x)
    return _round_half_even(x if is_inexact(dtype) else convert_operand(x, dtypes.default_float(), False))


@repeated
def round(a: ArrayLike, decimals: int = 0, out: None = None) -> Array:
    """`a` rounded to `decimals` places, ties to even; integers only to 0 or more of them.

    >>> jnp.round(jnp.array([0.5, 1.126]), 2)
    Array([0.5 , 1.13], dtype=float32)
    """
    no_out("round", out)
    decimals = static_int(decimals, "The error occurred in the `decimals` argument of anima.numpy.round.")
    x = operand("round", a)
    dtype = numpy_dtype_of(x)
    if dtype == np.bool_:
        raise ValueError("round does not support bools")
    if not is_inexact(dtype):
        if decimals < 0:
            raise NotImplementedError("integer np.round not implemented for decimals < 0")
        return as_array(x)
    if decimals == 0:
        return _round_half_even(x)
    weak = aval_of(x).weak_type
    narrow = dtype.itemsize < 4
    x = convert_operand(x, np.dtype(np.float32), False) if narrow else x
    if abs(decimals) > math.log10(dtypes.finfo(numpy_dtype_of(x)).max):  # no factor of the type: all places, or none
        x = as_array(x)
        rounded = x if decimals > 0 else select_where(isfinite(x), sh.full_like(x, 0), x)
        return convert_operand(rounded, dtype, weak)
    factor = constant_like(x, 10.0 ** decimals)
    rounded = ew.div.bind(_round_half_even(ew.mul.bind(x, factor)), factor)
    return convert_operand(rounded, dtype, weak)


around = round


@repeated
def nan_to_num(x: ArrayLike, copy: bool = True, nan: ArrayLike = 0.0, posinf: ArrayLike | None = None,
               neginf: ArrayLike | None = None) -> Array:
    """`x` with NaN and infinities replaced: by `nan`, and by the largest finite numbers or as given."""
    del copy
    x = as_array(x, "nan_to_num")
    if not is_inexact(x.dtype):
        return x
    if is_complex(x.dtype):
        return ew.complex(nan_to_num(ew.real(x), True, nan, posinf, neginf),
                          nan_to_num(ew.imag(x), True, nan, posinf, neginf))
    limits = dtypes.finfo(x.dtype)
    x = convert_operand(x, x.dtype, False)
    substitutes = [convert_operand(operand("nan_to_num", v), x.dtype, False) for v in (
        nan, limits.max if posinf is None else posinf, limits.min if neginf is None else neginf)]
    x = select_where(isnan(x), substitutes[0], x)
    x = select_where(ew.eq.bind(x, constant_like(x, np.inf)), substitutes[1], x)
    return select_where(ew.eq.bind(x, constant_like(x, -np.inf)), substitutes[2], x)


# ---------------------------------------------------------------- parts of floats

@repeated
def modf(x: ArrayLike, /, out: None = None) -> tuple[Array, Array]:
    """(fraction, whole part) of x, both with its sign."""
    no_out("modf", out)
    x = inexact("modf", x)
    whole = trunc(x)
    infinite = ew.eq.bind(ew.abs.bind(x), constant_like(x, np.inf))
    zero = ew.mul.bind(ew.sign.bind(x), constant_like(x, 0)) if not aval_of(x).weak_type else sh.full_like(whole, 0)
    return select_where(infinite, zero, ew.sub.bind(x, whole)), whole


def _float_layout(dtype: Any) -> tuple[np.dtype, int, int]:
    """(unsigned dtype of the same size, bits of the significand, bias of the exponent)."""
    info = dtypes.finfo(dtype)
    return np.dtype(f"uint{info.bits}"), info.nmant, 2 ** (info.bits - info.nmant - 2) - 1


@repeated
def frexp(x: ArrayLike, /) -> tuple[Array, Array]:
    """(m, e) with x = m * 2**e and 0.5 <= abs(m) < 1; e is int32."""
    x = convert_operand(inexact("frexp", x), dtypes.to_inexact(numpy_dtype_of(operand("frexp", x))), False)
    x = as_array(x)
    if is_complex(x.dtype):
        raise TypeError("frexp does not support complex-valued inputs")
    unsigned, significand, bias = _float_layout(x.dtype)
    tiny = ew.lt(ew.abs(x), constant_like(x, dtypes.finfo(x.dtype).smallest_normal))
    scale = constant_like(x, 2.0 ** significand)
    bits = ew.bitcast_convert_type(select_where(tiny, ew.mul(x, scale), x), unsigned)
    ones = 2 ** (dtypes.itemsize_bits(x.dtype) - significand - 1) - 1
    field = ew.and_(ew.shift_right_logical(bits, constant_like(bits, significand)), constant_like(bits, ones))
    exponent = ew.sub(ew.convert_element_type(field, np.int32), np.int32(bias - 1))
    exponent = select_where(tiny, ew.sub(exponent, np.int32(significand)), exponent)
    sign_and_digits = 1 << (dtypes.itemsize_bits(x.dtype) - 1) | ((1 << significand) - 1)
    kept = ew.and_(bits, constant_like(bits, sign_and_digits))
    kept = ew.or_(kept, constant_like(bits, (bias - 1) << significand))
    special_value = ew.or_(ew.eq(x, constant_like(x, 0)), ew.not_(ew.is_finite(x)))
    exponent = select_where(special_value, sh.full_like(exponent, 0), exponent)
    return select_where(special_value, x, _mantissa(x, exponent, kept)), exponent


@custom_jvp
def _mantissa(x: Any, exponent: Any, bits: Any) -> Array:
    """x / 2**exponent, whose bits are known."""
    return ew.bitcast_convert_type(bits, numpy_dtype_of(x))


_mantissa.defjvps(lambda t, y, x, exponent, bits: _scale(t, ew.neg(exponent)), None, None)


@repeated
def ldexp(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """x1 * 2**x2; x2 are integers of any size. ValueError if they are not."""
    x1, x2 = operands("ldexp", x1, index_operand(x2))
    dtype = dtypes.to_inexact(numpy_dtype_of(x1))
    if is_inexact(numpy_dtype_of(x2)):
        raise ValueError(f"ldexp not supported for input types {(dtype.name, numpy_dtype_of(x2).name)}")
    if is_complex(dtype):
        raise ValueError(f"ldexp not supported for input types {(dtype.name, numpy_dtype_of(x2).name)}")
    x1 = convert_operand(x1, dtype, False)
    x2 = as_array(x2)
    return _ldexp(x1, convert_operand(x2, np.dtype(np.int32), False) if x2.dtype.kind == "b" else narrow_index(x2))


def _scale(x: Any, exponent: Any) -> Array:
    """x * 2**exponent."""
    dtype = numpy_dtype_of(x)
    half = ew.div.bind(exponent, np.int32(2))     # two steps: the power of two itself may overflow
    rest = ew.sub.bind(exponent, half)
    first, second = ew.exp2(ew.convert_element_type(half, dtype)), ew.exp2(ew.convert_element_type(rest, dtype))
    return _times(_times(x, first), second)


@custom_jvp
def _ldexp(x1: Any, x2: Any) -> Array:
    return select_where(_is_fixed(x1), x1, _scale(x1, x2))


_ldexp.defjvps(lambda t, y, x1, x2: _scale(t, x2), None)


def _times(x: Any, y: Any) -> Array:
    x, y = promote_inexact("ldexp", x, y)
    return ew.mul.bind(x, y)


def _is_fixed(x: Any) -> Array:
    return ew.or_.bind(ew.eq.bind(x, constant_like(x, 0)), ew.not_.bind(ew.is_finite(x)))


@repeated
def spacing(x: ArrayLike, /) -> Array:
    """The distance from x to the next float away from 0, with the sign of x."""
    x = inexact("spacing", x)
    dtype = numpy_dtype_of(x)
    if is_complex(dtype):
        raise ValueError("spacing does not support complex-valued inputs")
    x = as_array(convert_operand(x, dtype, False))
    away = select_where(ew.lt(x, constant_like(x, 0)), constant_like(x, -np.inf), constant_like(x, np.inf))
    step = ew.sub(ew.nextafter(x, away), x)
    return select_where(ew.is_finite(x), step, sh.full_like(x, np.nan))


@of_numbers
def clip(arr: ArrayLike | None = None, /, min: ArrayLike | None = None, max: ArrayLike | None = None,
         *, a: ArrayLike | None = None, a_min: ArrayLike | None = None, a_max: ArrayLike | None = None) -> Array:
    """`arr` limited to [min, max]; either limit may be None. ValueError for complex numbers.

    >>> jnp.clip(jnp.arange(5), 1, 3)
    Array([1, 1, 2, 3, 3], dtype=int32)
    """
    arr = a if arr is None else arr
    low, high = a_min if min is None else min, a_max if max is None else max
    if arr is None:
        raise ValueError("At most one of min and max may be None, and an array is required")
    given = operands("clip", *[v for v in (arr, low, high) if v is not None])
    if any(is_complex(numpy_dtype_of(v)) for v in given):
        raise ValueError("Clip received a complex value either through the input or the min/max keywords. "
                         "Complex values have no ordering and cannot be clipped.")
    from_low = arr if low is None else ew.max.bind(*promote("clip", low, arr))
    return as_array(from_low if high is None else ew.min.bind(*promote("clip", high, from_low)), "clip")
