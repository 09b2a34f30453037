"""Tools of the compiler's tests: from a Python function to every level of its program, and the oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from anima import tree
from anima.compiler.driver import Stages, lower
from anima.compiler.ir.interpret import run
from anima.compiler.ir.show_loops import check
from anima.compiler.machine.native import host
from anima.compiler.machine.target import Target, target_of
from anima.compiler.storage.proof import check_memory
from anima.core.avals import ShapedArray
from anima.core.jaxpr import ClosedJaxpr
from anima.core.stage import eval_jaxpr, trace_to_jaxpr
from anima.core.trace import EVAL, under
from anima.runtime import threads


def closed(fun: Callable[..., Any], *args: np.ndarray) -> ClosedJaxpr:
    """The program of a function of arrays like `args`."""
    def flat(*xs: Any) -> list[Any]:
        out = fun(*xs)
        return list(out) if isinstance(out, (tuple, list)) else [out]

    avals = [ShapedArray(np.shape(a), np.asarray(a).dtype) for a in args]
    return ClosedJaxpr(*under(EVAL, trace_to_jaxpr, flat, avals))


SMALL_CACHES = replace(host(), first_cache=128, second_cache=256)
# The machine that loops are written down for, whichever one tests run on.
WRITTEN = target_of("x86_64-unknown-linux-gnu", "", "+avx2,+fma,+f16c,+avx512f,+avx512bw,+avx512dq,+avx512vl")


def lowered(fun: Callable[..., Any], *args: np.ndarray, donated: Sequence[int] = (),
            target: Target | None = None) -> Stages:
    """Every level of the program of a function."""
    stages = lower(closed(fun, *args), "f", donated, target)
    check(stages.loops)
    check_memory(stages.loops)
    return stages


def agree(fun: Callable[..., Any], *args: np.ndarray, donated: Sequence[int] = (), rtol: float = 1e-5,
          target: Target | None = None) -> Stages:
    """Checks that the loops compute what eager evaluation does, whatever the order of independent iterations."""
    program = closed(fun, *args)
    stages = lower(program, "f", donated, target)
    check(stages.loops)
    check_memory(stages.loops)
    expected = [np.asarray(x) for x in eval_jaxpr(program.jaxpr, program.consts, *args)]
    for order in ("forward", "backward"):
        for got, want in zip(run(stages.loops, args, order), expected, strict=True):
            assert got.dtype == want.dtype
            same(got.reshape(want.shape), want, rtol)
    return stages


def check_threads(fun: Callable[..., Any], *args: Any) -> None:
    """Checks that results have the same bits for 1, 2 and 8 threads."""
    found = []
    try:
        for count in (1, 2, 8):
            threads.set_num_threads(count)
            found.append([np.asarray(y).tobytes() for y in tree.leaves(fun(*args))])
    finally:
        threads.set_num_threads(None)
    assert found[0] == found[1] == found[2]


def same(got: np.ndarray, want: np.ndarray, rtol: float) -> None:
    """AssertionError unless the arrays agree: integers exactly, other numbers to `rtol`."""
    if want.dtype.kind in "fcV":
        np.testing.assert_allclose(got.astype(np.complex128), want.astype(np.complex128), rtol=rtol, atol=1e-6)
    else:
        np.testing.assert_array_equal(got, want)


def kernels(stages: Stages) -> list[str]:
    """The kinds and roots of a program's groups, in order."""
    return [f"{g.kind}: {' '.join(e.primitive.name for e in g.roots)}" for g in stages.fused.groups]
