"""Transpositions come after what acts on elements or along axes; values are what they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima.numpy as jnp
from anima import lax, nn
from anima.compiler.driver import to_nests
from anima.compiler.machine.native import host
from tests.compiler.stages import agree, closed

X = np.random.default_rng(0).normal(size=(40, 70)).astype(np.float32)
IMAGES = np.random.default_rng(1).normal(size=(2, 16, 8, 40)).astype(np.float32)


def normalised(x: Any, axes: Any) -> Any:
    y = x - x.mean(axes, keepdims=True)
    return y / jnp.sqrt((y * y).mean(axes, keepdims=True) + 1e-3)


# Programs, and how many transpositions are left but for those of rows and columns.
PROGRAMS: dict[str, tuple[Callable[..., Any], Any, int]] = {
    "there and back": (lambda x: jnp.sin(x.T).T, X, 0),
    "at the end": (lambda x: jnp.exp(jnp.sin(x.T)), X, 1),
    "with a scalar": (lambda x: (2.0 * x.T + x[0, 0]).T, X, 0),
    "with a row": (lambda x: (x.T - x[:, 0]).T, X, 0),
    "with a column": (lambda x: (x.T - x[0][:, None]).T, X, 0),
    "with counters": (lambda x: jnp.where(jnp.arange(70)[:, None] > jnp.arange(40), x.T, 0.0).T, X, 2),
    "with another one": (lambda x: (x.T * jnp.cos(x).T).T, X, 0),
    "with one that lies so": (lambda x: x.T + jnp.cos(x).reshape(70, 40), X, 1),
    "sums": (lambda x: (x.T.sum(0), x.T.sum(1), x.T.max(), x.T.sum()), X, 0),
    "running": (lambda x: (jnp.cumsum(x.T, 0).T, lax.cummax(x.T, 1, reverse=True).T), X, 0),
    "sorted": (lambda x: jnp.sort(x.T, 0).T, X, 0),
    "ranked": (lambda x: [y.T for y in lax.sort((jnp.round(x.T), x.T), dimension=1, num_keys=1)], X, 0),
    "rows": (lambda x: normalised(x.T, 0).T, X, 0),
    "columns": (lambda x: normalised(x.T, 1).T, X, 0),
    "softmax": (lambda x: nn.softmax(x.T, 0).T, X, 0),
    "channels last": (lambda x: normalised(x.transpose(0, 2, 3, 1), 3).transpose(0, 3, 1, 2), IMAGES, 0),
    "of all but one": (lambda x: normalised(x.transpose(0, 2, 3, 1), (0, 1, 2)).transpose(0, 3, 1, 2), IMAGES, 0),
    "sums in another order": (lambda x: x.transpose(3, 1, 0, 2).sum(2), IMAGES, 1),
    "greatest and where": (lambda x: (jnp.argmax(x.T, 0), jnp.argmin(x.T, 1)), X, 0),
    "short rows": (lambda x: jnp.exp(x.reshape(1400, 2).T - x.reshape(1400, 2).sum(1)).T, X, 2),
    "in a loop": (lambda x: lax.fori_loop(0, 3, lambda i, c: jnp.sin(c.T + i).T, x), X, 0),
    "product": (lambda x: jnp.sin(x.T) @ x, X, 1),
    "twice": (lambda x: jnp.cos(jnp.sin(x.transpose(2, 0, 3, 1)).transpose(3, 0, 1, 2)), IMAGES, 1),
    "two orders": (lambda x: jnp.sin(x.transpose(3, 0, 1, 2)) + jnp.cos(x).transpose(1, 0, 2, 3).transpose(3, 1, 0, 2),
                   IMAGES, 1),
    "types": (lambda x: (x.T > 0, x.T.astype(int), jnp.round(x.T).astype(jnp.int8)), X, 3),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name: str) -> None:
    fun, x, _ = PROGRAMS[name]
    agree(fun, x, rtol=2e-5)


def transpositions(program: Any) -> int:
    count = 0
    for eqn in program.eqns:
        count += eqn.primitive.name == "transpose" and eqn.outvars[0].aval.size > 1000
        count += sum(transpositions(p.jaxpr if hasattr(p, "jaxpr") else p) for p in eqn.params.values()
                     if hasattr(p, "eqns"))
    return count


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_left(name: str) -> None:
    fun, x, count = PROGRAMS[name]
    program: Any = closed(fun, x)
    for step in to_nests("f", (), host()):
        if step.level == "jaxpr":
            program = step.run(program)
    assert transpositions(program) == count
