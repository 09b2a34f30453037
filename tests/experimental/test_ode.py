"""odeint against SciPy and closed forms: values, gradients to order 2, every transformation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.integrate import solve_ivp

import anima
import anima.numpy as jnp
from anima.experimental.ode import odeint

TIMES = np.linspace(0.0, 5.0, 7)


def pendulum(y: Any, t: Any, friction: Any, gravity: Any) -> Any:
    angle, speed = y
    return speed, -friction * speed - gravity * jnp.sin(angle)


def reference(times: Any, start: Any, *args: Any) -> Any:
    found = solve_ivp(lambda t, y: [np.float64(v) for v in pendulum(y, t, *args)], (times[0], times[-1]), start,
                      "DOP853", times, rtol=1e-12, atol=1e-12)
    return found.y


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("times", [TIMES, TIMES[::-1], TIMES[:1], TIMES[:2] ** 2, np.array([1.0, 1.0, 1.5])])
def test_against_scipy(times: Any) -> None:
    got = anima.jit(odeint, static_argnums=0)(pendulum, (2.0, 0.5), times, 0.2, 3.0)
    start = [2.0, 0.5]
    if len(times) == 1:
        np.testing.assert_array_equal(got, [[2.0], [0.5]])
        return
    unique, places = np.unique(times if times[0] <= times[-1] else -times, return_inverse=True)
    expected = reference(unique if times[0] <= times[-1] else -unique, start, 0.2, 3.0)[:, places]
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("float64", 1e-8), ("complex64", 2e-5),
                                                  ("complex128", 1e-8)])
@pytest.mark.usefixtures("x64")
def test_the_exponential(dtype: str, tolerance: float) -> None:
    rate = np.array([-1.0, 0.5], dtype)
    if dtype.startswith("complex"):
        rate = rate * np.array(1 + 2j, dtype)
    times = jnp.linspace(0, 2, 5, dtype=np.real(rate).dtype)
    got = odeint(lambda y, t: rate * y, np.ones(2, dtype), times, rtol=tolerance / 10, atol=tolerance / 10)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, np.exp(np.asarray(times)[:, None] * rate), rtol=10 * tolerance)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("mode", [lambda f: f, anima.jit])
def test_gradients_of_the_linear_equation(mode: Any) -> None:
    """y = y0 exp(-k t): derivatives by y0, t, k in closed form."""
    times = np.array([0.0, 0.5, 2.0])
    weights = np.array([1.0, 2.0, 3.0])

    def loss(y0: Any, t: Any, k: Any) -> Any:
        return jnp.sum(weights * odeint(lambda y, t, k: -k * y, y0, t, k))

    y0, k = 1.5, 0.7
    by_y0, by_t, by_k = mode(anima.grad(loss, (0, 1, 2)))(y0, times, k)
    decay = np.exp(-k * times)
    np.testing.assert_allclose(by_y0, (weights * decay).sum(), rtol=1e-6)
    np.testing.assert_allclose(by_k, (-weights * times * y0 * decay).sum(), rtol=1e-6)
    flow = -weights * k * y0 * decay
    np.testing.assert_allclose(by_t, [-flow[1:].sum(), *flow[1:]], rtol=1e-6)
    second = mode(anima.grad(anima.grad(loss, 2), 2))(y0, times, k)
    np.testing.assert_allclose(second, (weights * times ** 2 * y0 * decay).sum(), rtol=1e-5)


@pytest.mark.usefixtures("x64")
def test_gradients_against_differences() -> None:
    def loss(y0: Any, friction: Any, gravity: Any) -> Any:
        angle, speed = odeint(pendulum, y0, TIMES, friction, gravity)
        return jnp.sum(angle ** 2) + jnp.sum(speed * TIMES)

    args = (np.array(2.0), np.array(0.5)), 0.2, 3.0
    grads = anima.jit(anima.grad(loss, (0, 1, 2)))(*args)
    flat, structure = anima.tree.flatten(args)
    for k, got in enumerate(anima.tree.leaves(grads)):
        ends = [float(loss(*structure.unflatten([x + h * (i == k) for i, x in enumerate(flat)])))
                for h in (1e-5, -1e-5)]
        np.testing.assert_allclose(got, (ends[0] - ends[1]) / 2e-5, rtol=1e-5)


@pytest.mark.usefixtures("x64")
def test_what_the_field_closes_over() -> None:
    def final(k: Any, shift: Any) -> Any:
        return odeint(lambda y, t: -k * (y - shift), 1.0, np.array([0.0, 1.0]))[-1]

    grads = anima.jit(anima.grad(final, (0, 1)))(0.7, 0.2)
    np.testing.assert_allclose(grads, (-0.8 * np.exp(-0.7), 1 - np.exp(-0.7)), rtol=1e-6)
    many = anima.vmap(final, in_axes=(0, None))(np.array([0.5, 1.0, 4.0]), 0.2)
    np.testing.assert_allclose(many, 0.2 + 0.8 * np.exp(-np.array([0.5, 1.0, 4.0])), rtol=1e-6)
    slopes = anima.vmap(anima.grad(final), in_axes=(0, None))(np.array([0.5, 1.0]), 0.2)
    np.testing.assert_allclose(slopes, -0.8 * np.exp(-np.array([0.5, 1.0])), rtol=1e-6)


def test_arguments_without_derivatives_and_empty_states() -> None:
    def final(y0: Any, n: Any) -> Any:
        return odeint(lambda y, t, n: -y * n, y0, jnp.array([0.0, 1.0]), n, rtol=1e-6, atol=1e-6)[-1]

    np.testing.assert_allclose(anima.grad(final)(1.0, 2), np.exp(-2.0), rtol=1e-4)
    assert odeint(lambda y, t: y, np.zeros((0, 3), np.float32), np.array([0.0, 1.0])).shape == (2, 0, 3)


@pytest.mark.usefixtures("x64")
def test_limits() -> None:
    still = odeint(lambda y, t: -y, 1.0, TIMES, mxstep=1)
    assert float(still[0]) == 1.0 and np.isnan(still[1:]).all()
    blown = odeint(lambda y, t: y * y, 1.0, np.array([0.0, 0.5, 2.0]))
    np.testing.assert_allclose(blown[1], 2.0, rtol=1e-6)
    assert np.isnan(blown[2])
    pulse = odeint(lambda y, t: jnp.exp(-((t - 5) / 0.05) ** 2), 0.0, np.array([0.0, 10.0]), rtol=1e-4, atol=1e-4,
                   hmax=0.1)
    np.testing.assert_allclose(pulse[1], 0.05 * np.sqrt(np.pi), rtol=1e-2)


def test_mistakes() -> None:
    with pytest.raises(TypeError, match="arguments of func"):
        odeint(lambda y, t, s: y, 1.0, TIMES, "fast")
    with pytest.raises(TypeError, match=r"y0 must be of floats or complex numbers, got i\w+\[\]"):
        odeint(lambda y, t: y, 1, TIMES)
    with pytest.raises(TypeError, match="must return what y is"):
        odeint(lambda y, t: (y, y), 1.0, TIMES)
