"""`x[ds(start, size)]`: windows whose start need not be known, against slices and index arrays of NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import ds

X = np.arange(60.0, dtype=np.float32).reshape(5, 4, 3)
# The index with windows, and the same with slices or arrays.
SAME: list[tuple[Any, Any]] = [
    (ds(1, 3), np.s_[1:4]), (ds(None), np.s_[:]), (ds(2), np.s_[:2]), (ds(-2, 2), np.s_[3:5]), (ds(4, 3), np.s_[2:5]),
    (ds(0, 3, 2), np.s_[::2]), (ds(3, 0), np.s_[3:3]), ((ds(1, 2), 0), np.s_[1:3, 0]), ((0, ds(1, 2)), np.s_[0, 1:3]),
    ((..., ds(1, 2)), np.s_[..., 1:3]), ((None, ds(1, 2)), np.s_[None, 1:3]), ((ds(1, 2), ds(2, 2)), np.s_[1:3, 2:4]),
    ((ds(1, 2), ..., ds(0, 1)), np.s_[1:3, ..., 0:1]), ((np.array([0, 2]), ds(1, 2)), np.s_[[0, 2], 1:3]),
    ((X[:, 0, 0] > 20, ds(1, 2)), np.s_[2:, 1:3]), ((ds(1, 2), np.array([0, 2])), np.s_[1:3, [0, 2]])]
FIT = [case for case in SAME if case[0] not in (ds(-2, 2), ds(4, 3))]


@pytest.mark.parametrize("wrap", [lambda f: f, anima.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("index,plain", SAME, ids=str)
def test_reading(index: Any, plain: Any, wrap: Any) -> None:
    np.testing.assert_array_equal(wrap(lambda x: x[index])(jnp.array(X)), X[plain])
    np.testing.assert_array_equal(wrap(lambda x: x.at[index].get())(jnp.array(X)), X[plain])


@pytest.mark.parametrize("wrap", [lambda f: f, anima.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("index,plain", FIT, ids=str)
def test_writing(index: Any, plain: Any, wrap: Any) -> None:
    expected = X.copy()
    expected[plain] += 100 * X[plain] + 1
    np.testing.assert_array_equal(wrap(lambda x: x.at[index].add(100 * x[index] + 1))(jnp.array(X)), expected)
    np.testing.assert_array_equal(wrap(lambda x: x.at[index].apply(lambda y: 101 * y + 1))(jnp.array(X)), expected)


@pytest.mark.parametrize("start", [-1, 4, 5, 99])
def test_writing_where_it_does_not_fit_is_dropped(start: int) -> None:
    np.testing.assert_array_equal(anima.jit(lambda x, i: x.at[ds(i, 2)].set(0))(jnp.array(X), start), X)


def test_starts_that_are_not_known() -> None:
    x = jnp.array(X)
    for start in range(4):
        np.testing.assert_array_equal(anima.jit(lambda i: x[ds(i, 2)])(start), X[start:start + 2])
        np.testing.assert_array_equal(anima.jit(lambda i: x[ds(i, 2, 3)])(start % 2), X[start % 2::3][:2])
    np.testing.assert_array_equal(anima.vmap(lambda i: x[0, ds(i, 2), 0])(jnp.arange(3)),
                                  np.stack([X[0, i:i + 2, 0] for i in range(3)]))
    np.testing.assert_array_equal(anima.jit(lambda window: x[window])(ds(jnp.int32(2), 2)), X[2:4])
    square = anima.jit(anima.grad(lambda x, i: jnp.sum(x[ds(i, 2)] ** 2)))
    expected = np.where(np.arange(5)[:, None, None] // 2 == 1, 2 * X, 0)
    np.testing.assert_array_equal(square(x, 2), expected)


@pytest.mark.parametrize("index,plain", FIT, ids=str)
def test_references(index: Any, plain: Any) -> None:
    ref, expected = anima.new_ref(jnp.array(X)), X.copy()
    np.testing.assert_array_equal(ref[index], X[plain])
    ref[index] = jnp.zeros(X[plain].shape)
    expected[plain] = 0
    np.testing.assert_array_equal(ref[...], expected)


def test_references_where_the_start_is_not_known() -> None:
    @anima.jit
    def f(x: Any, i: Any) -> Any:
        ref = anima.new_ref(x)
        ref[:, ds(i, 2)] = -ref[:, ds(i, 2)]
        return ref[...]

    np.testing.assert_array_equal(f(jnp.array(X), 1), np.where(np.arange(4)[:, None] % 3, -X, X))
    ref = anima.new_ref(jnp.array(X))
    with pytest.raises(ValueError, match="Out of bound slice: start=4, size=2"):
        ref[ds(4, 2)]
    with pytest.raises(NotImplementedError, match="in two steps"):
        anima.jit(lambda x, i: anima.new_ref(x)[0, ds(i, 2)])(jnp.array(X), 1)


def test_what_is_no_window() -> None:
    with pytest.raises(TypeError, match="does not fit into axis 0 of size 5"):
        jnp.array(X)[ds(0, 6)]
    with pytest.raises(TypeError, match="must be a known integer"):
        anima.jit(lambda x, n: x[ds(0, n)])(jnp.array(X), 2)
    with pytest.raises(ValueError, match="not be negative"):
        ds(0, 2, -1)
    with pytest.raises(IndexError, match="Too many indices"):
        jnp.array(X)[0, 0, 0, ds(0, 1)]
