"""Random programs that try the plan of buffers: values of one size and type, used once more than it seems, as data.

    Program(steps=(("sort2", 0, 1), ("fori", 3, (("rev", 0), ("add", 2, 1)), 1, 2)), results=(3, 0, 3))

Steps append values to a list of arrays, operands and results are positions in it, modulo its length: a value may be
read again after another took its memory, an argument returned, a result twice. Numbers are small integers, whatever
the type, so that results are compared exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

import anima
import anima.numpy as jnp
from anima import lax

ONE: dict[str, Callable[[Any], Any]] = {
    "next": lambda x: (x + 1) % 97, "double": lambda x: x * 2 % 97, "square": lambda x: x * x % 97,
    "rev": lambda x: x[::-1], "roll": lambda x: jnp.roll(x, 1), "copy": lambda x: x + 0,
    "sort": jnp.sort, "order": lambda x: jnp.argsort(x).astype(x.dtype), "sum": lambda x: jnp.cumsum(x) % 97,
    "max": lambda x: lax.cummax(x), "back": lambda x: lax.cummin(x, reverse=True),
    "total": lambda x: jnp.full_like(x, x.sum() % 89), "mean": lambda x: x + (x.max() if x.size else 0) % 13,
    "take": lambda x: x[jnp.arange(x.size)[::-1] // 2] if x.size else x,
    "put": lambda x: x.at[0].set(5) if x.size else x, "move": lambda x: x.at[-1].set(x[0]) if x.size else x,
    "twice": lambda x: x.at[jnp.arange(x.size) // 2].add(x % 5) if x.size else x,
    "window": lambda x: lax.dynamic_update_slice(x, x[:1] + 1, (x.size // 2,)) % 97 if x.size else x,
    "narrow": lambda x: x.astype("uint8").astype(x.dtype), "wide": lambda x: x.astype("float32").astype(x.dtype),
    "square2": lambda x: (x[: x.size // 2 * 2].reshape(2, -1).T.ravel() % 7 if x.size % 2 == 0 else x),
    "call": lambda x: anima.pure_callback(lambda a: np.asarray(a)[::-1].copy(), anima.ShapeDtypeStruct(
        x.shape, x.dtype), x),
}
TWO: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: (x + y) % 97, "where": lambda x, y: jnp.where(x > y, x, y + 1) % 97,
    "outer": lambda x, y: (x[:, None] * (y[None, :] % 3)).sum(0).astype(x.dtype) % 97,
    "product": lambda x, y: (jnp.dot(x[:, None].astype("float32"), y[None, :3].astype("float32")).sum(1) % 97
                             ).astype(x.dtype),
    "mix": lambda x, y: jnp.concatenate([x[: x.size // 2], y[x.size // 2:]]),
    "index": lambda x, y: x[jnp.clip(y.astype("int32"), 0, max(x.size - 1, 0))] if x.size else x,
    "scatter": lambda x, y: x.at[y.astype("int32") % max(x.size, 1)].max(y) if x.size else x,
    "cond": lambda x, y: lax.cond((x.sum() % 2) == 0, lambda a, b: a[::-1] + 1, lambda a, b: b, x, y) % 97,
}
PAIR: dict[str, Callable[[Any, Any], tuple[Any, Any]]] = {
    "sort2": lambda x, y: lax.sort((x, y), num_keys=1), "sort22": lambda x, y: lax.sort((x, y), num_keys=2)[::-1],
    "swap": lambda x, y: (y, x), "cross": lambda x, y: (y + 1, x * 2 % 97), "both": lambda x, y: (x + y % 5, x - x % 5),
    "norm": lambda x, y: (x - (x.min() if x.size else 0), y % (1 + (x.max() if x.size else 0))),
}


@dataclass(frozen=True)
class Program:
    """`results` are positions of what a program returns."""

    steps: tuple[Any, ...]
    results: tuple[int, ...]

    def __call__(self, *arguments: Any) -> list[Any]:
        values = _run(self.steps, [jnp.asarray(a) for a in arguments])
        return [values[k % len(values)] for k in self.results]


def _run(steps: tuple[Any, ...], values: list[Any]) -> list[Any]:
    dtype = values[0].dtype
    for name, *rest in steps:
        if name in ("fori", "while", "scan"):
            count, inner, *operands = rest
            new: Any = _loop(name, count, inner, *(values[k % len(values)] for k in operands))
        else:
            operation = ONE.get(name) or TWO.get(name) or PAIR[name]
            new = operation(*(values[k % len(values)] for k in rest))
        values += [x.astype(dtype) for x in (new if isinstance(new, (tuple, list)) else (new,))]
    return values


def _loop(kind: str, count: int, inner: tuple[Any, ...], a: Any, b: Any) -> tuple[Any, ...]:
    """A loop that carries two arrays: the last two values of its steps."""
    def body(carry: tuple[Any, Any]) -> tuple[Any, Any]:
        return tuple(_run(inner, list(carry))[-2:])  # type: ignore[return-value]

    if kind == "fori":
        return lax.fori_loop(0, count, lambda i, c: body(c), (a, b))
    if kind == "while":
        return lax.while_loop(lambda c: c[0] < count, lambda c: (c[0] + 1, body(c[1])), (jnp.int32(0), (a, b)))[1]
    (a, b), rows = lax.scan(lambda c, k: (body(c), c[1] + k), (a, b), jnp.arange(count).astype(a.dtype))
    return a, b, rows[0] if count else b


def programs() -> st.SearchStrategy[Program]:
    """Programs of one to eight steps, with loops at most two deep."""
    place = st.integers(0, 9)
    step = st.one_of(st.tuples(st.sampled_from(sorted(ONE)), place),
                     st.tuples(st.sampled_from(sorted(TWO | PAIR)), place, place))

    def loop(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        body = st.lists(inner, max_size=4).map(tuple)
        return st.tuples(st.sampled_from(["fori", "while", "scan"]), st.integers(0, 3), body, place, place)

    steps = st.lists(st.one_of(step, step, loop(st.one_of(step, step, loop(step)))), min_size=1, max_size=8)
    return st.builds(Program, steps.map(tuple), st.lists(place, min_size=1, max_size=5).map(tuple))
