"""Updates of columns: windows whose elements lie farther apart than the windows themselves."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.compiler.lowering.index import LEAST_INSIDE
from tests.compiler.results import same_for_threads
from tests.compiler.test_skeletons import text

RNG = np.random.default_rng(11)
SHAPES = ((3, 5), (1, 6), (6, 1), (33, 17), (4, 3, 5), (5, 4, 1), (2, 3, 4, 5))
COUNTS = (1, LEAST_INSIDE - 1, LEAST_INSIDE, 40)


def whole(*shape: int) -> np.ndarray:
    return RNG.integers(-4, 5, shape).astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ("set", "add", "multiply", "min", "max"))
def test_every_axis(name: str, shape: tuple[int, ...]) -> None:
    x = jnp.asarray(whole(*shape))
    pairs = itertools.chain(itertools.combinations(range(len(shape)), 1), itertools.combinations(range(len(shape)), 2))
    for axes, count in itertools.product(pairs, COUNTS):
        def fun(x: Any, u: Any, places: list[Any], axes: tuple[int, ...] = axes) -> Any:
            at = [places[axes.index(d)] if d in axes else slice(None) for d in range(len(shape))]
            return getattr(x.at[tuple(at)], name)(u)

        places = [jnp.asarray(RNG.integers(-shape[d] - 1, shape[d] + 1, count)) for d in axes]
        rest = [n for d, n in enumerate(shape) if d not in axes]
        next_to_each_other = axes[-1] - axes[0] < len(axes)
        u = whole(*(shape[:axes[0]] if next_to_each_other else ()), count,
                  *(shape[axes[-1] + 1:] if next_to_each_other else rest))
        np.testing.assert_array_equal(anima.jit(fun)(x, u, places), fun(x, jnp.asarray(u), places),
                                      err_msg=f"{axes}, {count} updates")


def loops(count: int) -> str:
    fun = anima.jit(lambda x, i: x.at[:, i].add(1.0))
    return text(fun.lower(np.ones((700, 90), np.float32), np.zeros(count, np.int32)).stages.loops)


def test_rows_outside_of_updates() -> None:
    assert "serial 3 (if (vector 700" in loops(LEAST_INSIDE - 1)
    assert "parallel 700 (serial 4 (if" in loops(LEAST_INSIDE)


def test_mapped_updates_of_the_same_places() -> None:
    x, i, u = whole(300, 60), RNG.integers(0, 60, 200), whole(300, 200)
    fun = anima.vmap(lambda x, u: x.at[i].add(u))
    want = np.zeros_like(x)
    np.add.at(want, (slice(None), i), u)
    np.testing.assert_array_equal(anima.jit(fun)(x, u), x + want)
    assert "(parallel" not in text(anima.jit(fun).lower(x, u).stages.loops).partition("serial")[2]


def test_the_number_of_threads_changes_nothing() -> None:
    same_for_threads(lambda x, i, u: x.at[:, i].add(u), RNG.normal(size=(500, 80)).astype(np.float32),
                     RNG.integers(0, 80, 300).astype(np.int32), RNG.normal(size=(500, 300)).astype(np.float32))
