"""Random programs with loops and branches inside of each other, over a scalar and a vector of three, as data.

    (("scan", 3, False, ("mix", ("cond", ("sin",), ("turn",)))), "dot")

`Program(steps)(x)` runs with the control flow operators of `anima.lax`; with `unrolled`, with Python's own
loops, and with every branch chosen by `where`. All values stay of moderate size and all operations are smooth, so
that derivatives can be compared; a branch is chosen by the step number, or far from where its sides differ.
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

State = tuple[Any, Any]
Steps = tuple[Any, ...]

MATRIX = np.array([[0.4, -0.3, 0.2], [0.1, 0.5, -0.4], [-0.2, 0.3, 0.3]])
SERIES = np.array([0.3, -0.5, 0.8, 0.1, -0.9])
WEIGHTS = np.array([0.7, -1.1, 0.4])

LEAVES: dict[str, Callable[[Any, Any], State]] = {
    "mix": lambda s, v: (jnp.tanh(s + 0.3 * v.sum()), 0.8 * v + 0.1 * s),
    "turn": lambda s, v: (s, jnp.stack([v[1], jnp.sin(v[2] * s), v[0] - 0.5 * v[1]])),
    "sin": lambda s, v: (jnp.sin(s) + 0.2 * v[0], v),
    "matrix": lambda s, v: (s, jnp.tanh(jnp.asarray(MATRIX, v.dtype) @ v)),
    "put": lambda s, v: (s, v.at[1].set(s)),
    "roll": lambda s, v: (s * 0.9, jnp.concatenate([v[2:], v[:2]])),
    "dot": lambda s, v: (0.5 * s + 0.2 * jnp.dot(v, v), jnp.tanh(v)),
    "exp": lambda s, v: (s, jnp.exp(-v * v) * (1.0 + 0.1 * s)),
    "rev": lambda s, v: (s + 0.1 * v[2], v[::-1] * 0.9),
    "outer": lambda s, v: (s, jnp.tanh((v[:, None] * v[None, :]).sum(0) + v * s)),
}


@dataclass(frozen=True)
class Program:
    """A program of steps; `remember` wraps the bodies of its loops in `checkpoint`."""

    steps: Steps

    def __call__(self, x: Any, unrolled: bool = False, remember: bool = False) -> Any:
        x = jnp.asarray(x)
        s, v = _Runner(unrolled, remember).steps(self.steps, (x[0], x[1:]))
        return jnp.sin(s) + (v * jnp.asarray(WEIGHTS, v.dtype)).sum()


@dataclass(frozen=True)
class _Runner:
    unrolled: bool
    remember: bool

    def steps(self, steps: Steps, state: State, position: Any = 0.0) -> State:
        for step in steps:
            state = LEAVES[step](*state) if isinstance(step, str) else self.control(step, state, position)
        return state

    def body(self, steps: Steps) -> Callable[[State, Any], State]:
        def one(state: State, position: Any) -> State:
            return self.steps(steps, state, position)

        return anima.checkpoint(one) if self.remember and not self.unrolled else one

    def control(self, step: Any, state: State, position: Any) -> State:
        kind, *rest = step
        return getattr(self, f"_{kind}")(state, position, *rest)

    def _cond(self, state: State, position: Any, yes: Steps, no: Steps) -> State:
        chosen = jnp.asarray(position * 1.7 % 1.0) < 0.5
        if self.unrolled:
            a, b = self.steps(yes, state, position), self.steps(no, state, position)
            return jnp.where(chosen, a[0], b[0]), jnp.where(chosen, a[1], b[1])
        return lax.cond(chosen, lambda z: self.steps(yes, z, position), lambda z: self.steps(no, z, position), state)

    def _fori(self, state: State, position: Any, count: int, steps: Steps) -> State:
        body = self.body(steps)
        if self.unrolled:
            for k in range(count):
                state = body(state, float(k))
            return state
        return lax.fori_loop(0, count, lambda k, z: body(z, jnp.asarray(k, z[0].dtype)), state)

    def _while(self, state: State, position: Any, count: int, steps: Steps) -> State:
        body = self.body(steps)
        if self.unrolled:
            for k in range(count):
                state = body(state, 0.5 * k)
            return state

        def more(carry: tuple[Any, State]) -> Any:
            return (carry[0] < 0.5 * count - 0.25) & (jnp.abs(carry[1][0]) < 1e6)

        return lax.while_loop(more, lambda c: (c[0] + 0.5, body(c[1], c[0])), (jnp.zeros_like(state[0]), state))[1]

    def _scan(self, state: State, position: Any, count: int, reverse: bool, steps: Steps) -> State:
        body = self.body(steps)
        series = jnp.asarray(SERIES[:count], state[0].dtype)

        def one(carry: State, x: Any) -> tuple[State, Any]:
            s, v = body(carry, x)
            return (s, v + 0.1 * x), s * v

        if self.unrolled:
            ys = [None] * count
            for k in reversed(range(count)) if reverse else range(count):
                state, ys[k] = one(state, series[k])  # type: ignore[assignment]
            return state[0] + 0.1 * jnp.stack(ys).sum(), state[1]
        state, stack = lax.scan(one, state, series, reverse=reverse)
        return state[0] + 0.1 * stack.sum(), state[1]


def _control(inner: st.SearchStrategy[Steps]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.tuples(st.just("cond"), inner, inner),
        st.tuples(st.sampled_from(["fori", "while"]), st.integers(1, 4), inner),
        st.tuples(st.just("scan"), st.integers(1, 5), st.booleans(), inner))


def programs() -> st.SearchStrategy[Program]:
    """Programs with at least one loop, nested up to three deep."""
    leaf = st.sampled_from(sorted(LEAVES))
    short = st.lists(leaf, min_size=1, max_size=3).map(tuple)
    nested = st.recursive(short, lambda inner: st.lists(leaf | _control(inner), min_size=1, max_size=3).map(tuple),
                          max_leaves=4)
    loops = st.one_of(st.tuples(st.sampled_from(["fori", "while"]), st.integers(1, 4), nested),
                      st.tuples(st.just("scan"), st.integers(1, 5), st.booleans(), nested))
    return st.tuples(st.lists(leaf, max_size=1).map(tuple), loops).map(lambda p: Program((*p[0], p[1])))
