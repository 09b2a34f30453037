"""Laws of updates: arrays that loops change are, compiled, mapped or differentiated, what Python's loops make."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, example, given, settings, strategies as st

import anima
from tests.laws.array_programs import Program, programs, start

lawful = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), max_examples=30)
seeds = st.integers(0, 2**16)
DTYPES = ["float32", "float64", "int32", "int8", "uint16", "bool", "complex64", "bfloat16", "float16", "int64"]

# Steps that few draws have.
RARE = Program((("for", 3, "abm", 0, (("late", "a", 1, "b", 10), ("largest", "m", 4, "a", 0),
                                      ("for", 2, "am", 0, (("late", "b", 3, "m", 0), ("largest", "a", 1, "b", 2))))),))


def same(got: object, want: object) -> None:
    for x, y in zip(got, want, strict=True):  # type: ignore[call-overload]
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


@settings(lawful, max_examples=90)
@given(programs(), seeds, st.sampled_from(DTYPES), st.sampled_from([1, 2, 17, 17, 17, 1000]))
def test_compiled_updates_are_those_of_python(program: Program, seed: int, dtype: str, size: int) -> None:
    with anima.enable_x64(dtype in ("float64", "int64")):
        args = start(dtype, size, seed)
        got = anima.jit(program)(*args)
        with anima.disable_jit():
            same(got, program(*args))


@lawful
@given(programs(), seeds, st.sampled_from(["float32", "int32"]), st.sampled_from([1, 17]))
@example(RARE, 1, "float32", 17)
def test_mapped_updates(program: Program, seed: int, dtype: str, size: int) -> None:
    args = start(dtype, size, seed, (3,))
    got = anima.jit(anima.vmap(program))(*args)
    with anima.disable_jit():
        lanes = [program(*(x[k] for x in args)) for k in range(3)]
    same(got, [np.stack([np.asarray(lane[n]) for lane in lanes]) for n in range(len(lanes[0]))])


@lawful
@given(programs(), seeds, st.sampled_from([1, 5, 17]))
def test_gradients_of_updates(program: Program, seed: int, size: int) -> None:
    with anima.enable_x64(True):
        args = start("float64", size, seed)
        weights = np.random.default_rng(seed).uniform(size=(3, size))

        def loss(*args: np.ndarray) -> object:
            a, b, _, m = program(*args)
            return (a * weights[0]).sum() + (b * weights[1]).sum() + (m * weights).sum()

        gradient = anima.grad(loss, (0, 1, 2))
        got = anima.jit(gradient)(*args)
        with anima.disable_jit():
            want = gradient(*args)
        for x, y in zip(got, want, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9)
