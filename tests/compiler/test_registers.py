"""Small arrays in loops become variables: the loops before and after, side by side, and what they compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler.ir.interpret import run
from anima.compiler.ir.loops import (
    INDEX,
    Buffer,
    Expr,
    For,
    If,
    Kernel,
    Load,
    Local,
    Mutable,
    NamedValue,
    Program,
    Store,
    While,
    affine,
    statements,
    statements_outside,
)
from anima.compiler.ir.show_loops import check, show
from anima.compiler.machine.target import target_of
from anima.compiler.storage.accesses import Block, Covered
from anima.compiler.storage.registers import registers
from tests.compiler.loop_programs import at, c, f, ix, k, op, serial, vector
from tests.compiler.test_emit import compiled


def program(*body: object, temps: tuple[Buffer, ...] = (), size: int = 2) -> Program:
    buffers = (Buffer("x", "f32", size, "input"), Buffer("y", "f32", size, "output"), *temps)
    return Program("p", buffers, body)  # type: ignore[arg-type]


def temp(name: str, size: int = 2) -> Buffer:
    return Buffer(name, "f32", size, "temp")


def text(p: Program) -> str:
    check(p)
    return show(p).split("\n", 1)[1]


def load(buffer: str, *index: str | int) -> Load:
    return Load(buffer, at(*index), "f32")


HALVE = Kernel("halve", (vector("i", 2, Store("y", at("i"), f("mul", load("y", "i"), k(0.5)))),))
SWAP = Kernel("swap", (Store("t", c(0), load("y", 1)), Store("t", c(1), load("y", 0)), Store("y", c(0), load("t", 0)),
                       Store("y", c(1), f("mul", load("t", 1), load("t", 0)))))
COPY = Kernel("copy", (vector("i", 2, Store("y", at("i"), load("x", "i"))),))


FILL = Kernel("fill", (vector("i", 2, Store("t", at("i"), k(1.0))),))
FIRST = Kernel("first", (Store("t", c(0), k(1.0)),))
SUM = Kernel("sum", (vector("i", 2, Store("y", at("i"), load("t", "i"))),))
LESS = op("lt", Load("x", c(0), "f32"), k(0.0), dtype="bool")
SOME = op("cast", Load("x", c(0), "f32"), dtype="index")
BOTH, NONE = {0, 1}, set[int]()


@pytest.mark.parametrize(("dtype", "count", "step", "fits"), [
    ("f64", 50, 4, False), ("f64", 50, -4, False), ("c128", 20, 4, False),  # 64 lanes of 8 bytes, 32 of 16
    ("f64", 32, 4, True), ("f32", 50, 4, True),                             # 256 bytes
    ("f64", 50, 1, True), ("f64", 50, -1, True),                            # side by side
])
def test_elements_that_lie_apart_are_put_together_to_short_vectors(dtype: str, count: int, step: int, fits: bool,
                                                                   ) -> None:
    """A loop does not run as a whole where its lanes are many registers of what lies apart in memory."""
    index = affine(0 if step > 0 else -step * (count - 1), (NamedValue("i", INDEX), step))
    kernel = Kernel("copy", (vector("i", count, Store("y", at("i"), Load("x", index, dtype))),))
    size = Block(kernel).sizes["lanes"]
    assert (size is not None) == fits


@pytest.mark.parametrize(("body", "exposed", "written"), [
    ((FILL, SUM), NONE, BOTH), ((SUM, FILL), BOTH, BOTH), ((FIRST, SUM), {1}, {0}), ((FIRST, FILL, SUM), NONE, BOTH),
    ((If(LESS, (FILL,), (FILL,)), SUM), NONE, BOTH), ((If(LESS, (FILL,)), SUM), BOTH, NONE),
    ((If(LESS, (), (FILL,)), SUM), BOTH, NONE), ((If(LESS, (FILL,), (FIRST,)), SUM), {1}, {0}),
    ((FILL, If(LESS, (SUM,), (FIRST,)), SUM), NONE, BOTH), ((If(LESS, (FILL, SUM), (SUM,)),), BOTH, NONE),
    ((serial("n", 3, FILL), SUM), NONE, BOTH), ((serial("n", 0, FILL), SUM), BOTH, NONE),
    ((For("n", SOME, (FILL,)), SUM), BOTH, NONE), ((serial("n", 3, SUM, FILL),), BOTH, BOTH),
    ((serial("n", 3, serial("m", 0, FILL), SUM),), BOTH, NONE),
    ((While((FILL,), LESS, ()), SUM), NONE, BOTH), ((While((), LESS, (FILL,)), SUM), BOTH, NONE),
    ((While((SUM,), LESS, (FILL,)),), BOTH, NONE), ((While((FIRST,), LESS, (FILL, SUM)), SUM), {1}, {0}),
    ((Kernel("k", (For("n", SOME, (Store("t", c(0), k(1.0)),)),)), SUM), BOTH, NONE),
    ((Kernel("k", (If(LESS, (Store("t", c(0), k(1.0)),)),)), SUM), BOTH, NONE),
    ((Kernel("k", (serial("n", 2, Store("t", at("n"), load("t", "n"))),)), SUM), BOTH, BOTH),
    ((Kernel("k", (serial("n", 2, Store("t", at("n"), k(1.0)), Store("y", at("n"), load("t", "n"))),)),), NONE, BOTH),
])
def test_what_is_read_before_it_is_written(body: Any, exposed: set[int], written: set[int]) -> None:
    """Of a buffer of two elements, by statements some of which may not happen."""
    blocks = {id(s): Block(s) for s in statements_outside(body)}
    found = Covered(blocks, {"t"})
    assert {i for _, i in found.block(body, frozenset())} == written
    assert {i for _, i in found.exposed} == exposed


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("branch", ["then", "else"])
@pytest.mark.parametrize("outer", ["scan", "while"])
def test_small_arrays_that_only_some_steps_write(outer: str, branch: str, size: int) -> None:
    def step(s: Any, k: Any) -> Any:
        t, y = s
        new = jnp.arange(size) * 0.5 + k
        t = lax.cond(k % 3 == (1 if branch == "then" else 0), *((lambda t: new, lambda t: t) if branch == "then" else
                                                              (lambda t: t, lambda t: new)), t)
        return t, y * 0.5 + t

    def f(x: Any) -> Any:
        first = (x, x * 0)
        if outer == "scan":
            return lax.scan(lambda s, k: (step(s, k), s[0].sum()), first, jnp.arange(7))
        return lax.while_loop(lambda s: s[2] < 7, lambda s: (*step(s[:2], s[2]), s[2] + 1), (*first, 0))

    x = np.arange(size, dtype=np.float32) + 10
    with anima.disable_jit():
        want = f(jnp.asarray(x))
    anima.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), anima.jit(f)(x), want)


@pytest.mark.parametrize("features, most", [("+avx512f,+avx512bw,+avx512dq,+avx512vl", 64), ("+avx2", 40), ("", 20)])
def test_arrays_that_take_many_registers_stay_in_memory(features: str, most: int) -> None:
    """Of 64-bit numbers, in vectors of 64, 32 and 16 bytes."""
    target = target_of("x86_64-unknown-linux-gnu", "", features)
    for size, held in ((most, True), (most + 1, False)):
        y = Load("y", at("i"), "f64")
        halve = Kernel("halve", (vector("i", size, Store("y", at("i"), op("mul", y, k(0.5, "f64"), dtype="f64"))),))
        before = Program("p", (Buffer("y", "f64", size, "output"),), (serial("n", 10, halve),))
        assert any(isinstance(s, Local) for s in statements(*registers(before, target).body)) == held


def test_carry_computed_alike_is_one_vector() -> None:
    before = program(COPY, serial("n", 10, HALVE))
    assert text(before) == """\
  kernel copy:
    vector i < 2:
      y[i] = x[i]
  for n < 10:
    kernel halve:
      vector i < 2:
        y[i] = y[i] * 0.5"""
    after = registers(before)
    assert text(after) == """\
  kernel copy:
    vector i < 2:
      y[i] = x[i]
  local y.r: f32[2] in lanes
  kernel hold:
    whole(2) c1 < 2:
      y.r[c1] = y[c1]
  for n < 10:
    kernel halve:
      whole(2) i < 2:
        y.r[i] = y.r[i] * 0.5
  kernel hold:
    whole(2) c2 < 2:
      y[c2] = y.r[c2]"""
    x = np.array([3.0, -8.0], np.float32)
    np.testing.assert_array_equal(run(after, [x])[0], run(before, [x])[0])
    np.testing.assert_array_equal(compiled(after, x)[0], run(before, [x])[0])


def test_elements_used_one_by_one_are_single_values() -> None:
    """t is known to one iteration only."""
    before = program(COPY, serial("n", 3, SWAP), temps=(temp("t"),))
    after = registers(before)
    assert text(after) == """\
  kernel copy:
    vector i < 2:
      y[i] = x[i]
  local y.r: f32[2] in elements
  kernel hold:
    unrolled c1 < 2:
      y.r[c1] = y[c1]
  for n < 3:
    local t: f32[2] in elements
    kernel swap:
      t[0] = y.r[1]
      t[1] = y.r[0]
      y.r[0] = t[0]
      y.r[1] = t[1] * t[0]
  kernel hold:
    unrolled c2 < 2:
      y[c2] = y.r[c2]"""
    assert [b.name for b in after.buffers] == ["x", "y"]
    x = np.array([0.1, -0.2], np.float32)
    np.testing.assert_array_equal(run(after, [x])[0], run(before, [x])[0])
    np.testing.assert_array_equal(compiled(after, x)[0], run(before, [x])[0])


@pytest.mark.parametrize("reason, body, temps", [
    ("an index that is not constant", serial("n", 2, Store("y", at("n"), load("x", "n"))), ()),
    ("a long loop", serial("n", 10, Kernel("k", (vector("i", 100, Store("t", at("i"), k(1.0))),))), (temp("t", 100),)),
    ("a kernel with a long loop reads it",
     serial("n", 10, Kernel("k", (Store("t", c(0), k(1.0)), vector("i", 100, Store("u", at("i"), load("t", 0)))))),
     (temp("t"), temp("u", 100))),
])
def test_buffers_that_stay(reason: str, body: For, temps: tuple[Buffer, ...]) -> None:
    before = program(body, temps=temps)
    assert show(registers(before)) == show(before), reason


def test_branches_and_loops_inside() -> None:
    """A value set in one branch only, or in a loop that may not run, is carried through the other way."""
    branch = If(op("lt", load("y", 0), k(1.0), dtype="bool"), (Store("y", c(1), load("y", 0)),),
                (Store("y", c(0), k(0.25)),))
    inner = While((), op("lt", load("y", 0), k(4.0), dtype="bool"),
                  (Store("y", c(0), f("mul", load("y", 0), k(3.0))),))
    before = program(COPY, serial("n", 5, HALVE, branch, inner))
    after = registers(before)
    check(after)
    assert {s.buffer for loop in after.body if isinstance(loop, For)
            for s in statements(loop) if isinstance(s, Store)} == {"y.r"}
    for x in ([9.0, 2.0], [0.5, -3.0], [1.5, 0.0]):
        given = np.array(x, np.float32)
        np.testing.assert_array_equal(run(after, [given])[0], run(before, [given])[0])
        np.testing.assert_array_equal(compiled(after, given)[0], run(before, [given])[0])


def test_scratch_memory_is_held_too() -> None:
    kernel = Kernel("s", (Local("row", "f32", 2), vector("i", 2, Store("row", at("i"), load("y", "i"))),
                          vector("i2", 2, Store("y", at("i2"), f("add", load("row", "i2"), load("row", 0))))))
    before = program(COPY, serial("n", 3, kernel))
    after = registers(before)
    assert all(s.held for s in statements(*after.body) if isinstance(s, Local))
    x = np.array([1.0, 2.0], np.float32)
    np.testing.assert_array_equal(run(after, [x])[0], run(before, [x])[0])
    np.testing.assert_array_equal(compiled(after, x)[0], run(before, [x])[0])


@pytest.mark.parametrize("source, places", [
    ("backwards", lambda i: at(i, -1, 6)),
    ("every other, around", lambda i: ix("rem", at(i, 2), c(7))),
    ("the first", lambda i: c(0)),
])
def test_lanes_move_as_the_indices_say(source: str, places: Callable[[str], Expr]) -> None:
    """y = 0.5 * y[...] + y for 7 elements: a shuffle of one vector."""
    moved = Kernel("m", (vector("i", 7, Store("t", at("i"), Load("y", places("i"), "f32"))),))
    half = f("mul", load("t", "i"), k(0.5))
    add = Kernel("a", (vector("i", 7, Store("y", at("i"), f("add", half, load("y", "i")))),))
    copy = Kernel("copy", (vector("i", 7, Store("y", at("i"), load("x", "i"))),))
    before = program(copy, serial("n", 4, moved, add), temps=(temp("t", 7),), size=7)
    after = registers(before)
    check(after)
    x = np.linspace(-1.0, 2.0, 7, dtype=np.float32)
    np.testing.assert_array_equal(run(after, [x])[0], run(before, [x])[0])
    np.testing.assert_array_equal(compiled(after, x)[0], run(before, [x])[0])


@pytest.mark.parametrize("size", [2, 3, 5, 16, 17, 40, 64])
@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "c64"])
def test_loops_over_small_arrays_of_all_sizes(size: int, dtype: str) -> None:
    kind = {"f32": np.float32, "f64": np.float64, "i32": np.int32, "c64": np.complex64}[dtype]
    x = (np.arange(size) % 5 - 1).astype(kind)

    def step(s: Any, m: Any) -> Any:
        return m.roll(s, 1) + s * s - m.roll(s, -2) + s.sum()

    def fun(s: Any) -> Any:
        return lax.fori_loop(0, 3, lambda _, s: step(s, jnp), s)

    expected = x
    for _ in range(3):
        expected = step(expected, np)
    with anima.enable_x64(dtype == "f64"):
        np.testing.assert_allclose(np.asarray(anima.jit(fun)(x)), expected, rtol=1e-5)


def test_lanes_are_a_parallel_kernel_with_memory_of_their_own() -> None:
    add = Store("t", at("i"), f("add", load("t", "i"), load("x", "n")))
    inner = serial("j", 4, Kernel("k", (vector("i", 20, add),)))
    fill = Kernel("fill", (vector("i", 20, Store("t", at("i"), k(1.0))),))
    lanes = For("n", c(2), (fill, inner, Store("y", at("n"), load("t", 19))), "parallel")
    before = program(lanes, temps=(temp("t", 20),))
    after = registers(before)
    assert text(after) == """\
  kernel lanes:
    parallel n < 2:
      local t: f32[20] in lanes
      whole(32) l1.i < 20:
        t[l1.i] = 1.0
      for j < 4:
        whole(32) l2.i < 20:
          t[l2.i] = t[l2.i] + x[n]
      y[n] = t[19]"""
    x = np.array([1.0, 2.0], np.float32)
    np.testing.assert_array_equal(run(after, [x], "backward")[0], [5.0, 9.0])
    np.testing.assert_array_equal(compiled(after, x)[0], [5.0, 9.0])


def test_lanes_that_share_memory_run_in_order() -> None:
    lanes = For("n", c(2), (Kernel("k", (Store("y", at("n"), load("t", "n")),)),), "parallel")
    after = registers(program(lanes, Kernel("z", (Store("t", c(0), k(1.0)),)), temps=(temp("t"),)))
    check(after)
    assert isinstance(after.body[0], Kernel)  # t is only read: nothing is shared that changes


def test_vmapped_while_with_vectors_is_compiled_to_lanes() -> None:
    def one(x: jnp.ndarray, stop: jnp.ndarray) -> jnp.ndarray:
        return lax.while_loop(lambda s: s[0] < stop, lambda s: (s[0] + 1, jnp.stack([s[1][1], s[1].sum() * 0.5])),
                              (jnp.int32(0), x))[1]

    xs, stops = np.arange(10.0, dtype=np.float32).reshape(5, 2), np.array([0, 3, 1, 7, 2], np.int32)
    lowered = anima.jit(anima.vmap(one)).lower(xs, stops)
    assert "kernel lanes" in lowered.loops
    expected = []
    for x, stop in zip(xs, stops, strict=True):
        for _ in range(stop):
            x = np.array([x[1], x.sum() * np.float32(0.5)], np.float32)
        expected.append(x)
    np.testing.assert_allclose(anima.jit(anima.vmap(one))(xs, stops), expected, rtol=1e-6)


def test_state_of_three_compiles_to_scalars_alone() -> None:
    def fun(s: jnp.ndarray) -> jnp.ndarray:
        return lax.fori_loop(0, 100, lambda _, s: s + 0.1 * jnp.stack([s[1], -s[0], s[2] * s[0]]), s)

    loops = anima.jit(fun).lower(np.ones(3, np.float32)).loops
    inside = loops.split("for ", 1)[1]
    assert "kernel" not in inside.split("out0[0]")[0] and "[" not in inside.split("out0[0]")[0].split(":", 1)[1]
    s = np.array([1.0, 2.0, 3.0], np.float32)
    expected = s
    for _ in range(100):
        expected = expected + np.float32(0.1) * np.array([expected[1], -expected[0], expected[2] * expected[0]])
    np.testing.assert_allclose(anima.jit(fun)(s), expected, rtol=1e-4)


def test_variables_of_programs_without_loops_are_as_they_were() -> None:
    before = program(COPY, HALVE)
    assert registers(before) is before
    assert not any(isinstance(s, Mutable) for s in statements(*before.body))


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65])
def test_bfloat16_is_moved_bit_for_bit(count: int) -> None:
    """In registers of every size, subnormals included, which the processor's own conversion to bfloat16 makes zero."""
    tiny = (np.arange(count) + 1).astype(np.uint16).view(ml_dtypes.bfloat16)
    other = (np.arange(count) + 200).astype(np.uint16).view(ml_dtypes.bfloat16)

    def run(x: Any) -> Any:
        constant = anima.lax.scan(lambda c, r: (jnp.asarray(other), None), x, None, length=3)[0]
        turned = anima.lax.scan(lambda c, r: (jnp.flip(c), c[0]), x, None, length=3)
        return constant, turned, jnp.broadcast_to(x[0], (2, count)), jnp.full((count,), x[-1]), x[::-1]

    with anima.disable_jit():
        want = anima.tree.leaves(run(jnp.asarray(tiny)))
    for got, expected in zip(anima.tree.leaves(anima.jit(run)(tiny)), want, strict=True):
        np.testing.assert_array_equal(np.asarray(got).view(np.uint16), np.asarray(expected).view(np.uint16))


FIRST = If(op("lt", at("n"), c(1), dtype="bool"), (Store("t", c(0), load("x", 0)), Store("t", c(1), load("x", 1))), ())
WRITES = {
    "nothing": (), "in a branch": (If(op("ge", at("n"), c(2), dtype="bool"), (Store("t", c(0), k(7.0)),), ()),),
    "onto what is there": (Store("t", c(0), k(7.0), "add"), Store("t", c(1), k(0.5), "mul")),
    "one of two": (Store("t", c(1), k(7.0)),),
}


@pytest.mark.parametrize("writes", WRITES.values(), ids=WRITES)
def test_what_may_not_be_written_is_as_the_last_step_left_it(writes: tuple[Any, ...]) -> None:
    """What only a loop uses is not of each step alone, if a step may read what it does not write."""
    kernel = Kernel("step", (FIRST, *writes, Store("y", c(0), load("t", 0)), Store("y", c(1), load("t", 1))))
    before = program(serial("n", 3, kernel), temps=(temp("t"),))
    after = registers(before)
    check(after)
    x = np.array([0.5, -0.25], np.float32)
    np.testing.assert_array_equal(run(after, [x])[0], run(before, [x])[0])


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
@pytest.mark.parametrize("space", [(3,), (9,), (3, 3), (3, 9), (9, 3), (3, 3, 3), (2, 3, 9), (9, 2, 3), (4, 7, 8)])
def test_loops_after_others_that_are_written_out(space: tuple[int, ...], channels: int) -> None:
    """What is known of the index of a loop that was written out says nothing of another of the same name."""
    layout = "N" + "DHW"[:len(space)] + "C", "DHW"[:len(space)] + "IO", "N" + "DHW"[:len(space)] + "C"
    x = np.arange(1.0, 1 + 2 * np.prod(space) * channels, dtype=np.float32).reshape(2, *space, channels) % 7
    w = np.arange(3.0**len(space) * channels, dtype=np.float32).reshape(*(3,) * len(space), 1, channels) % 3

    def step(x: Any) -> Any:
        return lax.conv_general_dilated(x, w, (1,) * len(space), "SAME", dimension_numbers=layout,
                                        feature_group_count=channels) % 5

    got = anima.jit(lambda x: lax.scan(lambda c, _: (step(c), None), x, None, length=3)[0])(x)
    want = jnp.asarray(x)
    with anima.disable_jit():
        for _ in range(3):
            want = step(want)
    np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


@pytest.mark.parametrize("width", range(3, 7))
def test_sums_in_lanes_over_what_is_in_registers(width: int) -> None:
    """Loops inside of a loop over lanes, whose indices say which element of a small array is read."""
    x = np.arange(72, dtype=np.int32).reshape(3, 3, 8) - 30
    w = np.arange(3 * width, dtype=np.int32).reshape(1, 3, width) - 7

    def first(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(jnp.where(x != x, x, 0) + x, jnp.where(w != w, 0, w), (3,), [(3, -1)],
                                        dimension_numbers=("NCH", "OIH", "NCH")).ravel()[0]

    def steps(x: Any, w: Any, n: Any) -> Any:
        return lax.while_loop(lambda c: (c < 3) & ((first(x, w) != 0) | (c == 0)), lambda c: c + 1, n)

    assert int(anima.jit(steps)(x, w, np.int8(0))) == (3 if int(first(x, w)) else 1)
