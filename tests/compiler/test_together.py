"""Costly functions of small values, done at once: where they may be, where they may not, and that no bit changes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler.rewriting.together import LEAST, MOST, SMALL, together

Values = Sequence[Any]


def count(fun: Callable[..., Any], args: Any, name: str = "tanh") -> int:
    """How many equations of this name a program has after the pass."""
    closed = together(anima.make_jaxpr(fun)(*args))
    return len(re.findall(rf"= {name}\b", str(closed)))


def values(n: int, dtype: Any = np.float32, shape: tuple[int, ...] = ()) -> list[np.ndarray]:
    rng = np.random.default_rng(n)
    return [np.asarray(rng.normal(size=shape), dtype) for _ in range(n)]


def same(fun: Callable[..., Any], *args: Any, atol: float = 0.0) -> None:
    """Compiled, a function gives what it gives compiled one by one."""
    got = anima.jit(fun)(*args)
    want = anima.jit(lambda *args: fun(*map(lax.optimization_barrier, args)))(*args)
    with anima.disable_jit():
        eager = fun(*args)
    for g, w, e in zip(*map(anima.tree.leaves, (got, want, eager)), strict=True):
        assert np.asarray(g).tobytes() == np.asarray(w).tobytes()
        np.testing.assert_allclose(np.asarray(g), np.asarray(e), rtol=1e-6, atol=atol)


@pytest.mark.parametrize("n", [1, LEAST - 1, LEAST, LEAST + 1, 15, 16, 17, MOST - 1, MOST, MOST + 1, MOST + LEAST])
def test_independent_functions_are_one(n: int) -> None:
    args = values(n)

    def fun(*xs: Any) -> Any:
        return [jnp.tanh(x) * 2 for x in xs]

    whole, rest = divmod(n, MOST)
    assert count(fun, args) == whole + (rest if rest < LEAST else 1)
    same(fun, *args)


@pytest.mark.parametrize("shape", [(), (1,), (2,), (1, 3), (2, 2), (SMALL,), (SMALL + 1,)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_shapes_and_types(shape: tuple[int, ...], dtype: str) -> None:
    with anima.enable_x64(True):
        args = values(5, dtype, shape)

        def fun(*xs: Any) -> Any:
            return [jnp.tanh(x) + 1 for x in xs]

        assert count(fun, args) == (1 if np.prod(shape) <= SMALL else 5)
        same(fun, *args)


def test_functions_of_functions_are_in_levels() -> None:
    args = values(6)

    def fun(*xs: Any) -> Any:
        ys = [jnp.tanh(x) for x in xs]
        return [jnp.tanh(y + ys[k - 1]) for k, y in enumerate(ys)]

    assert count(fun, args) == 2
    same(fun, *args)


def test_a_chain_stays_a_chain() -> None:
    def fun(x: Any) -> Any:
        for _ in range(8):
            x = jnp.tanh(x) * 1.5
        return x

    assert count(fun, values(1)) == 8
    same(fun, *values(1))


def test_a_chain_beside_others() -> None:
    def fun(a: Any, *xs: Any) -> Any:
        ys = [jnp.tanh(x) for x in xs]
        b = jnp.tanh(a)
        return jnp.tanh(b + ys[0]), jnp.tanh(jnp.tanh(b)), ys

    assert count(fun, values(6)) == 1 + 2 + 1  # the third is alone on its level, the two of the second are too few
    same(fun, *values(6))


def test_kinds_are_told_apart() -> None:
    def fun(*xs: Any) -> Any:
        half = [x.astype(jnp.float16) for x in xs]
        return ([jnp.tanh(x) for x in xs], [jnp.tanh(x) for x in half], [jnp.exp(x) for x in xs],
                [jnp.abs(x) ** 0.3 for x in xs], [jnp.abs(x) ** 0.7 for x in xs], [2.0 ** x for x in xs])

    args = values(4)
    assert [count(fun, args, name) for name in ("tanh", "exp", "pow")] == [2, 1, 3]
    same(fun, *args)


@pytest.mark.parametrize("sines", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("cosines", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("shared", [0, 1, 2, 5])
def test_sines_and_cosines_are_alike(sines: int, cosines: int, shared: int) -> None:
    args = values(sines + cosines + 1)
    others = args[min(shared, sines):]  # so many arguments are those of both

    def fun(*xs: Any) -> Any:
        return [jnp.sin(x) for x in xs[:sines]], [jnp.cos(x) for x in xs[min(shared, sines):][:cosines]]

    assert len(others) >= cosines
    if sines + cosines < LEAST:
        assert (count(fun, args, "sin"), count(fun, args, "cos")) == (sines, cosines)
    else:
        assert (count(fun, args, "sin"), count(fun, args, "cos")) == (min(sines, 1), min(cosines, 1))
        different = len(set(range(sines)) | set(range(min(shared, sines), min(shared, sines) + cosines)))
        whole = re.search(r"f32\[(\d+)\] = concatenate", str(together(anima.make_jaxpr(fun)(*args))))
        assert whole is not None and int(whole[1]) == max(different, LEAST)
    same(fun, *args)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_turns_of_small_arrays(dtype: str) -> None:
    with anima.enable_x64(True):
        shapes = [(2,), (), (4,), (1,)]
        args = [np.asarray(np.random.default_rng(k).normal(size=shape) * 9, dtype) for k, shape in enumerate(shapes)]

        def fun(*xs: Any) -> Any:
            return [jnp.cos(x) + 1 for x in xs], [2 * jnp.sin(x) for x in xs[::2]], jnp.sin(args[1] * xs[0])

        assert (count(fun, args, "sin"), count(fun, args, "cos")) == (1, 1)
        same(fun, *args)
        same(anima.grad(lambda *xs: sum(y.sum() for y in anima.tree.leaves(fun(*xs))), (0, 1, 2, 3)), *args)


def test_two_arrays_are_not_put_together() -> None:
    def fun(*xs: Any) -> Any:
        return [jnp.arctan2(x, y) for x, y in zip(xs[::2], xs[1::2], strict=True)]

    assert count(fun, values(8), "atan2") == 4
    same(fun, *values(8))


def test_rounding_is_part_of_the_kind() -> None:
    def fun(*xs: Any) -> Any:
        return [lax.exp(x) for x in xs[:4]], [lax.exp(x, accuracy=lax.AccuracyMode.HIGHEST) for x in xs[4:]]

    if "accuracy" in str(anima.make_jaxpr(fun)(*values(8))):
        assert count(fun, values(8), "exp") == 2
    same(fun, *values(8))


def test_loops_and_branches() -> None:
    def fun(*xs: Any) -> Any:
        def step(xs: Values, _: Any) -> Any:
            new = [lax.cond(x > 0, lambda x: x, lambda x: -x, jnp.tanh(x) + 0.1 * xs[k - 1]) for k, x in enumerate(xs)]
            return new, new[0]

        return lax.scan(step, list(xs), None, length=5)

    assert count(fun, values(7)) == 1
    same(fun, *values(7), atol=1e-8)  # one is a sum of opposites, 2e-4
    same(anima.grad(lambda *xs: fun(*xs)[1].sum(), argnums=tuple(range(7))), *values(7))


def test_effects_keep_their_order(capfd: pytest.CaptureFixture[str]) -> None:
    def fun(*xs: Any) -> Any:
        out = []
        for k, x in enumerate(xs):
            anima.debug.print("{k} {y:.3f}", k=k, y=jnp.tanh(x), ordered=True)
            out.append(jnp.tanh(x + 1))
        return out

    args = values(6)
    anima.jit(fun)(*args)
    anima.effects_barrier()
    assert capfd.readouterr().out.split("\n")[:-1] == [f"{k} {np.tanh(x):.3f}" for k, x in enumerate(args)]


def test_special_values() -> None:
    args = list(np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, 3e38], np.float32))
    for function in (jnp.tanh, jnp.exp, jnp.log1p, jnp.sin, jnp.cbrt, jnp.expm1):
        same(lambda *xs, f=function: [f(x) for x in xs], *args)
