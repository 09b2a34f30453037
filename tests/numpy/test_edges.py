"""Numbers at the edges of their types, empty arrays, and arguments that look like others."""

from __future__ import annotations

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.complex64])
def test_round_to_more_places_than_there_are(dtype: type) -> None:
    x = jnp.array([1.7, -0.4], dtype)
    for places in (39, 100, 1000):
        np.testing.assert_array_equal(jnp.round(x, places), x)
        np.testing.assert_array_equal(anima.jit(lambda x, p=places: jnp.round(x, p))(x), x)
        np.testing.assert_array_equal(jnp.round(x, -places), np.zeros(2, dtype))
    np.testing.assert_array_equal(jnp.round(jnp.float32([np.inf, np.nan]), -100), [np.inf, np.nan])


@pytest.mark.parametrize("period", [None, 0.59])
def test_interp_between_tiny_places(period: float | None) -> None:
    x = np.exp(np.linspace(-90, -20, 1000)).astype(np.float32)
    slopes = anima.grad(lambda z: jnp.interp(z, z, jnp.ones_like(z), period=period).sum())(x)
    assert np.isfinite(slopes).all()
    assert float(jnp.interp(5e-30, jnp.float32([0, 1e-29]), jnp.float32([1, 2]))) == 1.5
    slope = anima.grad(lambda x: jnp.interp(x, jnp.float32([0, 1e-29]), jnp.float32([0, 1e-29])))(np.float32(5e-30))
    np.testing.assert_allclose(slope, 1.0, rtol=1e-6)


def test_put_clips_to_the_ends() -> None:
    x = jnp.arange(6)
    np.testing.assert_array_equal(jnp.put(x, np.array([0, -1, 9]), np.array([7, 8]), inplace=False), [7, 1, 2, 3, 4, 7])
    np.testing.assert_array_equal(jnp.put(x, np.int8([-9]), 9, inplace=False), [9, 1, 2, 3, 4, 5])
    np.testing.assert_array_equal(jnp.put(x, np.array([-1]), 9, mode="clip", inplace=False), [9, 1, 2, 3, 4, 5])


def test_gather_at_no_places_from_nothing() -> None:
    numbers = lax.GatherDimensionNumbers((), (0,), (0,))
    places = np.zeros((0, 1), np.int32)
    for way in (lambda f: f, anima.jit):
        out = way(lambda x: lax.gather(x, places, numbers, (1,)))(jnp.zeros(0))
        assert out.shape == (0,) and out.dtype == np.float32
    with pytest.raises(TypeError, match="Slice size at index 0"):
        lax.gather(jnp.zeros(0), np.zeros((2, 1), np.int32), numbers, (1,))
