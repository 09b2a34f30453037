"""Functions that are called once for arguments of equal types, in JAX's place; and what makes a call another one."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.config import config
from anima.core import kept
from tests.api.test_options_in_keys import FORBIDS, KEYED, values

Function = Callable[..., Any]
WAYS: dict[str, Function] = {
    "eval_shape": anima.eval_shape,
    "checkpoint": lambda f, x: anima.vjp(anima.checkpoint(f), x)[0],
    "closure_convert": lambda f, x: (lambda g, values: g(x, *values))(*anima.closure_convert(f, x)),
    "cond": lambda f, x: lax.cond(True, f, lambda y: y, x),
    "switch": lambda f, x: lax.switch(1, [lambda y: y, f], x),
    "while_loop": lambda f, x: lax.while_loop(lambda y: jnp.sum(y) < 0, f, x),
    "reduce": lambda f, x: lax.reduce(x, x.dtype.type(0), f, (0,)),
}
X = np.ones(3, np.float32)


@pytest.fixture(autouse=True)
def in_the_place_of_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "remembers", True)


class Counted:
    """A function, and how often it was called."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, x: Any, *more: Any) -> Any:
        self.count += 1
        return x * 2 if not more else x + more[0]


@pytest.mark.parametrize("way", WAYS)
def test_a_function_is_called_once_for_arguments_of_equal_types(way: str) -> None:
    f, call = Counted(), WAYS[way]
    for _ in range(2):
        call(f, jnp.asarray(X))
        anima.jit(lambda x: (call(f, x), x)[1])(X)
        anima.vmap(lambda x: (call(f, x), x)[1])(jnp.asarray(X)[None])
        anima.grad(lambda x: (call(f, x), x.sum())[1])(X)
    assert f.count == 1
    call(f, jnp.arange(4))
    assert f.count == 2
    anima.clear_caches()
    call(f, jnp.asarray(X))
    assert f.count == 3


def test_loops_in_programs_call_their_functions_once() -> None:
    calls: list[str] = []

    def step(c: Any, x: Any) -> Any:
        calls.append("scan")
        return c + x, None

    def body(_: Any, c: Any) -> Any:
        calls.append("fori")
        return c * 2

    for _ in range(2):
        assert anima.jit(lambda x: lax.scan(step, 0.0, x)[0])(X) == 3
        assert anima.jit(lambda x: lax.fori_loop(0, 3, body, x[0]))(X) == 8
        assert anima.jit(lambda x, n: lax.fori_loop(0, n, body, x[0]))(X, 3) == 8
    assert calls == ["scan", "fori", "fori"]  # a loop of unknown length is another one


@pytest.mark.parametrize("way", ["eval_shape", "checkpoint", "closure_convert", "cond", "while_loop"])
def test_every_option_makes_another_call(way: str) -> None:
    for name in sorted({*KEYED} - FORBIDS - {"disable_jit"}):  # under which loops and branches are Python's own
        choices, seen = values(name), []

        def reads(x: Any, name: str = name, seen: list[Any] = seen) -> Any:
            seen.append(config.read(name))
            return x

        for value in [*choices, *choices]:
            with config.option(name)(value):
                WAYS[way](reads, jnp.asarray(X))
        assert {*map(repr, seen)} == {*map(repr, choices)}, name


def test_named_axes_and_static_values_make_another_call() -> None:
    f = Counted()
    for name in "abab":
        anima.vmap(lambda x: anima.checkpoint(f)(x), axis_name=name)(X)
    assert f.count == 2

    def scaled(x: Any, by: Any) -> Any:
        return x * by

    results = [anima.checkpoint(scaled, static_argnums=1)(X, by)[0] for by in (1, 2, True, 2.5)]
    assert results == [1, 2, 1, 2.5]


@pytest.mark.parametrize("transform", [anima.jit, anima.vmap, lambda f: anima.grad(lambda x: f(x).sum())])
@pytest.mark.parametrize("way", ["checkpoint", "closure_convert", "cond", "jit"])
def test_tracers_that_are_closed_over(way: str, transform: Function) -> None:
    """Within one transformation a function is called once; another one has values of its own."""
    calls: list[int] = []
    call = WAYS.get(way) or (lambda f, x: anima.jit(f)(x))
    now: list[Any] = [None]

    def reads(x: Any) -> Any:
        calls.append(1)
        return x * now[0]

    def twice(y: Any) -> Any:
        now[0] = y
        return call(reads, call(reads, y))

    for k in range(1, 4):
        expected = k ** 3 if transform in (anima.jit, anima.vmap) else 3 * k ** 2
        np.testing.assert_array_equal(transform(lambda y: twice(y))(X * k), X * expected)
        assert len(calls) == k


def test_functions_and_what_they_close_over_go() -> None:
    gc.disable()
    try:
        for way, call in WAYS.items():
            array = jnp.arange(3.0)
            f: Any = functools.partial(lambda b, x, *more: x * b.sum(), array)
            call(f, jnp.asarray(X))
            anima.jit(lambda x, f=f, call=call: (call(f, x), x)[1])(X)
            gone = weakref.ref(f), weakref.ref(array)
            if way == "reduce":  # whose program, with its constants, is kept with the last that were compiled
                gone = gone[:1]
            del f, array
            assert [ref() for ref in gone] == [None] * len(gone), way
    finally:
        gc.enable()


def test_elsewhere_functions_read_what_they_read_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "remembers", False)
    for way in ("eval_shape", "checkpoint", "cond"):
        f = Counted()
        WAYS[way](f, jnp.asarray(X))
        WAYS[way](f, jnp.asarray(X))
        assert f.count == 2, way
