"""Tokens, values that must be computed, and numbers of a hidden generator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax


def test_tokens() -> None:
    token = lax.create_token()
    for made in (lax.after_all(), lax.after_all(token, lax.create_token(3.0)), anima.jit(lax.create_token)(1.0),
                 anima.jit(lax.after_all)(token, token)):
        assert lax.after_all(made).aval == token.aval
    names = [e.primitive.name for e in anima.make_jaxpr(lambda: lax.after_all(lax.create_token()))().eqns]
    assert names == ["create_token", "after_all"]
    for wrong in (3.0, jnp.zeros(3), None):
        with pytest.raises(TypeError, match="must be tokens"):
            lax.after_all(token, wrong)


TRANSFORMS: dict[str, tuple[Callable[..., Any], Any]] = {
    "none": (lambda f: f, jnp.arange(3.0)), "grad": (anima.grad, jnp.float32(1)), "vmap": (anima.vmap, jnp.arange(3.0)),
    "vmap of grad": (lambda f: anima.vmap(anima.grad(f)), jnp.arange(3.0))}


@pytest.mark.parametrize(("transform", "x"), TRANSFORMS.values(), ids=TRANSFORMS)
@pytest.mark.parametrize("prevent", [False, True])
def test_a_sink_stays_in_programs(transform: Callable[..., Any], x: Any, prevent: bool) -> None:
    def f(x: Any) -> Any:
        lax.dce_sink({"a": jnp.sin(x), "b": x}, prevent_mlir_dce=prevent)
        return 2.0 * x

    g = transform(f)
    program = anima.make_jaxpr(g)(x)
    assert [e.primitive.name for e in program.eqns].count("dce_sink") == 2
    np.testing.assert_array_equal(anima.jit(g)(x), g(x))
    lowered = anima.jit(g).lower(x)
    assert ("sin" in lowered.loops) == prevent


def test_a_sink_of_nothing() -> None:
    assert lax.dce_sink({}) is None and lax.dce_sink([1.0, 2]) is None  # type: ignore[func-returns-value]


@pytest.mark.parametrize(("low", "high", "dtype"), [(-2.0, 3.0, "float32"), (0.0, 1.0, "bfloat16"),
                                                    (-5, 5, "int32"), (250, 255, "uint8")])
def test_rng_uniform(low: float, high: float, dtype: str) -> None:
    a, b = jnp.asarray(low, dtype), jnp.asarray(high, dtype)
    draw = lambda a, b: lax.rng_uniform(a, b, (40, 50))
    compiled = anima.jit(draw)
    drawn = [f(a, b) for f in (draw, draw, compiled, compiled)]
    for x in drawn:
        assert x.shape == (40, 50) and x.dtype == dtype and (x >= a).all() and (x < b).all()
        mean = (low + high - (jnp.issubdtype(dtype, jnp.integer))) / 2
        assert abs(float(x.astype("float32").mean()) - mean) < (high - low) / 30
    assert all(not np.array_equal(x, y) for k, x in enumerate(drawn) for y in drawn[:k])


def test_what_rng_uniform_refuses() -> None:
    for wrong in ((0.0, 1), (jnp.zeros(2), 1.0)):
        with pytest.raises(ValueError, match="rng_uniform"):
            lax.rng_uniform(*wrong, (3,))
    with pytest.raises(TypeError, match="rng_uniform"):
        lax.rng_uniform(1j, 2j, (3,))
    with pytest.raises(NotImplementedError, match="rng_uniform"):
        anima.grad(lambda a: lax.rng_uniform(a, 1.0, (3,)).sum())(0.0)
    with pytest.raises(NotImplementedError, match="rng_uniform"):
        anima.vmap(lambda a: lax.rng_uniform(a, 1.0, (3,)))(jnp.zeros(2))


def test_subtracting_in_places() -> None:
    def f(x: Any, y: Any) -> Any:
        return x.at[jnp.array([0, 2, 0])].subtract(y)

    x, y = jnp.arange(4.0), jnp.array([1.0, 2.0, 4.0])
    assert [e.primitive.name for e in anima.make_jaxpr(f)(x, y).eqns].count("scatter-sub") == 1
    np.testing.assert_array_equal(f(x, y), [-5, 1, 0, 3])
    np.testing.assert_array_equal(anima.jit(f)(x, y), [-5, 1, 0, 3])
    for mode in (anima.jacfwd, anima.jacrev):
        np.testing.assert_array_equal(anima.jit(mode(f, argnums=1))(x, y),
                                      [[-1, 0, -1], [0, 0, 0], [0, -1, 0], [0, 0, 0]])
    batched = anima.vmap(f, in_axes=(None, 0))(x, jnp.stack([y, 2 * y]))
    np.testing.assert_array_equal(batched, [f(x, y), f(x, 2 * y)])
    small = jnp.arange(3, dtype="uint8")
    np.testing.assert_array_equal(anima.jit(lambda v: v.at[0].subtract(1))(small), [255, 1, 2])


def test_the_derivative_of_gamma_samples_broadcasts() -> None:
    a, x = jnp.array([[0.5], [2.0]]), jnp.array([0.3, 1.0, 4.0])
    together = lax.random_gamma_grad(a, x)
    assert together.shape == (2, 3) and together[1, 2] == lax.random_gamma_grad(2.0, 4.0)
