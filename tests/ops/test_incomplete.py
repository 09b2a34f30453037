"""The incomplete gamma and beta functions: accuracy over their domain, ends, and the same bits in lanes and alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

import anima
from anima import lax
from tests.compiler.test_scalars import units


def _gamma(lower: bool) -> Callable[..., Any]:
    return lambda a, x: mpmath.gammainc(a, *((0, x) if lower else (x, mpmath.inf)), regularized=True)


def _beta(a: Any, b: Any, x: Any) -> Any:
    return mpmath.betainc(a, b, 0, x, regularized=True)


EXACT: dict[str, Callable[..., Any]] = {"igamma": _gamma(True), "igammac": _gamma(False), "betainc": _beta}


def arguments(name: str, dtype: Any, count: int) -> tuple[np.ndarray, ...]:
    """Orders of all sizes, and arguments near the mean and elsewhere."""
    random = np.random.default_rng(3)
    a, b = 10.0 ** random.uniform(-2, 3.6, (2, count))
    if name == "betainc":
        x = np.where(np.arange(count) % 2 == 0, random.beta(a, b), random.uniform(0.01, 0.99, count))
        return a.astype(dtype), b.astype(dtype), np.clip(x, 1e-30, 0.9999).astype(dtype)
    near = np.abs(a + 3 * random.normal(size=count) * np.sqrt(a))
    return a.astype(dtype), np.where(np.arange(count) % 2 == 0, near, b).astype(dtype)


@pytest.mark.parametrize("dtype, most", [(np.float32, 0.51), (np.float64, 200)])
@pytest.mark.parametrize("name", EXACT)
def test_accuracy(name: str, dtype: Any, most: float, x64: None) -> None:
    args = arguments(name, dtype, 160)
    got = np.asarray(anima.jit(getattr(lax, name))(*args))
    with mpmath.workprec(300):
        for g, *v in zip(got, *args, strict=True):
            exact = EXACT[name](*(mpmath.mpf(float(w)) for w in v))
            if exact > np.finfo(dtype).tiny:
                assert units(float(g), exact, "f32" if dtype == np.float32 else "f64") <= most, v


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", [*EXACT, "igamma_grad_a", "random_gamma_grad", "zeta", "polygamma"])
def test_lanes_are_as_single_numbers(name: str, dtype: Any, x64: None) -> None:
    args = arguments(name, dtype, 100)
    if name in ("zeta", "polygamma"):
        args = (np.floor(args[0] / 100).astype(dtype) + (name == "zeta"), args[1])
    f = anima.jit(getattr(lax, name))
    alone = np.array([f(*v) for v in zip(*args, strict=True)])
    for count in (1, 7, 16, 17, 100):
        np.testing.assert_array_equal(np.asarray(f(*(v[:count] for v in args))), alone[:count])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("a", [1e4, 1e6, 1e10, 1e15, 1e20, 1e30])
def test_orders_too_large_for_sums(a: float, dtype: Any, x64: None) -> None:
    # P(a, a) = 1/2 + 1/(3 sqrt(2 pi a)) (1 + O(1/a))
    a = dtype(a)
    wanted = 0.5 + 1 / (3 * np.sqrt(2 * np.pi * float(a))) * (1 + 1 / (540 * float(a)) * 3)
    np.testing.assert_allclose(anima.jit(lax.igamma)(a, a), wanted, rtol=1e-6 if dtype == np.float32 else 1e-8)
    np.testing.assert_allclose(anima.jit(lax.igammac)(a, a), 1 - wanted, rtol=1e-6 if dtype == np.float32 else 1e-8)
    ends = dtype(0.5), dtype(2)
    assert [float(anima.jit(lax.igamma)(a, a * factor)) for factor in ends] == [0.0, 1.0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("a", [1e4, 1e6, 1e8])
def test_the_beta_function_at_its_median(a: float, dtype: Any, x64: None) -> None:
    got = anima.jit(lax.betainc)(dtype(a), dtype(a), dtype(0.5))
    np.testing.assert_allclose(got, 0.5, rtol=1e-6 if dtype == np.float32 else 1e-13)


def test_a_tiny_order_beside_an_ordinary_one(x64: None) -> None:
    got = 1 - np.asarray(anima.jit(lax.betainc)(np.float64(1e-9), np.float64(2), np.float64(0.2)))
    np.testing.assert_allclose(got, 8.094379124265055e-10, rtol=1e-6)


def test_constants_of_special_functions_do_not_load_scipy() -> None:
    code = ("import sys, anima, anima.numpy as jnp; f = anima.jit(lambda x: x + anima.lax.lgamma(4.0));"
            "print(float(f(jnp.ones(3))[0]), 'scipy.special' in sys.modules)")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert abs(float(out[0]) - 2.7917595) < 1e-6 and out[1] == "False"
