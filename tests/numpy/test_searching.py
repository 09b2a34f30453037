"""Searches among few numbers, compared with all, and among many; histograms, which are made of them."""

import ml_dtypes
import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.numpy.sorting import COUNTED

SIZES = (1, 2, 3, 4, 7, 8, 9, 31, 33, COUNTED - 1, COUNTED, COUNTED + 1, 2 * COUNTED - 1, 2 * COUNTED, 2 * COUNTED + 1)


def numbers(dtype: str, size: int, seed: int = 0) -> np.ndarray:
    """Sorted, many of them equal; the last ones of floating point are NaN."""
    x = np.sort(np.random.default_rng(seed).integers(0, max(2, min(size, 250) // 2), size)).astype(dtype)
    if x.dtype.kind == "f" and size > 2:
        x[-min(size // 3, 3):] = np.nan
    return x


def wanted(dtype: str, size: int) -> np.ndarray:
    x = np.random.default_rng(1).integers(0, min(size, 250) // 2 + 2, 40).astype(dtype)
    if x.dtype.kind == "f":
        x[::7] = np.nan
        x[1], x[2], x[3], x[4] = np.inf, -np.inf, -1, -0.0
    return x


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "uint8"])
@pytest.mark.parametrize("size", SIZES)
def test_places(size: int, dtype: str, side: str) -> None:
    x, v = numbers(dtype, size), wanted(dtype, size)
    expected = np.searchsorted(x, v, side)
    assert np.array_equal(jnp.searchsorted(x, v, side), expected)
    assert np.array_equal(anima.jit(jnp.searchsorted, static_argnums=2)(x, v, side), expected)
    assert np.array_equal(anima.vmap(lambda v: jnp.searchsorted(x, v, side))(v), expected)
    assert jnp.searchsorted(x, v[5], side) == expected[5]


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("size", [1, 5, COUNTED + 9])
def test_bins_up_and_down(size: int, right: bool) -> None:
    bins, v = np.sort(numbers("int32", size)), wanted("int32", size)
    for edges in (bins, bins[::-1]):
        assert np.array_equal(jnp.digitize(v, edges, right), np.digitize(v, edges, right))
        assert np.array_equal(anima.jit(jnp.digitize, static_argnums=2)(v, edges, right), np.digitize(v, edges, right))


@pytest.mark.parametrize("bins", [1, 20, COUNTED, 500])
def test_histograms(bins: int) -> None:
    x = np.random.default_rng(2).normal(size=3000).astype(np.float32)
    x[:2] = -1, 1
    edges = jnp.histogram_bin_edges(x, bins, (-1.0, 1.0))
    expected, _ = np.histogram(x, np.asarray(edges))
    counts, found = anima.jit(lambda x: jnp.histogram(x, bins, (-1.0, 1.0)))(x)
    assert np.array_equal(found, edges) and counts.dtype == np.float32
    assert np.array_equal(counts, expected)
    assert np.array_equal(jnp.histogram(x, edges, weights=2 * np.ones_like(x))[0], 2 * expected)


def test_many_are_counted_in_few_digits() -> None:
    """Of bfloat16, 256 + 1 is 256: counts are whole numbers until the end."""
    counts, _ = jnp.histogram(jnp.zeros(3000, jnp.bfloat16), 3, (-1.0, 1.0))
    assert np.array_equal(counts, np.array([0, 3000, 0], ml_dtypes.bfloat16))
    assert counts.dtype == jnp.bfloat16
