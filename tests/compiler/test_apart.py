"""Loops of independent iterations, each of many kernels and routines: on threads, with memory of their own."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.runtime import threads

RNG = np.random.default_rng(0)
W = RNG.normal(size=(48, 48)).astype(np.float32) / 7


def data(count: int, n: int = 48, dtype: Any = np.float32) -> Any:
    return RNG.normal(size=(count, n, n)).astype(dtype)


def products(x: Any) -> Any:
    for _ in range(3):
        x = jnp.tanh(x @ x.T / x.shape[0]) + x
    return x


def factors(x: Any) -> Any:
    return jnp.linalg.cholesky(x @ x.T + x.shape[0] * jnp.eye(x.shape[0], dtype=x.dtype)), x.sum(0)


def loop(x: Any) -> Any:
    return lax.fori_loop(0, 12, lambda k, y: jnp.sin(y @ x) + k, x)


def until(x: Any) -> Any:
    """Each iteration ends after another number of steps."""
    return lax.while_loop(lambda s: s[0] < 3 + 10 * jnp.abs(x[0, 0]), lambda s: (s[0] + 1, jnp.cos(s[1] @ x)), (0, x))


def branch(x: Any) -> Any:
    return lax.cond(x[0, 0] > 0, lambda: jnp.sort(x @ W, 1), lambda: jnp.cumsum(x, 0) @ W)


def spectrum(x: Any) -> Any:
    return jnp.fft.fft(x, axis=0).real @ W


def inner_map(x: Any) -> Any:
    return lax.map(lambda row: jnp.linalg.solve(x + 50 * jnp.eye(48), row * W.T).sum(0), x[:7])


def inner_scan(x: Any) -> Any:
    return lax.scan(lambda c, row: (jnp.tanh(c @ x), c.sum(0) * row), x, x)


def gradient(x: Any) -> Any:
    return anima.grad(lambda y: jnp.sum(jnp.tanh(y @ W) ** 2 @ y))(x)


BODIES = [products, factors, loop, until, branch, spectrum, inner_map, inner_scan, gradient]


@pytest.fixture
def thread_counts() -> Iterator[tuple[int, ...]]:
    yield 1, 2, 3, 5
    threads.set_num_threads(None)


def is_apart(fun: Callable[..., Any], *args: Any) -> bool:
    return "\n  parallel " in anima.jit(fun).lower(*args).loops


def assert_same(some: Any, other: Any, **tolerance: float) -> None:
    for a, b in zip(anima.tree.leaves(some), anima.tree.leaves(other), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), **tolerance)


@pytest.mark.parametrize("body", BODIES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("count", (2, 5, 70))
def test_each_iteration_is_a_call(body: Callable[..., Any], count: int) -> None:
    xs = data(count)
    mapped = anima.jit(lambda xs: lax.map(body, xs))
    assert is_apart(mapped, data(70))
    got, one = mapped(xs), anima.jit(body)
    for k in range(0, count, 7):
        assert_same([a[k] for a in anima.tree.leaves(got)], one(xs[k]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("body", BODIES, ids=lambda f: f.__name__)
def test_the_number_of_threads_changes_no_bit(body: Callable[..., Any], thread_counts: tuple[int, ...]) -> None:
    xs, mapped, results = data(33), anima.jit(lambda xs: lax.map(body, xs)), []
    for count in thread_counts:
        threads.set_num_threads(count)
        results += [mapped(xs), mapped(xs)]
    for other in results[1:]:
        for a, b in zip(anima.tree.leaves(results[0]), anima.tree.leaves(other), strict=True):
            assert np.array_equal(a, b, equal_nan=True)


def test_kernels_in_line() -> None:
    """Programs of few kernels have them in line; those on a thread are long enough for several."""
    xs, y = RNG.integers(-3, 4, (70, 50, 2)).astype(np.float32), RNG.integers(-3, 4, (2, 5242)).astype(np.float32)
    mapped = anima.jit(lambda xs: lax.map(lambda x: jnp.abs(x @ y - 1).max(1), xs))
    assert is_apart(mapped, xs)
    np.testing.assert_array_equal(mapped(xs), np.abs(xs @ y - 1).max(-1))


@pytest.mark.parametrize("dtype", (np.float64, np.complex64))
def test_element_types(dtype: Any) -> None:
    with anima.enable_x64():
        xs = data(9, dtype=dtype)
        expected = np.stack([loop(jnp.asarray(x)) for x in xs])
        assert_same(anima.jit(lambda xs: lax.map(loop, xs))(xs), expected, rtol=1e-3)


def test_what_is_around_it() -> None:
    """In loops and branches, between other kernels, backwards, of what was computed before and with a carry outside."""
    xs = data(20)

    def step(total: Any, w: Any) -> Any:
        ys = lax.map(lambda x: jnp.tanh(x @ w @ w) + total, xs * 2)
        _, zs = lax.scan(lambda c, x: (c, (x @ w @ x, x.max())), None, ys, reverse=True)
        return total + ys.sum() / 1000, (zs[0][3], zs[1])

    def run(ws: Any) -> Any:
        return lax.cond(ws[0, 0, 0] < 100, lambda: lax.scan(step, jnp.float32(0.5), ws), lambda: None or lax.scan(
            step, jnp.float32(0.0), ws))

    def python(ws: Any) -> Any:
        total, results = np.float32(0.5), []
        for w in ws:
            ys = np.tanh(xs * 2 @ w @ w) + total
            zs = ys @ w @ ys
            total = total + ys.sum() / 1000
            results.append((zs[3], ys.max((1, 2))))
        return total, tuple(np.stack(r) for r in zip(*results, strict=True))

    ws = data(4) / 7
    assert "parallel" in anima.jit(run).lower(ws).loops
    assert_same(anima.jit(run)(ws), python(ws), rtol=1e-3, atol=1e-3)


def test_where_it_does_not_pay() -> None:
    assert not is_apart(lambda xs: lax.map(lambda x: x @ x, xs), data(2, 8))  # little work
    assert not is_apart(lambda xs: lax.map(lambda x: x @ x @ x, xs), data(4, 400))  # few, long iterations
    assert not is_apart(lambda xs: lax.map(lambda x: jnp.outer(x, x) @ jnp.outer(x, x), xs),
                        np.ones((70, 3000), np.float32))  # much memory for each thread


def test_callbacks_are_in_order() -> None:
    seen: list[int] = []

    def one(x: Any) -> Any:
        anima.debug.callback(lambda k: seen.append(int(k)), x[0, 0], ordered=True)
        return products(x)

    xs = data(70)
    xs[:, 0, 0] = np.arange(70)
    assert not is_apart(lambda xs: lax.map(one, xs), xs)
    anima.block_until_ready(anima.jit(lambda xs: lax.map(one, xs))(xs))
    anima.effects_barrier()
    assert seen == list(range(70))


def test_memory_is_told() -> None:
    xs = data(70)
    compiled = anima.jit(lambda xs: lax.map(products, xs)).lower(xs).compile()
    assert compiled.memory_analysis().temp_size_in_bytes >= 2 * 48 * 48 * 4 * threads.num_threads()


def test_calls_from_several_threads() -> None:
    xs, mapped = data(40), anima.jit(lambda xs: lax.map(until, xs))
    expected, same = mapped(xs), []

    def work() -> None:
        same.extend(np.array_equal(mapped(xs)[1], expected[1]) for _ in range(5))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert same == [True] * 20


@pytest.mark.parametrize("count", (1, 3))
@pytest.mark.parametrize(("lanes", "size"), [(40, 48), (3, 20)])  # of which the second seems to be short
def test_interrupt(count: int, lanes: int, size: int) -> None:
    """Ctrl-C ends iterations of minutes, and the process goes on."""
    code = f"""
import os, signal, threading, time, numpy as np, anima
import anima.numpy as jnp
from anima import lax
from anima.runtime import threads
threads.set_num_threads({count})
run = anima.jit(lambda xs, n: lax.map(lambda x: lax.fori_loop(0, n, lambda k, y: jnp.tanh(y @ x), x), xs))
xs = np.ones(({lanes}, {size}, {size}), np.float32)
assert "\\n  parallel " in run.lower(xs, 2).loops
run(xs, 2).block_until_ready()
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
start = time.perf_counter()
try:
    run(xs, 100_000_000).block_until_ready()
except KeyboardInterrupt:
    assert time.perf_counter() - start < 20
else:
    raise AssertionError("was not interrupted")
run(xs, 2).block_until_ready()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
