"""Programs compute the same bits every day, with any number of threads, and wherever vectors are as wide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler.machine import native
from anima.runtime.executable import compile_program
from tests.compiler import results
from tests.compiler.stages import lowered

KNOWN = results.read()


@pytest.mark.skipif(not (native.host().has("fma") and native.host().triple.startswith("x86_64")),
                    reason="the digests are of x86-64 with fused multiplication and addition")
@pytest.mark.parametrize("name", [*results.PROGRAMS])
@pytest.mark.usefixtures("unchecked")
def test_bits(name: str) -> None:
    """Where these change on purpose: `python3 -m tests.compiler.results`."""
    found = {str(width): results.digest(results.PROGRAMS[name], target) for width, target in results.targets().items()}
    assert found == {width: KNOWN[name][width] for width in found}


@pytest.mark.parametrize("width", results.targets())
@pytest.mark.parametrize("fun", [
    lambda x: (jnp.linalg.eigh(x + x.mT), jnp.linalg.inv(x)),
    lambda x: (jnp.linalg.svd(x), jnp.arange(x.shape[0])[:, None] % 3 + jnp.linalg.det(x)[:, None]),
    lambda x: (lax.igamma(abs(x), x * x), lax.lgamma(x) * jnp.tanh(x)),
], ids=["eigh", "svd", "igamma"])
def test_lanes_after_the_last_change_nothing(fun: Callable[..., Any], width: int) -> None:
    """Where no instructions have masks, these do once more what the last one does."""
    full = np.random.default_rng(0).normal(size=(19, 3, 3)).astype(np.float32)
    for count in (1, 3, 5, 8, 17, 19):
        x: Any = full[:count]
        stages = lowered(lambda x: anima.tree.leaves(fun(x)), x)
        found = compile_program(stages.loops, target=results.targets()[width])([x.reshape(-1)])
        for got, whole in zip(found, anima.tree.leaves(anima.jit(fun)(full)), strict=True):
            np.testing.assert_array_equal(got, np.asarray(whole[:count]).reshape(-1))
