"""What grids compute otherwise than one core: sorting, and what runs along an axis; loops, and teams of all sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler.grid.compile import LibraryProduct, compile_grid
from tests.compiler.grid.emulated import TARGET, run

rng = np.random.default_rng(0)


def on_grid(fun: Callable[..., Any], *args: Any) -> list[np.ndarray]:
    program = compile_grid(anima.make_jaxpr(fun)(*args), "f", (), TARGET)
    shapes = [x.shape for x in anima.tree.leaves(anima.eval_shape(fun, *args))]
    return [x.reshape(s) for x, s in zip(run(program, args), shapes, strict=True)]


def agree(fun: Callable[..., Any], *args: Any, tolerance: float = 0.0) -> None:
    want = anima.tree.leaves(anima.jit(fun)(*args))
    for got, expected in zip(on_grid(fun, *args), want, strict=True):
        expected = np.asarray(expected)
        assert got.dtype == expected.dtype
        if tolerance and expected.dtype.kind == "f":
            np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("n", [32, 33, 45, 46, 100, 128, 129])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("function", [lax.cumsum, lax.cumprod, lax.cummax, lax.cummin])
def test_cumulative(function: Callable[..., Any], reverse: bool, n: int) -> None:
    for x, axis in ((rng.integers(-3, 4, n).astype(np.int32), 0), (rng.integers(-3, 4, (2, n)).astype(np.int32), 1),
                    (rng.integers(-3, 4, (n, 3)).astype(np.int32), 0)):
        agree(lambda x, axis=axis: function(x, axis=axis, reverse=reverse), x)
    agree(lambda x: function(x, reverse=reverse), rng.uniform(0.9, 1.1, n).astype(np.float32), tolerance=1e-6)


def test_sums_of_floats_are_made_in_64_bits() -> None:
    """Whatever the order, they are rounded once."""
    x = rng.uniform(-1, 1, 1000).astype(np.float32)
    for reverse in (False, True):
        agree(lambda x, reverse=reverse: lax.cumsum(x, reverse=reverse), x)
    agree(lambda x: lax.cumsum(x + 1j * x[::-1]).imag, x)


def test_cumulative_halves_are_rounded_once() -> None:
    for dtype in ("float16", "bfloat16"):
        agree(lambda x, dtype=dtype: lax.cumprod(x.astype(dtype)), rng.uniform(0.9, 1.1, 100).astype(np.float32))


@pytest.mark.parametrize("n", [65, 127, 128, 300])
def test_sort(n: int) -> None:
    x = rng.integers(-20, 20, n).astype(np.float32)
    x[[3, 9]] = np.nan
    x[[4, 20]] = -0.0, 0.0
    agree(jnp.sort, x)
    agree(jnp.argsort, x)
    agree(lambda x: jnp.sort(x, axis=0), rng.integers(0, 50, (n, 2)).astype(np.int32))
    agree(lambda a, b: lax.sort((a, b, a + b), num_keys=2), rng.integers(0, 4, n).astype(np.int32),
          rng.integers(0, 9, n).astype(np.int32))
    agree(jnp.sort, rng.integers(0, 2, n).astype(bool))
    agree(jnp.sort, (rng.integers(0, 4, n) + 1j * rng.integers(0, 4, n)).astype(np.complex64))


@pytest.mark.parametrize("n", [2047, 2049, 5001])
def test_sort_of_several_tiles(n: int) -> None:
    x = rng.normal(size=n).astype(np.float32)
    x[:: n // 50] = x[0]
    agree(jnp.argsort, x)
    agree(lambda x: lax.sort(x, dimension=1), (x[: 2 * (n // 2)] * 99).astype(np.int32).reshape(2, -1))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32", "int64", "uint64", "float64", "float16",
                                   "bfloat16"])
def test_sort_of_all_types(dtype: str) -> None:
    with anima.enable_x64(True):
        x = rng.integers(-2**62, 2**62, 100).astype(np.int64)
        x[:20] = rng.integers(-9, 9, 20)
        there = jnp.asarray(x).astype(dtype) if "float" not in dtype else jnp.asarray(x / 2.0**50).astype(dtype)
        agree(jnp.argsort, there)
        agree(lambda x: jnp.sort(x, descending=True), there)


@pytest.mark.parametrize("k", [0, 1, 8, 65])
def test_the_largest(k: int) -> None:
    whole = rng.integers(-9, 9, (2, 100)).astype(np.int32)
    x = whole.astype(np.float32)
    x[0, 5] = np.nan
    agree(lambda x: lax.top_k(x, k), x)
    agree(lambda x: lax.top_k(x, k), whole)


@pytest.mark.parametrize("shape", [(1,), (3,), (4,), (5,), (7, 9), (8, 64), (1, 1000), (1000, 1), (33, 70), (2, 3, 5)])
def test_reductions(shape: tuple[int, ...]) -> None:
    x = rng.normal(size=shape).astype(np.float32)
    for axis in (None, *range(len(shape))):
        agree(lambda x, axis=axis: x.sum(axis), x, tolerance=1e-5)
        agree(lambda x, axis=axis: x.max(axis), x)
        agree(lambda x, axis=axis: jnp.argmin(x, axis), x)
    agree(lambda x: anima.nn.softmax(x), x, tolerance=1e-6)
    agree(lambda x: (x - x.mean(-1, keepdims=True)) / (x.var(-1, keepdims=True) + 1), x, tolerance=1e-5)


def lorenz(state: Any, t: Any) -> Any:
    x, y, z = state
    d = jnp.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])
    return state + 0.01 * d * t, d.sum()


@pytest.mark.parametrize("gradient", [False, True])
def test_loops(gradient: bool) -> None:
    def scan(x: Any, ts: Any) -> Any:
        last, sums = lax.scan(lorenz, x, ts)
        return last.sum() + sums.mean()

    def large(x: Any, w: Any) -> Any:
        return lax.fori_loop(0, 5, lambda i, c: jnp.tanh(c @ w) + 0.1 * jnp.roll(c, 1, 0), x).sum()

    def matrix(x: Any, w: Any) -> Any:
        return lax.scan(lambda c, t: (jnp.sin(c @ w) + t, c.max()), x, jnp.arange(4.0))[1].sum()

    long, wide, square, other = (rng.normal(size=s).astype(np.float32) for s in ((40, 12), (12, 12), (4, 4), (4, 4)))
    for fun, args in ((scan, (np.ones(3, np.float32), np.linspace(0.5, 1, 20).astype(np.float32))),
                      (large, (long, wide)), (matrix, (square, other))):
        agree(anima.grad(fun) if gradient else fun, *args, tolerance=2e-4)


def test_while_and_lanes() -> None:
    def steps(x: Any) -> Any:
        return lax.while_loop(lambda c: c[0] < 100.0, lambda c: (c[0] * 1.5 + 1, c[1] + 1), (x, 0))

    agree(steps, np.float32(1.0))
    agree(anima.vmap(steps), rng.uniform(0, 90, 37).astype(np.float32), tolerance=1e-6)
    agree(lambda x: lax.while_loop(lambda c: c.sum() < 1e3, lambda c: c * 1.1 + c[::-1], x),
          rng.uniform(0, 1, 50).astype(np.float32), tolerance=1e-5)


def test_branches() -> None:
    def f(x: Any, k: Any) -> Any:
        return lax.switch(k, [lambda x: x.sum() + x, lambda x: x * 2, lambda x: jnp.sort(x)], x)

    x = rng.normal(size=70).astype(np.float32)
    for k in range(3):
        agree(f, x, np.int32(k), tolerance=1e-5)


def test_random_numbers_are_the_same() -> None:
    agree(lambda k: anima.random.normal(anima.random.wrap_key_data(k), (33,)), np.array([3, 4], np.uint32))
    agree(lambda k: anima.random.permutation(anima.random.wrap_key_data(k), 100), np.array([3, 4], np.uint32))


def test_scatter() -> None:
    x, i = np.zeros(50, np.float32), rng.integers(0, 50, 80).astype(np.int32)
    agree(lambda x, i: x.at[i].add(1.5), x, i)
    agree(lambda x, i: x.at[i].set(jnp.arange(80.0)), x, i)


@pytest.mark.parametrize("shape", [(32, 32), (33, 70), (64, 40), (3, 40, 33)])
def test_turned(shape: tuple[int, ...]) -> None:
    x = rng.normal(size=shape).astype(np.float32)
    y = rng.normal(size=(*shape[:-2], shape[-1], shape[-2])).astype(np.float32)
    agree(lambda x: jnp.swapaxes(x, -1, -2), x)
    agree(lambda x, y: jnp.swapaxes(x, -1, -2) * 2 + y, x, y)
    agree(lambda x: jnp.swapaxes(x > 0, -1, -2), x)
    agree(lambda x: x.T, x)


def test_large_products_are_steps_of_their_own() -> None:
    def f(x: Any, w: Any) -> Any:
        y = jnp.tanh(x @ w)
        return (y.T @ x) * 0.1 + w.sum(), jnp.einsum("ij,kj->ik", y, w)

    x, w = (rng.normal(size=(80, 80)).astype(np.float32) for _ in range(2))
    program = compile_grid(anima.make_jaxpr(f)(x, w), "f", (), TARGET)
    assert [isinstance(step, LibraryProduct) for step in program.steps] == [True, False, True, False, True]
    agree(f, x, w, tolerance=1e-4)
