"""Triangular systems, turned parts and exchanged rows by generated code: for several machines, in their memory."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest

from anima.compiler.ir.interpret import run
from anima.compiler.ir.loops import Buffer, Call, Program
from anima.compiler.products.substitution import MOST_ROWS
from anima.runtime.executable import compile_program
from tests.compiler.fences import Fenced
from tests.compiler.test_gemm import TARGETS

DTYPES = {"f32": np.float32, "f64": np.float64}
WAYS = list(itertools.product("LR", (0, 1), "NT", (0, 1)))


Way = tuple[str, int, str, int]  # as the arguments side, lower, trans and unit have it


def system(dtype: str, way: Way, n: int, columns: int, batch: int = 1, pad: int = 0, offset: int = 0
           ) -> tuple[Program, list[np.ndarray]]:
    """A program that solves a system, and its arguments: NaN where nothing is to be read."""
    side, lower, trans, unit = way
    rows, width = (n, columns) if side == "L" else (columns, n)
    lda, ldb = n + pad, width + pad
    sizes = [offset + (batch * count - 1) * ld + used for count, ld, used in ((n, lda, n), (rows, ldb, width))]
    call = Call("substitution", (dtype, side, lower, trans, unit, n, columns, "a", offset, lda, "b", offset, ldb, batch,
                                 n * lda, rows * ldb))
    rng = np.random.default_rng(n + columns)
    a, b = (np.full(size, np.nan, DTYPES[dtype]) for size in sizes)
    for t in range(batch):
        matrix = rng.normal(size=(n, n)) / n + 1.5 * np.eye(n)
        matrix[np.triu_indices(n, 1) if lower else np.tril_indices(n, -1)] = np.nan
        for target, value, ld in ((a, matrix, lda), (b, rng.normal(size=(rows, width)), ldb)):
            for i, row in enumerate(value):
                start = offset + (t * len(value) + i) * ld
                target[start:start + row.size] = row
    return _program(call, dtype, len(a), len(b)), [a, b]


def _program(call: Call, dtype: str, a: int, b: int) -> Program:
    buffers = (Buffer("a", dtype, a, "input"), Buffer("b0", dtype, b, "input", donated=True),
               Buffer("b", dtype, b, "output", alias="b0"))
    return Program("parts", buffers, (call,))


def agrees(program: Program, args: list[np.ndarray], target: str) -> None:
    """What is computed is what the interpreter says, and nothing else is written."""
    want = run(program, [x.copy() for x in args])[0]
    args = [x.copy() for x in args]
    compile_program(program, target=TARGETS[target])(args)
    np.testing.assert_allclose(args[1], want, rtol=0, atol=300 * np.finfo(want.dtype).eps * np.nanmax(np.abs(want)))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_systems(way: Way, dtype: str, target: str) -> None:
    for n, columns, batch in ((1, 1, 1), (2, 5, 3), (7, 50, 1), (8, 3, 2), (17, 49, 1), (33, 16, 2), (40, 97, 1)):
        agrees(*system(dtype, way, n, columns, batch, pad=3, offset=5), target)


def test_the_largest_systems() -> None:
    for dtype, way in itertools.product(DTYPES, WAYS[::3]):
        agrees(*system(dtype, way, MOST_ROWS, 20), "host")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_turned_parts(dtype: str, target: str) -> None:
    for rows, columns in ((1, 1), (3, 5), (4, 8), (17, 66), (64, 64), (130, 63)):
        lda, ldb = columns + 2, rows + 1
        a, b = np.arange(3.0 + rows * lda, dtype=DTYPES[dtype]), np.full(2 + columns * ldb, np.nan, DTYPES[dtype])
        call = Call("turn", (dtype, rows, columns, "a", 3, lda, "b", 2, ldb))
        program, args = _program(call, dtype, len(a), len(b)), [a, b]
        want = run(program, [x.copy() for x in args])[0]
        compile_program(program, target=TARGETS[target])(args)
        np.testing.assert_array_equal(b, want)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1, 3, 17, 256, 600])
def test_exchanges(columns: int, dtype: str, target: str) -> None:
    """Pivots outside of the rows, which no routine gives, touch nothing outside."""
    rows, count, lda = 9, 6, columns + 4
    pivots = np.array([99, 99, 3, 2, 9, 10**6, -5, 6], np.int32)
    b = np.arange(5.0 + rows * lda, dtype=DTYPES[dtype])
    call = Call("exchange", (dtype, count, rows, columns, "b", 5, lda, "p", 2))
    buffers = (Buffer("p", "i32", pivots.size, "input"), Buffer("b0", dtype, b.size, "input", donated=True),
               Buffer("b", dtype, b.size, "output", alias="b0"))
    want = b.copy()
    for i, pivot in enumerate(pivots[2:]):
        x, y = (want[5 + row * lda:][:columns] for row in (i, min(max(pivot - 1, i), rows - 1)))
        x[:], y[:] = y.copy(), x.copy()
    compile_program(Program("parts", buffers, (call,)), target=TARGETS[target])([pivots, b])
    np.testing.assert_array_equal(b, want)


@pytest.mark.skipif(os.name != "posix", reason="protects pages")
@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize("target", ["host", "16 bytes, no masks"])
@pytest.mark.parametrize("way", WAYS[::2], ids=str)
def test_nothing_outside_of_the_buffers_is_touched(way: Way, target: str, at_end: bool) -> None:
    for dtype, n, columns in (("f32", 5, 7), ("f64", 19, 33), ("f32", 48, 50), ("f64", 8, 1), ("f32", 33, 16)):
        program, plain = system(dtype, way, n, columns)
        fence = Fenced()
        fenced = [fence.array(x, at_end) for x in plain]
        compiled = compile_program(program, target=TARGETS[target])
        compiled(fenced)
        compiled(plain)
        np.testing.assert_array_equal(fenced[1], plain[1])
