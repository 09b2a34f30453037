"""Comparisons of a loop's counter with numbers: decided where the number of steps says so, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler.rewriting.counters import counted
from anima.core.jaxpr import Eqn

X = np.arange(5, dtype=np.float32) + 1


def body_of(fun: Callable[..., Any], *args: Any) -> list[str]:
    """The operations in the body of the scan that a function is."""
    closed = anima.make_jaxpr(fun)(*args)
    [eqn] = [e for e in closed.eqns if e.primitive.name == "scan"]
    new: Eqn = counted(eqn)
    return [e.primitive.name for e in new.params["jaxpr"].eqns]


def test_indices_that_are_counters_are_not_looked_at() -> None:
    names = body_of(lambda x: lax.fori_loop(0, 5, lambda k, s: s + x[k], 0.0), X)
    assert "lt" not in names and "select_n" not in names
    names = body_of(lambda x: lax.fori_loop(-1, 4, lambda k, s: s + x[k], 0.0), X)  # -1 is the last one
    assert "lt" in names and "select_n" in names


@pytest.mark.parametrize("start,steps,step", [(0, 5, 1), (3, 2, 1), (-2, 5, 1), (-3, 3, 1), (4, 5, -1), (4, 6, -1),
                                              (0, 3, 2), (0, 1, 1), (2, 0, 1), (-1, 1, 3), (125, 4, 1)])
@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint8])
def test_values(start: int, steps: int, step: int, dtype: Any) -> None:
    first, by = np.asarray(start).astype(dtype), np.asarray(step).astype(dtype)

    def body(c: Any, _: Any) -> Any:
        k = c + by
        tests = [k < 0, c <= 3, c > first, k >= 5, c == 4, jnp.uint32(4) > c.astype(np.uint32), c < c, k > c]
        return k, (c, jnp.where(c < 0, c + 5, c), [t.astype(np.float32) for t in tests])

    with np.errstate(over="ignore"):
        found = anima.jit(lambda: lax.scan(body, first, None, length=steps))()
        with anima.disable_jit():
            wanted = lax.scan(body, first, None, length=steps) if steps else found
    anima.tree.map(np.testing.assert_array_equal, found, wanted)


def test_what_is_decided_and_what_is_not() -> None:
    def counts(start: Any, test: Callable[[Any], Any], steps: int = 4, step: int = 1) -> bool:
        def body(c: Any, _: Any) -> Any:
            return c + np.int32(step), test(c)

        names = body_of(lambda: lax.scan(body, np.int32(start), None, length=steps))
        return not {"lt", "le", "gt", "ge"}.intersection(names)

    assert counts(0, lambda c: c < 4) and not counts(0, lambda c: c < 3)
    assert counts(0, lambda c: c <= 3) and not counts(0, lambda c: c <= 2)
    assert counts(0, lambda c: c >= 0) and not counts(0, lambda c: c >= 1)
    assert counts(0, lambda c: c > -1) and not counts(0, lambda c: c > 0)
    assert counts(0, lambda c: c > 3) and counts(0, lambda c: c >= 4) and counts(0, lambda c: c < 0)
    assert counts(3, lambda c: c < 0, step=-1) and not counts(3, lambda c: c < 0, steps=5, step=-1)
    assert counts(0, lambda c: c + 2 < 6) and not counts(0, lambda c: c + 2 < 5)
    assert counts(0, lambda c: c.astype(np.uint32) < np.uint32(4))
    assert not counts(-1, lambda c: c.astype(np.uint32) < np.uint32(4))  # goes round
    assert not counts(2**31 - 2, lambda c: c > 0)  # and so does this counter
    assert not counts(0, lambda c: c * 1 < 4)      # products are not looked at


def test_a_carry_that_is_no_counter() -> None:
    assert "lt" in body_of(lambda: lax.scan(lambda c, _: (c * 2, c < 0), np.int32(1), None, length=4))
    assert "lt" in body_of(lambda: lax.scan(lambda c, x: (c + x, c < 0), np.int32(0), jnp.arange(4)))
    assert "lt" in body_of(lambda n: lax.scan(lambda c, _: (c + 1, c < 0), n, None, length=4), np.int32(0))
    assert "lt" in body_of(lambda: lax.scan(lambda c, _: (c + 1.5, c < 0), np.float32(0), None, length=4))
