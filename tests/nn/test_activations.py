"""Activations against their formulas in NumPy, in values and in derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special as special

import anima
import anima.numpy as jnp
from anima import nn

X = np.array([-30.0, -6.5, -3.2, -1.5, -0.4, -1e-3, 1e-3, 0.7, 0.95, 1.5, 2.9, 5.5, 6.5, 30.0])


def sigmoid(x: Any) -> Any:
    return special.expit(x)


REFERENCE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "sigmoid": sigmoid,
    "softplus": lambda x: np.logaddexp(x, 0),
    "silu": lambda x: x * sigmoid(x),
    "swish": lambda x: x * sigmoid(x),
    "mish": lambda x: x * np.tanh(np.logaddexp(x, 0)),
    "log_sigmoid": lambda x: -np.logaddexp(-x, 0),
    "soft_sign": lambda x: x / (1 + np.abs(x)),
    "tanh": np.tanh,
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "celu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0))),
    "leaky_relu": lambda x: np.where(x >= 0, x, 0.01 * x),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "hard_tanh": lambda x: np.clip(x, -1, 1),
    "hard_sigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "hard_silu": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "hard_swish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "squareplus": lambda x: (x + np.sqrt(x**2 + 4)) / 2,
    "sparse_plus": lambda x: np.where(x <= -1, 0, np.where(x >= 1, x, (x + 1)**2 / 4)),
    "sparse_sigmoid": lambda x: np.clip((x + 1) / 2, 0, 1),
    "identity": lambda x: x,
    "exact_gelu": lambda x: x * special.ndtr(x),
}


def function(name: str) -> Callable[..., Any]:
    if name == "exact_gelu":
        return lambda x: nn.gelu(x, approximate=False)
    return getattr(nn, name)


@pytest.mark.parametrize("name", REFERENCE)
def test_value(name: str, x64: None) -> None:
    np.testing.assert_allclose(function(name)(X), REFERENCE[name](X), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", REFERENCE)
def test_derivative(name: str, x64: None) -> None:
    step = 1e-6
    reference = REFERENCE[name]
    want = (reference(X + step) - reference(X - step)) / (2 * step)
    got = anima.grad(lambda x: jnp.sum(function(name)(x)))(X)
    np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("name", REFERENCE)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_keeps_dtype_and_stays_finite(name: str, dtype: str) -> None:
    x = jnp.asarray(X, dtype)
    y = function(name)(x)
    assert y.dtype == x.dtype
    slope = anima.grad(lambda x: jnp.sum(function(name)(x)))(x)
    assert slope.dtype == x.dtype
    assert np.isfinite(np.asarray(y, np.float64)).all() and np.isfinite(np.asarray(slope, np.float64)).all()


@pytest.mark.parametrize("name", REFERENCE)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int32"])
def test_arrays_of_numpy_are_as_ours(name: str, dtype: str) -> None:
    x = jnp.asarray(X, dtype)
    ours, theirs = function(name)(x), function(name)(np.asarray(x))
    np.testing.assert_array_equal(ours, theirs)
    assert (ours.dtype, ours.weak_type) == (theirs.dtype, theirs.weak_type)


def test_kinks() -> None:
    assert float(anima.grad(nn.relu)(0.0)) == 0
    assert float(anima.grad(nn.relu6)(0.0)) == 0
    assert float(anima.grad(nn.relu6)(6.0)) == 0
    assert float(anima.grad(nn.elu)(0.0)) == 1
    assert np.asarray(anima.grad(lambda x: nn.elu(x).sum())(jnp.array([-200.0, 200.0]))).tolist() == [0, 1]


def test_second_derivatives_and_vmap() -> None:
    second = anima.vmap(anima.grad(anima.grad(nn.softplus)))(jnp.array([-1.0, 0.0, 2.0]))
    s = sigmoid(np.array([-1.0, 0.0, 2.0]))
    np.testing.assert_allclose(second, s * (1 - s), rtol=1e-5)
    assert np.asarray(anima.vmap(anima.grad(nn.relu))(jnp.array([-1.0, 0.0, 2.0]))).tolist() == [0, 0, 1]


def test_integers() -> None:
    i = jnp.arange(-2, 3)
    assert nn.relu(i).dtype == np.int32 and np.asarray(nn.relu(i)).tolist() == [0, 0, 0, 1, 2]
    for name in ("sigmoid", "silu", "elu", "gelu", "softplus", "leaky_relu"):
        np.testing.assert_allclose(function(name)(i), REFERENCE[name](np.arange(-2.0, 3.0)), rtol=1e-5, atol=1e-6)


def test_glu() -> None:
    x = np.linspace(-2, 2, 12).reshape(2, 6).astype(np.float32)
    np.testing.assert_allclose(nn.glu(x), x[:, :3] * sigmoid(x[:, 3:]), rtol=1e-6)
    np.testing.assert_allclose(nn.glu(x, axis=0), x[:1] * sigmoid(x[1:]), rtol=1e-6)
    with pytest.raises(ValueError, match="divisible by 2"):
        nn.glu(jnp.ones((2, 3)))


def test_log1mexp(x64: None) -> None:
    x = np.array([1e-12, 1e-3, 0.5, 0.7, 3.0, 50.0])
    want = np.where(x < 0.5, np.log(-np.expm1(-x)), np.log1p(-np.exp(-x)))
    np.testing.assert_allclose(nn.log1mexp(x), want, rtol=1e-12)
    np.testing.assert_allclose(anima.vmap(anima.grad(nn.log1mexp))(x), 1 / np.expm1(x), rtol=1e-12)


@pytest.mark.parametrize("name", ["log_sigmoid", "mish", "sigmoid", "silu", "softplus", "tanh"])
def test_weak_types_stay_weak_and_arrays_of_integers_strong(name):
    function = getattr(nn, name)
    for x, weak in [(jnp.asarray(2), True), (2.5, True), (jnp.int32(2), False), (jnp.arange(3, dtype="int8"), False)]:
        y = function(x)
        assert (y.dtype, y.weak_type) == ("float32", weak)


@pytest.mark.parametrize("name", ["mish", "softplus"])
def test_truth_values_are_weak_default_floats(name: str, x64: None) -> None:
    for x in (True, jnp.array([True, False])):
        y = function(name)(x)
        assert (y.dtype, y.weak_type) == ("float64", True)
        np.testing.assert_allclose(y, REFERENCE[name](np.asarray(x, float)), rtol=1e-15)
