"""linear_call: the transpose is the user's, everything else follows from the function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.custom_derivatives import linear_call

X = np.float32([1.0, 2.0, -3.0])


def equal(actual: Any, expected: Any) -> None:
    for a, e in zip(anima.tree.leaves(actual), anima.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(e), rtol=1e-6)


def tagged(r: Any, x: Any) -> Any:
    """x / r, whose transpose is 10 ct / r on purpose."""
    return linear_call(lambda r, x: x / r, lambda r, ct: 10 * ct / r, r, x)


@pytest.mark.parametrize("mode", [lambda f: f, anima.jit])
def test_every_transformation(mode: Any) -> None:
    equal(mode(tagged)(4.0, 2.0), 0.5)
    equal(mode(lambda x: anima.jvp(lambda x: tagged(4.0, x), (x,), (3.0,)))(2.0), (0.5, 0.75))
    equal(mode(anima.grad(tagged, 1))(4.0, 2.0), 2.5)
    equal(mode(lambda r, x: anima.jvp(tagged, (r, x), (1.0, 3.0)))(4.0, 2.0), (0.5, 0.75 - 2 / 16))
    equal(mode(anima.grad(tagged, 0))(4.0, 2.0), -2 / 16)
    equal(mode(anima.vmap(tagged, (None, 0)))(4.0, X), X / 4)
    equal(mode(anima.vmap(tagged, (0, None)))(X, 4.0), 4 / X)
    equal(mode(anima.vmap(anima.grad(tagged, 1)))(X, X), 10 / X)
    equal(mode(anima.grad(lambda x: anima.vmap(tagged, (0, None))(X, x).sum()))(4.0), (10 / X).sum())
    equal(mode(anima.grad(lambda x: anima.vmap(tagged, (None, 0))(4.0, x).sum()))(X), np.full(3, 2.5))
    equal(mode(anima.grad(anima.grad(tagged, 1), 0))(4.0, 2.0), -10 / 16)


def test_transposed_again_and_again() -> None:
    def transpose(f: Any) -> Any:
        return lambda ct: anima.linear_transpose(f, 1.0)(ct)[0]

    def identity(x: Any) -> Any:
        return linear_call(lambda _, x: x, lambda _, ct: ct * 7.0, (), x)

    found, fun = [], identity
    for _ in range(4):
        found.append(fun(1.0))
        fun = transpose(fun)
    equal(found, [1.0, 7.0, 1.0, 7.0])


def test_closures_and_pytrees() -> None:
    def fun(k: Any, d: Any) -> Any:
        return linear_call(lambda r, d: (d["a"] * k + d["b"] * r[0],),
                           lambda r, ct: {"a": ct[0] * k, "b": ct[0] * r[0]}, [k * k], d)[0]

    args = 3.0, {"a": 1.0, "b": 2.0}
    equal(fun(*args), 21.0)
    equal(anima.grad(fun, (0, 1))(*args), (1.0 + 2 * 2 * 3.0, {"a": 3.0, "b": 9.0}))
    equal(anima.jit(anima.vmap(anima.grad(fun, 1), (0, None)))(X, args[1]), {"a": X, "b": X * X})


def test_errors() -> None:
    with pytest.raises(TypeError, match="transpose output pytree structure must match that of linear inputs"):
        linear_call(lambda r, x: x, lambda r, ct: (ct, ct), (), 1.0)
    with pytest.raises(ValueError, match=r"Expected cotangent type float32\[\] but got float32\[3\]"):
        linear_call(lambda r, x: x, lambda r, ct: jnp.ones(3), (), 1.0)
