"""Loops over lanes that only compute numbers are operations on arrays: one loop, with what comes before and after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax

X = np.random.default_rng(0).normal(size=(7, 12)).astype(np.float32)


def cheap(x: Any) -> Any:
    return lax.cond(x > 0, jnp.sqrt, lambda x: x * x, x)


def four(x: Any) -> Any:
    return lax.switch(jnp.int32(3 * x), [lambda x: x, lambda x: 2 * x, lambda x: -x, lambda x: x * 0 + 7], x)


def nested(x: Any) -> Any:
    return lax.cond(x > 0.5, jnp.sqrt, lambda x: lax.cond(x < -0.5, jnp.exp, lambda x: 3 * x, x), x)


def rows(x: Any) -> Any:
    return lax.cond(x[0] > 0, lambda x: x[1:] * 2, lambda x: x[:-1] - x[-1], x)


def two_results(x: Any) -> Any:
    return lax.cond(x > 0, lambda x: (x, 1.0), lambda x: (-x, x), x)


FORMS: dict[str, Callable[..., Any]] = {
    "vmap": lambda one: anima.vmap(anima.vmap(one)),
    "inner axis first": lambda one: anima.vmap(anima.vmap(one), 1, 1),
    "map": lambda one: lambda x: lax.map(anima.vmap(one), x),
    "backwards": lambda one: lambda x: lax.scan(lambda c, r: (c, anima.vmap(one)(r)), None, x, reverse=True)[1],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("one", (cheap, four, nested, two_results))
def test_choices_of_lanes(one: Callable[..., Any], form: str) -> None:
    fun = anima.jit(FORMS[form](one))
    loops = fun.lower(X).loops
    assert "lanes" not in loops and loops.count("kernel") == 1
    want = [[one(x) for x in row] for row in X]
    for k, leaf in enumerate(anima.tree.leaves(fun(X))):
        expected = [[anima.tree.leaves(w)[k] for w in row] for row in want]
        np.testing.assert_allclose(leaf, expected, rtol=2e-6)


def test_rows_in_lanes() -> None:
    fun = anima.jit(anima.vmap(rows))
    assert fun.lower(X).loops.count("kernel") == 1
    np.testing.assert_allclose(fun(X), np.stack([rows(x) for x in X]), rtol=2e-6)


def test_slopes_are_those_of_the_branch_taken() -> None:
    """sqrt has no slope at -1, which is not that of x * x there."""
    slope = anima.jit(anima.grad(lambda x: jnp.sum(anima.vmap(cheap)(x))))
    assert slope.lower(X[0]).loops.count("kernel") == 1
    want = np.where(X[0] > 0, 0.5 / np.sqrt(np.abs(X[0])), 2 * X[0])
    np.testing.assert_allclose(slope(X[0]), want, rtol=2e-6)


def test_sums_take_the_choices_along() -> None:
    fun = anima.jit(lambda x: jnp.sum(anima.vmap(lambda x: lax.cond(x > 0, lambda: x, lambda: 0.0))(x)))
    assert fun.lower(X[0]).loops.count("kernel") == 1
    np.testing.assert_allclose(fun(X[0]), np.maximum(X[0], 0).sum(), rtol=2e-6)


@pytest.mark.parametrize("one", (
    lambda x: lax.cond(x > 0, lambda x: lax.fori_loop(0, 30, lambda i, y: jnp.sin(y), x), lambda x: x, x),
    lambda x: lax.cond(x > 0, lambda x: lax.lgamma(lax.digamma(lax.lgamma(x))), lambda x: x, x)))
def test_costly_branches_are_taken_by_some(one: Callable[..., Any]) -> None:
    fun = anima.jit(anima.vmap(one))
    assert "lanes" in fun.lower(X[0]).loops
    np.testing.assert_allclose(fun(X[0]), [one(x) for x in X[0]], rtol=1e-5)


def test_no_lanes() -> None:
    assert anima.jit(anima.vmap(cheap))(X[0][:0]).shape == (0,)
