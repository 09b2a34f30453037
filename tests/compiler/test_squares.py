"""Arrays with their axes in another order, transposed in registers, at sizes around those of squares."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.compiler.lowering.map import FEW_COLUMNS, TURNS
from anima.compiler.machine.native import host
from anima.core import memory
from tests.compiler.results import same_for_threads

RNG = np.random.default_rng(5)
SIZES = (0, 1, 2, 7, 8, 15, 16, 17, 31, 33, 65)


def values(shape: tuple[int, ...], dtype: str) -> Any:
    return RNG.integers(0, 100, shape).astype(jnp.dtype(dtype))


@pytest.mark.parametrize("dtype", ("bool", "int8", "uint16", "float16", "bfloat16", "float32", "float64", "complex64"))
def test_transposes_of_every_size_and_type(dtype: str) -> None:
    def parts(x: Any) -> list[Any]:
        return [x[:, :m, :n].transpose(0, 2, 1) for m in SIZES for n in (513,)]

    with anima.enable_x64(True):
        x = values((3, 65, 600), dtype)
        for got, want in zip(anima.jit(parts)(x), parts(x), strict=True):
            np.testing.assert_array_equal(got, want)
        for got, want in zip(anima.jit(lambda x: [y.swapaxes(1, 2) + y.swapaxes(1, 2) for y in parts(x)])(x),
                             [y.swapaxes(1, 2) for y in parts(x)], strict=True):
            np.testing.assert_array_equal(got, want + want)


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (0, 2, 3, 1), (3, 2, 1, 0), (1, 3, 0, 2), (2, 0, 3, 1)])
@pytest.mark.parametrize("shape", [(9, 17, 16, 33), (8, 40, 5, 64), (33, 3, 31, 20)])
def test_permutations(shape: tuple[int, ...], order: tuple[int, ...]) -> None:
    x = values(shape, "float32")
    np.testing.assert_array_equal(anima.jit(lambda x: x.transpose(order))(x), x.transpose(order))


@pytest.mark.parametrize("m, n", [(700, 130), (129, 515), (1000, 63)])
def test_transposes_beside_other_operands(m: int, n: int) -> None:
    """What is loaded in squares, along lanes, as one number and from a place that is computed."""
    x, y, z = values((m, n), "float32"), values((n, m), "float32"), values((m,), "float32")
    places = RNG.integers(0, n, n)

    def fun(x: Any, y: Any, z: Any) -> Any:
        return jnp.where(y > 50, x.T * 2 - y[:, ::-1], y[places]) + z + x.T[:, :1]

    want = np.where(y > 50, x.T * 2 - y[:, ::-1], y[places]) + z + x.T[:, :1]
    np.testing.assert_array_equal(anima.jit(fun)(x, y, z), want)


def test_transposes_are_the_same_for_any_number_of_threads() -> None:
    same_for_threads(lambda x: jnp.tanh(x.T) + x.T, values((1000, 777), "float32"))


# ---------------------------------------------------------------- short rows of what lies across them

@pytest.mark.parametrize("columns", range(2, 18))
@pytest.mark.parametrize("dtype", ["float32", "int8", "complex64"])
def test_short_rows_of_turned_arrays(columns: int, dtype: str) -> None:
    for n in (TURNS - 1, TURNS, TURNS + 1, 67, 1000):
        x = np.arange(columns * n).astype(dtype).reshape(columns, n)
        turned = anima.jit(lambda x: x.T + 1)
        np.testing.assert_array_equal(turned(x), x.T + np.ones((), dtype))
        np.testing.assert_array_equal(turned(np.ascontiguousarray(x.T)), x + np.ones((), dtype))
        loops = str(turned.lower(x).loops)
        side_by_side = n >= TURNS and columns <= TURNS and (columns <= FEW_COLUMNS or columns % 2 == 0)
        assert loops.count("out0[") == columns or not side_by_side


@pytest.mark.parametrize("shape", [(3, 20, 30), (20, 3, 30), (20, 30, 3), (2, 5, 70), (16, 4, 4), (1, 3, 50)])
def test_short_rows_of_three_dimensions(shape: tuple[int, ...]) -> None:
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    for order in itertools.permutations(range(3)):
        np.testing.assert_array_equal(anima.jit(lambda x: 2 * x.transpose(order)[::-1])(x),  # noqa: B023
                                      2 * x.transpose(order)[::-1])
        np.testing.assert_array_equal(anima.jit(lambda x: jnp.roll(x.transpose(order), 1, 0) - x.sum())(x),  # noqa: B023
                                      np.roll(x.transpose(order), 1, 0) - x.sum())


@pytest.mark.parametrize("columns", (2, 3, 5, 8, 10, 15))
def test_many_rows_are_turned_in_tiles(columns: int) -> None:
    """Larger than the second cache: also where the step is less than a line of memory."""
    x = np.arange(columns * 70_001, dtype=np.float32).reshape(-1, columns)
    np.testing.assert_array_equal(anima.jit(lambda x: x.T + 1)(x), x.T + 1)


LARGE = [("float32", (2064, 1040)), ("float32", (1040, 2063)), ("float32", (2063, 1040)), ("int32", (3, 1040, 784)),
         ("float64", (1040, 1032)), ("uint64", (1039, 1040)), ("float16", (2064, 2064))]


@pytest.mark.parametrize("ends", ("aligned", "not aligned"))
@pytest.mark.parametrize("dtype, shape", LARGE, ids=str)
def test_large_results_go_past_the_caches(dtype: str, shape: tuple[int, ...], ends: str, unchecked: None,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    """With lines that are whole and others, wherever memory begins."""
    if ends == "not aligned":
        new = memory._new
        monkeypatch.setattr(memory, "_blocks", {})
        monkeypatch.setattr(memory, "_new", lambda nbytes: np.frombuffer(new(nbytes + 8).data[8:], np.uint8))
    with anima.enable_x64(True):
        x = values(shape, dtype)
        turned = anima.jit(lambda x: jnp.swapaxes(x, -1, -2))
        beside = anima.jit(lambda x, y: (jnp.swapaxes(x, -1, -2) + y, y - jnp.swapaxes(x, -1, -2)))
        y = jnp.asarray(np.swapaxes(x, -1, -2) + 1)
        for _ in range(3):
            got = turned(x)
            np.testing.assert_array_equal(got, np.swapaxes(x, -1, -2))
            assert (got._value.ctypes.data % 64 == 0) == (ends == "aligned")
            total, difference = beside(x, y)
            np.testing.assert_array_equal(total, y + (y - 1))
            np.testing.assert_array_equal(difference, np.ones_like(y))


def test_which_squares_go_past_the_caches() -> None:
    def streams(shape: tuple[int, ...], dtype: str = "float32") -> bool:
        text = anima.jit(lambda x: x.T).lower(anima.ShapeDtypeStruct(shape, dtype)).asm
        return "vmovntps" in text or "vmovntdq" in text or "vmovntpd" in text

    if not host().has("avx512f"):
        pytest.skip("vectors are no whole lines here")
    assert streams((2048, 1040)) and streams((2048, 1041))
    assert not streams((2049, 1040))  # rows of the result do not begin where lines do
    assert not streams((512, 1024))   # small: it will be needed out of a cache
    assert not streams((4096, 4096), "int8")
