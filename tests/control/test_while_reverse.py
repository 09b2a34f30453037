"""Reverse mode through loops whose length is known only when they run: against the unrolled loop, in Python."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.config import config
from anima.control import while_loop as whiles

OPS: list[Callable[[Any, Any], Any]] = [
    lambda a, b: jnp.sin(a) * b, lambda a, b: a + 0.5 * jnp.cos(b), lambda a, b: a * b - 0.3 * a,
    lambda a, b: jnp.tanh(a + b), lambda a, b: jnp.where(a > b, a, 0.7 * b), lambda a, b: a / (1.0 + b * b),
    lambda a, b: jnp.exp(-a * a) + b, lambda a, b: jnp.sum(a) * 0.2 + b,
]


@pytest.fixture(autouse=True)
def wide() -> Any:
    with config.option("enable_x64")(True):
        yield


def python_while(cond: Callable[[Any], Any], body: Callable[[Any], Any], init: Any) -> Any:
    while bool(cond(init)):
        init = body(init)
    return init


def program(seed: int) -> Callable[[Any, Callable[..., Any]], Any]:
    """A random loop: a scalar and a vector that depend on each other, a counter, and a constant from outside."""
    rng = np.random.default_rng(seed)
    chosen = [OPS[k] for k in rng.integers(0, len(OPS), 5)]
    limit, stop_on_value = int(rng.integers(0, 6)), bool(rng.integers(0, 2))

    def fun(x: Any, loop: Callable[..., Any]) -> Any:
        scale = jnp.cos(x)

        def cond(c: Any) -> Any:
            return jnp.logical_and(c[2] < limit, jnp.abs(c[0]) < 50.0) if stop_on_value else c[2] < limit

        def body(c: Any) -> Any:
            s, v, k = c
            w = chosen[0](v, s * scale)
            w = chosen[1](w, chosen[2](s, 0.1 * k.astype(w.dtype)) + jnp.zeros(3))
            return jnp.sum(chosen[3](w, v)) * 0.3, chosen[4](w, v), k + 1

        s, v, _ = loop(cond, body, (x, x * jnp.arange(3.0) * 0.4, jnp.asarray(0)))
        return s + jnp.sum(v * v)

    return fun


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_of_orders_1_and_2(seed: int) -> None:
    fun, x = program(seed), 0.3 + 0.1 * seed
    looped, unrolled = (lambda x: fun(x, lax.while_loop)), (lambda x: fun(x, python_while))
    for f, g in ((anima.grad(looped), anima.grad(unrolled)),
                 (anima.grad(anima.grad(looped)), anima.grad(anima.grad(unrolled)))):
        want = g(x)
        np.testing.assert_allclose(f(x), want, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(anima.jit(f)(x), want, rtol=1e-9, atol=1e-10)
    step = 1e-6
    np.testing.assert_allclose(anima.grad(looped)(x), (unrolled(x + step) - unrolled(x - step)) / (2 * step),
                               rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_transformations_in_any_order(seed: int) -> None:
    fun = program(20 + seed)
    looped, unrolled = (lambda x: fun(x, lax.while_loop)), (lambda x: fun(x, python_while))
    xs = jnp.array([0.2, 0.9, 1.4])
    want = np.array([anima.grad(unrolled)(float(x)) for x in xs])
    second = np.array([anima.grad(anima.grad(unrolled))(float(x)) for x in xs])
    rng = np.random.default_rng(seed)
    for grad_first in (True, False):
        for _ in range(2):
            a, b, c = (anima.jit if jitted else lambda f: f for jitted in rng.integers(0, 2, 3))
            if grad_first:
                f = c(anima.vmap(b(anima.grad(a(looped)))))
            else:
                inner = b(anima.vmap(a(looped)))
                f = c(anima.grad(lambda v, inner=inner: jnp.sum(inner(v))))
            np.testing.assert_allclose(f(xs), want, rtol=1e-9, atol=1e-10)
    twice = anima.grad(anima.jit(anima.grad(looped)))
    np.testing.assert_allclose(anima.jit(anima.vmap(twice))(xs), second, rtol=1e-8, atol=1e-9)
    hessian = anima.hessian(lambda v: jnp.sum(anima.vmap(looped)(v)))(xs)
    np.testing.assert_allclose(hessian, np.diag(second), rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(anima.jacfwd(anima.grad(looped))(0.9), second[1], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_one_operation_at_a_time_agrees(seed: int) -> None:
    fun = program(40 + seed)

    def f(x: Any) -> Any:
        return fun(x, whiles.while_loop)

    compiled = [anima.jit(g)(0.7) for g in (anima.grad(f), anima.grad(anima.grad(f)))]
    with config.option("disable_jit")(True):
        eager = [g(0.7) for g in (anima.grad(f), anima.grad(anima.grad(f)))]
        lanes = anima.vmap(anima.grad(f))(jnp.array([0.7, 1.1]))
    np.testing.assert_allclose(eager, compiled, rtol=1e-10)
    np.testing.assert_allclose(lanes, anima.vmap(anima.grad(f))(jnp.array([0.7, 1.1])), rtol=1e-10)


def test_newton_iteration() -> None:
    def root(a: Any) -> Any:
        return lax.while_loop(lambda x: jnp.abs(x * x - a) > 1e-13, lambda x: 0.5 * (x + a / x), a)

    for transform in (lambda f: f, anima.jit):
        np.testing.assert_allclose(transform(anima.grad(root))(2.0), 0.5 / np.sqrt(2.0), rtol=1e-12)
        np.testing.assert_allclose(transform(anima.grad(anima.grad(root)))(2.0), -0.25 * 2.0 ** -1.5, rtol=1e-10)
    np.testing.assert_allclose(anima.vmap(anima.grad(root))(jnp.array([2.0, 9.0, 1e4])),
                               0.5 / np.sqrt([2.0, 9.0, 1e4]), rtol=1e-12)


def test_adaptive_integrator() -> None:
    """y' = -a y by Heun's method with a step size that follows the error; its solution is exp(-a)."""
    def solve(a: Any) -> Any:
        def body(c: Any) -> Any:
            t, y, h = c
            h = jnp.minimum(h, 1.0 - t)
            k1, k2 = -a * y, -a * (y - h * a * y)
            error = jnp.abs(0.5 * h * (k2 - k1)) + 1e-30
            good = error < 1e-7
            new_h = lax.stop_gradient(h * jnp.clip(0.9 * jnp.sqrt(1e-7 / error), 0.2, 2.0))
            return jnp.where(good, t + h, t), jnp.where(good, y + 0.5 * h * (k1 + k2), y), new_h
        return lax.while_loop(lambda c: c[0] < 1.0 - 1e-12, body, (0.0, 1.0, 0.1))[1]

    np.testing.assert_allclose(anima.jit(anima.grad(solve))(1.3), -np.exp(-1.3), rtol=1e-4)
    np.testing.assert_allclose(anima.grad(solve)(1.3), (solve(1.3 + 1e-6) - solve(1.3 - 1e-6)) / 2e-6, rtol=1e-5)


def test_fori_loop_with_bounds_that_are_traced() -> None:
    def power(x: Any, n: Any) -> Any:
        return lax.fori_loop(0, n, lambda i, y: y * x + 0.1 * i, 1.0)

    def python(x: Any, n: int) -> Any:
        y = 1.0
        for i in range(n):
            y = y * x + 0.1 * i
        return y

    gradient = anima.jit(anima.grad(power))
    for n in (0, 1, 5):
        np.testing.assert_allclose(gradient(1.1, n), anima.grad(python)(1.1, n), rtol=1e-12)
    lanes = anima.jit(anima.vmap(anima.grad(power)))(jnp.full(3, 1.1), jnp.array([0, 3, 6]))
    np.testing.assert_allclose(lanes, [anima.grad(python)(1.1, n) for n in (0, 3, 6)], rtol=1e-12)
    same = anima.jit(anima.vmap(anima.grad(power), in_axes=(0, None)))(jnp.array([1.1, 0.9]), 4)
    np.testing.assert_allclose(same, [anima.grad(python)(x, 4) for x in (1.1, 0.9)], rtol=1e-12)


def nested(x: Any, loop: Callable[..., Any]) -> Any:
    def outer(c: Any) -> Any:
        y, k = c
        z, _ = loop(lambda d: d[1] <= k, lambda d: (jnp.sin(d[0]) * x + d[0] * y, d[1] + 1), (y, jnp.asarray(0)))
        return jnp.tanh(z), k + 1
    return loop(lambda c: c[1] < 4, outer, (x, jnp.asarray(0)))[0]


def in_scan(x: Any, loop: Callable[..., Any]) -> Any:
    def step(c: Any, k: Any) -> Any:
        y, _ = loop(lambda d: d[1] < k, lambda d: (jnp.sin(d[0]) + x * d[0], d[1] + 1), (c, jnp.asarray(0)))
        return y, y * y
    if loop is python_while:
        carry, total = x, 0.0
        for k in (3, 0, 2):
            carry, y = step(carry, k)
            total = total + y
        return carry + total
    last, ys = lax.scan(step, x, jnp.array([3, 0, 2]))
    return last + ys.sum()


def in_cond(x: Any, loop: Callable[..., Any]) -> Any:
    def grows(y: Any) -> Any:
        return loop(lambda d: jnp.abs(d) < 10.0, lambda d: d * d + x, y)
    total = 0.0
    for shift in (-2.0, 1.0):
        chosen = x + shift > 0.0
        if loop is python_while:
            total = total + (grows(x + 1.5) if bool(chosen) else jnp.cos(x))
        else:
            total = total + lax.cond(chosen, grows, lambda y: jnp.cos(y - 1.5), x + 1.5)
    return total


@pytest.mark.parametrize("fun", [nested, in_scan, in_cond], ids=lambda f: f.__name__)
def test_loops_in_loops_and_branches(fun: Callable[..., Any]) -> None:
    def looped(x: Any) -> Any:
        return fun(x, lax.while_loop)

    def unrolled(x: Any) -> Any:
        return fun(x, python_while)

    for f, g in ((anima.grad(looped), anima.grad(unrolled)),
                 (anima.grad(anima.grad(looped)), anima.grad(anima.grad(unrolled)))):
        want = [g(x) for x in (0.6, 0.8)]
        np.testing.assert_allclose([anima.jit(f)(x) for x in (0.6, 0.8)], want, rtol=1e-9)
        np.testing.assert_allclose(f(0.6), want[0], rtol=1e-9)
        np.testing.assert_allclose(anima.jit(anima.vmap(f))(jnp.array([0.6, 0.8])), want, rtol=1e-9)


def test_no_steps_and_no_dependence() -> None:
    never = anima.grad(lambda x: lax.while_loop(lambda y: y < 0.0, lambda y: y * x, x * x))
    np.testing.assert_allclose(anima.jit(never)(3.0), 6.0)
    ignores = anima.grad(lambda x: lax.while_loop(lambda c: c[1] < 3, lambda c: (2.0, c[1] + 1), (x, 0))[0])
    np.testing.assert_allclose(anima.jit(ignores)(3.0), 0.0)
    assert anima.vmap(anima.grad(lambda x: lax.while_loop(lambda y: y < 9.0, lambda y: y * y + x, x)))(
        jnp.zeros((0,))).shape == (0,)


def test_integers_have_no_tangent() -> None:
    def f(x: Any, n: Any) -> Any:
        return lax.while_loop(lambda c: c[1] < n, lambda c: (c[0] * x, c[1] + 1, c[0] > 1.0), (x, 0, False))

    (y, count, large), pull = anima.vjp(f, 1.5, 3)
    np.testing.assert_allclose(y, 1.5 ** 4)
    assert int(count) == 3 and bool(large)
    nothing = np.zeros((), anima.dtypes.float0)
    ct_x, ct_n = pull((1.0, nothing, nothing))
    np.testing.assert_allclose(ct_x, 4 * 1.5 ** 3)
    assert ct_n.dtype == anima.dtypes.float0


def test_a_derivative_is_used_many_times() -> None:
    def f(x: Any) -> Any:
        return lax.while_loop(lambda v: jnp.sum(v) < 20.0, lambda v: v * v + x, x)

    x = jnp.array([0.5, 0.9])
    _, pull = anima.vjp(anima.jit(f), x)
    rows = np.stack([pull(e)[0] for e in jnp.eye(2)])
    gc.collect()
    np.testing.assert_allclose(rows, anima.jacfwd(f)(x), rtol=1e-12)
    np.testing.assert_allclose(anima.jacrev(f)(x), rows, rtol=1e-12)
    np.testing.assert_allclose(anima.jit(lambda ct: pull(ct)[0])(jnp.ones(2)), rows.sum(0), rtol=1e-12)
    _, push = anima.linearize(f, x)
    np.testing.assert_allclose(push(jnp.array([1.0, 0.0])), rows[:, 0], rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex64", "complex128"])
def test_element_types(dtype: str) -> None:
    def f(x: Any, loop: Callable[..., Any]) -> Any:
        y, _ = loop(lambda c: c[1] < 4, lambda c: (jnp.sin(c[0]) * x + 1, c[1] + 1), (x, jnp.asarray(0)))
        return jnp.sum(jnp.real(y))

    x = jnp.array([0.5, 0.25], dtype)
    want = np.asarray(anima.grad(lambda x: f(x, python_while))(x)).astype(complex)
    got = np.asarray(anima.jit(anima.grad(lambda x: f(x, lax.while_loop)))(x)).astype(complex)
    np.testing.assert_allclose(got, want, rtol=5e-2 if dtype.endswith("16") else 1e-5)


@pytest.mark.parametrize("step", [
    lambda k, u: k + u, lambda k, u: u + k, lambda k, u: k - u, lambda k, u: u - k, lambda k, u: k + k,
    lambda k, u: k * u, lambda k, u: k - k], ids=["k+u", "u+k", "k-u", "u-k", "k+k", "k*u", "k-k"])
@pytest.mark.parametrize("first", [1, -1.5, np.int8([3, 4]), np.float32([0.25, 2.0]), np.uint8(250), np.int8(120)],
                         ids=["int", "float", "int8[2]", "float32[2]", "uint8", "int8"])
def test_what_steps_like_a_counter(first: Any, step: Callable[[Any, Any], Any]) -> None:
    """Only integers that grow by a constant are known at each step without being stored; they may wrap."""
    unit = 3 if jnp.asarray(first).dtype.kind in "iu" else 0.375

    def f(x: Any, loop: Callable[..., Any]) -> Any:
        def body(c: Any) -> Any:
            y, k, n = c
            return jnp.sin(y) * x * (1.0 + 0.1 * jnp.sum(k.astype(float))) + jnp.cos(x), step(k, unit), n + 1
        return loop(lambda c: c[2] < 4, body, (x, jnp.asarray(first), jnp.asarray(0)))[0]

    want = anima.grad(lambda x: f(x, python_while))(0.7)
    np.testing.assert_allclose(anima.jit(anima.grad(lambda x: f(x, lax.while_loop)))(0.7), want, rtol=1e-10)


@pytest.mark.parametrize("step", [2**31 + 7, -2**31 - 5, 2**40 + 1, -(2**62)], ids=hex)
def test_counters_take_steps_that_32_bits_do_not_hold(step: int) -> None:
    def f(x: Any, loop: Callable[..., Any]) -> Any:
        def body(c: Any) -> Any:
            y, k, n = c
            return jnp.sin(y) * x * (1.0 + 2.0 * (k >> 20).astype(float) / 2**44) + 0.1 * (k % 13), k + step, n + 1
        return loop(lambda c: c[2] < 6, body, (x, jnp.asarray(5), jnp.asarray(0)))[0]

    want = anima.grad(lambda x: f(x, python_while))(0.7)
    np.testing.assert_allclose(anima.jit(anima.grad(lambda x: f(x, lax.while_loop)))(0.7), want, rtol=1e-10)


@pytest.mark.parametrize("shape", [(0,), (0, 2), (2, 0)], ids=str)
def test_no_lanes_at_all(shape: tuple[int, ...]) -> None:
    def f(x: Any, n: Any) -> Any:
        return lax.while_loop(lambda c: c[1] < n, lambda c: (jnp.sin(c[0]) * x, c[1] + 1), (x, jnp.asarray(0)))[0]

    limits = jnp.full(shape, 3)
    for in_axes, n in ((0, limits), ((0, None), jnp.asarray(3))):
        for derived in (anima.grad(f), anima.grad(anima.grad(f)), lambda x, n: anima.grad(anima.jit(f))(x, n)):
            for _ in shape:
                derived = anima.vmap(derived, in_axes)
            for way in (derived, anima.jit(derived)):
                assert way(jnp.zeros(shape), n).shape == shape


def test_loops_that_only_accumulate_store_nothing() -> None:
    def f(x: Any, n: Any) -> Any:
        return lax.fori_loop(0, n, lambda i, s: s + x * jnp.sin(0.1 * i) * 2.0, 0.0)

    with config.option("tape_budget")(0):
        got = anima.jit(anima.grad(f))(1.5, 1000)
    np.testing.assert_allclose(got, 2.0 * np.sin(0.1 * np.arange(1000)).sum(), rtol=1e-10)


def grow(x: Any, n: Any) -> Any:
    return lax.while_loop(lambda c: c[1] < n, lambda c: (jnp.sin(c[0]) + x, c[1] + 1), (x, 0))[0]


def test_over_the_budget_of_the_reference() -> None:
    gradient = anima.grad(lambda x: whiles.while_loop(
        lambda c: c[1] < 5000, lambda c: (jnp.sin(c[0]) + x, c[1] + 1), (x, 0))[0])
    with (config.option("tape_budget")(8 * 4096), config.option("disable_jit")(True),
          pytest.raises(MemoryError, match="budget of 32768 bytes")):
        gradient(0.5)


def test_a_million_steps() -> None:
    slope = 0.0
    y = x = 0.5
    for _ in range(1000):
        slope, y = np.cos(y) * slope + 1.0 if slope else np.cos(y) + 1.0, np.sin(y) + x
    gradient = anima.jit(anima.grad(grow))
    np.testing.assert_allclose(gradient(x, 1000), slope, rtol=1e-9)
    np.testing.assert_allclose(gradient(x, 1_000_000), slope, rtol=1e-6)  # converged long ago


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.parametrize("how", ["jit", "over budget", "vjp of jit", "vmap", "error"])
def test_nothing_leaks(how: str) -> None:
    xs, jitted = jnp.linspace(0.1, 0.9, 4), anima.jit(grow)
    gradient = anima.jit(anima.vmap(anima.grad(grow), in_axes=(0, None)))
    single = anima.jit(anima.grad(grow))

    def call() -> None:
        if how == "jit":
            single(0.5, 20_000)
        elif how == "over budget":
            with config.option("tape_budget")(100_000):
                single(0.5, 20_000)
        elif how == "vjp of jit":
            anima.vjp(lambda x: jitted(x, 20_000), 0.5)[1](1.0)
        elif how == "vmap":
            gradient(xs, 5_000)
        else:
            with config.option("tape_budget")(8), pytest.raises(MemoryError):
                single(0.5, 1000)

    for _ in range(5):
        call()
    gc.collect()
    before = resident()
    for _ in range(200):
        call()
    gc.collect()
    assert resident() - before < 8 << 20  # each call records at least 160 kB


def test_tapes_inside_loops_are_freed_at_each_step() -> None:
    def train(x: Any) -> Any:
        def loss(v: Any) -> Any:
            last = lax.while_loop(lambda c: c[1] < 200.0, lambda c: (jnp.sin(c[0]) + v, c[1] + 1.0), (v, 0.0))
            return jnp.sum(last[0])
        return lax.scan(lambda c, _: (c - 1e-3 * anima.grad(loss)(c), None), x, None, 200)[0]

    with config.option("tape_budget")(1 << 20):  # one step records 160 kB, all of them 32 MB
        out = anima.jit(train)(jnp.linspace(0.1, 0.5, 100))
    assert np.isfinite(np.asarray(out)).all()


def test_with_checkpoint_keys_and_third_derivatives() -> None:
    def f(x: Any) -> Any:
        return lax.while_loop(lambda c: c < 50.0, lambda c: c * x + jnp.sin(c), x)

    def walk(x: Any, loop: Callable[..., Any]) -> Any:
        def body(c: Any) -> Any:
            key, y, i = c
            key, own = anima.random.split(key)
            return key, y * x + anima.random.normal(own) * y, i + 1
        return loop(lambda c: c[2] < 3, body, (anima.random.key(0), x, jnp.asarray(0)))[1]

    np.testing.assert_allclose(anima.jit(anima.grad(anima.checkpoint(f)))(1.3), anima.grad(f)(1.3), rtol=1e-12)
    third = anima.jacfwd(anima.jacfwd(anima.jacfwd(f)))(1.3)
    np.testing.assert_allclose(anima.jit(anima.grad(anima.grad(anima.grad(f))))(1.3), third, rtol=1e-9)
    np.testing.assert_allclose(anima.jit(anima.grad(lambda x: walk(x, lax.while_loop)))(1.2),
                               anima.grad(lambda x: walk(x, python_while))(1.2), rtol=1e-12)


def test_products_of_matrices_read_and_write_tapes() -> None:
    rng = np.random.default_rng(0)
    w, x = jnp.asarray(rng.normal(size=(32, 32)) / 6), jnp.asarray(rng.normal(size=(16, 32)))

    def f(w: Any, n: Any) -> Any:
        return jnp.sum(lax.fori_loop(0, n, lambda i, y: jnp.tanh(y @ w) + x, x))

    def python(w: Any) -> Any:
        y = x
        for _ in range(7):
            y = jnp.tanh(y @ w) + x
        return jnp.sum(y)

    np.testing.assert_allclose(anima.jit(anima.grad(f))(w, 7), anima.grad(python)(w), rtol=1e-9, atol=1e-11)
