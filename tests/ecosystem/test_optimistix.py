"""Optimistix: roots, fixed points, minima and least squares, differentiated by what they solve."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import optimistix as optx
import pytest

RATES = [1.298188, 0.599921, -0.113011, -0.246302]  # the two, and what the first owes to the first two measurements
SPRINGS = [1.0160536, 2.1405723, 3.0720224]
LONGER = [-0.2129574, 0.3845929, 0.1876173]  # what these become as springs get longer
IMPLICIT = [0.243444353, 0.227766052, 0.122386083]  # losses: first, second and last

@pytest.mark.parametrize("solver", [optx.Newton(1e-6, 1e-6), optx.Chord(1e-6, 1e-6), optx.Dogleg(1e-6, 1e-6)])
def test_roots(solver: Any) -> None:
    """Kepler's equation for many orbits; the anomaly's derivative is known."""

    def anomaly(mean: Any, e: Any) -> Any:
        return optx.root_find(lambda E, args: E - args[1] * jnp.sin(E) - args[0], solver, mean, (mean, e)).value

    mean, e = jnp.array([0.3, 1.0, 2.5]), jnp.array([0.1, 0.3, 0.5])
    E, slope = jax.jit(jax.vmap(jax.value_and_grad(anomaly)))(mean, e)
    np.testing.assert_allclose(E - e * np.sin(E), mean, rtol=1e-5)
    np.testing.assert_allclose(slope, 1 / (1 - e * np.cos(E)), rtol=1e-4)


@pytest.mark.parametrize("name", ["LevenbergMarquardt", "GaussNewton", "Dogleg"])
def test_least_squares(name: str) -> None:
    """Rates of a reaction, through the solution of its equations; and how they depend on the data."""
    t = jnp.linspace(0.1, 2.0, 12)

    def model(p: Any) -> Any:
        a = jnp.exp(-p["a"] * t)
        return a, p["a"] / (p["b"] - p["a"]) * (a - jnp.exp(-p["b"] * t))

    data = jax.tree.map(lambda y, key: y + 0.01 * jr.normal(key, y.shape), model({"a": 1.3, "b": 0.6}),
                        tuple(jr.split(jr.key(0))))

    def fit(data: Any) -> Any:
        solver = getattr(optx, name)(rtol=1e-5, atol=1e-5)
        start = {"a": jnp.array(1.0), "b": jnp.array(0.5)}
        return optx.least_squares(lambda p, d: jax.tree.map(jnp.subtract, model(p), d), solver, start, data).value

    found = eqx.filter_jit(fit)(data)
    np.testing.assert_allclose([found["a"], found["b"]], RATES[:2], rtol=1e-3)
    influence = jax.jit(jax.grad(lambda d: fit(d)["a"]))(data)
    np.testing.assert_allclose(influence[0][:2], RATES[2:], rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("solver", [
    optx.BFGS(1e-5, 1e-5), optx.LBFGS(1e-5, 1e-5), optx.DFP(1e-5, 1e-5), optx.NonlinearCG(1e-5, 1e-5),
    optx.OptaxMinimiser(optax.adabelief(0.05), 1e-5, 1e-6)], ids=lambda solver: type(solver).__name__)
def test_minima(solver: Any) -> None:
    """The stable state of a chain of springs, and its derivative in their length, under `jit`."""

    def energy(y: Any, length: Any) -> Any:
        y = jnp.concatenate([jnp.zeros(1), y["inner"], jnp.full(1, 4.0)])
        stiff = jnp.array([1.0, 3.0, 1.0, 1.0])
        return jnp.sum(stiff * (jnp.diff(y) - length) ** 2) + 0.1 * jnp.sum(jnp.cos(y))

    def middle(length: Any) -> Any:
        return optx.minimise(energy, solver, {"inner": jnp.array([1.0, 2.0, 3.0])}, length, max_steps=4000).value

    y = eqx.filter_jit(middle)(jnp.array(1.2))
    np.testing.assert_allclose(y["inner"], SPRINGS, atol=5e-3)
    slope = eqx.filter_jit(eqx.filter_jvp)(middle, (jnp.array(1.2),), (jnp.array(1.0),))[1]
    np.testing.assert_allclose(slope["inner"], LONGER, atol=5e-3)


def test_an_implicit_layer() -> None:
    """A network whose output is a fixed point, trained by gradients through what it solves."""
    w = jr.normal(jr.key(1), (6, 6)) / 12
    x, target = jr.normal(jr.key(2), (8, 6)), jr.normal(jr.key(3), (8,)) / 4

    def output(w: Any, x: Any) -> Any:
        solver = optx.FixedPointIteration(rtol=1e-5, atol=1e-5)
        return optx.fixed_point(lambda z, a: jnp.tanh(a[0] @ z + a[1]), solver, jnp.zeros(6), (w, x)).value.mean()

    @jax.jit
    def step(w: Any) -> Any:
        value, grad = jax.value_and_grad(lambda w: jnp.mean((jax.vmap(output, (None, 0))(w, x) - target) ** 2))(w)
        return w - 0.5 * grad, value

    losses = []
    for _ in range(20):
        w, value = step(w)
        losses.append(float(value))
    np.testing.assert_allclose([losses[0], losses[1], losses[-1]], IMPLICIT, rtol=1e-2)


def test_adjoints_and_failures() -> None:
    def root(a: Any, adjoint: Any) -> Any:
        return optx.root_find(lambda y, a: y**3 - a, optx.Newton(1e-6, 1e-6), jnp.array(1.0), a, max_steps=32,
                              adjoint=adjoint).value

    for adjoint in (optx.ImplicitAdjoint(), optx.RecursiveCheckpointAdjoint()):
        np.testing.assert_allclose(jax.jit(jax.grad(lambda a, how=adjoint: root(a, how)))(2.0), 2 ** (-2 / 3) / 3,
                                   rtol=1e-4)
    with pytest.raises(eqx.EquinoxRuntimeError, match="maximum number of steps"):
        optx.root_find(lambda y, _: jnp.exp(y), optx.Newton(1e-8, 1e-8), jnp.array(1.0), max_steps=4)
    failed = optx.root_find(lambda y, _: jnp.exp(y), optx.Newton(1e-8, 1e-8), jnp.array(1.0), max_steps=4, throw=False)
    assert failed.result == optx.RESULTS.nonlinear_max_steps_reached and int(failed.stats["num_steps"]) == 4


def test_jacobians_of_solutions() -> None:
    """Forward, too, beside values that no direction moves."""
    for solver in (optx.LevenbergMarquardt(1e-6, 1e-6), optx.GaussNewton(1e-6, 1e-6), optx.Dogleg(1e-6, 1e-6)):
        def fitted(a: Any, solver: Any = solver) -> Any:
            return optx.least_squares(lambda y, a: (10 * (y[1] - a * y[0] ** 2), 1 - y[0]), solver,
                                      jnp.array([0.5, 1.0]), a, max_steps=64).value

        for jacobian in (jax.jacfwd, jax.jacrev):
            np.testing.assert_allclose(jacobian(fitted)(2.0), [0.0, 1.0], atol=1e-3)
