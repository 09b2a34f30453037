"""Random programs on meshes: jitted, step by step and as the program of one device they give the same, and so do their
gradients, which agree with forward mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from tests.laws.device_programs import draw

pytestmark = pytest.mark.usefixtures("eight_devices")
EACH = 5
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.mark.parametrize("start", range(0, 60, EACH))
def test_programs_of_parts_keep_the_laws(start: int) -> None:
    for number in range(start, start + EACH):
        program = draw(number)
        if program.results:
            same(f"program {number}:\n{program.text}", program.mapped(), program.args,
                 eager=len(program.manual) == len(program.sizes))


def same(message: str, mapped: Any, args: list[np.ndarray], eager: bool) -> None:
    """Compares all ways to run a program."""
    def loss(*args: Any) -> Any:
        return sum(jnp.sum(jnp.sin(y)) for y in mapped(*args))

    jitted, gradient = anima.jit(mapped), anima.jit(anima.grad(loss, tuple(range(len(args)))))
    found = jitted(*args)
    ways = [jitted.lower(*args).partitioned(*args), *([mapped(*args)] if eager else [])]
    grads = gradient(*args)
    for way, expected in (*((w, found) for w in ways), (gradient.lower(*args).partitioned(*args), grads)):
        for a, b in zip(way, expected, strict=True):
            np.testing.assert_allclose(a, b, err_msg=message, **CLOSE)
    _, slope = anima.jit(lambda *xs: anima.jvp(loss, xs, xs))(*args)
    np.testing.assert_allclose(sum(np.vdot(g, x) for g, x in zip(grads, args, strict=True)), slope, rtol=2e-3,
                               atol=2e-3, err_msg=message)
