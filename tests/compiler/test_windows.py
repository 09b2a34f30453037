"""Updates of windows by what is read of them: in place where each element is read where it is written, and right where
it is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax

RNG = np.random.default_rng(0)
IN_PLACE: dict[str, Callable[[Any, Any], Any]] = {
    "scaled": lambda x, i: x.at[:, :-1].set(0.9 * x[:, :-1]),
    "inside": lambda x, i: x.at[1:-1, 1:-2].set(abs(x[1:-1, 1:-2]) - 0.5),
    "added": lambda x, i: x.at[1:, :-1].add(0.1 * x[1:, :-1] - 0.2),
    "least": lambda x, i: x.at[1:].min(x[1:] * x[1:] - 0.1),
    "a row": lambda x, i: x.at[2].set(3 - x[2]),
    "a column": lambda x, i: x.at[:, 3].multiply(0.5 * x[:, 3]),
    "reshaped": lambda x, i: x.at[1:3].set((x[1:3].reshape(-1) * 0.5).reshape(2, -1)),
    "dynamic": lambda x, i: lax.dynamic_update_slice(x, 0.5 * lax.dynamic_slice(x, (i, 1), (3, 4)), (i, 1)),
    "outside": lambda x, i: lax.dynamic_update_slice(x, 0.5 * lax.dynamic_slice(x, (9, -9), (3, 4)), (9, -9))}
APART: dict[str, Callable[[Any, Any], Any]] = {
    "moved": lambda x, i: x.at[:, 1:].set(0.9 * x[:, :-1]),
    "moved up": lambda x, i: x.at[:-1].add(0.1 * x[1:]),
    "both": lambda x, i: x.at[1:-1].set(0.3 * (x[1:-1] + x[:-2] + x[2:])),
    "reversed": lambda x, i: x.at[1:-1, 1:-1].set(x[1:-1, 1:-1][::-1]),
    "reversed rows": lambda x, i: x.at[:, 1:-1].add(0.5 * x[:, 1:-1][:, ::-1]),
    "by one of its own": lambda x, i: x.at[1:].set(x[1:] * jnp.cos(x[2, 2])),
    "by a row of its own": lambda x, i: x.at[1:].set(x[1:] * jnp.cos(x[2])),
    "by its sum": lambda x, i: x.at[1:].set(x[1:] - x[1:].mean()),
    "transposed": lambda x, i: x.at[1:5, 1:5].set(0.5 * x[1:5, 1:5].T),
    "reshaped": lambda x, i: x.at[1:3, :6].set(0.5 * x[1:4, :4].reshape(2, 6)),
    "read after": lambda x, i: x.at[1:].set(y := 0.5 * x[1:]).at[0].add(y.sum(0)),
    "twice": lambda x, i: x.at[1:].set(0.5 * x[1:]).at[:-1].set(x[1:] * 0.25),
    "elsewhere": lambda x, i: lax.dynamic_update_slice(x, 0.5 * lax.dynamic_slice(x, (i, 1), (3, 4)), (i + 1, 1)),
    "another axis": lambda x, i: lax.dynamic_update_slice(x, 0.5 * lax.dynamic_slice(x, (i, 2), (3, 4)), (2, i)),
    "a step": lambda x, i: x.at[::2].set(0.5 * x[::2]),
    "several": lambda x, i: x.at[jnp.array([1, 1, 3])].add(0.5 * x[jnp.array([3, 1, 1])])}


@pytest.mark.parametrize("shape", [(6, 9), (7, 17), (20, 31), (8, 16)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("name", [*IN_PLACE, *(f"{name}, apart" for name in APART)])
def test_loops_that_update_windows_of_what_they_carry(name: str, dtype: type, shape: tuple[int, int]) -> None:
    step = IN_PLACE[name] if name in IN_PLACE else APART[name.removesuffix(", apart")]
    x = RNG.normal(size=shape).astype(dtype)

    @anima.jit
    def loop(x: Any) -> Any:
        return lax.fori_loop(0, 5, lambda k, x: step(x, k % 3).astype(dtype), x)

    want = jnp.asarray(x)
    for k in range(5):
        want = step(want, jnp.int32(k % 3)).astype(dtype)
    np.testing.assert_allclose(loop(x), want, rtol=1e-5 if dtype is np.float32 else 1e-2, atol=1e-5)
    if name in IN_PLACE and dtype is np.float32:
        assert "temp" not in loop.lower(x).compile().as_text()


@pytest.mark.parametrize("name", ["scaled", "added", "inside"])
def test_derivatives_of_loops_that_update_windows(name: str) -> None:
    x = RNG.normal(size=(7, 9)).astype(np.float32)

    def loss(x: Any) -> Any:
        return (lax.scan(lambda x, k: (y := IN_PLACE[name](x, k), y[2, 2]), x, jnp.arange(4))[0] ** 2).sum()

    def plain(x: Any) -> Any:
        for k in range(4):
            x = IN_PLACE[name](x, k)
        return (x ** 2).sum()

    np.testing.assert_allclose(anima.jit(anima.grad(loss))(x), anima.grad(plain)(x), rtol=1e-5, atol=1e-6)
