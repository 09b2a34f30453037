"""Routines that sort, compiled against eager, where rows are of no, one, two or three elements, and of many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler.lowering.lanes import WRITTEN_OUT
from anima.compiler.lowering.radix import LENGTH
from anima.compiler.lowering.radix_pieces import PIECE
from anima.compiler.lowering.sort import MANY, NETWORK, SHORT

RNG = np.random.default_rng(3)
DTYPES = ("bool", "int8", "uint16", "int32", "float16", "bfloat16", "float32", "complex64")

ONE: dict[str, Callable[[Any], Any]] = {
    "sort": lambda x: jnp.sort(x, axis=-1), "sort0": lambda x: jnp.sort(x, axis=0),
    "argsort": lambda x: jnp.argsort(x, axis=-1), "argsort0": lambda x: jnp.argsort(x, axis=0),
    "down": lambda x: jnp.argsort(x, axis=-1, descending=True), "flat": lambda x: jnp.argsort(x, axis=None),
    "twice": lambda x: jnp.argsort(jnp.argsort(x)), "both": lambda x: (jnp.sort(x), jnp.argsort(x), x),
    "ranks": lambda x: lax.sort((x, lax.broadcasted_iota("int32", x.shape, 1)), dimension=1, num_keys=1)[::-1],
    "changed": lambda x: (lambda s: (s[0] + s[0], s[1]))(lax.sort((x, x[:, ::-1]), dimension=0, num_keys=2)),
}
REAL: dict[str, Callable[[Any], Any]] = {
    "top": lambda x: lax.top_k(x, min(2, x.shape[-1])), "all": lambda x: lax.top_k(x, x.shape[-1]),
    "argmax": lambda x: (x.argmax(0), x.argmin(-1)) if x.size else x,
    "unique": lambda x: jnp.unique(x, return_inverse=True, return_counts=True, size=4, fill_value=0) if x.size else x,
    "partition": lambda x: (jnp.partition(x, 0), jnp.argpartition(x, 0)) if x.shape[-1] else x,
    "search": lambda x: jnp.searchsorted(jnp.sort(x.ravel()), x),
}
SHAPES = [(1, n) for n in (0, 1, 2, 3, 17, 520)] + [(n, 1) for n in (0, 2, 3)] + [
    (3, 2), (5, 33), (4, 4), (19, 7), (6, 300)]


def values(shape: tuple[int, ...], dtype: str) -> Any:
    return jnp.asarray(RNG.integers(0, 5, shape)).astype(dtype)


def agree(fun: Callable[..., Any], *args: Any) -> None:
    got, want = anima.tree.leaves(anima.jit(fun)(*args)), anima.tree.leaves(fun(*args))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sorting(shape: tuple[int, int], dtype: str) -> None:
    x = values(shape, dtype)
    table = ONE if dtype == "complex64" else ONE | REAL
    agree(lambda x: [fun(x) for fun in table.values()], x)


@pytest.mark.parametrize("name", sorted(ONE | REAL))
@pytest.mark.parametrize("n", (0, 1, 2, 3))
def test_each_alone(name: str, n: int) -> None:
    """As whole programs, so that operands die where they are read."""
    x = values((1, n), "float32")
    agree((ONE | REAL)[name], x)
    agree(lambda x: (ONE | REAL)[name](x + 1), x)


@pytest.mark.parametrize("n", (0, 1, 2, 3, 16, 17))
@pytest.mark.parametrize("count", (2, 3, 5))
@pytest.mark.parametrize("inner", (1, 2))
def test_several_operands(n: int, count: int, inner: int) -> None:
    """With every number of keys; operands that are computed, the same ones twice, results in another order."""
    xs = [values((n, inner), dtype) for dtype in ("int32", "float32", "int32", "bfloat16", "int32")[:count]]
    for keys in range(1, count + 1):
        agree(lambda *xs: lax.sort(xs, dimension=0, num_keys=keys), *xs)  # noqa: B023
        agree(lambda *xs: lax.sort(tuple(x * 2 for x in xs), dimension=0, num_keys=keys)[::-1], *xs)  # noqa: B023
        agree(lambda *xs: lax.sort((*xs, *xs), dimension=0, num_keys=keys), *xs)  # noqa: B023
    agree(lambda *xs: jnp.lexsort(tuple(x[:, 0] for x in xs)), *xs)
    agree(lambda *xs: jnp.lexsort(xs, axis=0), *xs)


@pytest.mark.parametrize("n", (1, 2, 3, 20))
def test_sorted_carries(n: int) -> None:
    """In loops, where results go to the memory of operands: straight, and crosswise."""
    a, b = values((n,), "int32"), values((n,), "int32")
    for order in (slice(None), slice(None, None, -1)):
        def loop(a: Any, b: Any) -> Any:
            return lax.fori_loop(0, 3, lambda i, c: lax.sort(c, num_keys=1)[order], (a, b))  # noqa: B023
        with anima.disable_jit():
            want = loop(a, b)
        for x, y in zip(anima.jit(loop)(a, b), want, strict=True):
            np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "int32", "uint32", "float16", "float32", "float64"])
@pytest.mark.parametrize("shape, axis", [((2, 1030), 1), ((1030, 3), 0)])
def test_keys_alone(shape: tuple[int, int], axis: int, dtype: str) -> None:
    """Long rows of numbers of both signs; zeros of both signs stay in order, NaN come last."""
    with anima.enable_x64(True):
        x = RNG.integers(-300, 300, shape).astype(dtype)
        if x.dtype.kind == "f":
            x = np.where(RNG.random(shape) < 0.1, RNG.choice([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-7], shape), x)
        x = x.astype(dtype)
        got = np.asarray(anima.jit(lambda x: jnp.sort(x, axis=axis))(x))
        want = np.take_along_axis(x, np.argsort(x, axis, kind="stable"), axis)
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, want)
        if x.dtype.kind == "f":
            np.testing.assert_array_equal(np.signbit(got), np.signbit(want) & ~np.isnan(want))


def test_keys_alone_without_zeros() -> None:
    x = RNG.normal(size=2000).astype("float32")
    np.testing.assert_array_equal(anima.jit(jnp.sort)(x), np.sort(x))


EXTREME = {"float32": (np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0), "int32": (-2**31, 2**31 - 1), "uint8": (0, 255),
           "bool": (0, 1)}


@pytest.mark.parametrize("dtype", sorted(EXTREME))
@pytest.mark.parametrize("n", (1, 31, 32, 63, 64, 65, 97, 1000))
def test_the_largest_of_few_and_of_many(n: int, dtype: str) -> None:
    """Rows that go up, down, have few values or one, and extremes; on both sides of how many are looked at together."""
    up = np.arange(n) % 200
    rows = [up, up[::-1], RNG.integers(0, 4, n), np.zeros(n), RNG.integers(0, 200, n)]
    x = np.stack(rows).astype(dtype)
    x[4, RNG.integers(0, n, 6)] = RNG.choice(np.array(EXTREME[dtype], dtype), 6)
    x[3] = np.array(EXTREME[dtype], dtype).min()
    counts = sorted({1, 2, 7, 8, 9, 16, 17, 64} & set(range(n + 1)))
    agree(lambda x: [(lax.top_k(x, k), lax.top_k(x.T, k, axis=0)) for k in counts], jnp.asarray(x))
    for k in counts:
        agree(lambda x, k=k: lax.top_k(x + x[:, ::-1], k), jnp.asarray(x))


@pytest.mark.parametrize("dtype", [*sorted(EXTREME), "int4", "uint32", "float8_e5m2", "float16", "int64", "float64"])
@pytest.mark.parametrize(("rows", "n"), [(16, 1), (16, 2), (33, 3), (17, 8), (40, 513), (15, 40)])
def test_the_largest_of_many_rows(rows: int, n: int, dtype: str) -> None:
    """One by one: rows of equals, of extremes alone (the least is taken, too), with NaN and zeros of both signs."""
    with anima.enable_x64(dtype in ("int64", "float64")):
        x = np.array(jnp.asarray(RNG.integers(0, 4, (rows, n))).astype(dtype))
        extremes = np.array(EXTREME.get(dtype, (0, -1 if dtype[0] == "i" else 1)), x.dtype)
        x[1], x[2], x[3] = extremes.min(), extremes.max(), RNG.choice(extremes, n)
        for k in range(1, min(4, n) + 1):
            agree(lambda x, k=k: (lax.top_k(x, k), lax.top_k(x.T, k, axis=0)), jnp.asarray(x))


# ---------------------------------------------------------------- on both sides of where another way is taken

LENGTHS = sorted({n + k for n in (WRITTEN_OUT, SHORT, LENGTH, 2 * LENGTH, 16, 512) for k in (-1, 0, 1)})


def kinds(x: Any) -> Any:
    """The numbers alone, where they came from, and by two keys."""
    places = lax.broadcasted_iota("int32", x.shape, 1)
    return (lax.sort(x, dimension=1), lax.sort((x, places), dimension=1, num_keys=1)[1],
            lax.sort((x // 3, -x, places), dimension=1, num_keys=2)[2])


ROWS = sorted({1, MANY - 1, MANY, 2 * MANY - 1, 2 * MANY, 17})
KEYS = ("float32", "uint64", "uint8", "int32", "float16", "float64")


@pytest.mark.parametrize("dtype", KEYS)
@pytest.mark.parametrize("rows", ROWS)
def test_ways_to_sort(rows: int, dtype: str) -> None:
    """Every length at which another way is taken, one less and one more: stable, with many equal elements.

    What is asked of a dtype is whether it is of floats and of 64 bits: two have every length with all numbers of rows,
    the others have every length, with a third of them.
    """
    first = ROWS.index(rows) + KEYS.index(dtype)
    with anima.enable_x64(True):
        for n in LENGTHS if dtype in KEYS[:2] else LENGTHS[first % 3::3]:
            x = RNG.integers(0 if dtype[0] == "u" else -9, 9, (rows, n)).astype(dtype)
            if dtype[0] == "f":
                x = np.where(RNG.random((rows, n)) < 0.2, RNG.choice([-0.0, 0.0], (rows, n)), x).astype(dtype)
            numbers, places, twice = map(np.asarray, anima.jit(kinds)(x))
            order = np.argsort(x, 1, kind="stable")
            np.testing.assert_array_equal(places, order)
            np.testing.assert_array_equal(numbers, np.take_along_axis(x, order, 1))
            np.testing.assert_array_equal(np.signbit(numbers), np.signbit(np.take_along_axis(x, order, 1)))
            np.testing.assert_array_equal(twice, np.lexsort((-x, x // 3), axis=1))


@pytest.mark.parametrize("dtype, n", [("float32", NETWORK), ("int16", NETWORK // 4), ("float64", NETWORK)])
@pytest.mark.parametrize("more", (0, 1))
def test_long_rows_in_lanes(dtype: str, n: int, more: int) -> None:
    with anima.enable_x64(True):
        x = (RNG.normal(size=(2 * MANY, n + more)) * 100).astype(dtype)
        numbers, places = anima.jit(lambda x: (jnp.sort(x), jnp.argsort(x)))(x)
        np.testing.assert_array_equal(numbers, np.sort(x))
        np.testing.assert_array_equal(places, np.argsort(x, kind="stable"))


@pytest.mark.parametrize("shape, axis", [((2 * PIECE,), 0), ((2 * PIECE - 1,), 0), ((2, 3 * PIECE + 5), 1),
                                         ((2 * PIECE + 1, 2), 0)])
@pytest.mark.parametrize("dtype", ["int16", "float32", "float64"])
def test_rows_in_pieces(shape: tuple[int, ...], axis: int, dtype: str) -> None:
    with anima.enable_x64(True):
        x = (RNG.normal(size=shape) * 50).astype(dtype)
        if dtype[0] == "f":
            x[np.abs(x) < 10] *= 0.0  # of both signs
            x.ravel()[::1000] = np.nan
        numbers, places = anima.jit(lambda x: (jnp.sort(x, axis=axis), jnp.argsort(x, axis=axis)))(x)
        order = np.argsort(x, axis, kind="stable")
        np.testing.assert_array_equal(places, order)
        want = np.take_along_axis(x, order, axis)
        np.testing.assert_array_equal(numbers, want)
        np.testing.assert_array_equal(np.signbit(numbers) & ~np.isnan(want), np.signbit(want) & ~np.isnan(want))


def exchanged(x: Any, y: Any) -> tuple[Any, Any]:
    x, y = lax.sort((x, y), num_keys=1)
    return y, x


SHARED: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "computed": (lambda x, y: jnp.sort(x * 2), (0,)), "crosswise": (exchanged, ()), "donated": (exchanged, (0, 1)),
    "carried": (lambda x, y: lax.fori_loop(0, 2, lambda i, c: jnp.sort(-c), x), ()),
    "in a scan": (lambda x, y: lax.scan(lambda c, _: (exchanged(*c), None), (x, y), None, length=2)[0], ()),
    "by two": (lambda x, y: lax.sort((jnp.abs(x) // 2, y + 0, x + 0), num_keys=2)[::-1], ())}


@pytest.mark.parametrize("name", sorted(SHARED))
@pytest.mark.parametrize("rows", (1, 3, 9))
def test_results_where_operands_were(name: str, rows: int) -> None:
    """Each way reads operands once more behind results: zeros of both signs, what goes along with a key."""
    function, donated = SHARED[name]
    for n in (3, 9, LENGTH, 300, *([2 * PIECE] if rows == 1 else [])):
        x = np.where(RNG.random((rows, n)) < 0.3, -0.0, RNG.integers(-4, 5, (rows, n))).astype(np.float32)
        y = np.arange(rows * n, dtype=np.float32).reshape(rows, n)
        with anima.disable_jit():
            want = anima.tree.leaves(function(jnp.array(x), jnp.array(y)))
        got = anima.tree.leaves(anima.jit(function, donate_argnums=donated)(jnp.array(x), jnp.array(y)))
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)
            np.testing.assert_array_equal(np.signbit(a), np.signbit(b))


@pytest.mark.parametrize("dtype", ["float32", "int8", "bfloat16"])
@pytest.mark.parametrize("kept", [64, 65, 128, 256, 257])
@pytest.mark.parametrize("more", [0, 17])
def test_first_elements_of_long_rows(kept: int, more: int, dtype: str) -> None:
    """By the limits of `Target.sorts`: of rows in any order, and where most elements come among the first."""
    x = RNG.normal(scale=30, size=(2, 512 * kept + more - 17)).astype("float32")
    x[1].sort()
    x[0, :: 1000] = np.nan if dtype != "int8" else 3
    x = jnp.asarray(x.astype(dtype))
    values, places = anima.jit(lambda x: lax.top_k(x, kept))(x)
    ranked = jnp.argsort(x, axis=-1, stable=True, descending=True)[:, :kept]
    np.testing.assert_array_equal(places, ranked)
    np.testing.assert_array_equal(np.asarray(values, "f4"), np.asarray(jnp.take_along_axis(x, ranked, -1), "f4"))
