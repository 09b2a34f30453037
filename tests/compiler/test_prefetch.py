"""What is fetched before it is used, in print; that this reads nothing beyond what there is, and changes no number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.compiler.driver import to_loops, to_text
from anima.compiler.ir.interpret import run
from anima.compiler.ir.loops import INDEX, Expr, For, Let, Prefetch, Program, Store, statements
from anima.compiler.ir.show_loops import check, text
from anima.compiler.machine.native import host
from anima.compiler.scheduling.prefetch import prefetch
from tests.compiler.loop_programs import at, c, one_kernel, op, serial, x_at
from tests.compiler.stages import closed

RNG = np.random.default_rng(0)


def before(fun: Any, *args: np.ndarray) -> Program:
    """The loops of a function, with lanes, as they come to the pass."""
    result: Any = closed(fun, *args)
    for step in (*to_loops("f", (), host()), *to_text(host())):
        if step.name == "prefetch":
            break
        result = step.run(result)
    return result


def fetched(fun: Any, *args: np.ndarray) -> list[str]:
    """What the loops of a function fetch early, after checking that they are right and compute what they did."""
    old = before(fun, *args)
    new = prefetch(old, host())
    check(new)
    for got, want in zip(run(new, args), run(old, args), strict=True):
        np.testing.assert_array_equal(got, want)
    return [text(s.load) for s in statements(*new.body) if isinstance(s, Prefetch)]


def integers(high: int, *shape: int) -> np.ndarray:
    return RNG.integers(-high, high, shape).astype(np.int32)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def test_the_index_of_a_row_to_come_is_read_in_bounds() -> None:
    old = before(lambda t, i: t.at[i].get(mode="promise_in_bounds"), normal(90, 1024), integers(1, 9))
    new = prefetch(old, host())
    early = [f"{s.name} = {text(s.value)}" for s in statements(*new.body) if isinstance(s, Let) and "ahead" in s.name]
    assert "in1[min(i1 + 2, 8)]" in early[0]
    assert [text(s.load) for s in statements(*new.body) if isinstance(s, Prefetch)] == ["in0[i2 + n8.ahead * 1024]"]


@pytest.mark.parametrize(("fun", "count"), [
    (lambda t, i: t[i], 1),
    (lambda t, i: t[i[:, :5]].sum(1), 5),                  # written out
    (lambda t, i: t[i].sum(1), 1),
    (lambda t, i: t[i[::-1]].sum(1), 1),
    (lambda t, i: t[i[:, ::-1]].sum(1), 1),                # ids are read backwards
    (lambda t, i: (t[i] * t[i + 1]).sum(1), 2),
    (lambda t, i: t[abs(i), i % 40].sum(), 0),             # no rows
    (lambda t, i: t[3:20].sum(0) + t[0, i[0, 0]], 0),
])
def test_rows_that_are_looked_up(fun: Any, count: int) -> None:
    assert len(fetched(fun, normal(2000, 48), integers(2000, 6, 9))) == count


def test_what_is_not_looked_up_ahead_of_time() -> None:
    table, ids = normal(2000, 48), integers(2000, 6, 9)
    assert not fetched(lambda t, i: t[i].sum(1), normal(5, 8), integers(5, 6, 9))     # near anyway
    assert not fetched(lambda t, i: anima.lax.fori_loop(0, 9, lambda k, t: t.at[k].set(t[i[0, k]]), t), table, ids)


@pytest.mark.parametrize(("place", "count"), [
    (at("i"), 1), (at("i", -3, 26), 1),
    (op("rem", at("i"), c(5), dtype=INDEX), 0),            # not evenly
    (op("cast", x_at(at("i"), "p", "i32"), dtype=INDEX), 0),   # the place of a place might not exist
])
def test_places_that_are_foreseen(place: Expr, count: int) -> None:
    row = op("cast", x_at(place, "q", "i32"), dtype=INDEX)
    loop = serial("i", 9, Let("n", row), For("j", c(8), (Store("y", at("i", 8, "j"), x_at(at("n", 8, "j"))),),
                                             "vector", 8))
    old = one_kernel("rows", {"x": ("f32", 80_000), "p": ("i32", 9), "q": ("i32", 27)}, {"y": ("f32", 72)}, loop)
    new = prefetch(old, host())
    check(new)
    args = normal(80_000), np.arange(9, dtype=np.int32), np.arange(27, dtype=np.int32) * 300
    np.testing.assert_array_equal(run(new, args)[0], run(old, args)[0])
    assert sum(isinstance(s, Prefetch) for s in statements(*new.body)) == count


@pytest.mark.parametrize("width", [1, 15, 16, 17, 63, 64, 65, 127, 129, 300])
@pytest.mark.parametrize("bag", [1, 4, 8, 9, 31])
def test_sums_of_rows(width: int, bag: int) -> None:
    table, ids = np.rint(9 * normal(400_000 // width, width)), integers(400_000 // width, 37, bag)
    np.testing.assert_array_equal(anima.jit(lambda t, i: t[i].sum(1))(table, ids), table[ids].sum(1))
    np.testing.assert_array_equal(anima.jit(lambda t, i: t[i])(table, ids), table[ids])


@pytest.mark.parametrize("dtype", [np.float64, np.float16, jnp.bfloat16, np.int8, bool, np.complex64])
def test_rows_of_other_types(dtype: Any) -> None:
    with anima.enable_x64(True):
        table, ids = (normal(9000, 130) > 0).astype(dtype), integers(9000, 40, 11)
        np.testing.assert_array_equal(anima.jit(lambda t, i: t[i])(table, ids), table[ids])
        got = anima.jit(lambda t, i: t[i].sum(1))(table, ids)
        np.testing.assert_array_equal(got, np.asarray(table[ids]).sum(1, dtype=got.dtype))
