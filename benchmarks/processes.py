"""Collectives between processes beside mpi4py's own on bare NumPy arrays, and a training step of the example.

    mpirun -n 2 python -m benchmarks.processes

Of each, the median time of a call in microseconds, and the ratio, in turn in one run. A call is a jitted function of
arrays that are cut over the processes.
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
SIZES = {16: 400, 1 << 10: 400, 1 << 14: 200, 1 << 18: 60, 1 << 20: 30, 1 << 24: 5}  # float32 of each, and repetitions


def median(call: Callable[[], Any], repetitions: int) -> float:
    """Microseconds of a call that all processes begin together."""
    times = []
    for _ in range(repetitions):
        COMM.Barrier()
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return float(np.median(times)) * 1e6


def beside(name: str, size: int, repetitions: int, bare: Callable[[], Any], ours: Callable[[], Any]) -> None:
    """Prints a row: the medians of three turns."""
    ours()
    turns = [(median(bare, repetitions), median(ours, repetitions)) for _ in range(3)]
    first, second = np.median(turns, axis=0)
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
    def rows(size: int, repetitions: int) -> None:
        mine = np.ones(size, "f")
        x = anima.device_put(np.ones(count * size, "f"), NamedSharding(mesh, P("x")))
        out, part, wide = np.empty(size, "f"), np.empty(size // count, "f"), np.empty(count * size, "f")
        beside("psum", size, repetitions, lambda: COMM.Allreduce(mine, out), lambda: total(x))
        if size * count <= 1 << 24:
            beside("all_gather", size, repetitions, lambda: COMM.Allgather(mine, wide), lambda: gathered(x))
        beside("psum_scatter", size, repetitions, lambda: COMM.Reduce_scatter_block(mine, part), lambda: scattered(x))
        beside("all_to_all", size, repetitions, lambda: COMM.Alltoall(mine, out), lambda: exchanged(x))

    for size, repetitions in SIZES.items():
        rows(size, repetitions)


if __name__ == "__main__":
    main()
