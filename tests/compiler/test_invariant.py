"""What loops would compute in every iteration alike is computed before them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler.rewriting.hoist import hoist
from anima.compiler.rewriting.inline import inline
from anima.core.check import check_jaxpr
from anima.core.jaxpr import ClosedJaxpr, subjaxprs

X, A = np.float32(0.5), np.array([0.1, 0.2, 0.3], np.float32)


def names(closed: Any) -> list[str]:
    return [e.primitive.name for e in closed.jaxpr.eqns]


def closed_of(program: Any) -> ClosedJaxpr:
    return program if isinstance(program, ClosedJaxpr) else ClosedJaxpr(program, [])


def while_(x: Any, a: Any) -> Any:
    return lax.while_loop(lambda s: s.sum() < jnp.log(a[2]) + 5.0, lambda s: s * jnp.exp(a) + 1.0, x + a)


def scan(x: Any, a: Any) -> Any:
    return lax.scan(lambda s, _: (s * jnp.exp(a).sum(), s), x, None, length=5)[0]


def outer(x: Any, a: Any) -> Any:
    """A table that is larger than what it is made of: its rows are made where they are used."""
    return lax.fori_loop(0, 5, lambda k, s: s + (a[:, None] * jnp.ones((1, 100), jnp.float32)).sum(0), jnp.zeros(100))


@pytest.mark.parametrize("fun, moved", [(while_, {"log", "exp"}), (scan, {"exp", "reduce_sum"})])
def test_what_moves(fun: Any, moved: set[str]) -> None:
    closed = inline(anima.make_jaxpr(fun)(X, A))
    after = hoist(closed)
    check_jaxpr(after.jaxpr)
    assert moved <= set(names(after)) and not moved & set(names(closed))
    for eqn in after.jaxpr.eqns:
        assert not any({"log", "exp"} & set(names(inner)) for inner in map(closed_of, subjaxprs(eqn.params)))
    with anima.disable_jit():
        expected = fun(X, A)
    np.testing.assert_allclose(anima.jit(fun)(X, A), expected, rtol=1e-5)


def test_tables_stay() -> None:
    after = hoist(inline(anima.make_jaxpr(outer)(X, A)))
    assert "mul" not in names(after)
    np.testing.assert_allclose(anima.jit(outer)(X, A), np.full(100, 5 * A.sum()), rtol=1e-5)


def test_loop_without_iterations_and_gradient() -> None:
    def fun(a: Any, n: int) -> Any:
        return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * jnp.sqrt(a)), (0, jnp.ones(3)))[1]

    np.testing.assert_array_equal(anima.jit(fun)(-A, 0), np.ones(3))
    slope = anima.jit(anima.grad(lambda a: fun(a, 4).sum()))(A)
    np.testing.assert_allclose(slope, 2.0 * A, rtol=1e-5)
