"""Casts of every type to every type, at sizes on both sides of every vector width, between guard bytes."""

from __future__ import annotations

import re

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.core import dtypes

SIZES = (0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129)
DTYPES = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16",
          "float32", "float64", "complex64", "complex128")
RNG = np.random.default_rng(5)


def numbers(n: int, dtype: str) -> np.ndarray:
    """Numbers that every type has, and of integers all sorts."""
    kind = np.dtype(dtype).kind if dtype != "bfloat16" else "f"
    if kind in "iu":
        info = np.iinfo(dtype)
        return RNG.integers(info.min, info.max, n, dtype, endpoint=True)
    return RNG.integers(0, 2 if kind == "b" else 100, n).astype(dtypes.canonicalize_dtype(dtype))


@pytest.mark.filterwarnings("ignore:Casting complex values")
@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_casts(source: str, target: str, x64: None) -> None:
    def cast(*xs: jnp.ndarray) -> list[jnp.ndarray]:
        return [x.astype(target) for x in xs]

    for sizes in (SIZES[k: k + 4] for k in range(0, len(SIZES), 4)):
        xs = [jnp.asarray(numbers(n, source)) for n in sizes]
        for x, got, want in zip(xs, anima.jit(cast)(*xs), cast(*xs), strict=True):
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(np.asarray(got), np.asarray(want), err_msg=str(x.shape))


@pytest.mark.parametrize("target", ("uint8", "int16"))
@pytest.mark.parametrize("left", range(16))
def test_masks_of_remainders_are_no_constants(left: int, target: str) -> None:
    """What LLVM knows of a mask it uses, and not always rightly."""
    for dtype, step in (("float32", 1), ("float32", -1), ("int32", 1), ("bfloat16", 1)):
        text = anima.jit(lambda x: x[::step].astype(target)).lower(np.ones(16 + left, dtype)).llvm  # noqa: B023
        assert not re.search(r"@llvm\.masked\.store\.[^\n]*<\d+ x i1> (<|splat|zeroinit)", text)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("target", ("uint8", "int16", "int32", "float16"))
def test_narrow_results_of_strided_and_reversed_reads(n: int, target: str, x64: None) -> None:
    def read(x: jnp.ndarray) -> list[jnp.ndarray]:
        return [x[::-1].astype(target), x[::2].astype(target), (x[:, None] + x[None, :3]).T.astype(target),
                jnp.arange(x.size).astype(target), jnp.where(x > 3, x, 0).astype(target)]

    x = jnp.asarray(np.arange(n) % 7)
    for got, want in zip(anima.jit(read)(x), read(x), strict=True):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


@pytest.mark.parametrize("n", (1, 2, 3, 5, 9, 17))
@pytest.mark.parametrize("dtype", ("int8", "uint16", "bfloat16", "bool"))
def test_narrow_carries_of_loops(n: int, dtype: str) -> None:
    """Rows that are held in lanes are stored in one round."""
    def loop(x: jnp.ndarray) -> jnp.ndarray:
        def step(carry: jnp.ndarray, y: jnp.ndarray) -> tuple[jnp.ndarray, jnp.ndarray]:
            wide = carry.astype("int32") * 3 + y
            return wide.astype(dtype), wide.astype(dtype)

        return anima.lax.scan(step, x, jnp.arange(4))

    x = jnp.asarray(np.arange(n) % 2).astype(dtype)
    with anima.disable_jit():
        want = loop(x)
    for a, b in zip(anima.jit(loop)(x), want, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("dtype", ["complex64", "complex128", "float32", "bool", "int8"])
@pytest.mark.parametrize("size", [1, 17])
def test_bits_of_the_same_type_stay(size: int, dtype: str, x64: None) -> None:
    x = jnp.ones((size, 2), dtype)
    found = anima.jit(lambda x: lax.bitcast_convert_type(x, x.dtype))(x)
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found, x)
