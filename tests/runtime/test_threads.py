"""The thread pool: every iteration runs exactly once, whatever calls it, from wherever."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import anima
from anima.compiler.machine import native
from anima.runtime import threads

# body(ctx, begin, end): ctx[i] += 1 for each i; nested: the same through parallel_for itself.
_BODIES = """
define void @count(ptr %ctx, i64 %begin, i64 %end) {
  br label %loop
loop:
  %i = phi i64 [ %begin, %0 ], [ %i1, %step ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %step, label %done
step:
  %at = getelementptr i32, ptr %ctx, i64 %i
  %x = load i32, ptr %at
  %y = add i32 %x, 1
  store i32 %y, ptr %at
  %i1 = add i64 %i, 1
  br label %loop
done:
  ret void
}
define void @nested(ptr %ctx, i64 %begin, i64 %end) {
  %pool = load ptr, ptr %ctx
  %data.at = getelementptr ptr, ptr %ctx, i64 1
  %data = load ptr, ptr %data.at
  %f = load ptr, ptr %pool
  br label %loop
loop:
  %i = phi i64 [ %begin, %0 ], [ %i1, %step ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %step, label %done
step:
  %offset = mul i64 %i, 100
  %row = getelementptr i32, ptr %data, i64 %offset
  call void %f(ptr %pool, ptr @count, ptr %row, i64 100, i64 1)
  %i1 = add i64 %i, 1
  br label %loop
done:
  ret void
}
"""


has_workers = pytest.mark.skipif(threads._best_sleep() is None, reason="no workers on this system")


@pytest.fixture(scope="module")
def bodies():
    return native.compile_module(_BODIES)


def run(pool: threads.Pool, bodies: native.Module, counts: np.ndarray, grain: int) -> None:
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    parallel_for = call(threads._module(threads._best_sleep()).address("parallel_for"))
    parallel_for(pool.address, bodies.address("count"), counts.ctypes.data, counts.size, grain)


@has_workers
@pytest.mark.parametrize("sleep", ["futex", "pthread"])
@pytest.mark.parametrize("workers", [2, 5])
@pytest.mark.parametrize("spins", [0, 1000])
def test_every_iteration_once(bodies, sleep, workers, spins):
    if sleep == "futex" and threads._best_sleep() != "futex":
        pytest.skip("this system has no futex")
    pool = threads.Pool(workers, sleep, spins)
    try:
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        parallel_for = call(threads._module(sleep).address("parallel_for"))
        for n in (0, 1, 2, 7, 100, 10001):
            for grain in (1, 3, 1000):
                counts = np.zeros(n, np.int32)
                for _ in range(20):
                    parallel_for(pool.address, bodies.address("count"), counts.ctypes.data, n, grain)
                assert (counts == 20).all()
    finally:
        pool.close()
    assert not any(worker.is_alive() for worker in pool._workers)


@has_workers
@pytest.mark.parametrize("workers", [2, 5])
def test_pieces_are_no_smaller_than_the_grain_and_the_first_ones_are_large(workers):
    pool, pieces = threads.Pool(workers), []
    body = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(
        lambda ctx, begin, end: pieces.append((begin, end)))
    address = ctypes.cast(body, ctypes.c_void_p).value
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    parallel_for = call(threads._module(threads._best_sleep()).address("parallel_for"))
    for n in (1, 7, 100, 1001):
        for grain in (1, 3, 50, 1000):
            pieces.clear()
            parallel_for(pool.address, address, None, n, grain)
            pieces.sort()
            assert [p[0] for p in pieces] == [0, *(p[1] for p in pieces[:-1])] and pieces[-1][1] == n
            assert all(end - begin >= grain for begin, end in pieces[:-1])
            sizes = [end - begin for begin, end in pieces]
            assert sizes == sorted(sizes, reverse=True)
            assert sizes[0] <= max(grain, n // (2 * workers), -(-n // (8 * workers)))
            assert len(pieces) <= 8 * workers
    pool.close()


@has_workers
def test_one_pool_is_started_by_many_threads_at_once(monkeypatch):
    """However long that takes: each number of threads has one pool, which all get."""
    made, found = [], []

    class Slow(threads.Pool):
        def __init__(self, count):
            made.append(count)
            time.sleep(0.02)
            super().__init__(count)

    monkeypatch.setattr(threads, "Pool", Slow)
    monkeypatch.setattr(threads, "_pools", {})
    try:
        for count in (3, 2, 3):
            threads.set_num_threads(count)
            callers = [threading.Thread(target=lambda: found.append(threads.pool_address())) for _ in range(8)]
            for caller in callers:
                caller.start()
            for caller in callers:
                caller.join()
            assert len(set(found[-8:])) == 1 and threads.pool_cell.value == found[-1]
        assert made == [3, 2]
    finally:
        for pool in threads._pools.values():
            pool.close()
        threads.set_num_threads(None)


def test_a_forked_child_keeps_its_parents_pools_in_memory(monkeypatch):
    """The fork may have happened inside of a job."""
    class Memory:
        address = 64

    pool = Memory()
    gone = weakref.ref(pool)
    monkeypatch.setattr(threads, "_pools", {3: pool})
    monkeypatch.setattr(threads, "_of_parents", [])
    monkeypatch.setattr(threads, "_pool", pool)
    before = threads.pool_cell.value
    threads._forget_after_fork()
    try:
        del pool
        assert gone() is not None and threads._pool is None and not threads._pools and threads.pool_cell.value == -1
    finally:
        threads.pool_cell.value = before


@has_workers
def test_workers_wake_after_sleeping(bodies):
    pool = threads.Pool(3, spins=0)
    counts = np.zeros(1 << 16, np.int32)
    for _ in range(5):
        time.sleep(0.01)
        run(pool, bodies, counts, 1)
    assert (counts == 5).all()
    pool.close()


@has_workers
def test_nested_call_runs_serially(bodies):
    pool = threads.Pool(3)
    data = np.zeros((50, 100), np.int32)
    ctx = np.array([pool.address, data.ctypes.data], np.int64)
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    call(threads._module(threads._best_sleep()).address("parallel_for"))(
        pool.address, bodies.address("nested"), ctx.ctypes.data, 50, 1)
    assert (data == 1).all()
    pool.close()


@has_workers
def test_two_python_threads_at_once(bodies):
    pool = threads.Pool(3)
    arrays = [np.zeros(5000, np.int32) for _ in range(3)]

    def many(counts: np.ndarray) -> None:
        for _ in range(200):
            run(pool, bodies, counts, 16)

    callers = [threading.Thread(target=many, args=(a,)) for a in arrays]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert all((a == 200).all() for a in arrays)
    pool.close()


def _in_child(queue) -> None:
    module = native.compile_module(_BODIES)
    threads.set_num_threads(2)
    pool = threads._start()
    counts = np.zeros(1000, np.int32)
    run(pool, module, counts, 1)
    queue.put(bool((counts == 1).all()) and all(w.is_alive() for w in pool._workers))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_its_own_pool(bodies):
    threads.set_num_threads(2)
    pool = threads._start()
    run(pool, bodies, np.zeros(1000, np.int32), 1)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(queue,))
    child.start()
    assert queue.get(timeout=30)
    child.join(timeout=30)
    assert child.exitcode == 0
    assert threads._start() is pool
    threads.set_num_threads(None)


# What Windows lacks cannot be taken from this process: the code that would look for it must not be made.
ON_WINDOWS = """
import ctypes, concurrent.futures.thread, multiprocessing.process, sys, tempfile
import llvmlite.binding, ml_dtypes, numpy as np, optree, scipy.linalg
sys.platform = "win32"
load = ctypes.CDLL
def library(name, *args, **kwargs):
    assert name is not None, "Windows has no library of the whole process"
    return load(name, *args, **kwargs)
ctypes.CDLL = library

import anima, anima.numpy as jnp
from anima.compiler.machine import native
from anima.runtime import threads
compile = native.compile_object
def compile_object(text, *args, **kwargs):
    assert not any(name in text for name in ("sched_", "pthread_", "@syscall")), text
    return compile(text, *args, **kwargs)
native.compile_object = compile_object

threads.set_num_threads(4)
x = np.linspace(0, 1, 1 << 20).astype(np.float32).reshape(1024, 1024)
f = anima.jit(lambda x: (jnp.sin(x) @ x, jnp.sort(x[0]), jnp.linalg.solve(x[:3, :3] + jnp.eye(3), x[:3, 0])))
for got, want in zip(f(x), (np.sin(x) @ x, x[0], np.linalg.solve(x[:3, :3] + np.eye(3), x[:3, 0]))):
    assert np.allclose(got, want, rtol=1e-4)
loop = lambda x: anima.lax.while_loop(lambda c: c[1] < 5, lambda c: (c[0] * c[0], c[1] + 1), (x, 0))[0]
assert np.isclose(anima.jit(anima.grad(loop))(0.9), 32 * 0.9 ** 31)
assert threads.pool_address() == 0 and threads._start()._workers == []
"""


def test_without_workers_one_thread_runs_everything():
    subprocess.run([sys.executable, "-c", ON_WINDOWS], check=True, timeout=100)


def test_the_interpreter_exits_while_workers_sleep_or_watch():
    code = "from anima.runtime import threads; threads.set_num_threads(4); threads._start()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_pools_are_kept_for_the_next_time():
    before = threading.active_count()
    try:
        for _ in range(20):
            for count in (2, 3):
                threads.set_num_threads(count)
                assert threads.pool_cell.value == -1  # native code asks for the new pool
                assert threads._start().threads == count and threads.pool_cell.value == threads._start().address
        assert threading.active_count() <= before + 3
    finally:
        threads.set_num_threads(None)


@has_workers
@pytest.mark.parametrize("given", [0, 2])
def test_where_the_system_gives_no_more_threads_those_that_there_are_do_all(monkeypatch, caplog, bodies, given):
    start = threading.Thread.start

    def limited(thread):
        if int(thread.name.split("-")[1]) > given:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with caplog.at_level("WARNING", "anima"):
        pool = threads.Pool(4)
    try:
        assert len(pool._workers) == given and f"{3 - given} of 4 threads could not be started" in caplog.text
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        counts = np.zeros(10001, np.int32)
        call(threads._module(threads._best_sleep()).address("parallel_for"))(
            pool.address, bodies.address("count"), counts.ctypes.data, counts.size, 10)
        assert (counts == 1).all()
    finally:
        pool.close()


@pytest.mark.parametrize("broken", [1, 2])
def test_a_pool_that_cannot_start_leaves_no_workers(monkeypatch, broken):
    started, start = [], threading.Thread.start

    def failing(thread):
        if len(started) == broken:
            raise KeyboardInterrupt
        start(thread)
        started.append(thread)

    monkeypatch.setattr(threading.Thread, "start", failing)
    with pytest.raises(KeyboardInterrupt):
        threads.Pool(4)
    assert len(started) == broken and not any(thread.is_alive() for thread in started)


def test_random_histories_leave_the_pool_parked():
    """Whatever runs on it, raises or is interrupted, the pool is free again, and its numbers as they were."""
    rng = np.random.default_rng(0)
    x = np.ones((1000, 300), np.float32)

    def fail(v):
        raise ValueError("no")

    softmax = anima.jit(lambda x: anima.nn.softmax(x))
    failing = anima.jit(lambda x: anima.pure_callback(fail, anima.ShapeDtypeStruct((), np.float32), x.sum()))
    expected = softmax(x)
    threads.set_num_threads(3)
    try:
        pool = threads._start()
        for _ in range(100):
            match rng.integers(4):
                case 0 | 1:
                    np.testing.assert_array_equal(softmax(x), expected)
                case 2:
                    with pytest.raises(ValueError, match="no"):
                        failing(x)
                case 3:
                    callers = [threading.Thread(target=softmax, args=(x,)) for _ in range(3)]
                    for caller in callers:
                        caller.start()
                    for caller in callers:
                        caller.join()
            words = {name: ctypes.c_int32.from_address(pool.address + threads._FIELDS[name]).value
                     for name in ("busy", "open", "stop")}
            assert not any(words.values()), words
            assert all(worker.is_alive() for worker in pool._workers) and len(pool._workers) == 2
        time.sleep(0.1)
        parked = {name: ctypes.c_int32.from_address(pool.address + threads._FIELDS[name]).value
                  for name in ("active", "sleepers")}
        assert parked == {"active": 0, "sleepers": 2}
    finally:
        threads.set_num_threads(None)


def test_number_of_threads(monkeypatch):
    monkeypatch.setenv("ANIMA_NUM_THREADS", "7")
    assert threads.num_threads() == 7
    for text in ("none", "0", "-2", "1.5", " "):
        monkeypatch.setenv("ANIMA_NUM_THREADS", text)
        with pytest.raises(ValueError, match="ANIMA_NUM_THREADS"):
            threads.num_threads()
    monkeypatch.setenv("ANIMA_NUM_THREADS", "none")
    with pytest.raises(ValueError, match="ANIMA_NUM_THREADS"):
        threads.num_threads()
    with pytest.raises(ValueError, match="positive"):
        threads.set_num_threads(0)
    assert threads.Pool(1).address == 0
