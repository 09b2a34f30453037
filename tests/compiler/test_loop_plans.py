"""What passes over loops decide, on both sides of each number, and the loops that they then write, in print.

A change that only costs speed is seen here and nowhere else: tiles, blocks, grains, widths, looks for signals, and
the plans of products.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from anima.compiler.ir.costs import cost, extent_of
from anima.compiler.ir.loops import (
    Accumulate,
    Assign,
    Const,
    Expr,
    For,
    If,
    Kernel,
    Let,
    Mutable,
    Program,
    Stmt,
    Store,
    While,
    walk,
)
from anima.compiler.ir.show_loops import show
from anima.compiler.machine import native
from anima.compiler.products.blocking import Shape, blocking, families, vector_blocking
from anima.compiler.scheduling import parallelize as par
from anima.compiler.scheduling.interrupt import interrupt
from anima.compiler.scheduling.parallelize import parallelize
from anima.compiler.scheduling.schedule import schedule
from anima.compiler.scheduling.tile import tile
from anima.compiler.scheduling.vectorize import varying_names, vectorize
from tests.compiler.loop_programs import (
    at,
    axpy,
    c,
    collatz,
    copy,
    each,
    f,
    i,
    ix,
    k,
    one_kernel,
    op,
    parallel,
    program,
    serial,
    v,
    vector,
    x_at,
)

WIDE = replace(native.host(), vector_bytes=64, features="+avx512f,+avx2,+fma")


def printed(p: Program) -> str:
    return "\n".join(line[4:] for line in show(p).splitlines()[2:])


def loops(p: Program) -> dict[str, For]:
    return {node.index: node for node in walk(*p.body) if isinstance(node, For)}


# ---------------------------------------------------------------- widths


@pytest.mark.parametrize("dtype, itemsize", [("f32", 4), ("f64", 8), ("i8", 1), ("i16", 2), ("c64", 4), ("c128", 8)])
@pytest.mark.parametrize("vector_bytes, features", [(16, ""), (32, "+avx2"), (64, "+avx512f")])
def test_widths_of_every_length(dtype: str, itemsize: int, vector_bytes: int, features: str) -> None:
    target = replace(native.host(), vector_bytes=vector_bytes, features=features)
    most = vector_bytes // itemsize
    for n in sorted({1, *(m + d for m in (2, 4, 8, 16, 32, 64) for d in (-1, 0, 1)), 1000}):
        masked = "avx512f" in features
        fitting = [w for w in (1, 2, 4, 8, 16, 32, 64) if w <= most and (w < 2 * n if masked else w <= n)]
        loop = loops(vectorize(copy(n, dtype), target))["j"]
        assert (loop.kind, loop.width) == (("serial", 1) if fitting[-1] == 1 else ("vector", fitting[-1])), n


@pytest.mark.parametrize("value, lanes", [
    (op("cast", x_at(i("j"), dtype="i8"), dtype="u8"), 64), (op("cast", i("j"), dtype="i8"), 32),
    (op("cast", i("j"), dtype="i32"), 16), (op("lt", i("j"), c(3), dtype="bool"), 64),
    (op("neg", x_at(i("j"), dtype="f16"), dtype="f16"), 16),
    (op("bitcast", x_at(i("j"), dtype="f16"), dtype="u16"), 32),
    (x_at(i("j"), dtype="bf16"), 32), (op("real", x_at(i("j"), dtype="c128"), dtype="f64"), 8), (v("s", "f64"), 8),
    (op("select_n", v("b", "bool"), x_at(i("j"), dtype="f16"), k(1.0, "f16"), dtype="f16"), 32), (k(1, "i64"), 8),
])
def test_widths_follow_what_is_computed(value: Expr, lanes: int) -> None:
    p = one_kernel("p", {}, {}, vector("j", 1000, Store("y", i("j"), value)))
    assert loops(vectorize(p, WIDE))["j"].width == lanes


@pytest.mark.parametrize("body, varying", [
    ((Let("a", i("j")), Let("b", i("a")), Let("d", i("n"))), "ab"), ((Let("b", i("a")), Let("a", at("j", 3))), "ab"),
    ((Store("t", c(0), v("a")), Let("a", i("j")), Let("b", x_at(c(0), "t"))), "abt"),
    ((Store("t", i("j"), k(1.0)), Let("b", x_at(c(0), "t")), Let("d", x_at(c(0), "s"))), "bt"),
    ((Store("t", c(0), x_at(i("j"))), Mutable("a", "f32", x_at(c(0), "t"))), "at"),
    ((Mutable("a", "f32", k(0.0)), Assign("a", x_at(c(0), "t")), Store("t", c(0), v("b")), Let("b", i("j"))), "abt"),
    ((Mutable("a", "f32", k(0.0)), Accumulate("a", "add", x_at(i("j"))), Let("b", v("a"))), "ab"),
    ((Mutable("a", "f32", k(0.0)), Accumulate("a", "add", v("b")), Let("d", v("a"))), ""),
    ((Let("a", x_at(i("n"))), Let("b", ix("add", i("n"), i("a"))), Store("t", i("b"), v("a"))), ""),
    ((serial("q", 3, Let("a", at("q", "j")), If(v("a", "bool"), (Assign("b", v("a")),), (Let("d", v("b")),))),), "abd"),
    ((Store("t", c(0), v("b")), Let("b", x_at(c(0), "u")), Store("u", c(0), v("d")), Let("d", v("a")),
      Let("a", i("j"))), "abdtu"),
])
def test_what_differs_between_lanes(body: tuple[Stmt, ...], varying: str) -> None:
    assert varying_names(vector("j", 9, *body)) == {"j", *varying}


# ---------------------------------------------------------------- tiles


def across(rows: int, columns: int, step: int | None = None, dtype: str = "f32", *functions: str) -> Program:
    """y[j, i] = functions of x[i, j], where rows of x are `step` apart."""
    step = step or columns
    value = x_at(at("i", step, "j"), dtype=dtype)
    for name in functions:
        value = op(name, value, dtype=dtype)
    return one_kernel("t", {"x": (dtype, rows * step)}, {"y": (dtype, rows * columns)}, each(
        "j", columns, each("i", rows, Store("y", at("j", rows, "i"), value))))


@pytest.mark.parametrize("p, tiled", [
    (across(128, 64), True), (across(127, 64), False), (across(64, 64, dtype="f64"), True),  # 32 KiB
    (across(63, 64, dtype="f64"), False), (across(4096, 8, 15), False), (across(4096, 8, 16), True),  # 64 bytes
    (across(4096, 8, 7, dtype="f64"), False), (across(4096, 8, 8, dtype="f64"), True),
    (across(4096, 8, 15, dtype="u8"), False), (across(4096, 8, 16, dtype="u8"), True),  # 16 elements
    (across(8192, 2, 64), False), (across(8192, 3, 64), True),
    (one_kernel("s", {"x": ("f32", 1 << 20)}, {"y": ("f32", 1 << 20)}, serial("j", 1024, each("i", 1024, Store(
        "y", at("j", 1024, "i"), x_at(at("i", 1024, "j")))))), False),  # in this order
])
def test_tiles_where_they_pay(p: Program, tiled: bool) -> None:
    assert (tile(p, WIDE) is not p) == tiled


@pytest.mark.parametrize("step, dtype, lanes", [
    (1000, "f32", 64), (1024, "f32", 16), (256, "f32", 32), (128, "f32", 64), (512, "c64", 16), (500, "c64", 64)])
def test_tiles_have_no_more_lines_than_the_cache_holds_at_once(step: int, dtype: str, lanes: int) -> None:
    p = across(1 << 16, 64, step, dtype, *("exp", "sin", "tan"))
    assert extent_of(loops(tile(p, WIDE))["i.in"].extent) == lanes


@pytest.mark.parametrize("dtype, size, line", [("f32", 8, 16), ("f64", 4, 8), ("i16", 16, 0), ("u8", 16, 0),
                                               ("bool", 16, 0), ("c64", 0, 0)])
@pytest.mark.parametrize("length", [1 << 13, 1 << 16])
def test_tiles_are_made_of_squares_for_registers(length: int, dtype: str, size: int, line: int) -> None:
    """Of a large result squares are as large as lines, where these are vectors."""
    found = loops(vectorize(schedule(tile(across(length, 64, None, dtype), WIDE), WIDE), WIDE))
    rows, lanes = found["j.in"], found["i.in"]
    large = line and length == 1 << 16
    assert (rows.kind, rows.width, lanes.width) == (
        ("stream", line, line) if large else ("square", size, size) if size else ("each", 1, 16))
    assert not size or (extent_of(rows.extent), extent_of(lanes.extent)) == (64, 64)


@pytest.mark.parametrize("p", [
    across(1 << 16, 7), across(7, 1 << 16), across(1 << 12, 64, None, "f32", "exp", "sin", "tan"),
    one_kernel("t", {"x": ("f32", 1 << 20)}, {"y": ("f32", 1 << 20)}, each("j", 1024, each("i", 1024, Store(
        "y", at("j", 1024, "i"), x_at(at("i", 1024, "j", 2)))))),
    one_kernel("t", {"y": ("f32", 1 << 20)}, {"z": ("f32", 1 << 20)}, each("j", 1024, each("i", 1024, Store(
        "z", at("j", 1024, "i"), x_at(at("i", 1024, "j"), "z"))))),
])
def test_squares_are_not_written_for_few_rows_long_bodies_other_steps_and_what_is_stored_there(p: Program) -> None:
    assert "square" not in show(vectorize(schedule(tile(p, WIDE), WIDE), WIDE))


def test_tiles_in_print() -> None:
    p = one_kernel("deep", {"x": ("f32", 23000)}, {"y": ("f32", 23000)}, Let("n", c(7)), each("g", 2, each("j", 50, Let(
        "o", at("g", 11500)), each("q", 3, each("i", 70, Store("y", at("o", "j", 210, "q", 70, "i"), x_at(
            at("g", 11500, "q", 3500, "i", 50, "j"))))))))
    assert printed(tile(p, WIDE)) == """\
n = 7
each g < 2:
  each q < 3:
    each i.block < 2:
      each j.block < 1:
        each j.in < 50:
          j = j.block * 50 + j.in
          o = g * 11500
          each i.in < min(64, 70 - i.block * 64):
            i = i.block * 64 + i.in
            y[o + j * 210 + q * 70 + i] = x[g * 11500 + q * 3500 + i * 50 + j]"""
    assert printed(tile(across(2048, 16), WIDE)) == """\
each i.block < 32:
  each j.block < 1:
    each j.in < 16:
      j = j.block * 16 + j.in
      each i.in < 64:
        i = i.block * 64 + i.in
        y[j * 2048 + i] = x[i * 16 + j]"""


# ---------------------------------------------------------------- threads


def exponentials(n: int, kind: str = "vector") -> For:
    return For("j", c(n), (Store("y", i("j"), f("exp", x_at(i("j")))),), kind)  # type: ignore[arg-type]


def after(*body: Stmt) -> Program:
    return parallelize(one_kernel("e", {"x": ("f32", 1 << 24)}, {"y": ("f32", 1 << 24)}, *body))


ONE = (Store("y", i("j"), x_at(i("j"))),)


@pytest.mark.parametrize("kind", ["vector", "parallel"])
def test_threads_from_an_amount_of_work(kind: str) -> None:
    seen = set()
    for n in [*range(1000, 12000, 97), *range(12000, 150_000, 997)]:
        loop = replace(exponentials(n, kind), width=1 if kind == "parallel" else 16)
        work = cost(loop) if kind == "vector" else n * sum(map(cost, loop.body))
        found = loops(after(loop))
        shared = any(one.kind == "parallel" for one in found.values())
        assert shared == (work >= 25_000) and (shared or set(found) == {"j"})
        seen.add(shared)
    assert seen == {False, True}


@pytest.mark.parametrize("loop", [
    replace(exponentials(1_000_000), kind="whole", width=4), exponentials(1_000_000, "serial"),
    vector("j", 1_000_000, Accumulate("m", "max", x_at(i("j")))), replace(vector("j", 31, *10_000 * ONE), width=16),
    vector("j", i("n"), *10_000 * ONE),
])
def test_loops_for_one_thread(loop: For) -> None:
    [kernel] = after(loop).body
    assert kernel.body == (loop,) and cost(loop) > 25_000


@pytest.mark.parametrize("each", [1, 100, 3000, 5000, 40000])
def test_grains_are_a_piece_of_work(each: int) -> None:
    body = replace(exponentials(each), width=16, index="l")
    found = loops(after(For("j", c(200_000), (body,), "parallel")))["j"]
    assert found.grain == max(1, int(8000 / cost(body))) and found.kind == "parallel"


@pytest.mark.parametrize("width", [1, 4, 16])
@pytest.mark.parametrize("n", [1, 31, 32, 33, 8192, 16384, 16385, 100_003, 262_144, 300_000])
def test_blocks_of_a_lone_loop(n: int, width: int) -> None:
    loop = replace(exponentials(n), width=width)
    blocks = par._blocks(loop)
    if blocks is loop:
        assert n < 2 * width or cost(loop) < 16_000
        return
    assert n >= 2 * width and cost(loop) >= 16_000
    [lanes] = blocks.body
    size = extent_of(lanes.extent)  # type: ignore[union-attr]
    most = max(width, min(8192, int(n * 8000 / cost(loop))) // width * width)
    even = [s for s in range(width, most + 1, width) if n % s == 0 and s > most // 2]
    assert size == (even[-1] if even else most) and blocks.extent == c(-(-n // size))
    assert isinstance(lanes, For) and (isinstance(lanes.extent, Const) == (n % size == 0))
    assert (lanes.kind, lanes.width, blocks.kind) == ("vector", width, "parallel")


def rows(count: int, times: int, width: int = 1, middle: int = 1) -> For:
    """A parallel loop of `count` iterations, in each of which are `times`, in each `middle`."""
    place = at("i", times * middle, "q", middle, "j")
    return parallel("i", count, each("q", times, replace(vector("j", middle, Store("y", place, f("exp", x_at(place)))),
                                                         width=width)))


@pytest.mark.parametrize("count, times, middle, together", [
    (63, 1000, 100, True), (64, 1000, 100, False), (3, 1000, 100, True), (3, 20, 2, False), (1, 1000, 100, True),
])
def test_few_long_iterations_are_cut(count: int, times: int, middle: int, together: bool) -> None:
    found = loops(after(rows(count, times, 16, middle)))
    assert ("i.q" in found) == together
    if together:
        assert found["i.q"].extent == c(count * times)


def test_long_enough_to_be_cut() -> None:
    seen = set()
    for times in range(50, 1000, 3):
        loop = rows(4, times, 16, 100)
        seen.add(together := "i.q" in loops(after(loop)))
        assert together == (sum(map(cost, loop.body)) >= 32_000)
    assert seen == {False, True}


def test_blocks_in_print() -> None:
    assert printed(parallelize(vectorize(axpy(100_003), WIDE))) == """\
parallel j.block < 13:
  vector(16) j.in < min(8192, 100003 - j.block * 8192):
    j = j.block * 8192 + j.in
    z[j] = 2.5 * x[j] + y[j]"""
    assert printed(after(Let("a", c(1)), parallel("i", 3, Let("o", at("i", 500)), *rows(3, 500, 16, 100).body))) == """\
a = 1
parallel(grain 61) i.q < 1500:
  i = i.q / 500
  o = i * 500
  q = i.q % 500
  vector(16) j < 100:
    y[i * 50000 + q * 100 + j] = exp(x[i * 50000 + q * 100 + j])"""
    unknown = serial("m", 2, Kernel("e", (replace(exponentials(1), extent=i("n"), kind="parallel"),)))
    assert parallelize(program("e", {}, {}, unknown)).body[0] == serial("m", 2, Kernel("e", (
        replace(exponentials(1), extent=i("n"), kind="serial"),)))


# ---------------------------------------------------------------- looks for signals


def kernel(n: int, index: str = "j") -> Kernel:
    return Kernel("w", (replace(exponentials(n), index=index, body=(Store("y", i(index), f("exp", x_at(i(index)))),)),))


def counted(p: Program) -> list[str]:
    """The lines of a program that are about looks, and loops."""
    words = ("for ", "while", "ticks", "call", "stop", "if s", "if ticks", "else", "var")
    return [line[2:] for line in show(p).splitlines() if line.strip().startswith(words)]


def test_looks_outside_of_kernels() -> None:
    less = op("lt", v("s"), k(2.0), dtype="bool")
    either = If(less, (kernel(100),), (kernel(200), serial("q", 10, kernel(3))))
    p = program("many", {"x": ("f32", 2000)}, {"y": ("f32", 2000)}, serial("a", 1000, serial("b", 200, kernel(2000)),
                                                                           kernel(50)), serial("c", 10, kernel(10)),
                serial("d", i("n"), either), Mutable("s", "f32", k(0.0)),
                While((kernel(7),), less, (serial("z", 100_000, kernel(500)), either, kernel(70))))
    look = ["if ticks < 0:i64:", "  call poll()", "  ticks := 50000000:i64"]

    def after(ticks: int, indent: int = 2) -> list[str]:
        return [" " * indent + line for line in (f"ticks := ticks - {ticks}:i64", *look)]

    branches = ["if s < 2.0:", "else:", "  for q < 10:"]
    assert counted(interrupt(p)) == [
        "var ticks: i64 = 50000000:i64", "for a < 1000:", "  for b < 200:", *after(4681089), "for c < 10:",
        "for d < n:", *["  " + b for b in branches], *after(2720), "var s: f32 = 0.0", "while:",
        "  for z < 100000:", *after(5852, 4), *["  " + b for b in branches], *after(3625)]
    quick = program("quick", {}, {}, serial("a", 100, kernel(10)))
    assert interrupt(quick) == quick


def test_a_loop_looks_from_an_estimate_on() -> None:
    seen = set()
    for n in range(200, 800, 9):
        loop = serial("a", n, kernel(1000))
        looks = interrupt(program("one", {}, {}, loop)).body[-1] != loop
        seen.add(looks)
        assert looks == (cost(loop) >= 5_000_000)
    assert seen == {False, True}


def test_looks_in_kernels() -> None:
    wait = While((), op("lt", v("s"), k(2.0), dtype="bool"), (kernel(5).body[0],))
    p = program("in", {"x": ("f32", 9)}, {"y": ("f32", 9)}, kernel(3), Kernel("k", (serial("a", 2, If(
        op("lt", v("s"), k(3.0), dtype="bool"), (wait,), (replace(wait, body=(wait,)),))),)), kernel(4),
        temps={"t": ("f32", 4)})
    looks = interrupt(p)
    assert [(b.name, b.size, b.offset) for b in looks.buffers[-2:]] == [("t", 4, 0), ("stop", 2, 64)]
    assert looks.arena == 128 and p.arena == 64
    assert [show(replace(p, body=(s,), buffers=())).splitlines()[1].strip() for s in looks.body] == [
        "call watch(stop)", "kernel w:", "kernel k:", "call stopped(stop)", "kernel w:"]

    def look(number: int, ticks: int, indent: int) -> list[str]:
        name = f"ticks{number}"
        return [" " * indent + line for line in (f"{name} := {name} - {ticks}:i64", f"if {name} < 0:i64:",
                                                 "  call look(stop)", f"  {name} := 50000000:i64")]

    assert counted(looks)[1:-1] == [
        "  for a < 2:", "    if s < 3.0:", "      var ticks1: i64 = 100000:i64", "      while:",
        *look(1, 60, 8), "    else:", "      var ticks2: i64 = 100000:i64", "      while:",
        "        var ticks3: i64 = 100000:i64", "        while:", *look(3, 60, 10), *look(2, 1, 8)]
    assert counted(interrupt(collatz(7)))[-1] == "call stopped(stop)"


# ---------------------------------------------------------------- plans of products

TARGETS = {"sse": (4, 16), "neon": (4, 32), "avx2": (8, 16), "avx512": (16, 32)}
PLANS = [
    ("sse", (1, 1, 1), {}, (4, 4), 1, 1, 1, 1, 4, 1, "", 0),
    ("sse", (5, 7, 3), {}, (6, 6), 1, 1, 2, 2, 8, 3, "", 0),
    ("sse", (13, 100, 300), {}, (6, 4), 1, 3, 2, 1, 104, 150, "", 1),
    ("sse", (64, 64, 64), {}, (6, 6), 11, 11, 2, 2, 64, 64, "", 2),
    ("sse", (100, 33, 1000), {}, (6, 6), 17, 17, 2, 1, 40, 250, "b", 8),
    ("sse", (1000, 1000, 1000), {}, (6, 6), 167, 167, 2, 2, 256, 250, "b", 10),
    ("neon", (1, 1, 1), {}, (4, 4), 1, 1, 1, 1, 4, 1, "", 0),
    ("neon", (5, 7, 3), {}, (8, 8), 1, 1, 2, 2, 8, 3, "", 0),
    ("neon", (13, 100, 300), {}, (14, 14), 1, 1, 2, 1, 104, 150, "", 1),
    ("neon", (64, 64, 64), {}, (14, 12), 2, 5, 2, 2, 64, 64, "", 1),
    ("neon", (100, 33, 1000), {}, (14, 12), 2, 8, 2, 1, 40, 250, "", 1),
    ("neon", (1000, 1000, 1000), {}, (14, 14), 72, 72, 2, 2, 256, 250, "b", 4),
    ("avx2", (1, 1, 1), {}, (4, 4), 1, 1, 1, 1, 8, 1, "", 0),
    ("avx2", (5, 7, 3), {}, (6, 6), 1, 1, 1, 1, 8, 3, "", 0),
    ("avx2", (13, 100, 300), {}, (6, 4), 1, 3, 2, 1, 112, 150, "", 1),
    ("avx2", (64, 64, 64), {}, (6, 6), 11, 11, 2, 2, 64, 64, "", 0),
    ("avx2", (100, 33, 1000), {}, (6, 6), 17, 17, 2, 1, 48, 250, "b", 8),
    ("avx2", (1000, 1000, 1000), {}, (6, 6), 167, 167, 2, 2, 256, 250, "b", 10),
    ("avx2", (100, 32, 1000), {}, (6, 6), 17, 17, 2, 2, 32, 250, "", 1),
    ("avx2", (100, 64, 64), {"rs": 1, "ks": 100}, (6, 6), 17, 17, 2, 2, 64, 64, "a", 4),
    ("avx2", (100, 63, 64), {"rs": 1, "ks": 100}, (6, 6), 17, 17, 2, 2, 64, 64, "", 4),
    ("avx512", (1, 1, 1), {}, (4, 4), 1, 1, 1, 1, 16, 1, "", 0),
    ("avx512", (5, 7, 3), {}, (8, 8), 1, 1, 1, 1, 16, 3, "", 0),
    ("avx512", (13, 100, 300), {}, (14, 14), 1, 1, 2, 1, 128, 150, "", 0),
    ("avx512", (64, 64, 64), {}, (14, 12), 2, 5, 2, 2, 64, 64, "", 0),
    ("avx512", (100, 33, 1000), {}, (14, 12), 2, 8, 2, 1, 64, 250, "", 1),
    ("avx512", (1000, 1000, 1000), {}, (14, 14), 72, 72, 2, 2, 256, 250, "b", 4),
    ("avx512", (512, 512, 512), {}, (14, 14), 37, 37, 2, 2, 128, 256, "", 1),
    ("avx512", (512, 512, 512), {"itemsize": 8}, (14, 14), 37, 37, 2, 2, 128, 171, "ab", 4),
    ("avx512", (41, 512, 1024), {}, (14, 14), 3, 3, 2, 2, 128, 256, "a", 1),
    ("avx512", (42, 512, 1024), {}, (14, 14), 3, 3, 2, 2, 256, 256, "ab", 1),
    ("avx512", (42, 511, 1024), {}, (14, 14), 3, 3, 2, 2, 128, 256, "a", 1),
    ("avx512", (42, 512, 1024), {"itemsize": 8}, (14, 14), 3, 3, 2, 2, 128, 171, "ab", 1),
    ("avx512", (42, 256, 1024), {"itemsize": 8}, (14, 14), 3, 3, 2, 2, 128, 171, "ab", 1),
    ("avx512", (40, 64, 64), {"js": 64, "bs": 1}, (14, 12), 2, 3, 2, 2, 64, 64, "b", 0),
    ("avx512", (60, 600, 1024), {}, (12, 12), 5, 5, 2, 2, 224, 256, "ab", 2),
    ("avx512", (60, 600, 1023), {}, (12, 12), 5, 5, 2, 2, 224, 256, "b", 2),
    ("avx512", (60, 32, 1024), {}, (12, 12), 5, 5, 2, 2, 32, 256, "", 1),
    ("avx512", (60, 33, 1024), {}, (12, 12), 5, 5, 2, 1, 64, 256, "a", 1),
    ("avx512", (8, 600, 1024), {}, (8, 8), 1, 1, 3, 3, 96, 256, "", 1),
    ("avx512", (9, 600, 1024), {}, (12, 12), 1, 1, 2, 2, 128, 256, "a", 1),
    ("avx512", (60, 600, 40), {"rs": 1, "ks": 2048}, (12, 12), 5, 5, 2, 2, 608, 40, "a", 1),
    ("avx512", (60, 600, 40), {"rs": 1, "ks": 512, "itemsize": 8}, (12, 12), 5, 5, 2, 2, 320, 40, "a", 1),
    ("avx512", (5, 40, 9), {"batch": 1000}, (8, 8), 1, 1, 3, 3, 48, 9, "", 69),
    ("avx512", (5, 40, 9), {"batch": 300}, (8, 8), 1, 1, 3, 3, 48, 9, "", 69),
    ("avx512", (14, 32, 1395), {}, (14, 14), 1, 1, 2, 2, 32, 233, "", 0),
    ("avx512", (14, 32, 1396), {}, (14, 14), 1, 1, 2, 2, 32, 233, "", 1),
    ("avx512", (20, 200, 256), {}, (12, 8), 1, 2, 2, 1, 128, 256, "", 1),
    ("avx512", (20, 200, 257), {}, (12, 8), 1, 2, 2, 1, 224, 129, "", 1),
    ("avx512", (2, 100000, 3), {}, (4, 4), 1, 1, 6, 6, 10080, 3, "", 2),
    ("avx512", (3, 97, 50), {}, (4, 4), 1, 1, 6, 1, 192, 50, "", 0),
    ("avx512", (1000, 40, 20), {}, (14, 14), 72, 72, 2, 1, 64, 20, "", 18),
    ("avx512", (28, 4000, 800), {"bs": 9000}, (14, 14), 2, 2, 2, 2, 160, 200, "", 1),
    ("avx512", (56, 4000, 800), {"bs": 9000}, (14, 14), 4, 4, 2, 2, 320, 200, "b", 2),
    ("avx512", (4, 600, 1024), {}, (4, 4), 1, 1, 6, 2, 96, 256, "", 1),
    ("avx2", (12, 16, 50), {"batch": 300}, (6, 6), 2, 2, 2, 2, 16, 50, "", 21),
    ("avx2", (6, 16, 100), {"batch": 300}, (6, 6), 1, 1, 2, 2, 16, 100, "", 10),
    ("sse", (6, 8, 64), {"batch": 300}, (6, 6), 1, 1, 2, 2, 8, 64, "", 16),
    ("sse", (6, 8, 30), {"batch": 500}, (6, 6), 1, 1, 2, 2, 8, 30, "", 35),
    ("avx2", (6, 16, 39), {"batch": 500}, (6, 6), 1, 1, 2, 2, 16, 39, "", 27),
]


def shape(m: int, n: int, k: int, rs: int = 0, ks: int = 1, bs: int = 0, js: int = 1, batch: int = 1,
          itemsize: int = 4) -> Shape:
    return Shape(m, n, k, rs or k, ks, bs or n, js, n, batch, itemsize)


@pytest.mark.parametrize("target, sizes, options, rows, first, tiles, vectors, edge, nc, kc, packed, grain", PLANS)
def test_plans_of_products(target: str, sizes: tuple[int, int, int], options: dict[str, int], rows: tuple[int, int],
                           first: int, tiles: int, vectors: int, edge: int, nc: int, kc: int, packed: str,
                           grain: int) -> None:
    p = blocking(shape(*sizes, **options), *TARGETS[target])
    names = "a" * p.pack_a + "b" * p.pack_b
    assert (p.rows, p.first, p.tiles, p.vectors, p.edge, p.nc, p.kc, names, p.grain) == (
        rows, first, tiles, vectors, edge, nc, kc, packed, grain)


def test_heights_of_tiles_follow_the_registers() -> None:
    assert families(16) == families(31) == ((6, 4, 2), 12) and families(32) == ((14, 12, 8, 4, 2), 28)


@pytest.mark.parametrize("args, want", [
    ((1, 1, 1, 1, 4, False), (256, 0)),
    ((511, 100, 1, 1, 4, False), (256, 0)),
    ((513, 1000, 1, 1, 4, False), (257, 1)),
    ((1024, 1000, 1, 1, 4, False), (512, 1)),
    ((1025, 1000, 1, 1, 4, False), (513, 1)),
    ((3000, 700, 1, 1, 4, False), (1500, 1)),
    ((5000, 700, 1, 1, 4, False), (2048, 1)),
    ((5000, 700, 8, 1, 4, False), (2048, 1)),
    ((5000, 700, 3, 1, 4, False), (2048, 1)),
    ((5000, 700, 1, 7, 8, False), (1024, 1)),
    ((100, 1000, 1, 1, 4, True), (16, 2)),
    ((15, 400, 1, 1, 8, True), (16, 0)),
    ((16, 6250, 1, 1, 4, True), (16, 1)),
    ((16, 6249, 1, 1, 4, True), (16, 0)),
    ((17, 9000, 2, 3, 4, True), (16, 1)),
    ((9, 9000, 6, 2, 4, True), (16, 1)),
    ((100, 4, 8, 500, 4, False), (256, 40)),
    ((100, 4, 12, 500, 4, False), (256, 27)),
    ((100, 4, 5, 500, 4, False), (256, 64)),
    ((100, 4, 3, 500, 4, False), (256, 80)),
])
def test_plans_of_products_by_vectors(args: tuple[int, int, int, int, int, bool], want: tuple[int, int]) -> None:
    assert vector_blocking(*args) == want
