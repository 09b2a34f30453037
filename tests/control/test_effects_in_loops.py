"""Effects inside of loops: none is taken out of them, whatever it is given."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import debug, lax
from anima.experimental import io_callback

F32 = anima.ShapeDtypeStruct((), np.float32)
STEPS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "a literal": lambda x, k, c: 1.5, "an argument": lambda x, k, c: x, "made of arguments": lambda x, k, c: x * x + 1,
    "the counter": lambda x, k, c: k, "the carry": lambda x, k, c: c, "a half of the carry": lambda x, k, c: c * 0.5}
LOOPS: dict[str, Callable[..., Any]] = {
    "scan": lambda step, n, c: lax.scan(lambda c, k: (step(k, c), None), c, jnp.arange(3))[0],
    "fori_loop": lambda step, n, c: lax.fori_loop(0, 3, step, c),
    "of a length that is found": lambda step, n, c: lax.fori_loop(0, n, step, c),
    "a condition": lambda step, n, c: lax.while_loop(lambda s: (s[0] < n) & (step(s[0], s[1]) > -9.0),
                                                     lambda s: (s[0] + 1, s[1] + 1.0), (0, c))[1],
    "lanes": lambda step, n, c: jnp.sum(anima.vmap(lambda k: step(k, c))(jnp.arange(3)))}


@pytest.mark.parametrize("of", STEPS)
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("kind", ["debug", "ordered", "io", "pure"])
def test_effects_happen_at_each_step_whatever_they_are_given(kind: str, loop: str, of: str) -> None:
    """Those of pure callbacks may be fewer; their results are what counts."""
    seen: list[Any] = []

    def record(value: Any) -> None:
        seen.append(value.tolist())

    def step(x: Any, k: Any, c: Any) -> Any:
        operand = jnp.asarray(STEPS[of](x, k, c), np.float32)
        if kind == "debug" or kind == "ordered":
            debug.callback(record, operand, ordered=kind == "ordered")
            return c + 1.0
        call = io_callback if kind == "io" else partial(anima.pure_callback, vmap_method="sequential")
        return c + call(lambda v: (record(v), np.float32(v + 1))[1], F32, operand)

    def f(x: Any, n: Any) -> Any:
        return LOOPS[loop](partial(step, x), n, 0.25 + x * 0)

    with anima.disable_jit():
        want, expected = f(2.0, 3), seen.copy()
    seen.clear()
    assert float(anima.jit(f)(2.0, 3)) == float(want)
    assert kind == "pure" or seen == expected


@pytest.mark.parametrize("given", ["nothing", "an argument", "the counter"])
@pytest.mark.parametrize("loop", [loop for loop in LOOPS if loop != "lanes"])  # which have no order
def test_derivatives_of_loops_have_the_effects_of_the_loops(loop: str, given: str) -> None:
    """What a step is told by a callback is stored, not asked for again, and not before the loop."""
    seen: list[int] = []

    def tell(*_: Any) -> np.ndarray:
        seen.append(len(seen))
        return np.int32(len(seen))

    def step(x: Any, k: Any, c: Any) -> Any:
        operands = {"nothing": (), "an argument": (lax.stop_gradient(x),), "the counter": (k,)}[given]
        told = io_callback(tell, anima.ShapeDtypeStruct((), np.int32), *operands, ordered=True)
        return c * x + jnp.sin(c) * told.astype(np.float32)

    def f(x: Any, n: Any) -> Any:
        return LOOPS[loop](partial(step, x), n, 0.25 + x * 0)

    derived = anima.value_and_grad(lambda x: f(x, 3))
    with anima.disable_jit():
        want, calls = derived(0.7), len(seen)
    for run in (lambda f: f, anima.jit):
        seen.clear()
        np.testing.assert_allclose(run(derived)(0.7), want, rtol=1e-5)
        assert len(seen) == calls
