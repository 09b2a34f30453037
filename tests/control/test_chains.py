"""Fixpoints through chains of carries: what reaches the fourth only after four rounds, for types, use and derivatives.

    scan: (a, b, c, d), x -> (x, a, b, c)        a tangent, a use, a type of `a` is one of `d` only after three steps
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax

Loop = Callable[[Callable[[Any], Any], Any, int], Any]  # of a body, a first carry and a number of steps


def _scan(body: Callable[[Any], Any], carry: Any, count: int) -> Any:
    return lax.scan(lambda c, _: (body(c), None), carry, None, length=count)[0]


def _reversed(body: Callable[[Any], Any], carry: Any, count: int) -> Any:
    return lax.scan(lambda c, _: (body(c), None), carry, jnp.zeros((count, 2)), reverse=True, unroll=2)[0]


def _fori(body: Callable[[Any], Any], carry: Any, count: int) -> Any:
    return lax.fori_loop(0, count, lambda i, c: body(c), carry)


def _down(body: Callable[[Any], Any], carry: Any, count: int) -> Any:
    return lax.while_loop(lambda s: s[0] > 0, lambda s: (s[0] - 1, body(s[1])), (count, carry))[1]


def _by_twos(body: Callable[[Any], Any], carry: Any, count: int) -> Any:
    """The counter goes down past its end, in steps of -2, in a type of eight bits."""
    return lax.while_loop(lambda s: s[0] > np.int8(-100), lambda s: (s[0] - np.int8(2), body(s[1])),
                          (np.int8(-100 + 2 * count), carry))[1]


LOOPS: dict[str, Loop] = {"scan": _scan, "reversed": _reversed, "fori": _fori, "down": _down, "by twos": _by_twos}
COUNTS = (0, 3, 5)
LENGTHS = (4, 6)


def pass_on(carry: Any) -> Any:
    """Each value becomes that before it; the first one stays."""
    return (carry[0], *(c * 0.5 + before for before, c in itertools.pairwise(carry)))


def by_hand(body: Callable[[Any], Any], carry: Any, count: int) -> Any:
    for _ in range(count):
        carry = body(carry)
    return carry


def start(x: Any, length: int) -> Any:
    return (jnp.sin(x), *(jnp.full_like(x, 0.1 * k) for k in range(1, length)))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", LOOPS)
def test_tangents_reach_the_end_of_a_chain(name: str, length: int) -> None:
    """Only the first carry depends on x; the last one does after as many steps as there are between them."""
    loop, x = LOOPS[name], jnp.array([0.3, -0.7, 1.1])
    for count in COUNTS:
        def last(x: Any, run: Loop, count: int = count) -> Any:
            return run(pass_on, start(x, length), count)[-1].sum()

        want = anima.grad(lambda x: last(x, by_hand))(x)
        assert bool((want != 0).any()) == (count >= length - 1)
        for way in (anima.grad, lambda f: anima.jit(anima.grad(f)), lambda f: anima.grad(anima.jit(f)), anima.jacfwd,
                    lambda f: anima.grad(anima.checkpoint(f))):
            np.testing.assert_allclose(way(lambda x: last(x, loop))(x), want, rtol=1e-12, atol=1e-12)
    second = anima.jit(anima.hessian(lambda x: last(x, loop)))(x)
    np.testing.assert_allclose(second, anima.hessian(lambda x: last(x, by_hand))(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", LOOPS)
def test_lanes_reach_the_end_of_a_chain(name: str, length: int) -> None:
    """Only the first carry is mapped."""
    xs = jnp.array([0.3, -0.7, 1.1])
    for count in COUNTS:
        def all_of(x: Any, run: Loop, count: int = count) -> Any:
            return run(pass_on, (x, *(jnp.float32(0.1 * k) for k in range(1, length))), count)

        got = anima.jit(anima.vmap(lambda x: all_of(x, LOOPS[name])))(xs)
        for lane, x in enumerate(xs):
            for one, want in zip(got, all_of(x, by_hand), strict=True):
                np.testing.assert_array_equal(one[lane], want)


@pytest.mark.parametrize("name", LOOPS)
def test_types_reach_the_end_of_a_chain(name: str) -> None:
    """Weak carries take the type of the first one; a type that is no default goes one step, and then is refused."""
    def shift(carry: Any) -> Any:
        return (carry[0], *(c * 0 + before for before, c in itertools.pairwise(carry)))

    for count in COUNTS:
        for kind, length in (("float32", 4), ("bfloat16", 2), ("float16", 2)):
            first = (jnp.array(1.5, kind), *[0.0] * (length - 1))
            outs = anima.jit(lambda c, n=count: LOOPS[name](shift, c, n))(first)
            np.testing.assert_array_equal([float(o) for o in outs], by_hand(shift, (1.5, *first[1:]), count))
            assert {str(o.dtype) for o in outs} == {kind}
    with pytest.raises(TypeError, match="must have equal types"):
        LOOPS[name](shift, (jnp.array(1.5, "bfloat16"), 0.0, 0.0), 3)


@pytest.mark.parametrize("name", ["scan", "reversed", "fori"])
def test_use_reaches_the_start_of_a_chain(name: str) -> None:
    """Where only the last carry is used all that it comes from is kept, and what nothing uses is dropped."""
    def body(carry: Any) -> Any:
        *chain, unused = carry
        return (*pass_on(tuple(chain)), jnp.tanh(unused) + chain[0])

    def last(x: Any, run: Loop, count: int, place: int) -> Any:
        return run(body, (*start(x, 5), x), count)[place]

    x = jnp.array([0.3, -0.7, 1.1])
    for count in COUNTS:
        for place in range(6):
            got = anima.jit(lambda x, n=count, k=place: last(x, LOOPS[name], n, k))(x)
            np.testing.assert_allclose(got, last(x, by_hand, count, place), rtol=1e-6)
    assert "tanh" not in anima.jit(lambda x: last(x, LOOPS[name], 5, 4)).lower(x).compile().as_text()


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("outer", LOOPS)
@pytest.mark.parametrize("inner", LOOPS)
def test_chains_through_nested_loops(outer: str, inner: str) -> None:
    """What is known to the first round of the outer loop is unknown to the fourth."""
    x = jnp.array([0.3, -0.7])

    def value(x: Any, one: Loop, other: Loop) -> Any:
        def body(carry: Any) -> Any:
            a, b, c, d = other(pass_on, carry, 2)
            return a, b, c, lax.cond(c.sum() > 0, lambda d: d * 0.5, jnp.sin, d)

        return sum(v.sum() for v in one(body, start(x, 4), 3)[1:])

    want = anima.grad(lambda x: value(x, by_hand, by_hand))(x)
    got = anima.jit(anima.grad(lambda x: value(x, LOOPS[outer], LOOPS[inner])))(x)
    np.testing.assert_allclose(got, want, rtol=1e-12)
