"""Loops over lanes: each lane runs to its own end, whether lanes run one by one, on threads or in a vector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax

RNG = np.random.default_rng(0)


def lowered(fun: Callable[..., Any], *args: Any) -> str:
    return anima.jit(fun).lower(*args).loops


def check(one: Callable[..., Any], *args: np.ndarray, python: Callable[..., Any] | None = None) -> str:
    """The mapped function against the function of each lane; the loops that it became."""
    got = anima.jit(anima.vmap(one))(*args)
    expected = [(python or one)(*lane) for lane in zip(*args, strict=True)]
    for k, value in enumerate(got if isinstance(got, tuple) else (got,)):
        want = [e[k] if isinstance(e, tuple) else e for e in expected]
        np.testing.assert_allclose(np.asarray(value), np.stack([np.asarray(w) for w in want]), rtol=1e-5)
    return lowered(anima.vmap(one), *args)


@pytest.mark.parametrize("lanes", (2, 5, 16, 17, 40, 700))
@pytest.mark.parametrize("dtype", (np.float32, np.int32, np.uint8))
def test_while_of_scalars_runs_in_vectors(lanes: int, dtype: type) -> None:
    def one(x: Any, stop: Any) -> Any:
        k, x = lax.while_loop(lambda s: s[0] < stop, lambda s: (s[0] + 1, s[1] * 3 + 1), (jnp.int32(0), x))
        return k, x

    def python(x: Any, stop: int) -> Any:
        with np.errstate(over="ignore"):
            for _ in range(stop):
                x = (x * dtype(3) + dtype(1)).astype(dtype)
        return np.int32(stop), x

    stops = RNG.integers(0, 9, lanes).astype(np.int32)
    loops = check(one, RNG.integers(0, 5, lanes).astype(dtype), stops, python=python)
    assert "kernel lanes:\n    vector" in loops


def test_loops_inside_of_loops() -> None:
    """What the inner loop of one lane does is nothing to another whose outer loop is over."""
    def one(n: Any, m: Any) -> Any:
        def outer(s: Any) -> Any:
            i, total = s
            start = (jnp.int32(0), total)
            return i + 1, lax.while_loop(lambda t: t[0] < m + i, lambda t: (t[0] + 1, t[1] + t[0] * i), start)[1]
        return lax.while_loop(lambda s: s[0] < n, outer, (jnp.int32(0), jnp.int32(7)))[1]

    def python(n: int, m: int) -> np.int32:
        total = 7
        for i in range(n):
            for j in range(m + i):
                total += j * i
        return np.int32(total)

    n, m = RNG.integers(0, 6, (2, 37)).astype(np.int32)
    assert "vector" in check(one, n, m, python=python)


def test_reads_at_places_of_their_own() -> None:
    """The number of steps through a table of successors until one that is its own; the table is never left."""
    table = np.maximum(np.arange(50) // 3, 0).astype(np.int32)

    def one(start: Any) -> Any:
        return lax.while_loop(lambda s: jnp.asarray(table)[s[0]] != s[0],
                              lambda s: (jnp.asarray(table)[s[0]], s[1] + 1), (start, jnp.int32(0)))[1]

    def python(start: int) -> np.int32:
        count = 0
        while table[start] != start:
            start, count = table[start], count + 1
        return np.int32(count)

    check(one, np.arange(50, dtype=np.int32), python=python)


def test_division_by_a_value_runs_one_by_one() -> None:
    def gcd(a: Any, b: Any) -> Any:
        return lax.while_loop(lambda s: s[1] != 0, lambda s: (s[1], lax.rem(s[0], s[1])), (a, b))[0]

    a, b = RNG.integers(1, 1000, (2, 60)).astype(np.int32)
    loops = check(gcd, a, b, python=np.gcd)
    assert "parallel" in loops and "vector" not in loops


def test_only_the_branch_that_is_taken_runs() -> None:
    def one(p: Any, x: Any) -> Any:
        return lax.cond(p, lambda x: lax.fori_loop(0, 30, lambda i, a: jnp.sin(a) + x, x), lambda x: x * 2.0, x)

    p, x = RNG.uniform(size=90) < 0.1, RNG.normal(size=90).astype(np.float32)
    assert "if " in check(one, p, x)


def test_vectors_in_lanes() -> None:
    def one(x: Any, stop: Any) -> Any:
        return lax.while_loop(lambda s: s[0] < stop, lambda s: (s[0] + 1, jnp.tanh(s[1][::-1] + s[1].sum())),
                              (jnp.int32(0), x))[1]

    for size in (3, 20):
        x = RNG.normal(size=(33, size)).astype(np.float32)
        check(one, x, RNG.integers(0, 12, 33).astype(np.int32))


def test_derivative_of_lanes() -> None:
    def one(x: Any, stop: Any) -> Any:
        return lax.fori_loop(0, stop, lambda _, a: jnp.sin(a) * x, x)

    x, stop = RNG.normal(size=21).astype(np.float32), RNG.integers(0, 6, 21).astype(np.int32)
    got = anima.jit(anima.vmap(anima.grad(one)))(x, stop)
    for k in range(21):
        def python(x: Any, count: int = int(stop[k])) -> Any:
            a = x
            for _ in range(count):
                a = jnp.sin(a) * x
            return a
        np.testing.assert_allclose(got[k], anima.grad(python)(x[k]), rtol=1e-4, atol=1e-5)


def test_lanes_in_the_branch_of_a_branch() -> None:
    @anima.jit
    def one_of_three(i: Any, x: Any) -> Any:
        return lax.switch(i, [lambda x: x, lambda x: -x, lambda x: lax.map(lambda t: jnp.sin(t + x),
                                                                           jnp.ones((2, 2))).sum()], x)

    np.testing.assert_allclose([one_of_three(k, 1.0) for k in range(3)], [1.0, -1.0, 4 * np.sin(2.0)], rtol=1e-6)


def test_lanes_in_a_while_loop() -> None:
    def halved(row: Any) -> Any:
        return lax.while_loop(lambda c: c.sum() > 3, lambda c: c * 0.5, row)

    @anima.jit
    def often(n: Any, x: Any) -> Any:
        return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, 3 * anima.vmap(halved)(c[1])), (0, x))[1]

    np.testing.assert_array_equal(often(1, jnp.ones((3, 2)) * 4), np.full((3, 2), 3.0))


def test_a_scan_over_the_one_element_made_of_a_scalar() -> None:
    @anima.jit
    def squares(x: Any) -> Any:
        return lax.scan(lambda c, _: lax.scan(lambda d, t: (d * t, None), c, jnp.reshape(c / 2, (1,))), x, length=3)[0]

    assert float(squares(1.5)) == pytest.approx(1.5 ** 8 / 2 ** 7)


@pytest.mark.parametrize("body", [lambda t: jnp.zeros((0,)), lambda t: jnp.zeros((0, 2)) + t, lambda t: (t, ())[1]])
def test_lanes_without_elements(body: Callable[..., Any]) -> None:
    for mapped in (anima.jit(lambda x: lax.map(body, x)), lambda x: lax.map(body, x)):
        shapes = [x.shape for x in anima.tree.leaves(mapped(jnp.arange(5.0)))]
        assert shapes == [(5, *x.shape) for x in anima.tree.leaves(body(0.0))]


def test_lanes_in_branches_keep_their_small_arrays_apart() -> None:
    def loop(x: Any) -> Any:
        def body(k: Any, c: Any) -> Any:
            chosen = lax.cond(c[0] > 0.3, lambda c: c * c, lambda c: jnp.sin(c), c)
            return lax.scan(lambda d, t: (d * t, None), chosen, jnp.ones(2) * 1.1)[0]

        return lax.fori_loop(0, 3, body, jnp.reshape(x, (1,)))[0]

    def f(i: Any, x: Any) -> Any:
        return lax.switch(i, [lambda x: x, loop, lambda x: lax.map(lambda t: jnp.sin(t + loop(x)), jnp.ones(4)).sum()],
                          x)

    x = np.linspace(0.2, 0.8, 5, dtype=np.float32)
    for k in range(3):
        for g in (f, anima.grad(f, 1)):
            got = anima.jit(anima.vmap(g, (None, 0)))(k, x)
            with anima.disable_jit():
                expected = [g(k, one) for one in x]
            np.testing.assert_allclose(got, expected, rtol=1e-4)


def test_lanes_with_small_arrays_run_in_vectors_and_have_the_bits_of_one() -> None:
    """The arrays of a lane are in registers; lanes that have left the loop keep theirs."""
    def orbit(y: Any) -> Any:
        return anima.lax.while_loop(lambda s: s[0] @ s[0] < 50.0,
                                    lambda s: (s[0] + 0.1 * jnp.stack([s[0][1], s[0][0] * s[0][1]]), s[1] + 1), (y, 0))

    y = np.random.default_rng(0).uniform(0.5, 4.0, (37, 2)).astype(np.float32)
    lanes = anima.jit(anima.vmap(orbit))
    assert "vector pk1 < 37" in str(lanes.lower(y).loops)
    got, steps = lanes(y)
    assert len(set(steps.tolist())) > 5
    for k, one in enumerate(y):
        want, count = anima.jit(orbit)(one)
        assert np.array_equal(got[k], want) and steps[k] == count


@pytest.mark.parametrize("dtype", (np.uint8, np.int16, np.int32, np.int64))
def test_arrays_of_any_length_go_through_registers(dtype: type) -> None:
    """LLVM comes to an end with every pattern of lanes that repeat an element."""
    def next_of(c: Any, _: None) -> tuple[Any, None]:
        x, y = c
        return (x ^ (y + y.dtype.type(1)), y ^ (y + y.dtype.type(1))), None

    with anima.enable_x64(dtype is np.int64):
        widest = 64 // np.dtype(dtype).itemsize
        for n in (1, 2, 3, *range(widest // 2 + 1, widest + 2)):
            x = np.arange(n, dtype=dtype)
            got = anima.jit(lambda x, y: lax.scan(next_of, (x, y), None, length=1)[0])(x, x + dtype(1))
            for a, b in zip(got, next_of((x, x + dtype(1)), None)[0], strict=True):
                np.testing.assert_array_equal(a, b)


def test_long_bodies_of_lanes_stay_in_one_function() -> None:
    """More statements than an outer block has before it is cut into functions, each of all lanes."""
    def body(x: Any, y: Any) -> Any:
        small = [jnp.asarray(y[k]) for k in range(6)]
        for k in range(6):
            small = lax.fori_loop(0, 1 + k % 2, lambda i, c: [*c[1:], c[0] + 1], small)
        return x, jnp.stack(small)

    for dtype in ("int8", "float32"):
        x, ys = np.arange(7).astype(dtype), np.arange(30).reshape(5, 6).astype(dtype)
        def rows(x: Any, ys: Any) -> Any:
            return lax.map(lambda y: body(x, y), ys)

        with anima.disable_jit():
            want = rows(x, ys)
        for got, expected in zip(anima.jit(rows)(x, ys), want, strict=True):
            np.testing.assert_array_equal(got, expected)


def recurrence(xs: Any) -> Any:
    return lax.scan(lambda s, x: ((s := (x + 0.8 * s) / (2 + s * s)), s), 0.0 * xs[0], xs)[1]


def tridiagonal(d: Any) -> Any:
    """Two sweeps, with arrays between them that each lane has for itself."""
    def down(s: Any, d: Any) -> Any:
        w = 1.5 - 0.3 * s[0]
        s = 0.3 / w, (d - 0.3 * s[1]) / w
        return s, s

    cs, ds = lax.scan(down, (jnp.zeros((), d.dtype), jnp.zeros((), d.dtype)), d)[1]
    return lax.scan(lambda x, s: ((x := s[1] - s[0] * x), x), jnp.zeros((), d.dtype), (cs, ds), reverse=True)[1]


@pytest.mark.parametrize("lanes", (1, 2, 3, 8, 17, 100))
@pytest.mark.parametrize("step", (recurrence, tridiagonal))
@pytest.mark.parametrize("outer", ("for", "while", "scan"))
def test_lanes_inside_of_a_loop_run_in_vectors(outer: str, step: Callable[..., Any], lanes: int) -> None:
    """Loops of each lane within a loop of all lanes, as it is where the number of steps is the same for all."""
    def one(x: Any) -> Any:
        if outer == "for":
            return lax.fori_loop(0, 5, lambda _, x: step(x) + x, x)
        if outer == "scan":
            return lax.scan(lambda x, k: (step(x) + k, x[2]), x, jnp.arange(5, dtype=x.dtype))
        return lax.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + 1, step(s[1]) + s[1]), (0, x))[1]

    loops = check(one, RNG.normal(size=(lanes, 13)).astype(np.float32), python=anima.jit(one))
    if lanes > 3 and outer != "while":
        assert "  kernel lanes:\n      vector pk" in loops


@pytest.mark.parametrize("lanes", (1, 2, 3, 8, 17, 100))
def test_sequences_whose_lanes_are_side_by_side(lanes: int) -> None:
    """Each step takes all lanes: no sequence is turned."""
    x = RNG.normal(size=(13, lanes)).astype(np.float32)
    for f in (recurrence, tridiagonal):
        many = anima.jit(anima.vmap(f, in_axes=1, out_axes=1))
        assert f is not recurrence or "transpose" not in many.lower(x).loops
        np.testing.assert_allclose(many(x), np.stack([f(jnp.asarray(c)) for c in x.T], 1), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("lanes", (4, 7, 8, 17))
def test_lanes_that_read_a_small_array_of_the_loop_around_them(lanes: int) -> None:
    """It is in memory then, not in registers, in which lanes would have to wait for each other."""
    def step(x: Any, _: Any) -> Any:
        start = jnp.array([1.0, 2.0], x.dtype) + 0.1 * x[:2]

        def down(s: Any, r: Any) -> Any:
            angle, place = s
            angle = angle + r
            before = place
            place = place + 0.5 * jnp.array([jnp.sin(angle), jnp.cos(angle)])
            return (angle, place), before

        places = anima.vmap(lambda row: lax.scan(down, (0.0 * x[0], start), row)[1])(jnp.outer(x, x))
        return x + 0.01 * places.sum((1, 2)), places[0, 0]

    x = RNG.normal(size=lanes).astype(np.float32)
    run = anima.jit(lambda x: lax.scan(step, x, None, length=4))
    assert "    kernel lanes:\n      vector pk" in run.lower(x).loops
    got_x, got = run(x)
    want = jnp.asarray(x)
    for k in range(4):
        want, y = step(want, None)
        np.testing.assert_allclose(got[k], y, rtol=1e-4)
    np.testing.assert_allclose(got_x, want, rtol=1e-4)


@pytest.mark.parametrize("lanes", (1, 3, 8, 17))
def test_gradient_of_lanes_whose_rows_are_loops(lanes: int) -> None:
    """The soft distance of two warped sequences (Cuturi and Blondel, 2017): what steps of a lane leave for the way back
    has places for all lanes, and small arrays in each step are single values."""
    def least(*values: Any) -> Any:
        return -0.5 * anima.nn.logsumexp(jnp.stack([-v for v in values]) / 0.5, axis=0)

    def distance(x: Any, y: Any) -> Any:
        def row(before: Any, d: Any) -> Any:
            def cell(left: Any, t: Any) -> Any:
                v = t[0] + least(left, t[1], t[2])
                return v, v
            inf = jnp.float32(1e3)
            after = lax.scan(cell, inf, (d, before[1:], before[:-1]))[1]
            return jnp.concatenate([inf[None], after]), None
        start = jnp.full(y.shape[0] + 1, 1e3).at[0].set(0.0)
        return lax.scan(row, start, (x[:, None] - y[None]) ** 2)[0][-1]

    one = anima.value_and_grad(distance)
    x, y = RNG.normal(size=(lanes, 7)).astype(np.float32), RNG.normal(size=(lanes, 5)).astype(np.float32)
    run = anima.jit(anima.vmap(one))
    assert lanes < 3 or run.lower(x, y).loops.count("    kernel lanes:\n      vector pk") == 2
    found = run(x, y)
    with anima.disable_jit():
        want = [one(*lane) for lane in zip(x, y, strict=True)]
    for got, parts in zip(found, zip(*want, strict=True), strict=True):
        np.testing.assert_allclose(got, np.stack(parts), rtol=2e-4, atol=1e-5)
