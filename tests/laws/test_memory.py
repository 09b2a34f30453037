"""Programs compute the same whatever shares memory: eager, compiled, with arguments that may be overwritten."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import anima
from anima.compiler.driver import lower
from anima.compiler.ir.show_loops import check
from anima.compiler.storage.proof import check_memory
from anima.runtime.executable import compile_program
from tests.compiler.stages import closed
from tests.laws.memory_programs import ONE, PAIR, TWO, Program, programs

SIZES = (0, 1, 2, 3, 7, 8, 16, 17, 33, 65)


@settings(max_examples=75)
@given(programs(), st.sampled_from(SIZES), st.sampled_from(["int32", "uint8", "int16", "float32"]),
       st.sets(st.integers(0, 2)), st.integers(0, 5))
def test_what_shares_memory(program: Program, n: int, dtype: str, donated: set[int], seed: int) -> None:
    compare(program, n, dtype, donated, seed)


def compare(program: Program, n: int, dtype: str, donated: set[int], seed: int) -> None:
    """Runs a program on arrays of n numbers, in every way."""
    given_arrays = list(np.random.default_rng(seed).integers(0, 9, (3, n)).astype(dtype))
    with anima.disable_jit():
        want = [np.asarray(x) for x in program(*given_arrays)]
    same(anima.jit(program)(*given_arrays), want, dtype)
    loops = lower(closed(program, *given_arrays), "shared", tuple(donated)).loops
    check(loops)
    check_memory(loops)
    executable = compile_program(loops, [w.shape for w in want])
    same(executable([a.copy() for a in given_arrays]), want, dtype)


def same(got: list[anima.Array], want: list[np.ndarray], dtype: str) -> None:
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype == dtype
        np.testing.assert_array_equal(np.asarray(a), b)


@pytest.mark.parametrize("name", sorted(ONE | TWO | PAIR))
@pytest.mark.parametrize("n", (1, 17))
def test_each_step(name: str, n: int) -> None:
    """On arguments, on what dies there, on what lives on, and in loops."""
    operands = (3, 4)[:1 if name in ONE else 2]
    before = (("next", 0), ("square", 1))
    count = 2 if name in PAIR else 1
    for results in ((4 + count,), (5, 3), (5, 5, 0, 4 + count)):
        compare(Program((*before, (name, *operands)), results), n, "int32", {0, 1}, 1)
    inner = (name, *range(len(operands)))
    compare(Program((("fori", 3, (inner,), 0, 1),), (3, 4)), n, "int32", {0, 1}, 1)
    compare(Program((*before, ("scan", 2, (("next", 0), inner, ("next", 1)), 3, 4)), (5, 6, 3, 0)), n, "int32", {0}, 1)
