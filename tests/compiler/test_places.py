"""Places that a loop computes one at a time: inside of an array, counted from its end, and beyond either end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax

SIZES = (1, 2, 9, 37)


def read_one(x: Any, k: Any) -> Any:
    return x[k]


def read_by_take(x: Any, k: Any) -> Any:
    return jnp.take(x, k, mode="clip")


def read_a_slice(x: Any, k: Any) -> Any:
    return lax.dynamic_slice(x, (k,), (max(x.size // 2, 1),)).sum()


def read_a_row(x: Any, k: Any) -> Any:
    return (jnp.outer(x, jnp.arange(5)) + x[:, None])[k].sum()


def read_twice(x: Any, k: Any) -> Any:
    return x[k] - 2 * x[k - 1] + x[k // 2]


def read_in_a_branch(x: Any, k: Any) -> Any:
    return lax.cond(k > 3, lambda: x[k] + x[-k], lambda: x[k - 3] * x[k])


def read_in_a_loop(x: Any, k: Any) -> Any:
    return lax.fori_loop(0, 3, lambda i, s: s * x[k + i] + x[k - i], x[k])


def write_what_is_read(x: Any, k: Any) -> Any:
    return x.at[k].set(x[k - 1] + 1)[k]


READS = [read_one, read_by_take, read_a_slice, read_a_row, read_twice, read_in_a_branch, read_in_a_loop,
         write_what_is_read]


def places(size: int, dtype: str) -> np.ndarray:
    """Numbers around 0, both ends and both ends of the type."""
    info = np.iinfo(dtype)
    near = [place + d for place in (0, size, -size, info.min, info.max, info.min + size) for d in range(-3, 4)]
    return np.array([n for n in near if info.min <= n <= info.max], dtype)


@pytest.mark.parametrize("read", READS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"])
def test_places_that_a_loop_reads(read: Callable[[Any, Any], Any], dtype: str) -> None:
    with anima.enable_x64(True):
        for size in SIZES:
            x, ks = jnp.arange(1, size + 1), jnp.asarray(places(size, dtype))

            def each(x: Any, ks: Any) -> Any:
                return lax.scan(lambda s, k: (s ^ read(x, k), read(x, k)), jnp.zeros((), x.dtype), ks)

            with anima.disable_jit():
                want = [read(x, place) for place in ks]
            total, got = anima.jit(each)(x, ks)
            np.testing.assert_array_equal(got, np.stack(want))
            assert total == np.bitwise_xor.reduce(np.stack(want))


@pytest.mark.parametrize("size", SIZES)
def test_a_walk_over_places_that_leave_the_array(size: int) -> None:
    table = np.random.default_rng(size).integers(-2 * size, 2 * size, size).astype(np.int32)

    def walk(table: Any, k: Any) -> Any:
        return lax.fori_loop(0, 20, lambda i, k: table[k] + (i % 3 == 0), k)

    for start in (-size - 1, -1, 0, size - 1, size + 3):
        k = start
        for i in range(20):
            wrapped = k + size if k < 0 else k
            k = int(table[min(max(wrapped, 0), size - 1)]) + (i % 3 == 0)
        assert int(anima.jit(walk)(table, start)) == k


def test_what_brings_a_place_inside_is_apart() -> None:
    """The usual way has one comparison; lanes of vectors, and what runs once, have no branch."""
    x, programs = jnp.arange(9), [
        (lambda x: lax.fori_loop(0, 50, lambda i, k: x[k], 0), ()), (lambda x, k: x[k], (3,)),
        (lambda x, ks: x[ks], (jnp.zeros(64, int),))]
    texts = [str(anima.jit(program).lower(x, *rest).llvm) for program, rest in programs]
    assert ["rare" in text for text in texts] == [True, False, False]
