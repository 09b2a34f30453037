"""Elementwise operations: the table of functions and their derivatives.

Each line reads: name, function on NumPy arrays, accepted kinds of dtypes, meaning, derivative. In a
derivative rule `t` is the tangent of one operand, `y` (or `z`) the result, the rest are the operands.
For complex numbers the rules are those of holomorphic functions; `abs`, `real`, `imag` and `conj`
differentiate as functions of real and imaginary part.

    >>> sin.jvp([jnp.zeros(2)], [jnp.ones(2)])        # (sin(x), mul(t, cos(x)))
    (Array([0., 0.], dtype=float32), Array([1., 1.], dtype=float32))
"""

# Rules name operations that are defined further down.
# mypy: disable-error-code="has-type"

from __future__ import annotations

import enum
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from anima import tree
from anima.core import dtypes
from anima.core.array import Array, ConcreteArray
from anima.core.avals import Shape, ShapedArray, scalar_type, tangent_aval
from anima.core.primitive import LARGE, Linear, Primitive, ShardingRule, Work, Zero
from anima.core.sharding_rules import leading
from anima.core.trace import aval_of
from anima.ops import complex_functions, reference
from anima.ops.broadcast import as_array, broadcast_to
from anima.ops.family import (
    ANY,
    ARRAY,
    BITS,
    INEXACT,
    INTEGER,
    NUMBER,
    ORDERED,
    REAL,
    Elementwise,
    add_any as add_any,
    constant,
    is_kind,
    known_scalar,
    match_scalars,
    no_derivative,
    unbroadcast,
)
from anima.ops.shape import moveaxis


class RoundingMethod(enum.IntEnum):
    """Where `round` takes a number half way between two integers."""

    AWAY_FROM_ZERO = 0
    TO_NEAREST_EVEN = 1


def _bool(dtype: Any) -> np.dtype:
    return dtypes.bool_


def _real_part(dtype: Any) -> Any:
    return np.zeros(0, dtype).real.dtype


def _complex_of(dtype: Any) -> Any:
    return np.result_type(dtype, np.complex64)


def _constant(x: Any, like: Any) -> Any:
    return constant(x, like.dtype)


# ---------------------------------------------------------------- exponentials and powers

exp = Elementwise("exp", np.exp, INEXACT, "e to the power x.", accuracy=True,
                  jvp=(lambda t, y, x: mul(t, y),))
exp2 = Elementwise("exp2", np.exp2, INEXACT, "2 to the power x.", accuracy=True,
                   jvp=(lambda t, y, x: mul(_constant(math.log(2.0), y), mul(t, y)),))
expm1 = Elementwise("expm1", reference.expm1, INEXACT, "exp(x) - 1, accurate near 0.", accuracy=True,
                    real=np.expm1, jvp=(lambda t, y, x: mul(t, add(y, 1.0)),))
log = Elementwise("log", np.log, INEXACT, "Natural logarithm of x.", accuracy=True,
                  jvp=(lambda t, y, x: div(t, x),))
log1p = Elementwise("log1p", reference.log1p, INEXACT, "log(1 + x), accurate near 0.", accuracy=True,
                    real=np.log1p, jvp=(lambda t, y, x: div(t, add(x, 1.0)),))
sqrt = Elementwise("sqrt", np.sqrt, INEXACT, "Square root of x; NaN for negative reals.", accuracy=True,
                   cost=4, jvp=(lambda t, y, x: mul(t, div(0.5, y)),))
rsqrt = Elementwise("rsqrt", reference.rsqrt, INEXACT, "1 / sqrt(x).", accuracy=True,
                    cost=5, jvp=(lambda t, y, x: mul(t, mul(-0.5, div(y, x))),))
cbrt = Elementwise("cbrt", np.cbrt, REAL, "Real cube root of x.", accuracy=True,
                   cost=10, jvp=(lambda t, y, x: mul(t, mul(1 / 3, integer_pow(y, -2))),))
square = Elementwise("square", reference.square, NUMBER, "x * x.",
                     real=np.square, jvp=(lambda t, y, x: mul(t, mul(2, x)),))
logistic = Elementwise("logistic", reference.logistic, INEXACT, "1 / (1 + exp(-x)).", accuracy=True,
                       jvp=(lambda t, y, x: mul(t, mul(y, sub(1.0, y))),))


def _pow_base(t: Any, z: Any, x: Any, y: Any) -> Any:
    """d(x^y)/dx = y x^(y-1); 0 where y = 0, even at x = 0."""
    known = known_scalar(y)
    if known is not None:
        if known == 0:
            return None
        return mul(t, mul(constant(known, x.dtype), pow(x, constant(known - 1, x.dtype))))
    y = convert(y, x.dtype)
    both = and_(eq(x, 0), eq(y, 0))  # elsewhere the slope itself is smooth at y = 0
    return mul(t, mul(y, pow(_choose(both, x, _constant(1, x)), sub(y, 1))))


def _pow_exponent(t: Any, z: Any, x: Any, y: Any) -> Any:
    """d(x^y)/dy = x^y log x; 0 where x = 0, which is right for every y > 0."""
    return mul(t, mul(log(_choose(eq(x, 0), x, _constant(1, x))), z))


class Power(Elementwise):
    """`x ** y`; the exponent may be of integers."""

    reads_numbers = True

    def infer(self, x: ShapedArray, y: ShapedArray) -> ShapedArray:
        if not dtypes.issubdtype(y.dtype, np.integer):
            return super().infer(x, y)
        if dtypes.issubdtype(x.dtype, np.inexact):
            y = y.update(dtype=x.dtype)
        return super().infer(x, y)


pow = Power("pow", reference.power, INEXACT, "x to the power y.", operands="x y",
            cost=20, jvp=(_pow_base, _pow_exponent))

integer_pow_p = Elementwise(
    "integer_pow", reference.integer_power, NUMBER, "x to the power y, a constant integer.",
    cost=3, jvp=(lambda t, z, x, *, y: None if y == 0 else t if y == 1 else mul(t, mul(y, integer_pow(x, y - 1))),))
integer_pow_p.exact, sqrt.exact = False, True
integer_pow_p.as_ufunc = lambda avals, params: np.square if params["y"] == 2 and avals[0].dtype in (
    np.float32, np.float64) else None


def integer_pow(x: Any, y: int) -> Any:
    """`x ** y` for a constant int `y`, by repeated squaring; TypeError for integers to a negative power."""
    y = operator.index(y)
    aval = aval_of(x)
    if y < 0 and dtypes.issubdtype(aval.dtype, np.integer):
        raise TypeError(f"Integers cannot be raised to negative powers, got integer_pow({aval}, {y})")
    return as_array(x) if y == 1 else integer_pow_p.bind(x, y=y)


# ---------------------------------------------------------------- trigonometric and hyperbolic

def _one_minus_square(x: Any) -> Any:
    """1 - x^2 with the slope -2x, that is finite at 1; the factors are accurate near 1, where the square is not."""
    smooth = sub(1.0, square(x))
    return add(smooth, stop_gradient_p.bind(sub(mul(sub(1.0, x), add(1.0, x)), smooth)))


def _acosh_slope(x: Any) -> Any:
    return mul(rsqrt(sub(x, 1.0)), rsqrt(add(x, 1.0)))  # on the branch of acosh itself, and without overflow


sin = Elementwise("sin", np.sin, INEXACT, "Sine of x (radians).", accuracy=True,
                  jvp=(lambda t, y, x: mul(t, cos(x)),))
cos = Elementwise("cos", np.cos, INEXACT, "Cosine of x (radians).", accuracy=True,
                  jvp=(lambda t, y, x: neg(mul(t, sin(x))),))
tan = Elementwise("tan", np.tan, INEXACT, "Tangent of x (radians).", accuracy=True,
                  jvp=(lambda t, y, x: mul(t, add(1.0, square(y))),))
asin = Elementwise("asin", np.arcsin, INEXACT, "Angle in [-pi/2, pi/2] whose sine is x.",
                   jvp=(lambda t, y, x: mul(t, rsqrt(_one_minus_square(x))),))
acos = Elementwise("acos", np.arccos, INEXACT, "Angle in [0, pi] whose cosine is x.",
                   jvp=(lambda t, y, x: mul(t, neg(rsqrt(_one_minus_square(x)))),))
atan = Elementwise("atan", np.arctan, INEXACT, "Angle in [-pi/2, pi/2] whose tangent is x.",
                   jvp=(lambda t, y, x: div(t, add(1.0, square(x))),))
atan2 = Elementwise("atan2", reference.atan2, INEXACT, "Angle of the point (y, x) in [-pi, pi].",
                    operands="x y", cost=20,
                    real=np.arctan2, jvp=(lambda t, z, x, y: mul(t, div(y, add(square(x), square(y)))),
                         lambda t, z, x, y: mul(t, div(neg(x), add(square(x), square(y))))))
sinh = Elementwise("sinh", np.sinh, INEXACT, "Hyperbolic sine of x.",
                   jvp=(lambda t, y, x: mul(t, cosh(x)),))
cosh = Elementwise("cosh", np.cosh, INEXACT, "Hyperbolic cosine of x.",
                   jvp=(lambda t, y, x: mul(t, sinh(x)),))
tanh = Elementwise("tanh", np.tanh, INEXACT, "Hyperbolic tangent of x.", accuracy=True,
                   jvp=(lambda t, y, x: mul(add(t, mul(t, y)), sub(1.0, y)),))
asinh = Elementwise("asinh", np.arcsinh, INEXACT, "Inverse of sinh.",
                    jvp=(lambda t, y, x: mul(t, rsqrt(add(square(x), 1.0))),))
acosh = Elementwise("acosh", np.arccosh, INEXACT, "Inverse of cosh, not negative.",
                    jvp=(lambda t, y, x: mul(t, _acosh_slope(x)),))
atanh = Elementwise("atanh", np.arctanh, INEXACT, "Inverse of tanh.",
                    jvp=(lambda t, y, x: div(t, _one_minus_square(x)),))

# ---------------------------------------------------------------- arithmetic

neg = Elementwise("neg", np.negative, NUMBER, "-x.", linear=True,
                  jvp=(lambda t, y, x: neg(t),), transpose=(lambda ct, x: neg(ct),))
add = Elementwise("add", np.add, NUMBER, "x + y.", operands="x y", linear=True,
                  jvp=(lambda t, z, x, y: t, lambda t, z, x, y: t),
                  transpose=(lambda ct, x, y: ct, lambda ct, x, y: ct))
sub = Elementwise("sub", np.subtract, NUMBER, "x - y.", operands="x y", linear=True,
                  jvp=(lambda t, z, x, y: t, lambda t, z, x, y: neg(t)),
                  transpose=(lambda ct, x, y: ct, lambda ct, x, y: neg(ct)))
mul = Elementwise("mul", np.multiply, NUMBER, "x * y.", operands="x y",
                  jvp=(lambda t, z, x, y: mul(t, y), lambda t, z, x, y: mul(x, t)),
                  transpose=(lambda ct, x, y: mul(ct, y), lambda ct, x, y: mul(x, ct)))
div = Elementwise("div", reference.divide, NUMBER,
                  "x / y; of integers, truncated towards zero, and -1 where y is 0.", operands="x y", cost=4,
                  real=np.true_divide, jvp=(lambda t, z, x, y: div(t, y),
                       lambda t, z, x, y: mul(mul(neg(t), x), integer_pow(y, -2))),
                  transpose=(lambda ct, x, y: div(ct, y), None))
rem = Elementwise("rem", reference.remainder, (np.integer, np.floating),
                  "Remainder of x / y with the sign of x.", operands="x y",
                  cost=8, real=np.fmod,
                  jvp=(lambda t, z, x, y: t, lambda t, z, x, y: mul(neg(t), _truncated(div(x, y)))))
mulhi = Elementwise("mulhi", reference.multiply_high, INTEGER, "Upper half of the product of integers.",
                    operands="x y", jvp=None)


def _truncated(x: Any) -> Any:
    return mul(sign(x), floor(abs(x)))


def _share(x: Any, y: Any, z: Any) -> Any:
    """How much of max or min `z` belongs to `x`: all, nothing, or half where both are equal."""
    return _choose(eq(x, y), convert(eq(x, z), z.dtype, aval_of(z).weak_type), _constant(0.5, z))


max = Elementwise("max", reference.maximum, ARRAY, "The larger of x and y; NaN if either is.",
                  operands="x y",
                  jvp=(lambda t, z, x, y: mul(t, _share(x, y, z)),
                       lambda t, z, x, y: mul(t, _share(y, x, z))))
min = Elementwise("min", reference.minimum, ARRAY, "The smaller of x and y; NaN if either is.",
                  operands="x y",
                  jvp=(lambda t, z, x, y: mul(t, _share(x, y, z)),
                       lambda t, z, x, y: mul(t, _share(y, x, z))))


def _abs_jvp(t: Any, y: Any, x: Any) -> Any:
    if not dtypes.issubdtype(x.dtype, np.complexfloating):
        return mul(t, _choose(ge(x, 0), _constant(-1, x), _constant(1, x)))
    size = convert(y, x.dtype)
    return real(mul(t, div(conj(x), _choose(eq(size, 0), size, _constant(1, size)))))


abs = Elementwise("abs", np.abs, (np.floating, np.complexfloating, np.signedinteger),
                  "Absolute value of x; its slope at 0 is 1.", jvp=(_abs_jvp,), result=_real_part)
sign = Elementwise("sign", reference.sign, NUMBER, "-1, 0 or 1; for complex numbers x / |x|.", jvp=None)
floor = Elementwise("floor", np.floor, REAL, "Largest integer not above x.", jvp=None)
ceil = Elementwise("ceil", np.ceil, REAL, "Smallest integer not below x.", jvp=None)
round_p = Elementwise("round", reference.round_half, REAL, "x rounded to an integer.", jvp=None)
nextafter = Elementwise("nextafter", reference.nextafter, REAL, "The number next to x1 in the direction of x2.",
                        operands="x1 x2", jvp=(no_derivative("nextafter", "x1"), no_derivative("nextafter", "x2")),
                        widen=False)
is_finite = Elementwise("is_finite", np.isfinite, REAL, "Whether x is neither infinite nor NaN.",
                        jvp=None, result=_bool)


def round(x: Any, rounding_method: RoundingMethod = RoundingMethod.AWAY_FROM_ZERO) -> Any:
    """`x` rounded to the nearest integer, halves as `rounding_method` says."""
    return round_p.bind(x, rounding_method=RoundingMethod(rounding_method))


# ---------------------------------------------------------------- comparison, choice

class Equality(Elementwise):
    """`eq` or `ne`; two elements of extended types (random keys) are equal if all of their parts are."""

    def eval_extended(self, avals: Sequence[ShapedArray], args: Sequence[Any], params: dict[str, Any]) -> Any:
        axes = tuple(range(-len(avals[0].dtype.element_shape), 0))
        return (np.all if self.name == "eq" else np.any)(self.fun(*args), axis=axes)


eq = Equality("eq", np.equal, ANY, "x == y.", operands="x y", jvp=None, result=_bool)
ne = Equality("ne", np.not_equal, ANY, "x != y.", operands="x y", jvp=None, result=_bool)
lt = Elementwise("lt", np.less, ORDERED, "x < y.", operands="x y", jvp=None, result=_bool)
le = Elementwise("le", np.less_equal, ORDERED, "x <= y.", operands="x y", jvp=None, result=_bool)
gt = Elementwise("gt", np.greater, ORDERED, "x > y.", operands="x y", jvp=None, result=_bool)
ge = Elementwise("ge", np.greater_equal, ORDERED, "x >= y.", operands="x y", jvp=None, result=_bool)


class SelectN(Elementwise):
    """The case that `which` names. Differentiable in the cases."""

    def infer(self, which: ShapedArray, *cases: ShapedArray) -> ShapedArray:
        if not is_kind(which.dtype, BITS):
            raise TypeError("select `which` must be boolean or integer type, "
                            f"got {dtypes.name(which.dtype)}.")
        if not cases:
            raise TypeError("select must have at least one case")
        if which.dtype == dtypes.bool_ and len(cases) > 2:
            raise TypeError("select with boolean `which` cannot have > 2 cases.")
        self._check_same_dtypes(cases)
        return ShapedArray(self.broadcast((which, *cases)), cases[0].dtype, all(c.weak_type for c in cases))

    def eval_extended(self, avals: Sequence[ShapedArray], args: Sequence[Any], params: dict[str, Any]) -> Any:
        which, *cases = args
        parts = (1,) * len(avals[1].dtype.element_shape)
        return self.fun(which.reshape(which.shape + parts) if which.ndim else which, *cases)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        out, which, ts = self.bind(*primals), primals[0], tangents[1:]
        if any(not isinstance(t, Zero) for t in ts):
            cases = [_constant(0, out) if isinstance(t, Zero) else t for t in ts]
            tangent = self.bind(which, *cases)
            return out, tangent if tangent.shape == out.shape else broadcast_to(tangent, out.shape)
        return out, Zero(tangent_aval(aval_of(out)))

    def transpose(self, ct: Any, which: Any, *cases: Any) -> Sequence[Any]:
        cts: list[Any] = [None]
        for i, case in enumerate(cases):
            if not isinstance(case, Linear):
                cts.append(None)
            elif isinstance(ct, Zero):
                cts.append(Zero(case.aval))
            else:
                parts = [ct if j == i else _constant(0, ct) for j in range(len(cases))]
                cts.append(unbroadcast(self.bind(which, *parts), case.aval))
        return cts


select_n_p = SelectN("select_n", reference.select, ANY, "The case that `which` names, element by element.",
                     operands="which cases", jvp=None)
_choose = select_n_p.bind


def select_n(which: Any, *cases: Any) -> Any:
    """Element by element, `cases[which]`; `which` is bool or of integers (clamped to the cases).

    The cases have one shape and dtype; `which` has that shape or is a scalar, or the cases are scalars. TypeError
    otherwise. Differs from JAX: that takes scalars beside an array only where `vmap` maps over the array.
    """
    cases = tuple(match_scalars(cases))
    shapes = [aval_of(c).shape for c in cases]
    if any(s != shapes[0] for s in shapes):
        raise TypeError(f"select cases must have the same shapes, got [{', '.join(map(str, shapes))}].")
    given = aval_of(which).shape
    if given and cases and not shapes[0]:
        cases = tuple(broadcast_to(c, given) for c in cases)
    elif given and cases and given != shapes[0]:
        raise TypeError("select `which` must be scalar or have the same shape as cases, "
                        f"got `which` shape {given} but case shape {shapes[0]}.")
    return select_n_p.bind(which, *cases)


def select(pred: Any, on_true: Any, on_false: Any) -> Any:
    """`on_true` where `pred`, else `on_false`; shapes and dtypes as in `select_n`."""
    return select_n(pred, on_false, on_true)


def _within(t: Any, mask: Any) -> Any:
    return _choose(mask, _constant(0, t), t)


clamp_p = Elementwise(
    "clamp", reference.clamp, ARRAY, "x limited to [min, max].", operands="min x max",
    jvp=(lambda t, y, low, x, high: _within(t, and_(gt(low, x), lt(low, high))),
         lambda t, y, low, x, high: _within(t, and_(gt(x, low), lt(x, high))),
         lambda t, y, low, x, high: _within(t, or_(lt(high, x), lt(high, low)))))


def clamp(min: Any, x: Any, max: Any) -> Any:
    """`x` limited to `[min, max]`, bounds that are scalars or of its shape; `max` wins where they cross."""
    low, x, high = match_scalars((min, x, max))
    shape = aval_of(x).shape
    for name, bound in (("min", low), ("max", high)):
        given: Shape = aval_of(bound).shape
        if given not in ((), shape):
            raise TypeError(f"clamp requires {name}.shape == operand.shape or {name}.shape == (), got "
                            f"{name}.shape={given}, operand.shape={shape}.")
    return clamp_p.bind(low, x, high)


# ---------------------------------------------------------------- bits

class Bits(Elementwise):
    """An operation that sees all bits of integers; those of less than a byte have no more than their own."""

    def eval(self, *args: np.ndarray, **params: Any) -> Any:
        dtype, bits = args[0].dtype, dtypes.itemsize_bits(args[0].dtype)
        if bits >= 8:
            return super().eval(*args, **params)
        out = self.fun(*[np.asarray(a).view(np.uint8) & np.uint8((1 << bits) - 1) for a in args])
        return (out - np.uint8(8 - bits) if self.name == "clz" else out).astype(dtype)


and_ = Elementwise("and", np.bitwise_and, BITS, "Bits in x and y.", operands="x y", jvp=None)
or_ = Elementwise("or", np.bitwise_or, BITS, "Bits in x or y.", operands="x y", jvp=None)
xor = Elementwise("xor", np.bitwise_xor, BITS, "Bits in one of x and y.", operands="x y", jvp=None)
not_ = Elementwise("not", np.invert, BITS, "Bits not in x.", jvp=None)
shift_left = Elementwise("shift_left", reference.shift_left, INTEGER,
                         "x << y; 0 beyond the width.", operands="x y", jvp=None)
shift_right_logical = Bits("shift_right_logical", reference.shift_right_logical, INTEGER,
                           "x >> y with zeros in; 0 beyond the width.", operands="x y", jvp=None)
shift_right_arithmetic = Elementwise("shift_right_arithmetic", reference.shift_right_arithmetic, INTEGER,
                                     "x >> y with the sign bit in; y beyond the width counts as the width.",
                                     operands="x y", jvp=None)
population_count = Bits("population_count", reference.population_count, INTEGER, "Number of one bits.", jvp=None)
clz = Bits("clz", reference.count_leading_zeros, INTEGER, "Number of leading zero bits.", jvp=None)

# ---------------------------------------------------------------- complex numbers

real = Elementwise("real", np.real, (np.complexfloating,), "Real part of x.", linear=True,
                   result=_real_part,
                   jvp=(lambda t, y, x: real(t),), transpose=(lambda ct, x: complex(ct, 0.0),))
imag = Elementwise("imag", np.imag, (np.complexfloating,), "Imaginary part of x.", linear=True,
                   result=_real_part,
                   jvp=(lambda t, y, x: imag(t),),
                   transpose=(lambda ct, x: complex(_constant(0, ct), neg(ct)),))
complex = Elementwise("complex", complex_functions.of_parts, (np.float32, np.float64), "x + i y.", operands="x y",
                      linear=True, result=_complex_of,
                      jvp=(lambda t, z, x, y: complex(t, _constant(0, t)),
                           lambda t, z, x, y: complex(_constant(0, t), t)),
                      transpose=(lambda ct, x, y: real(ct), lambda ct, x, y: imag(neg(ct))))
conj_p = Elementwise(
    "conj", lambda x, input_dtype: np.conjugate(x).astype(_complex_of(x.dtype), copy=False),
    (np.float32, np.float64, np.complexfloating), "Complex conjugate of x.", linear=True,
    result=_complex_of,
    jvp=(lambda t, y, x, **params: conj_p.bind(t, **params),),
    transpose=(lambda ct, x, input_dtype: conj(ct) if input_dtype.kind == "c" else real(ct),))


def conj(x: Any) -> Any:
    """The complex conjugate of `x`; of a real `x`, the complex number with its value."""
    return conj_p.bind(x, input_dtype=aval_of(x).dtype)


# ---------------------------------------------------------------- conversions and identities

class Identity(Elementwise):
    """An operation that keeps every element, of whatever type, as it is."""

    moves = True
    large: int | None = None

    def work(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], programs: Sequence[Work],
             **params: Any) -> Work:
        return Work()

    def eval(self, x: np.ndarray, **params: Any) -> Any:
        return self.fun(x, **params)

    def physical(self, avals: Sequence[ShapedArray], params: dict[str, Any]) -> dict[str, Any]:
        return params


class Convert(Identity):
    """`x` in another dtype; linear between inexact dtypes, constant otherwise."""

    large = LARGE

    def infer(self, x: ShapedArray, *, new_dtype: Any, weak_type: bool = False) -> ShapedArray:
        if dtypes.is_extended(x.dtype) != dtypes.is_extended(new_dtype):
            raise TypeError(f"Cannot convert dtype {dtypes.name(x.dtype)} to {dtypes.name(new_dtype)}.")
        return ShapedArray(x.shape, new_dtype, weak_type)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        out, t = self.bind(*primals, **params), tangents[0]
        if isinstance(t, Zero) or not dtypes.issubdtype(params["new_dtype"], np.inexact):
            return out, Zero(tangent_aval(aval_of(out)))
        return out, self.bind(t, **params)


def _convert_reference(x: np.ndarray, new_dtype: Any, weak_type: bool = False) -> np.ndarray:
    return reference.convert(x, new_dtype)


convert_element_type_p = Convert(
    "convert_element_type", _convert_reference, ANY, "x in another dtype.", cost=0.5, jvp=None,
    transpose=(lambda ct, x, **params: convert(ct, x.aval.dtype, x.aval.weak_type),))


def convert(x: Any, dtype: Any, weak_type: bool = False) -> Any:
    """`x` as an array of a canonical dtype and weak type; `x` itself if it has them already."""
    aval = aval_of(x)
    if aval.dtype == dtype and aval.weak_type == weak_type:
        return as_array(x)
    if not isinstance(x, Array) and not aval.shape:
        with np.errstate(all="ignore"):
            value = np.asarray(reference.convert(np.array(x, aval.dtype), dtype))  # NumPy makes scalars of 0-d arrays
        return ConcreteArray(value, scalar_type(dtype, weak_type))
    return convert_element_type_p.bind(x, new_dtype=dtype, weak_type=weak_type)


def convert_element_type(operand: Any, new_dtype: Any) -> Any:
    """`operand` in another dtype. Floats become integers by truncation, limited to their range (NaN is 0);
    complex numbers lose their imaginary part; integers wrap around, those of Python, of up to 64 bits, too.
    """
    dtype = dtypes.canonicalize_dtype(new_dtype)
    if not dtypes.is_supported(dtype):
        raise TypeError(f"Anima supports only number and bool dtypes, got dtype {new_dtype} in convert_element_type")
    if type(operand) is int and not isinstance(dtype, dtypes.ExtendedDType):  # of 64 bits, whatever the default is
        value = reference.convert(np.array(operand, np.int64), dtype)
        return ConcreteArray(np.asarray(value), scalar_type(dtype, False))
    return convert(operand, dtype)


class Bitcast(Primitive):
    """The same bits as another dtype; where sizes differ, a last dimension holds the parts of one element."""

    cost = 1.0
    exact = True

    def infer(self, x: ShapedArray, *, new_dtype: Any) -> ShapedArray:
        if x.dtype == new_dtype:
            return ShapedArray(x.shape, new_dtype)
        for dtype in (x.dtype, new_dtype):
            if dtypes.is_extended(dtype) or not is_kind(dtype, (np.integer, np.floating)):
                raise TypeError("bitcast_convert_type does not support bool or complex values unless the operand "
                                f"and destination types match. Got operand dtype={dtypes.name(x.dtype)}, "
                                f"new_dtype={dtypes.name(new_dtype)}.")
        old, new = dtypes.itemsize_bits(x.dtype), dtypes.itemsize_bits(new_dtype)
        if old >= new:
            return ShapedArray(x.shape + ((old // new,) if old > new else ()), new_dtype)
        if x.shape[-1:] != (new // old,):
            raise ValueError(f"Attempting to convert array of shape {x.shape} from {dtypes.name(x.dtype)} of size "
                             f"{old} bits to {dtypes.name(new_dtype)} of size {new} bits, but its last dimension "
                             f"is not {new // old}")
        return ShapedArray(x.shape[:-1], new_dtype)

    def sharding_rule(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray],
                      **params: Any) -> ShardingRule:
        return leading(sorted((avals[0].ndim, outs[0].ndim))[0], avals, outs)  # `min` is an operation here

    def eval(self, x: np.ndarray, *, new_dtype: Any) -> np.ndarray:
        return reference.bitcast(x, new_dtype)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        out = self.bind(*primals, **params)
        return out, Zero(tangent_aval(aval_of(out)))

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None],
              **params: Any) -> tuple[Any, int]:
        d = dims[0]
        assert d is not None
        return self.bind(moveaxis(args[0], d, 0), **params), 0  # the last dimension is spoken for


bitcast_convert_type_p = Bitcast("bitcast_convert_type")


def bitcast_convert_type(operand: Any, new_dtype: Any) -> Any:
    """The bits of `operand` read as another dtype.

    Elements of a larger dtype become a new last dimension of parts, lowest first; the last dimension of
    parts of a larger one disappears. TypeError for bool and complex, ValueError if the parts do not fit.
    """
    return bitcast_convert_type_p.bind(operand, new_dtype=dtypes.canonicalize_dtype(new_dtype))


reduce_precision_p = Elementwise(
    "reduce_precision", reference.reduce_precision, REAL, "x rounded to fewer bits.",
    widen=False, linear=True,
    jvp=(lambda t, y, x, **p: reduce_precision_p.bind(t, **p),),
    transpose=(lambda ct, x, **p: reduce_precision_p.bind(ct, **p),))


def reduce_precision(operand: Any, exponent_bits: int, mantissa_bits: int) -> Any:
    """`operand` rounded to what a format with so many exponent and mantissa bits can hold."""
    exponent_bits, mantissa_bits = operator.index(exponent_bits), operator.index(mantissa_bits)
    if exponent_bits < 1:
        raise ValueError(f"reduce_precision: exponent_bits must be positive; got {exponent_bits}")
    if mantissa_bits < 0:
        raise ValueError(f"reduce_precision: mantissa_bits must be non-negative; got {mantissa_bits}")
    return reduce_precision_p.bind(operand, exponent_bits=exponent_bits, mantissa_bits=mantissa_bits)


copy = Identity("copy", np.copy, ANY, "x, in memory of its own.", linear=True,
                cost=0, jvp=(lambda t, y, x: copy(t),), transpose=(lambda ct, x: ct,))
optimization_barrier_p = Identity(
    "optimization_barrier", lambda x: x, ANY, "x, which the compiler is not to see through.", linear=True,
    cost=0, jvp=(lambda t, y, x: optimization_barrier_p(t),), transpose=(lambda ct, x: ct,))
stop_gradient_p = Identity("stop_gradient", lambda x: x, ANY, "x, as a constant to differentiation.",
                           cost=0, jvp=None)


def optimization_barrier(operand: Any) -> Any:
    """Every array of the tree `operand` as it is; what is computed from it is not merged with equal work elsewhere."""
    return tree.map(optimization_barrier_p, operand)


def stop_gradient(x: Any) -> Any:
    """Every array of the tree `x` as it is, but a constant to differentiation."""
    def stop(leaf: Any) -> Any:
        return stop_gradient_p.bind(leaf) if dtypes.issubdtype(aval_of(leaf).dtype, np.inexact) else leaf

    return tree.map(stop, x)
