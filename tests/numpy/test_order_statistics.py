"""Quantiles by weights, against NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp

FRACTIONS = np.float32([0, 0.1, 0.25, 0.3, 0.5, 0.77, 1])


def array(shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(3).integers(-20, 20, shape).astype(dtype)


@pytest.mark.parametrize("weighted", ["no", "each element", "each place"])
@pytest.mark.parametrize(("shape", "axis"), [((7,), None), ((1,), 0), ((3, 5), 1), ((4, 3), 0), ((2, 3, 4), (2, 0)),
                                             ((2, 3, 4), (2, 0, 1)), ((2, 3), None), ((0, 3), 1)])
@pytest.mark.parametrize("name", ["quantile", "percentile", "nanquantile"])
def test_inverted_cdf(name: str, shape: tuple[int, ...], axis: Any, weighted: str) -> None:
    x = array(shape)
    if weighted == "each place" and axis is None:
        pytest.skip("all axes: a weight for each element")
    places = (axis,) if isinstance(axis, int) else axis
    size = shape if weighted == "each element" or axis is None else tuple(shape[k] for k in places)
    weights = None if weighted == "no" else np.random.default_rng(4).integers(1, 9, size).astype("float32")
    q = FRACTIONS * (100 if name == "percentile" else 1)
    if name == "nanquantile" and not x.size:
        pytest.skip("NumPy's fails")
    if name == "nanquantile" and x.size > 4:
        x.flat[2] = np.nan
    full = weights
    if weighted == "each place":  # NumPy wants them in the order of the axes
        order = np.argsort(places)
        full = np.broadcast_to(np.expand_dims(weights.transpose(order), [d for d in range(x.ndim) if d not in places]),
                               shape)
    want = getattr(np, name)(x, q, axis, method="inverted_cdf", weights=full)
    for run in (lambda f: f, anima.jit):
        got = run(lambda x, w: getattr(jnp, name)(x, q, axis, method="inverted_cdf", weights=w))(x, weights)
        np.testing.assert_array_equal(got, want)


def test_weights_that_mean_nothing() -> None:
    x = jnp.arange(4.0)
    assert jnp.isnan(jnp.quantile(x, 0.5, method="inverted_cdf", weights=jnp.array([1, -1, 1, 1])))
    assert jnp.isnan(jnp.quantile(x.at[1].set(jnp.nan), 0.5, method="inverted_cdf", weights=jnp.ones(4)))
    assert jnp.quantile(x, 0.6, method="inverted_cdf", weights=jnp.array([1.0, 0, 0, 1])) == 3
    for weights, axis in ((jnp.ones(3), None), (jnp.ones(3), 0), (jnp.ones((2, 4)), 0)):
        with pytest.raises(ValueError, match="quantile: weights of shape"):
            jnp.quantile(x, 0.5, axis, method="inverted_cdf", weights=weights)
    with pytest.raises(ValueError, match="method can only be one of"):
        jnp.quantile(x, 0.5, method="weibull")
