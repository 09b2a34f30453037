"""Values of windows brought to the elements that a comparison chooses: against loops, and pooling's own operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.test_util import check_grads

Fun = Callable[[Any, Any], Any]
WINDOWS = [((2,), (2,), [(0, 0)], (6,)), ((3,), (1,), [(1, 1)], (7,)), ((3, 2), (2, 1), [(1, 1), (0, 1)], (6, 5)),
           ((1, 4), (3, 2), [(0, 0), (4, 0)], (5, 9)), ((2,), (3,), [(0, 0)], (1,))]
SELECT: list[Fun] = [lambda a, b: a >= b, lambda a, b: a < b, lambda a, b: abs(a - 1) <= abs(b - 1)]
SCATTER: list[Fun] = [lambda a, b: a + b, lambda a, b: 0.5 * a + b]


def params(select: Fun, scatter: Fun, window: Any, strides: Any, padding: Any) -> dict[str, Any]:
    return {"select_jaxpr": anima.make_jaxpr(select)(1.0, 1.0).jaxpr, "select_consts": (),
            "scatter_jaxpr": anima.make_jaxpr(scatter)(1.0, 1.0).jaxpr, "scatter_consts": (),
            "window_dimensions": window, "window_strides": strides, "padding": tuple(padding)}


def counts(shape: Any, window: Any, strides: Any, padding: Any) -> tuple[int, ...]:
    return tuple(max((n + low + high - k) // s + 1, 0) for n, k, s, (low, high) in
                 zip(shape, window, strides, padding, strict=True))


def by_loops(x: np.ndarray, source: np.ndarray, init: float, select: Fun, scatter: Fun, window: Any, strides: Any,
             padding: Any) -> np.ndarray:
    total = np.full(x.shape, init)
    arrivals = []
    for at in np.ndindex(*source.shape):
        chosen = None
        for k in np.ndindex(*window):
            place = tuple(a * s + i - low for a, s, i, (low, _) in zip(at, strides, k, padding, strict=True))
            if all(0 <= p < n for p, n in zip(place, x.shape, strict=True)) and (
                    chosen is None or not select(x[chosen[1]], x[place])):
                chosen = k, place
        if chosen is not None:
            arrivals.append((*chosen, source[at]))
    for _, place, value in sorted(arrivals, key=lambda a: a[0]):
        total[place] = scatter(total[place], value)
    return total


@pytest.mark.parametrize("window, strides, padding, shape", WINDOWS)
def test_against_loops(window: Any, strides: Any, padding: Any, shape: Any) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-5, 6, shape).astype(np.float32)
    source = rng.normal(size=counts(shape, window, strides, padding)).astype(np.float32)
    for select in SELECT:
        for scatter in SCATTER:
            p = params(select, scatter, window, strides, padding)
            want = by_loops(x, source, 0.25, select, scatter, window, strides, padding)

            def fun(x: Any, source: Any, p: dict[str, Any] = p) -> Any:
                return lax.select_and_scatter_p.bind(x, source, jnp.float32(0.25), **p)

            for way in (fun, anima.jit(fun), lambda x, s, f=fun: anima.vmap(f)(x[None], s[None])[0]):
                np.testing.assert_allclose(way(x, source), want, rtol=1e-5, atol=1e-6)
            check_grads(lambda s, f=fun, x=x: f(x, s), (source,), 1)


def test_extremes_and_sums_are_those_of_pooling() -> None:
    x = np.random.default_rng(1).permutation(30.0 * np.ones(30) * np.arange(30)).reshape(6, 5).astype(np.float32)
    _, back = anima.vjp(lambda x: lax.reduce_window(x, -np.inf, lax.max, (2, 3), (2, 1), "VALID"), jnp.asarray(x))
    source = np.arange(9, dtype=np.float32).reshape(3, 3)
    p = params(SELECT[0], SCATTER[0], (2, 3), (2, 1), [(0, 0), (0, 0)])
    got = lax.select_and_scatter_p.bind(x, source, jnp.float32(0), **p)
    np.testing.assert_array_equal(got, back(jnp.asarray(source))[0])


def test_a_source_of_another_shape() -> None:
    p = params(SELECT[0], SCATTER[0], (2,), (2,), [(0, 0)])
    with pytest.raises(TypeError, match=r"source has the shape \(2,\), but there are \(3,\) windows"):
        lax.select_and_scatter_p.bind(jnp.ones(6), jnp.ones(2), jnp.float32(0), **p)
