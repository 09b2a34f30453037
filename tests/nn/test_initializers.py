"""Initializers: the variances they promise, shapes, dtypes, errors. Their numbers: tests/random/test_golden.py."""

from __future__ import annotations

import numpy as np
import pytest

import anima.numpy as jnp
from anima import random
from anima.nn import initializers as init

KEY = random.key(7)


@pytest.mark.parametrize("distribution", ["normal", "truncated_normal", "uniform"])
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize(("mode", "fan"), [
    ("fan_in", 60 * 3), ("fan_out", 80 * 3), ("fan_avg", 70 * 3), ("fan_geo_avg", np.sqrt(4800) * 3)])
def test_variance(distribution: str, dtype: type, mode: str, fan: float) -> None:
    w = np.asarray(init.variance_scaling(2.0, mode, distribution)(KEY, (3, 60, 80), dtype))
    assert w.dtype == dtype
    variance = np.mean(np.abs(w.astype(np.complex128))**2)
    assert abs(variance * fan / 2 - 1) < 0.05
    assert abs(w.mean()) < 5 * np.sqrt(2 / fan / w.size)


@pytest.mark.parametrize(("name", "variance"), [
    ("lecun", 1 / 50), ("he", 2 / 50), ("kaiming", 2 / 50), ("glorot", 2 / 150), ("xavier", 2 / 150)])
@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_named(name: str, variance: float, kind: str) -> None:
    w = np.asarray(getattr(init, f"{name}_{kind}")()(KEY, (50, 100), jnp.float32))
    assert abs(w.var() / variance - 1) < 0.08


def test_simple() -> None:
    assert np.asarray(init.zeros(KEY, (2, 3), jnp.int8)).tolist() == [[0] * 3] * 2
    assert np.asarray(init.ones(KEY, (2,))).tolist() == [1, 1]
    assert np.asarray(init.constant(3)(KEY, (2,))).tolist() == [3, 3]
    assert np.asarray(init.uniform(5.0)(KEY, (1000,))).max() <= 5
    assert abs(np.asarray(init.normal(2.0)(KEY, (4000,))).std() - 2) < 0.1
    assert np.abs(np.asarray(init.truncated_normal(0.5, lower=-1, upper=1)(KEY, (1000,)))).max() <= 0.5
    assert isinstance(init.zeros, init.Initializer)
    assert init.zeros.__name__ == "zeros" and init.ones.__name__ == "ones"


def test_axes() -> None:
    w = np.asarray(init.lecun_normal(in_axis=(0, 2), out_axis=1, batch_axis=3)(KEY, (10, 40, 10, 5)))
    assert abs(w.var() * 100 - 1) < 0.1


@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (2, 3, 5)])
def test_orthogonal(shape: tuple[int, ...]) -> None:
    w = np.asarray(init.orthogonal(2.0)(KEY, shape), np.float64)
    flat = w.reshape(-1, shape[-1]) / 2
    gram = flat @ flat.T if flat.shape[0] < flat.shape[1] else flat.T @ flat
    np.testing.assert_allclose(gram, np.eye(min(flat.shape)), atol=1e-5)


def test_orthogonal_matrices_are_those_of_random() -> None:
    for shape in [(3, 3), (3, 2), (2, 3)]:
        np.testing.assert_array_equal(init.orthogonal()(KEY, shape), random.orthogonal(KEY, shape[0], m=shape[1]))


def test_errors() -> None:
    with pytest.raises(ValueError, match="Can't compute input and output sizes of a 1-dimensional weights tensor"):
        init.glorot_normal()(KEY, (3,))
    assert init.lecun_normal(in_axis=0, out_axis=0)(KEY, (3,)).shape == (3,)
    with pytest.raises(ValueError, match="`fan_in` must be less or equal than `fan_out`"):
        init.delta_orthogonal()(KEY, (3, 4, 3))
    assert init.delta_orthogonal()(KEY, (3, 3, 3)).shape == (3, 3, 3)
    with pytest.raises(ValueError, match="invalid distribution"):
        init.variance_scaling(1.0, "fan_in", "x")(KEY, (2, 3))
    with pytest.raises(ValueError, match="invalid mode"):
        init.variance_scaling(1.0, "x", "normal")(KEY, (2, 3))
    with pytest.raises(ValueError, match="at least a 2D shape"):
        init.orthogonal()(KEY, (3,))
    with pytest.raises(ValueError, match="3D, 4D or 5D"):
        init.delta_orthogonal()(KEY, (3, 2))
