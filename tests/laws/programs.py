"""Random programs: straight lines of array operations on a few vectors and matrices, as data.

A program is a list of steps; running it on arrays with `anima.numpy` gives a scalar. Values are kept of
moderate size, so that every operation is smooth where it is differentiated and floats stay comparable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

import anima.numpy as jnp
from anima import lax, nn

ROWS, COLUMNS = 3, 4

UNARY: dict[str, Callable[[Any], Any]] = {
    "sin": jnp.sin, "cos": jnp.cos, "tanh": jnp.tanh, "neg": lambda x: -x, "exp": lambda x: jnp.exp(-jnp.square(x)),
    "log1p": lambda x: jnp.log1p(jnp.square(x)), "sqrt": lambda x: jnp.sqrt(jnp.square(x) + 1.0),
    "cube": lambda x: 0.1 * x**3,
    "softmax": lambda x: nn.softmax(x, axis=-1), "logistic": nn.sigmoid, "atan": jnp.arctan,
    "rev": lambda x: x[:, ::-1], "roll": lambda x: jnp.roll(x, 1, axis=0),
    "cumsum": lambda x: jnp.cumsum(x, axis=1) * 0.3,
    "center": lambda x: x - x.mean(axis=1, keepdims=True), "rows": lambda x: jnp.broadcast_to(x.sum(0) * 0.3, x.shape),
    "columns": lambda x: jnp.broadcast_to(x.sum(1, keepdims=True) * 0.3, x.shape),
    "take": lambda x: x[jnp.array([2, 0, 1])], "pad": lambda x: jnp.pad(x[1:, 1:], ((1, 0), (0, 1))),
    "update": lambda x: x.at[1, 2].set(0.5), "add_at": lambda x: x.at[jnp.array([0, 0, 2])].add(x * 0.2),
    "flip": lambda x: x.T.reshape(ROWS, COLUMNS), "logsumexp": lambda x: x - nn.logsumexp(x, axis=1, keepdims=True),
    "slice": lambda x: jnp.concatenate([x[:, 2:], x[:, :2]], axis=1), "sort": lambda x: jnp.sort(x, axis=1),
    "dynamic": lambda x: lax.dynamic_update_slice(x, x[:1] * 2.0, (2, 0)),
}

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: jnp.tanh(x) * y,
    "div": lambda x, y: x / (1.5 + jnp.square(y)), "matmul": lambda x, y: jnp.tanh(x @ y.T) @ y * 0.2,
    "where": lambda x, y: jnp.where(x > y, x, 0.5 * y), "max": lambda x, y: jnp.maximum(x, y * 0.7),
    "atan2": lambda x, y: jnp.arctan2(x, 1.0 + jnp.square(y)),
    "outer": lambda x, y: jnp.einsum("ij,kj->ik", x, y) @ x * 0.1,
    "logaddexp": jnp.logaddexp,
}


@dataclass(frozen=True)
class Program:
    """Steps `(operation, operands)`; each appends a value; the result is a sum over the last ones."""

    steps: tuple[tuple[str, tuple[int, ...]], ...]

    def __call__(self, x: Any, y: Any) -> Any:
        values = [jnp.asarray(x), jnp.asarray(y)]
        for name, operands in self.steps:
            args = [values[i % len(values)] for i in operands]
            values.append(UNARY[name](*args) if name in UNARY else BINARY[name](*args))
        return jnp.sum(values[-1] * 0.7) + jnp.sum(jnp.sin(values[-2]))



def _step() -> st.SearchStrategy[tuple[str, tuple[int, ...]]]:
    place = st.integers(0, 9)
    return st.one_of(st.tuples(st.sampled_from(sorted(UNARY)), st.tuples(place)),
                     st.tuples(st.sampled_from(sorted(BINARY)), st.tuples(place, place)))


def programs(least: int = 1, most: int = 7) -> st.SearchStrategy[Program]:
    """Programs of `least` to `most` steps."""
    return st.lists(_step(), min_size=least, max_size=most).map(lambda s: Program(tuple(s)))
