"""Complex functions at zeros, ones, extremes, infinities and NaNs: C's Annex G, eager and compiled alike.

Python's `cmath` follows the same annex. Where it raises, the annex gives NaNs or a pole: there eager and compiled
results must agree. Signs that the annex leaves open (next to a NaN, of what turns without end) are not compared.
"""

from __future__ import annotations

import cmath
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax

INF, NAN = math.inf, math.nan
# The part, real or imaginary, that is an angle.
TURNING = {**dict.fromkeys(("exp", "sinh", "cosh", "tanh", "exp2", "expm1", "logistic"), 1),
           **dict.fromkeys(("sin", "cos", "tan"), 0)}
CMATH = ("exp", "log", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh",
         "atanh")
OWN = ("exp2", "expm1", "log1p", "logistic", "rsqrt", "sign", "square", "abs", "reciprocal")


def grid(dtype: str) -> np.ndarray:
    big, tiny = (1e300, 1e-300) if dtype == "complex128" else (1e30, 1e-30)
    parts = [0.0, 1.0, 0.5, 2.5, big, tiny, INF]
    return np.array([complex(x, y) for x, y in itertools.product([*parts, *(-p for p in parts), NAN], repeat=2)], dtype)


def agree(got: complex, want: complex, size: float, precision: float, signs: bool) -> bool:
    for g, w in ((got.real, want.real), (got.imag, want.imag)):
        if math.isnan(g) or math.isnan(w):
            if math.isnan(g) != math.isnan(w):
                return False
        elif math.isinf(g) or math.isinf(w):
            if abs(g) != abs(w) or (signs and g != w):
                return False
        elif abs(g - w) > precision * size or (signs and g == w == 0 and math.copysign(1, g) != math.copysign(1, w)):
            return False
    return True


def compare(name: str, z: complex, got: complex, want: complex, dtype: str) -> None:
    signs = not (math.isnan(z.real) or math.isnan(z.imag))
    if name in TURNING:
        signs = signs and math.isfinite((z.real, z.imag)[TURNING[name]])
    sizes = [abs(p) for p in (want.real, want.imag) if math.isfinite(p)]
    precision = 1e-14 if dtype == "complex128" else 2e-6
    assert agree(got, want, max([*sizes, 0.0]), precision, signs), f"{name}({z}) is {got}, not {want}"


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("name", CMATH)
def test_annex_g(name: str, dtype: str, x64: None) -> None:
    z, f = grid(dtype), getattr(lax, name)
    eager, compiled = np.asarray(f(z)), np.asarray(anima.jit(f)(z))
    assert eager.dtype == compiled.dtype == z.dtype
    largest = float(np.finfo(z.real.dtype).max)
    for x, e, c in zip(z.tolist(), eager.tolist(), compiled.tolist(), strict=True):
        compare(name, x, c, e, dtype)
        try:
            want = getattr(cmath, name)(x)
        except (ValueError, OverflowError):
            continue
        if not is_new(name, x) and not largest < max(abs(want.real), abs(want.imag)) < INF:
            compare(name, x, e, want, dtype)


def is_new(name: str, z: complex) -> bool:
    """Whether C17 says more of the function there than C99, and cmath: of 0 + i NaN, and of 0 + i infinity."""
    zero, rest = (z.imag, z.real) if name == "tan" else (z.real, z.imag)
    return name in ("tan", "tanh", "acosh") and zero == 0 and not math.isfinite(rest)


def _reference(name: str, z: complex) -> complex:
    """Where the annex has no entry, what follows from those it has."""
    if name == "reciprocal":
        return _divide(1 + 0j, z)
    if name == "expm1":
        whole = cmath.exp(z)
        return complex(whole.real - 1, whole.imag)
    raise ValueError(name)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("name", OWN)
def test_others_are_the_same_eager_and_compiled(name: str, dtype: str, x64: None) -> None:
    z, f = grid(dtype), getattr(jnp if name == "reciprocal" else lax, name)
    eager, compiled = np.asarray(f(z)), np.asarray(anima.jit(f)(z))
    for x, e, c in zip(z.tolist(), eager.tolist(), compiled.tolist(), strict=True):
        compare(name, x, complex(c), complex(e), dtype)
        if name in ("reciprocal", "expm1") and (abs(x) > 0.1 or name == "reciprocal"):
            try:
                want = _reference(name, x)
            except (ValueError, OverflowError):
                continue
            if dtype == "complex128" and not {abs(x.real), abs(x.imag)} & {1e300, 1e-300}:
                compare(name, x, complex(e), want, dtype)
    zeros = np.array([0.0, -0.0, complex(0, -0.0), complex(-0.0, 0.0)], dtype)
    if name in ("sign", "expm1"):
        for got in (f(zeros), anima.jit(f)(zeros)):
            np.testing.assert_array_equal(np.asarray(got).view(zeros.real.dtype), zeros.view(zeros.real.dtype))
            np.testing.assert_array_equal(np.signbit(np.asarray(got).real), np.signbit(zeros.real))
            np.testing.assert_array_equal(np.signbit(np.asarray(got).imag), np.signbit(zeros.imag))


def _box(x: float) -> float:
    return math.copysign(1.0 if math.isinf(x) else 0.0, x)


def _over(x: float, y: float) -> float:
    return x / y if y else NAN if x == 0 or math.isnan(x) else math.copysign(INF, x) * math.copysign(1, y)


def _divide(z: complex, w: complex) -> complex:
    """The quotient as in the annex's example, which finds infinities again where both parts are NaN; here if one is."""
    a, b, c, d = z.real, z.imag, w.real, w.imag
    size = c * c + d * d
    x, y = _over(a * c + b * d, size), _over(b * c - a * d, size)
    if math.isnan(x) or math.isnan(y):
        if size == 0 and not (math.isnan(a) and math.isnan(b)):
            x, y = math.copysign(INF, c) * a, math.copysign(INF, c) * b
        elif (math.isinf(a) or math.isinf(b)) and math.isfinite(c) and math.isfinite(d):
            a, b = _box(a), _box(b)
            x, y = INF * (a * c + b * d), INF * (b * c - a * d)
        elif (math.isinf(c) or math.isinf(d)) and math.isfinite(a) and math.isfinite(b):
            c, d = _box(c), _box(d)
            x, y = 0.0 * (a * c + b * d), 0.0 * (b * c - a * d)
    return complex(x, y)


@pytest.mark.parametrize("f, reference", [(lax.div, _divide), (lax.pow, None)], ids=["div", "pow"])
def test_two_operands(f: Callable[..., Any], reference: Callable[..., complex] | None, x64: None) -> None:
    parts = [0.0, -0.0, 1.0, -2.0, INF, -INF, NAN]
    numbers = np.array([complex(x, y) for x, y in itertools.product(parts, repeat=2)])
    z, w = (v.ravel() for v in np.meshgrid(numbers, numbers))
    eager, compiled = np.asarray(f(z, w)), np.asarray(anima.jit(f)(z, w))
    for a, b, e, c in zip(z.tolist(), w.tolist(), eager.tolist(), compiled.tolist(), strict=True):
        sizes = [abs(p) for p in (e.real, e.imag) if math.isfinite(p)]
        ordered = all(math.isfinite(p) for p in (a.real, a.imag, b.real, b.imag))
        signs = reference is not None and ordered
        assert agree(c, e, max([*sizes, 0.0]), 1e-13, signs), (a, b, e, c)
        if reference is not None:
            assert agree(e, reference(a, b), max([*sizes, 0.0]), 1e-14, signs), (a, b, e, reference(a, b))


def test_products_that_leave_the_range_do_not_spoil_quotients(x64: None) -> None:
    z = np.array([1e300 + 1e300j, 1e-300 - 1e-300j])
    for f in (lax.div, anima.jit(lax.div)):
        np.testing.assert_array_equal(f(z, z), [1, 1])
        np.testing.assert_array_equal(f(*[np.complex64([1e30 + 1e30j, 1e-30j])] * 2), [1, 1])


def test_logarithm_near_one_is_accurate(x64: None) -> None:
    z = np.array([1e-20 + 0j, 1e-20 + 1e-20j, -1e-9 + 1e-12j])
    for f in (lax.log1p, anima.jit(lax.log1p)):
        want = [1e-20, 1e-20 + 1e-20j, complex(math.log1p(-1e-9), 1e-12 * (1 + 1e-9))]
        np.testing.assert_allclose(f(z), want, rtol=1e-13)
