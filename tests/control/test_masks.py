"""Derivatives of programs of which parts are constant, unused, passed on or cut off: against Python, step by step.

Which operands have tangents, which results need cotangents, which are both, and what of it changes on the way through
a loop is decided by masks. A random body takes (a, b) to (a, b, y), each by one of `PARTS`; every way of running it,
derivatives by every subset of operands, of every subset of results.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax

PARTS: dict[str, Callable[[Any, Any], Any]] = {  # of a value and the other one
    "constant": lambda v, w: jnp.full_like(v, 0.7),
    "same": lambda v, w: v,
    "other": lambda v, w: jnp.zeros_like(v) + jnp.sum(w),
    "product": lambda v, w: v * jnp.sum(w),
    "sine": lambda v, w: jnp.sin(v) * 1.5,
    "cut off": lambda v, w: lax.stop_gradient(v) * 2,
    "cut in part": lambda v, w: lax.stop_gradient(v) * v + 1,
    "whole": lambda v, w: jnp.zeros_like(v) + jnp.floor(10 * jnp.sum(w)).astype(int),
}
UNUSED = [("constant", "same", "constant"), ("same", "constant", "constant")]  # one of the operands
Body = Callable[[Any, Any], tuple[Any, Any, Any]]
policies = anima.checkpoint_policies


def steps(body: Body, a: Any, b: Any) -> Any:
    ys = []
    for _ in range(3):
        a, b, y = body(a, b)
        ys.append(y)
    return a, b, jnp.stack(ys)


def scanned(body: Body, a: Any, b: Any) -> Any:
    def step(c: Any, _: Any) -> Any:
        a, b, y = body(*c)
        return (a, b), y

    (a, b), ys = lax.scan(step, (a, b), None, length=3)
    return a, b, ys


def counted(body: Body, a: Any, b: Any) -> Any:
    """A loop whose length nothing knows, with what changes, what does not, and where the results go in its carry."""
    def step(c: Any) -> Any:
        n, (a, b), ys = c
        a, b, y = body(a, b)
        return n + 1, (a, b), ys.at[n].set(y)

    _, (a, b), ys = lax.while_loop(lambda c: c[0] < 3, step, (0, (a, b), jnp.zeros((3, *jnp.shape(a)))))
    return a, b, ys


def with_inputs(body: Body, a: Any, b: Any) -> Any:
    """`b` is not carried, but an element of `xs` at each step, and a constant of the loop."""
    def step(a: Any, x: Any) -> Any:
        a, _, y = body(a, x)
        return a, (y, x * jnp.sum(b))

    a, (ys, more) = lax.scan(step, a, jnp.stack([b, b * 2, b + 1]), reverse=True)
    return a, more, ys


def with_inputs_by_hand(body: Body, a: Any, b: Any) -> Any:
    ys, more = [], []
    for x in (b + 1, b * 2, b):
        a, _, y = body(a, x)
        ys.insert(0, y)
        more.insert(0, x * jnp.sum(b))
    return a, jnp.stack(more), jnp.stack(ys)


def branched(body: Body, a: Any, b: Any) -> Any:
    first = lax.cond(jnp.sum(a) > -9, body, lambda a, b: (a, b * 3, jnp.cos(a)), a, b)
    return lax.switch(jnp.int32(2), [lambda a, b, y: (y, b, a), lambda a, b, y: (a, b * b, a), lambda a, b, y:
                                     body(y, b)], *first)


def branched_by_hand(body: Body, a: Any, b: Any) -> Any:
    _, b, y = body(a, b)
    return body(y, b)


def again(policy: Any, prevent_cse: bool = True) -> Callable[..., Any]:
    return lambda body, a, b: steps(anima.checkpoint(body, policy=policy, prevent_cse=prevent_cse), a, b)


WAYS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "scan": (scanned, steps), "while": (counted, steps), "xs": (with_inputs, with_inputs_by_hand),
    "branches": (branched, branched_by_hand), "jit": (lambda body, a, b: steps(anima.jit(body), a, b), steps),
    "checkpoint": (again(None), steps), "checkpoint, all kept": (again(policies.everything_saveable, False), steps),
    "checkpoint, one operation kept": (again(lambda prim, *_, **params: prim.name == "mul"), steps),
    "scan of checkpoint": (lambda body, a, b: scanned(anima.checkpoint(body), a, b), steps),
    "checkpoint of scan": (lambda body, a, b: anima.checkpoint(lambda a, b: scanned(body, a, b))(a, b), steps),
    "lanes of branches": (lambda body, a, b: tuple(x[0] for x in anima.vmap(lambda p, a, b: lax.cond(
        p, lambda a, b: branched(body, a, b), lambda a, b: (b * a, b, a), a, b))(
        jnp.array([True, False]), *(jnp.stack([x, x]) for x in (a, b)))), branched_by_hand),
}


def derivatives(run: Callable[..., Any], body: Body, a: Any, b: Any) -> Any:
    """By each operand and by both: of the results forwards, of each of them backwards; the last to order 2."""
    found = []
    for chosen in ((0,), (1,), (0, 1)):
        def of(*xs: Any, chosen: tuple[int, ...] = chosen) -> Any:
            given = dict(zip(chosen, xs, strict=True))
            return run(body, *(given.get(k, x) for k, x in enumerate((a, b))))

        xs = [(a, b)[k] for k in chosen]
        outs, tangents = anima.jvp(of, xs, [0.5 + x for x in xs])
        found += [outs, tangents]
        for k in range(3):
            found += [anima.vjp(lambda *xs, k=k, of=of: of(*xs)[k], *xs)[1](jnp.cos(outs[k]))]

    def slope(a: Any, b: Any) -> Any:
        return sum(jnp.sum(g * g) for g in anima.grad(lambda *xs: sum(map(jnp.sum, run(body, *xs))), (0, 1))(a, b))

    return [*found, anima.grad(slope, (0, 1))(a, b)]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("way", WAYS)
def test_parts_without_derivatives(way: str, seed: int) -> None:
    chance = random.Random(f"{way} {seed}")
    chosen = UNUSED[seed] if seed < len(UNUSED) else [chance.choice(list(PARTS)) for _ in range(3)]
    first, second, result = (PARTS[name] for name in chosen)

    def body(a: Any, b: Any) -> Any:
        return first(a, b), second(b, a), result(a, b)

    a, b = jnp.array([0.3, -0.4]), jnp.array([0.9, 0.2] if seed % 3 else 0.6)
    if way == "lanes of branches":
        b = jnp.array([0.9, 0.2])
    run, by_hand = WAYS[way]
    got = anima.jit(lambda a, b: derivatives(run, body, a, b))(a, b)
    want = derivatives(by_hand, body, a, b)
    assert anima.tree.structure(got) == anima.tree.structure(anima.tree.map(jnp.asarray, want))
    for x, y in zip(anima.tree.leaves(got), anima.tree.leaves(want), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12)
