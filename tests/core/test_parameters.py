"""Parameters that are equal and not the same, in one program and in turn: each operation is done with its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.experimental import checkify, jet
from anima.extend.core import Primitive

ZEROS = (0.0, -0.0, np.float32(0), np.float32(-0.0), -0.0, 0.0)
X = jnp.arange(1.0, 4.0)


def typed(v: Any) -> np.dtype:
    return jnp.asarray(v).dtype


filled_p = Primitive("filled")
filled_p.def_abstract_eval(lambda x, *, v: jnp.ones(x.shape, typed(v)).aval)
filled_p.def_lowering(lambda x, *, v: jnp.full(x.shape, v, typed(v)))
filled_p.def_batching(lambda args, dims, *, v: (filled_p.bind(args[0], v=v), dims[0]))


def looked_up(x: Any) -> list[Any]:
    past = 9 + 0 * x[:2].astype(int)
    return [x.at[past].get(mode="fill", fill_value=v) for v in ZEROS]


def made(x: Any) -> list[Any]:
    return [filled_p.bind(x, v=v) for v in (*ZEROS, 1, 1.0, True, 0, False, np.int8(1))]


def composed(x: Any) -> list[Any]:
    return [lax.composite(lambda x, *, v: x * 0 + v, "c")(-x, v=v) for v in ZEROS]


def in_turn(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A program for each of the results."""
    return lambda x: [anima.jit(lambda x, k=k: f(x)[k])(x) for k in range(len(f(x)))]


WAYS: dict[str, Callable[[Callable[[Any], Any]], Callable[[Any], Any]]] = {
    "again": lambda f: lambda x: (f(x), f(x), f(x))[2], "jit": anima.jit, "in turn": in_turn,
    "vmap": lambda f: lambda x: [o[0] for o in anima.vmap(f)(x[None])],
    "checked": lambda f: lambda x: checkify.checkify(f, errors=checkify.all_checks - checkify.index_checks)(x)[1],
    "loop": lambda f: lambda x: lax.fori_loop(0, 2, lambda i, c: f(x), [jnp.zeros_like(o) for o in f(x)]),
    "scan": lambda f: lambda x: [o[-1] for o in lax.scan(lambda c, _: (c, f(c)), x, None, length=3)[1]]}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fun", [looked_up, made, composed])
def test_equal_parameters_are_told_apart(way: str, fun: Callable[[Any], Any]) -> None:
    for found, wanted in zip(WAYS[way](fun)(X), fun(X), strict=True):
        assert found.dtype == wanted.dtype and np.asarray(found).tobytes() == np.asarray(wanted).tobytes()
    signs = [bool(np.signbit(o.ravel()[0])) for o in fun(X)][:len(ZEROS)]
    assert signs == [bool(np.signbit(v)) for v in ZEROS]


def test_derivatives_of_equal_parameters() -> None:
    def f(x: Any) -> list[Any]:
        return [x * jnp.copysign(1, jnp.sin(o))[0] for o in looked_up(x)]

    wanted = [(-1) ** bool(np.signbit(v)) for v in ZEROS]
    for k, w in enumerate(wanted):
        assert anima.jvp(lambda x, k=k: f(x)[k], (X,), (X,))[1][0] == w
        assert anima.jit(anima.grad(lambda x, k=k: f(x)[k][0]))(X)[0] == w
    assert [float(o[0]) for o in anima.jit(lambda x: anima.jvp(f, (x,), (x,))[1])(X)] == wanted
    _, series = jet.jet(f, (X,), ([X, 0 * X],))
    assert [float(terms[0][0]) for terms in series] == wanted
    sums = anima.jit(anima.jacrev(lambda x: jnp.stack([o[0] for o in f(x)])))(X)
    assert sums[:, 0].tolist() == wanted
