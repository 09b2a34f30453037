"""Programs compute the same bits every day, with any number of threads, and wherever vectors are as wide."""

from __future__ import annotations

import pytest

from anima.compiler.machine import native
from tests.compiler import results

KNOWN = results.read()


@pytest.mark.skipif(not (native.host().has("fma") and native.host().triple.startswith("x86_64")),
                    reason="the digests are of x86-64 with fused multiplication and addition")
@pytest.mark.parametrize("name", [*results.PROGRAMS])
@pytest.mark.usefixtures("unchecked")
def test_bits(name: str) -> None:
    """Where these change on purpose: `python3 -m tests.compiler.results`."""
    found = {str(width): results.digest(results.PROGRAMS[name], target) for width, target in results.targets().items()}
    assert found == {width: KNOWN[name][width] for width in found}
