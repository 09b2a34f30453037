"""Loops from which almost something could be taken out: what stays inside is what Python's loops compute.

All values are small whole numbers, so that sums have the same bits in every order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax

RNG = np.random.default_rng(0)


def whole(*shape: int) -> Any:
    return RNG.integers(-2, 3, shape).astype(np.float32)


def same(fun: Callable[..., Any], *args: Any) -> None:
    args = anima.device_put(args)
    got = anima.jit(fun)(*args)
    with anima.disable_jit():
        want = fun(*args)
    anima.tree.map(lambda g, w: np.testing.assert_array_equal(np.asarray(g), np.asarray(w)), got, want)


def cut(x: Any) -> Any:
    """Keeps whole numbers small."""
    return jnp.clip(x, -3, 3)


STEPS: dict[str, Callable[..., Any]] = {
    "product of xs and a constant": lambda s, x, w: (cut(s + x @ w), x @ w),
    "of xs and the carry": lambda s, x, w: (cut(x @ (w + s)), s),
    "of xs and a part of the carry": lambda s, x, w: (cut(s + x @ w.at[0].set(s)), x @ w),
    "of changed xs": lambda s, x, w: (cut(s + (x + s) @ w), (x + s) @ w),
    "of xs and xs": lambda s, x, w: (cut(s + jnp.outer(x, x) @ x), x @ x),
    "a sum of products": lambda s, x, w: (s + x @ w, None),
    "a sum that is read": lambda s, x, w: (s + x @ w, s),
    "a sum that is read after": lambda s, x, w: ((t := s + x @ w), t),
    "a sum with a factor": lambda s, x, w: (s * 2 + x @ w, None),
    "a difference": lambda s, x, w: (s - x @ w, None),
    "from the other side": lambda s, x, w: (x @ w - s, None),
    "the same product twice": lambda s, x, w: ((p := x @ w) + s + p, None),
    "a product that is also a result": lambda s, x, w: (s + (p := x @ w), p),
    "the carry twice": lambda s, x, w: (s + x @ w + s, None),
    "a product that is used again": lambda s, x, w: (cut((p := x @ w) @ w + s), (p, p @ w)),
    "a sum beside others": lambda s, x, w: (s + x @ w + x + 1, None),
    "nothing of the step": lambda s, x, w: (cut(s + w @ w[0]), w @ w),
    "no carry": lambda s, x, w: (s, (x @ w, (x @ w) @ w)),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("length", [0, 1, 2, 5])
@pytest.mark.parametrize("reverse", [False, True])
def test_products(step: Any, length: int, reverse: bool) -> None:
    same(lambda s, xs, w: lax.scan(lambda s, x: step(s, x, w), s, xs, reverse=reverse),
         whole(3), whole(length, 3), whole(3, 3))
    same(lambda s, xs, w: lax.scan(lambda s, x: step(s, x, w), s, xs, reverse=reverse),
         *(v.astype(np.int32) for v in (whole(3), whole(length, 3), whole(3, 3))))


def outer(x: Any, y: Any) -> Any:
    """A product of matrices, which may be summed over steps."""
    return x[:, None] @ y[None]


OUTER: dict[str, Callable[..., Any]] = {
    "outer products": lambda g, s, x: (g + outer(s, x), cut(s + x)),
    "moved": lambda g, s, x: (g + outer(s, x).T, cut(s + x)),
    "read by the other carry": lambda g, s, x: (g + outer(s, x), cut(s + g[0])),
    "scaled": lambda g, s, x: (2 * g + outer(s, x), cut(s + x)),
    "of the carry itself": lambda g, s, x: (cut(g + outer(g[0], x)), cut(s + x)),
    "and something else": lambda g, s, x: (g + outer(s, x) + s, cut(s + x)),
    "twice": lambda g, s, x: (g + outer(s, x) + outer(x, s), cut(s + x)),
    "three times": lambda g, s, x: (g + outer(s, x) + outer(x, s) + outer(s, s), cut(s + x)),
    "three times, and something else": lambda g, s, x: (g + outer(s, x) + x + outer(x, s) + outer(s, s),
                                                        cut(s + x)),
    "exchanged": lambda g, s, x: (g + outer(s, x), g[:, 0] * 0 + x),
}


@pytest.mark.parametrize("step", OUTER.values(), ids=OUTER)
@pytest.mark.parametrize("length", [1, 2, 5])
def test_sums_over_steps(step: Any, length: int) -> None:
    same(lambda g, s, xs: lax.scan(lambda c, x: (step(*c, x), None), (g, s), xs)[0], whole(3, 3), whole(3),
         whole(length, 3))


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("axes", [(0, 0, 0), (0, 0, None), (None, 1, None), (0, None, 2), (None, 2, 0)])
def test_batches_of_products(step: Any, axes: tuple[int | None, ...]) -> None:
    def run(s: Any, xs: Any, w: Any) -> Any:
        return lax.scan(lambda s, x: step(s, x, w), s, xs)

    shapes = [list(shape) for shape in ((3,), (4, 3), (3, 3))]
    for shape, axis in zip(shapes, axes, strict=True):
        if axis is not None:
            shape.insert(axis, 2)
    same(anima.vmap(run, axes), *(whole(*shape) for shape in shapes))


@pytest.mark.parametrize("step", OUTER.values(), ids=OUTER)
@pytest.mark.parametrize("axes", [(0, 0, 0), (2, 1, 1), (None, 0, 2)])
def test_batches_of_sums(step: Any, axes: tuple[int | None, ...]) -> None:
    def run(g: Any, s: Any, xs: Any) -> Any:
        return lax.scan(lambda c, x: (step(*c, x), None), (g, s), xs)[0]

    shapes = [list(shape) for shape in ((3, 3), (3,), (4, 3))]
    for shape, axis in zip(shapes, axes, strict=True):
        if axis is not None:
            shape.insert(axis, 2)
    same(anima.vmap(run, axes), *(whole(*shape) for shape in shapes))


BODIES: dict[str, Callable[..., Any]] = {
    "of constants": lambda k, s, a: s + a * a,
    "of the counter": lambda k, s, a: s + a * k,
    "of the carry": lambda k, s, a: cut(s + a * s),
    "through a constant place of the carry": lambda k, s, a: cut(s + a[s[0].astype(int) % 3]),
    "the counter at another type": lambda k, s, a: s + jnp.full(3, k).astype(a.dtype) * a,
    "of what an inner loop has": lambda k, s, a: s + lax.fori_loop(0, 2, lambda j, t: cut(t + a * j + a * a), a),
    "of an inner loop's counter": lambda k, s, a: s + lax.fori_loop(0, k, lambda j, t: cut(t * j + a * k), a),
    "of an inner loop's carry": lambda k, s, a: cut(lax.fori_loop(0, 2, lambda j, t: cut(t + s * s), a)),
    "in a branch": lambda k, s, a: lax.cond(k > 1, lambda: s + a * a, lambda: s - a * 2),
    "of a branch": lambda k, s, a: s + lax.cond(k > 1, lambda: a * a, lambda: a * 2) * a,
    "an update of a constant": lambda k, s, a: s + (a * a).at[k].set(1),
    "a sum of constants": lambda k, s, a: s + jnp.cumsum(a * a) + jnp.max(a + 1) * k,
    "an index": lambda k, s, a: s + (a * a)[k],
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("trips", [0, 1, 4])
def test_invariants(body: Any, trips: int) -> None:
    same(lambda s, a: lax.fori_loop(0, trips, lambda k, s: body(k, s, a), s), whole(3), whole(3))
    same(lambda n, s, a: lax.fori_loop(0, n, lambda k, s: body(k, s, a), s), np.int32(trips), whole(3), whole(3))
    same(lambda s, a: lax.while_loop(lambda c: (c[0] < trips) & ((a * a).sum() + 1 > c[1][0] * 0),
                                     lambda c: (c[0] + 1, body(c[0], c[1], a)), (0, s)), whole(3), whole(3))


def test_what_fails_stays_unseen_without_steps() -> None:
    """What is taken out of a loop runs though the loop does not."""
    def fun(n: Any, a: Any) -> Any:
        return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] // a + a[a[0]] + lax.rem(a, a)), (0, a))

    same(fun, np.int32(0), np.array([0, 1 << 30, -(1 << 31)], np.int32))
