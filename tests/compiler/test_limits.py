"""Both sides of every number at which an algorithm changes: one less, the number, one more; compiled against eager.

    Limit("lower_radix.LENGTH", radix.LENGTH, lambda n: (jnp.sort, (numbers(n),)))

Arguments are small whole numbers, as floats too: in whatever order they are added up, results have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler.emitting import emit, scratch as emit_scratch
from anima.compiler.fusing import fuse, materialise
from anima.compiler.ir import groups
from anima.compiler.lowering import (
    contract as lower_contract,
    elements,
    index as lower_index,
    order as lower_order,
    radix as lower_radix,
    sort as lower_sort,
)
from anima.compiler.machine import target
from anima.compiler.machine.native import host
from anima.compiler.products import blocking as gemm_blocking, gemm, kernel as gemm_kernel, vector as gemm_vector
from anima.compiler.rewriting import blocks, hoist, invariant
from anima.compiler.scheduling import parallelize, reductions, tile
from anima.compiler.storage import accesses, apart as storage_apart, registers
from anima.control import reduce as control_reduce, residuals
from anima.core import memory
from anima.lax import reducing
from anima.ops import window
from anima.runtime import calling

Program = tuple[Callable[..., Any], tuple[Any, ...]]
HOST = host()


def numbers(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(dtype)


def positions(*shape: int) -> np.ndarray:
    """All different, in no order."""
    return np.random.default_rng(1).permutation(int(np.prod(shape))).reshape(shape).astype(np.float32)


@dataclass(frozen=True)
class Limit:
    """A constant by its module and name, its value, and programs of which some size is n."""

    name: str
    value: float
    program: Callable[[int], Program]
    unit: float = 1  # the size that is compared with the constant is about unit * n


def product(m: int, k: int, n: int, transposed: bool = False) -> Program:
    right = numbers(n, k) if transposed else numbers(k, n)
    return (lambda x, y: x @ (y.T if transposed else y)), (numbers(m, k), right)


def mapped(n: int) -> Program:
    return (lambda xs: lax.map(lambda x: jnp.cumsum(jnp.flip(jnp.cumsum(x) % 3)) + x, xs)), (numbers(2, n),)


def scores(rows: int, columns: int, terms: int = 2) -> Program:
    return (lambda x, y: jnp.abs(x @ y.T - 1).max(1)), (numbers(rows, terms), numbers(columns, terms))


def many_results(n: int) -> Program:
    return (lambda x: [x + i for i in range(n)]), (numbers(17),)


def many_kernels(n: int) -> Program:
    return (lambda *xs: [jnp.cumsum(x * 2) for x in xs]), tuple(numbers(9 + k) for k in range(n))


def two_long_kernels(n: int) -> Program:
    def many(x: Any) -> Any:
        for k in range(n):
            x = x + float(k % 3)
        return x

    return (lambda x, y: [many(x), many(y)]), (numbers(9), numbers(11))


def many_inputs(n: int) -> Program:
    return (lambda *xs: xs[0] + xs[-1] * 2), tuple(np.float32(k % 7) for k in range(n))


def apart(n: int) -> Program:
    return (lambda x, y: [x + 1, jnp.flip(y) * 2, (x - 1)[:3]]), (numbers(n), numbers(n + 3))


def parts(n: int) -> Program:
    return (lambda *xs: jnp.concatenate([x * 2 for x in xs]) + 1), tuple(numbers(1 + k % 3) for k in range(n))


def parts_reduced(n: int) -> Program:
    return (lambda x, y: jnp.sum(jnp.concatenate([x + 1, y * 2]) * 3)), (numbers(n - 5), numbers(5))


def carried(n: int) -> Program:
    def run(x: Any) -> Any:
        def step(k: Any, c: Any) -> Any:
            return c.at[k].add(c[k - 1]) + jnp.flip(c) % 3

        return lax.fori_loop(0, 4, step, x), lax.fori_loop(0, 3, lambda k, c: (c[0].at[0].set(c[1][-1]), c[0]), (x, x))
    return run, (numbers(n),)


def invariant_product(n: int) -> Program:
    def run(x: Any, y: Any) -> Any:
        return lax.scan(lambda c, r: (c + r @ y, jnp.outer(r, y[0])), jnp.zeros(3), x)
    return run, (numbers(5, n), numbers(n, 3))


def stretched(n: int) -> Program:
    def run(x: Any, y: Any) -> Any:
        return lax.fori_loop(0, 5, lambda k, c: c + jnp.tile(x % 3, n)[k] + jnp.sum(jnp.tile(y, n)), jnp.float32(0))
    return run, (numbers(8), numbers(3))


def chain(n: int) -> Program:
    def run(x: Any) -> Any:
        y = x
        for k in range(n):
            y = y + x[k % 5] if k % 2 else y - 1
        return y, y[::-1] * 2, jnp.sum(y)
    return run, (numbers(9),)


def moved_chain(n: int) -> Program:
    def run(x: Any) -> Any:
        y = x
        for k in range(n):
            y = jnp.roll(y, k % 3 - 1, k % 2)[::-1]
        return y, y.T + 1
    return run, (numbers(5, 7),)


def read_often(n: int) -> Program:
    def run(x: Any) -> Any:
        y = jnp.pad(x + 1, 2)
        return sum(y[k % 4:k % 4 + len(x)] * (k + 1) for k in range(n))
    return run, (numbers(33),)


def joined(n: int) -> Program:
    return (lambda x: jnp.concatenate([x + k for k in range(n)])[::2] * 3), (numbers(17),)


def scratch(n: int) -> Program:
    def run(x: Any) -> Any:
        y = x - jnp.max(x, axis=1, keepdims=True)
        return y * jnp.sum(y, axis=1, keepdims=True)
    return run, (numbers(2, n),)


def differentiated_scan(n: int) -> Program:
    def loss(x: Any) -> Any:
        return lax.scan(lambda c, r: (c * r + jnp.flip(c), c.sum()), x, numbers(3, 1))[0].sum()
    return anima.grad(loss), (numbers(n),)


def differentiated_chain(n: int) -> Program:
    def step(c: Any, r: Any) -> Any:
        y = c
        for _ in range(n):
            y = jnp.where(y > 2, y - r, y * 2)
        return y, y.sum()

    return anima.grad(lambda x: lax.scan(step, x, numbers(3, 1))[1].sum()), (numbers(5),)


def windows(n: int) -> Program:
    def run(x: Any) -> Any:
        return [lax.reduce_window(x, -np.inf, lax.max, (n,), (s,), p) for s in (1, 2) for p in ("VALID", "SAME")] + [
            lax.reduce_window(x, 0.0, lax.add, (n,), (1,), "VALID"),
            anima.grad(lambda y: lax.reduce_window(y, 0.0, lax.add, (n,), (2,), "SAME")[::2].sum())(x)]
    return run, (numbers(3 * n + 1),)


def own_reduction(n: int) -> Program:
    def combine(a: Any, b: Any) -> Any:
        return lax.max(a, b) + lax.min(a, b)

    def run(x: Any) -> Any:
        zero = np.float32(0)
        return lax.reduce(x, zero, combine, (0,)), lax.reduce_window(x[:, 0], zero, combine, (n,), (1,), "VALID")
    return run, (numbers(n, 3),)


def sorts(n: int) -> Program:
    def run(x: Any, y: Any, i: Any) -> Any:
        small = jnp.sort(i.astype("uint8"))
        return jnp.sort(x), jnp.argsort(i), lax.sort((i, x, y), num_keys=2), jnp.sort(y)[::-1], small
    return run, (numbers(n), positions(n), numbers(n, dtype="int32"))


def sorts_of_rows(x: Any) -> Any:
    return jnp.sort(x), jnp.argsort(x)


def row_sums(n: int) -> Program:
    return (lambda x: [x.sum(1), (x * 2).max(1), x.sum(), jnp.argmax(x, 1), x.sum(0)]), (numbers(2, n),)


def column_sums(n: int) -> Program:
    return (lambda x: [x.sum(0), (x + 1).min(0), jnp.cumsum(x, 0), jnp.cumsum(x, 1), x.sum((0, 2))[:1]
                       if x.ndim == 3 else x.sum()]), (numbers(5, n),)


def transposes(n: int) -> Program:
    def run(x: Any, y: Any) -> Any:
        return x.T + 1, x.T.reshape(-1)[::3], x + y.T, jnp.sum(x.T, 1)
    return run, (numbers(n, n + 2), numbers(n + 2, n))


def gathers(n: int) -> Program:
    def run(x: Any, i: Any) -> Any:
        return x[i], lax.dynamic_slice(x, (i[0], i[1]), (2, n)), x.at[i, :n].set(7.0), lax.dynamic_update_slice(
            x, x[:2, :n] * 2, (i[1], i[2]))
    return run, (numbers(6, n + 3), np.array([1, 4, -9, 80], np.int32))


def top(n: int) -> Program:
    return (lambda x: [lax.top_k(x, n), lax.top_k(-x, 1)]), (positions(2, 4 * n),)


def alone(n: int) -> Program:
    return (lambda x: [x * 2 + 1, jnp.where(x > 0, x, -x)]), (numbers(n),)


LIMITS = (
    Limit("target.MOST_KEPT", target.MOST_KEPT, top),
    Limit("target._MORE_KEPT", target._MORE_KEPT, lambda n: (
        (lambda x: lax.top_k(x, n)), (positions(1, target._LONG * n),))),
    Limit("target._LONG", target._LONG, lambda n: (
        (lambda x: lax.top_k(x, target.MOST_KEPT + 1)), (positions(1, n * (target.MOST_KEPT + 1)),))),
    Limit("fuse.MOST_ROOTS", fuse.MOST_ROOTS, many_results),
    Limit("fuse.SMALL", fuse.SMALL, apart),
    Limit("groups.MOST_BOXES", groups.MOST_BOXES, parts),
    Limit("groups.LARGE", groups.LARGE, chain),
    Limit("fuse.BOXED", fuse.BOXED, parts_reduced),
    Limit("gemm_vector._ALONG_ROWS", gemm_vector._ALONG_ROWS, lambda n: product(300, 700, n)),
    Limit("gemm_blocking.BLOCK_BYTES", gemm_blocking.BLOCK_BYTES, lambda n: product(9, n, 64), unit=4 * 64),
    Limit("gemm_blocking.MOST_ROWS", gemm_blocking.MOST_ROWS, lambda n: product(n, 40, 50)),
    Limit("gemm_blocking.MOST_VECTORS", gemm_blocking.MOST_VECTORS, lambda n: product(33, 40, n), unit=1 / 16),
    Limit("gemm_blocking._FAR", gemm_blocking._FAR, lambda n: product(7, n, 1024), unit=4 * 1024),
    Limit("gemm_blocking._SAME_PLACE", gemm_blocking._SAME_PLACE, lambda n: product(9, 20, n), unit=4),
    Limit("gemm_blocking._DOTS", gemm_blocking._DOTS, lambda n: (
        (lambda x, y: x @ y), (numbers(n, 9000), numbers(9000)))),
    Limit("gemm._FEW_BYTES", gemm._FEW_BYTES, lambda n: product(300, 500, n), unit=4),
    Limit("gemm._LONG", gemm._LONG, lambda n: product(700, n, 3)),
    Limit("gemm._SQUARE", gemm._SQUARE, lambda n: product(33, 200, n, transposed=True)),
    Limit("gemm_kernel._STRIP", gemm_kernel._STRIP, lambda n: product(33, 70, n, transposed=True)),
    Limit("gemm_kernel._GROUP", gemm_kernel._GROUP, lambda n: product(n, 70, 70)),
    Limit("lower_contract.SMALL_PRODUCT", lower_contract.SMALL_PRODUCT, lambda n: product(8, 16, n), unit=128),
    Limit("lower_contract.FEW_ROWS", lower_contract.FEW_ROWS, lambda n: (
        (lambda x, y: [x @ y, y.T @ x.T]), (numbers(n, 70, dtype="int16"), numbers(70, 300, dtype="int16")))),
    Limit("lower_contract.VECTOR_PRODUCT", lower_contract.VECTOR_PRODUCT, lambda n: (
        (lambda x, y: [x @ y, y @ x.T]), (numbers(n, 128), numbers(128))), unit=128),
    Limit("registers.LOOP", registers.LOOP, lambda n: carried(n), unit=40),
    Limit("registers.PRIVATE", registers.PRIVATE, lambda n: (anima.vmap(carried(n)[0]), (numbers(9, n),)), unit=4),
    Limit("accesses.LARGEST", accesses.LARGEST, carried),
    Limit("accesses.LONGEST", accesses.LONGEST, carried),
    Limit("elements.FEW", elements.FEW, carried),
    Limit("elements.MOST_ELEMENTS", elements.MOST_ELEMENTS, many_kernels, unit=30),
    Limit("tile._TILE", tile._TILE, transposes),
    Limit("tile._LANES", tile._LANES, transposes),
    Limit("Target.line", HOST.line, transposes, unit=4),
    Limit("Target.first_cache", HOST.first_cache, lambda n: ((lambda x: x.T + 1), (numbers(n, 64),)), unit=4 * 64),
    Limit("lower_radix.LENGTH", lower_radix.LENGTH, sorts),
    Limit("lower_order.SHORTEST", lower_order.SHORTEST, sorts),
    Limit("lower_order.FEW", lower_order.FEW, lambda n: (sorts_of_rows, (numbers(n, 300),))),
    Limit("lower_order.IN_LANES", lower_order.IN_LANES, lambda n: (sorts_of_rows, (numbers(9, n),))),
    Limit("lower_order.PIECE", lower_order.PIECE, sorts),
    Limit("lower_sort.SHORT", lower_sort.SHORT, lambda n: (sorts_of_rows, (numbers(6, n),))),
    Limit("lower_sort.MANY", lower_sort.MANY, lambda n: (sorts_of_rows, (numbers(n, 6),))),
    Limit("lower_index.RUNS", lower_index.RUNS, lambda n: (
        (lambda x, i: jnp.zeros(9).at[i].add(x, indices_are_sorted=True)), (numbers(n), np.arange(n) // 20))),
    Limit("lower_radix.LONG", lower_radix.LONG, sorts),
    Limit("invariant.LARGER", invariant.LARGER, stretched),
    Limit("hoist.LARGER", hoist.LARGER, invariant_product),
    Limit("reductions.row_limit", reductions.row_limit(HOST), row_sums),
    Limit("reductions.UNROLLED", reductions.UNROLLED, row_sums),
    Limit("reductions.columns", reductions.columns(HOST), column_sums),
    Limit("elements of a block", HOST.first_cache // 4, row_sums),
    Limit("reductions.RUN_LIMIT", reductions.RUN_LIMIT, row_sums),
    Limit("reductions.MOST_BLOCKS", reductions.MOST_BLOCKS, lambda n: ((lambda x: [x.sum(), x.sum(1)]),
                                                                       (numbers(n, 9),))),
    Limit("reductions._ENOUGH", reductions._ENOUGH, lambda n: ((lambda x: x.sum(1)), (numbers(n, 70000),))),
    Limit("reductions._ROWS", reductions._ROWS, lambda n: ((lambda x: x.sum(0)), (numbers(n, 7000),))),
    Limit("lower_index.UNROLLED", lower_index.UNROLLED, gathers),
    Limit("materialise.CHEAP", materialise.CHEAP, chain),
    Limit("materialise.POLYNOMIAL", materialise.POLYNOMIAL, chain),
    Limit("materialise.DEEP", materialise.DEEP, moved_chain),
    Limit("materialise.PADDED", materialise.PADDED, read_often),
    Limit("materialise.CONCATENATED", materialise.CONCATENATED, joined),
    Limit("parallelize._BLOCK", parallelize._BLOCK, alone),
    Limit("parallelize.ENOUGH", parallelize.ENOUGH, lambda n: ((lambda x: x.sum(1)), (numbers(n, 3000),))),
    Limit("apart.LEAST", storage_apart.LEAST, mapped, unit=8),
    Limit("apart.SHARE", storage_apart.SHARE, mapped, unit=4),
    Limit("apart.OWN", storage_apart.OWN, mapped, unit=8),
    Limit("blocks.LEAST", blocks.LEAST, lambda n: scores(n, 1024), unit=4096),
    Limit("blocks.BLOCKS", blocks.BLOCKS, lambda n: scores(n, 32768), unit=1 / blocks.ROWS),
    Limit("blocks.BLOCK", blocks.BLOCK, lambda n: scores(2100, n), unit=4 * 50),
    Limit("blocks.CONTRACTED", blocks.CONTRACTED, lambda n: scores(2300, 2100, n)),
    Limit("emit._INLINE", emit._INLINE, many_kernels),
    Limit("emit._SPREAD", emit._SPREAD, many_kernels),
    Limit("emit._LONG", emit._LONG - 4, two_long_kernels),  # each with a kernel, a loop, a load and a store
    Limit("emit_scratch._STACK_LIMIT", emit_scratch._STACK_LIMIT, scratch, unit=4),
    Limit("calling._MOST_INPUTS", calling._MOST_INPUTS, many_inputs),
    Limit("memory.LEAST", memory.LEAST, alone, unit=4),
    Limit("residuals.FEW", residuals.FEW, differentiated_scan),
    Limit("residuals.LONGEST", residuals.LONGEST, differentiated_chain),
    Limit("residuals.PER_BYTE", residuals.PER_BYTE, differentiated_chain),
    Limit("control.reduce.UNROLLED", control_reduce.UNROLLED, own_reduction),
    Limit("control.reduce.WINDOWS", control_reduce.WINDOWS, own_reduction),
    Limit("reducing.STEPS", reducing.STEPS, own_reduction),
    Limit("window.RADIX", window.RADIX, windows),
    Limit("window.TERMS", window.TERMS, windows),
)


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
def test_both_sides_of_a_limit(limit: Limit) -> None:
    middle = round(limit.value / limit.unit)
    for n in (middle - 1, middle, middle + 1):
        fun, args = limit.program(n)
        with anima.disable_jit():
            want = anima.tree.leaves(fun(*map(jnp.asarray, args)))
        got = anima.tree.leaves(anima.jit(fun)(*args))
        for k, (a, b) in enumerate(zip(got, want, strict=True)):
            np.testing.assert_array_equal(a, b, err_msg=f"{limit.name}, size {n}, result {k}")
