"""Tapes are freed, whatever happened to the programs that used them."""

from __future__ import annotations

import contextlib
import gc
import weakref

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.runtime.tapes import recording, routines as tapes


class Failed(Exception):
    """What a callback raises."""


@pytest.fixture
def states(monkeypatch):
    """The words of the states of all runs, and references to the states."""
    made = []

    class State(recording._RunState):
        __slots__ = ()

        def __init__(self, room):
            super().__init__(room)
            made.append((self.words, weakref.ref(self)))

    monkeypatch.setattr(recording, "_RunState", State)
    return made


@pytest.mark.parametrize("budget", [None, 4000])
@pytest.mark.parametrize("seed", range(2))
def test_random_histories_leave_no_tapes(states, seed, budget):
    rng, fail = np.random.default_rng(seed), False

    def maybe(x):
        if fail:
            raise Failed
        return np.asarray(x)

    def body(c):
        i, x = c
        y = anima.pure_callback(maybe, anima.ShapeDtypeStruct((), np.float32), lax.stop_gradient(x[0]))
        return i + 1, jnp.sin(x) + 0 * y

    def f(x, n):
        return jnp.sum(lax.while_loop(lambda c: c[0] < n, body, (0, x))[1])

    eager, compiled, pulls = anima.grad(f), anima.jit(anima.grad(f)), []
    before = len(tapes._loops)
    with anima.config.option("tape_budget")(budget):
        for _ in range(12):
            x, n, fail = np.ones(5, np.float32), int(rng.integers(0, 300)), bool(rng.integers(4) == 0)
            with contextlib.suppress(Failed, anima.errors.AnimaRuntimeError):
                match rng.integers(4):
                    case 0:
                        eager(x, n)
                    case 1:
                        compiled(x, n)
                    case 2:
                        pulls.append(anima.vjp(lambda x, n=n: f(x, n), x)[1])
                    case 3 if pulls:
                        pulls.pop()(jnp.float32(1))
    pulls.clear()
    gc.collect()
    assert states and all(state() is None for _, state in states)
    assert not any(words[tapes.CHAIN] or words[tapes.USED] for words, _ in states)
    assert len(tapes._loops) == before


def test_programs_that_record_are_called_as_others_are(states):
    def f(x, n):
        return jnp.sum(lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, jnp.sin(c[1]) * c[1]), (0, x))[1])

    gradient = anima.jit(anima.value_and_grad(f), donate_argnums=0)
    x = np.linspace(0.1, 1.0, 5, dtype=np.float32)
    want = gradient(x, 7)
    (entry,) = gradient.entries.values()
    assert entry.run is not None and entry.run(x, 7.5) is NotImplemented
    given = jnp.asarray(x)
    for got in (gradient(x, 7), gradient(given, np.int32(7))):
        np.testing.assert_array_equal(got[0], want[0])
        np.testing.assert_array_equal(got[1], want[1])
    assert given.is_deleted()
    with anima.config.option("tape_budget")(0), pytest.raises(MemoryError, match="test_tapes"):
        gradient(x, 7)
    gc.collect()
    assert states and not any(words[tapes.CHAIN] for words, _ in states)


HANDED = {"alone": lambda b: b, "beside": lambda b: (b, jnp.ones(3))[0],
          "chosen": lambda b: lax.cond(True, lambda b: b, lambda b: b, b),
          "with another": lambda b: (b, anima.vjp(lambda x: lax.while_loop(
              lambda c: c[0] < 50, lambda c: (c[0] + 1, jnp.sin(c[1])), (0, x))[1], 0.5)[1])}


@pytest.mark.parametrize("budget", [None, 400])
@pytest.mark.parametrize("names", [("alone",) * 4, ("beside", "alone"), ("chosen", "with another", "alone"),
                                   ("with another", "chosen", "beside", "alone")], ids=str)
def test_a_way_back_handed_from_program_to_program(names, budget):
    """What keeps its tapes alive is handed on with it, though all that was before is gone."""
    def f(x, n):
        return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, 3.3 * c[1] * (1 - c[1])), (0, x))[1]

    with anima.config.option("tape_budget")(budget):
        _, back = anima.vjp(anima.jit(lambda x: f(x, 300)), 0.3)
        want = float(back(1.0)[0])
        for name in names:
            given = anima.jit(HANDED[name])(back)
            back = given[0] if isinstance(given, tuple) else given
            del given
            gc.collect()
            others = [np.full(n, np.nan, np.float32) for n in (300, 301, 75, 600, 1200) for _ in range(20)]
            anima.jit(anima.grad(lambda x: f(x, 300)))(0.2)
            del others
            assert float(back(1.0)[0]) == want
    del back
    gc.collect()
    assert not tapes._loops
