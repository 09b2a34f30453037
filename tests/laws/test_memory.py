"""Programs compute the same whatever shares memory: eager, compiled, compiled with arguments that may be overwritten."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import anima
from anima.compiler.buffers import check_memory
from anima.compiler.pipeline import lower
from anima.compiler.show_loops import check
from anima.runtime.executable import compile_program
from tests.compiler.stages import closed
from tests.laws.memory_programs import Program, programs

SIZES = (0, 1, 2, 3, 7, 8, 16, 17, 33, 65)


@settings(max_examples=300)
@given(programs(), st.sampled_from(SIZES), st.sampled_from(["int32", "uint8", "int16", "float32"]),
       st.sets(st.integers(0, 2)), st.integers(0, 5))
def test_what_shares_memory(program: Program, n: int, dtype: str, donated: set[int], seed: int) -> None:
    given_arrays = list(np.random.default_rng(seed).integers(0, 9, (3, n)).astype(dtype))
    with anima.disable_jit():
        want = [np.asarray(x) for x in program(*given_arrays)]
    same(anima.jit(program)(*given_arrays), want, given_arrays, dtype)
    same(anima.jit(program, donate_argnums=tuple(donated))(*map(anima.numpy.array, given_arrays)), want,
         given_arrays, dtype)
    loops = lower(closed(program, *given_arrays), "shared", tuple(donated)).loops
    check(loops)
    check_memory(loops)
    executable = compile_program(loops, [w.shape for w in want])
    same(executable([a.copy() for a in given_arrays]), want, given_arrays, dtype)


def same(got: list[anima.Array], want: list[np.ndarray], arrays: list[np.ndarray], dtype: str) -> None:
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype == dtype
        np.testing.assert_array_equal(np.asarray(a), b)


@pytest.mark.parametrize("steps", [(("sort2", 0, 1),), (("cross", 0, 1),), (("swap", 0, 1), ("sort22", 3, 4)),
                                   (("fori", 3, (("sort22", 0, 1),), 0, 1),), (("scan", 2, (("cross", 0, 1),), 0, 1),)])
@pytest.mark.parametrize("n", (1, 2, 17))
def test_pairs_crosswise(steps: tuple[object, ...], n: int) -> None:
    test_what_shares_memory.hypothesis.inner_test(Program(steps, (3, 4, 3, 0, 0)), n, "int32", {0, 1}, 1)
