"""Brax: bodies and joints by three kinds of mechanics, whose steps are differentiated. The numbers are JAX's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from brax import envs
from brax.envs.wrappers import training

OBSERVED = {"generalized": [0.061818577, -0.17337787, 1.0038035, -2.3212247],
            "spring": [0.0058903182, -0.020545749, 0.43961978, -0.44707876],
            "positional": [0.0050475742, -0.023651117, 0.43996093, -0.45137617]}
SLOPE = 70.527306
LOSSES = [6.827179e-05, 5.350577e-05, 4.690785e-05, 4.346027e-05]
AGAIN = [0.00373309, -0.00962504, 0.366232, -0.264248]       # after the first step of the third episode


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


def test_a_policy_is_trained_through_the_steps() -> None:
    env = training.VmapWrapper(envs.get_environment("inverted_pendulum", backend="spring"))
    start = jax.jit(env.reset)(jax.random.split(jax.random.PRNGKey(2), 4))
    inner, outer = jax.random.split(jax.random.PRNGKey(3))
    weights = {"in": 0.3 * jax.random.normal(inner, (4, 8)), "out": 0.3 * jax.random.normal(outer, (8, 1))}

    def cost(weights: Any) -> Any:
        def step(state: Any, _: Any) -> Any:
            action = jnp.tanh(jnp.tanh(state.obs @ weights["in"]) @ weights["out"])
            state = env.step(state, action)
            return state, jnp.mean(state.obs[:, 1] ** 2 + 0.1 * state.obs[:, 3] ** 2)

        return jnp.mean(jax.lax.scan(step, start, None, length=8)[1])

    optimizer = optax.adam(0.05)

    @jax.jit
    def update(weights: Any, state: Any) -> Any:
        value, gradient = jax.value_and_grad(cost)(weights)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(weights, updates), state, value

    state, losses = optimizer.init(weights), []
    for _ in range(4):
        weights, state, value = update(weights, state)
        losses.append(value)
    np.testing.assert_allclose(losses, LOSSES, rtol=1e-3)
    assert losses[-1] < losses[0]


def test_episodes_end_and_begin_again() -> None:
    """Environments side by side whose episodes are 6 steps long, begun anew where they end."""
    env = envs.get_environment("inverted_pendulum", backend="spring")
    env = training.AutoResetWrapper(training.VmapWrapper(training.EpisodeWrapper(env, 6, 2)))
    state = jax.jit(env.reset)(jax.random.split(jax.random.PRNGKey(4), 3))

    def step(state: Any, key: Any) -> Any:
        state = env.step(state, jax.random.uniform(key, (3, env.action_size), minval=-1.0))
        return state, (state.obs, state.done)

    _, (observed, done) = jax.jit(lambda s: jax.lax.scan(step, s, jax.random.split(jax.random.PRNGKey(5), 7)))(state)
    np.testing.assert_array_equal(done[:, 0], [0, 0, 1, 0, 0, 1, 0])
    np.testing.assert_allclose(observed[6, 0], AGAIN, rtol=1e-3, atol=1e-5)
