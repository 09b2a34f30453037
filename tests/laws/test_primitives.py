"""Users' primitives: every transformation of a function of them gives what it gives of one without them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.extend.core
import anima.numpy as jnp
from tests.laws.primitive_programs import program

X, Y = jnp.array([0.5, -1.0, 2.0]), jnp.array([1.0, 2.0, -0.5])
ROWS = jnp.array([[0.5, -1.0, 2.0], [0.25, 1.0, 1.0], [-1.0, 0.5, 0.75], [2.0, 0.1, -0.3]])


def total(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: jnp.sum(f(*args))


LAWS: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "values": lambda f: f(X, Y),
    "compiled": lambda f: anima.jit(f)(X, Y),
    "gradient": lambda f: anima.grad(total(f), (0, 1))(X, Y),
    "compiled gradient": lambda f: anima.jit(anima.grad(total(anima.jit(f))))(X, Y),
    "tangents": lambda f: anima.jvp(f, (X, Y), (Y, X)),
    "lanes": lambda f: anima.jit(anima.vmap(f))(ROWS, ROWS[::-1]),
    "lanes of one": lambda f: anima.vmap(f, in_axes=(1, None), out_axes=1)(ROWS.T, Y),
    "gradients of lanes": lambda f: anima.vmap(anima.grad(total(f)), (0, None))(ROWS, Y),
    "second derivatives": lambda f: anima.jit(anima.hessian(total(f)))(X, Y),
    "checkpoint": lambda f: anima.grad(total(anima.checkpoint(f)))(X, Y),
    "linearized": lambda f: anima.linearize(f, X, Y)[1](Y, X),
    "program": lambda f: anima.extend.core.jaxpr_as_fun(anima.make_jaxpr(f)(X, Y))(X, Y),
}


@pytest.mark.parametrize("seed", range(24))
def test_transformations_of_users_primitives(seed: int) -> None:
    mine, plain = program(seed)
    names = list(LAWS)
    for name in [names[(seed + n) % len(names)] for n in (0, 1, 5)]:
        for a, b in zip(anima.tree.leaves(LAWS[name](mine)), anima.tree.leaves(LAWS[name](plain)), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5, err_msg=name)
    found = anima.make_jaxpr(mine)(X, Y)
    assert "law_" in str(found)
