"""Updates of single elements in parts: histograms and sums of segments, for every number of updates and of results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.compiler.lowering.index import BLOCK, GROUP, LEAST, RUNS, SPARE
from tests.compiler.results import same_for_threads

RNG = np.random.default_rng(6)
COUNTS = (LEAST - 1, LEAST, LEAST + 1, 2 * LEAST + 1, 3 * LEAST + BLOCK - 1, 70_001)


def integers(low: int, high: int, *shape: int) -> np.ndarray:
    return RNG.integers(low, high, shape).astype(np.int32)


@pytest.mark.parametrize("size", (1, 2, 15, 16, 17, 33, 1000))
def test_histograms(size: int) -> None:
    for count in COUNTS:
        i = integers(-size - 3, size + 3, count)
        fits = (i >= -size) & (i < size)
        want = np.bincount(i[fits] % size, minlength=size)
        np.testing.assert_array_equal(anima.jit(lambda i: jnp.zeros(size, jnp.int32).at[i].add(1))(i), want)


@pytest.mark.parametrize("count, parted", [(LEAST - 1, False), (LEAST, True)])
def test_parts_from_so_many_updates_on(count: int, parted: bool) -> None:
    fun = anima.jit(lambda x, i: jnp.zeros(8).at[i].add(x))
    assert ("scatter_add_parts" in str(fun.lower(np.ones(count, np.float32), integers(0, 8, count)).loops)) == parted
    most = LEAST // SPARE
    fun = anima.jit(lambda x, i: jnp.zeros(most + 1 - parted).at[i].add(x))
    assert ("scatter_add_parts" in str(fun.lower(np.ones(LEAST, np.float32), integers(0, 8, LEAST)).loops)) == parted


@pytest.mark.parametrize("dtype", ("int8", "uint16", "int32", "float16", "bfloat16", "float32", "float64", "complex64"))
@pytest.mark.parametrize("name", ("add", "multiply", "min", "max"))
def test_every_operation_and_type(name: str, dtype: str) -> None:
    if name in ("min", "max") and dtype == "complex64":
        return
    with anima.enable_x64(True):
        start, i = jnp.arange(1, 34).astype(dtype), integers(0, 40, 20_001)
        x = jnp.asarray(RNG.choice([1, 2, 3] if name != "multiply" else [1, 1, -1], i.size)).astype(dtype)
        if name == "multiply" and dtype == "uint16":
            x = x * x
        fun = lambda start, i, x: getattr(start.at[i], name)(x, mode="drop")
        got, want = anima.jit(fun)(start, i, x), fun(start, i, x)
        assert got.dtype == want.dtype
        exact = np.dtype(want.dtype).kind in "iu" or name in ("min", "max")
        np.testing.assert_allclose(np.asarray(got).astype(complex), np.asarray(want).astype(complex),
                                   rtol=0 if exact else 1e-2 if dtype in ("float16", "bfloat16") else 1e-5)


def test_places_of_several_indices_and_modes() -> None:
    x, i, j = RNG.normal(size=(150, 200)).astype(np.float32), integers(-9, 9, 150, 200), integers(-9, 9, 150, 200)

    def fun(mode: str) -> Any:
        return lambda x, i, j: jnp.zeros((5, 7)).at[i, j].add(x * 2, mode=mode)

    for mode in ("drop", "clip"):
        np.testing.assert_allclose(anima.jit(fun(mode))(x, i, j), fun(mode)(x, i, j), rtol=1e-4, atol=1e-3)


def test_operands_stay_and_empty_and_nan_updates_too() -> None:
    start, i = jnp.arange(4.0), integers(0, 3, 20_000)
    x = np.zeros(20_000, np.float32)
    x[i == 1], x[0] = np.nan, np.inf
    i[0] = 0
    got = anima.jit(lambda s, i, x: (s.at[i].add(x), s))(start, i, x)
    np.testing.assert_array_equal(got[0], [np.inf, np.nan, 2, 3])
    np.testing.assert_array_equal(got[1], start)
    zeros = anima.jit(lambda s, i, x: s.at[i].add(x))(-jnp.zeros(4), i, -np.zeros(20_000, np.float32))
    assert np.signbit(zeros).all()


def test_sums_are_the_same_for_any_number_of_threads() -> None:
    x, i = RNG.normal(size=100_000).astype(np.float32), integers(0, 100, 100_000)
    got = same_for_threads(lambda x, i: anima.ops.segment_sum(x, i, num_segments=100), x, i)
    np.testing.assert_allclose(got, np.bincount(i, x, 100), rtol=1e-4, atol=1e-3)


def test_gradients_and_lanes() -> None:
    x, i = RNG.normal(size=(3, 10_000)).astype(np.float32), integers(0, 10, 3, 10_000)
    fun = anima.vmap(lambda x, i: (jnp.zeros(10).at[i].add(x) ** 2).sum())
    want = np.stack([2 * np.bincount(k, y, 10)[k] for y, k in zip(x, i, strict=True)])
    np.testing.assert_allclose(anima.jit(anima.grad(lambda x: fun(x, i).sum()))(x), want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", ["int32", "float32", "bfloat16"])
@pytest.mark.parametrize("count", (LEAST, 2 * LEAST + GROUP - 1, 3 * LEAST + BLOCK - 1))
@pytest.mark.parametrize("long", (GROUP - 1, GROUP, GROUP + 1, 3 * GROUP, 700))
def test_runs_of_updates(count: int, long: int, dtype: str) -> None:
    """Runs that end anywhere in a group, updates outside, and a promise of order that is not kept."""
    size = count // RUNS // 2
    i = np.minimum(np.arange(count) // long, size + 2).astype(np.int32)
    outside, mixed = i.copy(), i.copy()
    outside[:GROUP // 2], outside[-GROUP:] = -size - 9, size + 9
    mixed[5:-5:GROUP // 2] = 0
    x = integers(-4, 5, count)
    for places in (i, outside, mixed):
        total = anima.jit(lambda x, i: jnp.zeros(size, dtype).at[i].add(x.astype(dtype), indices_are_sorted=True))
        fits = (places >= -size) & (places < size)
        if dtype == "bfloat16":  # sums that it cannot tell apart
            x = np.where(np.arange(count) % long < 20, x, 0).astype(np.int32)
            if places is mixed:
                continue
        want = np.bincount(places[fits] % size, x[fits], size)
        np.testing.assert_array_equal(np.asarray(total(x, places), np.float64), want)
        if dtype == "int32":
            most = anima.jit(lambda x, i: jnp.full(size, -9).at[i].max(x, indices_are_sorted=True))
            wanted = np.full(size, -9)
            np.maximum.at(wanted, places[fits] % size, x[fits])
            np.testing.assert_array_equal(most(x, places), wanted)
