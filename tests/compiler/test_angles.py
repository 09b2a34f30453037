"""Sines, cosines and tangents of the arguments that are hardest: large ones next to a multiple of pi/2, where only the
last bits of the division by pi/2 are left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mpmath
import numpy as np
import pytest

import anima
import anima.numpy as jnp

BITS = {"float32": (24, 104), "float64": (53, 971)}  # of the fraction; the largest power of two beside it


def hard(dtype: str) -> Iterator[float]:
    """For each power of two, the fractions next to a multiple of pi/2: denominators of the continued fraction of the
    power by pi/2 (Kahan; Muller, Elementary Functions, 11.3.2)."""
    bits, most = BITS[dtype]
    with mpmath.workprec(3000):
        for power in range(most + 1):
            x = mpmath.ldexp(2, power) / mpmath.pi
            before, now = 1, 0  # denominators
            while now < 1 << bits:
                whole = int(mpmath.floor(x))
                if now > 1 << bits - 4:
                    yield float(mpmath.ldexp(now, power))
                before, now = now, whole * now + before
                x = 1 / (x - whole)


@pytest.mark.parametrize("dtype", BITS)
def test_next_to_multiples_of_half_pi(dtype: str) -> None:
    x = np.array([*hard(dtype)][::1 if dtype == "float32" else 9], dtype)
    x = np.concatenate([x, -x, np.array([6381956970095103.0 * 2.0**797] if dtype == "float64" else [16367173 * 2.0**72],
                                        dtype)])
    assert len(x) > 100
    with anima.enable_x64(dtype == "float64"), mpmath.workprec(3000):
        for name in ("sin", "cos", "tan"):
            exact = [getattr(mpmath, name)(mpmath.mpf(float(v))) for v in x]
            want = np.array([float(e) for e in exact], dtype)
            got = np.asarray(anima.jit(getattr(jnp, name))(jnp.asarray(x)))
            assert got.dtype == dtype
            off = [abs(mpmath.mpf(float(g)) - e) for g, e in zip(got, exact, strict=True)]
            worst: Any = max(float(o / float(np.spacing(np.abs(w)))) for o, w in zip(off, want, strict=True))
            assert worst <= 2, (name, worst)
