"""Laws that hold for every program: jit changes nothing, derivatives are derivatives, vmap is a loop."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings, strategies as st

import anima
from tests.laws.programs import COLUMNS, ROWS, Program, programs

seeds = st.integers(0, 2**16)
lawful = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), max_examples=50)


def inputs(seed: int, dtype: type = np.float32, lead: tuple[int, ...] = ()) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(2, *lead, ROWS, COLUMNS))
    return x.astype(dtype), y.astype(dtype)


@settings(lawful, max_examples=500)
@given(programs(), seeds)
def test_jit_changes_nothing(program: Program, seed: int) -> None:
    x, y = inputs(seed)
    np.testing.assert_allclose(anima.jit(program)(x, y), program(x, y), rtol=2e-5, atol=2e-5)


def check_directional(program: Program, x: np.ndarray, y: np.ndarray, gradient: np.ndarray, seed: int) -> None:
    """The gradient against central differences along a random direction, in float64."""
    v = np.random.default_rng(seed + 1).normal(size=x.shape)
    h = 1e-6
    difference = (float(program(x + h * v, y)) - float(program(x - h * v, y))) / (2 * h)
    middle = (float(program(x + h / 2 * v, y)) - float(program(x - h / 2 * v, y))) / h
    if abs(difference - middle) > 1e-4 * (1 + abs(difference)):
        return  # a kink (max, sort, where) lies within the step: no derivative to compare with
    np.testing.assert_allclose(np.sum(np.asarray(gradient) * v), difference, rtol=1e-4, atol=1e-4)


@settings(lawful, max_examples=500)
@given(programs(), seeds, st.booleans())
def test_gradients_are_finite_differences(program: Program, seed: int, compiled: bool) -> None:
    with anima.enable_x64(True):
        x, y = inputs(seed, np.float64)
        derivative = anima.grad(program)
        run = anima.jit(derivative) if compiled and seed % 8 == 0 else derivative
        check_directional(program, x, y, run(x, y), seed)


@lawful
@given(programs(), seeds)
def test_jit_of_grad_is_grad_of_jit(program: Program, seed: int) -> None:
    x, y = inputs(seed)
    expected = anima.grad(program)(x, y)
    np.testing.assert_allclose(anima.jit(anima.grad(program))(x, y), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(anima.grad(anima.jit(program))(x, y), expected, rtol=1e-4, atol=1e-4)


@lawful
@given(programs(), seeds)
def test_forward_mode_is_reverse_mode(program: Program, seed: int) -> None:
    with anima.enable_x64(True):
        x, y = inputs(seed, np.float64)
        vx, vy = inputs(seed + 7, np.float64)
        gx, gy = anima.grad(program, argnums=(0, 1))(x, y)
        _, tangent = anima.jvp(program, (x, y), (vx, vy))
        np.testing.assert_allclose(np.sum(gx * vx) + np.sum(gy * vy), tangent, rtol=1e-9, atol=1e-9)


@lawful
@given(programs(), seeds)
def test_vmap_is_a_loop(program: Program, seed: int) -> None:
    xs, ys = inputs(seed, lead=(3,))
    expected = np.stack([program(x, y) for x, y in zip(xs, ys, strict=True)])
    np.testing.assert_allclose(anima.vmap(program)(xs, ys), expected, rtol=2e-5, atol=2e-5)
    shared = np.stack([program(x, ys[0]) for x in xs])
    np.testing.assert_allclose(anima.vmap(program, in_axes=(0, None))(xs, ys[0]), shared, rtol=2e-5, atol=2e-5)


@lawful
@given(programs(), seeds)
def test_vmap_and_grad_commute(program: Program, seed: int) -> None:
    xs, ys = inputs(seed, lead=(3,))
    of_map = anima.grad(lambda a, b: anima.vmap(program)(a, b).sum())(xs, ys)
    np.testing.assert_allclose(anima.vmap(anima.grad(program))(xs, ys), of_map, rtol=1e-4, atol=1e-4)


@settings(lawful, max_examples=40)
@given(programs(most=4), seeds)
def test_second_derivatives_are_symmetric(program: Program, seed: int) -> None:
    with anima.enable_x64(True):
        x, y = inputs(seed, np.float64)
        v, w = inputs(seed + 3, np.float64)

        def along(direction: np.ndarray, point: np.ndarray) -> np.ndarray:
            return anima.jvp(lambda a: anima.grad(program)(a, y), (point,), (direction,))[1]

        np.testing.assert_allclose(np.sum(along(v, x) * w), np.sum(along(w, x) * v), rtol=1e-8, atol=1e-8)
