"""Strips of lanes around steps, and lanes with long rows one by one: which loops have them, and that they compute the
same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler.ir.loops import For, Program, statements
from anima.compiler.scheduling import interchange, strips
from tests.compiler.stages import SMALL_CACHES, agree, check_threads, lowered
from tests.compiler.test_interchange import LANES, OTHERS, check, data, in_strips, random_step, slope_of

RNG = np.random.default_rng(0)
LOWERED = "pendulum", "nested", "whole_numbers"  # as lanes, before there are steps to go around


def leaves(fun: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: anima.tree.leaves(fun(*args))


def one_by_one(program: Program) -> bool:
    """Whether lanes go through all steps, and not in strips."""
    return not in_strips(program) and any(isinstance(s, For) and s.index.startswith("lane")
                                          for s in statements(*program.body))


@pytest.fixture(params=["strips", "one by one"])
def forced(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Callable[[Program], bool]:
    """All lanes that can be in strips are, or all that can go one by one do; whether a program has such."""
    monkeypatch.setattr(interchange, "_counts", lambda loop: [])
    monkeypatch.setattr(strips, "GAIN", 1e9 if request.param == "strips" else 0)
    monkeypatch.setattr(strips, "ALIKE", 1e9)
    for name in ("FEW", "ROW", "LONG"):
        monkeypatch.setattr(strips, name, 1)
    return in_strips if request.param == "strips" else one_by_one


# --- What is in strips ------------------------------------------------------------------------


def joints(x: Any) -> Any:
    """A chain of five links, whose accelerations solve a system of equations in each step."""
    n, th = 5, jnp.concatenate([x, x[:2]])
    later = n - jnp.maximum(jnp.arange(n)[:, None], jnp.arange(n)[None])

    def step(c: Any, _: Any) -> Any:
        th, w = c
        d = th[:, None] - th[None]
        torque = -(later * jnp.sin(d)) @ (w * w) - jnp.arange(n, 0, -1) * jnp.sin(th)
        a = jnp.linalg.solve(later * jnp.cos(d) + jnp.eye(n), torque)
        return (th + 0.02 * w, w + 0.02 * a), th[0]
    return lax.scan(step, (th, 0 * th), None, length=20)


def tracked(x: Any) -> Any:
    """A filter of six states, whose covariance depends on what each lane measures."""
    f = np.eye(6, k=2, dtype=np.float32) * 0.1 + np.eye(6, dtype=np.float32)
    h = np.eye(3, 6, dtype=np.float32)

    def step(c: Any, z: Any) -> Any:
        m, p = c
        p = f @ p @ f.T + 0.01 * jnp.eye(6) * (1 + m[0] ** 2)
        s = h @ p @ h.T + jnp.eye(3)
        gain = jnp.linalg.solve(s, h @ p).T
        m = f @ m + gain @ (z * x - h @ (f @ m))
        return (m, p - gain @ h @ p), m
    return lax.scan(step, (jnp.zeros(6), jnp.eye(6)), jnp.linspace(0.0, 1.0, 12))


def shocks(x: Any) -> Any:
    """A hundred cells in a ring, and how often each was above a bound."""
    def step(_: int, s: Any) -> Any:
        u, n = s
        f = 0.5 * u * u
        u = u - 0.1 * (f - jnp.roll(f, 1)) + 0.05 * (jnp.roll(u, 1) - 2 * u + jnp.roll(u, -1))
        return u, n + (u > 0.5)
    start = jnp.concatenate([jnp.sin(x[0] + jnp.arange(97.0)), x])
    return lax.fori_loop(0, 15, step, (start, jnp.zeros(100, jnp.int32)))


PROGRAMS = [joints, tracked, shocks]


@pytest.mark.parametrize("count", [16, 17, 24, 100, 256])
@pytest.mark.parametrize("fun", PROGRAMS, ids=lambda f: f.__name__)
def test_large_lanes_are_in_strips(fun: Callable[[Any], Any], count: int) -> None:
    x = data(count)
    if count % 8 == 0:
        assert in_strips(lowered(leaves(anima.vmap(fun)), x).loops)
    check(fun, x, 1e-4)


@pytest.mark.parametrize("fun", PROGRAMS, ids=lambda f: f.__name__)
def test_in_any_order_and_double_precision(fun: Callable[[Any], Any]) -> None:
    with anima.enable_x64(True):
        x = data(16, np.float64)
        assert in_strips(agree(leaves(anima.vmap(fun)), x, rtol=1e-9).loops)


@pytest.mark.parametrize("fun", PROGRAMS, ids=lambda f: f.__name__)
def test_gradients(fun: Callable[[Any], Any]) -> None:
    check(slope_of(lambda x: [jnp.sin(leaf) for leaf in leaves(fun)(x) if leaf.dtype == x.dtype]), data(32), 1e-3)


@pytest.mark.parametrize("fun", PROGRAMS, ids=lambda f: f.__name__)
def test_threads_change_no_bit(fun: Callable[[Any], Any]) -> None:
    check_threads(leaves(anima.vmap(fun)), data(520))


def test_what_has_no_lanes_is_done_for_each_strip() -> None:
    """A matrix that is the same for all lanes, and changes with the steps."""
    x, a = data(64), RNG.uniform(-0.3, 0.3, (6, 6)).astype(np.float32)

    def steps(x: Any, a: Any) -> Any:
        def step(c: Any, _: Any) -> Any:
            a, m = c
            a = jnp.tanh(a @ a.T)
            for _ in range(3):
                m = jnp.tanh(a @ m @ a.T) - 0.3 * m.T
            return (a, m), m[0]
        return lax.scan(step, (a, jnp.outer(jnp.tile(x, 2), jnp.tile(x, 2))), None, length=9)[1]

    assert in_strips(agree(anima.vmap(steps, (0, None)), x, a).loops)
    got, single = anima.jit(anima.vmap(steps, (0, None)))(x, a), anima.jit(steps)
    for n in (0, 31, 63):
        np.testing.assert_allclose(got[n], single(x[n], a), 1e-4, 1e-5)


def test_nor_if_that_would_take_longer_or_it_is_used_afterwards() -> None:
    x, a = data(64), RNG.uniform(-0.3, 0.3, (64, 64)).astype(np.float32)

    def steps(x: Any, a: Any, used: bool, n: int) -> Any:
        def step(_: int, c: Any) -> Any:
            a, m = c
            m = jnp.tanh(a[:6, :6] @ m @ a[:6, :6].T) - 0.3 * m.T
            return jnp.sin(a[::-1]), m
        a, m = lax.fori_loop(0, 9, step, (a[:n, :n], jnp.outer(jnp.tile(x, 2), jnp.tile(x, 2))))
        return (m, a) if used else m

    for used, n in ((False, 64), (True, 6)):
        def fun(x: Any, a: Any, used: bool = used, n: int = n) -> Any:
            return steps(x, a, used, n)
        program = lowered(leaves(anima.vmap(fun, (0, None))), x, a)
        assert not in_strips(program.loops)
        got, single = anima.jit(anima.vmap(fun, (0, None)))(x, a), anima.jit(fun)
        anima.tree.map(lambda g, w: np.testing.assert_allclose(g[5], w, 1e-4, 1e-5), got, single(x[5], a))


@pytest.mark.parametrize("count", [16, 50])
@pytest.mark.usefixtures("unchecked")
def test_lanes_at_different_steps_share_no_memory(count: int) -> None:
    """States of all steps, of which there are several, one after the other; as memory is when it is not checked."""
    a, b = RNG.uniform(-0.4, 0.4, (4, 4)).astype(np.float32), RNG.uniform(-1, 1, (4, 2)).astype(np.float32)

    def controlled(x: Any) -> Any:
        def total(u: Any) -> Any:
            states = lax.scan(lambda s, u: 2 * (jnp.tanh(a @ s + b @ u),), jnp.append(x, 1), u)[1]
            return jnp.sum(states ** 2) + 0.1 * jnp.sum(u ** 2)
        return lax.fori_loop(0, 40, lambda i, u: u - 0.05 * anima.grad(total)(u), jnp.ones((15, 2)))

    x = data(count)
    assert in_strips(lowered(anima.vmap(controlled), x).loops)
    check(controlled, x, 1e-4)
    check_threads(anima.vmap(controlled), data(500))


def test_numbers_that_lanes_only_read_lie_beside_each_other() -> None:
    """Each lane has a network of its own."""
    w = RNG.normal(size=(2, 32, 10, 10)).astype(np.float32) / 4

    def run(x: Any, w: Any, v: Any) -> Any:
        return lax.fori_loop(0, 30, lambda i, x: x + 0.1 * (v @ jnp.tanh(w @ x)), jnp.tile(x, 4)[:10])

    x = data(32)
    program = agree(anima.vmap(run), x, *w).loops
    assert in_strips(program)
    assert len([b for b in program.buffers if b.name.startswith("in") and b.role in ("own", "temp")]) == 2


def test_what_is_too_large_for_the_caches_stays_in_steps() -> None:
    assert not in_strips(lowered(leaves(anima.vmap(tracked)), data(24), target=SMALL_CACHES).loops)


# --- One by one -------------------------------------------------------------------------------


def cells(n: int, sums: bool = False) -> Callable[[Any], Any]:
    """Cells in a ring, what became of three of them, and how many steps there were."""
    def run(x: Any) -> Any:
        def step(c: Any, y: Any) -> Any:
            u, k = c
            u = u + 0.1 * (jnp.roll(u, 1) + jnp.roll(u, -1) - 2 * u) + 0.01 * y
            if sums:
                u = u / (1 + jnp.mean(u * u))
            return (u, k + 1), u[:3]
        return lax.scan(step, (jnp.sin(x[0] + jnp.arange(float(n))), 0), jnp.outer(jnp.arange(12.0), jnp.ones(n)))
    return run


def surface(x: Any) -> Any:
    """A square of which only the inside changes."""
    def step(_: int, u: Any) -> Any:
        inside = u[1:-1, 1:-1]
        return u.at[1:-1, 1:-1].add(0.1 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * inside))
    return lax.fori_loop(0, 10, step, jnp.cos(x[0] * jnp.arange(30.0)[:, None] + x[1] * jnp.arange(33.0)))


@pytest.mark.parametrize("count", [8, 17, 40])
@pytest.mark.parametrize("fun", [cells(600), cells(600, sums=True), surface], ids=["ring", "sums", "surface"])
def test_lanes_with_long_rows_go_one_by_one(fun: Callable[[Any], Any], count: int) -> None:
    x = data(count)
    assert one_by_one(agree(leaves(anima.vmap(fun)), x).loops)
    check(fun, x, 1e-4)
    check_threads(leaves(anima.vmap(fun)), x)


def test_but_not_few_lanes_short_sums_or_what_caches_do_not_hold() -> None:
    def goes(fun: Callable[[Any], Any], count: int, **options: Any) -> bool:
        return one_by_one(lowered(leaves(anima.vmap(fun)), data(count), **options).loops)

    assert not goes(cells(600), 7)
    assert not goes(cells(300, sums=True), 24)
    assert not goes(cells(600), 24, target=SMALL_CACHES)


# --- All that can be --------------------------------------------------------------------------


@pytest.mark.parametrize("count", [8, 20, 104])
@pytest.mark.parametrize("fun", LANES, ids=lambda f: f.__name__)
def test_forced(forced: Callable[[Program], bool], fun: Callable[[Any], Any], count: int) -> None:
    x = data(count)
    assert forced(lowered(anima.vmap(fun), x).loops) or fun.__name__ in LOWERED
    check(fun, x, 1e-5)


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_of_lanes_stays_as_it_is(forced: Callable[[Program], bool], name: str) -> None:
    fun, x = OTHERS[name], data(24)
    with anima.disable_jit():
        want = fun(jnp.asarray(x))
    np.testing.assert_allclose(anima.jit(fun)(x), want, 1e-4, 1e-5)
    assert not forced(lowered(fun, x).loops)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "bool", "float16", "bfloat16", "int32", "float64", "complex64"])
def test_types(forced: object, dtype: str) -> None:
    x = RNG.integers(0, 2, (64, 5, 3)).astype(dtype) if dtype != "bfloat16" else jnp.ones((64, 5, 3), dtype)

    def step(i: int, s: Any) -> Any:
        x, y = s
        return (x ^ y[::-1], ~x) if dtype == "bool" else (y[::-1] - x, x + y)

    def steps(x: Any) -> Any:
        return lax.fori_loop(0, 4, step, (x, x[::-1]))

    with anima.enable_x64(dtype == "float64"):
        got = anima.jit(anima.vmap(steps))(x)
        with anima.disable_jit():
            want = anima.vmap(steps)(jnp.asarray(x))
        anima.tree.map(np.testing.assert_array_equal, got, want)


def test_a_donated_argument_is_overwritten(forced: None) -> None:
    x = jnp.asarray(data(64))
    want = anima.jit(anima.vmap(LANES[1]))(x)
    np.testing.assert_array_equal(anima.jit(anima.vmap(LANES[1]), donate_argnums=0)(x), want)
    assert x.is_deleted()


@pytest.mark.parametrize("seed", range(100, 140))
def test_random_steps(forced: object, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, count, axis = int(rng.choice([2, 3, 4, 6, 9])), int(rng.choice([8, 9, 16, 40, 96])), int(rng.integers(2))
    step = random_step(rng, n)
    kept = bool(rng.integers(2))

    def lane(v: Any, m: Any, given: Any) -> Any:
        def one(c: Any, x: Any) -> Any:
            return step(c[0] + x, *c[1:]), (c[0] if kept else None)
        return lax.scan(one, (v, m, jnp.float32(0.3)), given)

    v = rng.uniform(-1, 1, (n, count) if axis else (count, n)).astype(np.float32)
    m, given = (rng.uniform(-1, 1, (count, k, n)).astype(np.float32) for k in (n, 5))
    got = anima.jit(anima.vmap(lane, (axis, 0, 0)))(v, m, given)
    single = anima.jit(lane)
    for k in (0, count // 2, count - 1):
        anima.tree.map(lambda a, b: np.testing.assert_allclose(a[k], b, 1e-4, 1e-5), got,  # noqa: B023
                       single(v[:, k] if axis else v[k], m[k], given[k]))
