"""Quotients by square roots, and powers that are such; functions that code calls which runs once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.compiler.machine import native
from anima.compiler.scalars import table
from anima.config import enable_x64

QUOTIENTS = {
    "of 1": lambda x, y: 1 / jnp.sqrt(y), "of an array": lambda x, y: x / jnp.sqrt(y),
    "of rows": lambda x, y: x[:, None] / jnp.sqrt(y)[:, None] * jnp.ones(3, x.dtype),
    "by a sum's": lambda x, y: x / jnp.sqrt(jnp.sum(jnp.where(jnp.isfinite(y) & (y > 0), y, 1))),
    "to the power -3/2": lambda x, y: y ** -1.5, "to the power -1/2": lambda x, y: y ** -0.5}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", QUOTIENTS)
def test_quotients_by_square_roots_divide_by_no_root(name: str, dtype: str) -> None:
    with enable_x64(True):
        tiny = np.finfo(dtype).smallest_subnormal
        special = [0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, 1.0, tiny, np.finfo(dtype).max]
        x, y = (a.ravel().astype(dtype) for a in np.meshgrid(special, special))
        rng = np.random.default_rng(0)
        x, y = (np.concatenate([a, rng.lognormal(0, 9, 999).astype(dtype)]) for a in (x, y))
        f = anima.jit(QUOTIENTS[name])
        assert "rsqrt" in f.lower(x, y).compile().as_text()
        found, expected = np.asarray(f(x, y)), np.asarray(QUOTIENTS[name](*map(jnp.asarray, (x, y))))
    np.testing.assert_array_max_ulp(found[np.isfinite(expected)], expected[np.isfinite(expected)], 4)
    np.testing.assert_array_equal(found[~np.isfinite(expected)], expected[~np.isfinite(expected)])


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", sorted(table.LONG))
def test_functions_that_are_called_where_code_runs_once(name: str, dtype: str) -> None:
    host = native.host()
    text = table.support_text(f"anima.support.{name}.{dtype}.v1", host.triple, 0, host.features)
    assert native.load(text).address(f"anima.support.{name}.{dtype}.v1")


def test_remainders_in_code_that_runs_once() -> None:
    x = np.arange(16, dtype=np.float32) - 3
    found = anima.jit(lambda x: anima.lax.rem(*[jnp.tile(x, 5).reshape(16, 5)] * 2))(x)
    np.testing.assert_array_equal(np.isnan(found), np.tile(x, 5).reshape(16, 5) == 0)


WHOLE = [-8, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("exponent", WHOLE)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.float16])
def test_powers_to_whole_numbers_given_as_floats(exponent: int, dtype: Any) -> None:
    """Products, to 8 units in the last place; infinities, zeros and NaN as of `pow`, of negative numbers, too."""
    rng = np.random.default_rng(0)
    with enable_x64(dtype == np.float64):
        special = np.array([np.inf, -np.inf, 0.0, -0.0, np.nan, 1, -1], dtype)
        x = np.concatenate([rng.normal(size=500) * 2, special]).astype(dtype)
        if dtype == np.complex64:
            x = x[:500] + x[:500][::-1] * np.complex64(1j)
        fun = anima.jit(lambda x: (x ** float(exponent), x ** jnp.asarray(exponent, x.dtype)))
        general = dtype == np.complex64 and exponent not in range(-1, 4)  # a part of whose products may be infinite
        assert ("pow(" in fun.lower(x).loops.replace("integer_pow(", "")) == general
        with np.errstate(all="ignore"):
            expected = x.astype(np.complex128 if dtype == np.complex64 else np.longdouble) ** exponent
            expected = expected.astype(dtype)
        for found in fun(x):
            assert found.dtype == dtype
            if dtype == np.complex64:
                np.testing.assert_allclose(found, expected, rtol=2e-6)
            else:
                finite = np.isfinite(expected)
                np.testing.assert_array_max_ulp(np.asarray(found)[finite], expected[finite], 8)
                np.testing.assert_array_equal(np.asarray(found)[~finite], expected[~finite])
                np.testing.assert_array_equal(np.signbit(found)[500:504], np.signbit(expected)[500:504])
        if dtype in (np.float32, np.float64):
            slope = anima.grad(lambda x: (x ** float(exponent)).sum())(x[:500])
            np.testing.assert_allclose(slope, exponent * x[:500].astype(float) ** (exponent - 1), rtol=2e-6)


def test_powers_to_other_numbers_stay_powers() -> None:
    for exponent in 2.25, 9.0, -9.0, float("nan"), float("inf"):
        assert "pow(" in anima.jit(lambda x, exponent=exponent: x ** exponent).lower(np.ones(3, np.float32)).loops


def test_powers_of_large_complex_numbers() -> None:
    for exponent in -8.0, -5.0, -2.0:
        assert anima.jit(lambda x, exponent=exponent: x ** exponent)(np.complex64(1e37)) == 0


SQUARES = {"a power": lambda z: jnp.abs(z) ** 2, "a square": lambda z: jnp.square(jnp.abs(z)),
           "a product": lambda z: (lambda x: x * x)(jnp.abs(z)), "of a sum": lambda z: jnp.abs(z + 0) ** 2}


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("name", SQUARES)
def test_squares_of_absolute_values_take_no_root(name: str, dtype: str) -> None:
    with enable_x64(True):
        real = np.finfo(dtype).dtype
        special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, np.finfo(real).tiny, np.finfo(real).max]
        x, y = (a.ravel().astype(real) for a in np.meshgrid(special, special))
        rng = np.random.default_rng(0)
        x, y = (np.concatenate([a, rng.lognormal(0, 9, 999).astype(real)]) for a in (x, y))
        z = (x + np.zeros(1, dtype)).astype(dtype)
        z.imag = y
        f = anima.jit(SQUARES[name])
        loops = f.lower(z).loops
        assert "real(" in loops and "integer_pow" not in loops
        found = np.asarray(f(z))
    with np.errstate(all="ignore"):
        expected = np.hypot(x.astype(np.longdouble), y.astype(np.longdouble)).astype(np.longdouble) ** 2
        expected = expected.astype(real)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    some = np.isfinite(expected) & (expected > np.finfo(real).tiny)
    np.testing.assert_array_max_ulp(found[some], expected[some], 2)
    np.testing.assert_array_equal(found[np.isinf(expected)], np.inf)


def test_absolute_values_that_are_needed_are_squared() -> None:
    z = np.array([3 + 4j, -5 + 12j], np.complex64)
    f = anima.jit(lambda z: (jnp.abs(z), jnp.abs(z) ** 2))
    assert "real(" not in f.lower(z).loops
    np.testing.assert_array_equal(f(z), [[5, 13], [25, 169]])
