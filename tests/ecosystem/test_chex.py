"""Chex: dataclasses that are pytrees, assertions (in compiled programs, too) and variants of tests."""

from __future__ import annotations

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest


@chex.dataclass(frozen=True)
class Particle:
    position: Any
    velocity: Any


def test_dataclasses_in_loops() -> None:
    """A leapfrog of a spring, whose state is a dataclass that `scan` carries and `vmap` stacks."""

    def step(p: Particle, _: Any) -> Any:
        v = p.velocity - 0.05 * p.position
        p = p.replace(position=p.position + 0.1 * v, velocity=v - 0.05 * (p.position + 0.1 * v))
        return p, 0.5 * (p.velocity**2 + p.position**2)

    start = Particle(position=jnp.array([1.0, 0.0, -2.0]), velocity=jnp.array([0.0, 1.0, 0.5]))
    run = jax.jit(jax.vmap(lambda p: jax.lax.scan(step, p, length=100)))
    end, energy = run(start)
    chex.assert_shape((end.position, end.velocity), (3,))
    chex.assert_tree_all_finite(end)
    np.testing.assert_allclose(energy[:, -1], energy[:, 0], rtol=6e-3)
    chex.assert_trees_all_equal_structs(end, start)
    gradient = jax.grad(lambda p: run(p)[1][:, -1].sum())(start)
    assert isinstance(gradient, Particle)
    np.testing.assert_allclose(gradient.position, start.position, rtol=6e-3, atol=6e-3)


def test_assertions_say_what_is_wrong() -> None:
    with pytest.raises(AssertionError, match=r"shape \(2,\).*expected"):
        chex.assert_shape(jnp.zeros(2), (3,))
    with pytest.raises(AssertionError, match="rank 1"):
        chex.assert_rank(jnp.zeros(2), {0, 2})
    with pytest.raises(AssertionError, match="differ in leaves"):
        chex.assert_trees_all_equal({"a": jnp.ones(2)}, {"a": jnp.zeros(2)})
    with pytest.raises(AssertionError, match="int32"):
        chex.assert_type(jnp.zeros(2, jnp.int32), float)
    chex.assert_trees_all_close({"a": jnp.ones(2)}, {"a": 1 + 1e-7 * jnp.ones(2)})


def test_assertions_in_compiled_programs() -> None:
    @chex.chexify
    @jax.jit
    def log(x: Any) -> Any:
        chex.assert_tree_all_finite(x)
        chex.assert_trees_all_close(jnp.sign(x), jnp.ones_like(x))
        return jnp.log(x)

    np.testing.assert_allclose(log(jnp.array([1.0, 2.0])), np.log([1, 2]), rtol=1e-6)
    chex.block_until_chexify_assertions_complete()
    log(jnp.array([1.0, -2.0]))
    with pytest.raises(AssertionError, match="chexify"):
        chex.block_until_chexify_assertions_complete()


def test_counting_traces() -> None:
    @jax.jit
    @chex.assert_max_traces(n=2)
    def f(x: Any) -> Any:
        return x + 1

    f(jnp.zeros(2)), f(jnp.zeros(2)), f(jnp.zeros(3))
    with pytest.raises(AssertionError, match="traced > 2 times"):
        f(jnp.zeros(4))
    chex.clear_trace_counter()


class Variants(chex.TestCase):
    """Each test with and without compilation, with arrays on the device and without."""

    @chex.variants(with_jit=True, without_jit=True, with_device=True, without_device=True)
    def test_every_variant(self) -> None:
        f = self.variant(lambda x, y: jnp.sum(x * y))
        self.assertAlmostEqual(float(f(np.arange(3.0), np.ones(3))), 3.0)


def test_fakes() -> None:
    calls = []
    with chex.fake_jit():
        jax.jit(lambda x: calls.append(type(x).__name__) or x)(jnp.ones(2))
    assert calls == ["Array"] or calls == ["ArrayImpl"] or calls == ["ConcreteArray"]
