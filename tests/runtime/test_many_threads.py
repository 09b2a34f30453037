"""Many threads at once, from a process's first moment on: no crash, no hang, the same numbers."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.runtime import threads
from tests.runtime import storm


@pytest.mark.parametrize("act", ["call", "parallel", "tape", "eager"])
def test_the_first_act_of_eight_threads(act):
    code = f"""
import faulthandler, threading
faulthandler.enable()
from tests.runtime import storm
import numpy as np
barrier, done = threading.Barrier(8), []
def work(number):
    barrier.wait()
    storm.{act}(np.random.default_rng(number))
    done.append(number)
workers = [threading.Thread(target=work, args=(k,)) for k in range(8)]
for w in workers: w.start()
for w in workers: w.join()
assert len(done) == 8
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("more", [(), ("toggle",), ("warm", "fork"), ("warm", "fork", "toggle")], ids=" ".join)
def test_everything_at_once(more):
    if "fork" in more and not hasattr(os, "fork"):
        pytest.skip("no fork here")
    subprocess.run([sys.executable, "-m", "tests.runtime.storm", "1", "1", *more], check=True, timeout=120)


@pytest.mark.parametrize("act", [a for a in storm.ACTS if a not in (storm.clear, storm.pools)])
def test_the_acts_by_themselves(act):
    act(np.random.default_rng(0))


def test_the_same_bits_for_any_number_of_threads():
    x = np.random.default_rng(0).standard_normal((700, 513)).astype(np.float32)
    programs = [lambda x: jnp.sum(jnp.exp(x)), lambda x: anima.nn.softmax(x, axis=0), lambda x: x @ x.T,
                lambda x: jnp.cumsum(x, axis=0), lambda x: jnp.sort(x, axis=1), lambda x: jnp.var(x, axis=1),
                anima.grad(lambda x: jnp.sum(jnp.tanh(x @ x.T)))]
    results = []
    try:
        for count in (1, 2, 8):
            threads.set_num_threads(count)
            anima.clear_caches()
            results.append([np.asarray(anima.jit(program)(x)).tobytes() for program in programs])
    finally:
        threads.set_num_threads(None)
    assert results[0] == results[1] == results[2]


def test_an_option_that_changes_while_a_program_is_traced_counts_from_the_next_call():
    traces, begun, changed = [], threading.Event(), threading.Event()

    @anima.jit
    def f(x):
        traces.append(x.dtype)
        return x + jnp.arange(3.0) + lax.fori_loop(0, 3, body, 0)

    def body(i, total):
        if not begun.is_set():
            begun.set()
            assert changed.wait(10)
        return total + i

    def change():
        assert begun.wait(10)
        anima.config.update("enable_x64", True)
        changed.set()

    worker = threading.Thread(target=change)
    worker.start()
    x = np.ones(3, np.float32)
    try:
        assert f(x).dtype == np.float32
        worker.join()
        assert f(x).dtype == np.float64
    finally:
        worker.join()
        anima.config.update("enable_x64", False)
    assert f(x).dtype == np.float32 and len(traces) == 2


def test_a_draw_while_an_option_changes():
    anima.clear_caches()
    running = True

    def change():
        while running:
            anima.config.update("enable_x64", True)
            anima.config.update("enable_x64", False)

    worker = threading.Thread(target=change)
    worker.start()
    try:
        for seed in range(5):
            anima.clear_caches()
            for _ in range(5):
                anima.random.split(anima.random.wrap_key_data(jnp.asarray([0, seed], "uint32")), 3)
    finally:
        running = False
        worker.join()
    assert anima.random.normal(anima.random.key(0), (2,)).dtype == np.float32
