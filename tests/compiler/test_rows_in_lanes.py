"""Loops in order in lanes, several of whose rows are loaded and stored at once, transposed in registers: against the
interpreter, at sizes around those of squares, and where that may not be done."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler.ir.loops import Accumulate, Expr, For, Let, Load, Local, Mutable, Op, Program, Stmt, Store, While
from anima.compiler.machine import native
from anima.compiler.scheduling.vectorize import vectorize
from tests.compiler.loop_programs import at, c, i, ix, k, one_kernel, v, vector
from tests.compiler.test_emit import agrees, random

LANES = (1, 3, 4, 5, 8, 15, 16, 17, 33, 40)
ROWS = (1, 3, 4, 7, 8, 9, 16, 31)


def element(place: Expr, dtype: str, buffer: str = "x") -> Load:
    return Load(buffer, place, dtype)


def in_lanes(lanes: int, rows: int, dtype: str, *body: Stmt, extent: Expr | None = None, outside: tuple[Stmt, ...] = (),
             size: int | None = None, after: tuple[Stmt, ...] = ()) -> Program:
    """For each lane j, what is `outside`, and a loop in order over r with a body."""
    size = size or lanes * rows
    loop = For("r", extent or c(rows), body)
    return one_kernel("lanes", {"x": (dtype, size)}, {"y": (dtype, size)}, vector("j", lanes, *outside, loop, *after))


def taken_together(p: Program) -> bool:
    """Whether a loop in order takes several rows at a time on this machine."""
    [[loop]] = [kernel.body for kernel in vectorize(p, native.host()).body]  # type: ignore[union-attr]
    return any(isinstance(s, For) and s.width > 1 for s in loop.body)  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", ("f32", "f64", "i32", "u64", "f16", "bool", "c64", "c128"))
@pytest.mark.parametrize("rows", ROWS)
def test_every_size(rows: int, dtype: str) -> None:
    """Loads and stores that go along memory, a store to what lanes have of their own, and a load of that."""
    stride = rows + 9
    place = at("j", stride, "r")
    for lanes in LANES:
        x = Let("a", element(place, dtype))
        p = in_lanes(lanes, rows, dtype, x, Store("own", at("r"), v("a", dtype)),
                     Store("y", place, Op("add", (v("a", dtype), element(at(3), dtype, "own")), dtype)),
                     outside=(Local("own", dtype, rows + 4, "apart"), Store("own", at(3), k(2, dtype))),
                     size=lanes * stride)
        zero = Store("y", at("z"), k(0, dtype))
        p = one_kernel("all", {"x": (dtype, lanes * stride)}, {"y": (dtype, lanes * stride)},
                       vector("z", lanes * stride, zero), *p.body[0].body)  # type: ignore[union-attr]
        agrees(p, random(dtype, lanes * stride))


def test_extents_and_starts_that_change() -> None:
    """A triangle; another order of lanes, and rows that begin in the middle of memory."""
    n = 19
    for lanes in LANES:
        place = at("j", n * n, "o", n, "r")
        rows = For("r", at("o", 1, 1), (Store("y", place, Op("neg", (element(place, "f32"),), "f32")),))
        rest = For("q", ix("sub", c(n - 1), i("o")),
                   (Store("y", at("j", n * n, "o", n + 1, "q", 1, 1), k(1)),))
        p = one_kernel("triangle", {"x": ("f32", lanes * n * n)}, {"y": ("f32", lanes * n * n)},
                       vector("j", lanes, For("o", c(n), (rows, rest))))
        agrees(p, random("f32", lanes * n * n))
        back = at("j", -n, "r", 1, lanes * n - n)
        agrees(in_lanes(lanes, n, "f32", Store("y", back, Op("neg", (element(back, "f32"),), "f32"))),
               random("f32", lanes * n))


@pytest.mark.parametrize("by", (1, -1))
@pytest.mark.parametrize("dtype", ("f32", "f64", "c64", "c128"))
@pytest.mark.parametrize("rows", (3, 8, 9, 13, 16, 24, 31))
def test_long_bodies(rows: int, dtype: str, by: int) -> None:
    """Bodies that are not written out for each row, forwards and backwards, with a loop inside."""
    less = "sub" if dtype[0] == "c" else "div"  # quotients of complex numbers are rounded several times
    stride = rows + 9
    place = at("j", stride, "r") if by == 1 else at("j", stride, "r", -1, rows - 1)
    for lanes in (3, 16, 17, 37):
        x = element(place, dtype)
        steps = [Let(f"a{n}", Op(less, (v(f"a{n - 1}", dtype) if n else Op("add", (x, v("s", dtype)), dtype),
                                         k(1.5, dtype)), dtype)) for n in range(12)]
        inner = For("q", at("r", 1, 1), (Accumulate("s", "add", v("a11", dtype)),
                                         Accumulate("s", "mul", k(0.5, dtype))))
        body = (*steps, Store("own", at("r"), v("a3", dtype)), inner,
                Store("y", place, Op("sub", (v("s", dtype), element(at("r"), dtype, "own")), dtype)))
        loop = vector("j", lanes, Local("own", dtype, rows, "apart"), Mutable("s", dtype, k(0, dtype)),
                      For("r", c(rows), body))
        zero = vector("z", lanes * stride, Store("y", at("z"), k(0, dtype)))
        p = one_kernel("long", {"x": (dtype, lanes * stride)}, {"y": (dtype, lanes * stride)}, zero, loop)
        agrees(p, random(dtype, lanes * stride))


@pytest.mark.parametrize("rows", ROWS)
def test_what_rows_add_up(rows: int) -> None:
    """Cumulative sums: a variable from each row to the next."""
    place = at("j", rows + 9, "r")
    for lanes in LANES:
        size = lanes * (rows + 9)
        body = (Let("a", element(place, "f32")), Accumulate("s", "add", v("a")), Store("y", place, v("s")))
        loop = vector("j", lanes, Mutable("s", "f32", k(0)), For("r", c(rows), body))
        zero = vector("z", size, Store("y", at("z"), k(0)))
        agrees(one_kernel("sums", {"x": ("f32", size)}, {"y": ("f32", size)}, zero, loop), random("f32", size))


def test_what_is_read_is_not_what_a_row_before_has_written() -> None:
    """Almost: each row reads what the one before wrote, or is to write what the one before has read."""
    rows = 24
    wanted = {"x": ("f32", 40 * rows)}
    for shift in (-1, 1, 0):
        place = at("j", rows, "r", 1, 1)
        body = Store("y", place, Op("add", (element(at("j", rows, "r", 1, 1 + shift), "f32", "y"), k(1)), "f32"))
        fill = vector("z", 40 * rows, Store("y", at("z"), element(at("z"), "f32")))
        p = one_kernel("shift", wanted, {"y": ("f32", 40 * rows)}, fill,
                       vector("j", 40, For("r", c(rows - 2), (body,))))
        agrees(p, random("f32", 40 * rows))
    twice = in_lanes(40, rows, "f32", Store("y", at("j", rows, "r"), k(1)), Store("y", at("j", rows, "r"), k(2)))
    assert not taken_together(twice)
    agrees(twice, random("f32", 40 * rows))


def test_lanes_that_have_stopped_store_nothing() -> None:
    """Inside of a `while`, whose lanes go on for as long as each needs."""
    n, lanes = 16, 37
    place = at("j", n, "r")
    for_rows = For("r", c(n), (Store("y", place, Op("add", (element(place, "f32"), v("t")), "f32")),))
    going = While((Let("more", Op("lt", (v("t"), element(at("j"), "f32")), "bool")),), v("more", "bool"),
                  (for_rows, Accumulate("t", "add", k(1))))
    fill = vector("z", n * lanes, Store("y", at("z"), k(0)))
    p = one_kernel("while", {"x": ("f32", n * lanes)}, {"y": ("f32", n * lanes)}, fill,
                   vector("j", lanes, Mutable("t", "f32", k(0)), going))
    agrees(p, np.arange(n * lanes, dtype=np.float32) % 7)


def test_when_it_is_worth_it() -> None:
    def loop(rows: int, step: int, dtype: str = "f32", lanes: int = 40) -> bool:
        place = at("j", step, "r")
        return taken_together(in_lanes(lanes, rows, dtype, Store("y", place, element(place, dtype)),
                                       size=lanes * step + rows))

    assert loop(16, 16) and loop(8, 9) and loop(4, 9, "f64")
    assert not loop(7, 16)          # fewer rows than a square has
    assert not loop(16, 8)          # lanes near each other are loaded by whole vectors
    assert loop(4, 9, "c64") and loop(2, 9, "c128")
    assert not loop(3, 9, "c64") and not loop(1, 9, "c128")
    assert not loop(16, 16, "u8")


@pytest.mark.parametrize("dtype", ("float32", "complex64"))
@pytest.mark.parametrize("n", (5, 8, 16, 17, 31, 32, 33))
def test_matrices_in_lanes(n: int, dtype: str) -> None:
    """The last matrix is the last that is read and written: guard bytes and pages are behind it."""
    rng = np.random.default_rng(n)
    for count in (8, 16, 19, 33):
        x: Any = rng.normal(size=(count, n, n)) + (1j if dtype == "complex64" else 0) * rng.normal(size=(count, n, n))
        x = (x @ x.swapaxes(1, 2).conj() + n * np.eye(n)).astype(dtype)
        np.testing.assert_allclose(anima.jit(jnp.linalg.cholesky)(x), np.linalg.cholesky(x), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(anima.jit(jnp.linalg.inv)(x), np.linalg.inv(x), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", ("complex64", "complex128"))
@pytest.mark.parametrize("lanes, steps", [(3, 5), (16, 8), (17, 31), (40, 100)])
def test_complex_series_in_lanes(lanes: int, steps: int, dtype: str) -> None:
    """Recurrences of complex numbers, forwards and backwards, and what they come to in the end."""
    rng = np.random.default_rng(lanes)
    with anima.enable_x64(True):
        x = (rng.normal(size=(lanes, steps)) + 1j * rng.normal(size=(lanes, steps))).astype(dtype)
        for reverse in (False, True):
            def series(q: Any, reverse: bool = reverse) -> Any:
                return lax.scan(lambda s, a: (0.5j * s + a, s.conj() * a), q[0] * 0, q, reverse=reverse)

            last, all_ = anima.jit(anima.vmap(series))(x)
            state, expected = np.zeros(lanes, dtype), np.empty_like(x)
            for t in (reversed(range(steps)) if reverse else range(steps)):
                expected[:, t] = state.conj() * x[:, t]
                state = (0.5j * state + x[:, t]).astype(dtype)
            np.testing.assert_allclose(all_, expected, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(last, state, rtol=1e-4, atol=1e-5)
