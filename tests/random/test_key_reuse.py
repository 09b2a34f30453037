"""What is found of keys that are used twice: in programs, between calls; and what is no reuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax, random
from anima.control.key_reuse import used_up
from anima.errors import KeyReuseError


def chain(key: Any, _: Any) -> Any:
    key, own = random.split(key)
    return key, random.normal(own)


REUSED: dict[str, Callable[[Any], Any]] = {
    "twice": lambda k: random.normal(k[0]) + random.uniform(k[0]),
    "by a slice and whole": lambda k: (random.normal(k[1]), anima.vmap(random.normal)(k)),
    "moved": lambda k: random.normal(k[::-1][0]) + random.normal(k.reshape(2, 2)[1, 1]),
    "split and used": lambda k: (random.split(k[0]), random.normal(k[0])),
    "in two calls": lambda k: [anima.jit(lambda k: random.normal(k[0]))(k) for _ in range(2)],
    "in each step": lambda k: lax.fori_loop(0, 3, lambda i, c: c + random.normal(k[0]), 0.0),
    "by a carry that stays": lambda k: lax.scan(lambda c, _: (c, random.normal(c)), k[0], None, length=3),
    "in each step of a while": lambda k: lax.while_loop(lambda c: c < 1, lambda c: c + random.uniform(k[0]), 0.0),
    "by a condition": lambda k: lax.while_loop(lambda c: c < random.uniform(k[0]), lambda c: c + 1, 0.0),
    "by a scan and after it": lambda k: (lax.scan(lambda c, k: (c, random.normal(k)), 0.0, k), random.normal(k[3])),
    "in a branch and after it": lambda k: (lax.cond(True, lambda: random.normal(k[0]), lambda: 0.0),
                                           random.normal(k[0])),
    "under checkpoint": lambda k: (anima.checkpoint(random.normal)(k[0]), random.normal(k[0]))}
FINE: dict[str, Callable[[Any], Any]] = {
    "each once": lambda k: [random.normal(k[i]) for i in range(4)],
    "a clone": lambda k: (random.normal(random.clone(k[0])), random.normal(k[0])),
    "folded": lambda k: lax.fori_loop(0, 3, lambda i, c: c + random.normal(random.fold_in(k[0], i)), 0.0),
    "a chain": lambda k: lax.scan(chain, k[0], None, length=3),
    "one for each step": lambda k: lax.scan(lambda c, k: (c + random.normal(k), None), 0.0, k),
    "one step": lambda k: lax.scan(lambda c, _: (c + random.normal(k[0]), None), 0.0, None, length=1),
    "branches": lambda k: lax.cond(True, lambda: random.normal(k[0]), lambda: random.uniform(k[0])),
    "at a place that is not known": lambda k: lax.fori_loop(0, 4, lambda i, c: c + random.normal(k[i]), 0.0),
    "lanes": lambda k: anima.vmap(lambda x: x + random.normal(k[0]))(jnp.arange(3.0))}


def keys() -> Any:
    return random.split(random.key(0), 4)


@pytest.mark.parametrize("name", REUSED)
def test_reuse_in_programs(name: str) -> None:
    with pytest.raises(KeyReuseError, match=r"test_key_reuse.py:\d+"):
        used_up(anima.make_jaxpr(REUSED[name])(keys()), "f")
    anima.jit(REUSED[name])(keys())
    with anima.debug_key_reuse(True), pytest.raises(KeyReuseError):
        anima.jit(REUSED[name])(keys())


@pytest.mark.parametrize("name", FINE)
def test_no_reuse(name: str) -> None:
    used_up(anima.make_jaxpr(FINE[name])(keys()), "f")
    with anima.debug_key_reuse(True):
        for run in (anima.jit, lambda f: f):
            run(FINE[name])(keys())


@pytest.mark.parametrize("name", [n for n in REUSED if n not in ("in a branch and after it", "under checkpoint")])
def test_reuse_outside_of_programs(name: str) -> None:
    with anima.debug_key_reuse(True), pytest.raises(KeyReuseError):
        REUSED[name](keys())


EAGER: dict[str, tuple[Callable[[Any], Any], bool]] = {  # and whether that is a reuse
    "an element": (lambda k: (random.normal(k[0]), random.normal(k[0])), True),
    "other elements": (lambda k: [random.normal(k[i]) for i in range(4)], False),
    "iterated over": (lambda k: [random.normal(x) for x in k], False),
    "iterated over, twice": (lambda k: [random.normal(x) for _ in range(2) for x in k], True),
    "at places": (lambda k: (random.normal(k[jnp.array([3, 1])][1]), random.normal(k[1])), True),
    "at other places": (lambda k: (random.normal(k[jnp.array([3, 1])][1]), random.normal(k[2])), False),
    "stacked": (lambda k: (random.normal(k[0]), random.uniform(jnp.stack([k[1], k[0]])[1])), True),
    "stacked, another": (lambda k: (random.normal(k[0]), random.uniform(jnp.stack([k[1], k[0]])[0])), False),
    "joined with others": (lambda k: (random.normal(jnp.concatenate([keys(), k])[5]), random.normal(k[1])), True),
    "an element of lanes": (lambda k: (anima.vmap(lambda x: random.normal(x[0]))(k.reshape(2, 2)),
                                       random.normal(k[2])), True),
    "no element of lanes": (lambda k: (anima.vmap(lambda x: random.normal(x[0]))(k.reshape(2, 2)),
                                       random.normal(k[3])), False),
    "split, and an element": (lambda k: (random.split(k[0]), random.normal(k[0])), True)}


@pytest.mark.parametrize("name", EAGER)
def test_elements_of_keys_outside_of_programs(name: str) -> None:
    function, reuses = EAGER[name]
    given = keys()
    with anima.debug_key_reuse(True):
        if reuses:
            with pytest.raises(KeyReuseError, match=r"has been used before, by \w+ at test_key_reuse.py"):
                function(given)
        else:
            function(given)
    function(given)


def test_which_keys_are_used_up() -> None:
    closed = anima.make_jaxpr(lambda k, x: (random.normal(k[1]), k.T[2], x))(keys(), 1.0)
    which, other = used_up(closed, "f")
    assert list(which) == [False, True, False, False] and other is None


def test_reuse_between_calls() -> None:
    draw, first = anima.jit(random.normal), anima.jit(lambda k: random.normal(k[0]))
    with anima.debug_key_reuse(True):
        loop = lambda k: lax.map(lambda x: x * random.normal(k), jnp.ones(1))
        for again in (draw, random.uniform, random.split, loop):
            key = random.key(1)
            draw(key)
            with pytest.raises(KeyReuseError, match="has been used before, by"):
                again(key)
        ks = keys()
        first(ks)
        anima.jit(lambda k: random.normal(k[1]))(ks)  # another element
        with pytest.raises(KeyReuseError):
            first(ks)
        key = random.key(2)
        for _ in range(3):  # calls that take the short way otherwise
            key, own = random.split(key)
            draw(own)
        key = random.key(3)
        for i in range(3):
            draw(random.fold_in(key, i))
    draw(own)


@pytest.mark.parametrize("name,args", [
    ("poisson", (20.0, (3,))), ("binomial", (20.0, 0.3, (3,))), ("multinomial", (20.0, np.float32([0.3, 0.7]))),
    ("gamma", (2.0, (3,))), ("beta", (2.0, 3.0)), ("dirichlet", (np.ones(3, np.float32),)), ("permutation", (5,)),
    ("choice", (5, (2,), False)), ("loggamma", (0.5,)), ("t", (2.0, (3,))), ("geometric", (0.3, (3,))),
    ("truncated_normal", (-1.0, 1.0)), ("categorical", (np.zeros(4, np.float32),)), ("orthogonal", (3,))])
def test_samplers_do_not_reuse_keys(name: str, args: Any) -> None:
    used_up(anima.make_jaxpr(lambda k: getattr(random, name)(k, *args))(random.key(0)), name)
