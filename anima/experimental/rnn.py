"""Long short-term memory (Hochreiter and Schmidhuber, 1997), several layers in one or both directions.

    y, h_n, c_n = lstm(x, h_0, c_0, weights, seq_lengths, input_size, hidden_size, num_layers, 0.0, False)

`weights` is one flat array: for each layer, and in it for each direction, the matrices that inputs and the last output
are multiplied with; then likewise two biases. Rows are those of the gates i, f, g, o.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import anima.numpy as jnp
from anima import lax, nn, random
from anima.names import access

_Weights = dict[int, Any]


def _blocks(input_size: int, hidden_size: int, num_layers: int,
            bidirectional: bool) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    """The parts of the flat array, in order: which kind, of which layer and direction, and of what shape."""
    ways = 2 if bidirectional else 1
    rows = 4 * hidden_size
    for k in range(ways * num_layers):
        yield "W_ih", k, (rows, input_size if k < ways else ways * hidden_size)
        yield "W_hh", k, (rows, hidden_size)
    for k in range(ways * num_layers):
        yield "b_ih", k, (rows,)
        yield "b_hh", k, (rows,)


def get_num_params_in_lstm(input_size: int, hidden_size: int, num_layers: int, bidirectional: bool) -> int:
    """How many numbers `weights` has."""
    return sum(math.prod(shape) for _, _, shape in _blocks(input_size, hidden_size, num_layers, bidirectional))


def init_lstm_weight(rng: Any, input_size: int, hidden_size: int, num_layers: int, bidirectional: bool) -> Any:
    """_Weights drawn uniformly from +-1/sqrt(hidden_size): float32[number of parameters]."""
    bound = 1 / math.sqrt(hidden_size)
    size = get_num_params_in_lstm(input_size, hidden_size, num_layers, bidirectional)
    return random.uniform(rng, (size,), jnp.float32, -bound, bound)


def unpack_lstm_weights(weights: Any, input_size: int, hidden_size: int, num_layers: int,
                        bidirectional: bool) -> tuple[_Weights, _Weights, _Weights, _Weights]:
    """(W_ih, W_hh, b_ih, b_hh), each a dictionary of arrays by the number of the layer and direction."""
    found: dict[str, _Weights] = {"W_ih": {}, "W_hh": {}, "b_ih": {}, "b_hh": {}}
    start = 0
    for kind, k, shape in _blocks(input_size, hidden_size, num_layers, bidirectional):
        size = math.prod(shape)
        found[kind][k] = weights[start:start + size].reshape(shape)
        start += size
    return found["W_ih"], found["W_hh"], found["b_ih"], found["b_hh"]


def swap_lstm_gates(weights: Any, input_size: int, hidden_size: int, num_layers: int, bidirectional: bool) -> Any:
    """The weights with gates in the order i, f, o, g, or back in i, f, g, o."""
    parts, start = [], 0
    for _, _, shape in _blocks(input_size, hidden_size, num_layers, bidirectional):
        size = math.prod(shape)
        i, f, g, o = jnp.split(weights[start:start + size], 4)
        parts += [i, f, o, g]
        start += size
    return jnp.concatenate(parts)


def lstm(x: Any, h_0: Any, c_0: Any, weights: Any, seq_lengths: Any, input_size: int, hidden_size: int,
         num_layers: int, dropout: float, bidirectional: bool, precision: Any = None) -> tuple[Any, Any, Any]:
    """A stack of LSTM layers applied to sequences.

    Args:
      x: [batch, time, input_size].
      h_0, c_0: first outputs and cells, [layers and directions, batch, hidden_size].
      weights: as `init_lstm_weight` makes them.
      seq_lengths: int[batch], how long each sequence is: what comes later is not read, and gives zeros.
      dropout: 0.
      precision: of the matrix products.

    Returns:
      (outputs of the last layer [batch, time, hidden_size, twice that in both directions], h_n, c_n)

    Raises:
      NotImplementedError: for a dropout other than 0.
    """
    unpacked = unpack_lstm_weights(weights, input_size, hidden_size, num_layers, bidirectional)
    return _layers(x, h_0, c_0, *unpacked, seq_lengths, num_layers, dropout, bidirectional, precision)


def lstm_ref(x: Any, h_0: Any, c_0: Any, W_ih: _Weights, W_hh: _Weights, b_ih: _Weights, b_hh: _Weights,
             seq_lengths: Any, input_size: int, hidden_size: int, num_layers: int, dropout: float,
             bidirectional: bool) -> tuple[Any, Any, Any]:
    """As `lstm`, with weights as `unpack_lstm_weights` returns them."""
    return _layers(x, h_0, c_0, W_ih, W_hh, b_ih, b_hh, seq_lengths, num_layers, dropout, bidirectional, None)


def _layers(x: Any, h_0: Any, c_0: Any, W_ih: _Weights, W_hh: _Weights, b_ih: _Weights, b_hh: _Weights,
            seq_lengths: Any, num_layers: int, dropout: float, bidirectional: bool,
            precision: Any) -> tuple[Any, Any, Any]:
    if dropout != 0:
        raise NotImplementedError(f"lstm: dropout between layers is not implemented, got dropout={dropout}.")
    ways = 2 if bidirectional else 1
    times = jnp.arange(x.shape[1])[:, None]
    there = (times < seq_lengths)[:, :, None]  # [time, batch, 1]
    back = jnp.where(times < seq_lengths, seq_lengths - 1 - times, times)[:, :, None]  # sequences back to front
    values = jnp.swapaxes(x, 0, 1)
    ends = []
    for layer in range(num_layers):
        outs = []
        for k in range(ways * layer, ways * (layer + 1)):
            turned = k % ways == 1
            given = jnp.take_along_axis(values, back, 0) if turned else values
            from_inputs = jnp.matmul(given, W_ih[k].T, precision=precision) + b_ih[k]
            end, out = _direction(from_inputs, there, h_0[k], c_0[k], W_hh[k], b_hh[k], precision)
            outs.append(jnp.take_along_axis(out, back, 0) if turned else out)
            ends.append(end)
        values = jnp.concatenate(outs, -1)
    h_n, c_n = (jnp.stack(parts) for parts in zip(*ends, strict=True))
    return jnp.swapaxes(values, 0, 1), h_n, c_n


def _direction(from_inputs: Any, there: Any, h: Any, c: Any, W_hh: Any, b_hh: Any,
               precision: Any) -> tuple[tuple[Any, Any], Any]:
    """One layer in one direction: last output and cell, and all outputs."""
    def step(carry: tuple[Any, Any], given: tuple[Any, Any]) -> tuple[tuple[Any, Any], Any]:
        h, c = carry
        inputs, valid = given
        i, f, g, o = jnp.split(inputs + jnp.matmul(h, W_hh.T, precision=precision) + b_hh, 4, -1)
        new_c = nn.sigmoid(f) * c + nn.sigmoid(i) * jnp.tanh(g)
        new_h = nn.sigmoid(o) * jnp.tanh(new_c)
        return (jnp.where(valid, new_h, h), jnp.where(valid, new_c, c)), jnp.where(valid, new_h, 0)

    return lax.scan(step, (h, c), (from_inputs, there))

globals().update(access(__name__, globals()))
