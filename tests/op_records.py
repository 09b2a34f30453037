"""One record per operation: what it is in NumPy's words, on which arguments and dtypes, how exactly.

    Record(el.sin, np.sin, unary(-9, 9), INEXACT, ulps=2)

`test_every_op.py` crosses each record with every rule of its primitive. References get floats widened (to
float64, and float64 to the longest double there is) unless `native`, integers and bools as they are; what
they return is rounded once to the dtype of the result. Here: the records' types, drawing of arguments, and
elementwise operations; all others are in `op_records_structural.py`.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import mpmath
import numpy as np
import scipy.special

from anima.core import dtypes as dt
from anima.core.primitive import Primitive
from anima.ops import elementwise as el, special as sp

BOOL = ("bool",)
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
INTS = SIGNED + UNSIGNED
INEXACT = FLOATS + COMPLEX
NUMBERS = INTS + INEXACT
ORDERED = BOOL + INTS + FLOATS
BITS = BOOL + INTS
ALL = BOOL + NUMBERS


def dtype_of(name: str) -> np.dtype:
    """The dtype of a name, bfloat16 included."""
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def is_float(dtype: np.dtype) -> bool:
    return dt.issubdtype(dtype, np.floating)


# ---------------------------------------------------------------- arguments

@dataclass(frozen=True, eq=False)
class Arg:
    """How an operand is drawn: its shape and range; or its `values`; a dtype if not the one under test."""

    shape: tuple[int, ...] = ()
    low: float = -3.0
    high: float = 3.0
    dtype: str | None = None
    values: Any = None
    distinct: bool = False  # no two elements equal, and far enough apart for finite differences

    def draw(self, name: str, rng: np.random.Generator) -> np.ndarray:
        dtype = dtype_of(self.dtype or name)
        if self.values is not None:
            values = self.values(dtype) if callable(self.values) else self.values
            return np.array(values).astype(dtype).reshape(np.shape(values))
        if dtype.kind == "b":
            return rng.random(self.shape) < 0.5
        if dtype.kind in "iu":
            low, high = max(math.ceil(self.low), dt.iinfo(dtype).min), math.floor(self.high)
            return rng.integers(low, max(low, high) + 1, self.shape).astype(dtype)
        if self.distinct:
            steps = np.arange(math.prod(self.shape))
            spread = self.low + (self.high - self.low) * (steps + 0.7 * rng.random(steps.shape)) / max(len(steps), 1)
            return rng.permutation(spread).reshape(self.shape).astype(dtype)
        out = rng.uniform(self.low, self.high, self.shape)
        if dtype.kind == "c":
            out = out + 1j * rng.uniform(self.low, self.high, self.shape)
        return np.asarray(out).astype(dtype)


@dataclass(frozen=True, eq=False, repr=False)
class Case:
    """Operands and parameters of one application. `plain` cases are smooth: differentiated and mapped too."""

    args: tuple[Arg, ...]
    params: Mapping[str, Any] | Callable[[np.dtype], Mapping[str, Any]] = field(default_factory=dict)
    only: tuple[str, ...] | None = None  # dtypes for which the case makes sense
    plain: bool = True

    def params_for(self, name: str) -> dict[str, Any]:
        return dict(self.params(dtype_of(name)) if callable(self.params) else self.params)

    def __repr__(self) -> str:
        shapes = ", ".join("values" if a.values is not None else str(a.shape) for a in self.args)
        return f"({shapes}) {'' if callable(self.params) else dict(self.params)}"


@dataclass(frozen=True)
class Record:
    """An operation and how it is tested.

    `ulps` bounds the distance of eager and compiled results from the reference (0: the same bits), of complex
    numbers in units of the whole number's last place. `orders` derivatives exist; operands in `constant`
    have none by intention (a test says which error). `skip` maps a check's name to the reason for leaving it out.
    """

    primitive: Primitive
    reference: Callable[..., Any]
    cases: tuple[Case, ...]
    dtypes: tuple[str, ...]
    ulps: float = 0.0
    complex_ulps: float = 4.0
    eager_ulps: float = 0.0  # where the library behind eager results is less accurate than compiled code
    orders: int = 2
    constant: tuple[int, ...] = ()
    native: bool = False
    rejects: tuple[str, ...] | None = None  # dtypes that raise TypeError; None: all but `dtypes`
    skip: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.primitive.name

    def tolerance(self, name: str, eager: bool = False) -> float:
        return max(self.ulps, self.complex_ulps * (name in COMPLEX), self.eager_ulps * eager)

    def cases_for(self, name: str) -> list[Case]:
        return [c for c in self.cases if c.only is None or name in c.only]

    def draw(self, case: Case, name: str) -> list[np.ndarray]:
        """The same operands at every call."""
        rng = np.random.default_rng(zlib.crc32(f"{self.name} {self.cases.index(case)} {name}".encode()))
        return [arg.draw(name, rng) for arg in case.args]

    def expected(self, case: Case, name: str, args: list[np.ndarray], out_dtypes: list[np.dtype]) -> list[np.ndarray]:
        """The reference's results in the given dtypes."""
        given = args if self.native else [widen(a, exact=self.ulps == 0) for a in args]
        with np.errstate(all="ignore"):
            out = self.reference(*given, **case.params_for(name))
            outs = list(out) if self.primitive.multiple_results else [out]
            return [narrow(np.asarray(o), d) for o, d in zip(outs, out_dtypes, strict=True)]


def widen(x: np.ndarray, exact: bool) -> np.ndarray:
    """`x` in a dtype in which one operation, rounded back, is correctly rounded."""
    if is_float(x.dtype):
        return x if exact and x.dtype == np.float64 else x.astype(np.float64 if x.dtype.itemsize < 8 else np.longdouble)
    if x.dtype.kind == "c":
        return x.astype(np.complex128 if x.dtype == np.complex64 else np.clongdouble)
    return x


def narrow(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """A reference's result in the result's dtype; 16-bit floats by way of float32, as everywhere."""
    if is_float(dtype) and dtype.itemsize == 2 and x.dtype.kind == "f":
        x = x.astype(np.float32)
    return x.astype(dtype)


# ---------------------------------------------------------------- cases

def special_values(dtype: np.dtype) -> np.ndarray:
    """Zeros, extremes, subnormals, infinities and NaN, and ordinary numbers, of a dtype."""
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype.kind in "iu":
        info = dt.iinfo(dtype)
        wanted = [0, 1, 2, 3, 7, 8, 31, 100, -1, -2, -7, info.min, info.min + 1, info.max, info.max - 1]
        return np.array([v for v in wanted if info.min <= v <= info.max], dtype)
    if dtype.kind == "c":
        return np.array([0, 1, -1, 1j, -1j, 0.5 - 0.5j, -2 + 3j, 1e-3 + 2j, 10 - 1j, -4 - 1e-3j], dtype)
    info = dt.finfo(dtype)
    few = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -7.0, 1e-3, 20.0, -100.0]
    return np.array([*map(dtype.type, few), info.tiny, -info.smallest_subnormal, info.smallest_subnormal, info.max,
                     info.min, np.inf, -np.inf, np.nan], dtype)


def _crossed(position: int, count: int) -> Callable[[np.dtype], np.ndarray]:
    """The operand at `position` of all combinations of special values."""
    def values(dtype: np.dtype) -> np.ndarray:
        return np.array([g.ravel() for g in np.meshgrid(*[special_values(dtype)] * count, indexing="ij")])[position]

    return values


def unary(low: float = -3.0, high: float = 3.0, *, specials: bool = True,
          params: tuple[Any, ...] = ({},)) -> tuple[Case, ...]:
    """Cases of one operand: a scalar, matrix, empty array, a vector that fills no vector register, specials."""
    shapes = [((), True), ((2, 3), True), ((0, 3), True), ((131,), False)]
    cases = [Case((Arg(s, low, high),), p, plain=plain) for p in params for s, plain in shapes]
    return tuple(cases + [Case((Arg(values=special_values),), p, plain=False) for p in params] * specials)


def nary(*ranges: tuple[float, float], specials: bool = True, broadcast: bool = True) -> tuple[Case, ...]:
    """Cases of several operands: equal shapes, scalars among arrays, axes of size 1, empty ones, specials."""
    count = len(ranges)
    same = [((),) * count, ((2, 3),) * count, ((0, 3),) * count, ((131,),) * count]
    mixed = [((2, 3),) + ((),) * (count - 1), ((),) * (count - 1) + ((4,),),
             ((3, 1),) + ((1, 4),) * (count - 1), ((0, 1),) + ((1, 3),) * (count - 1)]
    cases = [Case(tuple(Arg(s, lo, hi) for s, (lo, hi) in zip(shapes, ranges, strict=True)), plain=shapes[0] != (131,))
             for shapes in same + mixed * broadcast]
    crossed = Case(tuple(Arg(values=_crossed(i, count)) for i in range(count)), plain=False)
    return tuple(cases + [crossed] * specials)


# ---------------------------------------------------------------- references

def by_int(fun: Callable[..., int]) -> Callable[..., np.ndarray]:
    """A function `fun(bits, *ints)` of Python's unbounded integers, element by element, wrapped to the dtype."""
    def reference(*arrays: np.ndarray) -> np.ndarray:
        dtype, bits = arrays[0].dtype, 8 * arrays[0].dtype.itemsize
        arrays = tuple(np.broadcast_arrays(*arrays))
        out = np.zeros(arrays[0].shape, f"uint{bits}")
        for i in np.ndindex(*out.shape):
            out[i] = fun(bits, *(int(a[i]) for a in arrays)) & (1 << bits) - 1
        return out.view(dtype)

    return reference


def either(of_ints: Callable[..., Any], of_floats: Callable[..., Any]) -> Callable[..., Any]:
    """One function for integers, another for all else."""
    return lambda *xs, **params: (of_ints if xs[0].dtype.kind in "iu" else of_floats)(*xs, **params)


def by_float(fun: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """A function of scalars, element by element."""
    return lambda *xs: np.vectorize(fun, otypes=[xs[0].dtype])(*xs)


def _quotient(bits: int, x: int, y: int) -> int:
    return -1 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def _remainder(bits: int, x: int, y: int) -> int:
    return x if y == 0 else abs(x) % abs(y) * (-1 if x < 0 else 1)


def _shift_amount(bits: int, y: int) -> int:
    return min(y & (1 << bits) - 1, bits)


def _signed(bits: int, x: int) -> int:
    return (x & (1 << bits) - 1) - ((1 << bits) if x >> (bits - 1) & 1 else 0)


def _larger(x: Any, y: Any) -> Any:
    """NaN wins; 0 is larger than -0; complex numbers are ordered by their real, then their imaginary parts."""
    if isinstance(x, (complex, np.complexfloating)):
        return x if x != x else y if y != y else max(x, y, key=lambda v: (v.real, v.imag))
    if x != x or y != y:
        return np.nan
    return (x if np.signbit(y) else y) if x == y else max(x, y)


def _smaller(x: Any, y: Any) -> Any:
    return x if x != x else y if y != y else -_larger(-x, -y)


_maximum = by_float(_larger)
_minimum = by_float(_smaller)


def _clamp(low: np.ndarray, x: np.ndarray, high: np.ndarray) -> np.ndarray:
    if x.dtype.kind == "f":
        return _minimum(_maximum(x, low), high)
    return np.minimum(np.maximum(x, low), high)


def _round(x: np.ndarray, rounding_method: Any) -> np.ndarray:
    whole = np.floor(np.abs(x))
    over = np.abs(x) - whole
    up = over > 0.5 if rounding_method == el.RoundingMethod.TO_NEAREST_EVEN else over >= 0.5
    if rounding_method == el.RoundingMethod.TO_NEAREST_EVEN:
        up |= (over == 0.5) & (np.fmod(whole, 2) == 1)
    return np.copysign(whole + up, x)


def _next(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """By counting bit patterns."""
    x, y = np.broadcast_arrays(x, y)
    bits = np.dtype(f"int{8 * x.dtype.itemsize}")
    out = x.copy()
    for i in np.ndindex(*x.shape):
        a, b = x[i], y[i]
        if a != a or b != b:
            out[i] = np.nan
        elif a == b:
            out[i] = b
        else:
            tiny = np.array([1], bits).view(x.dtype)[0]
            pattern = int(x[i].view(bits)) + (1 if (b > a) == (a > 0) else -1) if a != 0 else 0
            out[i] = np.array([pattern], bits).view(x.dtype)[0] if a != 0 else (tiny if b > 0 else -tiny)
    return out


def _sign(x: np.ndarray) -> np.ndarray:
    if x.dtype.kind == "c":
        size = np.hypot(x.real, x.imag)
        return np.where(size == 0, 0, x / np.where(size == 0, 1, size))
    return np.where(x == 0, x, np.sign(x))


def _integer_power(x: np.ndarray, y: int) -> np.ndarray:
    if x.dtype.kind in "iu":
        return by_int(lambda bits, v: v**y)(x)
    return np.power(x, np.asarray(y, x.dtype)) if x.dtype.kind == "f" else np.power(x, y)


def _convert(x: np.ndarray, new_dtype: np.dtype, weak_type: bool) -> np.ndarray:
    """Saturating from floats to integers, wrapping between integers."""
    if x.dtype.kind == "c" and new_dtype.kind != "c":
        x = x.real
    if new_dtype.kind == "b":
        return x != 0
    if new_dtype.kind in "iu":
        info = dt.iinfo(new_dtype)
        out = np.zeros(x.shape, new_dtype)
        for i in np.ndindex(*x.shape):
            v = x[i]
            if x.dtype.kind in "biu":
                out[i] = np.array(int(v) & (1 << info.bits) - 1, f"uint{info.bits}").astype(new_dtype)
            elif v == v:
                v = float(v)
                out[i] = min(max(int(v), info.min), info.max) if abs(v) < 1e300 else info.min if v < 0 else info.max
        return out
    return x.astype(new_dtype)


def _reduce_precision(x: np.ndarray, exponent_bits: int, mantissa_bits: int) -> np.ndarray:
    """Numbers too small for the exponent become zero, not subnormal, where it is narrower than the dtype's."""
    info, wide = dt.finfo(x.dtype), x.astype(np.longdouble)
    one = np.longdouble(1)
    step = np.ldexp(one, np.maximum(np.frexp(wide)[1] - 1, info.minexp) - min(mantissa_bits, info.nmant))
    out = np.copysign(np.rint(wide / step) * step, wide)
    bias = 2 ** (exponent_bits - 1) - 1
    if exponent_bits < info.nexp:
        out = np.where(np.abs(out) >= np.ldexp(one, bias + 1), np.copysign(np.inf, wide), out)
        out = np.where(np.abs(out) < np.ldexp(one, 1 - bias), np.copysign(0 * one, wide), out)
    return np.where(np.isfinite(x), out, x)


def _logistic(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _atan2(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.arctan2(x, y) if x.dtype.kind == "f" else -1j * np.log((y + 1j * x) / np.sqrt(x * x + y * y))


def _select(which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    return np.choose(np.clip(which.astype(int), 0, len(cases) - 1), cases)


def _make_complex(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    out = np.empty(np.broadcast_shapes(x.shape, y.shape), np.result_type(x.dtype, np.complex64))
    out.real, out.imag = x, y
    return out


def double(fun: Callable[..., Any], exact: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """SciPy's function in float64; for float64 itself mpmath's where given, to more digits."""
    def reference(*xs: np.ndarray) -> np.ndarray:
        if exact is None or xs[0].dtype != np.longdouble:
            return fun(*(x.astype(np.float64) for x in xs))
        args = [x.astype(np.float64) for x in xs]
        with mpmath.workdps(30):
            out = by_float(lambda *v: _as_float(exact(*map(mpmath.mpf, v))))(*np.broadcast_arrays(*args))
        beyond = (out == 0) | (np.abs(args[-1]) > 1e3)  # mpmath has no zero with a sign; its series have ends
        return np.where(beyond, fun(*args), out)

    return reference


def _as_float(x: Any) -> float:
    return float(x) if abs(x) < 1e308 or not mpmath.isfinite(x) else math.copysign(math.inf, x)


def _finite(fun: Callable[..., Any], below: float, above: float, far: float = math.inf) -> Callable[..., Any]:
    """mpmath's function, with its values from -far down and from far on."""
    def exact(x: Any) -> Any:
        if mpmath.isnan(x):
            return x
        return above if x >= far else below if x <= -far else fun(x)

    return exact


def _mp_bessel(order: int) -> Callable[..., Any]:
    return lambda x: mpmath.besseli(order, x) * mpmath.exp(-abs(x)) if abs(x) < 1e3 else x


def _mp_igamma(a: Any, x: Any) -> Any:
    return mpmath.gammainc(a, 0, x, regularized=True)


def _mp_igammac(a: Any, x: Any) -> Any:
    return mpmath.gammainc(a, x, mpmath.inf, regularized=True)


def _mp_erfinv(x: Any) -> Any:
    return mpmath.nan if abs(x) > 1 else x if x == 0 else x * mpmath.inf if abs(x) == 1 else mpmath.erfinv(x)


def _mp_lgamma(x: Any) -> Any:
    if x <= 0 and x == mpmath.floor(x):
        return mpmath.inf
    return mpmath.log(abs(mpmath.gamma(x))) if abs(x) < 1e3 else mpmath.loggamma(x).real


def _polygamma(m: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.where(m == 0, scipy.special.digamma(x), scipy.special.polygamma(np.maximum(m, 0).astype(int), x))


def _betainc(a: np.ndarray, b: np.ndarray, x: np.ndarray) -> np.ndarray:
    return scipy.special.betainc(a, b, x)


def _slope_in_a(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """dP(a, x)/da, by Richardson's extrapolation of central differences."""
    h = 1e-3 * np.maximum(a, 0.1)

    def difference(h: np.ndarray) -> np.ndarray:
        return (scipy.special.gammainc(a + h, x) - scipy.special.gammainc(a - h, x)) / (2 * h)

    first = (4 * difference(h / 2) - difference(h)) / 3
    second = (4 * difference(h / 4) - difference(h / 2)) / 3
    return (16 * second - first) / 15


def _sample_slope(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """dx/da along P(a, x) = const."""
    density = np.exp(scipy.special.xlogy(a - 1, x) - x - scipy.special.gammaln(a))
    return -_slope_in_a(a, x) / density


CONVERSIONS = tuple({"new_dtype": dtype_of(n), "weak_type": False} for n in ALL)
NO_SLOPE = {"difference": "a step function by convention: its derivative is zero, not what differences measure"}
CONSTANT = {"difference": "a constant to differentiation, by definition"}

# ---------------------------------------------------------------- the records

ELEMENTWISE = (
    # exponentials and powers
    Record(el.exp, np.exp, unary(), INEXACT, ulps=2),
    Record(el.exp2, np.exp2, unary(), INEXACT, ulps=2),
    Record(el.expm1, np.expm1, unary(), INEXACT, ulps=2),
    Record(el.log, np.log, unary(0.1, 9), INEXACT, ulps=2),
    Record(el.log1p, np.log1p, unary(-0.5, 5), INEXACT, ulps=2),
    Record(el.sqrt, np.sqrt, unary(0.1, 9), INEXACT),
    Record(el.rsqrt, lambda x: 1 / np.sqrt(x), unary(0.1, 9), INEXACT, ulps=2),
    Record(el.cbrt, np.cbrt, unary(0.1, 9), FLOATS, ulps=2),
    Record(el.square, either(by_int(lambda bits, x: x * x), lambda x: x * x), unary(), NUMBERS),
    Record(el.logistic, _logistic, unary(), INEXACT, ulps=2, complex_ulps=32),  # it has poles
    Record(el.pow, np.power, nary((0.2, 3), (-2, 2)) + (
        Case((Arg((2, 3)), Arg((2, 3), dtype="int32", low=-2, high=4)), only=FLOATS),), INEXACT, ulps=2,
           complex_ulps=96, rejects=BITS),
    Record(el.integer_pow_p, _integer_power, unary(0.5, 3, params=({"y": 0}, {"y": 2}, {"y": 3}, {"y": 5}, {"y": 12}))
           + tuple(Case(c.args, c.params, only=INEXACT, plain=c.plain)
                   for c in unary(0.5, 3, params=({"y": -1}, {"y": -2}, {"y": -7}))), NUMBERS, ulps=6, complex_ulps=12),
    # trigonometric and hyperbolic
    Record(el.sin, np.sin, unary(-9, 9), INEXACT, ulps=2),
    Record(el.cos, np.cos, unary(-9, 9), INEXACT, ulps=2),
    Record(el.tan, np.tan, unary(-1.4, 1.4), INEXACT, ulps=2),
    Record(el.asin, np.arcsin, unary(-0.9, 0.9), INEXACT, ulps=2),
    Record(el.acos, np.arccos, unary(-0.9, 0.9), INEXACT, ulps=2),
    Record(el.atan, np.arctan, unary(), INEXACT, ulps=2),
    Record(el.atan2, _atan2, (*(Case(c.args, only=FLOATS, plain=False) for c in nary((-3, 3), (-3, 3))),
                              *nary((0.3, 3), (0.3, 3), specials=False)), INEXACT, ulps=2, complex_ulps=16),
    Record(el.sinh, np.sinh, unary(), INEXACT, ulps=2),
    Record(el.cosh, np.cosh, unary(), INEXACT, ulps=2),
    Record(el.tanh, np.tanh, unary(), INEXACT, ulps=2),
    Record(el.asinh, np.arcsinh, unary(), INEXACT, ulps=2),
    Record(el.acosh, np.arccosh, unary(1.1, 5), INEXACT, ulps=2),
    Record(el.atanh, np.arctanh, unary(-0.9, 0.9), INEXACT, ulps=2),
    # arithmetic
    Record(el.neg, either(by_int(lambda bits, x: -x), np.negative), unary(), NUMBERS, complex_ulps=0),
    Record(el.add, either(by_int(lambda bits, x, y: x + y), np.add), nary((-3, 3), (-3, 3)), NUMBERS, complex_ulps=0),
    Record(el.sub, either(by_int(lambda bits, x, y: x - y), np.subtract), nary((-3, 3), (-3, 3)), NUMBERS,
           complex_ulps=0),
    Record(el.add_any, either(by_int(lambda bits, x, y: x + y), np.add), nary((-3, 3), (-3, 3)), NUMBERS,
           complex_ulps=0, rejects=()),
    Record(el.mul, either(by_int(lambda bits, x, y: x * y), np.multiply), nary((-3, 3), (-3, 3)), NUMBERS),
    Record(el.div, either(by_int(_quotient), np.true_divide), nary((-3, 3), (0.3, 3)), NUMBERS),
    Record(el.rem, either(by_int(_remainder), np.fmod), nary((-9, 9), (0.7, 2)), INTS + FLOATS),
    Record(el.mulhi, by_int(lambda bits, x, y: x * y >> bits), nary((-99, 99), (-99, 99)), INTS),
    Record(el.max, either(np.maximum, lambda x, y: x | y if x.dtype.kind == "b" else _maximum(x, y)),
           nary((-3, 3), (-3, 3)), ALL, complex_ulps=0, rejects=()),
    Record(el.min, either(np.minimum, lambda x, y: x & y if x.dtype.kind == "b" else _minimum(x, y)),
           nary((-3, 3), (-3, 3)), ALL, complex_ulps=0, rejects=()),
    Record(el.abs, either(by_int(lambda bits, x: abs(x)), np.abs), unary(), SIGNED + INEXACT),
    Record(el.sign, _sign, unary(), NUMBERS, skip=NO_SLOPE),
    Record(el.floor, np.floor, unary(-9, 9), FLOATS),
    Record(el.ceil, np.ceil, unary(-9, 9), FLOATS),
    Record(el.round_p, _round, unary(-9, 9, params=tuple({"rounding_method": m} for m in el.RoundingMethod)), FLOATS),
    Record(el.nextafter, _next, nary((-3, 3), (-3, 3)), FLOATS, native=True, constant=(0, 1)),
    Record(el.is_finite, lambda x: np.abs(x) < np.inf, unary(), FLOATS),
    # comparison and choice
    Record(el.eq, lambda x, y: x == y, nary((0, 2), (0, 2)), ALL),
    Record(el.ne, lambda x, y: x != y, nary((0, 2), (0, 2)), ALL),
    Record(el.lt, lambda x, y: x < y, nary((-2, 2), (-2, 2)), ORDERED),
    Record(el.le, lambda x, y: x <= y, nary((-2, 2), (-2, 2)), ORDERED),
    Record(el.gt, lambda x, y: x > y, nary((-2, 2), (-2, 2)), ORDERED),
    Record(el.ge, lambda x, y: x >= y, nary((-2, 2), (-2, 2)), ORDERED),
    Record(el.select_n_p, _select, (
        Case((Arg((2, 3), dtype="bool"), Arg((2, 3)), Arg((2, 3)))),
        Case((Arg(dtype="bool"), Arg((2, 3)), Arg((2, 3)))),
        Case((Arg((131,), dtype="bool"), Arg((131,)), Arg((131,))), plain=False),
        Case((Arg((0,), dtype="bool"), Arg((0,)), Arg((0,)))),
        Case((Arg(values=[0, 1, 2, 1, -7, 9], dtype="int32"), Arg((6,)), Arg((6,)), Arg((6,)))),
        Case((Arg(values=[0, 1, 1, 0], dtype="int32"), Arg((4,)), Arg((4,)))),
        Case((Arg(dtype="bool"), Arg(values=special_values), Arg(values=special_values)), plain=False),
    ), ALL, complex_ulps=0, native=True),
    Record(el.clamp_p, _clamp, nary((-1, 0), (-3, 3), (0.1, 1), broadcast=False) + (
        Case((Arg(values=-0.5), Arg((3, 4)), Arg(values=1.5)), only=FLOATS),), ORDERED, rejects=()),
    # bits
    Record(el.and_, lambda x, y: x & y, nary((-9, 9), (-9, 9)), BITS),
    Record(el.or_, lambda x, y: x | y, nary((-9, 9), (-9, 9)), BITS),
    Record(el.xor, lambda x, y: x ^ y, nary((-9, 9), (-9, 9)), BITS),
    Record(el.not_, lambda x: ~x, unary(-9, 9), BITS),
    Record(el.shift_left, by_int(lambda bits, x, y: x << _shift_amount(bits, y)), nary((-99, 99), (0, 9)), INTS),
    Record(el.shift_right_logical, by_int(lambda bits, x, y: (x & (1 << bits) - 1) >> _shift_amount(bits, y)),
           nary((-99, 99), (0, 9)), INTS),
    Record(el.shift_right_arithmetic, by_int(lambda bits, x, y: _signed(bits, x) >> _shift_amount(bits, y)),
           nary((-99, 99), (0, 9)), INTS),
    Record(el.population_count, by_int(lambda bits, x: (x & (1 << bits) - 1).bit_count()), unary(-99, 99), INTS),
    Record(el.clz, by_int(lambda bits, x: bits - (x & (1 << bits) - 1).bit_length()), unary(-99, 99), INTS),
    # complex numbers
    Record(el.real, np.real, unary(), COMPLEX, complex_ulps=0),
    Record(el.imag, np.imag, unary(), COMPLEX, complex_ulps=0),
    Record(el.complex, _make_complex, nary((-3, 3), (-3, 3)), ("float32", "float64"), complex_ulps=0),
    Record(el.conj_p, lambda x, input_dtype: np.conjugate(x), unary(params=(lambda d: {"input_dtype": d},)),
           ("float32", "float64", *COMPLEX), complex_ulps=0, rejects=INTS + BOOL),
    # conversions and identities
    Record(el.convert_element_type_p, _convert, unary(params=CONVERSIONS), ALL, complex_ulps=0, native=True),
    Record(el.reduce_precision_p, _reduce_precision,
           unary(params=tuple({"exponent_bits": e, "mantissa_bits": m} for e, m in ((5, 10), (8, 7), (4, 3), (8, 2)))),
           FLOATS, native=True, skip={"difference": "rounding is not smooth, and is its own derivative by convention",
                                                       "transpose": "tangents and cotangents are rounded, too"}),
    Record(el.copy, lambda x: x, unary(), ALL, complex_ulps=0),
    Record(el.optimization_barrier_p, lambda x: x, unary(), ALL, complex_ulps=0),
    Record(el.stop_gradient_p, lambda x: x, unary(), ALL, complex_ulps=0, skip=CONSTANT),
    # special functions
    Record(sp.erf, double(scipy.special.erf, _finite(mpmath.erf, -1, 1, far=99)), unary(), FLOATS, ulps=4),
    Record(sp.erfc, double(scipy.special.erfc, _finite(mpmath.erfc, 2, 0, far=99)), unary(), FLOATS, ulps=4),
    Record(sp.erf_inv, double(lambda x: np.copysign(scipy.special.erfinv(x), x),
                              _finite(_mp_erfinv, np.nan, np.nan, far=2)), unary(-0.95, 0.95), FLOATS, ulps=4),
    Record(sp.lgamma, double(lambda x: np.where(x == -np.inf, np.inf, scipy.special.gammaln(x)),
                             _finite(_mp_lgamma, np.inf, np.inf)), unary(0.2, 9), FLOATS, ulps=4),
    Record(sp.digamma, double(scipy.special.digamma, mpmath.digamma), unary(0.2, 9, specials=False), FLOATS, ulps=4),
    Record(sp.polygamma, double(_polygamma), tuple(
        Case((Arg(values=np.full(s, m)), Arg(s, 0.3, 7))) for m in (0, 1, 2, 3) for s in ((), (2, 3))),
           FLOATS, ulps=8, constant=(0,)),
    Record(sp.zeta, double(scipy.special.zeta), nary((1.2, 5), (0.5, 4), specials=False), FLOATS, ulps=8),
    Record(sp.bessel_i0e, double(scipy.special.i0e, _mp_bessel(0)), unary(-9, 9), FLOATS, ulps=4),
    Record(sp.bessel_i1e, double(lambda x: np.where(x == 0, x, scipy.special.i1e(x)), _mp_bessel(1)), unary(-9, 9),
           FLOATS, ulps=4),
    Record(sp.igamma, double(scipy.special.gammainc, _mp_igamma), nary((0.3, 5), (0.2, 7), specials=False), FLOATS,
           ulps=12, orders=1),
    Record(sp.igammac, double(scipy.special.gammaincc, _mp_igammac), nary((0.3, 5), (0.2, 7), specials=False), FLOATS,
           ulps=48, orders=1),
    Record(sp.igamma_grad_a, double(_slope_in_a), nary((0.5, 5), (0.2, 7), specials=False),
           ("float16", "bfloat16", "float32"), ulps=64, orders=1, constant=(0,), rejects=BITS + COMPLEX),
    Record(sp.random_gamma_grad_p, double(_sample_slope), nary((0.5, 5), (0.2, 7), specials=False),
           ("float16", "bfloat16", "float32"), ulps=64, orders=1, constant=(0,), rejects=BITS + COMPLEX),
    Record(sp.betainc, double(_betainc), nary((0.5, 4), (0.5, 4), (0.1, 0.9), specials=False), FLOATS, ulps=16,
           constant=(0, 1)),
)
