"""Loops to loops: widths, tiles, grains; what changes, what must not, and that programs still compute the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from anima.compiler.ir.affine import injective, steps
from anima.compiler.ir.interpret import run
from anima.compiler.ir.loops import Accumulate, Assign, Const, For, If, Let, Local, Mutable, Program, Store, walk
from anima.compiler.ir.show_loops import check, show
from anima.compiler.machine import native
from anima.compiler.machine.target import Target
from anima.compiler.scheduling.parallelize import parallelize
from anima.compiler.scheduling.schedule import schedule
from anima.compiler.scheduling.tile import tile
from anima.compiler.scheduling.vectorize import fits, vectorize
from anima.runtime.executable import compile_program
from tests.compiler.loop_programs import (
    at,
    axpy,
    c,
    copy,
    each,
    f,
    full_sum,
    i,
    ix,
    k,
    one_kernel,
    op,
    parallel,
    serial,
    softmax,
    v,
    vector,
    x_at,
)

HOST = native.host()
WIDE = replace(HOST, vector_bytes=64, features="+avx512f,+avx2,+fma")
SMALL = replace(HOST, vector_bytes=32, features="+avx2,+fma")


def loops(p: Program) -> dict[str, For]:
    return {node.index: node for node in walk(*p.body) if isinstance(node, For)}


def widths(p: Program, target: Target = WIDE) -> dict[str, tuple[str, int]]:
    return {name: (loop.kind, loop.width) for name, loop in loops(vectorize(p, target)).items()}


# --- vectorize ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype, lanes", (("f32", 16), ("f64", 8), ("i8", 64), ("bool", 64), ("f16", 32), ("i32", 16),
                                          ("c64", 16), ("c128", 8)))
def test_width_follows_the_type(dtype, lanes):
    assert widths(copy(1000, dtype)) == {"j": ("vector", lanes)}
    assert widths(copy(1000, dtype), SMALL) == {"j": ("vector", lanes // 2)}


def test_width_follows_the_widest_type():
    p = one_kernel("mixed", {"x": ("i8", 100), "y": ("f64", 100)}, {"z": ("bool", 100)},
                   vector("j", 100, Store("z", i("j"), op("lt", op("cast", x_at(i("j"), dtype="i8"), dtype="f64"),
                                                          x_at(i("j"), "y", "f64"), dtype="bool"))))
    assert widths(p)["j"] == ("vector", 8)
    halves = one_kernel("halves", {"x": ("bf16", 100)}, {"y": ("bf16", 100)},
                        vector("j", 100, Store("y", i("j"), op("exp", x_at(i("j"), dtype="bf16"), dtype="bf16"))))
    assert widths(halves)["j"] == ("vector", 16)


@pytest.mark.parametrize("n, wide, small", ((1, ("serial", 1), ("serial", 1)), (2, ("vector", 2), ("vector", 2)),
                                            (3, ("vector", 4), ("vector", 2)), (10, ("vector", 16), ("vector", 8)),
                                            (16, ("vector", 16), ("vector", 8)), (100, ("vector", 16), ("vector", 8))))
def test_width_follows_the_extent(n, wide, small):
    """With masks the vector may be longer than the loop, without it may not."""
    assert widths(copy(n))["j"] == wide
    assert widths(copy(n), SMALL)["j"] == small


BRANCH = If(op("lt", x_at(i("j")), k(0.0), dtype="bool"), (Store("y", i("j"), k(1.0)),))
REFUSED = {
    "a branch that differs between lanes": vector("j", 64, BRANCH),
    "an inner loop that differs between lanes": vector(
        "j", 64, Mutable("s", "f32", k(0.0)), serial("n", i("j"), Accumulate("s", "add", x_at(i("n")))),
        Store("y", i("j"), v("s"))),
    "scratch memory": vector("j", 64, Local("t", "f32", 4), Store("y", i("j"), k(1.0))),
    "memory apart, at places that differ between lanes": vector(
        "j", 64, Local("t", "f32", 64, "apart"), Store("t", i("j"), k(1.0)), Store("y", i("j"), x_at(c(0), "t"))),
    "an assignment to a variable outside": vector("j", 64, Assign("s", x_at(i("j")))),
    "one element for all": vector("j", 64, Store("y", c(0), x_at(i("j")))),
    "a branch by what only some lanes have set": vector(
        "j", 64, Store("y", i("j"), k(1.0)),
        If(op("lt", x_at(c(5), "y"), k(0.5), dtype="bool"), (Store("y", i("j"), k(2.0)),))),
    "a branch by what was made of what lanes have set": vector(
        "j", 64, Store("y", i("j"), k(1.0)), Let("a", x_at(c(5), "y")), Let("b", f("add", v("a"), k(1.0))),
        If(op("lt", v("b"), k(0.5), dtype="bool"), (Store("y", i("j"), k(2.0)),))),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_run_in_lanes_becomes_serial(what):
    loop = REFUSED[what]
    assert not fits(loop)
    assert widths(one_kernel("refused", {"x": ("f32", 64)}, {"y": ("f32", 64)}, loop))["j"] == ("serial", 1)


def test_control_that_is_the_same_in_all_lanes_is_fine():
    loop = vector("j", 64, Mutable("s", "f32", k(0.0)),
                  serial("n", 5, If(op("lt", i("n"), c(3), dtype="bool"),
                                    (Assign("s", f("add", v("s"), x_at(i("j")))),))),
                  Store("y", i("j"), v("s")))
    assert fits(loop)


# --- tile --------------------------------------------------------------------------------------


def transpose(rows: int, columns: int) -> Program:
    """y[j, i] = x[i, j] + 1, x of shape (rows, columns)."""
    value = f("add", x_at(at("i", columns, "j")), k(1.0))
    return one_kernel("transpose", {"x": ("f32", rows * columns)}, {"y": ("f32", rows * columns)},
                      each("j", columns, each("i", rows, Store("y", at("j", rows, "i"), value))))


def test_tiles_look_like_this():
    p = schedule(tile(transpose(512, 128), WIDE), WIDE)
    outer = p.body[0].body[0]
    nest = [outer.index, outer.body[0].index, outer.body[0].body[0].index]
    assert nest == ["j.block", "i.block", "j.in"]
    assert (outer.kind, outer.extent) == ("parallel", Const(2, "index"))
    assert "vector i.in < 64" in show(p)


@pytest.mark.parametrize("rows, columns", ((512, 128), (515, 129), (100, 101), (17, 2000), (2000, 17), (1, 9000),
                                           (15, 640), (16, 640), (640, 19), (640, 33)))
def test_tiles_compute_the_same(rows, columns):
    p = transpose(rows, columns)
    assert tile(p, HOST) != p
    p = schedule(tile(p, HOST), HOST)
    check(p)
    x = np.arange(rows * columns, dtype=np.float32)
    np.testing.assert_array_equal(compile_program(p)([x])[0].reshape(columns, rows), x.reshape(rows, columns).T + 1)


def test_no_tiles_where_they_do_not_pay_or_nothing_says_that_they_are_allowed():
    untouched = [transpose(20, 20), axpy(100_000), softmax(100, 1000), full_sum(100_000)]
    # Reads what it writes elsewhere.
    untouched.append(one_kernel("shift", {"x": ("f32", 4)}, {"y": ("f32", 1 << 16)}, serial("i", 255, vector(
        "j", 256, Store("y", at("j", 256, "i"), x_at(at(1, "j", 256, "i"), "y"))))))
    # Stores elements several times: the last iteration must win.
    untouched.append(one_kernel("again", {"x": ("f32", 1 << 16)}, {"y": ("f32", 256)}, serial("i", 256, vector(
        "j", 256, Store("y", i("j"), x_at(at("j", 256, "i")))))))
    for p in untouched:
        assert tile(p, HOST) is p


# --- parallelize -------------------------------------------------------------------------------


def test_small_work_stays_on_one_thread():
    assert loops(parallelize(vectorize(softmax(4, 100), WIDE)))["i"].kind == "serial"
    assert loops(parallelize(vectorize(softmax(4096, 1000), WIDE)))["i"].kind == "parallel"


def test_grain_is_a_piece_of_work():
    few, many = (loops(parallelize(vectorize(softmax(4096, n), WIDE)))["i"].grain for n in (1000, 100))
    assert many > few >= 1


@pytest.mark.parametrize("n", (1_000_000, 999_983, 300_000))
def test_a_lone_vector_loop_is_cut_into_blocks(n):
    p = parallelize(vectorize(axpy(n), WIDE))
    check(p)
    found = loops(p)
    assert set(found) == {"j.block", "j.in"}
    assert found["j.block"].kind == "parallel" and found["j.in"].kind == "vector"
    x = np.arange(n, dtype=np.float32)
    np.testing.assert_array_equal(compile_program(axpy(n))([x, x])[0], x * np.float32(3.5))


def few_rows(rows: int, middle: int, n: int) -> Program:
    value = f("exp", x_at(at("i", middle * n, "q", n, "j")))
    return one_kernel("few", {"x": ("f32", rows * middle * n)}, {"y": ("f32", rows * middle * n)},
                      parallel("i", rows, Let("o", at("i", middle)), each("q", middle, vector(
                          "j", n, Store("y", at("i", middle * n, "q", n, "j"), value)))))


def test_few_long_iterations_are_split_further():
    inner = few_rows(3, 500, 100)
    found = loops(parallelize(vectorize(inner, WIDE)))
    assert found["i.q"].extent == Const(1500, "index") and found["i.q"].kind == "parallel"
    rows = one_kernel("rows", {"x": ("f32", 2_000_002)}, {"y": ("f32", 2_000_002)}, parallel("i", 2, vector(
        "j", 1_000_001, Store("y", at("i", 1_000_001, "j"), f("exp", x_at(at("i", 1_000_001, "j")))))))
    found = loops(parallelize(vectorize(rows, WIDE)))
    assert set(found) == {"i.j.block", "j.in"}
    for p in (inner, rows):
        check(parallelize(vectorize(p, WIDE)))
        [buffer] = p.with_role("input")
        x = np.linspace(-1, 1, buffer.size, dtype=np.float32)
        np.testing.assert_allclose(compile_program(p)([x])[0], np.exp(x), rtol=1e-6)
    unequal = one_kernel("scan", {"x": ("f32", 3)}, {"y": ("f32", 3000)}, parallel("i", 3, serial(
        "q", 999, Store("y", at(1, "i", 1000, "q"), f("exp", x_at(at("i", 1000, "q"), "y"))))))
    assert set(loops(parallelize(unequal))) == {"i", "q"}


def test_a_reduction_is_not_cut():
    p = one_kernel("max", {"x": ("f32", 1_000_000)}, {"y": ("f32", 1)}, Mutable("m", "f32", k(-np.inf)),
                   vector("j", 1_000_000, Accumulate("m", "max", x_at(i("j")))), Store("y", c(0), v("m")))
    assert parallelize(vectorize(p, WIDE)) == vectorize(p, WIDE)


@pytest.mark.parametrize("p", (axpy(40), softmax(3, 37), full_sum(300, block=64), transpose(9, 5)),
                         ids=lambda p: p.name)
def test_passes_keep_the_meaning(p):
    """The loop interpreter runs the program before and after all passes."""
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(b.size).astype(np.float32) for b in p.with_role("input")]
    after = parallelize(vectorize(schedule(tile(p, WIDE), WIDE), WIDE))
    check(after)
    for before_value, after_value in zip(run(p, inputs), run(after, inputs), strict=True):
        np.testing.assert_array_equal(before_value, after_value)


# --- affine ------------------------------------------------------------------------------------


def test_coefficients():
    lets = {"r": at("i", 7, 2), "s": x_at(i("i"), dtype="i32")}
    assert steps(at(3, "i", 1024, "j"), {}) == {"i": 1024, "j": 1}
    assert steps(ix("sub", c(9), at("j", 2)), {}) == {"j": -2} and steps(c(9), {}) == {}
    assert steps(ix("mul", i("r"), c(2)), lets) == {"r": 2, "i": 14}
    assert steps(ix("rem", i("i"), c(7)), {}) == {"i": None}
    assert steps(op("cast", v("s", "i32"), dtype="index"), lets)["i"] is None


def test_injective():
    assert injective(at("i", 10, "j"), [("i", 5), ("j", 10)], {})
    assert not injective(at("i", 10, "j"), [("i", 5), ("j", 11)], {})
    assert injective(at("i", 10, "j"), [("i", 5), ("j", 3)], {})
    assert not injective(at("j"), [("i", 5), ("j", 3)], {})
    assert injective(at("j"), [("i", 1), ("j", 3)], {})
