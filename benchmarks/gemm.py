"""Matrix products, beside NumPy and JAX where it is installed.

    python -m benchmarks.gemm                 with all cores
    taskset -c 0 python -m benchmarks.gemm    with one
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np

import anima
from benchmarks.harness import HAVE_JAX, Case, measure, print_row, work_of

if HAVE_JAX:
    import jax

SQUARES = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
# m, k, n: layers, their gradients, images of digits, tall, wide and deep ones
SHAPES = ((128, 64, 128), (1797, 64, 128), (128, 128, 10), (64, 128, 128), (100, 300, 100), (32, 1024, 1024),
          (8, 1024, 1024), (2, 1024, 1024), (1024, 32, 1024), (50, 20000, 50), (1000, 1000, 1000))
VECTORS = (64, 256, 1024, 4096)


def contestants(operation: Callable[[Any, Any], Any], *args: np.ndarray) -> dict[str, Callable[[], Any]]:
    """One product, by each."""
    def jitted(module: Any) -> Callable[[], Any]:
        compiled, placed = module.jit(operation), module.device_put(args)
        return lambda: module.block_until_ready(compiled(*placed))

    out = {"anima": jitted(anima)}
    if HAVE_JAX:
        out["jax"] = jitted(jax)
    out["numpy"] = lambda: operation(*args)
    return out


def random(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(dtype)


def show(name: str, operation: Callable[[Any, Any], Any], *args: np.ndarray) -> None:
    """One line: times, share of the limit, and arithmetic operations in a nanosecond."""
    work = work_of(operation, args)
    bare = replace(work, operations=work.operations * args[0].itemsize / 4)
    medians = measure(Case(name, contestants(operation, *args), work=bare))
    print_row(name, medians, f"{work.operations / medians['anima'] * 1e-9:7.1f} GFLOP/s")


def main() -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(f"Matrix products on {cores} cores: median of each; N x = takes N times as long as Anima")
    wanted = set(sys.argv[1:] if __name__ == "__main__" else [])
    if not wanted or "f32" in wanted:
        for n in SQUARES:
            show(f"f32 {n}^3", lambda a, b: a @ b, random(n, n), random(n, n))
        for m, k, n in SHAPES:
            show(f"f32 {m}x{k}x{n}", lambda a, b: a @ b, random(m, k), random(k, n))
            show(f"f32 {m}x{k}x{n} A'", lambda a, b: a.T @ b, random(k, m), random(k, n))
            show(f"f32 {m}x{k}x{n} B'", lambda a, b: a @ b.T, random(m, k), random(n, k))
    if not wanted or "batch" in wanted:
        show("f32 64 of 64x64x64", lambda a, b: a @ b, random(64, 64, 64), random(64, 64, 64))
        show("f32 32 of 128x64x128 B'", lambda a, b: a @ b.swapaxes(1, 2), random(32, 128, 64), random(32, 128, 64))
    if not wanted or "vector" in wanted:
        for n in VECTORS:
            show(f"f32 matrix {n} by vector", lambda a, b: a @ b, random(n, n), random(n))
            show(f"f32 vector by matrix {n}", lambda a, b: a @ b, random(n), random(n, n))
    if not wanted or "f64" in wanted:
        for n in (64, 256, 1024):
            with ExitStack() as stack:
                for module in (anima, *([jax] if HAVE_JAX else ())):
                    stack.enter_context(module.enable_x64(True))
                show(f"f64 {n}^3", lambda a, b: a @ b, *[random(n, n, dtype=np.float64)] * 2)


if __name__ == "__main__":
    main()
