"""Diffrax: differential equations, ordinary and stochastic, stiff and not, and gradients through their solution."""

from __future__ import annotations

from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import optimistix
import pytest

NEURAL = [1.53753376, 0.649992466, 0.223955914, 0.062581763]  # the first losses
ROBERTSON = [0.617235065, 6.154e-06, 0.382758915, 163]  # the end, and the number of steps
STOCHASTIC = [0.674358487, -0.200768828, 0.824688137]

def oscillator(t: Any, y: Any, args: Any) -> Any:
    return {"x": y["v"], "v": -args * y["x"]}


@pytest.mark.parametrize("solver", [dfx.Tsit5(), dfx.Heun()],
                         ids=lambda solver: type(solver).__name__)
def test_solvers(solver: Any) -> None:
    """A spring, with adaptive steps, against its solution, and the derivative in its stiffness."""

    def x(k: Any) -> Any:
        found = dfx.diffeqsolve(dfx.ODETerm(oscillator), solver, 0.0, 2.0, None,
                                {"x": jnp.array(1.0), "v": jnp.zeros(())}, args=k,
                                saveat=dfx.SaveAt(ts=jnp.linspace(0, 2, 5)),
                                max_steps=4096,
                                stepsize_controller=dfx.PIDController(rtol=1e-5, atol=1e-6))
        return found.ys["x"]

    k = 1.7
    want = np.cos(np.sqrt(k) * np.linspace(0, 2, 5))
    value, slope = jax.jit(lambda k: (x(k), jax.grad(lambda k: x(k)[-1])(k)))(k)
    np.testing.assert_allclose(value, want, atol=2e-3)
    np.testing.assert_allclose(slope, -np.sin(2 * np.sqrt(k)) / np.sqrt(k), rtol=5e-3)


def test_training_a_neural_ode() -> None:
    """Its field is fitted to a spiral, through the adaptive solver; the first losses are JAX's."""
    ts = jnp.linspace(0, 3, 16)
    data = jnp.stack([jnp.exp(-0.2 * ts) * jnp.cos(ts), jnp.exp(-0.2 * ts) * jnp.sin(ts)], axis=1)
    field = eqx.nn.MLP(2, 2, 16, 1, activation=jnp.tanh, key=jr.key(0))
    optimizer = optax.adam(0.03)
    state = optimizer.init(eqx.filter(field, eqx.is_inexact_array))

    def loss(field: Any) -> Any:
        found = dfx.diffeqsolve(dfx.ODETerm(lambda t, y, f: f(y)), dfx.Tsit5(), ts[0], ts[-1], 0.1, data[0], args=field,
                                saveat=dfx.SaveAt(ts=ts), stepsize_controller=dfx.PIDController(rtol=1e-3, atol=1e-5))
        return jnp.mean((found.ys - data) ** 2)

    @eqx.filter_jit
    def step(field: Any, state: Any) -> Any:
        value, grads = eqx.filter_value_and_grad(loss)(field)
        updates, state = optimizer.update(grads, state)
        return eqx.apply_updates(field, updates), state, value

    losses = []
    for _ in range(60):
        field, state, value = step(field, state)
        losses.append(float(value))
    np.testing.assert_allclose(losses[:4], NEURAL, rtol=2e-3)
    assert losses[-1] < 0.05 * losses[0]


def test_stiff_equations() -> None:
    """Robertson's reaction by an implicit solver, in as many steps as under JAX."""

    def rates(t: Any, y: Any, k: Any) -> Any:
        one, two, three = k[0] * y[0], k[1] * y[1] ** 2, k[2] * y[1] * y[2]
        return jnp.stack([three - one, one - three - two, two])

    @jax.jit
    def end(k: Any) -> Any:
        found = dfx.diffeqsolve(dfx.ODETerm(rates), dfx.Kvaerno5(), 0.0, 100.0, 2e-4, jnp.array([1.0, 0.0, 0.0]),
                                args=k, stepsize_controller=dfx.PIDController(rtol=1e-5, atol=1e-6), max_steps=512)
        return found.ys[0], found.stats["num_steps"]

    y, steps = end(jnp.array([0.04, 3e7, 1e4]))
    np.testing.assert_allclose(y, ROBERTSON[:3], rtol=1e-3)
    np.testing.assert_allclose(y.sum(), 1.0, rtol=1e-4)
    assert abs(int(steps) - ROBERTSON[3]) <= 3


def test_stochastic_equations() -> None:
    """Paths of a Brownian tree, of the same random numbers as JAX's; their mean and spread for many keys."""

    def end(key: Any) -> Any:
        noise = dfx.VirtualBrownianTree(0.0, 1.0, 1e-2, (), key=key)
        terms = dfx.MultiTerm(dfx.ODETerm(lambda t, y, _: -y), dfx.ControlTerm(lambda t, y, _: 0.5, noise))
        return dfx.diffeqsolve(terms, dfx.Euler(), 0.0, 1.0, 0.05, jnp.array(1.0)).ys[0]

    ends = jax.jit(jax.vmap(end))(jr.split(jr.key(7), 200))
    np.testing.assert_allclose(ends[:3], STOCHASTIC, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose([ends.mean(), ends.std()], [0.95**20, 0.5 * np.sqrt((1 - np.exp(-2)) / 2)], rtol=0.2)


def test_adjoints_agree() -> None:
    def loss(k: Any, adjoint: Any) -> Any:
        found = dfx.diffeqsolve(dfx.ODETerm(lambda t, y, k: -k * y), dfx.Dopri5(), 0.0, 1.0, 0.05, jnp.array(2.0),
                                args=k, adjoint=adjoint)
        return found.ys[0]

    for adjoint in (dfx.RecursiveCheckpointAdjoint(checkpoints=3), dfx.BacksolveAdjoint()):
        found = jax.jit(jax.value_and_grad(lambda k, how=adjoint: loss(k, how)))(0.7)
        np.testing.assert_allclose(found, [2 * np.exp(-0.7), -2 * np.exp(-0.7)], rtol=1e-3)


def test_events() -> None:
    """A ball is dropped: when it hits the ground, and how that depends on where it was."""

    def time(height: Any) -> Any:
        ball = dfx.ODETerm(lambda t, y, _: jnp.stack([y[1], jnp.asarray(-9.81)]))
        event = dfx.Event(lambda t, y, args, **kwargs: y[0], optimistix.Newton(1e-5, 1e-5))
        return dfx.diffeqsolve(ball, dfx.Tsit5(), 0.0, jnp.inf, 0.1, jnp.stack([height, 0.0]), event=event).ts[0]

    value, slope = jax.jit(jax.value_and_grad(time))(5.0)
    np.testing.assert_allclose([value, slope], [np.sqrt(10 / 9.81), 1 / np.sqrt(2 * 9.81 * 5.0)], rtol=2e-3)


def test_failures() -> None:
    with pytest.raises(eqx.EquinoxRuntimeError, match="maximum number of solver steps"):
        dfx.diffeqsolve(dfx.ODETerm(lambda t, y, _: -y), dfx.Euler(), 0.0, 1.0, 0.01, jnp.array(1.0), max_steps=10)
