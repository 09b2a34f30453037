"""Blocks of memory are used again exactly when no array is over them any more."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import re
import sys
import threading

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.core import memory

SIZE = memory.LEAST // 4


def address(x):
    return x.__array_interface__["data"][0]


def take():
    return memory.empty((SIZE,), np.dtype(np.float32), SIZE * 4)


def test_a_block_comes_back_when_its_arrays_are_gone():
    first = take()
    here = address(first)
    assert here % 64 == 0
    second = take()
    assert address(second) != here
    view = first.reshape(2, -1)[1:]
    del first
    third = take()
    assert address(third) != here, "a view is still there"
    del view, second, third
    assert here in {address(a) for a in [take() for _ in range(3)]}


def test_results_that_are_kept_are_not_written_over():
    step = anima.jit(lambda x: x + 1)
    x = jnp.zeros(SIZE)
    kept = [x := step(x) for _ in range(12)]
    assert [float(k[0]) for k in kept] == list(range(1, 13))
    assert [float(k[-1]) for k in kept] == list(range(1, 13))


def test_a_numpy_view_keeps_its_block():
    double = anima.jit(lambda x: x * 2)
    view = np.asarray(double(jnp.ones(SIZE)))[5:10]
    for _ in range(20):
        double(jnp.full(SIZE, 7.0))
    assert view.tolist() == [2.0] * 5


def fill(array, value):
    """Writes as compiled code does, which knows the address alone."""
    writeable = (ctypes.c_uint8 * array.nbytes).from_address(address(array))
    np.frombuffer(writeable, array.dtype)[:] = value


def test_threads_never_share_a_block():
    wrong = []

    def work(value):
        for _ in range(200):
            a = take()
            fill(a, value)
            if not (a == value).all():
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_the_pool_stays_within_its_bounds(monkeypatch):
    monkeypatch.setattr(memory, "MOST", memory.held() + 4 * memory.LEAST)
    arrays = [memory.empty((memory.LEAST + k,), np.dtype(np.uint8), memory.LEAST + k) for k in range(20)]
    assert memory.held() <= memory.MOST
    assert len({address(a) for a in arrays}) == 20


@pytest.mark.parametrize("name", ["getrefcount", "ndarray", "_new", "_make_room", "_put_back"])
def test_what_comes_in_the_middle(monkeypatch, name):
    """A finalizer or a signal that asks for memory itself, or raises, wherever `empty` is."""
    where = {"getrefcount": memory.sys, "ndarray": memory.np}.get(name, memory)
    original, inner, raising = getattr(where, name), [], False

    class Middle(Exception):
        pass

    def middle(*args):
        monkeypatch.undo()
        inner.extend([take() for _ in range(memory._PER_SIZE)])
        if raising:
            raise Middle
        return original(*args)

    for _ in range(2):
        outer = [take() for _ in range(3)]
        del outer[1]
        monkeypatch.setattr(where, name, middle)
        with contextlib.suppress(Middle):
            outer.append(take())
        monkeypatch.undo()
        assert len({address(a) for a in outer + inner}) == len(outer + inner)
        inner.clear()
        raising = True
    assert len(memory._blocks[SIZE * 4]) <= memory._PER_SIZE


@pytest.mark.parametrize("seed", range(5))
def test_random_histories(seed, monkeypatch):
    """Arrays, views and memory views come and go in any order: none is written to by others, bounds hold."""
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(memory, "_blocks", {})
    monkeypatch.setattr(memory, "MOST", 20 * memory.LEAST)
    alive = []
    for number in range(400):
        kind = rng.integers(8)
        if kind < 4:
            nbytes = memory.LEAST + 4096 * int(rng.integers(4))
            a = memory.empty((nbytes // 4,), np.dtype(np.float32), nbytes)
            assert address(a) % 64 == 0 and not a.flags.writeable
            fill(a, number)
            alive.append((a, number))
        elif alive:
            k = int(rng.integers(len(alive)))
            a, value = alive[k]
            if kind == 4:
                alive[k] = np.asarray(a)[1000:2000][::-2], value
            elif kind == 5:
                alive[k] = np.frombuffer(memoryview(np.ascontiguousarray(a)), np.float32), value
            else:
                del alive[k]
            del a
        assert memory.held() <= memory.MOST
        assert all(len(blocks) <= memory._PER_SIZE for blocks in memory._blocks.values())
    assert all((np.asarray(a) == value).all() for a, value in alive)
    alive.clear()
    free = [sys.getrefcount(b) for blocks in memory._blocks.values() for b in blocks]
    assert free and len(set(free)) == 1, "no references are left behind"


def test_sizes_that_are_gone_leave_nothing(monkeypatch):
    monkeypatch.setattr(memory, "_blocks", {})
    monkeypatch.setattr(memory, "MOST", 4 * memory.LEAST)
    for k in range(100):
        memory.empty((memory.LEAST + k,), np.dtype(np.uint8), memory.LEAST + k)
    assert len(memory._blocks) <= 5


@pytest.mark.parametrize("room", [1, 3, memory._PER_SIZE - 1, memory._PER_SIZE, memory._PER_SIZE + 2])
def test_the_pool_is_filled_to_its_bounds(monkeypatch, room):
    monkeypatch.setattr(memory, "_blocks", {})
    for most in (room * SIZE * 4, (room + 1) * SIZE * 4 - 1):
        monkeypatch.setattr(memory, "MOST", most)
        memory._blocks.clear()
        arrays = [take() for _ in range(room + 3)]
        assert memory.held() == min(room, memory._PER_SIZE) * SIZE * 4
        places = [address(a) for a in arrays]
        del arrays[:]
        again = [take() for _ in range(room + 3)]
        assert len({address(a) for a in again} & set(places)) >= min(room, memory._PER_SIZE)
        assert memory.held() == min(room, memory._PER_SIZE) * SIZE * 4


def test_only_free_blocks_make_way_and_no_more_than_have_to(monkeypatch):
    monkeypatch.setattr(memory, "_blocks", {})
    monkeypatch.setattr(memory, "MOST", 6 * memory.LEAST)
    sizes = [memory.LEAST, 2 * memory.LEAST]
    kept, free = ([memory.empty((n,), np.dtype(np.uint8), n) for n in sizes] for _ in range(2))
    assert memory.held() == memory.MOST
    del free
    other = memory.empty((memory.LEAST,), np.dtype(np.uint8), memory.LEAST)
    assert memory.held() == memory.MOST, "there was a free one of that size"
    large = memory.empty((2 * memory.LEAST - 64,), np.dtype(np.uint8), 2 * memory.LEAST - 64)
    assert {n: len(b) for n, b in memory._blocks.items()} == {sizes[0]: 2, sizes[1]: 1, 2 * memory.LEAST - 64: 1}
    places = [address(a) for a in (*kept, other, large)]
    assert len(set(places)) == 4 and memory.held() == 6 * memory.LEAST - 64
    huge = memory.empty((3 * memory.LEAST,), np.dtype(np.uint8), 3 * memory.LEAST)
    assert memory.held() == 6 * memory.LEAST - 64 and huge.size == 3 * memory.LEAST, "no room: outside of the pool"


def test_a_size_that_has_all_its_blocks_takes_no_room_of_others(monkeypatch):
    monkeypatch.setattr(memory, "_blocks", {})
    monkeypatch.setattr(memory, "MOST", (memory._PER_SIZE + 2) * memory.LEAST)
    free = [memory.empty((2 * memory.LEAST,), np.dtype(np.uint8), 2 * memory.LEAST)]
    used = [memory.empty((memory.LEAST,), np.dtype(np.uint8), memory.LEAST) for _ in range(memory._PER_SIZE)]
    free.clear()
    assert memory.held() == memory.MOST
    used += [memory.empty((memory.LEAST,), np.dtype(np.uint8), memory.LEAST) for _ in range(3)]
    assert {n: len(b) for n, b in memory._blocks.items()} == {memory.LEAST: memory._PER_SIZE, 2 * memory.LEAST: 1}
    assert len({address(a) for a in used}) == memory._PER_SIZE + 3


@pytest.mark.parametrize("make", [anima.device_put, jnp.asarray, jnp.array])
def test_what_is_made_of_large_numpy_arrays_lies_as_results_do(make):
    for given in (np.arange(100_000, dtype=np.float32), np.arange(120_000, dtype=np.int32).reshape(300, 400).T):
        array = make(given)
        value = np.asarray(array)
        assert value.ctypes.data % 64 == 0 and value.flags.c_contiguous and not value.flags.writeable
        assert not np.may_share_memory(value, given)
        np.testing.assert_array_equal(value, given)
        given[...] = 0
        assert value.any()


def test_a_copy_of_an_array_may_be_given_up():
    array = anima.device_put(np.arange(100_000, dtype=np.float32))
    place = np.asarray(array).ctypes.data
    result = anima.jit(lambda x: x + 1, donate_argnums=0)(array)
    assert array.is_deleted() and np.asarray(result).ctypes.data == place


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="no huge pages here")
def test_blocks_of_many_pages_begin_with_a_huge_one():
    nbytes = 8 << 20
    arrays = [memory.empty((nbytes // 4,), np.dtype(np.float32), nbytes) for _ in range(3)]
    places = [address(a) for a in arrays]
    assert all(a % (1 << 21) < 1 << 12 and a % 64 == 0 for a in places)
    assert len({a % (1 << 12) for a in places}) == 3, "caches tell them apart"
    del arrays
    again = memory.empty((nbytes // 4,), np.dtype(np.float32), nbytes)
    assert address(again) in places


@pytest.mark.parametrize("nbytes", [1 << 50, 1 << 62])
def test_what_does_not_fit_is_a_memory_error(nbytes):
    with pytest.raises(MemoryError, match=rf"shape \({nbytes},\) and the type uint8"):
        memory.empty((nbytes,), np.dtype(np.uint8), nbytes)


@pytest.mark.parametrize("shape", [(2**32, 2**32), (2**31, 2**31, 2), (2**61,), (2**63,), (2**64,),
                                   (0, 2**62, 8)])
@pytest.mark.parametrize("make", [jnp.zeros, lambda shape: anima.jit(lambda x: jnp.broadcast_to(x, shape) + 1.0)(1.0)])
def test_errors_name_the_shape_that_does_not_fit(make, shape):
    with pytest.raises(MemoryError, match=rf"the shape {re.escape(str(shape))} and the type float32"):
        make(shape)


def test_arguments_that_cannot_be():
    with pytest.raises(MemoryError, match="the type float32"):
        anima.jit(lambda x: x[0, 0]).lower(anima.ShapeDtypeStruct((2**32, 2**32), np.float32)).compile()
