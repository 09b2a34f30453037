"""Draws are bit for bit those of JAX, in both ways of numbering counters (data/golden.json, golden_rbg.json).

What a stream gives is a promise: these files do not change. A new stream gets a name and a file of its own.
"""

from __future__ import annotations

import hashlib
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

DATA = Path(__file__).parent / "data"
GOLDEN = json.loads((DATA / "golden.json").read_text())
RBG = json.loads((DATA / "golden_rbg.json").read_text())
DIGESTS = {"golden.json": "7d28d8f78ee567f5", "golden_rbg.json": "804d26436f3ec242"}
ULPS = 6  # JAX's own compiled and eager runs differ by 2 in logarithms and erf_inv

CASES = [
    (golden, mode, section, call) for golden in (GOLDEN, RBG)
    for mode, sections in golden["sections"].items() for section, calls in sections.items() for call in calls
]


def available(call: str) -> bool:
    """Whether the functions that a call names exist."""
    places = {"R": random, "J": anima, "X": jnp}
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


@pytest.mark.parametrize("name", DIGESTS)
def test_files_are_those_of_the_first_release(name: str) -> None:
    assert hashlib.sha256((DATA / name).read_bytes()).hexdigest()[:16] == DIGESTS[name]


@pytest.mark.parametrize(("golden", "mode", "section", "call"), CASES,
                         ids=lambda v: v if isinstance(v, str) else "")
def test_draw(golden: Any, mode: str, section: str, call: str) -> None:
    if not available(call):
        pytest.skip("not implemented")
    kind, dtype, shape, values = golden["sections"][mode][section][call]
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
@pytest.mark.parametrize("seed", GOLDEN["seeds"]["x64_off"])
def test_seed(x64: str, seed: str) -> None:
    with anima.enable_x64(x64 == "x64_on"):
        number, *impl = seed.removesuffix(" rbg"), *(["rbg", "unsafe_rbg"] if "rbg" in seed else [None])
        value = eval(number, {"np": np, "X": jnp})
        for one in impl:
            assert np.asarray(random.key_data(random.key(value, impl=one))).tolist() == GOLDEN["seeds"][x64][seed]
