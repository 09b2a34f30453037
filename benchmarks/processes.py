"""Collectives between processes beside mpi4py's own on bare NumPy arrays: one in a call, and 1,000 in a loop.

    mpirun -n 2 python -m benchmarks.processes

Of each, the time of a call in microseconds, the least of many short runs of a few calls, and the ratio, in turn in one
run: what else the machine does takes the core from one process, and all others wait for it. A call is a jitted function
of arrays that are cut over the processes. The rows of loops are a `fori_loop` in one such function, beside a loop of
Python's around mpi4py's call; the time is that of one collective.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

import anima
from anima import NamedSharding, P, lax
from anima.sharding import AxisType

COMM = MPI.COMM_WORLD
SIZES = {16: (20, 60), 1 << 10: (20, 60), 1 << 14: (10, 60), 1 << 18: (3, 40), 1 << 20: (1, 40),
         1 << 24: (1, 5)}  # float32 of each: calls in a row, and how many such runs
TURNS = 3
LOOP = 1000  # collectives in a loop


def least(call: Callable[[], Any], calls: int, runs: int) -> float:
    """Microseconds of a call, of so many in a row that all processes begin together, in the fastest run."""
    times = []
    for _ in range(runs):
        COMM.Barrier()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - begin) / calls)
    return min(times) * 1e6


def beside(name: str, size: int, bare: Callable[[], Any], ours: Callable[[], Any], loop: int = 1) -> None:
    """Prints a row; `loop` is how many collectives a call is."""
    calls, runs = SIZES[size] if loop == 1 else (1, 20)
    ours()
    turns = [(least(bare, calls, runs), least(ours, calls, runs)) for _ in range(TURNS)]
    first, second = np.min(turns, axis=0) / loop
    if COMM.rank == 0:
        print(f"{name:16} {4 * size:>12,} {first:>12,.1f} {second:>12,.1f} {second / first:>8.2f}", flush=True)


def main() -> None:
    """Runs all rows."""
    anima.distributed.initialize()
    count = anima.device_count()
    mesh = anima.make_mesh((count,), ("x",), axis_types=(AxisType.Auto,))
    if COMM.rank == 0:
        print(f"{count} processes\n{'':16} {'bytes each':>12} {'mpi4py, us':>12} {'anima, us':>12} {'ratio':>8}")

    def mapped(fun: Callable[[Any], Any], spec: P) -> Any:
        return anima.jit(anima.shard_map(fun, mesh=mesh, in_specs=P("x"), out_specs=spec, check_vma=False))

    total = mapped(lambda v: lax.psum(v, "x"), P())
    gathered = mapped(lambda v: lax.all_gather(v, "x", tiled=True), P())
    scattered = mapped(lambda v: lax.psum_scatter(v, "x", tiled=True), P("x"))
    exchanged = mapped(lambda v: lax.all_to_all(v, "x", 0, 0, tiled=True), P("x"))

    looped = mapped(lambda v: lax.fori_loop(0, LOOP, lambda _, s: lax.psum(s, "x") / count, v), P("x"))

    def rows(size: int) -> None:
        mine = np.ones(size, "f")
        x = anima.device_put(np.ones(count * size, "f"), NamedSharding(mesh, P("x")))
        out, part, wide = np.empty(size, "f"), np.empty(size // count, "f"), np.empty(count * size, "f")
        beside("psum", size, lambda: COMM.Allreduce(mine, out), lambda: total(x))
        if size * count <= 1 << 24:
            beside("all_gather", size, lambda: COMM.Allgather(mine, wide), lambda: gathered(x))
        beside("psum_scatter", size, lambda: COMM.Reduce_scatter_block(mine, part), lambda: scattered(x))
        beside("all_to_all", size, lambda: COMM.Alltoall(mine, out), lambda: exchanged(x))
        if size <= 1 << 10:
            beside("psum in a loop", size, lambda: [COMM.Allreduce(mine, out) for _ in range(LOOP)], lambda: looped(x),
                   LOOP)

    for size in SIZES:
        rows(size)


if __name__ == "__main__":
    main()
