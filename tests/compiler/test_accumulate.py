"""Sums with what is zero but in windows or at some places: added in place, with the values of sums of whole arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler.rewriting.accumulate import accumulate
from anima.core.jaxpr import ClosedJaxpr, subjaxprs

T = np.random.default_rng(0).normal(size=(61, 12)).astype(np.float32)
K = np.array([0, 60, 3, 3, -1, -61, 17, 99, -99, 5], np.int32)  # twice, from the end, and out of bounds


def _loop(t: Any, k: Any) -> Any:
    return lax.fori_loop(0, 9, lambda i, s: jnp.tanh(s + t[k[i]] @ t[k[i + 1]] + t[7, 2]), 0.0)


def _windows(t: Any, k: Any) -> Any:
    def step(s: Any, i: Any) -> Any:
        window = lax.dynamic_slice(t, (i, i - 2), (5, 3))
        return jnp.sin(s + window.sum()), (window * window).sum()

    return lax.scan(step, 0.0, k)[1].sum()


READS: dict[str, Callable[[Any, Any], Any]] = {
    "unrolled": lambda t, k: sum((t[k[i]] @ t[k[i + 1]]) * 0.1 for i in range(9)),
    "loop": _loop,
    "windows": _windows,
    "gathers": lambda t, k: sum((t[k + i] ** 2).sum() * (i + 1.0) for i in range(4)),
    "gathers that fill": lambda t, k: sum((t.at[k + i].get(mode="fill", fill_value=0) ** 2).sum() for i in range(4)),
    "gathers that clip": lambda t, k: sum((t.at[k * 2, k + i].get(mode="clip") ** 2).sum() for i in range(4)),
    "with all of it": lambda t, k: jnp.sin(t).sum() + (t[k[0]] * t[k[2]]).sum() + t[k[3]].sum(),
    "updated": lambda t, k: lax.fori_loop(0, 8, lambda i, t: t.at[k[i]].set(jnp.tanh(t[k[i]] + t[k[i + 1]] * t[3])),
                                          t).sum(),
    "columns": lambda t, k: lax.fori_loop(0, 8, lambda i, t: t.at[:, 3].set(jnp.tanh(t[:, 2] + t[:, 3] * i)), t).sum(),
    "fixed rows": lambda t, k: lax.fori_loop(0, 8, lambda i, s: jnp.tanh(s + t[3] * t[7, 2] + t[10:14].sum(0)),
                                             jnp.zeros(12, t.dtype)).sum(),
    "mapped": lambda t, k: anima.vmap(lambda i: t[i] @ t[i + 1] + t[3] @ t[i])(k).sum(),
    "of branches": lambda t, k: lax.fori_loop(
        0, 8, lambda i, s: s + lax.cond(k[i] > 3, lambda: t[k[i]] @ t[3], lambda: t[k[i]] @ t[k[i + 1]]), 0.0)}


@pytest.mark.parametrize("name", READS)
def test_gradients_of_reads(name: str, x64: None) -> None:
    f, t = READS[name], T.astype(np.float64)
    with anima.disable_jit():
        wanted = anima.grad(f)(jnp.asarray(t), jnp.asarray(K))
    np.testing.assert_allclose(anima.jit(anima.grad(f))(t, K), wanted, rtol=1e-12, atol=1e-12)
    lanes = np.stack([t, t[::-1], 2 * t])
    with anima.disable_jit():
        each = [anima.grad(f)(jnp.asarray(x), jnp.asarray(K)) for x in lanes]
    np.testing.assert_allclose(anima.jit(anima.vmap(anima.grad(f), (0, None)))(lanes, K), each, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", ["float16", "int32", "uint8", "complex64", "bfloat16"])
def test_sums_that_users_write(dtype: str) -> None:
    def f(x: Any, k: Any) -> Any:
        zeros = jnp.zeros_like(x)
        first = x * 2 + zeros.at[k[0]].set(x[1]) + zeros.at[k[1:4]].add(x[:3])
        both = zeros.at[k[2]].set(x[5]) + zeros.at[k[3]].set(x[6])
        return first, both, both + x, lax.dynamic_update_slice(zeros, x[:2], (k[0], 1)) + first

    x = (np.arange(61 * 12).reshape(61, 12) % 13).astype(jnp.dtype(dtype))
    for got, wanted in zip(anima.jit(f)(x, K), f(jnp.asarray(x), jnp.asarray(K)), strict=True):
        np.testing.assert_array_equal(got, wanted)


def _count(closed: ClosedJaxpr, name: str, shape: tuple[int, ...]) -> int:
    return sum((e.primitive.name == name and e.outvars[0].aval.shape == shape)
               + sum(_count(inner, name, shape) for inner in subjaxprs(e.params)) for e in closed.jaxpr.eqns)


def sums(f: Callable[..., Any], *args: Any) -> int:
    """How many sums of whole arrays are left."""
    return _count(accumulate(anima.make_jaxpr(f)(*args)), "add", T.shape)


def test_what_is_needed_elsewhere_is_not_overwritten() -> None:
    def placed(x: Any, k: Any) -> Any:
        return lax.dynamic_update_slice(jnp.zeros_like(x), x[:1], (k[0], 0))

    assert sums(lambda x, k: x * 2 + placed(x, k), T, K) == 0
    assert sums(lambda x, k: placed(x, k) + x * 2, T, K) == 0
    assert sums(lambda x, k: placed(x, k) + placed(x * 2, k), T, K) == 0

    def twice(x: Any, k: Any) -> Any:
        y, s = x * 2, placed(x, k)
        return y + s, y

    def again(x: Any, k: Any) -> Any:
        s = placed(x, k)
        return x * 2 + s, s

    def doubled(x: Any, k: Any) -> Any:
        s = placed(x, k)
        return s + s

    for f in (twice, again, doubled, lambda x, k: x + placed(x, k) + x):
        assert sums(f, T, K) >= 1
        for got, wanted in zip(anima.tree.leaves(anima.jit(f)(T, K)),
                               anima.tree.leaves(f(jnp.asarray(T), jnp.asarray(K))), strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_large_windows_and_other_numbers_stay_sums() -> None:
    def placed(x: Any, k: Any, rows: int, fill: float) -> Any:
        return x * 2 + lax.dynamic_update_slice(jnp.full_like(x, fill), x[:rows], (k[0], 0))

    assert sums(lambda x, k: placed(x, k, 40, 0.0), T, K) == 1
    assert sums(lambda x, k: placed(x, k, 4, 1.0), T, K) == 1


def test_beside_equations_without_results(capsys: pytest.CaptureFixture[str]) -> None:
    @anima.jit
    def f(x: Any, k: Any) -> Any:
        anima.debug.print("row {}", k[0])
        return x * 2 + lax.dynamic_update_slice(jnp.zeros_like(x), x[:1], (k[0], 0))

    wanted = 2 * T
    wanted[0] += T[0]
    np.testing.assert_array_equal(f(T, K), wanted)
    anima.effects_barrier()
    assert capsys.readouterr().out == "row 0\n"


def _rolls(x: Any) -> Any:
    return jnp.sin(sum(jnp.roll(x, s, axis) * (s + axis) for s in (1, -2) for axis in range(2)) + jnp.roll(x, 7)).sum()


def test_gradients_of_rolls_are_rolls() -> None:
    left = accumulate(anima.make_jaxpr(anima.grad(_rolls))(T))
    assert "pad[" not in str(left)
    with anima.disable_jit():
        wanted = anima.grad(_rolls)(jnp.asarray(T))
    np.testing.assert_allclose(anima.jit(anima.grad(_rolls))(T), wanted, rtol=1e-5, atol=1e-5)


ENDS: dict[str, tuple[bool, Callable[[Any, Callable[..., Any]], Any]]] = {  # of (61, 12): whether they make up a whole
    "two": (True, lambda x, on: on(x[:20], (0, 41)) + on(x[20:], (20, 0))),
    "two, the end first": (True, lambda x, on: on(x[20:], (20, 0)) + on(x[:20], (0, 41))),
    "two and another": (True, lambda x, on: x * 2 + on(x[:20], (0, 41)) + on(x[20:], (20, 0))),
    "two and another, each on the right": (True, lambda x, on: on(x[:20], (0, 41)) + (on(x[20:], (20, 0)) + x * 2)),
    "two pairs": (True, lambda x, on: ((x + on(x[:9], (0, 52)) + on(x[9:], (9, 0))) + on(x[:1], (0, 60)))
                  + on(x[1:], (1, 0))),
    "nothing of one": (False, lambda x, on: on(x[:0], (0, 61)) + on(x, (0, 0))),
    "overlapping": (False, lambda x, on: on(x[:21], (0, 40)) + on(x[20:], (20, 0))),
    "apart": (False, lambda x, on: on(x[:19], (0, 42)) + on(x[20:], (20, 0))),
    "in the middle": (False, lambda x, on: on(x[:20], (1, 40)) + on(x[21:], (21, 0))),
    "along other axes": (False, lambda x, on: on(x[:20], (0, 41)) + on(x[:, 5:], (0, 0), (5, 0))),
    "a corner": (False, lambda x, on: on(x[:20, :5], (0, 41), (0, 7)) + on(x[20:, 5:], (20, 0), (5, 0))),
    "on ones": (False, lambda x, on: on(x[:20], (0, 41), fill=1) + on(x[20:], (20, 0), fill=1)),
    "with gaps": (False, lambda x, on: on(x[:10], (0, 42), gap=1) + on(x[20:], (20, 0))),
    "not next to each other": (False, lambda x, on: on(x[:20], (0, 41)) + x + x[::-1] + on(x[20:], (20, 0)))}


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("dtype", ["float32", "int8", "complex64"])
def test_ends_on_zeros(name: str, dtype: str) -> None:
    whole, f = ENDS[name]

    def run(x: Any) -> Any:
        def on(part: Any, rows: Any, columns: Any = (0, 0), fill: int = 0, gap: int = 0) -> Any:
            return lax.pad(part, part.dtype.type(fill), ((*rows, gap), (*columns, 0)))

        return f(x, on)

    x = (np.arange(61 * 12).reshape(61, 12) % 13 - 5).astype(dtype)
    assert ("pad[" not in str(accumulate(anima.make_jaxpr(run)(x), inner=True))) == whole
    np.testing.assert_array_equal(anima.jit(run)(x), run(jnp.asarray(x)))


def test_ends_that_are_needed_elsewhere() -> None:
    def f(x: Any) -> Any:
        first, second = lax.pad(x[:20], 0.0, ((0, 41, 0), (0, 0, 0))), lax.pad(x[20:], 0.0, ((20, 0, 0), (0, 0, 0)))
        total = x + first
        return total + second, total, first * 2

    for got, wanted in zip(anima.jit(f)(T), f(jnp.asarray(T)), strict=True):
        np.testing.assert_array_equal(got, wanted)
