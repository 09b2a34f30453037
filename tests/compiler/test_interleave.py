"""Stores to places next to each other, and loads of every other element, against the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.compiler.ir.loops import Let, Op, Program, Store
from tests.compiler.loop_programs import at, one_kernel, v, vector, x_at
from tests.compiler.test_emit import agrees, random

SIZES = (1, 7, 8, 16, 17, 33, 100)


def spread(count: int, n: int, dtype: str, places: list[int], start: int = 0) -> Program:
    """y[count i + place] = x[i] + place for each place in turn; what is left of y is zero before."""
    lets = [Let(f"a{place}", Op("add", (x_at(at("i"), dtype=dtype), x_at(at("i", 1, place), dtype=dtype)), dtype))
            for place in range(count)]
    stores = [Store("y", at("i", count, start + place), v(f"a{place}", dtype)) for place in places]
    return one_kernel("spread", {"x": (dtype, n + count)}, {"y": (dtype, count * n + start)},
                      *(vector("k", start, Store("y", at("k"), x_at(at("k"), dtype=dtype))) for _ in range(start > 0)),
                      vector("i", n, *lets, *stores))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("count", range(2, 14))
def test_all_places(count: int, n: int) -> None:
    dtype = ("f32", "f64", "i32", "i8", "f16", "u16", "i64")[count % 7]
    agrees(spread(count, n, dtype, list(range(count))), random(dtype, n + count))
    agrees(spread(count, n, dtype, list(range(count)), 3), random(dtype, n + count))


@pytest.mark.parametrize("n", SIZES)
def test_places_in_another_order(n: int) -> None:
    agrees(spread(4, n, "f32", [2, 3, 0, 1]), random("f32", n + 4))
    agrees(spread(3, n, "f32", [2, 1, 0]), random("f32", n + 3))


@pytest.mark.parametrize("dtype", ["c64", "c128", "bool"])
def test_other_elements(dtype: str) -> None:
    for n in SIZES:
        p = one_kernel("two", {"x": (dtype, n)}, {"y": (dtype, 2 * n)}, vector(
            "i", n, Let("a", x_at(at("i"), dtype=dtype)), Store("y", at("i", 2), v("a", dtype)),
            Store("y", at("i", 2, 1), v("a", dtype))))
        agrees(p, random(dtype, n))


@pytest.mark.parametrize("dtype", ["float32", "complex64", "int8"])
def test_strides(dtype: str) -> None:
    """The last element of an array is the last that is read: guard bytes and pages are behind it."""
    for n in (1, 2, 15, 16, 31, 32, 33, 64, 65, 129):
        x = np.arange(n).astype(dtype)
        for step in (2, 3, -1, -2):
            got = anima.jit(lambda x, step=step: x[::step] + x[::step])(x)
            np.testing.assert_array_equal(got, x[::step] + x[::step])
        both = anima.jit(lambda x: jnp.stack([x, x + x, x], -1).ravel()[1:])(x)
        np.testing.assert_array_equal(both, np.stack([x, x + x, x], -1).ravel()[1:])
