"""Draws are bit for bit those of JAX, in both ways of numbering counters (data/golden.json)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (gives np.dtype its name "bfloat16")
import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import random

GOLDEN = json.loads((Path(__file__).parent / "data" / "golden.json").read_text())
ULPS = 6  # JAX's own compiled and eager runs differ by 2 in logarithms and erf_inv

CASES = [
    (mode, section, call)
    for mode, sections in GOLDEN["sections"].items() for section, calls in sections.items() for call in calls
]


def available(call: str) -> bool:
    """Whether the functions that a call names exist."""
    places = {"R": random, "J": anima, "X": jnp}
    if ("orthogonal" in call or "multivariate" in call) and not hasattr(jnp, "linalg"):
        return False
    for root, path in re.findall(r"\b([RJX])((?:\.\w+)+)", call):
        here: Any = places[root]
        for name in path[1:].split("."):
            if not hasattr(here, name):
                return False
            here = getattr(here, name)
    return True


def decoded(dtype: str, shape: list[int], values: list[Any]) -> np.ndarray:
    """The expected array."""
    def number(v: Any) -> Any:
        if isinstance(v, list):
            return complex(*map(float.fromhex, v))
        return float.fromhex(v) if isinstance(v, str) else v

    return np.array([number(v) for v in values], dtype=jnp.dtype(dtype)).reshape(shape)


def run(mode: str, section: str, call: str) -> Any:
    x64, key = section.split(" ", 1)
    with anima.enable_x64(x64 == "x64_on"), anima.threefry_partitionable(mode == "True"):
        key = eval(f"R.{key}", {"R": random})
        out = eval(call, {"J": anima, "X": jnp, "R": random, "k": key})
        return np.asarray(out)


@pytest.mark.parametrize(("mode", "section", "call"), CASES, ids=lambda v: v)
def test_draw(mode: str, section: str, call: str) -> None:
    if not available(call):
        pytest.skip("not implemented")
    kind, dtype, shape, values = GOLDEN["sections"][mode][section][call]
    want, got = decoded(dtype, shape, values), run(mode, section, call)
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if "method='" in call or "orthogonal" in call:  # the signs of vectors are LAPACK's choice
        got, want = np.abs(got), np.abs(want)
    if kind == "e" or want.dtype.kind in "biu":
        np.testing.assert_array_equal(got, want)
        return
    eps = float(jnp.finfo(want.dtype).eps)
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    np.testing.assert_allclose(got.astype(wide), want.astype(wide), rtol=ULPS * eps, atol=2 * eps)


@pytest.mark.parametrize("x64", ["x64_off", "x64_on"])
@pytest.mark.parametrize("seed", [s for s in GOLDEN["seeds"]["x64_off"] if "rbg" not in s])
def test_seed(x64: str, seed: str) -> None:
    with anima.enable_x64(x64 == "x64_on"):
        value = eval(seed, {"np": np, "X": jnp})
        words = random.key_data(random.key(value))
        assert np.asarray(words).tolist() == GOLDEN["seeds"][x64][seed]
