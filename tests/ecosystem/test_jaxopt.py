"""JAXopt: optimizers that are differentiated by what they solve. The numbers are JAX's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jaxopt
import numpy as np

RIDGE = [0.77634043, -1.5815982, -0.034630697, 0.37967753, -0.00080276013, -0.52799273, 1.0959667, -0.069905505,
         -0.27131, -0.0021766808]
LASSO = [0.11716266, 1.0581836, 0.79726279, -1.8281571, 0.0, 0.30276129, 0.0]
ROOT = [0.77179718, -0.31033102, 0.0, 0.75, 0.25]


def data() -> Any:
    x = jax.random.normal(jax.random.key(0), (40, 5))
    return x, x @ jnp.array([1.0, -2.0, 0.0, 0.5, 0.0]) + 0.1 * jax.random.normal(jax.random.key(1), (40,))


def test_the_derivative_of_a_ridge_regression() -> None:
    """What the weights owe to the penalty, through L-BFGS and the theorem of implicit functions."""
    x, y = data()

    def objective(w: Any, penalty: Any) -> Any:
        return jnp.mean((x @ w - y) ** 2) + penalty * jnp.sum(w ** 2)

    def weights(penalty: Any) -> Any:
        return jaxopt.LBFGS(objective, maxiter=50, tol=1e-5).run(jnp.zeros(5), penalty).params

    slope = jax.jit(jax.jacrev(weights))(0.3)
    np.testing.assert_allclose([*weights(0.3), *slope], RIDGE, rtol=2e-3, atol=2e-4)


def test_a_lasso() -> None:
    """Proximal gradient descent, and the derivative of the loss by the penalty."""
    x, y = data()

    def loss(penalty: Any) -> Any:
        solver = jaxopt.ProximalGradient(jaxopt.objective.least_squares, jaxopt.prox.prox_lasso, maxiter=300, tol=1e-5)
        w = solver.run(jnp.zeros(5), penalty, (x, y)).params
        return jnp.mean((x @ w - y) ** 2), w

    (value, w), slope = jax.jit(jax.value_and_grad(loss, has_aux=True))(0.2)
    np.testing.assert_allclose([value, slope, *w], LASSO, rtol=2e-3, atol=2e-4)


def test_roots_and_projections() -> None:
    """A root by bisection and its derivative; the projection on a simplex."""
    def root(a: Any) -> Any:
        return jaxopt.Bisection(lambda x, a: x ** 3 + a * x - 1.0, 0.0, 2.0, check_bracket=False).run(a=a).params

    value, slope = jax.jit(jax.value_and_grad(root))(0.7)
    simplex = jaxopt.projection.projection_simplex(jnp.array([0.3, 2.0, 1.5]))
    np.testing.assert_allclose([value, slope, *simplex], ROOT, rtol=1e-3, atol=1e-6)
