"""The numbers that the documents print, in the order in which they are drawn."""

from __future__ import annotations

import numpy as np
import pytest

import anima
from anima import random

KEY0 = "Array((), dtype=key<fry>) overlaying:\n[0 0]"


@pytest.mark.tiny
def test_sharp_bits() -> None:
    key = random.key(0)
    assert repr(key) == str(key) == KEY0
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
    want = [-0.67039955, 0.02259737]
    np.testing.assert_allclose(random.normal(key, (2,)), want, rtol=1e-6)
    key, *subkeys = random.split(key, 5)
    wants = [[[1.0308125, -0.07533383], [-0.36027843, -1.270425]],
             [[0.34779412, -0.11094793], [1.0509511, 0.52164143]],
             [[1.5565109, -0.9507161], [1.4706124, 0.25808835]],
             [[-0.5725152, -1.1480215], [-0.6206856, -0.12488112]]]
    for one, want in zip(subkeys, wants, strict=True):
        np.testing.assert_allclose(random.normal(one, (2, 2)), want, rtol=1e-6)


def test_truncated_dtype_warns() -> None:
    with pytest.warns(UserWarning, match="dtype float64 .*is not available, and will be truncated to dtype float32"):
        x = random.uniform(random.key(0), (3,), dtype=anima.numpy.float64)
    assert x.dtype == np.float32
