"""Layers against what they are made of, shapes of parameters and results, combinations, training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax, nn, random
from anima.example_libraries import optimizers, stax

KEY = random.PRNGKey(0)
FLAT = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
IMAGES = np.linspace(-1, 1, 216, dtype=np.float32).reshape(2, 6, 6, 3)
NHWC = ("NHWC", "HWIO", "NHWC")


def run(layer: Any, inputs: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Parameters and results; the shape that was announced is that of the results, and -1 stands for any batch."""
    init, apply = layer
    shape, params = init(KEY, inputs.shape)
    out = anima.jit(apply)(params, inputs, **kwargs)
    assert tuple(shape) == out.shape
    free, _ = init(KEY, (-1, *inputs.shape[1:]))
    assert tuple(free)[1:] == out.shape[1:] and free[0] == -1
    return params, out


def close(a: Any, b: Any) -> None:
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_dense() -> None:
    (w, b), out = run(stax.Dense(3), FLAT)
    assert (w.shape, b.shape) == ((4, 3), (3,))
    close(out, FLAT @ np.asarray(w) + np.asarray(b))
    (w, b), _ = run(stax.Dense(3, nn.initializers.ones, nn.initializers.zeros), FLAT)
    assert (w == 1).all() and (b == 0).all()


@pytest.mark.parametrize(("name", "fun"), [
    ("Tanh", jnp.tanh), ("Relu", nn.relu), ("Exp", jnp.exp), ("LogSoftmax", nn.log_softmax), ("Softmax", nn.softmax),
    ("Softplus", nn.softplus), ("Sigmoid", nn.sigmoid), ("Elu", nn.elu), ("LeakyRelu", nn.leaky_relu),
    ("Selu", nn.selu), ("Gelu", nn.gelu), ("Identity", lambda x: x)])
def test_elementwise(name: str, fun: Any) -> None:
    params, out = run(getattr(stax, name), FLAT)
    assert params == ()
    close(out, fun(FLAT))


@pytest.mark.parametrize(("strides", "padding"), [(None, "VALID"), ((2, 2), "SAME"), ((1, 2), "VALID")])
def test_convolutions(strides: Any, padding: str) -> None:
    steps = strides or (1, 1)
    (w, b), out = run(stax.Conv(4, (3, 3), strides, padding), IMAGES)
    assert (w.shape, b.shape) == ((3, 3, 3, 4), (1, 1, 1, 4))
    close(out, lax.conv_general_dilated(IMAGES, w, steps, padding, dimension_numbers=NHWC) + b)
    (w, b), out = run(stax.ConvTranspose(4, (3, 3), strides, padding), IMAGES)
    close(out, lax.conv_transpose(IMAGES, w, steps, padding, dimension_numbers=NHWC) + b)
    first = IMAGES.transpose(0, 3, 1, 2)
    (w, _), out = run(stax.GeneralConv(("NCHW", "OIHW", "NHWC"), 4, (3, 3), strides, padding), first)
    assert w.shape == (4, 3, 3, 3)
    close(out[..., 0], lax.conv_general_dilated(first, w, steps, padding)[:, 0] + _[0, 0, 0, 0])
    (w, _), _ = run(stax.Conv1DTranspose(4, (3,), (2,)), IMAGES[:, 0])
    assert w.shape == (3, 3, 4)


def windows(x: np.ndarray, k: int) -> np.ndarray:
    return np.lib.stride_tricks.sliding_window_view(x, (k, k), (1, 2))


def test_pooling() -> None:
    close(run(stax.MaxPool((2, 2)), IMAGES)[1], windows(IMAGES, 2).max((-1, -2)))
    close(run(stax.SumPool((2, 2), (2, 2)), IMAGES)[1], windows(IMAGES, 2).sum((-1, -2))[:, ::2, ::2])
    close(run(stax.AvgPool((3, 3)), IMAGES)[1], windows(IMAGES, 3).mean((-1, -2)))
    first = IMAGES.transpose(0, 3, 1, 2)
    close(run(stax.MaxPool((2, 2), spec="NCHW"), first)[1], windows(IMAGES, 2).max((-1, -2)).transpose(0, 3, 1, 2))
    ones = np.ones((1, 4, 4, 1), np.float32)
    close(run(stax.AvgPool((3, 3), padding="SAME"), ones)[1], ones)  # what is beyond the edge does not count


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("axis", [(0, 1, 2), 0, (0, 3)])
def test_normalisation(axis: Any, center: bool, scale: bool) -> None:
    params, out = run(stax.BatchNorm(axis, center=center, scale=scale, beta_init=nn.initializers.ones), IMAGES)
    axes = (axis,) if isinstance(axis, int) else axis
    left = tuple(d for i, d in enumerate(IMAGES.shape) if i not in axes)
    assert [np.shape(p) for p in params] == [left if center else (0,), left if scale else (0,)]
    expected = (IMAGES - IMAGES.mean(axes, keepdims=True)) / np.sqrt(IMAGES.var(axes, keepdims=True) + 1e-5)
    np.testing.assert_allclose(out, expected + center, rtol=1e-4, atol=1e-4)


def test_dropout() -> None:
    x = np.ones((50, 40), np.float32)
    _, out = run(stax.Dropout(0.8), x, rng=KEY)
    assert set(np.unique(out)) == {0.0, np.float32(1.25)} and 0.75 < np.mean(np.asarray(out) > 0) < 0.85
    close(run(stax.Dropout(0.8, mode="test"), x, rng=KEY)[1], x)
    for mode in ("train", "test"):
        with pytest.raises(ValueError, match="PRNG key"):
            stax.Dropout(0.8, mode)[1]((), x)


def test_combinations() -> None:
    params, out = run(stax.serial(stax.Dense(5), stax.Relu, stax.Dropout(0.5), stax.Dense(2)), FLAT, rng=KEY)
    assert [len(p) for p in params] == [2, 0, 0, 2]
    branches = stax.parallel(stax.Dense(3), stax.serial(stax.Dense(3), stax.Tanh))
    params, out = run(stax.serial(stax.FanOut(2), branches, stax.FanInSum), FLAT)
    (w, b), ((v, c), _) = params[1]
    close(out, FLAT @ np.asarray(w) + np.asarray(b) + np.tanh(FLAT @ np.asarray(v) + np.asarray(c)))
    assert not np.array_equal(w, v)
    _, out = run(stax.serial(stax.FanOut(2), stax.parallel(stax.Dense(3), stax.Identity), stax.FanInConcat()), FLAT)
    close(out[:, 3:], FLAT)
    _, out = run(stax.shape_dependent(lambda shape: stax.Dense(shape[-1] * 2)), FLAT)
    assert out.shape == (2, 8)
    assert run(stax.Flatten, IMAGES)[1].shape == (2, 108)


def test_training() -> None:
    init, apply = stax.serial(stax.Conv(4, (3, 3)), stax.Relu, stax.Flatten, stax.Dense(2), stax.LogSoftmax)
    x = np.random.default_rng(0).normal(size=(16, 6, 6, 1)).astype(np.float32)
    targets = np.eye(2, dtype=np.float32)[(x.sum((1, 2, 3)) > 0).astype(int)]

    def loss(params: Any) -> Any:
        return -jnp.mean(jnp.sum(apply(params, x) * targets, 1))

    made = optimizers.adam(1e-2)
    state = made.init_fn(init(KEY, (-1, 6, 6, 1))[1])
    step = anima.jit(lambda k, state: made.update_fn(k, anima.grad(loss)(made.params_fn(state)), state))
    before = float(loss(made.params_fn(state)))
    for k in range(40):
        state = step(k, state)
    assert float(loss(made.params_fn(state))) < before / 4
