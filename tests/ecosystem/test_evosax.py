"""evosax: strategies of evolution, on functions of a few numbers. The numbers are JAX's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from evosax.algorithms import CMA_ES, PSO, DifferentialEvolution, Open_ES, Sep_CMA_ES, SimpleGA

BEST = {  # the best values after a step, after 10, and after 60
    "cma": [45.7189, 0.459970, 0.259804],
    "pso": [2.40761, 0.936051, 0.0453232],
    "de": [11.4285, 2.90115, 1.60516e-07],
}
FITTED = [0.373175, 0.137204, 0.0723391]   # errors of a network: before, and after 20 and 40 generations
STEPS = 33                                  # generations until a value is good enough
GENETIC = [0.0523467, 0.0839372]            # best values of two populations after 30 generations
STRATEGIES = {"cma": Sep_CMA_ES, "pso": PSO, "de": DifferentialEvolution}


@pytest.mark.parametrize("name", ["cma", "pso", "de"])
def test_strategies(name: str) -> None:
    def rosenbrock(xs: Any) -> Any:
        return jnp.sum(100.0 * (xs[:, 1:] - xs[:, :-1] ** 2) ** 2 + (1 - xs[:, :-1]) ** 2, axis=1)

    strategy = STRATEGIES[name](population_size=16, solution=jnp.zeros(3))
    params, start, draw = strategy.default_params, jnp.array([-0.5, 0.5, 0.3]), jax.random.key(2)
    if name == "cma":
        state = strategy.init(jax.random.key(1), start, params)
    else:
        population = start + jax.random.normal(jax.random.key(3), (16, 3))
        state = strategy.init(jax.random.key(1), population, rosenbrock(population), params)

    def step(state: Any, key: Any) -> Any:
        asked, told = jax.random.split(key)
        xs, state = strategy.ask(asked, state, params)
        state, _ = strategy.tell(told, xs, rosenbrock(xs), state, params)
        return state, state.best_fitness

    best = jax.jit(lambda s: jax.lax.scan(step, s, jax.random.split(draw, 60)))(state)[1]
    np.testing.assert_allclose(best[jnp.array([0, 9, 59])], BEST[name], rtol=5e-3, atol=1e-6)


def test_a_network_is_fitted_without_derivatives() -> None:
    x = jnp.linspace(-1.0, 1.0, 32)[:, None]
    y = jnp.sin(3.0 * x)
    one, two = jax.random.split(jax.random.key(4))
    weights = {"in": jax.random.normal(one, (1, 8)), "bias": jnp.zeros(8), "out": 0.3 * jax.random.normal(two, (8, 1))}

    def error(w: Any) -> Any:
        return jnp.mean((jnp.tanh(x @ w["in"] + w["bias"]) @ w["out"] - y) ** 2)

    strategy = Open_ES(population_size=32, solution=weights, optimizer=optax.adam(0.05),
                       std_schedule=optax.constant_schedule(0.1))
    params = strategy.default_params
    state = strategy.init(jax.random.key(5), weights, params)

    def step(state: Any, key: Any) -> Any:
        asked, told = jax.random.split(key)
        population, state = strategy.ask(asked, state, params)
        state, _ = strategy.tell(told, population, jax.vmap(error)(population), state, params)
        return state, error(strategy.get_mean(state))

    errors = jax.jit(lambda s: jax.lax.scan(step, s, jax.random.split(jax.random.key(6), 40)))(state)[1]
    np.testing.assert_allclose([error(weights), errors[19], errors[39]], FITTED, rtol=5e-3)


def test_until_it_is_good_enough() -> None:
    """The whole covariance, with its eigenvectors, in a while loop."""
    strategy = CMA_ES(population_size=12, solution=jnp.zeros(4))
    params = strategy.default_params

    def running(carry: Any) -> Any:
        state, _, steps = carry
        return (state.best_fitness > 1e-3) & (steps < 300)

    def step(carry: Any) -> Any:
        state, key, steps = carry
        key, asked, told = jax.random.split(key, 3)
        xs, state = strategy.ask(asked, state, params)
        values = jnp.sum((xs - jnp.arange(4.0)) ** 2 * jnp.array([1.0, 10.0, 1.0, 10.0]), axis=1)
        state, _ = strategy.tell(told, xs, values, state, params)
        return state, key, steps + 1

    state = strategy.init(jax.random.key(7), jnp.zeros(4), params)
    state, _, steps = jax.jit(lambda s: jax.lax.while_loop(running, step, (s, jax.random.key(8), 0)))(state)
    assert steps == STEPS
    np.testing.assert_allclose(state.best_solution, jnp.arange(4.0), atol=0.05)


def test_populations_side_by_side() -> None:
    strategy = SimpleGA(population_size=20, solution=jnp.zeros(3))
    params = strategy.default_params

    def sphere(xs: Any) -> Any:
        return jnp.sum((xs - 1.0) ** 2, axis=-1)

    def search(key: Any) -> Any:
        first, start, rest = jax.random.split(key, 3)
        population = jax.random.normal(first, (20, 3))
        state = strategy.init(start, population, sphere(population), params)

        def step(state: Any, key: Any) -> Any:
            asked, told = jax.random.split(key)
            xs, state = strategy.ask(asked, state, params)
            state, _ = strategy.tell(told, xs, sphere(xs), state, params)
            return state, state.best_fitness

        return jax.lax.scan(step, state, jax.random.split(rest, 30))[1][-1]

    np.testing.assert_allclose(jax.jit(jax.vmap(search))(jax.random.split(jax.random.key(9), 2)), GENETIC, rtol=5e-3)
