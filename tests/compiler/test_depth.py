"""What a program costs to trace and to compile grows like its depth: calls of functions of Python's are counted."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable
from typing import Any

import pytest

import anima
import anima.numpy as jnp
from anima import lax

Function = Callable[[Any], Any]


def _cond(inner: Function) -> Function:
    return lambda x: lax.cond(x > 0, inner, lambda x: x, x)



def _while(inner: Function) -> Function:
    return lambda x: lax.while_loop(lambda c: c < 1, inner, x)


def _scan(inner: Function) -> Function:
    return lambda x: lax.scan(lambda c, _: (inner(c), None), x, None, length=1)[0]


def _jit(inner: Function) -> Function:
    return anima.jit(lambda x: inner(x) + 1)


def _checkpoint(inner: Function) -> Function:
    return anima.checkpoint(lambda x: inner(x) + 1)


def _custom_jvp(inner: Function) -> Function:
    wrapped = anima.custom_jvp(lambda x: inner(x) * 2)
    wrapped.defjvp(lambda primals, tangents: (wrapped(*primals), tangents[0] * 3))
    return wrapped


NESTS = {"cond": _cond, "while": _while, "scan": _scan, "jit": _jit, "checkpoint": _checkpoint,
         "custom_jvp": _custom_jvp}
USES: dict[str, Callable[[Function], Function]] = {
    "call": lambda f: f, "grad": anima.grad, "vmap": lambda f: lambda x: anima.vmap(f)(jnp.stack([x, x]))[0]}


def calls(nest: Callable[[Function], Function], use: Callable[[Function], Function], depth: int, compiled: bool) -> int:
    """How many functions are called to trace, and to compile, a nest that was never seen before."""
    function: Function = jnp.sin
    for _ in range(depth):
        function = nest(function)
    profile = cProfile.Profile()
    profile.enable()
    try:
        traced = anima.jit(use(function)).trace(jnp.float32(0.5))
        if compiled:
            traced.lower().compile()
    finally:
        profile.disable()
    return pstats.Stats(profile).total_calls  # type: ignore[attr-defined]


# Loops and choices of gradients are written in more parts: how large these are is another matter.
@pytest.mark.parametrize("use, compiled", [("call", True), ("vmap", True), ("grad", False)])
@pytest.mark.parametrize("nest", NESTS)
def test_work_grows_like_depth(nest: str, use: str, compiled: bool) -> None:
    """Thrice as deep costs less than five times as much; 9 would be that of all pairs of levels."""
    calls(NESTS[nest], USES[use], 1, compiled)  # what the first compilation imports
    shallow, deep = (calls(NESTS[nest], USES[use], depth, compiled) for depth in (8, 24))
    assert deep < 5 * shallow, (shallow, deep)
