"""Gradients of loops of unknown length on a card that computes (see `test_cuda_programs`): tapes are in its memory, and
the host makes, moves and frees them while kernels wait."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.api import remotes
from anima.compiler.grid import compile
from anima.config import config
from anima.control import tape
from anima.runtime import cuda, cuda_driver, cuda_tapes
from tests.runtime.test_cuda_programs import Card, agree, card, library

__all__ = ["card", "library"]  # fixtures

RNG = np.random.default_rng(1)
X = RNG.uniform(0.5, 1.5, 5).astype(np.float32)
W = RNG.normal(size=(5, 5)).astype(np.float32) / 4


def steps(x: Any, n: Any) -> Any:
    """`n` steps of a loop of arrays, which keeps several values of each."""
    return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, jnp.sin(c[1]) * jnp.exp(-c[1]) + x), (0, x))[1]


def until(x: Any) -> Any:
    """As many steps as it takes."""
    return lax.while_loop(lambda c: c[0].sum() < 30, lambda c: (c[0] + jnp.cos(c[1]) ** 2, c[1] * 1.1), (x, x))[0]


def nested(x: Any, n: Any) -> Any:
    """Tapes of tapes: the inner loop is as long as the outer one has come."""
    def outer(c: tuple[Any, Any]) -> tuple[Any, Any]:
        return c[0] + 1, lax.while_loop(lambda d: d[0] < c[0], lambda d: (d[0] + 1, jnp.sin(d[1]) + 0.1 * x), (0, c[1]))[1]

    return lax.while_loop(lambda c: c[0] < n, outer, (0, x))[1]


def product(x: Any, n: Any) -> Any:
    return lax.fori_loop(0, n, lambda i, y: jnp.tanh(W @ y) + x * i, x)


def branches(x: Any, n: Any) -> Any:
    def step(i: Any, y: Any) -> Any:
        return lax.cond(i % 3 == 0, lambda y: steps(y, i), lambda y: y * jnp.cos(y), y)

    return lax.fori_loop(0, n, step, x)


def squared(fun: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: (fun(*args) ** 2).sum()


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "while": (anima.grad(squared(until)), (X,)),
    "a number": (anima.grad(until), (np.float32(0.3),)),
    "steps": (anima.grad(squared(steps)), (X, 7)),
    "no steps": (anima.value_and_grad(squared(steps)), (X, 0)),
    "fori": (anima.grad(squared(product)), (X, 4)),
    "nested": (anima.grad(squared(nested)), (X, 4)),
    "branches": (anima.grad(squared(branches)), (X, 7)),
    "two loops": (anima.grad(lambda x, n: squared(steps)(steps(x, n) + product(x, 3), n + 1)), (X, 3)),
    "lanes": (anima.vmap(anima.grad(squared(steps)), (0, 0)), (np.stack([X, 2 * X, X + 1]), np.array([3, 0, 5]))),
    "lanes together": (anima.grad(lambda x: anima.vmap(squared(until))(x).sum()), (np.stack([X, 2 * X]),)),
    "hessian": (anima.hessian(squared(steps)), (X, 3)),
    "twice": (anima.grad(lambda x, n: (anima.grad(squared(steps))(x, n) ** 2).sum()), (X, 3)),
    "jacobian": (anima.jacrev(steps), (X, 4)),
    "tangents": (lambda x, n: anima.jvp(anima.grad(squared(steps)), (x, n), (x, np.zeros((), anima.float0)))[1], (X, 4)),
    "integers and truths": (anima.grad(lambda x, n: lax.while_loop(
        lambda c: c[0] < n, lambda c: (c[0] + 1, jnp.where(c[1] > 1, c[1] * 0.5, c[1] ** 2 + c[0])), (0, x))[1].sum()),
        (X, 6)),
    "complex": (anima.grad(lambda x, n: abs(steps(x * (1 + 0.5j), n)).sum()), (X, 4)),
    "halves": (anima.grad(lambda x, n: squared(steps)(x.astype(jnp.bfloat16), n).astype(jnp.float32)), (X, 3)),
    "of nothing": (anima.grad(squared(steps)), (X[:0], 3)),
    "in a scan": (anima.grad(lambda x: lax.scan(lambda c, n: (steps(c, n), None), x, np.arange(4))[0].sum()), (X,))}


@pytest.fixture(autouse=True)
def all_is_given_back(card: anima.Device) -> Any:
    """What a test has on the card is free when nothing refers to it any more, and no tape is known."""
    yield
    anima.clear_caches()
    gc.collect()
    assert not cuda_tapes._known


def driver_of() -> Card:
    return cuda.gpu().driver.functions  # type: ignore[return-value]


@pytest.mark.parametrize("name", PROGRAMS)
def test_jitted(name: str, card: anima.Device) -> None:
    fun, args = PROGRAMS[name]
    called = anima.jit(fun)
    there = anima.device_put(args, card)
    agree(called(*there), called(*args))
    gc.collect()
    blocks = len(driver_of().blocks)
    for _ in range(2):
        called(*there)
    gc.collect()
    assert len(driver_of().blocks) == blocks  # tapes of a program are gone with its call


@pytest.mark.parametrize("name", ["while", "a number", "no steps", "fori", "nested", "lanes", "twice", "jacobian", "complex",
                                  "in a scan"])
def test_one_by_one(name: str, card: anima.Device) -> None:
    """A program makes the tapes, another one reads them."""
    fun, args = PROGRAMS[name]
    want = fun(*map(jnp.asarray, args))
    agree(fun(*anima.device_put(args, card)), want)
