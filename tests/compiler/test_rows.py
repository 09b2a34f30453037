"""Rows of accumulators in one vector: loops before and after, side by side, and what they compute."""

from __future__ import annotations

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler.ir.interpret import run
from anima.compiler.ir.loops import Buffer, Kernel, Local, Program, Store
from anima.compiler.ir.show_loops import check, show
from anima.compiler.storage.rows import hold_rows
from tests.compiler.loop_programs import at, c, f, i, ix, k, serial, vector, x_at
from tests.compiler.test_emit import compiled


def columns(rows: int, n: int, limit: int = 0) -> Program:
    """The sums of the columns of x: f32[rows, n]."""
    add = Store("row", at("j"), f("add", x_at(at("j"), "row"), x_at(ix("add", ix("mul", i("i"), c(n)), i("j")))))
    kernel = Kernel("columns", (Local("row", "f32", n), vector("z", n, Store("row", at("z"), k(0.0))),
                                serial("i", rows, vector("j", n - limit, add)),
                                vector("o", n, Store("y", at("o"), x_at(at("o"), "row")))))
    return Program("p", (Buffer("x", "f32", rows * n, "input"), Buffer("y", "f32", n, "output")), (kernel,))


def test_row_is_held_through_the_loop_that_adds_to_it() -> None:
    before = columns(3, 5)
    after = Program("p", before.buffers, hold_rows(before.body))
    check(after)
    assert show(after).split("\n", 1)[1] == """\
  kernel columns:
    local row: f32[5] in lanes
    whole(8) z < 5:
      row[z] = 0.0
    for i < 3:
      whole(8) j < 5:
        row[j] = row[j] + x[i * 5 + j]
    whole(8) o < 5:
      y[o] = row[o]"""


@pytest.mark.parametrize("n", [2, 3, 8, 10, 33, 64])
def test_rows_in_vectors_compute_the_same(n: int) -> None:
    before = columns(7, n)
    after = Program("p", before.buffers, hold_rows(before.body))
    x = np.random.default_rng(n).normal(size=7 * n).astype(np.float32)
    np.testing.assert_array_equal(compiled(after, x)[0], run(before, [x])[0])


@pytest.mark.parametrize("program", [columns(3, 65), columns(3, 5, limit=1)], ids=["too long", "a part of the row"])
def test_rows_that_stay(program: Program) -> None:
    assert hold_rows(program.body) == program.body


def test_small_product_in_a_loop() -> None:
    a = (np.random.default_rng(0).normal(size=(10, 10)) / 10).astype(np.float32)
    fun = anima.jit(lambda x: lax.fori_loop(0, 5, lambda _, x: x @ a + 1.0, x))
    assert "in lanes" in fun.lower(a).loops
    x = jnp.asarray(a)
    for _ in range(5):
        x = x @ a + 1.0
    np.testing.assert_allclose(fun(a), x, rtol=1e-5)
