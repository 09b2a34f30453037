"""What tests share, tested."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("drawn", [0, 1, 5])
def test_random_numbers_do_not_depend_on_other_tests(drawn: int, request: pytest.FixtureRequest) -> None:
    RNG.normal(size=drawn)
    own = np.random.default_rng(zlib.crc32(request.node.name.encode()))
    own.normal(size=drawn)
    assert (RNG.integers(0, 1 << 30, 9) == own.integers(0, 1 << 30, 9)).all()
