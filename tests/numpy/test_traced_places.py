"""Places that are known only when a program runs, where JAX allows them; and numbers at the ends of their types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.test_util import check_grads

X = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
V = X[0]


def same(got: Any, want: Any) -> None:
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("indices", [[0, 2, 4], [3, 1, 5, 5, 0], [5], [0, 0, 0]])
@pytest.mark.parametrize("name", ["add", "multiply", "maximum", "minimum", "logaddexp", "subtract"])
def test_reduceat(name: str, indices: list[int]) -> None:
    """Stretches that overlap, are empty (then one element), or run to the end."""
    ours, theirs = getattr(jnp, name), getattr(np, name)
    at = np.array(indices)
    same(anima.jit(ours.reduceat)(V, at), theirs.reduceat(V, at))
    same(anima.jit(lambda x, i: ours.reduceat(x, i, axis=1))(X, at), theirs.reduceat(X, at, axis=1))
    same(ours.reduceat(X, at, axis=1), theirs.reduceat(X, at, axis=1))
    if name == "add":
        check_grads(anima.jit(lambda x: ours.reduceat(x, jnp.asarray(at))), (V,), 1, atol=1e-2, rtol=1e-2, eps=1e-2)
        for way in (ours.reduceat, anima.jit(ours.reduceat)):  # no wider type, as in JAX
            assert way(jnp.ones(6, "int8"), at).dtype == np.int8


@pytest.mark.parametrize("identity", [None, 1])
def test_reduceat_of_functions_whose_order_tells(identity: Any) -> None:
    def f(x: Any, y: Any) -> Any:
        return x * y + 1

    ours, theirs = jnp.frompyfunc(f, 2, 1, identity=identity), np.frompyfunc(f, 2, 1)
    for at in ([2, 0, 1], [0], [3, 0, 2, 2]):
        for axis in (0, 1):
            want = theirs.reduceat(np.arange(16.0).reshape(4, 4), at, axis=axis).astype(np.float32)
            got = [way(lambda x, i, axis=axis: ours.reduceat(x, i, axis=axis))(
                jnp.arange(16.0).reshape(4, 4), jnp.array(at)) for way in (anima.jit, lambda f: f)]
            np.testing.assert_array_equal(got, [want] * 2)
    for method in (ours.accumulate, jnp.maximum.accumulate, lambda x, axis: jnp.add.reduceat(x, [0], axis)):
        with pytest.raises(ValueError, match="single axis"):
            method(jnp.ones((2, 2)), axis=None)


@pytest.mark.parametrize("k", [-7, -2, 0, 1, 4, 9])
def test_diagonals(k: int) -> None:
    same(anima.jit(lambda k: jnp.tri(3, 4, k))(k), np.tri(3, 4, k))
    same(anima.jit(lambda k: jnp.eye(3, 4, k))(k), np.eye(3, 4, k))
    same(anima.jit(lambda k: jnp.triu(X, k))(k), np.triu(X, k))
    same(anima.jit(lambda k: jnp.tril(X, k))(k), np.tril(X, k))
    same(anima.jit(lambda k: jnp.trace(X, k))(k), np.trace(X, k))
    cube = np.stack([X, 2 * X])
    same(anima.jit(lambda k: jnp.trace(cube, k, 2, 1))(k), np.trace(cube, k, 2, 1))


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("where", [2, -1, 0, [1, 3, 1], [0], [-1, 0]])
def test_insert(where: Any, axis: int | None) -> None:
    new = np.float32(9.0)
    want = np.insert(X, where, new, axis)
    same(anima.jit(lambda i: jnp.insert(X, i, new, axis))(np.array(where)), want)
    same(jnp.insert(X, np.array(where), new, axis), want)
    check_grads(anima.jit(lambda x, v: jnp.insert(x, jnp.asarray(where), v, axis)), (X, new), 1, atol=1e-2, rtol=1e-2,
                eps=1e-2)


def test_insert_beyond_the_ends() -> None:
    same(anima.jit(lambda i: jnp.insert(V, i, 9.0))(np.array([9, -20])), np.insert(V, [6, 0], 9.0))
    with pytest.raises(IndexError, match="out of bounds"):
        jnp.insert(V, 9, 1.0)


@pytest.mark.parametrize("f", [lambda: jnp.full_like(np.arange(3), 2.5), lambda: jnp.full_like(jnp.arange(3), True)])
def test_full_like_while_tracing(f: Callable[[], Any]) -> None:
    got = anima.jit(lambda: f())()
    assert got.dtype == f().dtype
    np.testing.assert_array_equal(got, f())


def test_unwrap_of_integers() -> None:
    x = np.array([[0, 1, 2, -1, 0], [5, 2, 1, 6, 0]], np.int32)
    for period, discont in ((4, None), (6, None), (5, None), (6, 4)):
        for axis in (0, 1):
            got = jnp.unwrap(x, discont, axis, period=period)
            assert got.dtype == np.int32
            np.testing.assert_array_equal(got, np.unwrap(x, discont, axis, period=period))


@pytest.mark.parametrize("dtype", ["uint8", "uint32"])
def test_negative_numbers_beside_unsigned_ones(dtype: str) -> None:
    """They are the default int first, and then wrap around, as JAX has it."""
    x = jnp.arange(4, dtype=dtype)
    top = int(np.iinfo(dtype).max)
    np.testing.assert_array_equal(x + -1, np.array([top, 0, 1, 2], dtype))
    np.testing.assert_array_equal(jnp.maximum(x, -1), np.full(4, top, dtype))
    np.testing.assert_array_equal(jnp.clip(x, -1, 2), np.full(4, 2, dtype))
    assert not (x > -1).any() and (jnp.where(x > 1, x, -1) == jnp.array([top, top, 2, 3], dtype)).all()
    with pytest.raises(OverflowError):
        x + -2**40


def test_positions_in_large_arrays() -> None:
    assert [int(i) for i in jnp.unravel_index(3, (2**20, 2**20))] == [0, 3]
    assert [int(i) for i in jnp.unravel_index(-1, (2**20, 2**20))] == [2**20 - 1, 2**20 - 1]
    for places in (np.array([5, -5, 100, -100, 0]), np.uint8([5, 200])):
        clipped = np.clip(places.astype(int), -12, 11) % 12
        for got, want in zip(jnp.unravel_index(places, (3, 4)), np.unravel_index(clipped, (3, 4)), strict=True):
            np.testing.assert_array_equal(got, want)
    with pytest.raises(ValueError, match="cannot hold"):
        jnp.ravel_multi_index((1, 2), (2**20, 2**20))
    with anima.enable_x64(True):
        assert int(jnp.ravel_multi_index((1, 2), (2**20, 2**20))) == 2**20 + 2
    assert not jnp.eye(3, k=2**40).any()


def test_variance_of_whole_numbers() -> None:
    got = jnp.var(jnp.array([0, 1, 2, 3, 10]), dtype=int)
    assert (float(got), got.dtype, got.weak_type) == (12.0, np.float32, True)
    with pytest.raises(TypeError, match="bool"):
        jnp.var(jnp.arange(3), dtype=bool)


def test_places_are_filled_up_with_values_of_other_types() -> None:
    x = jnp.array([[1, 0, 3], [0, 0, 1]])
    for fill, dtype, weak in ((np.nan, "float32", True), (np.float32(2.5), "float32", False), (2j, "complex64", True),
                              (np.int8(7), "int32", False), (True, "int32", False)):
        for find in (jnp.nonzero, anima.jit(jnp.nonzero, static_argnames="size")):
            rows, columns = find(x, size=4, fill_value=fill)
            np.testing.assert_array_equal(rows, np.array([0, 0, 1, fill]))
            np.testing.assert_array_equal(columns, np.array([0, 2, 2, fill]))
            assert (rows.dtype, rows.weak_type) == (dtype, weak)
        (places,) = jnp.nonzero(x[0], fill_value=fill)
        assert (places.dtype, places.weak_type) == (dtype, weak)
    rows, columns = jnp.nonzero(x, size=4, fill_value=(9, 2.5))
    assert rows.tolist() == [0, 0, 1, 9] and columns.tolist() == [0, 2, 2, 2.5]
    assert jnp.argwhere(x, size=4, fill_value=-1.5)[-1].tolist() == [-1.5, -1.5]
    assert jnp.where(x[0] > 1, size=2, fill_value=jnp.nan)[0].tolist()[0] == 2
    np.testing.assert_array_equal(jnp.nonzero(jnp.zeros(0), size=2, fill_value=np.nan)[0], [np.nan, np.nan])
    assert float(anima.grad(lambda fill: jnp.nonzero(x[0], size=4, fill_value=fill)[0].sum())(2.5)) == 2


def test_distinct_elements_of_nothing() -> None:
    with pytest.raises(ValueError, match="fill_value"):
        jnp.unique(jnp.array([]), size=3)
    np.testing.assert_array_equal(jnp.unique(jnp.array([], int), size=3, fill_value=7), [7, 7, 7])
    assert jnp.unique(jnp.array([]), size=0).shape == (0,)


def test_bytes_in_reverse() -> None:
    for dtype in ("int16", "uint32", "float32", "complex64", "float16", "int8", "bool"):
        x = np.arange(6).reshape(2, 3).astype(dtype)
        for f in (lambda v: v.byteswap(), anima.jit(lambda v: v.byteswap())):
            assert np.asarray(f(jnp.asarray(x))).tobytes() == x.byteswap().tobytes()
