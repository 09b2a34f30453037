"""Reads and sums at places that are known before the program runs: which are slices, and that values stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler.rewriting.known import MOST_RUNS
from tests.compiler.stages import lowered

RNG = np.random.default_rng(0)
N = 24
RING = (np.arange(N) + 1) % N


def data(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.normal(size=shape).astype(dtype)


def is_looked_up(fun: Callable[..., Any], *args: Any) -> bool:
    """Whether a compiled program reads or adds at places that it looks up."""
    text = str(lowered(fun, *args).jaxpr)
    return "gather" in text or "scatter" in text


PLACES = {
    "ring": RING, "ring behind": RING - 2, "backwards": np.arange(N)[::-1], "every other": np.arange(1, N, 2),
    "every third, backwards": np.arange(N - 1, 0, -3), "halves": np.r_[N // 2:N, :N // 2], "one": np.array([5]),
    "some": np.array([3, 4, 5, 6]), "three parts": np.r_[8:16, 16:N, 0:8], "parts with gaps": np.r_[12:20, 1:4],
    "twice": np.r_[2:9, 4:7], "from the end": np.r_[-3:0]}


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("name", PLACES)
def test_reads_in_order_are_slices(name: str, axis: int) -> None:
    x, places = data(N, N, N), PLACES[name]
    for fun in (lambda x: jnp.take(x, places, axis) * 2,
                lambda x: jnp.moveaxis(jnp.moveaxis(x, axis, 0)[places], 0, axis)):
        assert not is_looked_up(fun, x)
        np.testing.assert_array_equal(anima.jit(fun)(x) - fun(x), 0)
    np.testing.assert_array_equal(anima.jit(lambda x: jnp.take(x, places, axis))(x), np.take(x, places, axis))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", PLACES)
def test_their_derivatives_are_slices(name: str, axis: int) -> None:
    x, places = data(N, N), PLACES[name]

    def slope(x: Any) -> Any:
        return anima.grad(lambda x: (jnp.take(x, places, axis) ** 2).sum())(x)

    assert is_looked_up(slope, x) == (name == "twice")
    count = np.bincount(places % N, minlength=N)
    np.testing.assert_allclose(anima.jit(slope)(x), 2 * x * (count[:, None] if axis == 0 else count), 1e-6)


def neighbours(x: Any) -> Any:
    n = len(x)
    return x[(jnp.arange(n) + 1) % n] + x[(jnp.arange(n) - 1) % n] - 2 * x


def by_rolls(x: Any) -> Any:
    return jnp.roll(x, -1, 0) + jnp.roll(x, 1, 0) - 2 * x


LOOPS: dict[str, Callable[[Callable[[Any], Any]], Callable[[Any], Any]]] = {
    "scan": lambda f: lambda x: lax.scan(lambda x, _: (x + 0.1 * f(x), x[0]), x, None, length=6),
    "fori": lambda f: lambda x: lax.fori_loop(0, 6, lambda i, x: x + 0.1 * i * f(x), x),
    "while": lambda f: lambda x: lax.while_loop(
        lambda c: c[0] + 0 * f(c[1]).sum() < 6, lambda c: (c[0] + 1, f(c[1]) / 4), (0.0, x))[1],
    "cond": lambda f: lambda x: lax.cond(x.sum() > 0, lambda x: f(x), lambda x: f(x * x), x),
    "within": lambda f: lambda x: lax.scan(lambda x, _: (lax.fori_loop(0, 2, lambda _, y: y + 0.1 * f(y), x), None), x,
                                           None, length=3)[0]}


@pytest.mark.parametrize("loop", LOOPS)
def test_places_are_known_in_loops_and_branches(loop: str) -> None:
    """Counters are computed before a loop, and given to it."""
    x = data(40, 3)
    for read in (neighbours, lambda x: x[RING_OF_40] + x[RING_OF_40 - 2] - 2 * x):
        fun, want = LOOPS[loop](read), LOOPS[loop](by_rolls)
        assert not is_looked_up(fun, x)
        anima.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-6), anima.jit(fun)(x), anima.jit(want)(x))
        if loop != "while":
            slopes = [anima.jit(anima.grad(lambda x, f=f: sum(a.sum() for a in anima.tree.leaves(f(x)))))
                      for f in (fun, want)]
            np.testing.assert_allclose(slopes[0](x), slopes[1](x), 1e-5, 1e-5)
    lanes = anima.vmap(LOOPS[loop](neighbours), 1)
    anima.tree.map(lambda a, b: np.testing.assert_allclose(a[1], b, 1e-5, 1e-6), anima.jit(lanes)(x),
                   anima.jit(LOOPS[loop](by_rolls))(x[:, 1]))


RING_OF_40 = (np.arange(40) + 1) % 40


def test_what_is_in_no_order_is_looked_up() -> None:
    x, order = data(N), RNG.permutation(N)
    assert is_looked_up(lambda x: x[order], x)
    several = np.concatenate([np.arange(4 * k, 4 * k + 3) for k in range(MOST_RUNS + 1)])
    assert not is_looked_up(lambda x: x[several[3:]], x) and is_looked_up(lambda x: x[several], x)
    assert is_looked_up(lambda x, k: x[k], x, RING.astype(np.int32))
    assert is_looked_up(lambda x: x[RING.reshape(4, -1)], x)
    np.testing.assert_array_equal(anima.jit(lambda x: x[order])(x), x[order])


@pytest.mark.parametrize("mode", ["clip", "fill", "promise_in_bounds"])
def test_places_outside(mode: str) -> None:
    """They are clipped, filled up and dropped as other places are."""
    x, u = data(N), data(8)
    for places in (np.arange(N - 4, N + 4), np.arange(-4, 4), np.arange(N, N + 8)):
        for fun in (lambda x: x.at[places].get(mode=mode), lambda x: jnp.zeros_like(x).at[places].add(u, mode=mode),  # noqa: B023
                    anima.grad(lambda x: (x.at[places].get(mode=mode, fill_value=0) * u).sum())):  # noqa: B023
            with anima.disable_jit():
                want = fun(jnp.asarray(x))
            np.testing.assert_array_equal(anima.jit(fun)(x), want)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32", "float16", "bfloat16", "complex64", "float64", "int64"])
def test_types(dtype: str) -> None:
    with anima.enable_x64():
        x = jnp.asarray(RNG.integers(0, 2, (N, 3))).astype(dtype)
        got, turned = anima.jit(lambda x: (x[RING], x[:, np.array([2, 0, 1])]))(x)
        np.testing.assert_array_equal(got, jnp.roll(x, -1, 0))
        np.testing.assert_array_equal(turned, jnp.roll(x, 1, 1))
        if dtype != "bool":
            added = anima.jit(lambda x: jnp.zeros_like(x).at[RING].add(x))(x)
            np.testing.assert_array_equal(added, jnp.roll(x, 1, 0))


@pytest.mark.parametrize("places", [RING, np.arange(N)[::-1], np.array([3]), np.r_[3:5, 8:9]])
def test_zeros_that_are_added_have_no_sign(places: np.ndarray) -> None:
    u = np.full(len(places), -0.0, np.float32)
    for dtype in (np.float32, np.complex64):
        fun = anima.jit(lambda u: jnp.zeros(N, u.dtype).at[places].add(u))
        assert not is_looked_up(lambda u: jnp.zeros(N, u.dtype).at[places].add(u), u.astype(dtype))
        assert not np.signbit(np.asarray(fun(u.astype(dtype))).real).any()


@pytest.mark.parametrize("seed", range(40))
def test_random_places(seed: int) -> None:
    """Of parts in any order, of one size or none, with gaps and overlaps."""
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(1, 20)), int(rng.integers(1, 5))
    ends = rng.integers(0, n + 1, (int(rng.integers(1, 5)), 2))
    places = np.concatenate([np.arange(min(e), max(e)) for e in ends])[::int(rng.choice([1, 1, -1, 2]))]
    x = data(n, m)
    u = data(len(places), m)
    for axis in (0, 1):
        turn = (lambda a: a) if axis == 0 else (lambda a: a.T)
        got = anima.jit(lambda x: jnp.take(x, places, axis))(turn(x))  # noqa: B023
        np.testing.assert_array_equal(got, turn(x[places]))
        index = places if axis == 0 else (slice(None), places)
        added = anima.jit(lambda x, u: (jnp.zeros_like(x).at[index].add(u), x.at[index].add(u)))(turn(x), turn(u))  # noqa: B023
        want = np.zeros_like(x)
        np.add.at(want, places, u)
        np.testing.assert_allclose(added[0], turn(want), 1e-6, 1e-6)
        np.testing.assert_allclose(added[1], turn(x + want), 1e-5, 1e-5)
