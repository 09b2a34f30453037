"""The numbers that the documents print, in the order in which they are drawn."""

from __future__ import annotations

import numpy as np
import pytest

import anima
from anima import random

KEY_0 = "Array((), dtype=key<fry>) overlaying:\n[0 0]"


def test_sharp_bits() -> None:
    key = random.key(0)
    assert repr(key) == str(key) == KEY_0
    assert str(random.normal(key, shape=(1,))) == "[-0.20584226]"
    assert str(random.normal(key, shape=(1,))) == "[-0.20584226]"
    printed = []
    for _ in range(2):
        key, subkey = random.split(key)
        printed += [str(key), str(subkey), str(random.normal(subkey, shape=(1,)))]
    head = "Array((), dtype=key<fry>) overlaying:\n"
    assert printed == [
        head + "[4146024105  967050713]", head + "[2718843009 1272950319]", "[-1.2515389]",
        head + "[2384771982 3928867769]", head + "[1278412471 2182328957]", "[-0.58665055]"]
    key, *subkeys = random.split(key, 4)
    assert [str(random.normal(k, shape=(1,))) for k in subkeys] == ["[-0.37533438]", "[0.98645043]", "[0.14553197]"]


def test_tutorial() -> None:
    key = random.PRNGKey(0x123456789)
    key, subkey = random.split(key)
    drawn = random.uniform(subkey, (5,))
    assert repr(drawn) == "Array([0.2918682 , 0.90834665, 0.13555491, 0.08107758, 0.9746183 ], dtype=float32)"
    assert str(random.normal(key, (2,))) == "[-0.67039955  0.02259737]"
    # The subkeys that the tutorial draws next come from a key that it does not show.


def test_truncated_dtype_warns() -> None:
    with pytest.warns(UserWarning, match="dtype float64 .*is not available, and will be truncated to dtype float32"):
        x = random.uniform(random.key(0), (3,), dtype=anima.numpy.float64)
    assert x.dtype == np.float32
