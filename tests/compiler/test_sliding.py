"""Windows that slide over an array are read at sums of counters, however they are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp

RNG = np.random.default_rng(0)
X = RNG.normal(size=400).astype(np.float32)
Y = RNG.normal(size=(60, 3, 5)).astype(np.float32)


def check(fun: Callable[..., Any], plain: Callable[..., Any], *args: np.ndarray) -> str:
    """The compiled function against NumPy's; its loops."""
    np.testing.assert_array_equal(anima.jit(fun)(*args), plain(*args))
    return anima.jit(fun).lower(*args).loops


@pytest.mark.parametrize(("first", "step", "axis"), ((0, 1, 1), (0, 1, 0), (3, 5, -1), (40, -1, 1), (200, -7, 0)))
def test_stacked_windows_are_one_read(first: int, step: int, axis: int) -> None:
    def stacked(stack: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x: stack([x[first + step * k:first + step * k + 150] for k in range(20)], axis)

    loops = check(stacked(jnp.stack), stacked(np.stack), X)
    assert loops.count("kernel") == 1 and loops.count("out0[") == 1


@pytest.mark.parametrize("axis", (0, 1, 2, 3))
@pytest.mark.parametrize("moving", (0, 1, 2))
def test_windows_of_several_axes(axis: int, moving: int) -> None:
    y = np.repeat(Y, 12, axis=1) if moving == 1 else np.repeat(Y, 9, axis=2)

    def stacked(stack: Callable[..., Any]) -> Callable[..., Any]:
        def of(y: Any) -> Any:
            width = y.shape[moving] - 15
            cuts = [tuple(slice(k, k + width) if d == moving else slice(1, None) if d == 0 else slice(None)
                          for d in range(3)) for k in range(10)]
            return stack([y[c] for c in cuts], axis)
        return of

    loops = check(stacked(jnp.stack), stacked(np.stack), y)
    assert loops.count("out0[") == 1


@pytest.mark.parametrize("places", (
    lambda np: [0, 1, 2, 4, 5, 6, 7, 8, 9, 10], lambda np: [3] * 10, lambda np: [0, 2, 4, 6, 8, 10, 12, 14, 16, 17]))
def test_other_places_are_as_they_were(places: Callable[..., Any]) -> None:
    check(lambda x: jnp.stack([x[k:k + 150] for k in places(np)], 1),
          lambda x: np.stack([x[k:k + 150] for k in places(np)], 1), X)


def test_sums_over_windows_copy_none() -> None:
    fun = anima.jit(lambda x: jnp.max(jnp.stack([x[k:k + 300] for k in range(50)], 1), 1))
    assert "temp" not in fun.lower(X).loops
    windows = np.lib.stride_tricks.sliding_window_view(X[:349], 50)
    np.testing.assert_array_equal(fun(X), windows.max(1))


def test_slopes_of_stacked_windows() -> None:
    weights = RNG.normal(size=(300, 50)).astype(np.float32)
    slope = anima.jit(anima.grad(lambda x: jnp.sum(weights * jnp.stack([x[k:k + 300] for k in range(50)], 1))))(X)
    want = np.zeros(400)
    for k in range(50):
        want[k:k + 300] += weights[:, k]
    np.testing.assert_allclose(slope, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", (np.int32, np.int64, np.uint16))
@pytest.mark.parametrize("places", (
    np.arange(300)[:, None] + np.arange(50), np.arange(300)[::-1, None] + np.arange(50),
    7 + 2 * np.arange(100)[:, None] + 3 * np.arange(40), np.arange(12)[:, None, None] * 25 + np.arange(9)[:, None]
    + np.arange(5)))
def test_constant_places_that_are_counters(places: np.ndarray, dtype: type) -> None:
    loops = check(lambda x: x[places.astype(dtype)], lambda x: x[places], X)
    assert "const" not in loops and "index(" not in loops


@pytest.mark.parametrize("change", ((0, 0), (17, 3), (299, 49)))
def test_constants_that_are_almost_counters(change: tuple[int, int]) -> None:
    places = np.arange(300)[:, None] + np.arange(50)
    places[change] = 5
    check(lambda x: x[places], lambda x: x[places], X)


def test_counters_that_are_results() -> None:
    places = np.arange(6)[:, None] * 40 + np.arange(9, dtype=np.int32)
    check(lambda x: jnp.where(x > 0, places, 1), lambda x: np.where(x > 0, places, 1), RNG.normal(size=(6, 9)))


def test_traced_places_are_sums_of_counters() -> None:
    """No gather: what is known of counters is known of sums of them."""
    fun = anima.jit(lambda x: x[jnp.arange(300)[:, None] + 2 * jnp.arange(50)])
    assert "index(" not in fun.lower(X).loops
    np.testing.assert_array_equal(fun(X), X[np.arange(300)[:, None] + 2 * np.arange(50)])


def test_sums_of_counters_that_wrap() -> None:
    """Numbers of 8 bits go around: what they name is not the sum."""
    def places(np: Any) -> Any:
        return np.arange(100, dtype=np.uint8)[:, None] + np.arange(200, dtype=np.uint8)

    check(lambda x: x[places(jnp)], lambda x: x[places(np)], X)


def test_clipped_sums_of_counters() -> None:
    fun = anima.jit(lambda x: jnp.take(x, jnp.arange(300)[:, None] + 10 * jnp.arange(50), mode="clip"))
    places = np.minimum(np.arange(300)[:, None] + 10 * np.arange(50), 399)
    np.testing.assert_array_equal(fun(X), X[places])
