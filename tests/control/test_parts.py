"""Loops and choices of which a part is known, mapped, differentiated or used: each part, and each set of parts.

The oracle is Python: under `disable_jit` loops are its loops and choices its own.
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
from anima.core.stage import eval_jaxpr
from anima.transforms.dce import dce_jaxpr

Three = tuple[Any, Any, Any]


def _scan(a: Any, b: Any, c: Any) -> Three:
    """Constants, carries and xs; a carry that another needs, and one that only a y needs."""
    (u, v), ys = lax.scan(lambda s, x: ((s[0] * b + x, s[1] + jnp.sin(s[0])), s[1] * x), (a, 0.5 * b), c)
    return u, v, ys


def _backwards(a: Any, b: Any, c: Any) -> Three:
    """The ys are of constants, of the carry, and of the xs alone; steps in pairs."""
    u, (v, w) = lax.scan(lambda s, x: (s * jnp.cos(x) + b, (s + a, x * x)), a, c, reverse=True, unroll=2)
    return u, v, w


def _passed_on(a: Any, b: Any, c: Any) -> Three:
    """Carries that swap, one that stays as it is, and a counter."""
    u, v, _ = lax.fori_loop(1, 4, lambda i, s: (s[1] * c[i], s[0] + s[2] * i, s[2]), (a, b, a * b))
    return u, v, c[1] * lax.fori_loop(0, 3, lambda i, s: s * b, a)


def _down(a: Any, b: Any, c: Any) -> Three:
    """A while whose counter goes down, by a step that is no literal of the condition."""
    _, u, v, w = lax.while_loop(
        lambda s: s[0] > -3, lambda s: (s[0] - 2, s[1] * jnp.cos(b), s[2] + s[1] * c[s[0] - 1], s[3]), (3, a, b, c[0]))
    return u, v, w


def _as_long_as(a: Any, b: Any, c: Any) -> Three:
    """A while whose lanes take different numbers of steps."""
    def body(s: Any) -> Any:
        return s[0] + 1 + 0.1 * b * b, s[1] * 0.5 + s[0], s[2] + c[1]

    u, v, w = lax.while_loop(lambda s: s[0].sum() < 6, body, (a, b, jnp.zeros(3)))
    return u, v, w


def _cond(a: Any, b: Any, c: Any) -> Three:
    """Branches with residuals of different numbers and types, and results that are operands."""
    return lax.cond(a.sum() > 0.5, lambda a, b: (a * jnp.sin(b), c.sum(0), b), lambda a, b: (a + c[0], b * b, a), a, b)


def _switch(a: Any, b: Any, c: Any) -> Three:
    return lax.switch(jnp.floor(b.sum()).astype("int32"), [
        lambda x: (x, b, c), lambda x: (x * b, jnp.exp(x), c * x), lambda x: (b * b, x * c[0], c)], a)


def _nested(a: Any, b: Any, c: Any) -> Three:
    """A choice, and a loop, in each step of a loop."""
    def step(s: Any, x: Any) -> Any:
        u, v = lax.cond(x.sum() > 0, lambda u, v: (u + b, v), lambda u, v: (v, u * x), *s)
        return (u, v), lax.fori_loop(0, 2, lambda i, t: t * 0.5 + x, u)

    (u, v), ys = lax.scan(step, (a, b), c)
    return u, v, ys


PROGRAMS: dict[str, Callable[..., Three]] = {f.__name__.strip("_"): f for f in (
    _scan, _backwards, _passed_on, _down, _as_long_as, _cond, _switch, _nested)}
SHAPES = ((3,), (3,), (4, 3))
PARTS = [s for n in (1, 2, 3) for s in itertools.combinations(range(3), n)]
CLOSE: dict[str, Any] = {"rtol": 2e-5, "atol": 1e-5}
rng = np.random.default_rng(0)


def operands(*stacked: int | None, lanes: int = 4) -> list[Any]:
    """Values for all three, the stacked ones with an axis of lanes at the place given."""
    axes = stacked or (None,) * 3
    return [jnp.asarray(rng.normal(size=s) if d is None else np.moveaxis(rng.normal(size=(lanes, *s)), 0, d), "float32")
            for s, d in zip(SHAPES, axes, strict=True)]


def agree(got: Any, want: Any) -> None:
    assert anima.tree.structure(got) == anima.tree.structure(want)
    for x, y in zip(anima.tree.leaves(got), anima.tree.leaves(want), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        np.testing.assert_allclose(x, y, **CLOSE)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("part", [(0,), (2,), (0, 1), (1, 2)], ids=str)
def test_derivatives_by_some_operands_of_one_result(name: str, part: tuple[int, ...]) -> None:
    """What is not differentiated is known; the other results have no cotangents."""
    args = operands()

    def derivatives(*args: Any) -> list[Any]:
        def of_part(*xs: Any) -> Three:
            full = list(args)
            for k, x in zip(part, xs, strict=True):
                full[k] = x
            return PROGRAMS[name](*full)

        xs = [args[k] for k in part]
        out: list[Any] = [anima.jvp(of_part, xs, [jnp.cos(x) for x in xs])]
        for k in range(3):
            y, pull = anima.vjp(lambda *xs, k=k: of_part(*xs)[k], *xs)
            out.append(pull(jnp.sin(y + 1)))
        return out

    with anima.disable_jit():
        want = derivatives(*args)
    agree(anima.jit(derivatives)(*args), want)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("axes, out", [
    ((0, None, None), (0, 1, -1)), ((None, 1, None), (1, -1, 0)), ((None, None, 2), (-1, 0, 1)), ((None, -2, 1), 0),
    ((0, -1, -3), -1), ((-1, 1, 0), (0, 0, -2))])
def test_lanes(name: str, axes: tuple[int | None, ...], out: Any) -> None:
    """Each lane is what the program is on its own, and so is the derivative of all of them."""
    args, run = operands(*axes), PROGRAMS[name]

    def lane(k: int, *args: Any) -> Three:
        return run(*(x if d is None else jnp.take(x, k, axis=d) for x, d in zip(args, axes, strict=True)))

    def by_hand(*args: Any) -> Three:
        places = (out,) * 3 if isinstance(out, int) else out
        return tuple(jnp.stack(ys, axis) for ys, axis in  # type: ignore[return-value]
                     zip(zip(*(lane(k, *args) for k in range(4)), strict=True), places, strict=True))

    def total(results: Three) -> Any:
        return sum(jnp.sin(y).sum() for y in results)

    mapped = anima.vmap(run, in_axes=axes, out_axes=out)
    with anima.disable_jit():
        want = by_hand(*args)
        slopes = anima.grad(lambda *xs: total(by_hand(*xs)), (0, 1, 2))(*args)
    agree(anima.jit(mapped)(*args), want)
    agree(anima.jit(anima.grad(lambda *xs: total(mapped(*xs)), (2, 0, 1)))(*args), (slopes[2], slopes[0], slopes[1]))


@pytest.mark.parametrize("name", PROGRAMS)
def test_some_results_are_used(name: str) -> None:
    """Alone and together, as a compiled program and as what is left of a jaxpr."""
    args, run = operands(), PROGRAMS[name]
    with anima.disable_jit():
        want = run(*args)
    whole = anima.make_jaxpr(run)(*args)
    for part in PARTS:
        chosen = [want[k] for k in part]
        agree(anima.jit(lambda *xs, part=part: [run(*xs)[k] for k in part])(*args), chosen)
        left, used = dce_jaxpr(whole.jaxpr, [k in part for k in range(3)])
        values = dict(zip(whole.jaxpr.constvars, whole.consts, strict=True))
        given = [x for x, u in zip(args, used, strict=True) if u]
        agree(eval_jaxpr(left, [values[v] for v in left.constvars], *given), chosen)


def test_what_unused_results_need_is_left_out() -> None:
    """Which operands, and how many results of the loop or choice, are left for each result alone."""
    def left(name: str, k: int) -> tuple[list[bool], list[int]]:
        jaxpr = anima.make_jaxpr(PROGRAMS[name])(*operands()).jaxpr
        cut, used = dce_jaxpr(jaxpr, [j == k for j in range(3)])
        return used, [len(e.outvars) for e in cut.eqns if e.primitive.name in ("scan", "cond")]

    assert left("scan", 0) == ([True, True, True], [1])        # the carry u
    assert left("scan", 1) == ([True, True, True], [2])        # v, which needs u
    assert left("scan", 2) == ([True, True, True], [3])
    assert left("backwards", 2) == ([False, False, True], [1])  # a y of xs alone
    assert left("backwards", 1) == ([True, True, True], [2])
    assert left("cond", 1) == ([True, True, True], [1])
    assert left("cond", 2) == ([True, True, False], [1])


@pytest.mark.parametrize("first, times", [(jnp.float32(1), 1), (np.float32(1), 1), (1.0, 1), (1, 2)])
def test_a_body_is_traced_again_only_where_its_carry_changes_type(first: Any, times: int) -> None:
    """A carry that starts weakly typed takes the type of the body, and the body is traced once more for it."""
    traced: list[Any] = []

    def body(c: Any) -> Any:
        traced.append(c.dtype)
        return c * jnp.float32(2)

    for loop in (lambda x: lax.scan(lambda c, _: (body(c), None), x, None, length=3)[0],
                 lambda x: lax.fori_loop(0, 3, lambda i, c: body(c), x),
                 lambda x: lax.while_loop(lambda c: c < 8, body, x)):
        traced.clear()
        out = loop(first)
        assert (len(traced), traced[-1], out.dtype, float(out)) == (times, np.float32, np.float32, 8.0)
