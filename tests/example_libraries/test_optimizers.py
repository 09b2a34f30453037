"""Optimisers against their formulas, on the pages of the papers, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.example_libraries import optimizers as o

PARAMS = {"w": np.array([[1.0, -2.0], [3.0, 0.5]]), "b": np.array([0.1, -0.2]), "empty": np.zeros(0)}
RATE, MASS = 0.1, 0.9


def slope(x: Any) -> Any:
    return 2 * np.sin(x) + 0.1


def by_hand(update: Any, state: tuple[Any, ...], x: Any, steps: int) -> Any:
    for k in range(steps):
        x, *state = update(k, slope(x), x, *state)
    return x


def momentum(k: int, g: Any, x: Any, v: Any) -> Any:
    v = MASS * v + g
    return x - RATE * v, v


def nesterov(k: int, g: Any, x: Any, v: Any) -> Any:
    v = MASS * v + g
    return x - RATE * (MASS * v + g), v


def adagrad(k: int, g: Any, x: Any, s: Any, m: Any) -> Any:
    s = s + g * g
    m = 0.1 * g / np.sqrt(s) + 0.9 * m
    return x - RATE * m, s, m


def rmsprop(k: int, g: Any, x: Any, s: Any) -> Any:
    s = 0.9 * s + 0.1 * g * g
    return x - RATE * g / np.sqrt(s + 1e-8), s


def rmsprop_momentum(k: int, g: Any, x: Any, s: Any, m: Any) -> Any:
    s = 0.9 * s + 0.1 * g * g
    m = 0.9 * m + RATE * g / np.sqrt(s + 1e-8)
    return x - m, s, m


def adam(k: int, g: Any, x: Any, m: Any, v: Any) -> Any:
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return x - RATE * m / (1 - 0.9 ** (k + 1)) / (np.sqrt(v / (1 - 0.999 ** (k + 1))) + 1e-8), m, v


def adamax(k: int, g: Any, x: Any, m: Any, u: Any) -> Any:
    m, u = 0.9 * m + 0.1 * g, np.maximum(0.999 * u, abs(g))
    return x - RATE / (1 - 0.9 ** (k + 1)) * m / (u + 1e-8), m, u


METHODS = [(o.sgd(RATE), lambda k, g, x: (x - RATE * g,), 0), (o.momentum(RATE, MASS), momentum, 1),
           (o.nesterov(RATE, MASS), nesterov, 1), (o.adagrad(RATE), adagrad, 2), (o.rmsprop(RATE), rmsprop, 1),
           (o.rmsprop_momentum(RATE), rmsprop_momentum, 2), (o.adam(RATE), adam, 2), (o.adamax(RATE), adamax, 2)]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("made", "formula", "states"), METHODS)
@pytest.mark.parametrize("compiled", [False, True])
def test_formulas(made: Any, formula: Any, states: int, compiled: bool) -> None:
    init, update, get_params = made
    state = init(PARAMS)
    step = anima.jit(update) if compiled else update
    for k in range(4):
        state = step(k, anima.tree.map(lambda p: 2 * jnp.sin(p) + 0.1, get_params(state)), state)
    for name, x in PARAMS.items():
        expected = by_hand(formula, (np.zeros_like(x),) * states, x, 4)
        np.testing.assert_allclose(get_params(state)[name], expected, rtol=1e-12)


@pytest.mark.usefixtures("x64")
def test_sm3_keeps_the_largest_along_each_axis() -> None:
    x = PARAMS["w"]
    init, update, get_params = o.sm3(RATE)
    state = init(x)
    rows, columns, mean = np.zeros(2), np.zeros(2), np.zeros((2, 2))
    for k in range(3):
        g = slope(x)
        state = update(k, g, state)
        squares = np.minimum(rows[:, None], columns[None]) + g * g
        mean = 0.1 * g / np.sqrt(squares) + 0.9 * mean
        x, rows, columns = x - RATE * mean, squares.max(1), squares.max(0)
    np.testing.assert_allclose(get_params(state), x, rtol=1e-12)
    still = o.sm3(RATE)
    np.testing.assert_array_equal(still.params_fn(still.update_fn(0, np.zeros(2), still.init_fn(np.ones(2)))), 1.0)


@pytest.mark.parametrize(("schedule", "expected"), [
    (o.constant(0.5), [0.5] * 4), (o.exponential_decay(0.1, 2, 0.25), [0.1, 0.05, 0.025, 0.0125]),
    (o.inverse_time_decay(0.1, 2, 2.0), [0.1, 0.05, 0.1 / 3, 0.025]),
    (o.inverse_time_decay(0.1, 2, 2.0, staircase=True), [0.1, 0.1, 0.1 / 3, 0.1 / 3]),
    (o.polynomial_decay(0.3, 2, 0.1, 2.0), [0.3, 0.15, 0.1, 0.1]),
    (o.piecewise_constant([0, 2], [0.1, 0.2, 0.3]), [0.1, 0.2, 0.2, 0.3])])
def test_schedules(schedule: Any, expected: list[float]) -> None:
    np.testing.assert_allclose([schedule(k) for k in range(4)], expected, rtol=1e-6)
    np.testing.assert_allclose(anima.jit(lambda k: jnp.asarray(schedule(k)))(3), expected[3], rtol=1e-6)
    assert o.make_schedule(schedule) is schedule


def test_mistakes() -> None:
    with pytest.raises(TypeError):
        o.make_schedule(np.ones(2))
    with pytest.raises(ValueError, match="one shorter"):
        o.piecewise_constant([1, 2], [1.0, 2.0])
    with pytest.raises(ValueError, match="sequences"):
        o.piecewise_constant([[1]], [1.0, 2.0])
    made = o.adam(RATE)
    with pytest.raises(TypeError, match="did not match the parameter tree"):
        made.update_fn(0, {"w": 1.0}, made.init_fn(PARAMS))
    odd = o.optimizer(lambda: (lambda x: x, lambda i, g, x: (x, x), lambda x: x))()
    with pytest.raises(TypeError, match="produced an output structure"):
        odd.update_fn(0, 1.0, odd.init_fn(1.0))
    with pytest.raises(TypeError, match="JoinPoint"):
        o.pack_optimizer_state({"w": 1.0})


def test_states_are_saved_by_leaf() -> None:
    made = o.adam(RATE)
    state = made.init_fn(PARAMS)
    marked = o.unpack_optimizer_state(state)
    assert {name: type(mark) for name, mark in marked.items()} == dict.fromkeys(PARAMS, o.JoinPoint)
    again = o.pack_optimizer_state(marked)
    assert anima.tree.structure(again) == anima.tree.structure(state)


@pytest.mark.usefixtures("x64")
def test_norms() -> None:
    norm = np.sqrt(sum((x ** 2).sum() for x in PARAMS.values()))
    np.testing.assert_allclose(o.l2_norm(PARAMS), norm, rtol=1e-12)
    for limit in (0.5, 100.0):
        clipped = o.clip_grads(PARAMS, limit)
        np.testing.assert_allclose(o.l2_norm(clipped), min(norm, limit), rtol=1e-12)
