"""Lineax: linear systems by many methods, with structure, and their derivatives."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import lineax as lx
import numpy as np
import pytest

HEAT = [0.45660162, 7.656242371, -1.709489942]  # in the middle, in all, and the slope of the first
REGRESSION = [17.859661102, 4.855378628, 3.177317381]  # losses: first, second and last
SOLVERS = [
    (lx.LU(), ()), (lx.QR(), ()), (lx.SVD(), ()), (lx.AutoLinearSolver(well_posed=None), ()),
    (lx.Cholesky(), lx.positive_semidefinite_tag), (lx.CG(1e-6, 1e-6), lx.positive_semidefinite_tag),
    (lx.GMRES(1e-6, 1e-6), ()), (lx.BiCGStab(1e-6, 1e-6), ()), (lx.LSMR(1e-6, 1e-6), ()),
    (lx.Normal(lx.CG(1e-6, 1e-6)), ()),
]


@pytest.mark.parametrize("solver, tags", SOLVERS)
def test_solvers_and_their_derivatives(solver: Any, tags: Any) -> None:
    """Values, forward and reverse derivatives and lanes of x with A x = b, against dense linear algebra."""
    a = jr.normal(jr.key(0), (4, 4)) / 4 + jnp.eye(4)
    a, b = a @ a.T + jnp.eye(4), jnp.array([1.0, -2.0, 0.5, 3.0])

    def solve(a: Any, b: Any) -> Any:
        return lx.linear_solve(lx.MatrixLinearOperator(a, tags), b, solver).value

    def dense(a: Any, b: Any) -> Any:
        return jnp.linalg.solve(a, b)

    tangents = (jnp.diag(b), jnp.ones(4))
    for got, want in zip(jax.jit(lambda: jax.jvp(solve, (a, b), tangents))(), jax.jvp(dense, (a, b), tangents),
                         strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)
    grads = jax.jit(jax.grad(lambda a, b: jnp.sum(solve(a, b) ** 2), (0, 1)))(a, b)
    for got, want in zip(grads, jax.grad(lambda a, b: jnp.sum(dense(a, b) ** 2), (0, 1))(a, b), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=1e-3)
    many = jax.jit(jax.vmap(solve, (None, 0)))(a, jnp.stack([b, 2 * b]))
    np.testing.assert_allclose(many[1], 2 * dense(a, b), rtol=1e-3, atol=1e-4)


def test_a_heat_equation() -> None:
    """Implicit steps, each a tridiagonal system; what the end owes to the conductivity, through all steps."""
    n = 32
    x = jnp.linspace(0, 1, n)

    def end(k: Any) -> Any:
        r = k * 0.01 * n**2
        system = lx.TridiagonalLinearOperator(jnp.full(n, 1 + 2 * r), jnp.full(n - 1, -r), jnp.full(n - 1, -r))

        def step(u: Any, _: Any) -> Any:
            return lx.linear_solve(system, u, lx.Tridiagonal()).value, jnp.sum(u)

        return jax.lax.scan(step, jnp.exp(-50 * (x - 0.4) ** 2), length=20)

    def warmth(k: Any) -> Any:
        u, sums = end(k)
        return u[n // 2], sums[-1]

    (value, total), (slope, _) = jax.jit(lambda k: jax.jvp(warmth, (k,), (1.0,)))(0.05)
    np.testing.assert_allclose([value, total, slope], HEAT, rtol=1e-4)
    np.testing.assert_allclose(jax.jit(jax.grad(lambda k: warmth(k)[0]))(0.05), HEAT[2], rtol=1e-3)


def test_least_squares_and_operators_without_matrices() -> None:
    """A ridge regression by LSMR on the Jacobian of a network, and composed operators."""
    xs = jnp.linspace(-1, 1, 25)
    net = eqx.nn.MLP("scalar", "scalar", 8, 1, activation=jnp.tanh, key=jr.key(2))
    dynamic, static = eqx.partition(net, eqx.is_array)

    def residual(dynamic: Any, _: Any) -> Any:
        return jax.vmap(eqx.combine(dynamic, static))(xs) - jnp.sin(3 * xs)

    @eqx.filter_jit
    def gauss_newton(dynamic: Any) -> Any:
        jacobian = lx.JacobianLinearOperator(residual, dynamic)
        damped = jacobian.T @ jacobian + 3.0 * lx.IdentityLinearOperator(jacobian.in_structure())
        operator = lx.TaggedLinearOperator(damped, lx.positive_semidefinite_tag)
        step = lx.linear_solve(operator, jacobian.T.mv(residual(dynamic, None)), lx.CG(1e-5, 1e-5, max_steps=200),
                               throw=False).value
        return eqx.apply_updates(dynamic, jax.tree.map(jnp.negative, step))

    losses = []
    for _ in range(8):
        losses.append(float(jnp.sum(residual(dynamic, None) ** 2)))
        dynamic = gauss_newton(dynamic)
    np.testing.assert_allclose([*losses[:2], losses[-1]], REGRESSION, rtol=1e-2)
    assert lx.is_symmetric(lx.TaggedLinearOperator(lx.MatrixLinearOperator(jnp.eye(2)), lx.symmetric_tag))


def test_systems_without_solution() -> None:
    operator = lx.MatrixLinearOperator(jnp.array([[1.0, 2.0], [2.0, 4.0]]))
    with pytest.raises(eqx.EquinoxRuntimeError, match=r"singular|non-finite"):
        lx.linear_solve(operator, jnp.ones(2), lx.LU())
    quiet = lx.linear_solve(operator, jnp.ones(2), lx.LU(), throw=False)
    assert quiet.result != lx.RESULTS.successful
    least = lx.linear_solve(operator, jnp.array([1.0, 2.0]), lx.SVD(rcond=1e-5)).value
    np.testing.assert_allclose(least, [0.2, 0.4], atol=1e-5)
