"""Products taken out of scans: which, and that they are the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler.rewriting.hoist import MOST_BYTES, hoist
from anima.compiler.rewriting.inline import inline
from anima.core.check import check_jaxpr

RNG = np.random.default_rng(0)
W = RNG.normal(size=(4, 6)).astype(np.float32)
U = RNG.normal(size=(6, 6)).astype(np.float32) * np.float32(0.3)
XS = RNG.normal(size=(20, 4)).astype(np.float32)
BATCHES = RNG.normal(size=(20, 2, 4)).astype(np.float32)


def products(fun: Callable[..., Any], *args: Any) -> list[tuple[int, int]]:
    """(products outside of scans, products inside), before and after."""
    closed = inline(anima.make_jaxpr(fun)(*args))
    out = []
    for program in (closed, hoist(closed)):
        check_jaxpr(program.jaxpr)
        inside = [e.params["jaxpr"].jaxpr for e in program.eqns if e.primitive.name == "scan"]
        out.append((sum(e.primitive.name == "dot_general" for e in program.eqns),
                    sum(e.primitive.name == "dot_general" for body in inside for e in body.eqns)))
    return out


def rnn(w: Any, u: Any, xs: Any, reverse: bool = False) -> Any:
    start = jnp.zeros(xs.shape[1:-1] + (6,), xs.dtype)
    return lax.scan(lambda h, x: (jnp.tanh(x @ w + h @ u), None), start, xs, reverse=reverse)[0].sum()


def python_rnn(w: Any, u: Any, xs: Any, reverse: bool = False) -> Any:
    h = jnp.zeros(xs.shape[1:-1] + (6,), xs.dtype)
    for k in reversed(range(len(xs))) if reverse else range(len(xs)):
        h = jnp.tanh(xs[k] @ w + h @ u)
    return h.sum()


@pytest.mark.parametrize("xs", (XS, BATCHES), ids=("vectors", "matrices"))
@pytest.mark.parametrize("reverse", (False, True))
def test_product_of_inputs_comes_before(xs: np.ndarray, reverse: bool) -> None:
    assert products(lambda *a: rnn(*a, reverse=reverse), W, U, xs) == [(0, 2), (1, 1)]
    np.testing.assert_allclose(anima.jit(rnn, static_argnums=3)(W, U, xs, reverse), python_rnn(W, U, xs, reverse),
                               rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("xs", (XS, BATCHES), ids=("vectors", "matrices"))
@pytest.mark.parametrize("reverse", (False, True))
def test_gradients_of_weights_come_after(xs: np.ndarray, reverse: bool) -> None:
    gradient = anima.grad(lambda w, u: rnn(w, u, xs, reverse), (0, 1))
    before, after = products(gradient, W, U)
    assert before == (0, 5) and after == (3, 2)
    for got, want in zip(anima.jit(gradient)(W, U),
                         anima.grad(lambda w, u: python_rnn(w, u, xs, reverse), (0, 1))(W, U), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


# By where the product of each step goes: loops over vectors.
WAYS: dict[str, Callable[..., Any]] = {
    "before": lambda xs, w: lax.scan(lambda h, x: (jnp.tanh(h + x @ w), None), jnp.zeros(w.shape[1], w.dtype), xs)[0],
    "summed": lambda xs, w: lax.scan(lambda c, x: (c + lax.dot_general(x, jnp.sin(x), (((), ()), ((), ()))), None),
                                     jnp.zeros((xs.shape[1],) * 2, xs.dtype), xs)[0],
    "behind": lambda xs, w: lax.scan(lambda h, x: ((h := jnp.tanh(h + x)), h @ w),
                                     jnp.zeros(w.shape[0], w.dtype), xs)[1]}


@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64"])
@pytest.mark.parametrize("way, row", [("before", 4), ("summed", 8), ("behind", 8)])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_what_would_take_too_much_memory_stays(dtype: str, way: str, row: int, more: int) -> None:
    """At most MOST_BYTES of rows are kept for a product of all steps: no step more, whatever the type."""
    steps = MOST_BYTES // (row * np.dtype(dtype).itemsize) + more
    found = products(WAYS[way], anima.ShapeDtypeStruct((steps, 8), dtype), anima.ShapeDtypeStruct((8, 4), dtype))
    assert found == [(0, 1), (1, 0) if more <= 0 else (0, 1)]


@pytest.mark.parametrize("shape", [(8, 3), (8, 1), (8,)])
@pytest.mark.parametrize("left", [True, False])
def test_products_of_matrices_come_after_from_either_side(shape: tuple[int, ...], left: bool) -> None:
    """Axes of the results are in the order of the loop's."""
    xs = np.random.default_rng(1).normal(size=(5, *shape)).astype(np.float32)
    w = np.random.default_rng(2).normal(size=(4, 8)).astype(np.float32)

    def step(h: Any, x: Any) -> tuple[Any, Any]:
        h = jnp.tanh(h + x)
        return h, w @ h if left else h.T @ w.T

    h, want = jnp.zeros(shape, np.float32), []
    for x in xs:
        h, y = step(h, x)
        want.append(y)
    got = anima.jit(lambda xs: lax.scan(step, jnp.zeros(shape, np.float32), xs)[1])(xs)
    np.testing.assert_allclose(got, np.stack(want), rtol=1e-5, atol=1e-6)
    assert products(lambda xs: lax.scan(step, jnp.zeros(shape, np.float32), xs)[1], xs)[1] == (1, 0)


def test_gradients_of_inputs_come_after() -> None:
    gradient = anima.grad(rnn, 2)
    assert products(gradient, W, U, XS)[1] == (2, 2)
    np.testing.assert_allclose(anima.jit(gradient)(W, U, XS), anima.grad(python_rnn, 2)(W, U, XS), rtol=1e-4, atol=1e-5)


def test_weights_used_twice() -> None:
    """A sum of products and of something else: the rest stays in the loop."""
    def loss(w: Any, xs: Any, python: bool = False) -> Any:
        def step(h: Any, x: Any) -> tuple[Any, None]:
            return jnp.tanh(x @ w + h + 0.1 * (w * w).sum(0)), None
        h = jnp.zeros(6, xs.dtype)
        if python:
            for x in xs:
                h, _ = step(h, x)
            return h.sum()
        return lax.scan(step, h, xs)[0].sum()

    gradient = anima.grad(loss)
    assert products(gradient, W, XS)[1][1] == 0
    np.testing.assert_allclose(anima.jit(gradient)(W, XS), anima.grad(lambda w, xs: loss(w, xs, True))(W, XS),
                               rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("lhs", (True, False))
def test_stacked_matrix_on_either_side(lhs: bool) -> None:
    def fun(a: Any, xs: Any) -> Any:
        return lax.scan(lambda c, x: (c + (x @ a if lhs else a @ x), None), jnp.zeros((3, 3), xs.dtype), xs)[0]

    a = RNG.normal(size=(3, 3)).astype(np.float32)
    xs = RNG.normal(size=(5, 3, 3)).astype(np.float32)
    np.testing.assert_allclose(anima.jit(fun)(a, xs), sum(x @ a if lhs else a @ x for x in xs), rtol=1e-4, atol=1e-5)


def test_product_with_the_carry_stays() -> None:
    def fun(u: Any, h: Any) -> Any:
        return lax.fori_loop(0, 5, lambda _, h: jnp.tanh(h @ u), h)

    before, after = products(fun, U, np.ones(6, np.float32))
    assert before == after == (0, 1)


def test_sum_that_the_body_reads_stays() -> None:
    def fun(xs: Any) -> Any:
        def step(s: Any, x: Any) -> tuple[Any, Any]:
            return s + jnp.outer(x, x), s.sum()
        return lax.scan(step, jnp.zeros((4, 4), xs.dtype), xs)

    total, sums = anima.jit(fun)(XS)
    np.testing.assert_allclose(total, XS.T @ XS, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(sums[1], np.outer(XS[0], XS[0]).sum(), rtol=1e-4)
