"""Vector loads at indices that stop at the ends of an array: neighbours, paddings, parts of concatenations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax

DTYPES = ("float32", "float64", "int32", "int16", "uint8", "bool", "float16", "bfloat16", "complex64", "complex128")
SIZES = (1, 2, 7, 8, 9, 15, 17, 32, 33, 65)


def neighbours(x: Any) -> list[Any]:
    """Elements before and after, around the ends, beyond them nothing, and parts of two arrays."""
    n = x.shape[-1]
    zero = jnp.zeros((), x.dtype)
    around = [jnp.roll(x, shift, -1) for shift in (1, -1, 3)]
    padded = [lax.pad(x, zero, [(0, 0, 0)] * (x.ndim - 1) + [(low, high, 0)])
              for low, high in ((1, 0), (0, 1), (2, 3), (-1, 1), (4, -n // 2))]
    joined = [jnp.concatenate([x[..., 1:], x[..., :k], x[..., -1:]], -1) for k in (1, n)]
    return [y ^ True if y.dtype == bool else y + y for y in (*around, *padded, *joined)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [None, 3])
def test_neighbours(dtype: str, rows: int | None) -> None:
    rng = np.random.default_rng(0)
    with anima.enable_x64(True):
        for n in SIZES:
            x = rng.integers(-9, 9, (n,) if rows is None else (rows, n)) + (0.5j if "complex" in dtype else 0)
            x = jnp.asarray(x).astype(dtype)
            for got, want in zip(anima.jit(neighbours)(x), neighbours(x), strict=True):
                np.testing.assert_array_equal(got, want)

