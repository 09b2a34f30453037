"""Random bits are made inside of the loops that use them, two numbers at a time, and are never stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import random

KEY = random.key(3)
ROUND = "<< 29:u32"  # two rounds of each block rotate by 29 bits

DRAWS: list[tuple[str, Callable[[Any], Any]]] = [
    ("bits", lambda k: random.bits(k, (1000,))),
    ("bits, odd", lambda k: random.bits(k, (1001,))),
    ("uniform", lambda k: random.uniform(k, (10, 30, 4))),
    ("uniform of one row", lambda k: random.uniform(k, (1, 300))),
    ("normal", lambda k: random.normal(k, (50, 40))),
    ("normal, used", lambda k: 2.0 * random.normal(k, (50, 40)) + jnp.arange(40.0)),
    ("converted", lambda k: random.bits(k, (100,), jnp.uint32).astype(jnp.float32)),
    ("dropout", lambda k: jnp.where(random.bernoulli(k, 0.3, (100, 20)), jnp.ones((100, 20)), 0.0)),
    ("vmap", lambda k: anima.vmap(lambda i: random.normal(random.fold_in(k, i), (200,)))(jnp.arange(6))),
    ("two", lambda k: random.normal(k, (500,)) + random.uniform(random.fold_in(k, 1), (500,))),
    ("two results", lambda k: (random.normal(k, (500,)), random.bits(k, (500,)))),
]


def loops(fun: Callable[[Any], Any]) -> str:
    return str(anima.jit(fun).lower(KEY).loops)


@pytest.mark.parametrize("partitionable", [False, True])
@pytest.mark.parametrize("case", DRAWS, ids=lambda c: c[0])
def test_compiled_is_eager(case: Any, partitionable: bool) -> None:
    _, draw = case
    with anima.threefry_partitionable(partitionable):
        for got, want in zip(anima.tree.leaves(anima.jit(draw)(KEY)), anima.tree.leaves(draw(KEY)), strict=True):
            eps = float(jnp.finfo(want.dtype).eps) if want.dtype.kind == "f" else 0
            np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=8 * eps, atol=4 * eps)


@pytest.mark.parametrize("partitionable", [False, True])
@pytest.mark.parametrize("name", ["bits", "uniform", "uniform of one row", "normal", "normal, used", "dropout",
                                  "converted"])
def test_one_kernel_without_memory(name: str, partitionable: bool) -> None:
    with anima.threefry_partitionable(partitionable):
        text = loops(dict(DRAWS)[name])
    assert text.count("kernel ") == 1 and "temp " not in text
    assert text.count(ROUND) == 2, "one block for two numbers (or for one, in the other stream)"


def test_odd_numbers_of_draws() -> None:
    """1001 numbers: 500 pairs, and the one in the middle by itself."""
    text = loops(lambda k: random.bits(k, (1001,)))
    assert "temp " not in text and text.count("kernel ") == 2 and "< 500:" in text


def test_sums_of_draws() -> None:
    """A reduction takes its numbers from memory: they are made two at a time."""
    def fun(k: Any) -> Any:
        x = random.normal(k, (5000,))
        return x, x.sum(), (x * x).sum()

    assert loops(fun).count(ROUND) == 2
    x, total, squares = anima.jit(fun)(KEY)
    exact = np.asarray(x).astype(np.float64)
    np.testing.assert_allclose([total, squares], [exact.sum(), (exact**2).sum()], rtol=1e-4)


@pytest.mark.parametrize("partitionable", [False, True])
def test_categorical(partitionable: bool) -> None:
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(60, 10)), jnp.float32)
    with anima.threefry_partitionable(partitionable):
        fun = lambda k: random.categorical(k, logits)
        np.testing.assert_array_equal(anima.jit(fun)(KEY), fun(KEY))
        text = loops(fun)
        assert text.count(ROUND) == 2
        if partitionable:
            assert text.count("kernel ") == 1 and "temp " not in text


def test_64_bits(x64: None) -> None:
    """The two words of a block are one number."""
    fun = lambda k: random.uniform(k, (100,), jnp.float64)
    np.testing.assert_array_equal(anima.jit(fun)(KEY), fun(KEY))
    text = loops(fun)
    assert text.count("kernel ") == 1 and "temp " not in text and text.count(ROUND) == 2
