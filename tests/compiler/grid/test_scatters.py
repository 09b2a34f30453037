"""Scatters of many updates: by places in order, each of which is written once; sums of runs that go over pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler.grid.compile import compile_grid
from anima.compiler.ir.loops import Kernel, statements_outside
from tests.compiler.grid.emulated import TARGET
from tests.compiler.grid.test_order import agree

RNG = np.random.default_rng(3)


def updates(x: Any, i: Any, v: Any, how: str, **mode: Any) -> Any:
    return getattr(x.at[i], how)(v, **mode)


def kernels(fun: Any, *args: Any) -> list[str]:
    program = compile_grid(anima.make_jaxpr(fun)(*args), "f", (), TARGET).program
    return [s.name for s in statements_outside(program.body) if isinstance(s, Kernel)]


@pytest.mark.parametrize(("how", "count"), [*((how, 257) for how in ("set", "add", "multiply", "min", "max")),
                                            ("add", 65), ("add", 128), ("add", 1030), ("set", 65)])
def test_single_elements(how: str, count: int) -> None:
    """Few places and many, with indices outside, from behind, and by all types."""
    for size, kind, whole in ((1, "int32", False), (7, "int8", True), (2000, "uint16", False), (40, "int64", True)):
        i = RNG.integers(0, 2 * size, count) if kind == "uint16" else RNG.integers(-size - 2, size + 3, count)
        if whole:
            x, v = RNG.integers(-9, 10, size).astype(np.int32), RNG.integers(-9, 10, count).astype(np.int32)
        else:
            x, v = RNG.uniform(0.9, 1.1, size).astype(np.float32), RNG.uniform(0.99, 1.01, count).astype(np.float32)
        agree(lambda x, i, v: updates(x, i, v, how), x, i.astype(kind), v,
              tolerance=1e-4 if how in ("add", "multiply") else 0.0)


@pytest.mark.parametrize("lengths", [[500], [1, 15, 16, 17, 32, 33, 47, 48, 100], [16] * 20, [1] * 300, [31, 33] * 8,
                                     [15, 1, 300, 2]])
def test_runs_that_end_anywhere(lengths: list[int]) -> None:
    """Sums of whole numbers are exact, and NaN is where it was put."""
    i = np.repeat(np.arange(len(lengths)), lengths).astype(np.int32)
    shuffled = RNG.permutation(i)
    for places in (i, shuffled):
        v = RNG.integers(-9, 10, len(i)).astype(np.float32)
        agree(lambda i, v: jnp.zeros(len(lengths)).at[i].add(v), places, v)
        v[len(i) // 2] = np.nan
        agree(lambda i, v: jnp.zeros(len(lengths)).at[i].add(v), places, v)
        agree(lambda i, v: jnp.zeros(len(lengths)).at[i].set(v), places, v)


def test_rows_columns_and_batches() -> None:
    x, v = RNG.normal(size=(4, 6, 3)).astype(np.float32), RNG.normal(size=(100, 3)).astype(np.float32)
    i, j, k = (RNG.integers(-n, n + 1, 100).astype(np.int32) for n in (4, 6, 3))
    agree(lambda x, i, j, v: x.at[i, j].add(v), x, i, j, v, tolerance=1e-5)
    agree(lambda x, k, v: x.at[:, :, k].add(v), x, k, RNG.normal(size=(4, 6, 100)).astype(np.float32), tolerance=1e-5)
    agree(anima.vmap(lambda x, i, v: x.at[i].add(v)), x[:, :, 0], RNG.integers(0, 6, (4, 80)).astype(np.int32),
          RNG.normal(size=(4, 80)).astype(np.float32), tolerance=1e-5)
    agree(lambda x, i, v: x.at[i].add(v, mode="clip"), x[:, 0], i, v, tolerance=1e-5)
    agree(lambda i, v: anima.ops.segment_sum(v, i, 5), i, v, tolerance=1e-5)
    agree(lambda i: jnp.bincount(i, length=4), np.abs(i))
    agree(anima.grad(lambda x, i: jnp.sum(jnp.sin(x[i]))), x[:, 0], i, tolerance=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "complex64", "bool", "uint8"])
def test_other_types(dtype: str) -> None:
    i = RNG.integers(0, 5, 90).astype(np.int32)
    x, v = (RNG.integers(0, 3, n).astype(np.float32) for n in (5, 90))
    for how in ("set",) if dtype == "bool" else ("set", "add") if dtype == "complex64" else ("set", "add", "max"):
        agree(lambda x, i, v, how=how: updates(x.astype(dtype), i, v.astype(dtype), how).astype(
            "complex64" if dtype == "complex64" else "float32"), x, i, v)


def test_in_loops() -> None:
    x, i = RNG.integers(0, 9, 6).astype(np.int32), RNG.integers(0, 4, 99).astype(np.int32)
    agree(lambda x, i: lax.fori_loop(0, 3, lambda k, x: x.at[i + k].add(x[i] % 7), x), x, i)


def test_updates_in_which_none_meet_are_not_sorted() -> None:
    x, i, v = np.zeros(200, np.float32), np.arange(100), np.ones(100, np.float32)
    assert "runs" in kernels(lambda x, i, v: x.at[i].add(v), x, i, v)
    for fun in (lambda x, i, v: x.at[i].add(v, unique_indices=True), lambda x, i, v: x.at[i[:3]].add(v[:3])):
        assert not {"runs", "count_digits"} & set(kernels(fun, x, i, v))
