"""Updates in place by kernels that sum over rows: what a later sweep over a row still reads stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from tests.compiler.stages import lowered
from tests.compiler.test_overwrite import copies

Carry = tuple[Any, Any, Any]


def normalised(a: Any, b: Any, c: Any) -> Carry:
    return a / jnp.sqrt((a * a).sum(-1, keepdims=True) + 1), b - b.mean(-1, keepdims=True), c + 1


def softmax(a: Any, b: Any, c: Any) -> Carry:
    e = jnp.exp(a - a.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True), b + a, c * 0.5


def over_all(a: Any, b: Any, c: Any) -> Carry:
    a = a + b / (1 + (a * b).sum())
    return a, a + b * jnp.tanh((a * a).sum()), c - a.mean()


def stored_in_the_first_sweep(a: Any, b: Any, c: Any) -> Carry:
    r = jnp.exp(-b * b)
    return r, b + 0.1, a * r.sum(-1, keepdims=True)


def read_once_more_in_the_last(a: Any, b: Any, c: Any) -> Carry:
    new = jnp.sin(a)
    return new, b + a * new.sum(-1, keepdims=True), c + new


def turned_about(a: Any, b: Any, c: Any) -> Carry:
    return b + c.sum(-1, keepdims=True) * a, c - (a * b).max(-1, keepdims=True), a * 0.5 + b


def over_columns(a: Any, b: Any, c: Any) -> Carry:
    s = jnp.tanh((a * b).mean(0, keepdims=True))
    return a - s / 2, b + jnp.cos(a + s), c * (1 + s * a)


def a_row_more(a: Any, b: Any, c: Any) -> Carry:
    """Neighbours are read after what is stored."""
    s = a.sum(-1, keepdims=True)
    return a * 0.5 + s, jnp.roll(a, 1, -1) + b + s, jnp.roll(a, 1, 0) - c


def reshaped(a: Any, b: Any, c: Any) -> Carry:
    flat, other = a.reshape(-1), b.reshape(-1)
    step = (flat @ other) / (1 + other @ other)
    return (flat - step * other).reshape(a.shape), b + (c.reshape(-1) * step).reshape(a.shape), c * 0.5 + step


def reshaped_and_turned(a: Any, b: Any, c: Any) -> Carry:
    turned = a.T.reshape(a.shape)
    s = (turned * b).sum()
    return a + s / (1 + s * s), b * 0.5 + turned, c + a.reshape(-1)[::-1].reshape(a.shape) / (2 + s * s)


def descended(a: Any, b: Any, c: Any) -> Carry:
    """A step of conjugate gradients with neighbours: the solution, what is left, the direction."""
    x, r, p = (v.reshape(-1) for v in (a, b, c))
    padded = jnp.pad(c, 1)
    q = (4 * c - padded[2:, 1:-1] - padded[:-2, 1:-1] - padded[1:-1, 2:] - padded[1:-1, :-2]).reshape(-1)
    step = (r @ r) / (1 + p @ q)
    new = r - step * q
    return (x + step * p).reshape(a.shape), new.reshape(a.shape), (new + (new @ new) / (1 + r @ r) * p).reshape(a.shape)


STEPS = [normalised, softmax, over_all, stored_in_the_first_sweep, read_once_more_in_the_last, turned_about,
         over_columns, a_row_more, reshaped, reshaped_and_turned, descended]
SHAPES = [(1, 1), (1, 9), (9, 1), (3, 4), (5, 16), (4, 17), (32, 32), (3, 700), (70, 20)]


@pytest.mark.parametrize("step", STEPS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("loop", ["fori", "scan", "while"])
def test_rows_in_loops(step: Callable[..., Carry], shape: tuple[int, int], loop: str) -> None:
    rng = np.random.default_rng(shape[0] * 100 + shape[1])
    start = tuple(rng.normal(size=shape).astype(np.float32) for _ in range(3))

    def run(*carry: Any) -> Any:
        if loop == "fori":
            return lax.fori_loop(0, 4, lambda _, c: step(*c), carry)
        if loop == "scan":
            return lax.scan(lambda c, _: (step(*c), c[0].sum()), carry, None, length=4)
        return lax.while_loop(lambda c: (c[3] < 4) & (c[0].sum() < 1e9), lambda c: (*step(*c[:3]), c[3] + 1),
                              (*carry, 0))

    got = anima.jit(run)(*start)
    want: Any = start
    for _ in range(4):
        with anima.disable_jit():
            want = step(*map(jnp.asarray, want))
    for g, w in zip(anima.tree.leaves(got), want, strict=False):
        np.testing.assert_allclose(g, w, rtol=2e-4, atol=2e-4 * (1 + np.abs(w).max()))


@pytest.mark.parametrize("step", [over_all, reshaped, descended], ids=lambda f: f.__name__)
def test_what_is_read_in_step_is_not_copied(step: Callable[..., Carry]) -> None:
    start = [np.ones((64, 64), np.float32)] * 3
    stages = lowered(lambda *carry: lax.fori_loop(0, 4, lambda _, c: step(*c), carry), *start)
    assert not list(copies(stages.loops.body))


@pytest.mark.parametrize("step", [stored_in_the_first_sweep, read_once_more_in_the_last, turned_about, a_row_more],
                         ids=lambda f: f.__name__)
def test_what_is_read_later_is_copied(step: Callable[..., Carry]) -> None:
    start = [np.ones((64, 64), np.float32)] * 3
    stages = lowered(lambda *carry: lax.fori_loop(0, 4, lambda _, c: step(*c), carry), *start)
    assert list(copies(stages.loops.body))


@pytest.mark.parametrize("step", STEPS, ids=lambda f: f.__name__)
def test_donated_rows(step: Callable[..., Carry]) -> None:
    for shape in SHAPES:
        start = [np.random.default_rng(k).normal(size=shape).astype(np.float32) for k in range(3)]
        want = anima.jit(step)(*start)
        got = anima.jit(step, donate_argnums=(0, 1, 2))(*map(jnp.array, start))
        for g, w in zip(got, want, strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-6)
