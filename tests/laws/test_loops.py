"""Laws of loops: compiled or not, mapped or not, and differentiated twice, they are what Python's loops compute."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import HealthCheck, assume, given, settings, strategies as st

import anima
from anima.config import config
from tests.laws.loop_programs import Program, programs

lawful = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), max_examples=25)
seeds = st.integers(0, 2**16)


def point(seed: int, lead: tuple[int, ...] = ()) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1.0, 1.0, size=(*lead, 4))


def close(got: object, expected: object, tolerance: float = 1e-9) -> None:
    np.testing.assert_allclose(np.asarray(got), np.asarray(expected), rtol=tolerance, atol=tolerance)


@settings(lawful, max_examples=100)
@given(programs(), seeds)
def test_compiled_loops_are_python_loops(program: Program, seed: int) -> None:
    with anima.enable_x64(True):
        x = point(seed)
        close(anima.jit(program)(x), program(x, unrolled=True))


@settings(lawful, max_examples=75)
@given(programs(), seeds, st.booleans(), st.booleans())
def test_gradients_of_loops(program: Program, seed: int, remember: bool, compiled: bool) -> None:
    with anima.enable_x64(True):
        x = point(seed)
        derivative = anima.grad(lambda x: program(x, remember=remember))
        got = (anima.jit(derivative) if compiled else derivative)(x)
        close(got, anima.grad(lambda x: program(x, unrolled=True))(x))
        direction = point(seed + 1)
        slope = np.sum(np.asarray(got) * direction)
        h = 1e-6 / max(1.0, abs(slope))  # what changes fast changes its slope fast
        ends = [float(program(x + e * direction, unrolled=True)) for e in (h, -h)]
        close(slope, (ends[0] - ends[1]) / (2 * h), 1e-5)


@lawful
@given(programs(), seeds, st.sampled_from([300, 500, 900]))
def test_gradients_of_loops_over_the_budget(program: Program, seed: int, budget: int) -> None:
    with anima.enable_x64(True):
        x = point(seed)
        gradient = anima.jit(anima.grad(program))
        want = gradient(x)
        try:
            with config.option("tape_budget")(budget):
                got = gradient(x)
        except MemoryError:  # not even one step and one state
            assume(budget < 900)
            return
        np.testing.assert_array_equal(got, want)


@settings(lawful, max_examples=20)
@given(programs(), seeds)
def test_second_derivatives_of_loops(program: Program, seed: int) -> None:
    with anima.enable_x64(True):
        x, v = point(seed), point(seed + 1)

        def twice(**options: bool) -> Callable[..., object]:
            return anima.grad(lambda x: (anima.grad(lambda x: program(x, **options))(x) * v).sum())

        want = twice(unrolled=True)(x)
        for remember in (False, True):
            close(anima.jit(twice(remember=remember))(x), want, 1e-8)


@lawful
@given(programs(), seeds, st.permutations(["jit", "vmap"]), st.booleans())
def test_loops_over_lanes(program: Program, seed: int, order: list[str], differentiate: bool) -> None:
    with anima.enable_x64(True):
        xs = point(seed, (3,))
        one = anima.grad(program) if differentiate else program
        fun = one
        for name in order:
            fun = getattr(anima, name)(fun)
        expected = [anima.grad(lambda x: program(x, unrolled=True))(x) if differentiate else program(x, unrolled=True)
                    for x in xs]
        close(fun(xs), np.stack([np.asarray(e) for e in expected]))
