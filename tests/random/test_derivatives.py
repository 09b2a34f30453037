"""Derivatives through samples are those of JAX, forward and in reverse (data/golden_tangents.json)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import random

TANGENTS = json.loads((Path(__file__).parent / "data" / "golden_tangents.json").read_text())["tangents"]
POINT = 1.7


@pytest.mark.parametrize("call", TANGENTS)
def test_derivative(call: str) -> None:
    def draw(p: Any) -> Any:
        return eval(call, {"R": random, "X": jnp, "k": random.key(11), "p": p})

    want = np.array(TANGENTS[call])
    got = anima.jvp(draw, (POINT,), (1.0,))[1].ravel()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    reverse = anima.jit(anima.grad(lambda p: draw(p).sum()))(POINT)
    np.testing.assert_allclose(reverse, want.sum(), rtol=1e-4, atol=1e-4)
