"""Brax: bodies and joints by three kinds of mechanics, whose steps are differentiated. The numbers are JAX's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from brax import envs

OBSERVED = {"generalized": [0.061818577, -0.17337787, 1.0038035, -2.3212247],
            "spring": [0.0058903182, -0.020545749, 0.43961978, -0.44707876],
            "positional": [0.0050475742, -0.023651117, 0.43996093, -0.45137617]}
SLOPE = 70.527306


@pytest.mark.parametrize("backend", OBSERVED)
def test_steps_of_a_pendulum_on_a_cart(backend: str) -> None:
    env = envs.get_environment("inverted_pendulum", backend=backend)
    state, step = jax.jit(env.reset)(jax.random.PRNGKey(0)), jax.jit(env.step)
    for k in range(5):
        state = step(state, jnp.full((env.action_size,), 0.1 * k))
    np.testing.assert_allclose(state.obs, OBSERVED[backend], rtol=1e-3, atol=1e-4)


def test_the_derivative_of_a_trajectory() -> None:
    env = envs.get_environment("inverted_pendulum", backend="generalized")
    start = jax.jit(env.reset)(jax.random.PRNGKey(1))

    def cost(action: Any) -> Any:
        def step(state: Any, _: Any) -> Any:
            state = env.step(state, action)
            return state, state.obs

        return jnp.sum(jax.lax.scan(step, start, None, length=5)[1] ** 2)

    np.testing.assert_allclose(jax.jit(jax.grad(cost))(jnp.array([0.1])), [SLOPE], rtol=1e-4)
