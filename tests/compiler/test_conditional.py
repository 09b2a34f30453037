"""Arrays that are changed at some places if a condition holds: only these places are looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler.ir.loops import Const, For, statements
from tests.compiler.stages import lowered

X = np.linspace(-1, 1, 500, dtype=np.float32)
TABLE = np.linspace(0, 1, 600, dtype=np.float32).reshape(200, 3)

UPDATES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "set": lambda x, i, v: x.at[i].set(v),
    "set anywhere": lambda x, i, v: x.at[i].set(v, mode="promise_in_bounds"),
    "add": lambda x, i, v: x.at[i].add(v),
    "multiply": lambda x, i, v: x.at[i].multiply(v),
    "largest": lambda x, i, v: x.at[i].max(v),
    "several": lambda x, i, v: x.at[jnp.stack([i, i + 3, 7])].set(jnp.stack([v, -v, 2 * v])),
    "window": lambda x, i, v: lax.dynamic_update_slice(x, jnp.stack([v, 2 * v]), (i,)),
    "element": lambda x, i, v: lax.dynamic_update_index_in_dim(x, v, i, 0),
}


def choices(update: Callable[[Any, Any, Any], Any]) -> list[Callable[..., Any]]:
    return [lambda x, i, v, c: jnp.where(c, update(x, i, v), x), lambda x, i, v, c: jnp.where(c, x, update(x, i, v)),
            lambda x, i, v, c: lax.select_n(c, x, update(x, i, v))]


def copies(fun: Callable[..., Any], *args: Any) -> int:
    """How many loops over whole arrays there are within the program's loops."""
    loops = [s for s in lowered(fun, *args).loops.body if isinstance(s, For)]
    return sum(isinstance(s, For) and isinstance(s.extent, Const) and s.extent.value >= 100
               for loop in loops for s in statements(*loop.body))


@pytest.mark.parametrize("name", UPDATES)
def test_values(name: str) -> None:
    """At places inside and outside of the array, from the end, and where nothing may be written."""
    for choose in choices(UPDATES[name]):
        for i in (0, 13, 499, -1, -500, 498) if name == "set anywhere" else (0, 13, 499, -1, -500, 500, 1000, -2000):
            for c in (True, False):
                for v in (np.float32(0.5), np.float32(np.nan)):
                    args = X, np.int32(i), v, np.bool_(c)
                    with anima.disable_jit():
                        want = choose(jnp.asarray(X), jnp.int32(i), jnp.asarray(v), jnp.asarray(c))
                    np.testing.assert_array_equal(anima.jit(choose)(*args), want)


@pytest.mark.parametrize("name", UPDATES)
def test_a_step_of_a_loop_does_not_touch_the_rest(name: str) -> None:
    for choose in choices(UPDATES[name]):
        def events(x: Any, v: Any) -> Any:
            def step(i: int, s: Any) -> Any:
                x, v, n = s
                v = v * 3.7 * (1 - v)
                return choose(x, n, v, v < 0.6), v, n + (v < 0.6)  # noqa: B023
            return lax.fori_loop(0, 50, step, (x, v, jnp.int32(0)))

        assert copies(events, X, np.float32(0.3)) == 0
        with anima.disable_jit():
            want = events(jnp.asarray(X), jnp.float32(0.3))
        got = anima.jit(events)(X, np.float32(0.3))
        np.testing.assert_allclose(got[0], want[0], 1e-3, 1e-3)
        assert got[2] == want[2]


def test_rows() -> None:
    def events(x: Any) -> Any:
        def step(i: int, s: Any) -> Any:
            x, n = s
            row = jnp.sin(x[i] + i)
            return jnp.where(row[0] > 0, x.at[n].set(row), x), n + (row[0] > 0)
        return lax.fori_loop(0, 60, step, (x, jnp.int32(100)))

    assert copies(events, TABLE) == 0
    with anima.disable_jit():
        want = events(jnp.asarray(TABLE))
    np.testing.assert_allclose(anima.jit(events)(TABLE)[0], want[0], 1e-5, 1e-6)


@pytest.mark.parametrize("name", [name for name in UPDATES if name not in ("window", "element")])
def test_of_many_arrays_each_by_its_condition(name: str) -> None:
    def events(x: Any, v: Any) -> Any:
        def step(i: int, s: Any) -> Any:
            x, v, n = s
            v = v * 3.7 * (1 - v)
            return jnp.where(v < 0.6, UPDATES[name](x, n, v), x), v, n + (v < 0.6)
        return lax.fori_loop(0, 30, step, (x, v, jnp.int32(0)))

    x, v = np.stack([X, 2 * X, X[::-1]]), np.float32([0.3, 0.4, 0.5])
    assert copies(anima.vmap(events), x, v) == 0
    got = anima.jit(anima.vmap(events))(x, v)
    for lane in range(3):
        want = anima.jit(events)(x[lane], v[lane])
        anima.tree.map(lambda a, b: np.testing.assert_allclose(a[lane], b, 1e-6), got, want)  # noqa: B023


def test_a_condition_of_some_of_the_mapped_dimensions() -> None:
    def fun(x: Any, i: Any, c: Any) -> Any:
        return jnp.where(c, x.at[i].set(9.0), x)

    x, i = np.arange(96, dtype=np.float32).reshape(4, 3, 8), np.arange(12, dtype=np.int32).reshape(4, 3) % 9
    for c, dims in ((np.arange(4) % 2 == 0, (0, None)), (np.arange(3) % 2 == 0, (None, 0))):
        mapped = anima.vmap(anima.vmap(fun, (0, 0, dims[1])), (0, 0, dims[0]))
        want = x.copy()
        for a, b in np.ndindex(4, 3):
            if c[a if dims[0] == 0 else b] and i[a, b] < 8:
                want[a, b, i[a, b]] = 9
        np.testing.assert_array_equal(anima.jit(mapped)(x, i, c), want)


def test_what_others_need_stays() -> None:
    """The changed array is read by another operation, the condition is an array, or the array is another one."""
    i, c = np.int32(3), np.bool_(False)

    def summed(x: Any, i: Any, c: Any) -> Any:
        new = x.at[i].set(9.0)
        return jnp.where(c, new, x), new.sum()

    def by_element(x: Any, i: Any, c: Any) -> Any:
        return jnp.where(x > 0, x.at[i].set(9.0), x)

    def another(x: Any, i: Any, c: Any) -> Any:
        return jnp.where(c, x.at[i].set(9.0), x + 1)

    for fun in (summed, by_element, another):
        with anima.disable_jit():
            want = fun(jnp.asarray(X), jnp.asarray(i), jnp.asarray(c))
        anima.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-6), anima.jit(fun)(X, i, c), want)


def test_gradients() -> None:
    def fun(x: Any, v: Any, c: Any) -> Any:
        def step(i: int, x: Any) -> Any:
            return jnp.where(x[i] * c > 0, x.at[i + 1].set(v * x[i]), x)
        return (lax.fori_loop(0, 20, step, x) ** 2).sum()

    for c in (1.0, -1.0):
        got = anima.jit(anima.grad(fun, (0, 1)))(X, np.float32(1.1), np.float32(c))
        with anima.disable_jit():
            want = anima.grad(fun, (0, 1))(jnp.asarray(X), jnp.float32(1.1), jnp.float32(c))
        anima.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-6), got, want)


@pytest.mark.parametrize("kind", ["uint8", "uint16", "uint32", "int8", "int4", "uint4"])
def test_places_of_every_integer_type(kind: str) -> None:
    """The largest number of a small type may be a place of the array."""
    numbers = lax.ScatterDimensionNumbers((), (0,), (0,))

    def choose(x: Any, i: Any, v: Any, c: Any) -> Any:
        return jnp.where(c, lax.scatter(x, i, v, numbers, mode="drop"), x)

    for size in (10, 1000, 70_000):
        x = np.zeros(size, np.float32)
        for c in (False, True):
            want = x.copy()
            want[3] = c
            got = anima.jit(choose)(x, jnp.full((1, 1), 3, kind), np.ones(1, np.float32), c)
            np.testing.assert_array_equal(got, want)


def test_windows_without_an_index() -> None:
    numbers = lax.ScatterDimensionNumbers((0,), (), ())

    def choose(x: Any, v: Any, c: Any) -> Any:
        return jnp.where(c, lax.scatter(x, jnp.zeros((0,), jnp.int32), v, numbers, mode="drop"), x)

    x, v = np.arange(8, dtype=np.float32), np.full(4, -5, np.float32)
    np.testing.assert_array_equal(anima.jit(choose)(x, v, False), x)
    np.testing.assert_array_equal(anima.jit(choose)(x, v, True), [*v, *x[4:]])


def test_no_lanes() -> None:
    f = anima.jit(anima.vmap(lambda p, x, i, v: jnp.where(p, x.at[i].set(v), x)))
    assert f(jnp.zeros(0, bool), jnp.ones((0, 9)), jnp.zeros(0, jnp.int32), jnp.ones(0)).shape == (0, 9)
