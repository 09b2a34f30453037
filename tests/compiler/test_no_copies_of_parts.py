"""Parts of arrays are read and made where they belong, unless somebody writes there."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler.ir.affine import nest_of
from anima.compiler.ir.loops import Kernel
from tests.compiler.stages import agree, lowered

X = np.random.default_rng(0).normal(size=(17, 5)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(17, 5)).astype(np.float32)


def running(xs: Any, first: Any, reverse: bool = False) -> Any:
    def step(c: Any, x: Any) -> Any:
        c = 0.5 * c + x
        return c, c
    return lax.scan(step, first, xs, reverse=reverse)[1]


def both(x: Any, y: Any) -> Any:
    return lax.scan(lambda c, v: (c + v[0] * v[1], c - v[1]), y[0], (x[1:], x[:-1]))


# Programs, and how many kernels that only move parts remain.
PROGRAMS: dict[str, tuple[Callable[[Any, Any], Any], int]] = {
    "later": (lambda x, y: running(x[1:], x[0]), 0),
    "earlier": (lambda x, y: running(x[:-1], y[0]), 0),
    "both": (both, 0),
    "from the end": (lambda x, y: running(x[2:], x[0], reverse=True), 0),
    "first in front": (lambda x, y: jnp.concatenate([x[:1], running(x[1:], x[0])]), 0),
    "last behind": (lambda x, y: jnp.concatenate([running(x, y[0]), 2 * y[:1]]), 0),
    "two loops": (lambda x, y: jnp.concatenate([running(x, y[0]), running(y[3:], x[0])]), 0),
    "the same twice": (lambda x, y: (lambda r: jnp.concatenate([r, r]))(running(x, y[0])), 1),
    "returned, too": (lambda x, y: (lambda r: (r, jnp.concatenate([y, r])))(running(x, y[0])), 2),
    "returned as it is": (lambda x, y: (x[1:], running(x[1:], y[0])), 1),
    "read afterwards": (lambda x, y: (lambda r: (jnp.concatenate([y, r]), r.sum(0)))(running(x, y[0])), 1),
    "part of what is made": (lambda x, y: running(running(x, y[0])[4:], y[1]), 0),
    "part of a part": (lambda x, y: running(jnp.concatenate([x, running(y[1:], y[0])])[3:20], y[1]), 2),
    "other type": (lambda x, y: jnp.concatenate([y.astype(int), running(x, y[0]).astype(int)]), 2),
    "sorted": (lambda x, y: jnp.sort(x.reshape(-1)[5:]), 0),
    "transform": (lambda x, y: jnp.fft.rfft(x.reshape(-1)[5:69]), 0),
    "written later": (lambda x, y: (lambda s: running(s[1:], s[0]) + running(s.at[3].set(0.0)[1:], s[2]))(
        jnp.sort(x, 0)), 1),
    "made as others are": (lambda x, y: (lambda s: (jnp.concatenate([y[0], s[0]]), *s[1:]))(
        [jnp.sort(x * k, 0).sum(0) for k in range(1, 20)]), 0),
    "columns": (lambda x, y: running(x[:, 1:], y[0, 1:]), 1),
}


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name: str) -> None:
    agree(PROGRAMS[name][0], X, Y)
    got = anima.jit(PROGRAMS[name][0], donate_argnums=(0, 1))(jnp.array(X), jnp.array(Y))
    for a, b in zip(anima.tree.leaves(got), anima.tree.leaves(PROGRAMS[name][0](X, Y)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_moved(name: str) -> None:
    fun, count = PROGRAMS[name]
    kernels = [s for s in lowered(fun, X, Y).loops.body if isinstance(s, Kernel)]
    moved = [k for k in kernels if k.name in ("slice", "concatenate", "copy") and rows(k) > 1]
    assert len(moved) == count, moved


def rows(kernel: Kernel) -> int:
    nest = nest_of(kernel.body)
    return math.prod(n for _, n in nest.extents) // X.shape[1] if nest is not None else 0
