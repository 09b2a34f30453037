"""Quotients by square roots, and powers that are such; functions that code calls which runs once."""

from __future__ import annotations

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
