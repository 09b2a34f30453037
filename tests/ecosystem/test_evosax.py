"""evosax: strategies of evolution, on functions of a few numbers. The numbers are JAX's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evosax.algorithms import PSO, DifferentialEvolution, Sep_CMA_ES

BEST = {  # the best values after a step, after 10, and after 60
    "cma": [45.7189, 0.459970, 0.259804],
    "pso": [2.40761, 0.936051, 0.0453232],
    "de": [11.4285, 2.90115, 1.60516e-07],
}
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
