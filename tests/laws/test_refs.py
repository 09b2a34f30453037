"""Random programs on references do what NumPy's arrays do, transformed in any way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
from anima import numpy as jnp
from tests.laws.ref_programs import SIZE, Program

COUNT = 3  # programs for each way


def through(transform: Callable[..., Any], p: Program, xs: np.ndarray) -> np.ndarray:
    """What a program makes of references that it is given."""
    refs = [anima.new_ref(xs), anima.new_ref(jnp.zeros(xs.shape))]
    transform(p.on)(*refs)
    return np.concatenate([np.asarray(anima.freeze(r)) for r in refs], axis=-1)


ONE: dict[str, Callable[..., Any]] = {
    "eager": lambda p, x: p(x), "jit": lambda p, x: anima.jit(p)(x), "given": lambda p, x: through(anima.jit, p, x)}
MANY: dict[str, Callable[..., Any]] = {
    "vmap": lambda p, xs: anima.jit(anima.vmap(p))(xs),
    "given": lambda p, xs: through(lambda f: anima.jit(anima.vmap(f)), p, xs)}
SLOPES: dict[str, Callable[..., Any]] = {
    "grad": lambda f, x, v: np.sum(np.asarray(anima.grad(f)(x)) * v),
    "jit of grad": lambda f, x, v: np.sum(np.asarray(anima.jit(anima.grad(f))(x)) * v),
    "jvp": lambda f, x, v: anima.jvp(anima.jit(f), (x,), (v,))[1]}
CASES = [(seed, way) for k, way in enumerate(ONE) for seed in range(COUNT * k, COUNT * (k + 1))]


@pytest.mark.parametrize("seed,way", CASES)
def test_values(seed: int, way: str) -> None:
    with anima.enable_x64(True):
        p, x = Program(seed), np.random.default_rng(seed).normal(size=SIZE)
        np.testing.assert_allclose(ONE[way](p, x), p.numpy(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed,way", [(100 + s + COUNT * k, way) for k, way in enumerate(MANY) for s in range(COUNT)])
def test_stacks(seed: int, way: str) -> None:
    with anima.enable_x64(True):
        p, xs = Program(seed), np.random.default_rng(seed).normal(size=(3, SIZE))
        np.testing.assert_allclose(MANY[way](p, xs), np.stack([p.numpy(x) for x in xs]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed,way", [(200 + s + COUNT * k, way) for k, way in enumerate(SLOPES) for s in range(COUNT)])
def test_slopes(seed: int, way: str) -> None:
    with anima.enable_x64(True):
        p, rng = Program(seed), np.random.default_rng(seed)
        x, v, w, h = rng.normal(size=SIZE), rng.normal(size=SIZE), rng.normal(size=2 * SIZE), 1e-6
        difference = np.sum((p.numpy(x + h * v) - p.numpy(x - h * v)) * w) / (2 * h)
        slope = SLOPES[way](lambda x: jnp.sum(p(x) * w), x, v)
        np.testing.assert_allclose(slope, difference, rtol=1e-4, atol=1e-4 * (1 + abs(difference)))
