"""Numbers at the edges of their types, empty arrays, and arguments that look like others."""

from __future__ import annotations

import array
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.complex64])
def test_round_to_more_places_than_there_are(dtype: type) -> None:
    x = jnp.array([1.7, -0.4], dtype)
    for places in (39, 100, 1000):
        np.testing.assert_array_equal(jnp.round(x, places), x)
        np.testing.assert_array_equal(anima.jit(lambda x, p=places: jnp.round(x, p))(x), x)
        np.testing.assert_array_equal(jnp.round(x, -places), np.zeros(2, dtype))
    np.testing.assert_array_equal(jnp.round(jnp.float32([np.inf, np.nan]), -100), [np.inf, np.nan])


@pytest.mark.parametrize("period", [None, 0.59])
def test_interp_between_tiny_places(period: float | None) -> None:
    x = np.exp(np.linspace(-90, -20, 1000)).astype(np.float32)
    slopes = anima.grad(lambda z: jnp.interp(z, z, jnp.ones_like(z), period=period).sum())(x)
    assert np.isfinite(slopes).all()
    assert float(jnp.interp(5e-30, jnp.float32([0, 1e-29]), jnp.float32([1, 2]))) == 1.5
    slope = anima.grad(lambda x: jnp.interp(x, jnp.float32([0, 1e-29]), jnp.float32([0, 1e-29])))(np.float32(5e-30))
    np.testing.assert_allclose(slope, 1.0, rtol=1e-6)


def test_put_clips_to_the_ends() -> None:
    x = jnp.arange(6)
    np.testing.assert_array_equal(jnp.put(x, np.array([0, -1, 9]), np.array([7, 8]), inplace=False), [7, 1, 2, 3, 4, 7])
    np.testing.assert_array_equal(jnp.put(x, np.int8([-9]), 9, inplace=False), [9, 1, 2, 3, 4, 5])
    np.testing.assert_array_equal(jnp.put(x, np.array([-1]), 9, mode="clip", inplace=False), [9, 1, 2, 3, 4, 5])


def test_gather_at_no_places_from_nothing() -> None:
    numbers = lax.GatherDimensionNumbers((), (0,), (0,))
    places = np.zeros((0, 1), np.int32)
    for way in (lambda f: f, anima.jit):
        out = way(lambda x: lax.gather(x, places, numbers, (1,)))(jnp.zeros(0))
        assert out.shape == (0,) and out.dtype == np.float32
    with pytest.raises(TypeError, match="Slice size at index 0"):
        lax.gather(jnp.zeros(0), np.zeros((2, 1), np.int32), numbers, (1,))


def test_updates_of_nothing_take_any_values() -> None:
    x = jnp.arange(6).reshape(2, 3)
    for index in (np.zeros((2, 3), bool), np.zeros(0, int), slice(1, 1)):
        np.testing.assert_array_equal(x.at[index].set(jnp.ones(5, int)), x)
        np.testing.assert_array_equal(anima.jit(lambda x, i=index: x.at[i].add(jnp.ones(5, int)))(x), x)
    with pytest.raises(ValueError, match="broadcast"):
        x.at[np.eye(2, 3, dtype=bool)].set(jnp.ones(5, int))


# ---------------------------------------------------------------- arguments

def test_arrays_without_copies() -> None:
    given = np.arange(4, dtype=np.int32)
    x = jnp.asarray(given, copy=False)
    assert x.unsafe_buffer_pointer() == given.ctypes.data and x.dtype == np.int32 and given.flags.writeable
    np.testing.assert_array_equal(jnp.asarray([1, 2], copy=False), [1, 2])
    np.testing.assert_array_equal(jnp.asarray(array.array("i", [1, 2]), copy=False), [1, 2])
    for wrong in (given[::2], given.astype(np.int16)):
        with pytest.raises(ValueError, match="without a copy"):
            jnp.asarray(wrong, np.int32, copy=False)


def test_masked_arrays() -> None:
    masked, x = np.ma.array([1, 0], mask=[True, False]), jnp.arange(2)
    np.testing.assert_array_equal(jnp.array(masked), [1, 0])
    for fun in (lambda: jnp.add(masked, 1), lambda: x + masked, lambda: jnp.asarray(masked), lambda: jnp.dot(masked, x),
                lambda: jnp.asarray(masked, copy=False),
                lambda: jnp.concatenate([x, masked]), lambda: jnp.take(x, masked), lambda: x[masked]):
        with pytest.raises(ValueError, match="masked arrays are not supported"):
            fun()


def test_preferred_types_of_convolutions() -> None:
    x = np.arange(4, dtype=np.int8)
    for dtype in (np.int8, np.int32, np.float32):
        for fun, want in ((jnp.convolve, np.convolve(x, x)), (jnp.correlate, np.correlate(x, x))):
            out = fun(x, x, preferred_element_type=dtype)
            assert out.dtype == dtype
            np.testing.assert_array_equal(out, want)


def test_numbers_are_repeated_along_their_axis() -> None:
    np.testing.assert_array_equal(jnp.repeat(3, 2, axis=0), np.repeat(3, 2, axis=0))
    np.testing.assert_array_equal(jnp.repeat(3, 2, axis=-1), [3, 3])
    with pytest.raises(ValueError, match="axis 1 is out of bounds"):
        jnp.repeat(3, 2, axis=1)


def test_whole_floats_count_parts() -> None:
    (first, second), _ = anima.jvp(lambda n: jnp.split(jnp.arange(4.0), n), (2.0,), (1.0,))
    np.testing.assert_array_equal([first, second], [[0, 1], [2, 3]])
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        jnp.split(jnp.arange(5.0), 2.5)


def test_load_of_objects(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{"a": 1}, [2]], dtype=object))
    found = jnp.load(tmp_path / "x.npy", allow_pickle=True)
    assert isinstance(found, np.ndarray) and found.tolist() == [{"a": 1}, [2]]


def test_trees_along_an_axis() -> None:
    x = jnp.arange(24.0).reshape(2, 3, 4)
    total, rest = jnp.apply_along_axis(lambda v: (v.sum(), {"outer": jnp.outer(v, v), "n": len(v)}), 1, x)
    np.testing.assert_array_equal(total, np.asarray(x).sum(1))
    assert rest["outer"].shape == (2, 3, 3, 4)
    np.testing.assert_array_equal(rest["outer"], np.einsum("iaj,ibj->iabj", x, x))


def test_complex_numbers_are_no_floats() -> None:
    x = jnp.array(2 + 1j)
    assert complex(x) == 2 + 1j and bool(x)
    for kind in (float, int):
        with pytest.raises(TypeError, match="not 'complex'"):
            kind(x)


def test_copies_outlive_what_they_are_of() -> None:
    x = jnp.arange(3.0)
    y = copy.copy(x)
    x.delete()
    np.testing.assert_array_equal(y, [0, 1, 2])


class Standing:
    """An object that stands for an array."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __jax_array__(self) -> anima.Array:
        return jnp.asarray(self.value)


def test_objects_that_stand_for_arrays() -> None:
    x, square = jnp.arange(4.0), Standing(np.ones((2, 2)))
    np.testing.assert_array_equal(jnp.delete(x, Standing(1)), [0, 2, 3])
    np.testing.assert_array_equal(jnp.insert(x, Standing(1), Standing(5.0)), [0, 5, 1, 2, 3])
    np.testing.assert_array_equal(jnp.roll(x, Standing(1)), [3, 0, 1, 2])
    assert (jnp.ndim(square), jnp.shape(square), jnp.size(square)) == (2, (2, 2), 4)
    for fun in (jnp.tril_indices_from, jnp.triu_indices_from):
        np.testing.assert_array_equal(fun(square), fun(np.ones((2, 2))))


def test_matrices_of_integers() -> None:
    x = np.array([[4, 2], [2, 5]])
    np.testing.assert_allclose(lax.linalg.cholesky(x), [[2, 0], [1, 2]], rtol=1e-6)
    np.testing.assert_allclose(lax.linalg.eigh(x)[1], np.linalg.eigvalsh(x), rtol=1e-6)
    q, r = jnp.linalg.qr(np.ones((3, 2), np.float32), mode="full")
    assert q.shape == (3, 2) and r.shape == (2, 2)


# ---------------------------------------------------------------- types

def test_weak_types() -> None:
    weak = lax.full((3,), 2.0)
    for mode in ("constant", "edge", "linear_ramp", "maximum", "mean", "median", "minimum", "empty", "wrap", "reflect"):
        assert weak.weak_type and jnp.pad(weak, 1, mode=mode).weak_type
        assert not jnp.pad(jnp.float32([1, 2]), 1, mode=mode).weak_type
    for strong in (jnp.diagflat(3, 1), jnp.piecewise(3.0, [True], [1.0]), jnp.choose(np.array([0, 1]), [1, 2.0])):
        assert not strong.weak_type


@pytest.mark.parametrize("mode", ["raise", "wrap", "clip", "ignore"])
def test_positions_have_the_type_of_indices(mode: str) -> None:
    out = jnp.ravel_multi_index((np.int8([1, 0]), np.int8([2, 1])), (2, 3), mode=mode)
    assert out.dtype == np.int8
    np.testing.assert_array_equal(out, [5, 1])


# ---------------------------------------------------------------- errors

@pytest.mark.parametrize(("fun", "error", "match"), [
    (lambda: jnp.cov(np.ones((2, 3)), dtype=int), ValueError, "dtype must be a subclass of float or complex"),
    (lambda: jnp.corrcoef(np.ones((2, 3)), dtype=int), ValueError, "dtype must be a subclass of float or complex"),
    (lambda: jnp.arange(1 + 2j, 5 + 3j), ValueError, "complex numbers have no order"),
    (lambda: jnp.tensordot(np.ones((3, 4)), np.ones((3, 4)), axes=([0], [0, 1])), TypeError, "equal length"),
    (lambda: jnp.rot90(jnp.ones(3)), ValueError, "to have ndim at least two"),
    (lambda: jnp.take(jnp.ones((0, 3)), jnp.array([0]), axis=0), IndexError, r"non-empty jnp.take\(\)"),
    (lambda: jnp.broadcast_to(jnp.ones((2, 3)), (3,)), ValueError, "Cannot broadcast to shape with fewer dimensions"),
    (lambda: jnp.r_["no", 1], ValueError, "could not understand directive 'no'"),
    (lambda: jnp.trace(jnp.ones((2, 2)), axis1=1, axis2=-1), ValueError, "axis1 and axis2 can not be same: 1 and -1"),
    (lambda: jnp.ones((3, 3))[[slice(None)]], TypeError, r"use `arr\[tuple\(seq\)\]`"),
    (lambda: jnp.ones((3, 3))[[0, 1]], TypeError, r"use `arr\[array\(seq\)\]`"),
])
def test_errors(fun: Callable[[], Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        fun()


# ---------------------------------------------------------------- precisions

def test_precisions() -> None:
    assert str(lax.Precision.HIGHEST) == "HIGHEST" and lax.Precision(None) is lax.Precision.DEFAULT
    assert repr(lax.DotAlgorithmPreset.F32_F32_F32) == "DotAlgorithmPreset.F32_F32_F32"
    x = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    for name in ("BF16_BF16_F32_X3", "BF16_BF16_F32_X6"):
        np.testing.assert_array_equal(lax.dot(x, x, precision=name), lax.dot(x, x))
    assert lax.bitwise_and.__name__ == "bitwise_and" and lax.bitwise_not.__name__ == "bitwise_not"


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e4m3b11fnuz", "float8_e4m3fnuz", "float8_e5m2"])
def test_extremes_of_floats_without_infinities(dtype: str) -> None:
    """What stands in for elements that do not count is a number there: infinity would be a NaN."""
    x = jnp.array([1, np.nan, -2, 3], dtype)
    assert (float(jnp.nanmax(x)), float(jnp.nanmin(x)), int(jnp.nanargmax(x)), int(jnp.nanargmin(x))) == (3, -2, 3, 2)
    assert float(jnp.max(x, where=jnp.array([True, False, True, False]), initial=-3)) == 1
    assert np.isnan(float(jnp.nanmax(x[1:2])))
