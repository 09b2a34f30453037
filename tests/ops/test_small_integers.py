"""Integers of less than a byte: operations on their bits, their bits as others, conversions among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax

WAYS = pytest.mark.parametrize("way", [lambda f: f, anima.jit], ids=["eager", "jit"])
SMALL = ("int2", "int4", "uint2", "uint4")


def values(x: Any) -> list[int]:
    return np.asarray(x).astype(np.int32).tolist()


@WAYS
def test_bits(way: Callable[..., Any]) -> None:
    x, y = jnp.array([-3, -8, 7, 0], "int4"), jnp.array([0, 1, 2, 9], "uint4")
    amount = jnp.array([2, 1, -1, 4], "int4")
    assert values(way(lax.shift_right_logical)(x, amount)) == [3, 4, 0, 0]
    assert values(way(lax.shift_right_logical)(y, jnp.array([1, 0, 1, 3], "uint4"))) == [0, 1, 1, 1]
    assert values(way(lax.clz)(x)) == [0, 0, 1, 4] and values(way(lax.clz)(y)) == [4, 3, 2, 0]
    assert values(way(lax.population_count)(x)) == [3, 1, 3, 0]
    assert values(way(lax.clz)(jnp.array([0, 1, 2], "uint2"))) == [2, 1, 0]


@WAYS
def test_bitcast(way: Callable[..., Any]) -> None:
    def cast(x: Any, dtype: str) -> Any:
        out = way(lambda x: lax.bitcast_convert_type(x, dtype))(x)
        assert out.dtype == dtype
        return values(out)

    assert cast(jnp.array([0x21, 0xf3], "uint8"), "int4") == [[1, 2], [3, -1]]
    assert cast(jnp.array([[1, 2], [3, 15]], "uint4"), "int8") == [0x21, -13]
    assert cast(jnp.float32(1.5), "int4") == [0, 0, 0, 0, 0, -4, -1, 3]
    assert cast(jnp.array([1, -3], "int4"), "uint4") == [1, 13]
    assert cast(jnp.array([9], "uint4"), "uint2") == [[1, 2]] and cast(jnp.array([1, 2], "uint2"), "int4") == -7
    assert cast(jnp.arange(8).astype("uint4"), "uint32") == 0x76543210
    assert values(way(lambda x: x.view("int4"))(jnp.array([0x21, 0xf3], "uint8"))) == [1, 2, 3, -1]
    assert values(way(lambda x: x.view("uint16"))(jnp.array([1, 2, 3, 4], "uint4"))) == [0x4321]


@WAYS
@pytest.mark.parametrize("old", SMALL)
def test_conversions(way: Callable[..., Any], old: str) -> None:
    x = jnp.array([0, 1, 2, 3], "int8").astype(old)
    for new in SMALL:
        bits, signed = int(new[-1]), not new.startswith("u")
        want = (np.asarray(x).astype(np.int32) + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
        assert values(way(lambda x, new=new: x.astype(new))(x)) == (want if signed else want % (1 << bits)).tolist()
