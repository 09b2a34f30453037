"""What collectives cost: a model fitted to measurements, and the training example on 8 to 4,096 ranks (simulated).

    python -m benchmarks.ranks

A collective of n ranks, each with an operand of s bytes, takes `rounds(n) * latency + sent(s, n) / bandwidth`: messages
and bytes of recursive halving and doubling (Thakur, Rabenseifner and Gropp, "Optimization of collective communication
operations in MPICH", 2005), of pairwise exchange for `all_to_all`. Latency and bandwidth are those of two processes of
this machine that send messages to each other by pipes, and of networks as stated.

Assumed: ranks are as many as a power of two, each with a link of its own; nothing waits for another's message, for a
slower rank or in a switch; computation and communication do not overlap; adding up what arrives takes no time; each
rank computes as fast as this machine does, with nobody else on it.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import statistics
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

os.environ.setdefault("ANIMA_NUM_CPU_DEVICES", "8")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

import on_devices as example

import anima
from anima import P, lax
from anima.ops.collective import psum_p
from anima.ops.exchange import all_gather_p, all_to_all_p, ppermute_p, reduce_scatter_p
from benchmarks.timing import seconds

COUNT = 8
ROWS = (64, 1024)  # on each rank
RANKS = (8, 64, 512, 4096)
ROUNDS: dict[str, Callable[[int], float]] = {
    "psum": lambda n: 2 * math.log2(n), "all_gather": math.log2, "reduce_scatter": math.log2,
    "all_to_all": lambda n: n - 1.0, "ppermute": lambda n: 1.0}
SENT = {p.name: p.sent for p in (psum_p, all_gather_p, reduce_scatter_p, all_to_all_p, ppermute_p)}


class Line(NamedTuple):
    """Time as a line: seconds to begin with, and bytes in a second; `off` is by how much it misses what was measured,
    at most, as a share."""

    latency: float
    bandwidth: float
    off: float = 0.0


def fitted(sizes: list[float], times: list[float]) -> Line:
    """The line with the least relative error."""
    sizes_, times_ = np.array(sizes), np.array(times)
    terms = np.stack([np.ones_like(sizes_), sizes_], 1) / times_[:, None]
    latency, slope = np.linalg.lstsq(terms, np.ones_like(times_), rcond=None)[0]
    return Line(latency, 1 / slope, float(np.max(np.abs((latency + slope * sizes_) / times_ - 1))))


# ---------------------------------------------------------------- measurements

def in_memory() -> dict[str, Line]:
    """Collectives of 8 devices that share memory, by the bytes of the whole array."""
    mesh = anima.make_mesh((COUNT,), ("x",), axis_types=(anima.sharding.AxisType.Auto,))
    functions: dict[str, Callable[[Any], Any]] = {
        "psum": lambda a: lax.psum(a, "x"), "all_gather": lambda a: lax.all_gather(a, "x"),
        "reduce_scatter": lambda a: lax.psum_scatter(a[0], "x", tiled=True),
        "all_to_all": lambda a: lax.all_to_all(a.reshape(COUNT, -1), "x", 0, 0, tiled=True),
        "ppermute": lambda a: lax.ppermute(a, "x", [(k, (k + 1) % COUNT) for k in range(COUNT)])}
    found = {}
    for name, f in functions.items():
        run = anima.jit(anima.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))
        sizes, times = [], []
        for power in range(12, 25, 2):
            x = np.ones((COUNT, 2**power // (4 * COUNT)), np.float32)
            run(x)
            sizes.append(float(x.nbytes))
            times.append(statistics.median(seconds(lambda x=x, run=run: run(x)) for _ in range(5)))
        found[name] = fitted(sizes, times)
    return found


def _echo(other: Connection) -> None:
    while message := other.recv_bytes():
        other.send_bytes(message)


def pipe() -> Line:
    """Messages between two processes of this machine."""
    mine, other = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_echo, args=(other,), daemon=True)
    process.start()

    def there_and_back(message: bytes) -> None:
        mine.send_bytes(message)
        mine.recv_bytes()

    there_and_back(b"ready")
    sizes = [2**power for power in range(6, 25, 2)]
    times = [statistics.median(seconds(lambda m=bytes(n): there_and_back(m)) for _ in range(5)) / 2 for n in sizes]
    mine.send_bytes(b"")
    process.join()
    return fitted([float(n) for n in sizes], times)


def step_seconds(rows: int) -> tuple[float, list[Any]]:
    """A training step on so many rows by one device, and the collectives of the data-parallel one."""
    data, _ = example.load_digits(0.2, anima.random.key(0))
    args = example.init(anima.random.key(1)), data.images[:rows], data.labels[:rows]
    step = anima.jit(example.make_step())
    step(*args)
    mesh = anima.make_mesh((COUNT,), ("x",), axis_types=(anima.sharding.AxisType.Auto,))
    collectives = example.data_parallel(mesh).lower(*args).partitioned.collectives
    return statistics.median(seconds(lambda: anima.block_until_ready(step(*args))) for _ in range(15)), collectives


# ---------------------------------------------------------------- the model

def collective_seconds(name: str, size: float, count: int, link: Line) -> float:
    """What a collective takes on so many ranks."""
    return ROUNDS[name](count) * link.latency + SENT[name](size, count) / link.bandwidth


def step_on(count: int, compute: float, collectives: list[Any], link: Line) -> float:
    """A training step that computes for so long on each of so many ranks."""
    return compute + sum(c.runs * collective_seconds(c.name, c.size, count, link) for c in collectives)


def main() -> None:
    print("8 devices that share memory: time = latency + bytes of the whole array / bandwidth")
    for name, line in in_memory().items():
        print(f"  {name:16s}{line.latency * 1e6:8.1f} us {line.bandwidth / 1e9:8.1f} GB/s   off by {line.off:.0%}")
    measured = pipe()
    print(f"pipe between two processes: {measured.latency * 1e6:.1f} us, {measured.bandwidth / 1e9:.2f} GB/s, off by "
          f"{measured.off:.0%}")
    links = {"pipes, as measured": measured, "assumed: 20 us, 1.25 GB/s": Line(20e-6, 1.25e9),
             "assumed: 2 us, 12.5 GB/s": Line(2e-6, 12.5e9)}
    for rows in ROWS:
        compute, collectives = step_seconds(rows)
        print(f"step of examples/on_devices.py, {rows} rows on each rank: {compute * 1e3:.2f} ms of computation; "
              "in all, with the share of it")
        for text, link in links.items():
            times = [step_on(n, compute, collectives, link) for n in RANKS]
            print(f"  {text:28s}" + "".join(f"{n:6,d}: {t * 1e3:6.2f} ms ({compute / t:4.0%})"
                                            for n, t in zip(RANKS, times, strict=True)))


if __name__ == "__main__":
    main()
