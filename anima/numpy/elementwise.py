"""Arithmetic, comparisons, logic and bits, element by element, with NumPy's broadcasting and promotion.

    add(f32[3], 1)  is  { lambda ; a:f32[3]. let b:f32[3] = add a 1.0 in (b,) }

Each function promotes its operands (`promote.py`) and applies one primitive, or a few.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from anima.api.eager import of_numbers, repeated
from anima.core import dtypes
from anima.core.array import Array, ConcreteArray
from anima.core.trace import EVAL, aval_of, remember
from anima.lax.arranging import broadcast_shapes
from anima.numpy.promote import (
    INEXACT,
    as_array,
    convert_operand,
    equal_ranks,
    inexact,
    is_complex,
    is_floating,
    is_inexact,
    is_integer,
    numpy_dtype_of,
    operand,
    operands,
    promote,
    promote_dtypes_inexact,
    promote_inexact,
    promote_numeric,
)
from anima.ops import elementwise as ew, shape as sh
from anima.ops.reduce import reduce_and
from anima.util import rename

ArrayLike = Any
chooses = False  # whether numbers times truth values are choices, as XLA's are: infinity times False is 0


def named(function: Callable[..., Any], name: str, doc: str) -> Callable[..., Any]:
    """`function` with a public name and docstring."""
    rename(function, name)
    function.__doc__ = doc
    function.__module__ = "anima.numpy"
    return function


def constant_like(x: Any, value: Any) -> Any:
    """A scalar of the dtype of `x`, strongly typed."""
    dtype = numpy_dtype_of(x)
    return dtype.type(value) if dtype.kind != "c" else dtype.type(complex(value))


def weak_like(x: Any, value: Any) -> Any:
    """A scalar of the dtype of `x`, weakly typed if `x` is."""
    if aval_of(x).weak_type:
        return convert_operand(value, numpy_dtype_of(x), True)
    return constant_like(x, value)


def broadcast_all(*args: Any) -> list[Array]:
    """Arrays broadcast to their common shape; ValueError if there is none."""
    arrays = [as_array(x) for x in args]
    shape = broadcast_shapes(*[x.shape for x in arrays])
    return [broadcast_array(x, shape) for x in arrays]


def broadcast_array(x: Any, shape: tuple[int, ...]) -> Array:
    """`x` stretched to `shape` (as NumPy stretches); `x` itself if it has that shape."""
    x = as_array(x)
    if x.shape == shape:
        return x
    extra = len(shape) - x.ndim
    kept = [i for i, size in enumerate(x.shape) if size == shape[extra + i]]
    if len(kept) < x.ndim:
        x = sh.squeeze(x, [i for i in range(x.ndim) if i not in kept])
    return sh.broadcast_in_dim(x, shape, tuple(extra + i for i in kept))


def select_where(condition: Any, on_true: Any, on_false: Any) -> Array:
    """`on_true` where `condition` (bool) holds, else `on_false`; both of one dtype, any broadcastable shapes."""
    if np.shape(condition) if not isinstance(condition, Array) else condition.aval.shape:
        condition, on_true, on_false = broadcast_all(condition, on_true, on_false)
    else:
        condition = as_array(condition)
        on_true, on_false = broadcast_all(on_true, on_false)
    return ew.select_n(condition, on_false, on_true)


def to_bool(x: Any) -> Any:
    """`x != 0` as bools."""
    dtype = numpy_dtype_of(x)
    return x if dtype == np.bool_ else ew.ne.bind(x, constant_like(x, 0))


# ---------------------------------------------------------------- arithmetic

def _binary(name: str, primitive: Any, doc: str, bool_primitive: Any = None,
            promotion: Callable[..., Any] = promote) -> Callable[..., Any]:
    bind = primitive.bind

    general = of_numbers(lambda x, y, /: bind(*promotion(name, x, y)))
    if primitive.as_ufunc is None:
        return named(general, name, doc)
    converts = promotion is promote_inexact

    def function(x: ArrayLike, y: ArrayLike, /) -> Array:
        out = EVAL.again(function, x, y)
        if out is not NotImplemented:
            return out
        if converts and x.__class__ is y.__class__ is ConcreteArray and not is_inexact(x.aval.dtype) and not is_inexact(
                y.aval.dtype):
            return general(x, y)
        a, b = promotion(name, x, y)
        if bool_primitive is not None and numpy_dtype_of(a) == np.bool_:
            return bool_primitive.bind(a, b)
        if chooses and primitive is ew.mul:
            for mask, other in (x, b), (y, a):
                if getattr(mask, "dtype", None) == np.bool_ and is_inexact(numpy_dtype_of(other)):
                    return select_where(mask, other, weak_like(other, 0))
        return remember(function, primitive, (x, y), (a, b), bind(a, b))

    return named(function, name, doc)


add = _binary("add", ew.add, "Sum of two arrays, element by element; of bools, their `or`.", ew.or_)
subtract = _binary("subtract", ew.sub, "Difference of two arrays, element by element; TypeError for bools.")
multiply = _binary("multiply", ew.mul, "Product of two arrays, element by element; of bools, their `and`.", ew.and_)
maximum = _binary("maximum", ew.max, "The larger of two elements; NaN if either is.")
minimum = _binary("minimum", ew.min, "The smaller of two elements; NaN if either is.")
true_divide = _binary("true_divide", ew.div, "Quotient; integers are divided as floats.", promotion=promote_inexact)
arctan2 = _binary("arctan2", ew.atan2, "Angle of the point (x2, x1), in [-pi, pi].", promotion=promote_inexact)
nextafter = _binary("nextafter", ew.nextafter, "The next float after x towards y.", promotion=promote_inexact)
divide = true_divide
atan2 = arctan2
bitwise_and = _binary("bitwise_and", ew.and_, "Bitwise (for bools, logical) and.")
bitwise_or = _binary("bitwise_or", ew.or_, "Bitwise (for bools, logical) or.")
bitwise_xor = _binary("bitwise_xor", ew.xor, "Bitwise (for bools, logical) exclusive or.")
left_shift = _binary("left_shift", ew.shift_left, "x * 2**y by shifting bits; 0 once all are shifted out.",
                     promotion=promote_numeric)
bitwise_left_shift = left_shift


@repeated
def right_shift(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Bits shifted right; the sign bit of signed integers is kept.

    >>> int(jnp.right_shift(-8, 1))
    -4
    """
    x, y = promote_numeric("right_shift", x, y)
    signed = numpy_dtype_of(x).kind == "i"
    return (ew.shift_right_arithmetic if signed else ew.shift_right_logical).bind(x, y)


bitwise_right_shift = right_shift


@of_numbers
def floor_divide(x: ArrayLike, y: ArrayLike, /) -> Array:
    """The largest whole number not above x / y, in the operands' promoted dtype."""
    x, y = promote_numeric("floor_divide", x, y)
    dtype = numpy_dtype_of(x)
    if is_complex(dtype):
        raise TypeError("floor_divide does not support complex-valued inputs")
    if is_floating(dtype):
        return _float_divmod(x, y)[0]
    quotient = ew.div.bind(x, y)
    if dtype.kind == "u":
        return quotient
    rounded_up = ew.and_.bind(ew.ne.bind(ew.sign.bind(x), ew.sign.bind(y)),
                              ew.ne.bind(ew.rem.bind(x, y), constant_like(x, 0)))
    return select_where(rounded_up, ew.sub.bind(quotient, weak_like(x, 1)), quotient)


@of_numbers
def remainder(x: ArrayLike, y: ArrayLike, /) -> Array:
    """x - y * floor(x / y), with the sign of y; for integers, 0 where y is 0.

    >>> int(jnp.remainder(-7, 3))
    2
    """
    x, y = promote_numeric("remainder", x, y)
    return _remainder(x, _nonzero_divisor(y))


def _nonzero_divisor(y: Any) -> Any:
    if not is_integer(numpy_dtype_of(y)):
        return y
    if isinstance(y, (np.generic, int)) and y != 0:
        return y
    return select_where(ew.eq.bind(y, constant_like(y, 0)), weak_like(y, 1), y)


def _remainder(x: Any, y: Any) -> Array:
    zero = constant_like(x, 0)
    rest = ew.rem.bind(x, y)
    if numpy_dtype_of(x).kind == "u":
        return rest
    wrong_sign = ew.and_.bind(ew.ne.bind(ew.lt.bind(rest, zero), ew.lt.bind(y, zero)), ew.ne.bind(rest, zero))
    return select_where(wrong_sign, ew.add.bind(rest, y), rest)


mod = remainder


@of_numbers
def fmod(x: ArrayLike, y: ArrayLike, /) -> Array:
    """The remainder of x / y with the sign of x; for integers, 0 where y is 0."""
    x, y = promote_numeric("fmod", x, y)
    return ew.rem.bind(x, _nonzero_divisor(y))


def _float_divmod(x: Any, y: Any) -> tuple[Array, Array]:
    """(floor(x / y), remainder), consistent with each other."""
    rest = ew.rem.bind(x, y)
    quotient = ew.div.bind(ew.sub.bind(x, rest), y)
    wrong_sign = ew.and_.bind(ew.ne.bind(rest, constant_like(x, 0)), ew.ne.bind(ew.sign.bind(y), ew.sign.bind(rest)))
    rest = select_where(wrong_sign, ew.add.bind(rest, y), rest)
    quotient = select_where(wrong_sign, ew.sub.bind(quotient, weak_like(x, 1)), quotient)
    quotient = ew.round(quotient, ew.RoundingMethod.TO_NEAREST_EVEN)
    by_zero = ew.eq.bind(y, constant_like(y, 0))
    return select_where(by_zero, ew.stop_gradient_p.bind(ew.div.bind(x, y)), quotient), rest


@of_numbers
def divmod(x: ArrayLike, y: ArrayLike, /) -> tuple[Array, Array]:
    """(x // y, x % y)."""
    x, y = promote_numeric("divmod", x, y)
    if is_floating(numpy_dtype_of(x)):
        return _float_divmod(x, y)
    return floor_divide(x, y), remainder(x, y)


@repeated
def power(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """x1 raised to the power x2. A known integer exponent is repeated multiplication.

    TypeError for integers raised to a known negative integer.

    >>> jnp.power(jnp.array([1., 2., 3.]), 2)
    Array([1., 4., 9.], dtype=float32)
    """
    x1, x2 = operands("power", x1, x2)
    exponent = _known_int(x2)
    if exponent is not None:
        return _integer_power(x1, exponent)
    base_dtype, exponent_dtype = numpy_dtype_of(x1), numpy_dtype_of(x2)
    if is_inexact(base_dtype) and not is_inexact(exponent_dtype):
        dtypes.result_type(x1, x2)  # an error where types may not be mixed
        if exponent_dtype == np.bool_:
            x2 = convert_operand(x2, dtypes.default_int(), True)
        return ew.pow.bind(*equal_ranks("power", [x1, x2]))
    strong = exponent_dtype == np.bool_ and not isinstance(x2, bool)
    x1, x2 = promote_numeric("power", x1, x2)
    if is_inexact(numpy_dtype_of(x1)):
        return ew.pow.bind(x1, x2)
    out = _int_to_int_power(x1, x2)
    return convert_operand(out, out.dtype, False) if strong else out


pow = power


def _known_int(x: Any) -> int | None:
    """The value of a Python int, or of a known integer scalar array."""
    if isinstance(x, (int, np.integer)) and not isinstance(x, bool):
        return int(x)
    if isinstance(x, ConcreteArray) and not x.aval.shape and is_integer(x.aval.dtype):
        return int(x.value)
    if isinstance(x, np.ndarray) and not x.shape and x.dtype.kind in "iu":
        return int(x)
    return None


def _integer_power(x: Any, exponent: int) -> Array:
    dtype = numpy_dtype_of(x)
    weak = aval_of(x).weak_type
    if dtype == np.bool_:
        dtype = np.dtype(np.int32)
        x = convert_operand(x, dtype, False)
    if exponent < 0 and not is_inexact(dtype):
        shown = f"{'~' if weak else ''}{dtype.name}[{','.join(map(str, np.shape(x)))}]"
        raise TypeError(f"Integers cannot be raised to negative powers, got integer_pow({shown}, {exponent})")
    return as_array(x) if exponent == 1 else ew.integer_pow(x, exponent)


def _int_to_int_power(x: Any, y: Any) -> Array:
    """Exponentiation by squaring: one step for each bit of the exponent (negative ones: all bits of it)."""
    x, y = broadcast_all(x, y)
    one, zero = constant_like(x, 1), constant_like(x, 0)
    result = select_where(ew.eq.bind(ew.and_.bind(y, one), one), x, sh.full_like(x, 1))
    bits = dtypes.itemsize_bits(x.dtype)
    for _ in range(bits - 1):
        x = ew.mul.bind(x, x)
        y = ew.shift_right_logical.bind(y, one)
        result = select_where(ew.eq.bind(ew.and_.bind(y, one), zero), result, ew.mul.bind(result, x))
    return result


@repeated
def float_power(x: ArrayLike, y: ArrayLike, /) -> Array:
    """x raised to the power y, in floating point."""
    return ew.pow.bind(*promote_inexact("float_power", x, y))


# ---------------------------------------------------------------- one operand, same dtype

def _unary(name: str, primitive: Any, doc: str) -> Callable[..., Any]:
    def function(x: ArrayLike, /) -> Array:
        out = EVAL.again(function, x)
        if out is not NotImplemented:
            return out
        given = operand(name, x)
        return remember(function, primitive, (x,), (given,), primitive.bind(given))

    return named(function, name, doc)


negative = _unary("negative", ew.neg, "-x.")
invert = _unary("invert", ew.not_, "Bitwise (for bools, logical) not.")
bitwise_not = bitwise_invert = invert


@repeated
def positive(x: ArrayLike, /) -> Array:
    """x itself, as an array."""
    return as_array(x, "positive")


def abs(x: ArrayLike, /) -> Array:
    """Absolute value; of a complex number, its modulus."""
    out = EVAL.again(abs, x)
    if out is not NotImplemented:
        return out
    given = operand("abs", x)
    dtype = numpy_dtype_of(given)
    if dtype.kind in "bu" or dtype in dtypes.SMALL_UNSIGNED:
        return as_array(given)
    return remember(abs, ew.abs, (x,), (given,), ew.abs.bind(given))


absolute = abs


def fabs(x: ArrayLike, /) -> Array:
    """Absolute value as a float; TypeError for complex numbers."""
    x = inexact("fabs", x)
    if is_complex(numpy_dtype_of(x)):
        raise TypeError("ufunc 'fabs' does not support complex dtypes")
    return ew.abs.bind(x)


@repeated
def sign(x: ArrayLike, /) -> Array:
    """-1, 0 or 1; of a complex number, z / abs(z); NaN of NaN."""
    return ew.sign.bind(operand("sign", x))


@repeated
def square(x: ArrayLike, /) -> Array:
    """x * x."""
    x = operand("square", x)
    if numpy_dtype_of(x) == np.bool_:
        x = convert_operand(x, np.dtype(np.int32), False)
    return ew.square.bind(x)


@repeated
def reciprocal(x: ArrayLike, /) -> Array:
    """1 / x, in floating point."""
    x = inexact("reciprocal", x)
    return ew.integer_pow(x, -1)


def conjugate(x: ArrayLike, /) -> Array:
    """Complex conjugate; real numbers as they are."""
    x = as_array(x, "conjugate")
    return ew.conj(x) if is_complex(x.dtype) else x


conj = conjugate


@repeated
def real(val: ArrayLike, /) -> Array:
    """Real part."""
    x = as_array(val, "real")
    return ew.real(x) if is_complex(x.dtype) else x


@repeated
def imag(val: ArrayLike, /) -> Array:
    """Imaginary part; zeros for real numbers."""
    x = as_array(val, "imag")
    return ew.imag(x) if is_complex(x.dtype) else sh.full_like(x, 0)


@repeated
def angle(z: ArrayLike, deg: bool = False) -> Array:
    """The argument of complex numbers, in radians, or in degrees if `deg`."""
    z = operand("angle", z)
    if not is_inexact(numpy_dtype_of(z)):
        z = convert_operand(z, dtypes.default_float(), False)
    if is_complex(numpy_dtype_of(z)):
        re, im = ew.real(z), ew.imag(z)
    else:
        re, im = as_array(z), sh.full_like(as_array(z), 0)
    result = ew.atan2.bind(im, re)
    if not deg:
        return result
    return ew.convert(ew.mul.bind(result, constant_like(result, 180 / np.pi)), result.dtype, result.weak_type)


@repeated
def bitwise_count(x: ArrayLike, /) -> Array:
    """The number of 1 bits of abs(x), as uint8."""
    x = operand("bitwise_count", x)
    if numpy_dtype_of(x) == np.bool_:
        return ew.convert_element_type(as_array(x), np.uint8)
    return ew.convert_element_type(ew.population_count(abs(x)), np.uint8)


# ---------------------------------------------------------------- comparisons and logic

def _lexicographic(compare: Any, x: Any, y: Any) -> Array:
    """Complex numbers compared by their real parts, then by their imaginary parts."""
    real_x, real_y = ew.real(x), ew.real(y)
    return select_where(ew.eq.bind(real_x, real_y), compare.bind(ew.imag(x), ew.imag(y)),
                        compare.bind(real_x, real_y))


def _comparison(name: str, primitive: Any, doc: str, ordered: bool = True) -> Callable[..., Any]:
    bind = primitive.bind

    def function(x: ArrayLike, y: ArrayLike, /) -> Array:
        out = EVAL.again(function, x, y)
        if out is not NotImplemented:
            return out
        a, b = promote(name, x, y)
        if ordered and is_complex(numpy_dtype_of(a)):
            return _lexicographic(primitive, as_array(a), as_array(b))
        return remember(function, primitive, (x, y), (a, b), bind(a, b))

    return named(function, name, doc)


equal = _comparison("equal", ew.eq, "x == y, element by element.", ordered=False)
not_equal = _comparison("not_equal", ew.ne, "x != y, element by element.", ordered=False)
less = _comparison("less", ew.lt, "x < y, element by element; complex numbers in lexicographic order.")
less_equal = _comparison("less_equal", ew.le, "x <= y, element by element; complex in lexicographic order.")
greater = _comparison("greater", ew.gt, "x > y, element by element; complex numbers in lexicographic order.")
greater_equal = _comparison("greater_equal", ew.ge, "x >= y, element by element; complex in lexicographic order.")


def _logical(name: str, primitive: Any, doc: str) -> Callable[..., Any]:
    def function(x: ArrayLike, y: ArrayLike, /) -> Array:
        x, y = operands(name, x, y)
        dtypes.result_type(x, y)  # an error where nothing promotes implicitly
        return primitive.bind(*equal_ranks(name, [to_bool(x), to_bool(y)]))

    return named(of_numbers(function), name, doc)


logical_and = _logical("logical_and", ew.and_, "Whether both elements are nonzero.")
logical_or = _logical("logical_or", ew.or_, "Whether either element is nonzero.")
logical_xor = _logical("logical_xor", ew.xor, "Whether exactly one of the elements is nonzero.")


@repeated
def logical_not(x: ArrayLike, /) -> Array:
    """Whether an element is zero."""
    return ew.not_.bind(to_bool(operand("logical_not", x)))


@repeated
def isfinite(x: ArrayLike, /) -> Array:
    """Whether elements are neither infinite nor NaN."""
    x = operand("isfinite", x)
    dtype = numpy_dtype_of(x)
    if is_complex(dtype):
        return ew.and_.bind(ew.is_finite(ew.real(x)), ew.is_finite(ew.imag(x)))
    return ew.is_finite(x) if dtype in INEXACT else sh.full_like(as_array(x), True, dtype=np.bool_)


@repeated
def isnan(x: ArrayLike, /) -> Array:
    """Whether elements are NaN."""
    x = operand("isnan", x)
    if dtypes.is_extended(aval_of(x).dtype):
        raise TypeError(f"isnan does not accept dtype {aval_of(x).dtype}.")
    return ew.ne.bind(x, x)


@repeated
def isinf(x: ArrayLike, /) -> Array:
    """Whether elements are infinite."""
    x = operand("isinf", x)
    dtype = numpy_dtype_of(x)
    if is_complex(dtype):
        return ew.or_.bind(isinf(ew.real(x)), isinf(ew.imag(x)))
    if dtype not in INEXACT:
        return sh.full_like(as_array(x), False, dtype=np.bool_)
    return ew.eq.bind(ew.abs.bind(x), constant_like(x, np.inf))


def _signed_inf(name: str, x: Any, infinity: float, out: Any) -> Array:
    if out is not None:
        raise NotImplementedError(f"The 'out' argument to anima.numpy.{name} is not supported.")
    x = operand(name, x)
    dtype = numpy_dtype_of(x)
    if is_complex(dtype):
        raise ValueError(f"{name} is not well defined for complex types")
    if dtype not in INEXACT:
        return sh.full_like(as_array(x), False, dtype=np.bool_)
    return ew.eq.bind(x, constant_like(x, infinity))


@repeated
def isposinf(x: ArrayLike, /, out: None = None) -> Array:
    """Whether elements are +infinity; ValueError for complex numbers."""
    return _signed_inf("isposinf", x, np.inf, out)


@repeated
def isneginf(x: ArrayLike, /, out: None = None) -> Array:
    """Whether elements are -infinity; ValueError for complex numbers."""
    return _signed_inf("isneginf", x, -np.inf, out)


@repeated
def signbit(x: ArrayLike, /) -> Array:
    """Whether the sign is set, also of -0.0 and NaN; ValueError for complex numbers."""
    x = as_array(x, "signbit")
    if is_complex(x.dtype):
        raise ValueError("signbit is not well defined for complex types")
    if x.dtype == np.bool_ or x.dtype.kind == "u":
        return sh.full_like(x, False, dtype=np.bool_)
    if x.dtype in INEXACT:
        x = ew.bitcast_convert_type(x, np.dtype(f"int{dtypes.itemsize_bits(x.dtype)}"))
    return ew.lt.bind(x, constant_like(x, 0))


@of_numbers
def copysign(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """abs(x1) with the sign of x2."""
    x1, x2 = promote_inexact("copysign", x1, x2)
    if is_complex(numpy_dtype_of(x1)):
        raise TypeError("copysign does not support complex-valued inputs")
    magnitude = ew.abs.bind(x1)
    return select_where(signbit(x2), ew.neg.bind(magnitude), magnitude)


def _ignoring_nan(name: str, primitive: Any, doc: str) -> Callable[..., Any]:
    def function(x1: ArrayLike, x2: ArrayLike) -> Array:
        x1, x2 = promote(name, x1, x2)
        chosen = primitive.bind(x1, x2)
        if numpy_dtype_of(x1) not in INEXACT:
            return chosen
        return select_where(isnan(x1), x2, select_where(isnan(x2), x1, chosen))

    return named(of_numbers(function), name, doc)


fmax = _ignoring_nan("fmax", ew.max, "The larger of two elements; the other one if one is NaN.")
fmin = _ignoring_nan("fmin", ew.min, "The smaller of two elements; the other one if one is NaN.")


@of_numbers
def isclose(a: ArrayLike, b: ArrayLike, rtol: ArrayLike = 1e-05, atol: ArrayLike = 1e-08,
            equal_nan: bool = False) -> Array:
    """Whether abs(a - b) <= atol + rtol * abs(b); equal infinities are close, NaN only if `equal_nan`; random keys are
    if they are equal."""
    a, b = promote("isclose", a, b)
    if dtypes.is_extended(dtypes.dtype_of(a)):
        return equal(a, b)
    if numpy_dtype_of(a) not in INEXACT:
        a, b = promote_dtypes_inexact("isclose", a, b)
        a, b = equal_ranks("isclose", [a, b])
    real_dtype = dtypes.to_real(numpy_dtype_of(a))
    rtol, atol = (convert_operand(operand("isclose", t), real_dtype, False) for t in (rtol, atol))
    distance, size = ew.abs.bind(ew.sub.bind(a, b)), ew.abs.bind(b)
    close = less_equal(distance, add(atol, multiply(rtol, size)))
    close = logical_and(close, isfinite(b))
    close = logical_or(close, ew.eq.bind(a, b))
    return logical_or(close, logical_and(isnan(a), isnan(b))) if equal_nan else close


@of_numbers
def allclose(a: ArrayLike, b: ArrayLike, rtol: ArrayLike = 1e-05, atol: ArrayLike = 1e-08,
             equal_nan: bool = False) -> Array:
    """Whether all elements of `a` and `b` are close; see `isclose`."""
    close = as_array(isclose(a, b, rtol, atol, equal_nan))
    return reduce_and(close, tuple(range(close.ndim)))
