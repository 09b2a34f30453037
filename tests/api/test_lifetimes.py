"""Arrays that functions closed over: they go with the functions."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import anima
import anima.numpy as jnp
from anima import lax

Function = Callable[[Any], Any]


def total(b: Any) -> Function:
    return lambda x: (b * x).sum()


def scanned(b: Any) -> Function:
    return lambda x: lax.scan(lambda c, _: (c + (b * c).sum(), None), x, None, length=3)[0]


def repeated(b: Any) -> Function:
    return lambda x: lax.while_loop(lambda c: c < 10, lambda c: c + (b * c).sum(), x)


def chosen(b: Any) -> Function:
    return lambda x: lax.cond(x > 2, lambda: (b * x).sum(), lambda: x)


def checkpointed(b: Any) -> Function:
    return anima.checkpoint(lambda x: (b * x).sum())


def product(b: Any) -> Function:
    return lambda x: (b.reshape(3, -1) @ (x * b.reshape(-1, 3))).sum()


def transformed(b: Any) -> Function:
    return lambda x: jnp.abs(jnp.fft.fft(b * x)).sum()


def ordered(b: Any) -> Function:
    return lambda x: jnp.cumsum(jnp.sort(b * x))[-1]


def own_rule(b: Any) -> Function:
    @anima.custom_jvp
    def f(x: Any) -> Any:
        return (b * x).sum()

    f.defjvp(lambda x, t: ((b * x[0]).sum(), t[0] * b.sum()))
    return f


def many(transform: Callable[[Function], Function]) -> Callable[[Function], Function]:
    return lambda f: lambda x: anima.jit(anima.vmap(transform(f)))(jnp.stack([x, x]))


MADE = [total, scanned, repeated, chosen, checkpointed, product, transformed, ordered]
TRANSFORMS: dict[str, Callable[[Function], Function]] = {
    "eager": lambda f: f, "jit": anima.jit, "grad": anima.grad, "jit grad": lambda f: anima.jit(anima.grad(f)),
    "hessian": lambda f: anima.jit(anima.hessian(f)), "vmap": many(lambda f: f), "vmap grad": many(anima.grad),
    "linearize": lambda f: lambda x: anima.linearize(f, x)[1](x)}


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def called(make: Callable[[Any], Function], transform: Callable[[Function], Function]) -> Callable[[], Any]:
    """A reference to an array that a transformed function closed over, which was called, and dropped."""
    array = jnp.arange(600.0) / 600
    transform(make(array))(jnp.float32(3))
    return weakref.ref(array)


@pytest.mark.parametrize("how", TRANSFORMS)
@pytest.mark.parametrize("make", MADE)
def test_arrays_go_at_once(make: Callable[[Any], Function], how: str, no_collector: None) -> None:
    """No circle keeps them until Python's collector runs, which counts objects and knows nothing of their sizes."""
    assert called(make, TRANSFORMS[how])() is None


@pytest.mark.parametrize("how", ["eager", "grad", "vmap", "jit grad", "hessian"])
def test_of_functions_with_rules(how: str) -> None:
    gone = called(own_rule, TRANSFORMS[how])
    gc.collect()
    assert gone() is None


def test_programs_that_refer_to_each_other() -> None:
    """What is remembered of a program may hold that program."""
    def made() -> Callable[[], Any]:
        array = jnp.arange(600.0)
        primal, derivative = anima.linearize(anima.jit(checkpointed(array)), jnp.float32(3))
        anima.linear_transpose(derivative, jnp.float32(3))(primal)
        anima.jit(anima.hessian(checkpointed(array)))(jnp.float32(3))
        return weakref.ref(array)

    gone = made()
    gc.collect()
    assert gone() is None
