"""Programs that `simplify` may almost make smaller: what compiled code computes has the bits of one operation a time.

    reshape of reshape;  sum of x.T -> of x, unless what is left changes its order;  equal things, once
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler.rewriting.simplify import _axes_before


def same(fun: Callable[..., Any], *args: Any) -> None:
    """Compiled, a function gives the bits of one operation at a time."""
    args = anima.device_put(args)
    got = anima.jit(fun)(*args)
    with anima.disable_jit():
        want = fun(*args)

    def compare(path: Any, g: Any, w: Any) -> None:
        g, w = np.asarray(g), np.asarray(w)
        assert (g.dtype, g.shape, g.tobytes()) == (w.dtype, w.shape, w.tobytes()), f"{path}: {g}, not {w}"

    anima.tree_util.tree_map_with_path(compare, got, want)


def shapes(x: Any) -> dict[str, Any]:
    """Moves after moves, of which a few undo each other."""
    out = {}
    for p, q in itertools.product(itertools.permutations(range(3)), repeat=2):
        out[f"{p} {q}"] = lax.transpose(lax.transpose(x, p), q)
    for new in ((24,), (2, 3, 4), (4, 3, 2), (2, 3, 1, 4), (6, 4)):
        for last in ((2, 3, 4), (2, 12), (24, 1), (4, 3, 2)):
            out[f"{new} {last}"] = lax.reshape(lax.reshape(x, new), last)
    out["squeezed"] = lax.reshape(lax.squeeze(x[:, :1], (1,)), (2, 1, 4))
    out["squeezed to another"] = lax.reshape(lax.squeeze(x[:, :1], (1,)), (4, 2))
    out["moved and reshaped"] = lax.reshape(lax.transpose(x, (1, 0, 2)), (2, 3, 4))
    out["reversed twice"] = lax.rev(lax.rev(x, (0,)), (1,))
    out["cut to the same"] = x[:, 0:3:1]
    out["cut back"] = x[:, ::-1]
    return out


def test_moves() -> None:
    same(shapes, np.arange(24.0, dtype=np.float32).reshape(2, 3, 4))
    same(lambda x: [lax.transpose(x, p) for p in itertools.permutations(range(3))],
         np.arange(4.0, dtype=np.float32).reshape(2, 1, 2))


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "argmax", "all"])
def test_reductions_of_what_was_moved(name: str) -> None:
    """Each order of the axes, each set of them: the axes that are left may have changed places."""
    def fun(x: Any) -> dict[str, Any]:
        out = {}
        for order in itertools.permutations(range(3)):
            moved = lax.transpose(x, order)
            sets = [0, 1, 2] if name == "argmax" else [s for n in range(4) for s in itertools.combinations(range(3), n)]
            for axes in sets:
                out[f"{order} {axes}"] = getattr(jnp, name)(moved, axis=axes)
        return out

    same(fun, np.random.default_rng(0).integers(-2, 4, (2, 3, 4)).astype(np.float32))


@pytest.mark.parametrize("seed", range(20))
def test_axes_of_what_was_reshaped(seed: int) -> None:
    """Axes of an array in another shape are those of the array, or there are none that are the same."""
    rng, met = random.Random(seed), 0
    for _ in range(300):
        old = tuple(rng.choice([1, 1, 2, 2, 3, 4]) for _ in range(rng.randint(0, 4)))
        new, left = [], math.prod(old)
        while left > 1:
            new.append(rng.choice([k for k in range(2, left + 1) if left % k == 0]))
            left //= new[-1]
        for _ in range(rng.randint(0, 2)):
            new.insert(rng.randint(0, len(new)), 1)
        axes = tuple(d for d in range(len(new)) if rng.random() < 0.6)
        found = _axes_before(old, tuple(new), axes)
        if found is not None:
            met += 1
            x = np.arange(math.prod(old)).reshape(old) ** 2
            np.testing.assert_array_equal(x.sum(found), x.reshape(new).sum(axes))
    assert met > 100


def test_sums_in_the_order_of_memory() -> None:
    """Sums of what was moved and reshaped, whole and in part; products of arrays that are seen as vectors."""
    x, y = (np.arange(k, 120.0 + k, dtype=np.float32).reshape(4, 5, 6) % 7 for k in (1, 3))
    same(lambda x, y: [jnp.transpose(x, (2, 0, 1)).reshape(6, -1).sum(1), jnp.transpose(x, (2, 0, 1)).reshape(-1).sum(),
                       x.reshape(4, 30).max(0), x.reshape(20, 6).sum(0), x.reshape(2, 2, 30).sum((0, 2)),
                       jnp.vdot(x, y), jnp.vdot(x, y.reshape(5, 4, 6)), jnp.vdot(x[:, ::2], y[:, ::2]),
                       jnp.dot(x.reshape(-1), jnp.transpose(y).reshape(-1))], x, y)


def test_products_of_what_was_moved() -> None:
    """Each order of the axes of both operands, contracted over one or two, with and without a batch."""
    def fun(x: Any, y: Any) -> dict[str, Any]:
        out = {}
        for p, q in itertools.product(itertools.permutations(range(3)), repeat=2):
            left, right = lax.transpose(x, p), lax.transpose(y, q)
            for contract, batch in (("c", ""), ("c", "a"), ("bc", ""), ("ac", ""), ("b", "c")):
                numbers = [tuple(tuple(order.index("abc".index(d)) for d in dims) for order in (p, q))
                           for dims in (contract, batch)]
                out[f"{p} {q} {contract} {batch}"] = lax.dot_general(left, right, tuple(numbers))
        return out

    rng = np.random.default_rng(1)
    same(fun, *(rng.integers(-2, 4, (2, 2, 2)).astype(np.float32) for _ in range(2)))


TWICE: dict[str, Callable[[Any], Any]] = {
    "negated": lambda x: jnp.negative(-x), "conjugated": lambda x: jnp.conj(jnp.conj(x * 1j)),
    "turned over": lambda x: ~~(x > 0), "negated and turned over": lambda x: -(~(-(x.astype("int32")))),
    "through integers": lambda x: x.astype("int8").astype("float32"),
    "through half": lambda x: x.astype("float16").astype("float32"),
    "through bfloat16": lambda x: x.astype("bfloat16").astype("float32"),
    "to itself": lambda x: x.astype("float32"), "to bool": lambda x: x.astype(bool).astype("float32"),
    "powers": lambda x: [lax.integer_pow(x, n) for n in (-1, 0, 1, 2)],
    "bits of one and one": lambda x: [jnp.full(3, 1.0), jnp.full(3, np.int32(np.float32(1).view("int32"))),
                                      jnp.full(3, np.uint32(np.float32(1).view("uint32"))), jnp.ones(3)],
    "zeros of both signs": lambda x: [jnp.full(3, 0.0), jnp.full(3, -0.0), jnp.zeros(3, "int32"), x * 0.0, x * -0.0],
    "the same with other parameters": lambda x: [jnp.sum(x[None] * x[:, None], axis=0), jnp.max(x), jnp.cumsum(x),
                                                 lax.cumsum(x, reverse=True), lax.rev(x, (0,)),
                                                 x.astype("int32"), x.astype("uint8")],
    "operands exchanged": lambda x: [x - x[::-1], x[::-1] - x, x > x[::-1], x[::-1] > x],
}


@pytest.mark.parametrize("fun", TWICE.values(), ids=TWICE)
def test_what_is_done_twice(fun: Callable[..., Any]) -> None:
    same(fun, np.float32([0.0, -0.0, 1.5, -2.25, 3.0, 100.125]))
