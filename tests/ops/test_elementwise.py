"""Elementwise operations: values against NumPy, types, errors, derivatives, transposes, batching."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.special

import anima
import anima.numpy as jnp
from anima.core import dtypes
from anima.core.array import ConcreteArray
from anima.core.avals import ShapedArray
from anima.core.primitive import Linear, Primitive, Zero
from anima.core.stage import trace_to_jaxpr
from anima.core.trace import aval_of
from anima.ops import elementwise as ew, special
from anima.ops.accuracy import AccuracyMode
from anima.ops.family import ELEMENTWISE

BF16 = np.dtype(ml_dtypes.bfloat16)
F8 = np.dtype(ml_dtypes.float8_e4m3fn)
SIGNED = [np.dtype(f"int{n}") for n in (8, 16, 32, 64)]
UNSIGNED = [np.dtype(f"uint{n}") for n in (8, 16, 32, 64)]
FLOATS = [np.dtype(np.float16), BF16, np.dtype(np.float32), np.dtype(np.float64)]
COMPLEX = [np.dtype(np.complex64), np.dtype(np.complex128)]
EPS = {BF16: 2 ** -7, np.dtype(np.float16): 2 ** -10}


def arr(x: Any, dtype: Any = np.float64) -> ConcreteArray:
    """An array of any dtype, whatever the configuration."""
    value = np.array(x, dtype)
    return ConcreteArray(value, ShapedArray(value.shape, value.dtype))


def val(x: Any) -> np.ndarray:
    return np.asarray(x)


def aval(shape: Sequence[int], dtype: Any, weak: bool = False) -> ShapedArray:
    return ShapedArray(tuple(shape), np.dtype(dtype), weak)


# ---------------------------------------------------------------- values

UNARY: dict[str, tuple[Callable[[Any], Any], tuple[float, float]]] = {
    "exp": (np.exp, (-3, 3)), "exp2": (np.exp2, (-3, 3)), "expm1": (np.expm1, (-3, 3)), "log": (np.log, (0.1, 9)),
    "log1p": (np.log1p, (-0.5, 9)), "sqrt": (np.sqrt, (0, 9)), "rsqrt": (lambda x: 1 / np.sqrt(x), (0.1, 9)),
    "sin": (np.sin, (-3, 3)), "cos": (np.cos, (-3, 3)), "tan": (np.tan, (-1.2, 1.2)), "asin": (np.arcsin, (-.9, .9)),
    "acos": (np.arccos, (-0.9, 0.9)), "atan": (np.arctan, (-3, 3)), "sinh": (np.sinh, (-3, 3)),
    "cosh": (np.cosh, (-3, 3)), "tanh": (np.tanh, (-3, 3)), "asinh": (np.arcsinh, (-3, 3)),
    "acosh": (np.arccosh, (1.2, 9)), "atanh": (np.arctanh, (-0.9, 0.9)), "cbrt": (np.cbrt, (-9, 9)),
    "square": (np.square, (-3, 3)), "logistic": (lambda x: 1 / (1 + np.exp(-x)), (-3, 3)),
    "neg": (np.negative, (-3, 3)),
    "abs": (np.abs, (-3, 3)), "erf": (scipy.special.erf, (-2, 2)), "erfc": (scipy.special.erfc, (-2, 2)),
    "erf_inv": (scipy.special.erfinv, (-0.9, 0.9)), "lgamma": (scipy.special.gammaln, (0.2, 9)),
    "digamma": (scipy.special.psi, (0.2, 9)), "bessel_i0e": (scipy.special.i0e, (-3, 3)),
    "bessel_i1e": (scipy.special.i1e, (-3, 3))}
REAL_ONLY = {"cbrt", "erf", "erfc", "erf_inv", "lgamma", "digamma", "bessel_i0e", "bessel_i1e"}


def op(name: str) -> Any:
    return getattr(ew, name, None) or getattr(special, name)


@pytest.mark.parametrize("dtype", FLOATS + COMPLEX, ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_unary_values(name: str, dtype: np.dtype) -> None:
    fun, (low, high) = UNARY[name]
    x = np.linspace(low, high, 31)
    if dtype.kind == "c":
        if name in REAL_ONLY:
            with pytest.raises(TypeError, match=f"{name} does not accept dtype {dtype}"):
                op(name).infer(aval((3,), dtype))
            return
        x = x + 0.3j
    x = x.astype(dtype)
    out = op(name).eval(x)
    want = fun(x.astype(np.complex128 if dtype.kind == "c" else np.float64))
    expected = op(name).infer(aval(x.shape, dtype))
    assert out.dtype == expected.dtype and out.shape == expected.shape
    eps = EPS.get(dtype) or np.finfo(dtype).eps
    scale = np.abs(want) + (1 if dtype.kind == "c" or name in ("lgamma", "digamma") else 0)
    assert np.max(np.abs(out.astype(want.dtype) - want) / np.maximum(scale, 1e-30)) <= 4 * eps


@pytest.mark.parametrize("dtype", SIGNED + UNSIGNED + FLOATS + COMPLEX, ids=str)
@pytest.mark.parametrize("name,fun", [("add", np.add), ("sub", np.subtract), ("mul", np.multiply)])
def test_arithmetic_values(name: str, fun: Callable[..., Any], dtype: np.dtype) -> None:
    x, y = (np.array(v).astype(dtype) for v in ([[3], [100], [7]], [[2, 5, 90, 0]]))
    out = op(name).eval(x, y)
    wide = np.float32 if dtype.itemsize == 2 and dtype in FLOATS else dtype
    np.testing.assert_array_equal(out, fun(x.astype(wide), y.astype(wide)).astype(dtype))
    assert out.dtype == dtype


@pytest.mark.parametrize("dtype", SIGNED, ids=str)
def test_integer_division_truncates_and_survives_zero(dtype: np.dtype) -> None:
    least = np.iinfo(dtype).min
    x, y = np.array([5, -5, 7, -7, least, least], dtype), np.array([0, 0, -2, 2, -1, 0], dtype)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(ew.div.eval(x, y), np.array([-1, -1, -3, -3, least, -1], dtype))
    np.testing.assert_array_equal(ew.rem.eval(x, y), np.array([5, -5, 1, -1, 0, least], dtype))


def test_unsigned_division_by_zero_gives_all_ones() -> None:
    np.testing.assert_array_equal(ew.div.eval(np.uint8([5, 9]), np.uint8([0, 2])), np.uint8([255, 4]))


@pytest.mark.parametrize("dtype", SIGNED + UNSIGNED, ids=str)
def test_shifts_beyond_the_width(dtype: np.dtype) -> None:
    bits = 8 * dtype.itemsize
    x = np.array([-8 if dtype.kind == "i" else 8] * 3, dtype)
    y = np.array([1, bits, 127], dtype)
    sign = -1 if dtype.kind == "i" else 0
    np.testing.assert_array_equal(ew.shift_left.eval(x, y), (x * np.array([2, 0, 0], dtype)))
    np.testing.assert_array_equal(ew.shift_right_arithmetic.eval(x, y), np.array([sign * 4 or 4, sign, sign], dtype))
    np.testing.assert_array_equal(ew.shift_right_logical.eval(x, y)[1:], np.array([0, 0], dtype))
    if dtype.kind == "i":
        np.testing.assert_array_equal(ew.shift_left.eval(x, -y), np.zeros(3, dtype))


def test_bit_counts() -> None:
    np.testing.assert_array_equal(ew.clz.eval(np.int32([0, 1, -1, 255])), np.int32([32, 31, 0, 24]))
    np.testing.assert_array_equal(ew.clz.eval(np.uint64([0, 1, 2 ** 63, 2 ** 40])), np.uint64([64, 63, 0, 23]))
    np.testing.assert_array_equal(ew.population_count.eval(np.int16([-1, 3])), np.int16([16, 2]))
    np.testing.assert_array_equal(ew.mulhi.eval(np.int32([2 ** 30]), np.int32([8])), np.int32([2]))
    np.testing.assert_array_equal(ew.mulhi.eval(np.uint64([2 ** 63]), np.uint64([6])), np.uint64([3]))


def test_max_and_min_of_zeros_and_nan() -> None:
    x, y = np.float32([np.nan, 1, -0.0, 0.0, -0.0]), np.float32([1, np.nan, 0.0, -0.0, -0.0])
    np.testing.assert_array_equal(np.signbit(ew.max.eval(x, y)[2:]), [False, False, True])
    np.testing.assert_array_equal(np.signbit(ew.min.eval(x, y)[2:]), [True, True, True])
    assert np.isnan(ew.max.eval(x, y)[:2]).all() and np.isnan(ew.min.eval(x, y)[:2]).all()


def test_rounding() -> None:
    x = np.float32([0.5, 1.5, -2.5, 2.5, 0.49999997, -0.2, np.inf])
    np.testing.assert_array_equal(ew.round(x), np.float32([1, 2, -3, 3, 0, -0.0, np.inf]))
    even = ew.round(x, ew.RoundingMethod.TO_NEAREST_EVEN)
    np.testing.assert_array_equal(even, np.float32([0, 2, -2, 2, 0, -0.0, np.inf]))


WILD = [300.0, -5.0, np.nan, 1e20, -1e20, np.inf, -np.inf, 1.9, -1.9]


@pytest.mark.parametrize("dtype", SIGNED + UNSIGNED, ids=str)
@pytest.mark.parametrize("source", [BF16, np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.complex64)], ids=str)
def test_floats_saturate_on_their_way_to_integers(source: np.dtype, dtype: np.dtype) -> None:
    info = np.iinfo(dtype)
    want = [0 if np.isnan(v) else max(info.min, min(info.max, int(np.clip(v, -1e30, 1e30)))) for v in WILD]
    out = ew.convert_element_type_p.eval(np.array(WILD).astype(source), new_dtype=dtype, weak_type=False)
    assert out.dtype == dtype and out.tolist() == want


def test_conversions() -> None:
    np.testing.assert_array_equal(ew.convert_element_type(np.int32([300, -5]), "int8"), np.int8([44, -5]))
    np.testing.assert_array_equal(ew.convert_element_type(np.float32([0, np.nan, 0.5]), bool), [False, True, True])
    np.testing.assert_array_equal(ew.convert_element_type(np.complex64([3.7 + 1j]), "float32"), np.float32([3.7]))
    x = ew.convert_element_type(2, "float32")
    assert x.dtype == np.float32 and not x.aval.weak_type
    same = arr([1.0], np.float32)
    assert ew.convert_element_type(same, "float32") is same
    assert ew.convert_element_type(np.float32([1, 1e5]), F8).dtype == F8


def test_bitcast() -> None:
    x = np.float32([[1, 2, 3], [4, 5, 6]])
    parts = ew.bitcast_convert_type(x, "uint8")
    assert parts.shape == (2, 3, 4)
    np.testing.assert_array_equal(ew.bitcast_convert_type(parts, "float32"), x)
    np.testing.assert_array_equal(ew.bitcast_convert_type(x[:, ::2], "int32"), x[:, ::2].copy().view(np.int32))
    out, dim = ew.bitcast_convert_type_p.batch(4, [parts], [2], new_dtype=np.dtype(np.int8))
    assert out.shape == (4, 2, 3) and dim == 0
    with pytest.raises(TypeError, match="does not support bool or complex"):
        ew.bitcast_convert_type(np.complex64([1]), "uint32")
    with pytest.raises(ValueError, match="Attempting to convert array of shape"):
        ew.bitcast_convert_type(np.ones((2, 3), np.uint8), "uint32")


def test_reduce_precision() -> None:
    x = np.float32([1.2345678, 1e30, np.nan, np.inf, 1e-30, 65519, 65520, -6e-8])
    want = np.float32([1.234375, np.inf, np.nan, np.inf, 0, 65504, np.inf, -0.0])
    np.testing.assert_array_equal(ew.reduce_precision(x, 5, 10), want)
    finite = np.float32([1.2345678, 1e30, -3.3e-5])
    np.testing.assert_array_equal(ew.reduce_precision(finite, 8, 7), finite.astype(BF16).astype(np.float32))
    with pytest.raises(NotImplementedError, match="not implemented for dtype float8"):
        ew.reduce_precision(jnp.ones(2, F8), 3, 2)
    with pytest.raises(ValueError, match="exponent_bits must be positive"):
        ew.reduce_precision(x, 0, 3)


def test_select_n_and_clamp() -> None:
    which = np.array([0, 1, 2, 9, -4], np.int32)
    cases = [np.full(5, v, np.float32) for v in (1, 2, 3)]
    np.testing.assert_array_equal(ew.select_n(which, *cases), np.float32([1, 2, 3, 3, 1]))
    np.testing.assert_array_equal(ew.select(True, cases[0], cases[1]), cases[0])
    np.testing.assert_array_equal(ew.select(which > 1, 4, 3), [3, 3, 4, 4, 3])
    np.testing.assert_array_equal(ew.select_n(which[:0], 1.0, 2.0), [])
    np.testing.assert_array_equal(ew.clamp(0, np.float32([-1, np.nan, 5]), 1), np.float32([0, np.nan, 1]))
    assert float(ew.clamp(2.0, np.float32(0), 1.0)) == 1


def test_complex_parts() -> None:
    z = ew.complex(np.float32([np.inf, 1]), 2.0)
    assert z.dtype == np.complex64 and np.isinf(val(ew.real(z))[0]) and val(ew.imag(z)).tolist() == [2, 2]
    assert ew.conj(np.float32([1])).dtype == np.complex64
    assert ew.abs(np.complex64([3 + 4j])).dtype == np.float32
    np.testing.assert_allclose(ew.sign(np.complex64([0, 3 + 4j])), np.complex64([0, 0.6 + 0.8j]), rtol=1e-6)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, -1, -2])
def test_integer_pow(n: int) -> None:
    x = np.float32([0.5, -1.5, 3])
    np.testing.assert_allclose(ew.integer_pow(x, n), x.astype(float) ** n, rtol=1e-6)
    if n >= 0:
        np.testing.assert_array_equal(ew.integer_pow(np.int32([2, -3]), n), np.int32([2 ** n, (-3) ** n]))
    else:
        with pytest.raises(TypeError, match="Integers cannot be raised to negative powers"):
            ew.integer_pow(np.int32([2]), n)


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
@pytest.mark.parametrize("dtype", [np.dtype(bool), np.dtype(np.int8), BF16, np.dtype(np.float32)], ids=str)
def test_comparisons(name: str, dtype: np.dtype) -> None:
    fun = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal"}
    x, y = np.array([0, 1, 1]).astype(dtype), np.array([1, 1, 0]).astype(dtype)
    out = val(op(name)(arr(x, dtype), arr(y, dtype)))
    assert out.dtype == bool
    np.testing.assert_array_equal(out, getattr(np, fun[name])(x.astype(float), y.astype(float)))


# ---------------------------------------------------------------- types and errors

ERRORS = [
    (lambda: ew.add.infer(aval((2, 3), "f4"), aval((2, 4), "f4")),
     r"add got incompatible shapes for broadcasting: \(2, 3\), \(2, 4\)\."),
    (lambda: ew.add.infer(aval((2, 3), "f4"), aval((3,), "f4")),
     r"add: arrays must have the same number of dimensions, got \{1, 2\}"),
    (lambda: ew.add.infer(aval((3,), "f4"), aval((3,), "i4")),
     r"lax.add requires arguments to have the same dtypes, got float32, int32. \(Tip: jnp.add is a similar function "
     r"that does automatic type promotion on inputs\)."),
    (lambda: ew.and_.infer(aval((2,), "f4"), aval((2,), "f4")),
     "and does not accept dtype float32 at position 0. Accepted dtypes at position 0 are subtypes of integer, bool."),
    (lambda: ew.not_.infer(aval((2,), "f4")),
     "not does not accept dtype float32. Accepted dtypes are subtypes of integer, bool."),
    (lambda: ew.sin.infer(aval((2,), "i4")),
     "sin does not accept dtype int32. Accepted dtypes are subtypes of floating, complexfloating."),
    (lambda: ew.rem.infer(aval((2,), "c8"), aval((2,), "c8")),
     "rem does not accept dtype complex64 at position 0. Accepted dtypes at position 0 are subtypes of integer, "
     "floating."),
    (lambda: ew.lt.infer(aval((2,), "c8"), aval((2,), "c8")), "lt does not accept dtype complex64 at position 0."),
    (lambda: ew.add(np.arange(3), 1.5), "requires arguments to have the same dtypes"),
    (lambda: ew.mul(np.ones(2, np.float32), 1j), "requires arguments to have the same dtypes"),
    (lambda: ew.add(True, np.ones(2, np.float32)), "add does not accept dtype bool at position 0"),
    (lambda: ew.select_n(np.bool_(True), np.ones(2), np.ones(3)), "select cases must have the same shapes"),
    (lambda: ew.select_n(np.float32(1), np.ones(2), np.ones(2)), "select `which` must be boolean or integer type"),
    (lambda: ew.select_n(np.bool_(True), *[np.ones(2)] * 3), "select with boolean `which` cannot have > 2 cases"),
    (lambda: ew.select_n(np.ones(1, bool), np.ones(2), np.ones(2)), "select `which` must be scalar or have the same"),
    (lambda: ew.clamp(np.ones(3), np.ones(2), np.ones(2)), r"clamp requires min.shape == operand.shape"),
    (lambda: ew.sin(1.0, 2.0), "sin"),
]


@pytest.mark.parametrize("call,text", ERRORS, ids=[str(i) for i in range(len(ERRORS))])
def test_errors(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        call()


def test_scalars_take_the_dtype_of_arrays() -> None:
    for dtype in (np.dtype(np.int8), BF16, np.dtype(np.float32), np.dtype(np.complex64)):
        out = ew.mul(arr([1, 2], dtype), 3)
        assert out.dtype == dtype and not out.aval.weak_type
    with pytest.raises(OverflowError):
        ew.add(arr([1], np.uint8), 300)
    assert float(ew.add(x=np.float32(1), y=2.0)) == 3 and float(ew.exp(0.0, accuracy=AccuracyMode.HIGHEST)) == 1
    with pytest.raises(NotImplementedError, match="Accuracy 'highest'"):
        ew.exp(0.0, accuracy="highest")


def test_weak_types() -> None:
    weak, strong = aval((), "f4", True), aval((3,), "f4")
    assert ew.add.infer(weak, weak).weak_type and ew.lt.infer(weak, weak) == aval((), bool, True)
    assert ew.add.infer(weak, strong) == strong and ew.add.infer(strong, weak) is strong
    assert not ew.select_n_p.infer(aval((), bool), weak, weak.strip_weak_type()).weak_type


def test_infer_agrees_with_eval_on_every_dtype() -> None:
    table = [v for v in [*vars(ew).values(), *vars(special).values()] if type(v) is ew.Elementwise]
    params = {"integer_pow": {"y": 2}, "round": {"rounding_method": 0},
              "reduce_precision": {"exponent_bits": 4, "mantissa_bits": 3}}
    tried = 0
    for dtype, primitive in itertools.product([np.dtype(bool), *SIGNED, *UNSIGNED, *FLOATS, *COMPLEX, F8], table):
        avals = [aval((2, 1), dtype), aval((1, 3), dtype), aval((), dtype)][:len(primitive.operands)]
        more = {"input_dtype": dtype} if primitive.name == "conj" else params.get(primitive.name, {})
        if dtype == F8 and primitive.name in ("nextafter", "reduce_precision"):
            continue
        try:
            out = primitive.infer(*avals, **more)
        except TypeError as error:
            assert "does not accept dtype" in str(error)
            continue
        with np.errstate(all="ignore"):
            got = primitive.eval(*[np.ones(a.shape, dtype) for a in avals], **more)
        assert (got.shape, got.dtype) == (out.shape, out.dtype), (primitive, dtype)
        tried += 1
    assert tried > 500


# ---------------------------------------------------------------- derivatives

def directional(primitive: Primitive, xs: Sequence[Any], ts: Sequence[Any], **params: Any) -> np.ndarray:
    """Central differences in float64 (complex128), extrapolated once."""
    def at(h: float) -> np.ndarray:
        moved = [np.asarray(x) + h * np.asarray(t) for x, t in zip(xs, ts, strict=True)]
        return val(primitive.bind(*[arr(m, m.dtype) for m in moved], **params))

    def slope(h: float) -> np.ndarray:
        return (at(h) - at(-h)) / (2 * h)

    return (4 * slope(1e-3) - slope(2e-3)) / 3


def check_jvp(primitive: Primitive, xs: Sequence[Any], **params: Any) -> None:
    rng = np.random.default_rng(0)
    xs = [np.asarray(x) for x in xs]
    ts = [(rng.normal(size=x.shape) + (1j * rng.normal(size=x.shape) if x.dtype.kind == "c" else 0)) for x in xs]
    with np.errstate(all="ignore"):
        out, tangent = primitive.jvp([arr(x, x.dtype) for x in xs], [arr(t, t.dtype) for t in ts], **params)
        want = directional(primitive, xs, ts, **params)
    assert (tangent.shape, tangent.dtype) == (out.shape, out.dtype)
    np.testing.assert_allclose(val(tangent), want, rtol=1e-7, atol=1e-8)
    for i in range(len(xs)):  # one operand at a time: the others have symbolic zeros
        alone = [arr(t, t.dtype) if j == i else Zero(aval_of(arr(xs[j], xs[j].dtype))) for j, t in enumerate(ts)]
        zeros = [t if j == i else 0 * t for j, t in enumerate(ts)]
        _, tangent = primitive.jvp([arr(x, x.dtype) for x in xs], alone, **params)
        want = directional(primitive, xs, zeros, **params)
        got = np.zeros_like(want) if isinstance(tangent, Zero) else val(tangent)
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("name", UNARY)
def test_unary_derivatives(name: str) -> None:
    low, high = UNARY[name][1]
    x = np.linspace(low + 0.05, high - 0.05, 8)
    check_jvp(op(name), [x])
    if name not in REAL_ONLY and name != "abs":
        check_jvp(op(name), [x + 0.4j])
        check_jvp(op(name), [-x - 0.3j])


BINARY: dict[str, tuple[Any, Any]] = {
    "add": (1.5, -2.0), "sub": (1.5, -2.0), "mul": (1.5, -2.0), "div": (1.5, -2.0), "atan2": (1.5, -2.0),
    "pow": (1.5, -2.2), "rem": (7.3, 2.1), "max": (1.0, 2.0), "min": (1.0, 2.0), "complex": (1.0, 2.0),
    "igamma": (1.5, 2.0), "igammac": (1.5, 2.0)}


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("shapes", [((3,), (3,)), ((), (3,)), ((3,), ()), ((2, 1), (1, 3)), ((), ())], ids=str)
def test_binary_derivatives(name: str, shapes: tuple[Any, Any]) -> None:
    rng = np.random.default_rng(1)
    x, y = (v + 0.1 * rng.uniform(size=s) for v, s in zip(BINARY[name], shapes, strict=True))
    check_jvp(op(name), [x, y])
    if name in ("add", "sub", "mul", "div", "pow"):
        check_jvp(op(name), [x + 0.2j, y - 0.3j])


def test_other_derivatives() -> None:
    x, z = np.array([0.3, -1.7, 2.4]), np.array([1 + 2j, -3 + 0.5j])
    assert isinstance(ew.integer_pow_p.jvp([arr(x)], [arr(x)], y=0)[1], Zero)
    for n in (1, 2, 3, -1, -2):
        check_jvp(ew.integer_pow_p, [x], y=n)
    for p in (ew.abs, ew.real, ew.imag):
        check_jvp(p, [z])
    check_jvp(ew.conj_p, [z], input_dtype=z.dtype)
    check_jvp(ew.clamp_p, [np.array(-1.0), x, np.array(2.0)])
    check_jvp(ew.clamp_p, [x + 3, x, x[::-1] + 1])  # bounds that cross
    check_jvp(ew.copy, [x])
    with pytest.raises(ValueError, match="derivative of betainc in a"):
        special.betainc.jvp([arr(1.0)] * 3, [arr(1.0)] * 3)
    _, t = special.betainc.jvp([arr(2.0), arr(3.0), arr(0.4)], [Zero(aval((), "f8"))] * 2 + [arr(1.0)])
    np.testing.assert_allclose(t, 0.4 * 0.6 ** 2 / scipy.special.beta(2, 3))
    _, t = special.polygamma.jvp([arr(1.0), arr(1.5)], [Zero(aval((), "f8")), arr(1.0)])
    np.testing.assert_allclose(t, scipy.special.polygamma(2, 1.5))
    _, t = special.zeta.jvp([arr(2.0), arr(1.5)], [Zero(aval((), "f8")), arr(1.0)])
    np.testing.assert_allclose(t, -2 * scipy.special.zeta(3, 1.5))


@pytest.mark.parametrize("name,xs,want", [
    ("abs", [0.0], [1.0]), ("max", [2.0, 2.0], [0.5, 0.5]), ("min", [2.0, 2.0], [0.5, 0.5]), ("sqrt", [0.0], [np.inf]),
    ("sign", [3.0], [None]), ("floor", [1.5], [None]), ("pow", [0.0, 0.0], [None, 0.0]),
    ("pow", [0.0, 2.0], [0.0, 0.0]),
    ("pow", [-2.0, 2.0], [-4.0, np.nan]), ("max", [np.nan, 1.0], [0.0, 0.0]), ("bessel_i1e", [0.0], [0.5])])
def test_derivatives_at_edges(name: str, xs: list[float], want: list[float | None]) -> None:
    for i, slope in enumerate(want):
        ts = [arr(1.0) if j == i else Zero(aval((), "f8")) for j in range(len(xs))]
        with np.errstate(all="ignore"):
            _, t = op(name).jvp([arr(x) for x in xs], ts)
        if slope is None:
            assert isinstance(t, Zero)
        else:
            np.testing.assert_array_equal(val(t), slope)


def test_nextafter_has_no_derivative() -> None:
    for fun in (lambda x: jnp.nextafter(x, 2.0), lambda x: jnp.nextafter(2.0, x), jnp.spacing):
        with pytest.raises(NotImplementedError, match="derivative of nextafter"):
            anima.grad(fun)(1.0)


def test_clamp_is_flat_at_its_bounds() -> None:
    _, t = ew.clamp_p.jvp([arr(0.0), arr([-1.0, 0, 0.5, 1, 2]), arr(1.0)],
                          [Zero(aval((), "f8")), arr(np.ones(5)), Zero(aval((), "f8"))])
    assert val(t).tolist() == [0, 0, 1, 0, 0]


def test_tangents_of_integers_are_float0() -> None:
    zero = Zero(ShapedArray((3,), dtypes.float0))
    x = arr([1, 2, 3], np.int32)
    for p in (ew.add, ew.mul, ew.div, ew.max):
        _, t = p.jvp([x, x], [zero, zero])
        assert t == zero
    _, t = ew.convert_element_type_p.jvp([x], [zero], new_dtype=np.dtype(np.float32), weak_type=False)
    assert t == Zero(aval((3,), "f4"))
    _, t = ew.convert_element_type_p.jvp([arr([1.0])], [arr([1.0])], new_dtype=np.dtype(np.int32), weak_type=False)
    assert t == Zero(ShapedArray((1,), dtypes.float0))
    _, t = ew.stop_gradient_p.jvp([arr([1.0])], [arr([1.0])])
    assert t == Zero(aval((1,), "f8"))
    _, t = ew.select_n_p.jvp([arr(True, bool), x, x], [Zero(ShapedArray((), dtypes.float0)), zero, zero])
    assert t == zero


def names(fun: Callable[..., Any], *avals: ShapedArray) -> list[str]:
    return [e.primitive.name for e in trace_to_jaxpr(lambda *xs: [fun(*xs)], avals)[0].eqns]


def test_derivatives_stage_as_in_the_documents() -> None:
    a = aval((3,), "f4")
    assert names(lambda x, t: ew.sin.jvp([x], [t])[1], a, a) == ["sin", "cos", "mul"]
    assert names(lambda x, t: ew.integer_pow_p.jvp([x], [t], y=2)[1], a, a) == ["integer_pow", "mul", "mul"]
    assert names(lambda x, t: ew.div.jvp([t, x], [t, t])[1], a, a) == [
        "div", "div", "neg", "mul", "integer_pow", "mul", "add_any"]
    assert names(lambda x, t: ew.add.jvp([x, x], [t, t])[1], a, a) == ["add", "add"]


# ---------------------------------------------------------------- transposes, batching

@pytest.mark.parametrize("shapes", [((2, 3), (2, 3)), ((), (2, 3)), ((2, 3), ()), ((2, 1), (1, 3)), ((1, 3), (2, 3))],
                         ids=str)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "add_any", "complex"])
def test_transposes(name: str, shapes: tuple[Any, Any]) -> None:
    rng = np.random.default_rng(2)
    xs = [rng.normal(size=s) for s in shapes]
    out = val(op(name)(*[arr(x) for x in xs]))
    ct = rng.normal(size=out.shape) + (1j * rng.normal(size=out.shape) if out.dtype.kind == "c" else 0)
    for i in range(2):
        if name == "div" and i == 1:
            with pytest.raises(NotImplementedError, match="not linear in that operand"):
                op(name).transpose(arr(ct), arr(xs[0]), Linear(aval(shapes[1], "f8")))
            continue
        joint = name in ("add", "sub", "add_any", "complex")
        args = [Linear(aval(s, "f8")) if joint or j == i else arr(x) for j, (s, x) in
                enumerate(zip(shapes, xs, strict=True))]
        cts = op(name).transpose(arr(ct, ct.dtype), *args)
        others = [x if j == i or not joint else 0 * x for j, x in enumerate(xs)]
        image = val(op(name)(*[arr(x) for x in others]))
        assert cts[i].shape == shapes[i]
        np.testing.assert_allclose((val(cts[i]) * xs[i]).sum(), (ct * image).sum().real, rtol=1e-10)
        zero = op(name).transpose(Zero(aval(out.shape, out.dtype)), *args)
        assert zero[i] == Zero(aval(shapes[i], "f8"))


def test_unary_transposes() -> None:
    z, c = arr([1 + 2j, 3 - 1j], np.complex128), aval((2,), "c16")
    r = arr([1.0, -2.0])
    assert val(ew.real.transpose(r, Linear(c))[0]).tolist() == [1, -2]
    assert val(ew.imag.transpose(r, Linear(c))[0]).tolist() == [-1j, 2j]
    assert val(ew.conj_p.transpose(z, Linear(c), input_dtype=c.dtype)[0]).tolist() == [1 - 2j, 3 + 1j]
    assert val(ew.conj_p.transpose(z, Linear(aval((2,), "f8")), input_dtype=np.dtype("f8"))[0]).tolist() == [1, 3]
    assert val(ew.neg.transpose(r, Linear(aval((2,), "f8")))[0]).tolist() == [-1, 2]
    (ct,) = ew.convert_element_type_p.transpose(r, Linear(aval((2,), "f4")), new_dtype=np.dtype("f8"), weak_type=False)
    assert ct.dtype == np.float32
    cts = ew.select_n_p.transpose(r, arr([True, False], bool), Linear(aval((2,), "f8")), Linear(aval((2,), "f8")))
    assert cts[0] is None and val(cts[1]).tolist() == [0, -2] and val(cts[2]).tolist() == [1, 0]
    with pytest.raises(NotImplementedError, match=r"Transposition .* of 'sin'"):
        ew.sin.transpose(r, Linear(aval((2,), "f8")))


@pytest.mark.parametrize("shapes", [((2, 3), (2, 3)), ((), (2, 3)), ((2, 3), ()), ((2, 1), (1, 3)), ((), ())], ids=str)
def test_batching(shapes: tuple[Any, ...]) -> None:
    rng = np.random.default_rng(3)
    for primitive in (ew.sub, ew.select_n_p, ew.clamp_p):
        full = (*shapes, (2, 3)) if primitive is ew.select_n_p and shapes[1] else (*shapes, shapes[1])
        operands = full[:2] if primitive is ew.sub else full
        for dims in itertools.product(*[(None, *range(len(s) + 1)) for s in operands]):
            if all(d is None for d in dims):
                continue
            args = [rng.normal(size=s if d is None else (*s[:d], 4, *s[d:]))
                    for s, d in zip(operands, dims, strict=True)]
            if primitive is ew.select_n_p:
                args[0] = args[0] > 0
            out, dim = primitive.batch(4, [arr(a, a.dtype) for a in args], dims)
            for i in range(4):
                one = [a if d is None else np.take(a, i, d) for a, d in zip(args, dims, strict=True)]
                np.testing.assert_array_equal(np.take(val(out), i, dim), primitive.eval(*one))


def test_unbatched_scalars_stay_scalars() -> None:
    calls = names(lambda x, s: ew.mul.batch(4, [x, s], [0, None])[0], aval((4, 3), "f4"), aval((), "f4"))
    assert calls == ["mul"]


# ---------------------------------------------------------------- keys, trees, incomplete gamma

def test_keys() -> None:
    key = dtypes.KeyDType()
    bits = np.arange(8, dtype=np.uint32).reshape(4, 2)
    keys = ConcreteArray(bits.copy(), ShapedArray((4,), key))
    other = ConcreteArray(bits[::-1].copy(), ShapedArray((4,), key))
    chosen = ew.select_n(np.array([True, False, False, True]), keys, other)
    assert chosen.dtype == key and val(chosen._value).tolist() == [[6, 7], [2, 3], [4, 5], [0, 1]]
    assert val(ew.eq(keys, keys)).tolist() == [True] * 4 and val(ew.ne(keys, other)).tolist() == [True] * 4
    assert val(ew.copy(keys)._value).tolist() == bits.tolist()
    with pytest.raises(TypeError, match="does not accept dtype"):
        ew.add(keys, keys)


def test_stop_gradient_maps_trees() -> None:
    out = ew.stop_gradient({"a": np.float32(1), "b": (np.int32(2), None)})
    assert out["b"][1] is None and float(out["a"]) == 1 and out["b"][0] == 2


def test_incomplete_gamma_in_its_order() -> None:
    mpmath = pytest.importorskip("mpmath")
    for a, x in [(0.01, 0.02), (0.5, 0.3), (2, 2.5), (50, 60), (500, 480), (2, 30), (0.1, 5)]:
        want = float(mpmath.diff(lambda q, x=x: mpmath.gammainc(q, 0, x, regularized=True), a))
        np.testing.assert_allclose(special.igamma_grad_a.eval(np.float64(a), np.float64(x)), want, rtol=1e-11)
        density = float(x ** (a - 1) * mpmath.exp(-x) / mpmath.gamma(a))
        np.testing.assert_allclose(special.random_gamma_grad_p.eval(np.float64(a), np.float64(x)), -want / density,
                                   rtol=1e-11)


def test_operands_are_counted() -> None:
    for call in (lambda: ew.sin.bind(1.0, 2.0), lambda: ew.add.bind(1.0), lambda: trace_to_jaxpr(
            lambda x: [ew.sin.bind(x, x)], [aval((), "float32")]), lambda: ew.neg.abstract_eval()):
        with pytest.raises(TypeError, match=r"(sin|add|neg) takes \d operands, and got \d"):
            call()
    assert ew.sin.abstract_eval(aval((2,), "float32")) == (aval((2,), "float32"), frozenset())


@pytest.mark.parametrize("name", [n for n, p in ELEMENTWISE.items() if len(p.operands) == 1])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_signs_at_zeros_are_those_of_compiled_code(name: str, dtype: str) -> None:
    x = np.array([0.0, -0.0], dtype)
    params = {"integer_pow": {"y": 3}}.get(name, {})
    with anima.enable_x64(True):
        given = jnp.asarray(x)
        try:
            eager = ELEMENTWISE[name].bind(given, **params)
        except TypeError:  # not for such numbers, or with other parameters
            return
        compiled = anima.jit(lambda x: ELEMENTWISE[name].bind(x, **params))(given)
    np.testing.assert_array_equal(eager, compiled)
    if eager.dtype.kind == "f":
        numbers = np.asarray(eager == eager)
        np.testing.assert_array_equal(np.signbit(eager)[numbers], np.signbit(compiled)[numbers])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("divisor", [1.0, 0.3, -2 * np.pi, 7.0, 1 - 2.0**-24, 1e-3, 1e30, 1e-42, np.inf, np.nan, 0.0])
def test_remainders_by_constants(divisor: float, dtype: Any, x64: None) -> None:
    """Compiled code multiplies by what is a little more than the inverse: exact around every multiple."""
    y = dtype(divisor)
    random = np.random.default_rng(0)
    with np.errstate(all="ignore"):
        multiples = np.concatenate([np.arange(50), random.integers(0, 2**22, 500), 2.0 ** np.arange(60)]) * y
        x = np.concatenate([f(multiples).astype(dtype) for f in (
            lambda m: m, lambda m: np.nextafter(m.astype(dtype), dtype(0)),
            lambda m: np.nextafter(m.astype(dtype), dtype(np.inf)), lambda m: -0.999 * m)])
        x = np.concatenate([x, dtype([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-39])])
        wanted = np.fmod(x, y)
    got = np.asarray(anima.jit(lambda x: ew.rem(x, y))(x))
    np.testing.assert_array_equal(got, wanted)
    number = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(wanted[number]))
