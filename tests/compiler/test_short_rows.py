"""Loops over rows of a few elements run with a row in each lane: when they do, and that they compute the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler.driver import to_loops
from anima.compiler.emitting.interleave import runs
from anima.compiler.ir.loops import INDEX, Const, For, Op, statements, walk
from anima.compiler.machine.native import host
from anima.compiler.scheduling.schedule import BLOCK, SHORT
from tests.compiler.stages import closed

Function = Callable[[Any], Any]


def unit(x: Any) -> Any:
    return x / jnp.sqrt((x * x).sum(-1, keepdims=True) + 1)


def pulls(x: Any) -> Any:
    d = x[None] - x[:, None]
    return (d / (1 + (d * d).sum(-1, keepdims=True)) ** 1.5).sum(1)


PROGRAMS: dict[str, Function] = {
    "unit": unit,
    "weighted": lambda x: x * jnp.exp(-(x * x).sum(-1))[:, None],
    "softmax": lambda x: jnp.exp(x - x.max(-1, keepdims=True)) / jnp.exp(x - x.max(-1, keepdims=True)).sum(
        -1, keepdims=True),
    "both ways": lambda x: (x / (1 + jnp.abs(x).sum(-1, keepdims=True)), jnp.sqrt(jnp.abs(x).sum(-1))),
    "turned": lambda x: unit(x)[:, ::-1] + unit(x)[::-1],
    "chosen": lambda x: jnp.where(x > x.mean(-1, keepdims=True), jnp.exp(x), x),
    "pairs": lambda x: pulls(x[:40]),
    "looked up": lambda x: unit(x[jnp.arange(len(x)) // 2]),
}


def lanes_are_rows(fun: Function, x: Any) -> bool:
    """Whether a vector loop of the program has loops written out in it: several stores, next to each other."""
    program = closed(fun, x)
    for step in to_loops("p", (), host())[:-3]:
        program = step.run(program)
    loops = [s for s in statements(*program.body) if isinstance(s, For) and s.kind == "vector"]
    return any(len(run) > 1 for loop in loops for run in runs(loop.body))


@pytest.mark.parametrize(
    "n", [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 65, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 3])
@pytest.mark.parametrize("name", PROGRAMS)
def test_sizes(name: str, n: int) -> None:
    """In one program, of which no loop is over two arrays: rows of every length, for each number of vectors and on
    both sides of limits; elsewhere of the shortest and longest, as what is done is the same for all between."""
    rng = np.random.default_rng(n)
    lengths = range(1, SHORT + 2) if n in (1, 7, 16, 17, 33, BLOCK, BLOCK + 1) else (1, 2, 3, SHORT, SHORT + 1)
    every = [rng.normal(size=(n, d)).astype(np.float32) for d in lengths]
    got = anima.jit(lambda xs: [PROGRAMS[name](x) for x in xs])(every)
    with anima.disable_jit():
        want = [PROGRAMS[name](jnp.asarray(x)) for x in every]
    anima.tree.map(lambda g, w: np.testing.assert_allclose(np.asarray(g), np.asarray(w), rtol=3e-6, atol=1e-6),
                   got, want)


@pytest.mark.parametrize(
    "dtype", ["float64", "float16", "bfloat16", "complex64", "complex128", "int32", "int8", "uint16", "bool"])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_types(dtype: str, d: int) -> None:
    with anima.enable_x64(True):
        rng = np.random.default_rng(d)
        for n in (5, 16, 17, 700):
            x = jnp.asarray(rng.normal(size=(n, d)) * 3 + (1j if dtype.startswith("c") else 0)).astype(dtype)

            def fun(x: Any) -> Any:
                y = jnp.exp(x.astype(jnp.promote_types(x.dtype, jnp.float32)).sum(-1))
                return x * 2, y, x.astype(y.dtype) * y[:, None], jnp.where(y[:, None].real > 1, x, x + x)

            got = anima.jit(fun)(x)
            with anima.disable_jit():
                want = fun(x)
            tolerance = 2e-2 if dtype in ("float16", "bfloat16") else 1e-5
            for g, w in zip(got, want, strict=True):
                assert g.dtype == w.dtype
                np.testing.assert_allclose(*(np.asarray(a).astype(complex) for a in (g, w)), rtol=tolerance)


def test_when() -> None:
    x = np.ones((1000, 3), np.float32)
    assert lanes_are_rows(unit, x)
    assert lanes_are_rows(pulls, np.ones((4, 3), np.float32))      # a few bodies in space
    assert not lanes_are_rows(unit, np.ones((1000, SHORT + 1), np.float32))
    assert not lanes_are_rows(unit, np.ones((1, 3), np.float32))
    assert not lanes_are_rows(lambda x: x * 2 + 1, x)             # one long row
    assert not lanes_are_rows(lambda x: x.sum(-1), x)
    assert not lanes_are_rows(lambda x: jnp.cumsum(x, -1) * x.sum(-1, keepdims=True), x[:, :1])


def test_what_is_computed_does_not_depend_on_the_lane() -> None:
    """A row has the same bits wherever it stands, and among however many."""
    x = np.random.default_rng(0).normal(size=(1100, 3)).astype(np.float32)
    whole = np.asarray(anima.jit(unit)(x))
    for start, stop in ((0, 7), (3, 36), (500, 1100), (17, 18), (1, 1099)):
        assert np.asarray(anima.jit(unit)(x[start:stop])).tobytes() == whole[start:stop].tobytes()


def test_updates_in_place() -> None:
    def run(x: Any, v: Any) -> Any:
        def step(state: Any, _: Any) -> Any:
            x, v = state
            v = v - 0.1 * x / (1 + (x * x).sum(-1, keepdims=True)) ** 1.5
            return (x + 0.1 * v, v), x[0]

        return lax.scan(step, (x, v), None, length=20)

    for n in (2, 4, 5, 16, 40):
        x, v = np.random.default_rng(n).normal(size=(2, n, 3))
        got = anima.jit(run)(x, v)
        with anima.disable_jit():
            want = run(jnp.asarray(x), jnp.asarray(v))
        anima.tree.map(lambda g, w: np.testing.assert_allclose(np.asarray(g), np.asarray(w), rtol=1e-4, atol=1e-5),
                       got, want)
        lanes = anima.jit(anima.vmap(run))(np.stack([x, 2 * x]), np.stack([v, v]))
        anima.tree.map(lambda m, g: np.testing.assert_allclose(np.asarray(m)[0], np.asarray(g), rtol=1e-4, atol=1e-5),
                       lanes, got)


def test_gradients() -> None:
    x = np.random.default_rng(0).normal(size=(33, 3)).astype(np.float32)

    def loss(x: Any) -> Any:
        return (unit(x) ** 3).sum() + jnp.sqrt((x * x).sum(-1)).sum()

    with anima.disable_jit():
        want = anima.grad(loss)(jnp.asarray(x))
    np.testing.assert_allclose(np.asarray(anima.jit(anima.grad(loss))(x)), np.asarray(want), rtol=2e-5, atol=1e-6)


MATRICES: dict[str, Function] = {
    "outer": lambda x: jnp.einsum("ni,nj->nij", unit(x), x),
    "rotated": lambda x: jnp.stack([jnp.stack([jnp.cos(x[:, 0]), -x[:, 1]], 1), jnp.stack([x[:, 1], x[:, 0]], 1)], 1),
    "gradient of a product": lambda x: anima.grad(lambda m: ((m @ x[..., None]) ** 2).sum())(
        x[:, :, None] * (1 + x[:, None])),
    "sums": lambda x: (x[:, :, None] - x[:, None] ** 2).sum(1) + (x[:, :, None] * jnp.exp(-x[:, None] ** 2)).sum(2),
    "chosen": lambda x: jnp.where(jnp.eye(x.shape[1]) > 0, x[:, :, None], jnp.exp(x)[:, None]),
    "of three": lambda x: x[:, :2, None, None] * x[:, None, :2, None] * jnp.sin(x[:, None, None, :2])}


@pytest.mark.parametrize("d", [2, 3, 4, 5])
@pytest.mark.parametrize("name", MATRICES)
def test_rows_of_rows(name: str, d: int) -> None:
    """Small matrices, one in each lane if they are so small."""
    rng = np.random.default_rng(d)
    for n in (1, 3, 17, 65, BLOCK + 1):
        x = rng.normal(size=(n, d)).astype(np.float32)
        with anima.disable_jit():
            want = MATRICES[name](jnp.asarray(x))
        np.testing.assert_allclose(anima.jit(MATRICES[name])(x), want, 2e-5, 2e-5)


def turned(q: Any, v: Any) -> Any:
    """Points, each turned by a matrix of its own, made of numbers."""
    def one(q: Any, v: Any) -> Any:
        x, y, z = q
        return jnp.array([[1 - y * y, x * y, x * z], [x * y, 1 - z * z, y * z], [x * z, y * z, 1 - x * x]]) @ v

    return anima.vmap(one)(q, v)


def test_small_matrices_are_in_lanes() -> None:
    """No arithmetic is done in vectors of a row's three elements."""
    q, v = np.random.default_rng(0).normal(size=(2, 900, 3)).astype(np.float32)

    def slope(q: Any, v: Any) -> Any:
        return anima.grad(lambda q: (turned(q, v) ** 2).sum())(q)

    program = closed(slope, q, v)
    for step in to_loops("p", (), host())[:-3]:
        program = step.run(program)
    vectors = [s for s in statements(*program.body) if isinstance(s, For) and s.kind == "vector"]
    assert not any(isinstance(n, Op) for loop in vectors if loop.extent == Const(3, INDEX) for n in walk(*loop.body))
    assert any(isinstance(n, Op) for loop in vectors for n in walk(*loop.body))
    with anima.disable_jit():
        want = slope(jnp.asarray(q), jnp.asarray(v))
    np.testing.assert_allclose(anima.jit(slope)(q, v), want, 1e-4, 1e-4)
