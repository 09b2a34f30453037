"""Scalar functions of generated code against mpmath and against Python's integers.

Every function runs over arrays in a loop of vectors; accuracy is counted in units in the last place of
the exact result. Vectors, single numbers, and the path for machines without AVX-512 must agree bit for bit.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

import ml_dtypes
import mpmath
import numpy as np
import pytest
import scipy.special

import anima
import anima.numpy as jnp
from anima.compiler.ir.assembly import ModuleBuilder, Type, Value
from anima.compiler.machine import native
from anima.compiler.scalars import table as scalars

NUMPY = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "bool": np.bool_,
         "c64": np.complex64, "c128": np.complex128,
         **{f"{sign}{bits}": np.dtype(f"{'u' if sign == 'u' else ''}int{bits}")
            for sign in "iu" for bits in (8, 16, 32, 64)}}
PARTS = {"c64": "f32", "c128": "f64"}
WIDE = {"f32": 16, "f64": 8}


@cache
def compiled(name: str, dtype: str, count: int, result: str, width: int, features: str | None,
             params: tuple[tuple[str, Any], ...]) -> tuple[Any, native.Module]:
    """A function (n, results, operand, ...) that applies a scalar function to arrays."""
    host = native.host()
    module = ModuleBuilder(host.triple, 8 * host.vector_bytes, host.features if features is None else features)
    b = module.function("run", [Type("i64"), *[Type("ptr")] * (1 + count)])
    n, out, *operands = b.params
    loop, done = b.label("loop"), b.label("done")
    b.branch(loop)
    b.place(loop)
    i = b.phi(Type("i64"), (0, "entry"))

    def load(pointer: Value) -> Any:
        if dtype in PARTS:
            type = scalars.llvm_type(PARTS[dtype])
            return tuple(b.load(type, b.gep(type, pointer, b.op("add", b.op("mul", i, 2), k))) for k in (0, 1))
        if dtype == "bool":
            return b.cast("trunc", b.load(Type("i8", width), b.gep("i8", pointer, i)), Type("i1", width))
        type = scalars.llvm_type(dtype, width)
        return b.load(type, b.gep(type.scalar, pointer, i))

    values = [load(p) for p in operands]
    if name == "convert":
        value = scalars.convert(b, values[0], dtype, result)
    else:
        value = scalars.emit(b, name, values, dtype, **dict(params))
    if isinstance(value, tuple):
        for k, part in enumerate(value):
            b.store(part, b.gep(part.type, out, b.op("add", b.op("mul", i, 2), k)))
    else:
        if value.type.scalar == "i1":
            value = b.cast("zext", value, value.type.of("i8"))
        b.store(value, b.gep(value.type.scalar, out, i))
    following = b.op("add", i, width)
    i.add(following, b.block)
    b.branch_if(b.cmp("slt", following, n), loop, done)
    b.place(done)
    b.ret()
    code = native.compile_module(module.text(), check=True)
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_int64, *[ctypes.c_void_p] * (1 + count))
    return prototype(code.address("run")), code


def run(name: str, dtype: str, *operands: Any, width: int = 1, result: str | None = None,
        features: str | None = None, **params: Any) -> np.ndarray:
    """The function applied to arrays (whose length is made a multiple of the width)."""
    arrays = [np.asarray(x, NUMPY[dtype]).ravel() for x in operands]
    n = arrays[0].size
    padded = -(-n // width) * width
    arrays = [np.ascontiguousarray(np.resize(x, padded)) for x in arrays]
    out = np.empty(padded, NUMPY[result or dtype])
    function, _ = compiled(name, dtype, len(arrays), result or dtype, width, features, tuple(params.items()))
    function(padded, out.ctypes.data, *[x.ctypes.data for x in arrays])
    return out[:n]


# Accuracy ------------------------------------------------------------------------------------------

Range = tuple[float, float]
mpf = mpmath.mpf


def _logistic(x: Any) -> Any:
    return 1 / (1 + mpmath.exp(-x))


def _cbrt(x: Any) -> Any:
    return mpmath.sign(x) * mpmath.cbrt(abs(x))


def _lgamma(x: Any) -> Any:
    return mpmath.log(abs(mpmath.gamma(x))) if x < 1000 else mpmath.loggamma(x)


def _erf_inv(x: Any) -> Any:
    return mpmath.erfinv(x)


# Name: the exact function, the most units in the last place, and where to look beside all magnitudes.
UNARY: dict[str, tuple[Callable[[Any], Any], float, tuple[Range, ...]]] = {
    "exp": (mpmath.exp, 2, ((-1, 1), (-100, 88), (-745, 709))),
    "exp2": (lambda x: mpmath.power(2, x), 2, ((-1, 1), (-150, 127), (-1074, 1023))),
    "expm1": (mpmath.expm1, 2, ((-1, 1), (-20, 88), (-40, 709))),
    "log": (mpmath.log, 2, ((0.5, 2), (0.99, 1.01), (0, 100))),
    "log1p": (mpmath.log1p, 2, ((-1, 1), (-0.01, 0.01), (0, 100))),
    "log2": (lambda x: mpmath.log(x) / mpmath.log(2), 2, ((0.5, 2), (0.99, 1.01))),
    "tanh": (mpmath.tanh, 2, ((-1, 1), (-20, 20))),
    "logistic": (_logistic, 2, ((-1, 1), (-100, 20), (-745, 40))),
    "sin": (mpmath.sin, 2, ((-7, 7), (-4e4, 4e4), (-3e7, 3e7))),
    "cos": (mpmath.cos, 2, ((-7, 7), (-4e4, 4e4), (-3e7, 3e7))),
    "tan": (mpmath.tan, 2, ((-7, 7), (-4e4, 4e4), (-3e7, 3e7))),
    "asin": (mpmath.asin, 2, ((-1, 1),)),
    "acos": (mpmath.acos, 2, ((-1, 1),)),
    "atan": (mpmath.atan, 2, ((-1, 1), (-10, 10))),
    "sinh": (mpmath.sinh, 2, ((-2, 2), (-89, 89), (-710, 710))),
    "cosh": (mpmath.cosh, 2, ((-2, 2), (-89, 89), (-710, 710))),
    "asinh": (mpmath.asinh, 2, ((-2, 2), (-1e5, 1e5))),
    "acosh": (mpmath.acosh, 2, ((1, 2), (1, 1e5))),
    "atanh": (mpmath.atanh, 2, ((-1, 1),)),
    "sqrt": (mpmath.sqrt, 0.5, ((0, 4),)),
    "rsqrt": (lambda x: 1 / mpmath.sqrt(x), 2, ((0, 4),)),
    "cbrt": (_cbrt, 2, ((-8, 8),)),
    "erf": (mpmath.erf, 2, ((-1, 1), (-6, 6))),
    "erfc": (mpmath.erfc, 2, ((-1, 1), (-6, 10), (0, 27))),
    "erf_inv": (_erf_inv, 4, ((-1, 1), (0.99, 1))),
    "lgamma": (_lgamma, 4, ((0.3, 3.2), (0, 20))),
    "digamma": (mpmath.digamma, 4, ((0.9, 3.2), (1.4, 1.5), (0, 20))),
}
BINARY: dict[str, tuple[Callable[[Any, Any], Any], float]] = {
    "pow": (mpmath.power, 2),
    "atan2": (mpmath.atan2, 2),
    "rem": (lambda x, y: mpmath.sign(x) * mpmath.fmod(abs(x), abs(y)), 0),
}
SLOW = {"erf_inv": 150, "lgamma": 200, "digamma": 200}
DOMAIN = {"log": (0, math.inf), "log2": (0, math.inf), "sqrt": (0, math.inf), "rsqrt": (0, math.inf),
          "log1p": (-1, math.inf), "asin": (-1, 1), "acos": (-1, 1), "atanh": (-1, 1), "acosh": (1, math.inf),
          "erf_inv": (-1, 1), "erfc": (-1e4, 1e4), "lgamma": (0, 1e30), "digamma": (0, 1e30)}


def sample(name: str, dtype: str, count: int, seed: int = 0) -> np.ndarray:
    """Numbers of all magnitudes (any bit pattern), of ordinary ones, and from the function's own ranges."""
    random, scalar = np.random.default_rng(seed), NUMPY[dtype]
    patterns = random.integers(0, 2 ** (32 if dtype == "f32" else 64), count, dtype=np.uint64)
    parts = [patterns.astype("u4" if dtype == "f32" else "u8").view(scalar),
             (10.0 ** random.uniform(-6, 2, count) * random.choice([-1, 1], count)).astype(scalar)]
    ranges = UNARY[name][2] if name in UNARY else ((-10, 10),)
    parts += [random.uniform(low, high, count).astype(scalar) for low, high in ranges]
    if name in ("sin", "cos", "tan"):  # close to multiples of pi/2
        multiples = np.concatenate([np.arange(1, count), random.integers(1, 2**20, count)])
        parts.append((multiples * (np.pi / 2)).astype(scalar))
    x = np.concatenate(parts)
    low, high = DOMAIN.get(name, (-math.inf, math.inf))
    with np.errstate(invalid="ignore"):
        return x[np.isfinite(x) & (x > low) & (x < high)]


def units(got: float, exact: Any, dtype: str) -> float:
    """The error in units in the last place of the exact result."""
    info = np.finfo(NUMPY[dtype])
    if mpmath.isnan(got):
        return math.inf
    size = abs(exact)
    if size >= mpf(2) ** info.maxexp * (1 - mpf(2) ** -(info.nmant + 2)):
        return 0 if math.isinf(got) and (got > 0) == (exact > 0) else math.inf
    if math.isinf(got):
        return 1 if size > mpf(float(info.max)) else math.inf
    exponent = max(mpmath.frexp(size)[1] - 1, info.minexp) if size else info.minexp
    return float(abs(mpf(got) - exact) / mpf(2) ** (exponent - info.nmant))


def worst(name: str, dtype: str, exact: Callable[..., Any], got: np.ndarray, *operands: np.ndarray) -> Any:
    """The largest error, and where it is."""
    largest: tuple[float, Any] = (-1.0, None)
    with mpmath.workprec(160):
        for i, y in enumerate(got.tolist()):
            arguments = [mpf(float(x[i])) for x in operands]
            error = units(y, exact(*arguments), dtype)
            if error > largest[0]:
                largest = (error, (*[float(x[i]) for x in operands], y))
    return largest


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", UNARY)
def test_accuracy(name: str, dtype: str) -> None:
    exact, most, _ = UNARY[name]
    x = sample(name, dtype, SLOW.get(name, 300))
    if name in SLOW:
        x = x[:: max(1, x.size // SLOW[name])]
    y = run(name, dtype, x, width=WIDE[dtype])
    error, where = worst(name, dtype, exact, y, x)
    assert error <= most, f"{name} {dtype}: {error} at {where}"


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", BINARY)
def test_accuracy_of_two(name: str, dtype: str) -> None:
    exact, most = BINARY[name]
    x, y = sample(name, dtype, 300), sample(name, dtype, 300, seed=1)
    n = min(x.size, y.size)
    x, y = x[:n], np.random.default_rng(2).permutation(y)[:n]
    if name == "pow":  # most random powers overflow
        x = np.abs(x)
        limit = 100 if dtype == "f32" else 740
        with np.errstate(all="ignore"):
            y = (np.random.default_rng(3).uniform(-limit, limit, n) / np.log(x.astype("f8"))).astype(y.dtype)
        good = np.isfinite(y) & (x > 0)
        x, y = x[good], y[good]
    got = run(name, dtype, x, y, width=WIDE[dtype])
    error, where = worst(name, dtype, exact, got, x, y)
    assert error <= most, f"{name} {dtype}: {error} at {where}"


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_every_width_and_machine_gives_the_same_bits(name: str, dtype: str) -> None:
    specials = SPECIALS.astype(NUMPY[dtype])
    operands = [np.concatenate([specials, sample(name, dtype, 40, seed=s)]) for s in range(1 + (name in BINARY))]
    n = min(x.size for x in operands)
    operands = [x[:n] for x in operands]
    wide = run(name, dtype, *operands, width=WIDE[dtype])
    plain = "".join(f",{f}" for f in native.host().features.split(",") if "avx512" not in f)
    for other in (run(name, dtype, *operands), run(name, dtype, *operands, width=4, features=plain)):
        np.testing.assert_array_equal(other, wide, strict=True)
        np.testing.assert_array_equal(np.signbit(other[~np.isnan(wide)]), np.signbit(wide[~np.isnan(wide)]))


# Bessel, zeta, incomplete gamma and beta ----------------------------------------------------------

def _p(a: Any, x: Any) -> Any:
    return mpmath.gammainc(a, 0, x, regularized=True)


# Name: the exact function, the largest relative error in f64 (their scale factors are powers), sizes of arguments.
INCOMPLETE: dict[str, tuple[Callable[..., Any], float, tuple[Range, ...]]] = {
    "bessel_i0e": (lambda x: mpmath.besseli(0, x) * mpmath.exp(-x), 1e-15, ((-2, 2),)),
    "bessel_i1e": (lambda x: mpmath.besseli(1, x) * mpmath.exp(-x), 1e-15, ((-2, 2),)),
    "zeta": (mpmath.zeta, 1e-14, ((0.05, 1.2), (-2, 1))),
    "polygamma": (lambda m, x: mpmath.psi(int(m), x), 1e-14, ((0.4, 0.5), (-2, 2))),
    "igamma": (_p, 1e-12, ((-1, 2), (-1, 2))),
    "igammac": (lambda a, x: mpmath.gammainc(a, x, mpmath.inf, regularized=True), 1e-12, ((-1, 2), (-1, 2))),
    "igamma_grad_a": (lambda a, x: mpmath.diff(lambda t: _p(t, x), a), 1e-11, ((0, 1), (0, 1))),
    "random_gamma_grad": (lambda a, x: -mpmath.diff(lambda t: _p(t, x), a) / mpmath.diff(lambda t: _p(a, t), x),
                          1e-11, ((0, 1), (0, 1))),
    "regularized_incomplete_beta": (lambda a, b, x: mpmath.betainc(a, b, 0, x, regularized=True), 1e-12,
                                    ((-1, 1), (-1, 1), (-2, -0.01)))}


@pytest.mark.parametrize("name", INCOMPLETE)
def test_incomplete_functions(name: str) -> None:
    exact, most, ranges = INCOMPLETE[name]
    random = np.random.default_rng(6)
    operands = [10 ** random.uniform(low, high, 16) for low, high in ranges]
    if name == "polygamma":
        operands[0] = np.round(operands[0])
    got = run(name, "f64", *operands, width=8)
    single = run(name, "f32", *operands, width=16)
    for i, y in enumerate(got.tolist()):
        with mpmath.workdps(60):
            expected = exact(*[mpf(float(x[i])) for x in operands])
        if expected > 1e-200:
            assert abs(y / expected - 1) < most, (name, [x[i] for x in operands], y, expected)
        arguments = [float(np.float32(x[i])) for x in operands]
        assert single[i] == np.float32(run(name, "f64", *arguments)[0]), (name, arguments)


def test_edges_of_incomplete_functions_are_those_of_scipy() -> None:
    points = np.array([0.0, INF, NAN, 1.0, -1.0, 2.0, 0.5, 30.0])
    a, x = (v.ravel() for v in np.meshgrid(points, points))
    np.testing.assert_allclose(run("igamma", "f64", a, x, width=4), scipy.special.gammainc(a, x), rtol=1e-13)
    np.testing.assert_allclose(run("igammac", "f64", a, x, width=4), scipy.special.gammaincc(a, x), rtol=1e-13)
    a, b, x = (v.ravel() for v in np.meshgrid(points, points, [0.0, 1.0, 0.5, NAN, 2.0]))
    got = run("regularized_incomplete_beta", "f64", a, b, x, width=4)
    np.testing.assert_allclose(got, scipy.special.betainc(a, b, x), rtol=1e-12)
    zeta = run("zeta", "f64", [1, 0.5, 2, 2, 3], [1, 1, 0, -1, -0.5])
    np.testing.assert_allclose(zeta, [INF, NAN, INF, INF, float(mpmath.zeta(3, 0.5)) - 8], rtol=1e-13)


# Special values ------------------------------------------------------------------------------------

INF, NAN = math.inf, math.nan
SPECIALS = np.array([0.0, -0.0, INF, -INF, NAN, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 1e-40, -1e-40, 1e-45, 3e38, -3e38])
# What NumPy has no function for: values at 0, -0, inf, -inf, nan, 1, -1.
OWN = {"logistic": (0.5, 0.5, 1, 0, NAN), "rsqrt": (INF, -INF, 0, NAN, NAN, 1, NAN),
       "erf": (0.0, -0.0, 1, -1, NAN), "erfc": (1, 1, 0, 2, NAN), "erf_inv": (0.0, -0.0, NAN, NAN, NAN, INF, -INF),
       "sign": (0.0, -0.0, 1, -1, NAN, 1, -1), "lgamma": (INF, INF, INF, INF, NAN, 0, INF),
       "digamma": (NAN, NAN, INF, NAN, NAN)}
FROM_NUMPY = {"exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "log2": np.log2,
              "tanh": np.tanh, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
              "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "asinh": np.arcsinh, "acosh": np.arccosh,
              "atanh": np.arctanh, "sqrt": np.sqrt, "cbrt": np.cbrt, "floor": np.floor, "ceil": np.ceil,
              "abs": np.abs, "neg": np.negative, "trunc": np.trunc}
FROM_NUMPY_2 = {"pow": np.power, "atan2": np.arctan2, "rem": np.fmod, "nextafter": np.nextafter, "max": np.maximum,
                "min": np.minimum, "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
                "copysign": np.copysign}


def same(got: np.ndarray, expected: np.ndarray, signed_zeros: bool = True) -> None:
    """Equal to a few units in the last place, with the same NaNs, infinities and (signed) zeros."""
    np.testing.assert_allclose(got, expected, rtol=5 * np.finfo(got.dtype).eps, atol=0)
    zeros = (got == 0) & (expected == 0)
    if signed_zeros:
        np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(expected[zeros]))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", [*OWN, *FROM_NUMPY])
def test_special_values(name: str, dtype: str) -> None:
    x = SPECIALS.astype(NUMPY[dtype])
    if name in OWN:
        same(run(name, dtype, x[:len(OWN[name])], width=4), np.array(OWN[name], x.dtype))
        return
    with np.errstate(all="ignore"):
        same(run(name, dtype, x, width=4), FROM_NUMPY[name](x))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", FROM_NUMPY_2)
def test_special_pairs(name: str, dtype: str) -> None:
    x, y = (a.ravel() for a in np.meshgrid(SPECIALS.astype(NUMPY[dtype]), SPECIALS.astype(NUMPY[dtype])))
    with np.errstate(all="ignore"):
        expected = FROM_NUMPY_2[name](x, y)
    same(run(name, dtype, x, y, width=4), expected, signed_zeros=name not in ("max", "min"))


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_powers_at_the_ends_of_all_parts_of_the_table(dtype: str, width: int) -> None:
    """To 2 ulp, and exactly the number itself to the power 1."""
    edges = (0x3FE6A09E667F3BCD + (np.arange(129) << 45)).view(np.float64).astype(NUMPY[dtype])
    x = np.concatenate([np.nextafter(edges, NUMPY[dtype](0)), edges, np.nextafter(edges, NUMPY[dtype](2))])
    same(run("pow", dtype, x, np.ones_like(x), width=width), x)
    for exponent in (-1.0, 0.3, 200.0):
        y = np.full_like(x, exponent)
        got = run("pow", dtype, x, y, width=width)
        for number, power, value in zip(x.tolist(), y.tolist(), got, strict=True):
            exact = mpmath.power(mpf(number), mpf(power))
            assert abs(mpf(float(value)) - exact) <= 2 * mpf(float(np.spacing(NUMPY[dtype](float(exact))))), number


def test_remainders_on_both_sides_of_the_longest_quotient() -> None:
    """Quotients of more digits than a number has are divided again, beside others that are not."""
    for dtype, mantissa in (("f32", 23), ("f64", 52)):
        number = NUMPY[dtype]
        top = 2.0 ** (mantissa - 1)
        quotients = number([0, 1, top - 1, top - 0.5, top, top + 1, 2 * top, 2 * top + 1, 4 * top, 2.0**100])
        for divisor in (1.0, 0.7, 3.0, 1e-30):
            x = np.concatenate([quotients * number(divisor), np.nextafter(quotients * number(divisor), number(0))])
            for width in (1, 4):
                same(run("rem", dtype, x, np.full_like(x, divisor), width=width), np.fmod(x, number(divisor)))


def test_rounding() -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999997, 8388609.0, -0.2, INF, -INF, NAN], np.float32)
    away = np.array([1, 2, 3, -1, -2, -3, 0, 8388609.0, -0.0, INF, -INF, NAN], np.float32)
    same(run("round", "f32", x, width=4), away)
    same(run("round", "f32", x, width=4, rounding_method=1), np.round(x))


def test_comparisons_are_false_for_nan_but_ne() -> None:
    x, y = np.array([1, 2, NAN, NAN]), np.array([2, 1, 1, NAN])
    for name, expected in {"lt": [1, 0, 0, 0], "le": [1, 0, 0, 0], "gt": [0, 1, 0, 0], "ge": [0, 1, 0, 0],
                           "eq": [0, 0, 0, 0], "ne": [1, 1, 1, 1]}.items():
        assert run(name, "f64", x, y, width=4, result="bool").tolist() == [bool(e) for e in expected], name
    assert run("is_finite", "f64", [1, INF, NAN, -INF], width=4, result="bool").tolist() == [True, False, False, False]


def test_the_lesser_of_two_is_found_without_a_look_for_nan() -> None:
    x, y = np.array([1, -0.0, 0, NAN, 2, NAN], "f4"), np.array([2, 0, -0.0, 1, NAN, NAN], "f4")
    f = anima.jit(anima.lax.min)
    assert "fcmp uno" not in str(f.lower(x, y).llvm)
    same(np.asarray(f(x, y)), np.array([1, -0.0, -0.0, NAN, NAN, NAN], "f4"))
    same(np.asarray(anima.jit(anima.lax.max)(x, y)), np.array([2, 0, 0, NAN, NAN, NAN], "f4"))


def test_clamp_select_and_powers() -> None:
    x = np.array([-2, 0.5, 7, NAN])
    same(run("clamp", "f64", np.zeros(4), x, np.ones(4), width=4), np.array([0, 0.5, 1, NAN]))
    assert run("clamp", "u8", [5] * 4, [200, 3, 7, 9], [100] * 4, width=4).tolist() == [100, 5, 7, 9]
    rng = np.random.default_rng(0)
    low, z, high = (rng.integers(-3, 4, (3, 40)) + 1j * rng.integers(-3, 4, (3, 40))).astype(np.complex64)
    z[0], low[1], high[2] = complex(NAN, 1), NAN, complex(1, NAN)
    np.testing.assert_array_equal(anima.jit(anima.lax.clamp)(low, z, high), np.minimum(np.maximum(z, low), high))
    for power in (0, 1, 2, 3, 7, -1, -3):
        same(run("integer_pow", "f64", [0.5, 3, -2, 1], y=power), np.array([0.5, 3, -2, 1.0]) ** power)
    assert run("integer_pow", "i32", [-3, 2], y=5).tolist() == [-243, 32]


def test_reduced_precision() -> None:
    x = np.array([1.00390625, 1.01171875, 3.4e38, 1e-39, -1e-39, INF, NAN, 0.1], np.float32)
    expected = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    same(run("reduce_precision", "f32", x, exponent_bits=8, mantissa_bits=7), expected)
    half = np.array([65520, 65519, 1e-9, -3, 0.1], np.float32)
    expected = np.array([INF, 65504, 0, -3, np.float16(0.1)], np.float32)
    same(run("reduce_precision", "f32", half, exponent_bits=5, mantissa_bits=10), expected)


@pytest.mark.parametrize("bits", [3, 4, 5, 7])
def test_ends_of_a_smaller_range(bits: int) -> None:
    """The least normal number stays, as does the largest; their neighbours outside become zero and infinity."""
    bias = 2 ** (bits - 1) - 1
    least, largest = np.float32(2.0 ** (1 - bias)), np.float32(2.0 ** (bias + 1) * (1 - 2.0**-24))
    x = np.array([least, np.nextafter(least, np.float32(0)), largest, np.float32(2.0 ** (bias + 1))], np.float32)
    for sign in (1.0, -1.0):
        same(run("reduce_precision", "f32", sign * x, exponent_bits=bits, mantissa_bits=23),
             np.float32(sign) * np.array([least, 0, largest, INF], np.float32))


# Integers ------------------------------------------------------------------------------------------

def wrap(number: int, dtype: str) -> int:
    """The integer of a dtype that is congruent to a number."""
    bits = int(dtype[1:])
    number &= (1 << bits) - 1
    return number - (1 << bits) if dtype[0] == "i" and number >> (bits - 1) else number


def _divide(x: int, y: int) -> int:
    return -1 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


INTEGER: dict[str, Callable[[int, int, int], int]] = {
    "add": lambda x, y, _: x + y, "sub": lambda x, y, _: x - y, "mul": lambda x, y, _: x * y,
    "div": lambda x, y, _: _divide(x, y), "rem": lambda x, y, _: x - (_divide(x, y) if y else 0) * y,
    "max": lambda x, y, _: max(x, y), "min": lambda x, y, _: min(x, y),
    "and": lambda x, y, _: x & y, "or": lambda x, y, _: x | y, "xor": lambda x, y, _: x ^ y,
    "shift_left": lambda x, y, bits: x << (y % 2**bits) if y % 2**bits < bits else 0,
    "shift_right_logical": lambda x, y, bits: x % 2**bits >> min(y % 2**bits, bits),
    "shift_right_arithmetic": lambda x, y, bits: wrap(x, f"i{bits}") >> min(y % 2**bits, bits),
    "mulhi": lambda x, y, bits: x * y >> bits}
INTEGER_1: dict[str, Callable[[int, int], int]] = {
    "neg": lambda x, _: -x, "not": lambda x, _: ~x, "abs": lambda x, _: abs(x),
    "sign": lambda x, _: (x > 0) - (x < 0), "clz": lambda x, bits: bits - (x % 2**bits).bit_length(),
    "population_count": lambda x, bits: (x % 2**bits).bit_count()}
INTEGERS = [s + b for s in "iu" for b in ("8", "16", "32", "64")]


def integers(dtype: str) -> list[int]:
    """Bounds, small numbers, and some others."""
    info = np.iinfo(NUMPY[dtype])
    rest = np.random.default_rng(4).integers(info.min, info.max, 8, dtype=NUMPY[dtype], endpoint=True)
    return sorted({wrap(n, dtype) for n in (*range(-9, 10), info.min, info.min + 1, info.max, info.max - 1,
                                            *rest.tolist(), info.bits, 63)})


@pytest.mark.parametrize("width", [1, 16])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers(dtype: str, width: int) -> None:
    bits, values = int(dtype[1:]), integers(dtype)
    pairs = [(x, y) for x in values for y in values]
    x, y = [p[0] for p in pairs], [p[1] for p in pairs]
    for name, function in INTEGER.items():
        got = run(name, dtype, x, y, width=width).tolist()
        assert got == [wrap(function(a, b, bits), dtype) for a, b in pairs], name
    for name, single in INTEGER_1.items():
        assert run(name, dtype, values, width=width).tolist() == [wrap(single(a, bits), dtype) for a in values], name
    for name, compare in {"lt": int.__lt__, "ge": int.__ge__, "eq": int.__eq__, "ne": int.__ne__}.items():
        got = run(name, dtype, x, y, width=width, result="bool").tolist()
        assert got == [compare(a, b) for a, b in pairs], name


def test_booleans() -> None:
    x, y = [False, False, True, True], [False, True, False, True]
    for name, expected in {"and": [0, 0, 0, 1], "or": [0, 1, 1, 1], "xor": [0, 1, 1, 0], "max": [0, 1, 1, 1],
                           "min": [0, 0, 0, 1], "lt": [0, 1, 0, 0], "eq": [1, 0, 0, 1], "add": [0, 1, 1, 1],
                           "mul": [0, 0, 0, 1]}.items():
        assert run(name, "bool", x, y, width=4).tolist() == [bool(e) for e in expected], name
    assert run("not", "bool", x, width=4).tolist() == [True, True, False, False]


# Conversions ---------------------------------------------------------------------------------------

def exactly_converted(x: Any, target: str) -> Any:
    """What a number becomes: nearest bound, 0 for NaN; wrapping from integers; not zero for bool."""
    if target == "bool":
        return bool(x)
    if not isinstance(x, float):
        return wrap(x, target)
    info = np.iinfo(NUMPY[target])
    if math.isnan(x):
        return 0
    return int(min(max(x, info.min), info.max)) if math.isfinite(x) else (info.max if x > 0 else info.min)


def rounded(x: Any, target: str) -> float:
    """A number as a float, rounded once."""
    if target != "bf16" or not math.isfinite(x) or x == 0:
        with np.errstate(all="ignore"):
            return float(np.asarray(x).astype(NUMPY[target]))
    step = Fraction(2) ** max(math.frexp(x)[1] - 8, -133)
    nearest = round(Fraction(x) / step) * step  # of two, the even one
    return math.copysign(float(nearest) if abs(nearest) < 2**128 else INF, x)


FLOATS = ["f16", "bf16", "f32", "f64"]
HALFWAY = [2**24 + 2**16, 2**24 + 2**16 + 1, 3 * 2**24 + 2**17 - 1, 2**53 + 2**45 + 1, 2**60 + 2**52 + 1,
           2**60 + 2**52 - 1, 2**62 + 2**54 + 2**12]


@pytest.mark.parametrize("source", ["i32", "u32", "i64", "u64"])
def test_integers_are_rounded_once(source: str) -> None:
    numbers = [n for n in HALFWAY if n < 2**int(source[1:]) // 2]
    numbers += [2**63 + 2**55 + 1] if source == "u64" else [-n for n in numbers] if source[0] == "i" else []
    got = run("convert", source, np.array(numbers, NUMPY[source]), result="bf16")
    assert [float(x) for x in got] == [rounded(n, "bf16") for n in numbers]


@pytest.mark.parametrize("width", [1, 8])
@pytest.mark.parametrize("source", [*INTEGERS, "bool", *FLOATS])
def test_conversions(source: str, width: int) -> None:
    if source in FLOATS:
        numbers = [0.0, -0.0, 0.5, -0.9, 1.5, -3.0, 127.0, 128.0, 255.5, -129.0, 3e4, 65504.0, 65520.0, 2.0**31,
                   -2.0**31, 2.0**32, 2.0**63, -2.0**63, 2.0**64, 1e-8, 1e-40, 1.00390625, 1.0039062500001, 3.3e38,
                   1e300, INF, -INF, NAN, 2147483520.0, 0.1]
        with np.errstate(all="ignore"):
            x = np.array(numbers).astype(NUMPY[source])
    else:
        x = np.array([False, True] if source == "bool" else integers(source), NUMPY[source])
    for target in [*INTEGERS, "bool", *FLOATS]:
        if target == source:
            continue
        got = run("convert", source, x, width=width, result=target)
        if target in FLOATS:
            np.testing.assert_array_equal(got.astype("f8"), [rounded(v, target) for v in x.tolist()], target)
        else:
            values = [float(v) for v in x] if source in FLOATS else [int(v) for v in x]
            assert got.tolist() == [exactly_converted(v, target) for v in values], target


def test_half_precision_is_computed_in_f32() -> None:
    x = np.array([0.1, 2, -3, 5], np.float16)
    np.testing.assert_array_equal(run("exp", "f16", x), np.exp(x.astype("f4")).astype("f2"))
    y = np.array([0.1, 2, -3, 5], ml_dtypes.bfloat16)
    np.testing.assert_array_equal(run("mul", "bf16", y, y), y * y)
    assert run("lt", "bf16", y, y[::-1], result="bool").tolist() == (y < y[::-1]).tolist()


def test_unknown_functions_are_named() -> None:
    with pytest.raises(NotImplementedError, match="'frobnicate' of f32"):
        run("frobnicate", "f32", [1.0])
    with pytest.raises(NotImplementedError, match="'sin' of i32"):
        run("sin", "i32", [1])


# Complex numbers -----------------------------------------------------------------------------------

COMPLEX: dict[str, Callable[[Any], Any]] = {
    "exp": mpmath.exp, "log": mpmath.log, "sqrt": mpmath.sqrt, "sin": mpmath.sin, "cos": mpmath.cos,
    "tan": mpmath.tan, "sinh": mpmath.sinh, "cosh": mpmath.cosh, "tanh": mpmath.tanh, "asin": mpmath.asin,
    "acos": mpmath.acos, "atan": mpmath.atan, "asinh": mpmath.asinh, "acosh": mpmath.acosh, "atanh": mpmath.atanh,
    "log1p": mpmath.log1p, "expm1": mpmath.expm1, "logistic": _logistic, "abs": abs, "neg": lambda z: -z,
    "conj": mpmath.conj, "rsqrt": lambda z: 1 / mpmath.sqrt(z), "sign": lambda z: z / abs(z),
    "square": lambda z: z * z}
COMPLEX_2: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda z, w: z + w, "sub": lambda z, w: z - w, "mul": lambda z, w: z * w, "div": lambda z, w: z / w,
    "pow": mpmath.power}


def complex_sample(count: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    parts = [random.normal(size=count) * 10.0 ** random.uniform(-3, 1, count) for _ in range(2)]
    return parts[0] + 1j * parts[1]


@pytest.mark.parametrize("dtype", ["c64", "c128"])
@pytest.mark.parametrize("name", [*COMPLEX, *COMPLEX_2])
def test_complex_accuracy(name: str, dtype: str) -> None:
    operands = [complex_sample(60, seed).astype(NUMPY[dtype]) for seed in range(1 + (name in COMPLEX_2))]
    got = run(name, dtype, *operands, result=PARTS[dtype] if name == "abs" else None)
    exact = COMPLEX.get(name) or COMPLEX_2[name]
    epsilon = np.finfo(NUMPY[PARTS[dtype]]).eps
    for i, y in enumerate(got):
        with mpmath.workprec(120):
            expected = exact(*[mpmath.mpc(complex(z[i])) for z in operands])
        size = max(abs(expected), float(abs(operands[0][i])) * 1e-300)
        scale = 40 if name == "pow" else 8  # a power's error grows with the logarithm of the result
        error = float(abs(mpmath.mpc(complex(y)) - expected) / size) / epsilon
        assert error < scale, (name, [z[i] for z in operands], y, expected)


def test_complex_extremes() -> None:
    big, small = 1e300, 1e-300
    for size in (big, small):
        got = run("abs", "c128", [complex(size, size)], result="f64")[0]
        assert got == pytest.approx(math.hypot(size, size), rel=1e-15)
    assert run("abs", "c128", [complex(INF, NAN)], result="f64")[0] == INF
    for z in (complex(NAN, 0), complex(0, NAN)):
        assert math.isnan(run("log", "c128", [z])[0].real) and math.isnan(run("log1p", "c128", [z])[0].real)
    assert run("div", "c128", [complex(big, big)], [complex(big, big)])[0] == 1
    assert run("div", "c128", [complex(small, -small)], [complex(small, small)])[0] == -1j
    assert run("sqrt", "c128", [-4 + 0j])[0] == 2j
    assert run("sqrt", "c128", [complex(-4, -0.0)])[0] == -2j
    assert run("sqrt", "c128", [complex(big, big)])[0] == pytest.approx(np.sqrt(complex(big, big)), rel=1e-15)
    assert run("pow", "c128", [0j, 0j], [0j, 2 + 0j]).tolist() == [1, 0]
    assert run("log", "c128", [1 + 1e-20j])[0] == pytest.approx(1e-20j)
    assert run("eq", "c128", [1 + 1j, 1 + 2j], [1 + 1j, 1 + 1j], result="bool").tolist() == [True, False]
    assert run("mul", "c64", [3 + 4j], [3 - 4j])[0] == 25
    assert run("integer_pow", "c128", [1 + 1j, 2j], y=4).tolist() == [-4, 16]


@pytest.mark.parametrize("name", sorted(scalars.LONG & scalars.COMPLEX.keys()))
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_what_is_written_often_is_called_and_gives_the_same_bits(name: str, dtype: str, x64: None) -> None:
    """One program applies a function 20 times, others once each; in vectors and to single numbers of a loop."""
    function = getattr(anima.lax, name)
    rng = np.random.default_rng(3)
    z = jnp.asarray(rng.normal(size=37) + 1j * rng.normal(size=37), dtype)
    scale = jnp.asarray(np.linspace(0.1, 1.4, 20), dtype)

    def once(z: Any, c: Any) -> Any:
        return function(z * c, z + c) if name in ("pow", "atan2") else function(z * c)

    many = anima.jit(lambda z, scale: jnp.stack([once(z, scale[k]) for k in range(20)]))
    kind = "c64" if dtype == "complex64" else "c128"
    calls = [line for line in many.lower(z, scale).llvm.splitlines() if " call " in line]
    assert sum(f"anima.support.{name}.{kind}." in line for line in calls) >= 20
    single = anima.jit(once)
    np.testing.assert_array_equal(many(z, scale), np.stack([single(z, scale[k]) for k in range(20)]))
