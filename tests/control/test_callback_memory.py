"""What callbacks and programs may do with each other's memory: what a callback keeps stays as it was, and what it
returns is taken as it is at that time, whatever its layout, and whatever becomes of it later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.experimental import io_callback

SHAPE = (3, 4)
X = np.arange(12, dtype=np.float32).reshape(SHAPE)
TYPE = anima.ShapeDtypeStruct(SHAPE, np.float32)
CALLS: dict[str, Callable[..., Any]] = {
    "pure": anima.pure_callback, "io": io_callback, "ordered": lambda f, t, *a: io_callback(f, t, *a, ordered=True)}

# Arrays of one type, in memory of every form.
LAYOUTS: dict[str, Callable[[np.ndarray], Any]] = {
    "itself": lambda x: x, "reversed": lambda x: x[::-1, ::-1],
    "columns": np.asfortranarray, "transposed": lambda x: np.ascontiguousarray(x.T).T,
    "every second": lambda x: np.repeat(x, 2, 1)[:, ::2], "one for all": lambda x: np.broadcast_to(x[:1], SHAPE),
    "fixed": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(SHAPE), "ours": jnp.asarray,
    "part of another": lambda x: np.pad(x, 1)[1:-1, 1:-1],
    "unaligned": lambda x: np.frombuffer(b"." + x.tobytes(), x.dtype, offset=1).reshape(SHAPE),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("call", CALLS)
def test_results_of_any_layout(call: str, layout: str) -> None:
    def back(x: Any) -> Any:
        return LAYOUTS[layout](np.asarray(x))

    want = np.asarray(LAYOUTS[layout](X)) + X
    for fun in (lambda x: CALLS[call](back, TYPE, x) + x, lambda x: x + CALLS[call](back, TYPE, x * 1.0)):
        np.testing.assert_array_equal(anima.jit(fun)(X), want)
        np.testing.assert_array_equal(fun(X), want)


@pytest.mark.parametrize("call", CALLS)
def test_what_a_callback_keeps_stays_as_it_was(call: str) -> None:
    """Though the program goes on to write over that memory."""
    kept: list[np.ndarray] = []

    def back(i: Any, x: Any) -> np.ndarray:
        kept.extend((np.asarray(i), np.asarray(x)))
        return np.float32(0)

    def step(i: Any, c: Any) -> Any:
        c = c + CALLS[call](back, anima.ShapeDtypeStruct((), np.float32), i, c)
        return c.at[i % 3].add(10.0) * 2

    anima.block_until_ready(anima.jit(lambda x: lax.fori_loop(0, 5, step, x), donate_argnums=0)(jnp.asarray(X)))
    anima.effects_barrier()
    want, c = [], X
    for i in range(5):
        want += [np.asarray(i), c.copy()]
        c = (c + 10 * (np.arange(3) == i % 3)[:, None]) * 2
    assert len(kept) == len(want)
    for a, b in zip(kept, want, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("call", CALLS)
def test_what_a_callback_returned_may_change(call: str) -> None:
    """One array that is returned again and again, and written to in between."""
    own = np.zeros(SHAPE, np.float32)

    def back(x: Any) -> np.ndarray:
        own[...] = own + np.asarray(x)
        return own

    def step(c: Any, x: Any) -> Any:
        found = CALLS[call](back, TYPE, x)
        return c + found, found

    total, each = anima.jit(lambda xs: lax.scan(step, jnp.zeros(SHAPE), xs))(np.stack([X, X + 1, X + 2]))
    own[...] = -1
    sums = np.cumsum([X, X + 1, X + 2], 0)
    np.testing.assert_array_equal(each, sums)
    np.testing.assert_array_equal(total, sums.sum(0))


def test_operands_written_to_by_a_callback_change_nothing() -> None:
    def back(x: Any) -> np.ndarray:
        out = np.array(x)
        array = np.asarray(x)
        if array.flags.writeable:
            array[...] = -7
        return out

    def fun(x: Any) -> Any:
        y = x * 1.0
        a = anima.pure_callback(back, TYPE, y)
        return a, y, x, anima.pure_callback(back, TYPE, jnp.asarray(X))

    given = jnp.asarray(X)
    for f in (anima.jit(fun), fun):
        for out in f(given):
            np.testing.assert_array_equal(out, X)
    np.testing.assert_array_equal(given, X)
