"""Blocks of memory are used again exactly when no array is over them any more."""

from __future__ import annotations

import threading

import numpy as np

import anima
import anima.numpy as jnp
from anima.runtime import memory

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


def test_threads_never_share_a_block():
    wrong = []

    def work(value):
        for _ in range(200):
            a = take()
            a[:] = value
            if not (a == value).all():
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_the_pool_stays_within_its_bounds(monkeypatch):
    monkeypatch.setattr(memory, "MOST", memory._held + 4 * memory.LEAST)
    arrays = [memory.empty((memory.LEAST + k,), np.dtype(np.uint8), memory.LEAST + k) for k in range(20)]
    assert memory._held <= memory.MOST
    assert len({address(a) for a in arrays}) == 20


def test_memory_while_the_pool_is_locked():
    # By a finalizer that runs in the middle of `empty`, or in a child of fork.
    with memory._lock:
        a, b = take(), take()
    assert address(a) != address(b) and address(a) % 64 == 0
