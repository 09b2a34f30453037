"""Reverse mode through loops that do not fit the budget of their tapes: the same bits as with all memory."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.config import config
from anima.experimental import io_callback
from anima.runtime.tapes import recording, routines as tapes

PLENTY = 1 << 28


def budget(size: int) -> Any:
    return config.option("tape_budget")(size)


def both(call: Callable[[], Any], size: int) -> tuple[Any, Any]:
    """Results with all memory and with little; nothing may be left behind."""
    with budget(PLENTY):
        want = call()
    with budget(size):
        got = call()
    return anima.tree.map(np.asarray, want), anima.tree.map(np.asarray, got)


def check(call: Callable[[], Any], size: int) -> None:
    want, got = both(call, size)
    anima.tree.map(np.testing.assert_array_equal, got, want)
    if tapes._loops:
        gc.collect()
    assert not tapes._loops


def chaos(x: Any, n: Any) -> Any:
    """The logistic map, whose derivative depends on every step."""
    return lax.while_loop(lambda c: c[1] < n, lambda c: (c[2] * c[0] * (1 - c[0]), c[1] + 1, c[2]),
                          (x, 0, 3.2 + 0.1 * x))[0]


def vectors(x: Any, n: Any) -> Any:
    """A carry of a vector, a matrix, an integer, a bool and a key; what the body closes over is differentiated."""
    w = jnp.cos(x * jnp.arange(12.0).reshape(3, 4))

    def body(c: Any) -> Any:
        v, m, k, odd, key = c
        key, sub = anima.random.split(key)
        v = jnp.where(odd, jnp.tanh(m @ v + x), jnp.sin(v * w.sum(1))) + 0.1 * anima.random.normal(sub, (3,))
        return v, m * 0.99 + 0.01 * jnp.outer(v, v), k + 1, ~odd, key

    init = (x * jnp.ones(3), jnp.eye(3), 0, True, anima.random.key(3))
    v, m, *_ = lax.while_loop(lambda c: c[2] < n, body, init)
    return jnp.sum(v) + jnp.sum(m * m)


# Of `chaos`, a step takes 4 bytes of tape, a state 12.
@pytest.mark.parametrize("slots", range(1, 9))
def test_every_length_for_real(slots: int) -> None:
    gradient = anima.jit(anima.value_and_grad(chaos))
    for n in range(1 + slots % 3, max(9 * slots, 36) + 1, 3):
        check(lambda n=n: gradient(0.3, n), 24 + 14 * slots)


@pytest.mark.parametrize("size", [64, 200, 1024, 5000, 30_000])
@pytest.mark.parametrize("n", [0, 1, 17, 500, 4001])
def test_scalars(n: int, size: int) -> None:
    check(lambda: anima.jit(anima.value_and_grad(chaos))(0.3, n), size)


@pytest.mark.parametrize("size", [300, 1000, 4000, 20_000])
def test_arrays_keys_and_constants(size: int) -> None:
    check(lambda: anima.jit(anima.value_and_grad(vectors))(0.3, 100), size)


def taken_apart(x: Any, n: Any) -> Any:
    """A carry of small arrays, used element by element."""
    def body(c: Any) -> Any:
        s, (t, u), odd, k = c
        ds = jnp.stack([10.0 * (s[1] - s[0]), s[0] * (x - s[2]) - s[1], s[0] * s[1] - 2.5 * s[2]])
        t = jnp.stack([t[1], jnp.where(odd[0], jnp.sin(t[0]), t[0] * s[0])])
        return s + 0.01 * ds, (u, t), jnp.stack([~odd[1], odd[0]]), k + 1

    init = (jnp.ones(3), (x * jnp.ones(2), jnp.array([0.2, 0.3])), jnp.array([True, False]), 0)
    s, (t, u), *_ = lax.while_loop(lambda c: (c[3] < n) & (c[0][0] < 1e6), body, init)
    return s.sum() + t[0] - u[1]


@pytest.mark.parametrize("size", [300, 1000, 4000])
def test_small_arrays_taken_apart(size: int) -> None:
    gradient = anima.jit(anima.value_and_grad(taken_apart))
    assert "window" in gradient.lower(2.0, 100).loops
    check(lambda: gradient(2.0, 100), size)
    with budget(PLENTY):
        _, slope = gradient(2.0, 100)
    with anima.enable_x64(True):
        above, below = (float(taken_apart(np.float64(2.0 + d), 100)) for d in (1e-5, -1e-5))
    np.testing.assert_allclose(slope, (above - below) / 2e-5, rtol=1e-3)


def test_without_jit() -> None:
    check(lambda: anima.value_and_grad(lambda x: chaos(x, 300))(0.3), 500)


def test_forward_then_back_then_back_again() -> None:
    def call() -> Any:
        y, tangent = anima.linearize(anima.jit(lambda x: chaos(x, 700)), 0.3)
        z, back = anima.vjp(anima.jit(lambda x: chaos(x, 700)), 0.3)
        return y, tangent(1.0), z, back(1.0), tangent(2.0), back(2.0), back(3.0)

    check(call, 1000)


def test_two_readers_at_a_time() -> None:
    def call() -> Any:
        _, back = anima.vjp(anima.jit(lambda x: vectors(x, 90)), 0.3)
        return anima.vmap(back)(jnp.arange(5.0)), anima.vmap(lambda c: back(c)[0] * back(-c)[0])(jnp.arange(3.0))

    check(call, 3000)


def test_loops_that_share_the_budget() -> None:
    def three(x: Any) -> Any:
        return chaos(x, 900) * chaos(0.5 * x, 1100) + chaos(chaos(x, 800), 700)

    for size in (500, 3000, 20_000):
        check(lambda: anima.jit(anima.grad(three))(0.3), size)


def test_a_loop_that_fits_leaves_room_for_one_that_does_not() -> None:
    gradient = anima.jit(anima.value_and_grad(lambda x: chaos(x, 200) + chaos(0.5 * x, 2000)))
    for size in range(400, 2000, 100):  # the first loop takes 800 bytes
        check(lambda: gradient(0.3), size)


def test_loops_in_loops() -> None:
    def nested(x: Any) -> Any:
        def body(c: Any) -> Any:
            y, k = c
            y, _ = lax.while_loop(lambda d: d[1] < 3 + k % 5,
                                  lambda d: (3.3 * d[0] * (1 - d[0]) + 0.01 * x, d[1] + 1), (y, 0))
            return y, k + 1

        return lax.while_loop(lambda c: c[1] < 300, body, (x, 0))[0]

    for size in (2000, 10_000):
        check(lambda: anima.jit(anima.value_and_grad(nested))(0.3), size)


@pytest.mark.parametrize("size", [400, 1000])
def test_lanes(size: int) -> None:
    def gradients() -> Any:
        lengths = jnp.array([0, 5, 800, 3, 200])
        return anima.jit(anima.vmap(anima.value_and_grad(chaos)))(jnp.linspace(0.2, 0.4, 5), lengths)

    check(gradients, size)


def test_in_a_scan_and_under_checkpoint() -> None:
    def outer(x: Any) -> Any:
        def step(c: Any, n: Any) -> Any:
            return c + chaos(c, n), chaos(0.5 * c, n)

        c, ys = lax.scan(anima.checkpoint(step), x, jnp.array([10, 300, 2, 500]))
        return c + ys.sum()

    for size in (500, 1000, 1300, 1500, 2000, 4000):  # at some of them, one of the two loops fits
        check(lambda: anima.jit(anima.value_and_grad(outer))(0.01), size)


def test_a_loop_over_the_budget_inside_of_the_way_back() -> None:
    def f(x: Any, n: int) -> Any:
        inner = anima.checkpoint(lambda y: chaos(0.9 * y, 200))
        return lax.while_loop(lambda c: c[1] < n, lambda c: (0.3 + 0.5 * inner(c[0]) * jnp.sin(c[0]), c[1] + 1),
                              (x, 0))[0]

    for n, sizes in ((10, (400, 600)), (60, (600, 3000, 5000))):
        for size in sizes:
            check(lambda n=n: anima.jit(anima.value_and_grad(f), static_argnums=1)(0.3, n), size)


def test_second_derivatives_within_and_over() -> None:
    second = anima.jit(anima.grad(anima.grad(chaos)))
    with budget(PLENTY):
        want = second(0.3, 30)
    with budget(4000):
        np.testing.assert_array_equal(second(0.3, 30), want)
    np.testing.assert_allclose(anima.jit(anima.jvp, static_argnums=0)(
        anima.grad(lambda x: chaos(x, 30)), (0.3,), (1.0,))[1], want, rtol=1e-3)
    over = anima.jit(lambda x: anima.jvp(anima.grad(lambda x: chaos(x, 500)), (x,), (1.0,)))
    check(lambda: over(0.3), 2000)


def test_nothing_fits() -> None:
    gradient = anima.jit(anima.grad(chaos))
    text = r"while_loop at test_over_budget.py:\d+, in chaos, .*budget of 8 bytes"
    with budget(8), pytest.raises(MemoryError, match=text):
        gradient(0.3, 100)
    assert np.isfinite(gradient(0.3, 10))


def test_what_is_raised_in_the_body() -> None:
    seen = []

    def look(k: Any) -> Any:
        seen.append(int(k))
        if k == limit:
            raise ValueError("the user's own")
        return k

    def f(x: Any) -> Any:
        def body(c: Any) -> Any:
            k = io_callback(look, anima.ShapeDtypeStruct((), jnp.int32), c[1])
            return jnp.sin(c[0]) * 1.1, k + 1

        return lax.while_loop(lambda c: c[1] < 400, body, (x, 0))[0]

    gradient = anima.jit(anima.grad(f))
    limit = 350
    with budget(256), pytest.raises(ValueError, match="the user's own"):
        gradient(0.3)
    gc.collect()
    assert seen[-1] == 350 and not tapes._loops
    limit = 1000
    with budget(256):
        assert np.isfinite(gradient(0.3))


def test_one_way_back_from_many_threads() -> None:
    _, want = anima.vjp(anima.jit(lambda x: chaos(x, 900)), 0.3)
    expected = float(want(1.0)[0])
    interval = sys.getswitchinterval()
    found: list[float] = []
    with budget(200):
        _, back = anima.vjp(anima.jit(lambda x: chaos(x, 900)), 0.3)
        _, tangent = anima.linearize(anima.jit(lambda x: chaos(x, 900)), 0.3)

    def work() -> None:
        found.extend(float(back(1.0)[0]) for _ in range(5))
        found.extend(float(tangent(1.0)) for _ in range(5))

    workers = [threading.Thread(target=work) for _ in range(4)]
    sys.setswitchinterval(1e-5)
    try:
        for w in workers:
            w.start()
        for w in workers:
            w.join()
    finally:
        sys.setswitchinterval(interval)
    assert len(found) == 40
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize("size", [200, PLENTY])
def test_programs_go_with_their_functions(size: int) -> None:
    def alive() -> int:
        gc.collect()
        return sum(type(x) is recording.TapeExecutable for x in gc.get_objects())

    before = alive()
    with budget(size):
        for k in range(2):
            f = anima.jit(anima.grad(lambda x, k=k: chaos(x + 0.01 * k, 100)))
            f(0.3)
    assert alive() > before
    del f
    assert alive() <= before


@pytest.mark.parametrize("size", [200, PLENTY])
def test_tapes_live_until_the_very_end(size: int) -> None:
    code = f"""
import atexit
import anima
from anima import lax

anima.config.update("anima_tape_budget", {size})

def chaos(x):
    return lax.while_loop(lambda c: c[1] < 500, lambda c: (3.3 * c[0] * (1 - c[0]), c[1] + 1), (x, 0))[0]

atexit.register(lambda: print(float(back(1.0)[0]), before))
_, back = anima.vjp(anima.jit(chaos), 0.3)
before = float(back(1.0)[0])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          env={**os.environ, "MALLOC_PERTURB_": "165"})
    late, before = done.stdout.split()
    assert late == before and not done.stderr


def test_a_way_back_that_leaves_a_compiled_function() -> None:
    forward = anima.jit(lambda x: anima.vjp(lambda y: chaos(y, 300), x))
    lanes = anima.jit(anima.vmap(lambda x: anima.vjp(lambda y: chaos(y, 300), x)[1]))

    def call() -> Any:
        y, back = forward(0.3)
        backs = lanes(jnp.linspace(0.2, 0.4, 3))
        return y, back(1.0), back(2.0), anima.jit(back)(1.0), anima.vmap(lambda b: b(1.0))(backs)

    check(call, 600)
    for leaf in anima.tree.leaves(forward(0.3)[1])[-2:]:
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(leaf)


@pytest.mark.parametrize("size", [1700, 2900, 4000])
def test_loops_that_are_over_the_budget_in_loops_that_are(size: int) -> None:
    def nested(x: Any) -> Any:
        return lax.while_loop(lambda c: c[1] < 60, lambda c: (chaos(c[0], 150) + 0.01 * x, c[1] + 1), (x, 0))[0]

    check(lambda: anima.jit(anima.value_and_grad(nested))(0.3), size)
