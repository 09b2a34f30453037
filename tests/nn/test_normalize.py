"""Softmax, logsumexp, standardize, one_hot against SciPy and NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.special as special

import anima
import anima.numpy as jnp
from anima import nn

X = np.random.default_rng(0).normal(size=(3, 4, 5)) * 10
AXES = pytest.mark.parametrize("axis", [-1, 0, 1, (0, 2), None])
MASK = np.random.default_rng(1).random(X.shape) < 0.7


@AXES
def test_softmax(axis: Any, x64: None) -> None:
    np.testing.assert_allclose(nn.softmax(X, axis), special.softmax(X, axis), rtol=1e-12)
    np.testing.assert_allclose(nn.log_softmax(X, axis), special.log_softmax(X, axis), rtol=1e-12, atol=1e-14)


@AXES
def test_logsumexp(axis: Any, x64: None) -> None:
    b = np.random.default_rng(2).normal(size=X.shape)
    np.testing.assert_allclose(nn.logsumexp(X, axis), special.logsumexp(X, axis), rtol=1e-12)
    np.testing.assert_allclose(nn.logsumexp(X, axis, b=np.abs(b), keepdims=True),
                               special.logsumexp(X, axis, b=np.abs(b), keepdims=True), rtol=1e-12)
    got, want = nn.logsumexp(X, axis, b, return_sign=True), special.logsumexp(X, axis, b, return_sign=True)
    np.testing.assert_allclose(got[0], want[0], rtol=1e-10)
    np.testing.assert_array_equal(got[1], want[1])


def test_extremes() -> None:
    assert float(nn.logsumexp(jnp.array([-np.inf, -np.inf]))) == -np.inf
    assert float(nn.logsumexp(jnp.array([np.inf, 1.0]))) == np.inf
    np.testing.assert_allclose(nn.logsumexp(jnp.array([1000.0, 1000.0])), 1000 + np.log(2), rtol=1e-6)
    assert np.isnan(float(nn.logsumexp(jnp.array([1.0, 2.0]), b=jnp.array([1.0, -2.0]))))
    np.testing.assert_allclose(nn.softmax(jnp.array([1e4, 0.0, -np.inf])), [1, 0, 0])
    assert np.asarray(nn.log_softmax(jnp.array([1e4, 0.0]))).tolist() == [0, -1e4]
    slopes = anima.grad(lambda x: nn.logsumexp(x))(jnp.array([0.0, -np.inf]))
    assert np.asarray(slopes).tolist() == [1, 0]
    for kept in (nn.logsumexp, nn.logmeanexp):  # what is left out is so large that its exponential is infinite
        slopes = anima.grad(lambda x, kept=kept: kept(x, where=x < 1000))(jnp.array([36.0, 1e4]))
        assert np.asarray(slopes).tolist() == [1, 0]


def test_where(x64: None) -> None:
    masked = np.where(MASK, X, -np.inf)
    np.testing.assert_allclose(nn.logsumexp(X, -1, where=MASK), special.logsumexp(masked, -1), rtol=1e-12)
    soft = np.asarray(nn.softmax(X, -1, where=MASK))
    rows = MASK.any(-1)
    np.testing.assert_allclose(soft[rows], special.softmax(masked[rows], -1), rtol=1e-12)
    logs = np.asarray(nn.log_softmax(X, -1, where=MASK))
    np.testing.assert_allclose(logs[rows], special.log_softmax(masked[rows], -1), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(nn.logmeanexp(X, where=MASK), np.log(np.mean(np.exp(X[MASK]))), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "int64"])
def test_integers_of_which_some_are_left_out_are_default_floats(dtype: str, x64: None) -> None:
    x, kept = jnp.array([1, 0, 1], dtype), jnp.array([True, False, True])
    for function, want in [(nn.softmax, [0.5, 0, 0.5]), (nn.log_softmax, [-np.log(2), -np.inf, -np.log(2)])]:
        y = function(x, where=kept)
        assert (y.dtype, y.weak_type) == ("float64", False)
        np.testing.assert_allclose(y, want, rtol=1e-15)


@pytest.mark.parametrize("shape", [(), (3,), (1, 3)])
def test_where_has_the_shape_of_the_array(shape: tuple[int, ...]) -> None:
    for function in (nn.softmax, nn.log_softmax):
        with pytest.raises(ValueError, match="broadcast"):
            function(jnp.ones(shape), where=jnp.ones((2, 3), bool))


def test_gradients(x64: None) -> None:
    soft = special.softmax(X, -1)
    np.testing.assert_allclose(anima.grad(lambda x: nn.logsumexp(x, -1).sum())(X), soft, rtol=1e-10)
    weights = np.random.default_rng(3).normal(size=X.shape)
    want = soft * (weights - (weights * soft).sum(-1, keepdims=True))
    np.testing.assert_allclose(anima.grad(lambda x: (weights * nn.softmax(x)).sum())(X), want, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("algorithm", ["fast", "stable"])
def test_standardize(algorithm: str, x64: None) -> None:
    mean, var = X.mean(-1, keepdims=True), X.var(-1, keepdims=True)
    np.testing.assert_allclose(nn.standardize(X, algorithm=algorithm), (X - mean) / np.sqrt(var + 1e-5), rtol=1e-9)
    given = nn.standardize(X, mean=1.0, variance=4.0, epsilon=0.0)
    np.testing.assert_allclose(given, (X - 1) / 2, rtol=1e-12)
    with pytest.raises(ValueError, match="algorithm"):
        nn.standardize(X, algorithm="other")


def test_one_hot() -> None:
    x = np.array([[0, 1], [5, -1]])
    want = np.stack([x == i for i in range(3)], axis=-1)
    got = nn.one_hot(x, 3)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(nn.one_hot(x, 3, dtype=bool, axis=0), np.moveaxis(want, -1, 0))
    np.testing.assert_array_equal(nn.one_hot(x, 3, axis=1), np.moveaxis(want, -1, 1))
    for places in (np.array([True, False]), np.int8([1, 0])):
        np.testing.assert_array_equal(nn.one_hot(places, 3), [[0, 1, 0], [1, 0, 0]])
    for floats, found in ((np.float32([1, 0]), [[0, 1, 0], [1, 0, 0]]), (1.5, np.zeros(3))):
        with pytest.warns(DeprecationWarning, match="should be integer-typed"):
            np.testing.assert_array_equal(nn.one_hot(floats, 3), found)
    np.testing.assert_array_equal(nn.one_hot(np.int8([5, -5]), 300), [np.arange(300) == 5, np.zeros(300)])
    for axis in (-3, 2):
        with pytest.raises(ValueError, match=f"axis {axis} is out of bounds for array of dimension 2"):
            nn.one_hot(jnp.arange(3), 3, axis=axis)
    with pytest.raises(TypeError, match="softmax requires ndarray or scalar arguments, got <class 'list'>"):
        nn.softmax([1.0, 2.0])
    with pytest.raises(TypeError, match="'float' object cannot be interpreted as an integer"):
        nn.one_hot(jnp.arange(3), 2.5)
    with pytest.raises(TypeError, match="must not be negative, got -1"):
        nn.one_hot(1, -1)
    with pytest.raises(anima.errors.ConcretizationTypeError):
        anima.jit(lambda n: nn.one_hot(0, n))(3)


@pytest.mark.parametrize("large", [1e4, np.inf, 88.0])
@pytest.mark.parametrize("jit", [lambda f: f, anima.jit], ids=["eager", "jit"])
def test_what_counts_for_nothing_is_not_seen(jit: Any, large: float) -> None:
    """Terms with a factor of 0, and elements left out, however large; rows of which nothing is left."""
    a, b = jnp.array([large, 0.5, 2.0]), jnp.array([0.0, 1.0, -0.25])
    want = np.log(np.exp(0.5) - 0.25 * np.exp(2.0)) if np.exp(0.5) > 0.25 * np.exp(2.0) else np.nan
    np.testing.assert_allclose(jit(lambda a, b: nn.logsumexp(a, b=b))(a, b), want, rtol=1e-5)
    value, sign = jit(lambda a, b: nn.logsumexp(a, b=b, return_sign=True))(a, b)
    np.testing.assert_allclose((value, sign), (np.log(abs(np.exp(0.5) - 0.25 * np.exp(2.0))), np.sign(
        np.exp(0.5) - 0.25 * np.exp(2.0))), rtol=1e-5)
    where = jnp.array([[False, True, True], [False, False, False]])
    x = jnp.stack([a, a])
    got = jit(lambda x: nn.softmax(x, where=where))(x)
    np.testing.assert_allclose(got, [[0, *special.softmax([0.5, 2.0])], [0, 0, 0]], rtol=1e-6)
    logs = jit(lambda x: nn.log_softmax(x, where=where))(x)
    np.testing.assert_allclose(logs[0], [-np.inf, *special.log_softmax([0.5, 2.0])], rtol=1e-6)
    assert np.asarray(logs[1]).tolist() == [-np.inf] * 3


@pytest.mark.parametrize("algorithm", ["fast", "stable"])
def test_what_is_nearly_constant_is_standardized_to_finite_numbers(algorithm: str) -> None:
    for x in (np.full(7, 1e4), 1e4 + np.arange(7) * 1e-3, np.full(7, 3333.3), np.full(7, 1e-20), np.zeros(7)):
        out = np.asarray(nn.standardize(x.astype("float32"), epsilon=1e-12, algorithm=algorithm))
        assert np.isfinite(out).all()


def test_logsumexp_of_complex_numbers_with_its_sign():
    a = np.array([1 + 2j, 0.5 - 1j, -3j], "complex64")
    value, sign = nn.logsumexp(a, return_sign=True)
    total = np.exp(a).sum()
    assert (value.dtype, sign.dtype) == ("float32", "complex64")
    np.testing.assert_allclose(value, np.log(abs(total)), rtol=1e-6)
    np.testing.assert_allclose(sign, total / abs(total), rtol=1e-6)
