"""What loops would compute in every iteration alike is computed before them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler.rewriting.hoist import hoist
from anima.compiler.rewriting.inline import inline
from anima.compiler.rewriting.simplify import dead_code
from anima.core.check import check_jaxpr
from anima.core.jaxpr import ClosedJaxpr, subjaxprs

X, A = np.float32(0.5), np.array([0.1, 0.2, 0.3], np.float32)


def names(closed: Any) -> list[str]:
    return [e.primitive.name for e in closed.jaxpr.eqns]


def closed_of(program: Any) -> ClosedJaxpr:
    return program if isinstance(program, ClosedJaxpr) else ClosedJaxpr(program, [])


def while_(x: Any, a: Any) -> Any:
    return lax.while_loop(lambda s: s.sum() < jnp.log(a[2]) + 5.0, lambda s: s * jnp.exp(a) + 1.0, x + a)


def scan(x: Any, a: Any) -> Any:
    return lax.scan(lambda s, _: (s * jnp.exp(a).sum(), s), x, None, length=5)[0]


def outer(x: Any, a: Any) -> Any:
    """A table that is larger than what it is made of: its rows are made where they are used."""
    return lax.fori_loop(0, 5, lambda k, s: s + (a[:, None] * jnp.ones((1, 100), jnp.float32)).sum(0), jnp.zeros(100))


@pytest.mark.parametrize("fun, moved", [(while_, {"log", "exp"}), (scan, {"exp", "reduce_sum"})])
def test_what_moves(fun: Any, moved: set[str]) -> None:
    closed = inline(anima.make_jaxpr(fun)(X, A))
    after = hoist(closed)
    check_jaxpr(after.jaxpr)
    assert moved <= set(names(after)) and not moved & set(names(closed))
    for eqn in after.jaxpr.eqns:
        assert not any({"log", "exp"} & set(names(inner)) for inner in map(closed_of, subjaxprs(eqn.params)))
    with anima.disable_jit():
        expected = fun(X, A)
    np.testing.assert_allclose(anima.jit(fun)(X, A), expected, rtol=1e-5)


def test_tables_stay() -> None:
    after = hoist(inline(anima.make_jaxpr(outer)(X, A)))
    assert "mul" not in names(after)
    np.testing.assert_allclose(anima.jit(outer)(X, A), np.full(100, 5 * A.sum()), rtol=1e-5)


def test_loop_without_iterations_and_gradient() -> None:
    def fun(a: Any, n: int) -> Any:
        return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * jnp.sqrt(a)), (0, jnp.ones(3)))[1]

    np.testing.assert_array_equal(anima.jit(fun)(-A, 0), np.ones(3))
    slope = anima.jit(anima.grad(lambda a: fun(a, 4).sum()))(A)
    np.testing.assert_allclose(slope, 2.0 * A, rtol=1e-5)


def test_what_depends_on_numbers_too_moves() -> None:
    """A number spread over an array keeps nothing in the loop, and is no array that the loop reads."""
    y, table = jnp.arange(8.0), jnp.ones((8, 3))

    def fun(x: Any) -> Any:
        def step(_: Any, s: Any) -> Any:
            spread = -jnp.full(8, 0.5)
            return s - 0.1 * ((y * spread) @ table + (s.sum() + spread).max())

        return lax.fori_loop(0, 9, step, x)

    after = dead_code(hoist(inline(anima.make_jaxpr(fun)(A))))
    check_jaxpr(after.jaxpr)
    (loop,) = (e for e in after.jaxpr.eqns if e.primitive.name == "scan")
    assert "dot_general" not in names(closed_of(loop.params["jaxpr"]))
    assert not any(v.aval.shape == (8,) for v in loop.invars)
    with anima.disable_jit():
        expected = fun(A)
    np.testing.assert_allclose(anima.jit(fun)(A), expected, rtol=1e-5)


def _fit(x: Any, y: Any, w: Any) -> Any:
    """Steps down a gradient: products with many short rows, and with these as columns."""
    return lax.fori_loop(0, 5, lambda _, w: w - 0.01 * (jnp.tanh(x @ w) - y) @ x, w)


@pytest.mark.parametrize("rows, columns, turned", [
    (40, 1, True), (17, 4, True), (200, 17, True), (31, 17, False), (67, 17, True), (130, 32, True), (300, 33, False),
    (64, 48, True), (65, 48, False), (5, 9, False)])
def test_matrices_of_many_short_rows_and_small_ones_are_turned_once(rows: int, columns: int, turned: bool) -> None:
    rng = np.random.default_rng(0)
    x, y, w = (rng.normal(size=s).astype(np.float32) for s in ((rows, columns), (rows,), (columns,)))
    after = hoist(inline(anima.make_jaxpr(_fit)(x, y, w)))
    check_jaxpr(after.jaxpr)
    assert names(after).count("transpose") == turned
    with anima.disable_jit():
        expected = _fit(x, y, w)
    np.testing.assert_allclose(anima.jit(_fit)(x, y, w), expected, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("rows, columns, turned", [(31, 40, False), (32, 384, True), (128, 96, True), (128, 97, False)])
def test_larger_matrices_are_turned_that_are_not_read_otherwise(rows: int, columns: int, turned: bool) -> None:
    def run(w: Any, h: Any) -> Any:
        return lax.fori_loop(0, 3, lambda _, h: jnp.resize(jnp.tanh(w @ h), h.shape), h)

    w = np.random.default_rng(0).normal(size=(rows, columns)).astype(np.float32) / columns
    h = np.ones(columns, np.float32)
    assert names(hoist(inline(anima.make_jaxpr(run)(w, h)))).count("transpose") == turned
    with anima.disable_jit():
        expected = run(w, h)
    np.testing.assert_allclose(anima.jit(run)(w, h), expected, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("fun", [
    lambda x, y, w: lax.scan(lambda w, t: (jnp.sin(t * w @ x.T) @ x / 40, w.sum()), w, y)[1],
    lambda x, y, w: lax.while_loop(lambda w: abs(x @ w).sum() < 30, lambda w: w + 0.1 * w[::-1] * abs(x @ w).mean(), w),
    lambda x, y, w: lax.fori_loop(0, 3, lambda i, w: _fit(x * i, y, w) + (2 * x @ w).mean(), w),
    lambda x, y, w: anima.vmap(_fit, (None, None, 0))(x, y, jnp.stack([w, 2 * w, w - 1])),
    lambda x, y, w: anima.grad(lambda x: (_fit(x, y, w) ** 2).sum())(x),
    lambda x, y, w: _fit(x.astype(jnp.float16), y.astype(jnp.float16), w.astype(jnp.float16)),
    lambda x, y, w: _fit(x * (1 + 2j), y, w + 0j),
    lambda x, y, w: _fit((9 * x).astype(jnp.int32), (9 * y).astype(jnp.int32), w),
], ids=["scan", "while", "nested", "vmap", "grad", "half", "complex", "integers"])
def test_turned_matrices_in_all_kinds_of_loops(fun: Any) -> None:
    rng = np.random.default_rng(1)
    x, y, w = (rng.normal(size=s).astype(np.float32) for s in ((41, 7), (41,), (7,)))
    with anima.disable_jit():
        expected = fun(x, y, w)
    tolerance = 3e-2 if expected.dtype == np.float16 else 2e-4
    np.testing.assert_allclose(anima.jit(fun)(x, y, w), expected, rtol=tolerance, atol=tolerance)


def test_long_chains_of_moves() -> None:
    """What values are made of is found without looking back."""
    def step(_: Any, s: Any) -> Any:
        x = jnp.asarray(A)
        for _ in range(600):
            x = jnp.flip(jnp.concatenate([x, x])[:3])
        return s + (x * jnp.full(3, 2.0)).sum()

    np.testing.assert_allclose(anima.jit(lambda x: lax.fori_loop(0, 3, step, x))(X), X + 6 * A.sum(), rtol=1e-5)
    closed = inline(anima.make_jaxpr(lambda x: lax.fori_loop(0, 3, step, x))(X))
    assert len(names(hoist(closed))) > 600


def _root(a: Any) -> Any:
    return lax.while_loop(lambda s: (jnp.abs(s * s - a) > 1e-3).any(), lambda s: (s + a / s) / 2, a + 1.0)


def _sums(a: Any) -> Any:
    return lax.scan(lambda c, x: (c + jnp.sin(x * c), c), jnp.float32(1), a)[0]


def _choice(a: Any) -> Any:
    return lax.cond(a[0] > 0, _sums, lambda a: a.prod(), a)


def _in_scan(inner: Any, length: int = 4) -> Any:
    return lambda x, a: lax.fori_loop(0, length, lambda _, s: s * 0.5 + inner(a).sum(), x)


def _in_while(inner: Any) -> Any:
    return lambda x, a: lax.while_loop(lambda s: s[0] < 3 * a[0] + 1, lambda s: (s[0] + 1, s[1] + inner(a).sum()),
                                       (x, x))


LOOPS = {"while in scan": (_in_scan(_root), True), "scan in scan": (_in_scan(_sums), True),
         "choice in scan": (_in_scan(_choice), True), "scan in while": (_in_while(_sums), True),
         "choice in while": (_in_while(_choice), True), "while in while": (_in_while(_root), False),
         "while in a scan without iterations": (_in_scan(_root, 0), False),
         "while in choice in while": (_in_while(lambda a: lax.cond(a[0] > 0, _root, jnp.sin, a)), False),
         "with the carry": (lambda x, a: lax.fori_loop(0, 4, lambda _, s: s * 0.5 + _root(a + s).sum(), x), False)}


@pytest.mark.parametrize("name", LOOPS)
def test_loops_within_loops(name: str) -> None:
    """Those that may have no end only where the loop around them runs for sure."""
    fun, moves = LOOPS[name]
    closed = inline(anima.make_jaxpr(fun)(X, A))
    after = hoist(closed)
    check_jaxpr(after.jaxpr)
    loops = ("while", "scan", "cond")
    assert sum(n in loops for n in names(after)) == sum(n in loops for n in names(closed)) + moves
    with anima.disable_jit():
        expected = fun(X, A)
    for found in anima.jit(fun)(X, A), anima.jit(anima.vmap(fun, (0, None)))(np.stack([X, X]), A):
        for a, b in zip(anima.tree.leaves(found), anima.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, np.broadcast_to(b, np.shape(a)), rtol=1e-5)


def test_loops_that_never_end_are_not_begun() -> None:
    forever = lambda a: lax.while_loop(lambda s: (s == s).all(), lambda s: s + 0.0, a)
    fun = anima.jit(lambda n, a: lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] + forever(a)), (0, a))[1])
    np.testing.assert_array_equal(fun(0, A), A)


def test_loops_with_effects_stay() -> None:
    seen: list[float] = []

    def inner(a: Any) -> Any:
        anima.debug.callback(lambda x: seen.append(float(x)), a[0])
        return _sums(a)

    anima.jit(_in_scan(inner))(X, A)
    anima.effects_barrier()
    assert len(seen) == 4
