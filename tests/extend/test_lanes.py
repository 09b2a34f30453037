"""Users' batching rules that exchange values between lanes, within loops and branches of mapped functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.custom_batching import custom_vmap
from anima.extend.core import Primitive
from anima.interpreters import batching

any_p = Primitive("any_lane")
any_p.def_abstract_eval(lambda x: x)
any_p.def_lowering(lambda x: x)
batching.primitive_batchers[any_p] = lambda args, dims: (jnp.any(args[0], axis=dims[0]), None)

A = jnp.array([0.5, 2.0, 9.0, 100.0])  # whose square roots take different numbers of steps


@custom_vmap
def any_lane(x: Any) -> Any:
    return x


@any_lane.def_vmap
def _(size: int, batched: Any, x: Any) -> Any:
    return jnp.any(x), False


EXCHANGES = {"primitive": any_p.bind, "custom_vmap": any_lane}


def newton(x: Any, a: Any) -> Any:
    return 0.5 * (x + a / x)


def by_scan(a: Any, exchange: Callable[[Any], Any]) -> Any:
    def step(x: Any, _: Any) -> Any:
        return lax.cond(exchange(jnp.abs(x * x - a) > 1e-5 * a), newton, lambda x, a: x, x, a), None

    return lax.scan(step, a, None, length=16)[0]


def by_while(a: Any, exchange: Callable[[Any], Any]) -> Any:
    """In the body, of a loop whose lanes end at different steps."""
    def step(s: Any) -> Any:
        return jnp.where(exchange(jnp.abs(s[0] ** 2 - a) > 1e-5 * a), newton(s[0], a), s[0]), s[1] + 1

    return lax.while_loop(lambda s: s[1] < a + 8, step, (a, 0.0))[0]


def by_cond(a: Any, exchange: Callable[[Any], Any]) -> Any:
    """In a branch, which not all lanes take."""
    return lax.cond(a > 1, lambda a: jnp.where(exchange(a > 50), 2 * a, a), lambda a: 3 * a, a)


@pytest.mark.parametrize("jit", [anima.jit, lambda f: f], ids=["compiled", "eager"])
@pytest.mark.parametrize("exchange", EXCHANGES.values(), ids=EXCHANGES)
class TestLanesGoTogether:
    @pytest.mark.parametrize("root", [by_scan, by_while])
    def test_in_loops(self, root: Callable[..., Any], exchange: Callable[[Any], Any], jit: Callable[..., Any]) -> None:
        roots = anima.vmap(lambda a: root(a, exchange))
        np.testing.assert_allclose(jit(roots)(A), np.sqrt(A), rtol=1e-6)
        np.testing.assert_allclose(jit(anima.grad(lambda a: roots(a).sum()))(A), 0.5 / np.sqrt(A), rtol=1e-5)

    def test_in_mapped_derivatives(self, exchange: Callable[[Any], Any], jit: Callable[..., Any]) -> None:
        slopes = anima.vmap(anima.grad(lambda a: by_scan(a, exchange)))
        np.testing.assert_allclose(jit(slopes)(A), 0.5 / np.sqrt(A), rtol=1e-5)

    def test_in_branches(self, exchange: Callable[[Any], Any], jit: Callable[..., Any]) -> None:
        np.testing.assert_array_equal(jit(anima.vmap(lambda a: by_cond(a, exchange)))(A), [1.5, 4, 18, 200])
        slopes = anima.vmap(anima.grad(lambda a: by_cond(a, exchange)))
        np.testing.assert_array_equal(jit(slopes)(A), [3, 2, 2, 2])


def test_mapped_derivatives_of_such_loops_are_refused() -> None:
    with pytest.raises(NotImplementedError, match=r"batching rules of users. Fix: differentiate the mapped function"):
        anima.vmap(anima.grad(lambda a: by_while(a, any_p.bind)))(A)
