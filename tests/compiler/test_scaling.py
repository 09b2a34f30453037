"""Compiling costs in proportion to the program: the Python calls that it takes, and the size of the functions that the
code generator gets, whose own time grows faster than they do."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler import driver
from anima.compiler.machine import native

N = 50
LARGEST = 9000  # lines of LLVM text of one function

V = np.linspace(0.1, 1.0, 16, dtype=np.float32)
W = np.eye(4, dtype=np.float32)
Program = tuple[Callable[..., Any], tuple[Any, ...]]


def _arrays(n: int) -> list[np.ndarray]:
    return [np.full(3, i, np.float32) for i in range(n)]


def _repeated(x: Any, n: int, step: Callable[[Any, int], Any]) -> Any:
    for i in range(n):
        x = step(x, i)
    return x


def _chain(x: Any, n: int) -> Any:
    return _repeated(x, n, lambda x, i: jnp.sin(x) if i % 3 == 0 else x * 1.01 if i % 3 == 1 else x + 0.5)


def _tree(xs: list[Any]) -> Any:
    while len(xs) > 1:
        xs = [a + b for a, b in zip(xs[::2], xs[1::2], strict=False)] + xs[len(xs) - len(xs) % 2:]
    return xs[0]


def _recurrent(w: Any, x: Any, n: int) -> Any:
    return _repeated(x, n, lambda h, i: jnp.tanh(w @ h + 0.1)).sum()


FAMILIES: dict[str, Callable[[int], Program]] = {
    "leaves": lambda n: (lambda xs: [x + 1 for x in xs], (_arrays(n),)),
    "chain": lambda n: (lambda x: _chain(x, n), (V,)),
    "chain of a large array": lambda n: (lambda x: _chain(x, n), (np.zeros(100_000, np.float32),)),
    "chain of scalars": lambda n: (lambda x: _chain(x, n), (np.float32(0.5),)),
    "gradient of a chain": lambda n: (anima.grad(lambda x: _chain(x, n).sum()), (V,)),
    "tangent of a chain": lambda n: (lambda x: anima.jvp(lambda x: _chain(x, n), (x,), (x,)), (V,)),
    "batch of chains": lambda n: (anima.vmap(lambda x: _chain(x, n)), (V.reshape(4, 4),)),
    "products": lambda n: (lambda xs: [x @ W for x in xs], ([W] * n,)),
    "gradient of a recurrence": lambda n: (anima.grad(lambda w, x: _recurrent(w, x, n // 4)), (W, W[0])),
    "sums one after another": lambda n: (lambda x: _repeated(x, n, lambda x, i: x - x.sum() * 0.01), (V,)),
    "tree of sums": lambda n: (lambda xs: _tree(list(xs)), (_arrays(n),)),
    "stack of scalars": lambda n: (lambda xs: jnp.stack(xs), ([np.float32(i) for i in range(n)],)),
    "array of results": lambda n: (lambda x: jnp.array([x * i for i in range(n)]), (np.float32(2.0),)),
    "updates": lambda n: (lambda x: _repeated(x, n, lambda x, i: x.at[i].set(1.5 * i)), (np.zeros(n, np.float32),)),
    "calls": lambda n: (lambda x: _repeated(x, n, lambda x, i: anima.jit(lambda y: y * 2 + i)(x)), (V,)),
    "body of a scan": lambda n: (lambda x: lax.scan(lambda c, _: (_chain(c, n), None), x, None, length=3)[0], (V,)),
    "body of a while loop": lambda n: (
        lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, _chain(c[1], n)), (0, x)), (V,)),
    "branches": lambda n: (lambda x: lax.cond(x[0] > 0, lambda x: _chain(x, n), lambda x: _chain(x + 1, n), x), (V,)),
    "loops": lambda n: (
        lambda x: _repeated(x, n // 4, lambda x, i: lax.fori_loop(0, 9, lambda k, c: c * 0.5 + i, x)), (V,)),
    "one value used everywhere": lambda n: (lambda x: [jnp.exp(x) * i for i in range(n)], (V,)),
    "concatenation": lambda n: (lambda xs: jnp.concatenate([x * 2 for x in xs]), (_arrays(n),)),
    "concatenation of columns": lambda n: (
        lambda xs: jnp.concatenate(xs, axis=1), ([np.full((2, 3), i, np.float32) for i in range(n)],)),
    "slices": lambda n: (lambda x: [x[3 * i: 3 * i + 3] for i in range(n)], (np.zeros(3 * n, np.float32),)),
    "gradient of slices": lambda n: (
        anima.grad(lambda x: sum((x[3 * i: 3 * i + 3] * i).sum() for i in range(n // 3))), (np.zeros(n, np.float32),)),
    "elements": lambda n: (lambda x: sum(x[i] * i for i in range(n)), (np.zeros(n, np.float32),)),
}


def _texts(program: Program) -> tuple[str, ...]:
    """All that is done for a program but the code generator's work."""
    fun, args = program
    return driver.texts(anima.make_jaxpr(fun)(*args), native.host()).texts


def _calls(program: Program) -> int:
    """The number of calls, of Python functions and of C functions, in compiling."""
    count = 0

    def note(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.disable()
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        _texts(program)
    finally:
        sys.setprofile(before)
        gc.enable()
    return count


@pytest.mark.parametrize("name", FAMILIES)
def test_calls_grow_like_the_program(name: str) -> None:
    family = FAMILIES[name]
    _texts(family(8))  # what is imported and cached at the first use
    assert _calls(family(8 * N)) < 2.3**2 * _calls(family(2 * N))  # cutting into parts begins somewhere in between


@pytest.mark.parametrize("name", FAMILIES)
def test_functions_are_bounded(name: str) -> None:
    functions = [f for text in _texts(FAMILIES[name](8 * N)) for f in re.split(r"^define ", text, flags=re.M)]
    assert max(f.count("\n") for f in functions) < LARGEST
