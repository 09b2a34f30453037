"""Axes and sizes come in any form: as a range, keys of a dictionary, an object of another library."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax, random


class Sizes:
    """A shape of another library: it can be iterated, and is no sequence."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes

    def __iter__(self) -> Iterator[int]:
        return iter(self.sizes)


@pytest.mark.parametrize("axes", [range(2), {0: 1, 1: 1}.keys(), Sizes(0, 1), np.array([0, 1])])
def test_axes(axes: object) -> None:
    x = jnp.arange(6.0).reshape(2, 1, 3)
    np.testing.assert_array_equal(jnp.sum(x, axis=axes), x.sum((0, 1)))
    np.testing.assert_array_equal(jnp.roll(x, (1, 1), axes), jnp.roll(x, (1, 1), (0, 1)))
    assert jnp.expand_dims(x, axes).shape == (1, 1, 2, 1, 3)


@pytest.mark.parametrize("shape", [range(1, 4), Sizes(1, 2, 3), np.array([1, 2, 3])])
def test_shapes(shape: object) -> None:
    assert jnp.broadcast_to(1.0, shape).shape == jnp.arange(6).reshape(shape).shape == (1, 2, 3)


def test_numbers_of_keys() -> None:
    assert random.split(random.key(0), range(1, 3)).shape == (1, 2)


def test_keys_are_close_where_equal_and_stay_keys() -> None:
    keys = random.split(random.key(0))
    assert jnp.allclose(keys, keys) and not jnp.isclose(keys[0], keys[1])
    (got, number) = anima.device_get((keys, jnp.ones(2)))
    assert got is keys and isinstance(number, np.ndarray)


def test_digits_name_axes_of_einsum() -> None:
    np.testing.assert_array_equal(jnp.einsum("a1,a->1", jnp.ones((2, 3)), jnp.ones(2)), [2, 2, 2])


def test_what_all_branches_hand_on_is_not_mapped() -> None:
    def choose(x: anima.Array, shared: anima.Array) -> tuple[anima.Array, anima.Array]:
        return lax.cond(x > 0, lambda x, s: (2 * x, s), lambda x, s: (x, s), x, shared)

    out, shared = anima.vmap(choose, (0, None), (0, None))(jnp.arange(-1.0, 2.0), jnp.float32(5))
    np.testing.assert_array_equal(out, [-1, 0, 2])
    assert shared == 5


def test_costs_count_equal_kernels_each_time() -> None:
    def layers(ws: list[anima.Array], x: anima.Array) -> anima.Array:
        for w in ws:
            x = jnp.tanh(x @ w)
        return x

    x = jnp.ones((32, 64))
    one, many = (anima.jit(layers).lower([jnp.ones((64, 64))] * n, x).compile().cost_analysis() for n in (1, 12))
    assert many["optimal_seconds"] > 8 * one["optimal_seconds"] > 0


def test_x64_enabled() -> None:
    with anima.enable_x64(True):
        assert anima.config.x64_enabled
    assert not anima.config.x64_enabled


def test_sizes_of_core_dimensions_may_be_called_by_numbers() -> None:
    """Which are names like any other."""
    np.testing.assert_array_equal(jnp.vectorize(jnp.sum, signature="(2)->()")(jnp.ones((4, 3))), [3] * 4)
    with pytest.raises(ValueError, match="inconsistent size for core dimension '2'"):
        jnp.vectorize(jnp.dot, signature="(2),(2)->()")(jnp.ones(3), jnp.ones(2))


def test_texts_are_numbers_where_a_dtype_is_given() -> None:
    for make in (jnp.float32, lambda x: jnp.array(x, jnp.float32), lambda x: jnp.asarray(np.array(x), "float32")):
        found = make(["3.0", "-1.5e2"])
        assert found.dtype == jnp.float32 and found.tolist() == [3.0, -150.0]
    assert jnp.int32("3").tolist() == 3 and jnp.array([[1, "2"]], int).tolist() == [[1, 2]]
    assert jnp.array("2.5", jnp.bfloat16).tolist() == 2.5 and jnp.array(b"1+2j", complex).tolist() == 1 + 2j
    for given in "2.5", ["1", 2.0], np.array(["1"]):
        with pytest.raises(TypeError, match="is not a valid Anima array type"):
            jnp.array(given)
    with pytest.raises(ValueError, match="could not convert string to float"):
        jnp.array(["a"], float)


def test_bytes_of_arrays_are_their_memory() -> None:
    for x in jnp.arange(3), jnp.ones((2, 2), jnp.bfloat16), jnp.float32(2), jnp.ones((0, 3)):
        assert bytes(x) == np.asarray(x).tobytes()


def test_operators_give_way_to_objects_that_are_no_arrays() -> None:
    """Though NumPy could make arrays of them: quantities with units, sparse matrices, operators of other libraries."""
    class Quantity:
        shape, ndim, dtype = (3,), 1, np.dtype("float32")
        __hash__ = None  # type: ignore[assignment]

        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
            return np.arange(3.0)

        def __rmul__(self, other: object) -> str:
            return "rmul"

        def __gt__(self, other: object) -> str:
            return "gt"

        def __eq__(self, other: object) -> str:  # type: ignore[override]
            return "eq"

    class Names(list):
        def __rmul__(self, other: object) -> str:
            return "names"

    for x in jnp.ones(3), jnp.float32(1):
        found = [x * Quantity(), x < Quantity(), x == Quantity(), x * Names("abc")]
        assert found == ["rmul", "gt", "eq", "names"]
        anima.jit(lambda x, found=found: found.append(x * Quantity()))(x)
        assert found[-1] == "rmul"
        with pytest.raises(TypeError, match="unsupported operand"):
            x + Quantity()
        with pytest.raises(TypeError, match="unsupported operand"):
            x * [1.0, 2.0, 3.0]
