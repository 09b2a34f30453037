"""Lanes around steps: which loops have them there, and that they compute the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler.ir.loops import For, Kernel, Program, statements
from anima.compiler.scheduling.interchange import LEAST
from tests.compiler.stages import check_threads, lowered

RNG = np.random.default_rng(0)
A = RNG.uniform(-0.5, 0.5, (3, 3)).astype(np.float32)
B = RNG.uniform(-0.3, 0.3, (6, 6)).astype(np.float32)


def in_lanes(program: Program) -> bool:
    """Whether a loop of the program runs in each of the lanes of vectors."""
    kernels = [s for s in statements(*program.body) if isinstance(s, Kernel) and s.name == "lanes"]
    return any(isinstance(f, For) and f.kind == "vector" for k in kernels for f in k.body)


def in_strips(program: Program) -> bool:
    """Whether kernels of the program go through what lies lane beside lane, in places of a loop around the steps."""
    return any(isinstance(s, For) and s.index.endswith(".m") for s in statements(*program.body))


def pendulum(y: Any) -> Any:
    def slope(y: Any) -> Any:
        return jnp.stack([y[1], -jnp.sin(y[0]) - 0.1 * y[1]])

    def step(y: Any, _: Any) -> Any:
        a = slope(y)
        b = slope(y + 0.05 * a)
        return y + 0.1 * b, None
    return lax.scan(step, y[:2], None, length=40)[0]


def linear(x: Any) -> Any:
    """Products by a small matrix, one after the other."""
    def step(x: Any, _: Any) -> Any:
        k = x * (1 - A @ x)
        return x + 0.1 * (k + x * (1 - A @ (x + 0.1 * k))), None
    return lax.scan(step, x, None, length=30)[0]


def larger(x: Any) -> Any:
    x = jnp.concatenate([x, x])

    def step(x: Any, _: Any) -> Any:
        k = x - x * x
        for _ in range(4):
            k = jnp.tanh(B @ (x + 0.1 * k))
        return 0.5 * (x + k), None
    return lax.scan(step, x, None, length=20)[0]


def covariance(x: Any) -> Any:
    def step(p: Any, _: Any) -> Any:
        p = A @ p @ A.T + 0.1 * jnp.eye(3)
        return p / (1 + p[0, 0]), None
    return lax.scan(step, jnp.outer(x, x), None, length=25)[0]


def with_time(x: Any) -> Any:
    """The time is the same for all lanes; it is used after the loop, too."""
    def step(c: Any, _: Any) -> Any:
        t, x = c
        return (t + 0.125, 0.9 * x + jnp.cos(t)), None
    t, x = lax.scan(step, (0.0, x), None, length=30)[0]
    return x + t, t


def counted(x: Any) -> Any:
    """A loop whose end is known when it runs."""
    return lax.fori_loop(0, jnp.int32(x.shape[0] * 4), lambda i, s: (s[0] * 0.75 + i, s[1] + s[0]), (x, x))


def given(x: Any) -> Any:
    """Values given, and kept, for each step."""
    def step(c: Any, u: Any) -> Any:
        a, b = c
        new = jnp.sin(a * b + u) + jnp.cos(a - u) * 0.3 - a * a * 0.1 + b * 0.2
        new = new + 0.5 * jnp.tanh(new * a) - 0.25 * jnp.tanh(new * b)
        return (new, a), None
    return lax.scan(step, (x[0], x[1]), jnp.linspace(0.0, 1.0, 20))[0]


def nested(x: Any) -> Any:
    def inner(k: int, x: Any) -> Any:
        return x + 0.01 * jnp.sin(x[::-1]) * k
    return lax.fori_loop(0, 9, lambda i, x: lax.fori_loop(0, 3, inner, x) * 0.99, x)


def whole_numbers(x: Any) -> Any:
    """A generator of random numbers, and how often it gave odd ones."""
    seeds = (x * 1000).astype(jnp.uint32)

    def step(i: int, s: Any) -> Any:
        n, odd = s
        n = n * np.uint32(1664525) + np.uint32(1013904223)
        return n, odd + (n & 1 == 1)
    return lax.fori_loop(0, 50, step, (seeds, jnp.zeros(x.shape, jnp.int32)))


def complex_numbers(x: Any) -> Any:
    c = lax.complex(0.3 * x, 0.2 * x)
    return lax.fori_loop(0, 12, lambda i, z: z * z + c, c * 0)


def looked_up(x: Any) -> Any:
    """Numbers of a table that all lanes have, at places that each lane computes."""
    table = jnp.sin(jnp.arange(50.0))

    def step(x: Any, _: Any) -> Any:
        place = (x[::-1] * 40).astype(jnp.int32)
        return 0.5 * (x + table[place] ** 2) + 0.01 * table[place + 1] * x, None
    return lax.scan(step, x, None, length=12)[0]


def slope_of(fun: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return anima.grad(lambda x: sum(jnp.sum(leaf) for leaf in anima.tree.leaves(fun(x))))


LANES = [pendulum, linear, larger, covariance, with_time, counted, given, nested, whole_numbers, complex_numbers,
         looked_up]


SEVERAL = [pendulum, linear, larger, covariance, nested, looked_up]  # elements of a lane, that need each other


def data(count: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.uniform(0.2, 1.0, (count, 3)).astype(dtype)


def check(fun: Callable[[Any], Any], x: np.ndarray, rtol: float) -> None:
    got = anima.jit(anima.vmap(fun))(x)
    single = anima.jit(fun)
    for n in {0, len(x) // 2, len(x) - 1}:
        anima.tree.map(lambda a, b: np.testing.assert_allclose(a[n], b, rtol, rtol), got, single(x[n]))  # noqa: B023


@pytest.mark.parametrize("count", [LEAST, 17, 100, 1030])
@pytest.mark.parametrize("fun", LANES, ids=lambda f: f.__name__)
def test_lanes_go_around_steps(fun: Callable[[Any], Any], count: int) -> None:
    x = data(count)
    if fun in SEVERAL or count > 64:
        program = lowered(anima.vmap(fun), x).loops
        assert in_lanes(program) or (fun is larger and in_strips(program))
    check(fun, x, 1e-5)


def ensemble(x: Any) -> Any:
    """Members are columns; what is computed for each element goes through all of them at once."""
    return lax.fori_loop(0, 20, lambda _, x: x + 0.1 * jnp.tanh(A @ x), x)


def observed(x: Any) -> Any:
    """Columns of several lengths, and a number for each."""
    def step(c: Any, _: Any) -> Any:
        x, y, n = c
        x = A @ x + 0.1 * y[2:]
        y = 0.5 * jnp.tanh(B[:5, :5] @ y)
        return (x, y, n + (x[0] > y[0])), None
    return lax.scan(step, (x, jnp.concatenate([x, x[:2]]), jnp.zeros(x.shape[1], jnp.int32)), None, length=10)[0]


def complex_columns(x: Any) -> Any:
    c = A + 0.3j * B[:3, :3]
    return lax.fori_loop(0, 10, lambda _, z: 0.9 * (c @ z), lax.complex(x, 0.5 * x))


@pytest.mark.parametrize("count", [LEAST, 17, 100, 1030])
@pytest.mark.parametrize("fun", [ensemble, observed, complex_columns], ids=lambda f: f.__name__)
def test_columns_are_lanes(fun: Callable[[Any], Any], count: int) -> None:
    x = np.ascontiguousarray(data(count).T)
    if count > 64:
        assert in_lanes(lowered(fun, x).loops)
    got, single = anima.jit(fun)(x), anima.jit(fun)
    for n in {0, count // 2, count - 1}:
        anima.tree.map(lambda a, b: np.testing.assert_allclose(a[..., n], b[..., 0], 1e-5, 1e-6), got,  # noqa: B023
                       single(x[:, n:n + 1]))
    gradient = slope_of(lambda x: anima.tree.map(abs, fun(x)[0]))
    np.testing.assert_allclose(anima.jit(gradient)(x)[:, -1:], anima.jit(gradient)(x[:, -1:]), 2e-4, 1e-5)


@pytest.mark.parametrize("count", [100, 1030])
def test_short_tables_that_all_lanes_read_step_by_step(count: int) -> None:
    """What they have in common, a counter too, is read once for all lanes."""
    x, terms = data(count)[:, 0], RNG.normal(size=9).astype(np.float32)

    def horner(x: Any, terms: Any) -> Any:
        return lax.fori_loop(0, 9, lambda i, y: y * x + terms[i], jnp.zeros_like(x))

    assert in_lanes(lowered(horner, x, terms).loops)
    compiled = anima.jit(horner).lower(x, terms)
    text = str(compiled.llvm)
    assert "gather" not in text and 0 < text.count(" load float") < 8  # and not one for each lane
    np.testing.assert_allclose(compiled.compile()(x, terms), np.polyval(terms, x), 1e-4, 1e-5)


@pytest.mark.parametrize("fun", LANES, ids=lambda f: f.__name__)
def test_in_double_precision(fun: Callable[[Any], Any]) -> None:
    with anima.enable_x64(True):
        check(fun, data(33, np.float64), 1e-12)


@pytest.mark.parametrize("fun", [pendulum, linear, larger, covariance, with_time, given, nested],
                         ids=lambda f: f.__name__)
def test_gradients_of_lanes(fun: Callable[[Any], Any]) -> None:
    check(slope_of(fun), data(40), 2e-4)


@pytest.mark.parametrize("fun", [linear, with_time, whole_numbers], ids=lambda f: f.__name__)
def test_threads_change_no_bit(fun: Callable[[Any], Any]) -> None:
    check_threads(anima.vmap(fun), data(5000))


def test_a_grid_is_of_lanes() -> None:
    """Without `vmap`, too."""
    c = RNG.uniform(-1.5, 0.5, (30, 41)).astype(np.float32)

    def escape(c: Any) -> Any:
        def step(_: int, s: Any) -> Any:
            a, n = s
            new = a * a + c
            return jnp.where(abs(new) < 2, new, a), n + (abs(new) < 2)
        return lax.fori_loop(0, 30, step, (c * 0, jnp.zeros(c.shape, jnp.int32)))

    assert in_lanes(lowered(escape, c).loops)
    a, n = c * 0, np.zeros(c.shape, np.int32)
    for _ in range(30):
        new = a * a + c
        a, n = np.where(abs(new) < 2, new, a), n + (abs(new) < 2)
    got = anima.jit(escape)(c)
    np.testing.assert_allclose(got[0], a, 1e-4, 1e-4)
    np.testing.assert_array_equal(got[1], n)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "bool", "float16", "bfloat16", "int32", "float64", "complex64"])
@pytest.mark.parametrize("count", [65, 130, 1000])
def test_types(dtype: str, count: int) -> None:
    """Of one and two bytes, too, of which a vector has many."""
    x = RNG.integers(0, 2, (count, 3)).astype(dtype) if dtype != "bfloat16" else jnp.ones((count, 3), dtype)

    def step(i: int, s: Any) -> Any:
        x, y = s
        return (x ^ y, ~x) if dtype == "bool" else (y - x, x + y)

    def steps(x: Any) -> Any:
        return lax.fori_loop(0, 7, step, (x, x[::-1]))

    with anima.enable_x64(dtype == "float64"):
        got = anima.jit(anima.vmap(steps))(x)
        with anima.disable_jit():
            want = anima.vmap(steps)(jnp.asarray(x))
        anima.tree.map(np.testing.assert_array_equal, got, want)


def test_few_vectors_are_in_registers_as_they_are() -> None:
    """All of them at once: in lanes, one would wait for the other."""
    x = data(20)
    program = lowered(lambda x: lax.fori_loop(0, 50, lambda i, x: jnp.sin(x) + 0.1 * i, x), x)
    assert not in_lanes(program.loops)


def test_a_donated_argument_is_overwritten() -> None:
    x = jnp.asarray(data(64))
    want = anima.jit(anima.vmap(linear))(x)
    np.testing.assert_array_equal(anima.jit(anima.vmap(linear), donate_argnums=0)(x), want)
    assert x.is_deleted()


@pytest.mark.parametrize("count", [1, 3, LEAST - 1])
def test_few_lanes_stay_in_steps(count: int) -> None:
    x = data(count)
    assert not in_lanes(lowered(anima.vmap(with_time), x[:, 0]).loops)
    check(with_time, x, 1e-5)


OTHERS: dict[str, Callable[[Any], Any]] = {
    "of a neighbour": lambda x: lax.fori_loop(0, 20, lambda i, x: 0.5 * (x + jnp.roll(x, 1, 0)), x),
    "of all": lambda x: lax.fori_loop(0, 20, lambda i, x: x - 0.1 * x.mean(), x),
    "of the largest": lambda x: lax.fori_loop(0, 20, lambda i, x: x / x.max(0), x),
    "turned": lambda x: lax.fori_loop(0, 21, lambda i, x: jnp.sin(x[::-1]), x),
    "until all are small": lambda x: lax.while_loop(lambda x: (x > 0.1).any(), lambda x: x * 0.9, x),
    "until one is small": lambda x: lax.while_loop(lambda x: x[3, 1] > 0.1, lambda x: x * 0.9, x),
    "looked up": lambda x: lax.fori_loop(0, 20, lambda i, x: 0.9 * x[jnp.argsort(x[:, 0])], x),
    "of one place": lambda x: lax.fori_loop(0, 20, lambda i, x: x.at[i].add(0.1 * x[i - 1]), x),
    "of two layouts": lambda x: lax.fori_loop(0, 20, lambda i, x: 0.5 * x + 0.5 * x.reshape(-1, x.shape[0]).T, x),
    "of pairs": lambda x: lax.fori_loop(0, 20, lambda i, x: x.at[::2].add(0.1 * x[1::2]), x),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_of_lanes_stays_as_it_is(name: str) -> None:
    fun, x = OTHERS[name], data(24)
    with anima.disable_jit():
        want = fun(jnp.asarray(x))
    np.testing.assert_allclose(anima.jit(fun)(x), want, 1e-4, 1e-5)
    assert not in_lanes(lowered(fun, x).loops)


# --- Random steps -----------------------------------------------------------------------------


def random_step(rng: np.random.Generator, n: int) -> Callable[[Any, Any, Any], tuple[Any, Any, Any]]:
    """A step of a lane: its vector of n numbers, its n x n matrix and a number that all lanes have."""
    matrix = rng.uniform(-0.4, 0.4, (n, n)).astype(np.float32)
    order = rng.permutation(n)
    cut = int(rng.integers(1, n))
    vectors: list[Callable[[Any, Any, Any], Any]] = [
        lambda v, m, t: matrix @ v, lambda v, m, t: v @ matrix, lambda v, m, t: m @ v, lambda v, m, t: jnp.sin(v + t),
        lambda v, m, t: v[::-1] * 0.5, lambda v, m, t: jnp.concatenate([v[cut:], v[:cut]]), lambda v, m, t: m.sum(0),
        lambda v, m, t: m.max(1) - v, lambda v, m, t: jnp.diagonal(m), lambda v, m, t: v[order] * v,
        lambda v, m, t: jnp.where(v > 0, v, m[0]), lambda v, m, t: v.at[cut].set(t), lambda v, m, t: v - v.mean(),
        lambda v, m, t: lax.fori_loop(0, 3, lambda i, u: 0.5 * u + 0.1 * i * v, v), lambda v, m, t: jnp.cumsum(v) * 0.3,
        lambda v, m, t: jnp.pad(v, 1)[2:] - v, lambda v, m, t: v / (1 + jnp.abs(v).max())]
    matrices: list[Callable[[Any, Any, Any], Any]] = [
        lambda v, m, t: matrix @ m @ matrix.T, lambda v, m, t: jnp.outer(v, v), lambda v, m, t: m.T * 0.9,
        lambda v, m, t: m * v, lambda v, m, t: m + jnp.eye(n) * t, lambda v, m, t: m.at[cut].set(v),
        lambda v, m, t: jnp.tril(m) - 0.1 * m, lambda v, m, t: m[order], lambda v, m, t: jnp.stack([v] * n, 1)]
    some = [rng.permutation(len(vectors))[:3], rng.permutation(len(matrices))[:2]]

    def step(v: Any, m: Any, t: Any) -> tuple[Any, Any, Any]:
        for k in some[0]:
            v = jnp.tanh(vectors[k](v, m, t))
        for k in some[1]:
            m = jnp.tanh(matrices[k](v, m, t))
        return v, m, 0.9 * t + 0.05
    return step


@pytest.mark.parametrize("seed", range(30))
def test_random_steps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, count, axis = int(rng.choice([2, 3, 4, 6])), int(rng.choice([8, 9, 16, 33, 100])), int(rng.integers(2))
    step = random_step(rng, n)
    kept = bool(rng.integers(2))

    def lane(v: Any, m: Any) -> Any:
        def one(c: Any, _: Any) -> Any:
            return step(*c), (c[0][0] if kept else None)
        return lax.scan(one, (v, m, jnp.float32(0.3)), None, length=6)

    v = rng.uniform(-1, 1, (n, count) if axis else (count, n)).astype(np.float32)
    m = rng.uniform(-1, 1, (count, n, n)).astype(np.float32)
    got = anima.jit(anima.vmap(lane, (axis, 0)))(v, m)
    single = anima.jit(lane)
    for k in (0, count // 2, count - 1):
        anima.tree.map(lambda a, b: np.testing.assert_allclose(a[k], b, 1e-4, 1e-5), got,  # noqa: B023
                       single(v[:, k] if axis else v[k], m[k]))
