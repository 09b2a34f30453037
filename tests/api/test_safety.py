"""Nothing that a user passes reads or writes outside of a buffer; threads, forks and empty arrays are no exception."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax

X = np.arange(4, dtype=np.int32)
M = np.arange(12, dtype=np.float32).reshape(3, 4)
FAR = [10000, -10000, 2, np.array([5, -7, 1]), np.array([10**6, -(10**9), 3], np.int32)]


def same(fun, *args):
    np.testing.assert_array_equal(anima.jit(fun)(*args), fun(*map(jnp.asarray, args)))


@pytest.mark.parametrize("mode", [None, "clip", "fill", "promise_in_bounds"])
@pytest.mark.parametrize("index", FAR, ids=str)
def test_indices_out_of_bounds(mode, index):
    same(lambda x, i: x.at[i].get(mode=mode), X, index)
    same(lambda x, i: x.at[i].add(100, mode=mode), X, index)


@pytest.mark.parametrize("start", [100, -100, 3])
def test_dynamic_slices_out_of_bounds(start):
    same(lambda x, i: lax.dynamic_slice(x, (i,), (2,)), X, start)
    same(lambda x, i: lax.dynamic_update_slice(x, x[:2], (i,)), X, start)


@pytest.mark.parametrize("fun", [
    lambda m, i: m[i], lambda m, i: m[:, i], lambda m, i: m[i, i], lambda m, i: jnp.take(m, i, axis=1),
    lambda m, i: m.at[i, 1].set(7.0), lambda m, i: m.at[:, i].multiply(2.0), lambda m, i: m.at[i].max(5.0)])
def test_arrays_of_indices_out_of_bounds(fun):
    same(fun, M, np.array([[0, 5], [2, -9]]))


def test_empty_arrays():
    empty = jnp.zeros((0, 4))
    total, columns, product, shifted, ordered = anima.jit(
        lambda e: (e.sum(), e.sum(0), e @ e.T, e + 1, jnp.sort(e)))(empty)
    assert total == 0.0 and columns.tolist() == [0.0] * 4
    assert product.shape == (0, 0) and shifted.shape == ordered.shape == (0, 4)


def test_an_argument_returned_twice_is_not_shared():
    a, b = anima.jit(lambda x: (x, x))(X)
    assert a.unsafe_buffer_pointer() != b.unsafe_buffer_pointer()


def test_user_arrays_are_neither_kept_nor_frozen():
    mine = np.ones(3, np.float32)
    array = jnp.asarray(mine)
    doubled = jnp.reshape(mine, (3, 1))
    mine[0] = 5.0
    assert array.tolist() == [1.0, 1.0, 1.0] and doubled[0, 0] == 1.0


@pytest.mark.parametrize("size", [200, 2_000_000])
def test_many_threads_call_one_program(size):
    x = np.random.default_rng(0).normal(size=size).astype(np.float32)
    fun = anima.jit(lambda a: jnp.exp(a).sum())
    expected = float(fun(x))
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: float(fun(x)), range(32))) == {expected}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_can_go_on():
    x = np.random.default_rng(0).normal(size=1_000_000).astype(np.float32)
    fun = anima.jit(lambda a: jnp.exp(a).sum())
    expected = float(fun(x))
    child = os.fork()
    if child == 0:
        os._exit(0 if float(fun(x)) == expected else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert float(fun(x)) == expected


