"""LSTM layers against a loop over steps in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import random
from anima.experimental import rnn

rng = np.random.default_rng(0)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def one_way(x: Any, h: Any, c: Any, weights: list[Any]) -> tuple[Any, Any, Any]:
    w_ih, w_hh, b_ih, b_hh = weights
    outs = []
    for step in x:
        i, f, g, o = np.split(w_ih @ step + b_ih + w_hh @ h + b_hh, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        outs.append(h)
    return np.array(outs), h, c


def reference(x: Any, h_0: Any, c_0: Any, parts: Any, lengths: Any, layers: int, ways: int) -> Any:
    """Each sequence by itself, cut to its length."""
    y = np.zeros((*x.shape[:2], ways * h_0.shape[-1]))
    h_n, c_n = h_0.copy(), c_0.copy()
    for b, length in enumerate(lengths):
        values = x[b, :length]
        for layer in range(layers):
            outs = []
            for k in range(ways * layer, ways * (layer + 1)):
                turn = -1 if k % ways else 1
                out, h_n[k, b], c_n[k, b] = one_way(values[::turn], h_0[k, b], c_0[k, b], [p[k] for p in parts])
                outs.append(out[::turn])
            values = np.concatenate(outs, -1) if length else values
        y[b, :length] = values if length else 0
    return y, h_n, c_n


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("layers", "bidirectional"), [(1, False), (2, False), (1, True), (2, True)])
def test_against_steps(layers: int, bidirectional: bool) -> None:
    ways, size = 1 + bidirectional, (3, 4, layers, bidirectional)
    weights = rng.normal(size=rnn.get_num_params_in_lstm(*size))
    x = rng.normal(size=(3, 5, 3))
    h_0, c_0 = rng.normal(size=(2, ways * layers, 3, 4))
    lengths = np.array([5, 3, 1])
    parts = rnn.unpack_lstm_weights(weights, *size)
    got = anima.jit(lambda w: rnn.lstm(x, h_0, c_0, w, lengths, 3, 4, layers, 0.0, bidirectional))(weights)
    for a, b in zip(got, reference(x, h_0, c_0, parts, lengths, layers, ways), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
    same = rnn.lstm_ref(x, h_0, c_0, *parts, seq_lengths=lengths, input_size=3, hidden_size=4, num_layers=layers,
                        dropout=0.0, bidirectional=bidirectional)
    for a, b in zip(got, same, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
    direction = rng.normal(size=weights.shape)

    def loss(w: Any) -> Any:
        return jnp.sum(rnn.lstm(x, h_0, c_0, w, lengths, 3, 4, layers, 0.0, bidirectional)[0] ** 2)

    slope = np.vdot(anima.jit(anima.grad(loss))(weights), direction)
    step = 1e-6 * direction
    np.testing.assert_allclose(slope, (loss(weights + step) - loss(weights - step)) / 2e-6, rtol=1e-6)


def test_weights() -> None:
    size = (3, 4, 2, True)
    count = rnn.get_num_params_in_lstm(*size)
    assert count == 16 * (2 * (3 + 4) + 2 * (8 + 4) + 4 * 2)
    weights = rnn.init_lstm_weight(random.key(0), *size)
    assert weights.shape == (count,) and 0.4 < float(abs(weights).max()) <= 0.5
    swapped = rnn.swap_lstm_gates(weights, *size)
    assert not np.array_equal(swapped, weights)
    np.testing.assert_array_equal(rnn.swap_lstm_gates(swapped, *size), weights)
    old, new = (rnn.unpack_lstm_weights(w, *size)[0][2].reshape(4, 4, 8) for w in (weights, swapped))
    np.testing.assert_array_equal(new, old[np.array([0, 1, 3, 2])])
    with pytest.raises(NotImplementedError, match="dropout"):
        rnn.lstm(np.zeros((1, 1, 3)), None, None, weights, np.ones(1, int), *size[:3], 0.5, True)
