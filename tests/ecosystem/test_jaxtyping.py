"""Jaxtyping: shapes and element types in annotations, of arrays and of what is traced."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from beartype import beartype
from jaxtyping import Array, Bool, Float, Float32, Int, Key, PyTree, Scalar, Shaped, TypeCheckError, jaxtyped


@jaxtyped(typechecker=beartype)
def attend(q: Float[Array, "n d"], k: Float[Array, "m d"], v: Float[Array, "m e"]) -> Float[Array, "n e"]:
    return jax.nn.softmax(q @ k.T / jnp.sqrt(q.shape[1])) @ v


def test_functions_are_checked_under_every_transformation() -> None:
    """The same names mean the same sizes: traced, mapped and differentiated."""
    q, k, v = (jax.random.normal(key, shape) for key, shape in
               zip(jax.random.split(jax.random.key(0), 3), [(4, 8), (5, 8), (5, 3)], strict=True))
    eager = attend(q, k, v)
    np.testing.assert_allclose(jax.jit(attend)(q, k, v), eager, rtol=1e-5, atol=1e-6)
    many = jax.jit(jax.vmap(attend, in_axes=(0, None, None)))(jnp.stack([q, -q]), k, v)
    np.testing.assert_allclose(many[0], eager, rtol=1e-5, atol=1e-6)
    assert jax.grad(lambda q: attend(q, k, v).sum())(q).shape == (4, 8)
    for call in (attend, jax.jit(attend)):
        with pytest.raises(TypeCheckError, match="attend"):
            call(q, k[:, :4], v)
        with pytest.raises(TypeCheckError, match="attend"):
            call(q.astype(jnp.int32), k, v)


def test_training_with_annotated_parameters() -> None:
    """A regression whose step is checked each time it is traced."""

    @jax.jit
    @jaxtyped(typechecker=beartype)
    def step(params: PyTree[Float32[Array, "..."]], x: Float[Array, "batch d"],
             y: Float[Array, " batch"]) -> tuple[PyTree[Float32[Array, "..."]], Float[Scalar, ""]]:
        def loss(p: Any) -> Any:
            return jnp.mean((x @ p["w"] + p["b"] - y) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.2 * g, params, grads), value

    x = jax.random.normal(jax.random.key(1), (64, 3))
    y = x @ jnp.array([1.0, -2.0, 0.5]) + 0.25
    params = {"w": jnp.zeros(3), "b": jnp.zeros(())}
    for _ in range(60):
        params, value = step(params, x, y)
    np.testing.assert_allclose(params["w"], [1.0, -2.0, 0.5], atol=1e-3)
    np.testing.assert_allclose((params["b"], value), (0.25, 0.0), atol=1e-3)
    with pytest.raises(TypeCheckError):
        step(params, x, y[:5])


def test_what_is_an_instance_of_what() -> None:
    seen = []

    @jax.jit
    def look(x: Any, key: Any) -> Any:
        seen.append([isinstance(x, Float[Array, "3 _"]), isinstance(x, Int[Array, "..."]),
                     isinstance(key, Key[Array, ""]), isinstance(x > 0, Bool[Array, "3 2"]), isinstance(x, Array)])
        return x

    look(jnp.ones((3, 2)), jax.random.key(0))
    assert seen == [[True, False, True, True, True]]
    assert isinstance(jax.ShapeDtypeStruct((2,), jnp.float32), Float32[jax.ShapeDtypeStruct, "2"])
    assert isinstance(np.ones(2), Shaped[np.ndarray, "2"]) and not isinstance(np.ones(2), Float[Array, "2"])
    assert isinstance({"a": jnp.ones(2), "b": [jnp.zeros(2)]}, PyTree[Float[Array, "n"]])
