"""Plain nests before and after they get their order, in print; that both compute the same; what nothing may reorder."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.compiler.driver import to_loops
from anima.compiler.ir.interpret import run
from anima.compiler.ir.loops import (
    Accumulate,
    Assign,
    For,
    If,
    Kernel,
    Let,
    Local,
    Mutable,
    Program,
    Stmt,
    Store,
    statements,
)
from anima.compiler.ir.show_loops import check, show
from anima.compiler.machine.native import host
from anima.compiler.machine.target import Target
from anima.compiler.scheduling import reductions
from anima.compiler.scheduling.reductions import form
from anima.compiler.scheduling.schedule import schedule
from anima.compiler.scheduling.tile import even_block, split
from anima.compiler.storage.buffers import plan_buffers
from anima.ops import elementwise as el, reduce as rd, shape as sh
from tests.compiler.loop_programs import (
    at,
    c,
    each,
    f,
    i,
    k,
    one_kernel,
    op,
    program,
    reduce,
    serial,
    v,
    x_at,
)
from tests.compiler.stages import SMALL_CACHES, agree, closed


def ordered(stmts: Stmt, reduces: Any = None, target: Target = SMALL_CACHES) -> str:
    """The loops that a plain nest over x becomes, in print."""
    p = program("p", {"x": ("f32", 1 << 20)}, {"y": ("f32", 1 << 20)}, Kernel("k", (stmts,), reduces=reduces))
    new = schedule(p, target)
    check(new)
    return "\n".join(line[4:] for line in show(new).splitlines()[2:])


def plain(fun: Any, *args: np.ndarray) -> Program:
    """The plain nests of a function."""
    result: Any = closed(fun, *args)
    for step in to_loops("f", (), SMALL_CACHES):
        if step.name == "tile":
            break
        result = step.run(result)
    return result


ELEMENT = Store("y", at("a", 12, "b", 4, "j"), x_at(i("j")))


def test_threads_outside_vectors_inside() -> None:
    assert ordered(each("j", 9, Store("y", i("j"), k(1.0)))) == "vector j < 9:\n  y[j] = 1.0"
    assert ordered(each("a", 2, each("b", 3, each("j", 4, ELEMENT)))) == """\
parallel a < 2:
  each b < 3:
    vector j < 4:
      y[a * 12 + b * 4 + j] = x[j]"""


def test_loops_in_order_stay_in_order() -> None:
    assert ordered(serial("a", 2, each("b", 3, each("j", 4, ELEMENT)))) == """\
for a < 2:
  each b < 3:
    vector j < 4:
      y[a * 12 + b * 4 + j] = x[j]"""
    found = ordered(each("a", 2, serial("b", 3, Store("y", at("a", 3, "b"), k(1.0)))))
    assert found.startswith("parallel a < 2:\n  for b < 3")


def test_what_branches_runs_on_threads_and_not_in_vectors() -> None:
    branch = If(op("lt", x_at(i("j")), k(0.0), dtype="bool"), (Store("y", i("j"), k(1.0)),))
    assert ordered(each("j", 9, branch)).startswith("parallel j < 9:\n  if")
    assert ordered(each("a", 9, each("j", 9, branch))).startswith("parallel a < 9:\n  each j < 9:\n    if")


ADD = Accumulate("s", "add", x_at(at("i", 5, "j")))


def test_sums_over_all_are_no_work_for_threads() -> None:
    assert ordered(each("q", 1, Mutable("s", "f32", k(0.0)), reduce("i", 3, reduce("j", 5, ADD)))) == """\
parallel q < 1:
  var s: f32 = 0.0
  for i < 3:
    vector j < 5:
      s += x[i * 5 + j]"""


@pytest.mark.parametrize("bodies", [9, 15, 16, 17])
def test_forces_between_bodies_are_vectors_across_them(bodies: int) -> None:
    """Not across the three directions, with distances one by one."""
    def forces(x: Any) -> Any:
        d = x[None] - x[:, None]
        return (d / ((d**2).sum(-1, keepdims=True) + 0.1) ** 1.5).sum(1)

    x = np.random.default_rng(0).normal(size=(bodies, 3)).astype(np.float32)
    text = show(agree(forces, x).loops)
    assert "sqrt" in text.split(f"vector i4 < {bodies}:")[1] and "whole" not in text


@pytest.mark.parametrize("rows, inner, columns", [
    (8, 9, 9), (9, 9, 9), (15, 15, 15), (16, 12, 40), (13, 11, 33), (64, 9, 16), (7, 9, 9), (65, 9, 9), (9, 8, 9)])
def test_rows_of_products_are_computed_abreast(rows: int, inner: int, columns: int) -> None:
    """A few at once, those that are left over too."""
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=s).astype(np.float32) for s in ((rows, inner), (inner, columns)))

    def product(x: Any, y: Any) -> Any:
        return rd.reduce_sum(el.mul(sh.broadcast_in_dim(x, (rows, inner, columns), (0, 1)),
                                    sh.broadcast_in_dim(y, (rows, inner, columns), (1, 2))), (1,))

    loops = agree(product, x, y).loops
    abreast = 8 <= rows <= 64 and inner > 8
    count = sum(isinstance(s, Local) for s in statements(*loops.body))
    size = 4 if columns <= 32 else 2
    assert count == (size + rows % size if abreast else min(count, 1))


def test_columns() -> None:
    """What does not depend on the column is computed before the loop over columns, what does again where it is used."""
    nest = each("j", 3, Let("t", x_at(i("j"))), Mutable("s", "f32", k(0.0)), reduce("i", 9, Let("u", x_at(i("i"))), Let(
        "w", x_at(at("i", 3, "j"))), Accumulate("s", "add", f("mul", f("mul", v("u"), v("w")), v("t")))),
        Store("y", i("j"), f("add", v("s"), v("t"))))
    assert ordered(nest, ((9, 3), (0,))) == """\
local s.row: f32[3]
vector j.1 < 3:
  s.row[j.1] = 0.0
for i < 9:
  u = x[i]
  vector j.2 < 3:
    s.2 = s.row[j.2]
    t.2 = x[j.2]
    w.2 = x[i * 3 + j.2]
    s.row[j.2] = s.2 + u * w.2 * t.2
vector j.3 < 3:
  s.3 = s.row[j.3]
  t.3 = x[j.3]
  y[j.3] = s.3 + t.3"""


def test_running_totals_side_by_side() -> None:
    step = (Let("old", v("s")), Let("new", f("add", v("old"), x_at(at(3, "i", 3, "j")))), Assign("s", v("new")),
            Store("y", at(3, "i", 3, "j"), v("new")))
    first = Let("t", x_at(i("j"))), Mutable("s", "f32", v("t")), Store("y", i("j"), v("t"))
    nest = each("j", 3, *first, serial("i", 4, *step))
    assert ordered(nest, ((5, 3), (0,))) == """\
local s.row: f32[3]
vector j.1 < 3:
  t.1 = x[j.1]
  s.row[j.1] = t.1
  y[j.1] = t.1
for i < 4:
  vector j.2 < 3:
    s.2 = s.row[j.2]
    old.2 = s.2
    new.2 = old.2 + x[i * 3 + j.2 + 3]
    s.row[j.2] = new.2
    y[i * 3 + j.2 + 3] = new.2"""


def test_a_total_that_is_read_where_it_is_set_is_refused() -> None:
    nest = each("j", 3, Mutable("s", "f32", k(0.0)), Store("y", i("j"), v("s")), reduce("i", 9, Accumulate(
        "s", "add", x_at(at("i", 3, "j")))))
    with pytest.raises(AssertionError, match="'s' is read"):
        ordered(nest, ((9, 3), (0,)))


def test_blocks_and_long_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    total = (Mutable("s", "f32", k(0.0)),
             reduce("i", 100, Accumulate("s", "add", x_at(i("i")))), Store("y", c(0), v("s")))
    p = program("p", {"x": ("f32", 100)}, {"y": ("f32", 1)}, Kernel("sum", total, reduces=((100,), (0,))))
    assert show(schedule(p, SMALL_CACHES)) == """\
program p(x: f32[100]) -> (y: f32[1])
  temp part0: f32[4]
  kernel sum_blocks:
    parallel i.block < 4:
      var s: f32 = 0.0
      vector i.in < 25:
        i = i.block * 25 + i.in
        s += x[i]
      part0[i.block] = s
  kernel sum:
    var s: f32 = 0.0
    vector s.block < 4:
      s.part = part0[s.block]
      s += s.part
    y[0] = s"""
    monkeypatch.setattr(reductions, "RUN_LIMIT", 16)
    long = reduce("i", 20, Accumulate("s", "add", x_at(at("r", 20, "i"))))
    assert ordered(each("r", 2, Mutable("s", "f32", k(0.0)), long, Store("y", i("r"), v("s"))), ((2, 20), (1,))) == """\
parallel r < 2:
  var s: f32 = 0.0
  for i.block < 4:
    var s.part: f32 = 0.0
    vector i.in < 5:
      i = i.block * 5 + i.in
      s.part += x[r * 20 + i]
    s += s.part
  y[r] = s"""


@pytest.mark.parametrize("shape, axes, how", [
    ((9, 8), (1,), "unrolled"), ((9, 9), (1,), "rows"), ((9, 9), (0,), "columns"), ((9, 2, 4), (1, 2), "unrolled"),
    ((9, 9, 1), (1,), "rows"), ((9, 9, 1), (0, 2), "columns"), ((64,), (0,), "rows"), ((65,), (0,), "blocks"),
    ((7, 64), (1,), "blocks"), ((8, 64), (1,), "rows"), ((8, 65), (1,), "blocks"), ((1, 64), (0, 1), "rows"),
    ((2, 100, 3), (0, 1), "columns"), ((0, 9), (1,), "rows"), ((9, 0), (1,), "unrolled"),
])
def test_forms(shape: tuple[int, ...], axes: tuple[int, ...], how: str) -> None:
    """With room for 64 elements in a row, and 4 totals side by side."""
    assert form(shape, axes, SMALL_CACHES) == how


@pytest.mark.parametrize("shape, axes", [
    ((40, 3), (0,)), ((3, 40), (1,)), ((90, 6), (0,)), ((70,), (0,)), ((2, 40, 6), (1,)), ((5, 4, 30), (0, 2)),
    ((30, 2, 11), (0, 1)), ((12, 2, 3, 9), (0, 2))], ids=str)
@pytest.mark.parametrize("order", ["forward", "backward"])
def test_the_order_changes_nothing(shape: tuple[int, ...], axes: tuple[int, ...], order: str) -> None:
    x = np.random.default_rng(0).integers(-9, 9, shape).astype(np.float32)
    before = plain(lambda x: [sh.reduce_sum(el.mul(x, 2.0), axes), rd.reduce_max(x, axes), el.neg(x)], x)
    kinds = {s.kind for s in statements(*before.body) if isinstance(s, For)}
    assert kinds <= {"each", "reduce"}
    after = schedule(before, SMALL_CACHES)
    assert "reduce" not in {s.kind for s in statements(*after.body) if isinstance(s, For)}
    for p in (before, after):
        check(p)
    for a, b in zip(run(plan_buffers(before), [x], order), run(plan_buffers(after), [x], order), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("extent", [1, 5, 16, 17, 30, 96, 97])
@pytest.mark.parametrize("size", [1, 4, 16])
def test_blocks_cover_a_loop_once(extent: int, size: int) -> None:
    blocks, block = split(each("i", extent, Store("y", i("i"), k(1.0), op="add")), size)
    p = one_kernel("p", {}, {"y": ("f32", extent)}, each("i", extent, Store("y", i("i"), k(0.0))),
                   For(blocks.index, blocks.extent, (block,), "each"))
    assert run(p, [])[0].tolist() == [1.0] * extent


def test_even_blocks() -> None:
    assert [even_block(n, 16) for n in (7, 16, 17, 30, 90, 97, 1000)] == [7, 16, 16, 15, 15, 16, 10]
    assert [even_block(n, 64, 16) for n in (1000, 96, 160, 1024)] == [64, 48, 64, 64]


@pytest.mark.parametrize("rows", [15, 16, 17, 33, 1000, 70_001, 100_003])
@pytest.mark.parametrize("columns", range(1, 10))
def test_few_columns(rows: int, columns: int) -> None:
    x = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)
    wide = x.astype(np.float64)
    scale = 1e-5 * np.sqrt(rows)
    for name, fun in {
            "sum": lambda m, x: m.sum(x, 0), "max": lambda m, x: m.max(x, 0), "argmin": lambda m, x: m.argmin(x, 0),
            "shared": lambda m, x: m.sum(m.exp(0.1 * x[:, :1] - 1) * x, 0),
            "two": lambda m, x: m.sum(x, 0) * m.sum(x * x[:, -1:], 0),
            "steps": lambda m, x: x[1::3, -1] * 2, "product": lambda m, x: m.sin(x[:, 0]) @ x}.items():
        np.testing.assert_allclose(anima.jit(lambda x, f=fun: f(jnp, x))(x), fun(np, wide), rtol=1e-4,
                                   atol=scale * (np.abs(wide.sum(0)).max() + 1 if name == "two" else 1), err_msg=name)


def test_terms_of_totals_in_memory_are_added_four_at_a_time() -> None:
    loop = each("j", 65, Mutable("s", "f32", k(0.0)),
                reduce("a", 9, Let("t", x_at(at("a", 65, "j"))), Accumulate("s", "add", v("t"))),
                Store("y", i("j"), v("s")))
    assert ordered(loop, ((9, 65), (0,)), host()) == """\
local s.row: f32[65]
vector j.1 < 65:
  s.row[j.1] = 0.0
for a.block < 2:
  a.block0 = a.block * 4
  a.block1 = a.block * 4 + 1
  a.block2 = a.block * 4 + 2
  a.block3 = a.block * 4 + 3
  vector j.2 < 65:
    s.2 = s.row[j.2]
    t.block0.2 = x[a.block0 * 65 + j.2]
    s.3.2 = s.2 + t.block0.2
    t.block1.2 = x[a.block1 * 65 + j.2]
    s.2.2 = s.3.2 + t.block1.2
    t.block2.2 = x[a.block2 * 65 + j.2]
    s.1.2 = s.2.2 + t.block2.2
    t.block3.2 = x[a.block3 * 65 + j.2]
    s.row[j.2] = s.1.2 + t.block3.2
for a.rest < 1:
  a.rest0 = a.rest + 8
  vector j.3 < 65:
    s.3 = s.row[j.3]
    t.rest0.3 = x[a.rest0 * 65 + j.3]
    s.row[j.3] = s.3 + t.rest0.3
vector j.4 < 65:
  s.4 = s.row[j.4]
  y[j.4] = s.4"""


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 10, 11, 12, 40])
@pytest.mark.parametrize("columns", [63, 64, 65, 66, 129])
def test_sums_of_columns_add_up_in_order(rows: int, columns: int) -> None:
    x = np.random.default_rng(0).normal(size=(rows, columns)).astype(np.float32)
    total = np.zeros(columns, np.float32)
    for row in x:
        total += row
    np.testing.assert_array_equal(anima.jit(lambda x: x.sum(0))(x), total)
    assert np.allclose(anima.jit(lambda x: x.var(0) + (x * x).sum(0))(x), x.var(0) + (x * x).sum(0), rtol=1e-4)
    np.testing.assert_array_equal(anima.jit(lambda x: x.max(0))(x), x.max(0))


@pytest.mark.parametrize("rows", [8, 9, 10, 11, 12, 40, 64, 66])
@pytest.mark.parametrize("length", [17, 24, 63, 64, 65, 200])
def test_rows_by_one_vector_have_the_same_bits_each(rows: int, length: int) -> None:
    """Several at once read it once, where all are among as many."""
    rng = np.random.default_rng(length)
    m, v = rng.normal(size=(rows, length)).astype(np.float32), rng.normal(size=length).astype(np.float32)
    m[::2] = m[0]
    product = anima.jit(lambda m, v: jnp.tanh((m * v).sum(1)))
    got = product(m, v)
    np.testing.assert_allclose(got, np.tanh(m.astype(float) @ v), 2e-5, 2e-5)
    assert len(set(np.asarray(got[::2]).tolist())) == 1
    text = anima.jit(lambda m, v: (m * v).sum(1)).lower(m, v).loops
    assert ("var" in text) and (text.count("var s") == (4 if rows % 4 == 0 else 3 if rows % 3 == 0 else 1))


def test_rows_that_share_nothing_are_summed_one_by_one() -> None:
    x = np.ones((64, 64), np.float32)
    for fun in (lambda x: x.sum(1), lambda x: (x * x).sum(1), lambda x: jnp.abs(x).max(1)):
        assert anima.jit(fun).lower(x).loops.count("var s") == 1
    total = anima.jit(lambda x, v: (x * v).sum(1) + (x * x * v).sum(1) + 1)
    np.testing.assert_allclose(total(x, x[0]), np.full(64, 129, np.float32))


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int32", "uint8", "complex64", "bool"])
def test_products_of_rows_of_all_types(dtype: str) -> None:
    with anima.enable_x64():
        rng = np.random.default_rng(0)
        m, v = (jnp.asarray(rng.integers(0, 3, shape)).astype(dtype) for shape in ((12, 20), (20,)))
        got = anima.jit(lambda m, v: (m * v).sum(1))(m, v)
        with anima.disable_jit():
            want = (m * v).sum(1)
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
        scan = anima.jit(lambda m, v: anima.lax.fori_loop(0, 3, lambda _, v: (m * v).max(1), v))
        np.testing.assert_array_equal(scan(m[:, :12], v[:12]), scan(m[:, :12], v[:12]))
