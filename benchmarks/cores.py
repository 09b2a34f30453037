"""More cores: the time of kernels on 1, 2, 4, ... threads of this machine, and a model of it on 16 and 64 cores.

    python -m benchmarks.cores

A kernel whose time here is that of reading and writing memory, by half at least, keeps its share of the bandwidth.
Others take `serial + parallel / n` with n threads, fitted to what is measured here; each number of threads is measured
in a process of its own (which reads ANIMA_NUM_THREADS).

Assumed: cores as quick as these, all at the same clock however many work; pieces of equal work (schedules cut work for
the target's threads, and least pieces stay as they are); caches that hold what a core works on, as here; memory that
lies with the core that uses it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

import anima
import anima.numpy as jnp
from anima import lax
from benchmarks import limits
from benchmarks.core import layer_norm, selu, softmax
from benchmarks.harness import Work, work_of
from benchmarks.timing import seconds

ROUNDS = 15
MACHINES = {"16 cores, 200 GB/s": (16, 200e9), "64 cores, 400 GB/s": (64, 400e9)}


class Kernel(NamedTuple):
    """A measured function: its name, seconds, and what it must do."""

    name: str
    seconds: float
    work: Work


def kernels() -> Iterator[Kernel]:
    """Functions of large arrays, with the threads of this process."""
    rng = np.random.default_rng(0)
    rows, image = rng.normal(size=(8192, 1024)), rng.normal(size=(16, 56, 56, 64))
    functions = {
        "x + 1": (lambda x: x + 1, rows), "selu": (selu(jnp), rows), "softmax of rows": (softmax(jnp), rows),
        "layer norm of rows": (layer_norm(jnp), rows), "sum": (lambda x: x.sum(), rows),
        "sums of columns": (lambda x: x.sum(0), rows), "transpose": (lambda x: x.T, rows),
        "cumulative sums of rows": (lambda x: jnp.cumsum(x, 1), rows), "sort of rows": (lambda x: jnp.sort(x), rows),
        "product of 1024x1024": (lambda x: x @ x, rows[:1024]),
        "convolution 3x3, 64 to 64": (lambda x: lax.conv_general_dilated(
            x, jnp.ones((3, 3, 64, 64)), (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")), image)}
    for name, (fun, x) in functions.items():
        x = jnp.asarray(x, jnp.float32)
        compiled = anima.jit(fun)

        def run(compiled: object = compiled, x: object = x) -> None:
            anima.block_until_ready(compiled(x))  # type: ignore[operator]

        run()
        yield Kernel(name, min(seconds(run) for _ in range(ROUNDS)), work_of(fun, (x,)))


def measured(threads: int) -> list[Kernel]:
    """The kernels with so many threads, in a process of its own."""
    environment = {**os.environ, "ANIMA_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "benchmarks.cores", "measure"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment,
                          cwd=Path(__file__).resolve().parent.parent)
    return [Kernel(name, time, Work(*work)) for name, time, work in json.loads(done.stdout)]


def fitted(times: dict[int, float]) -> tuple[float, float]:
    """`serial` and `parallel` of the least squares of relative errors, none of them negative."""
    counts, seconds_ = np.array(list(times)), np.array(list(times.values()))
    columns = np.stack([np.ones(len(times)), 1 / counts], 1) / seconds_[:, None]
    serial, parallel = np.linalg.lstsq(columns, np.ones(len(times)), rcond=None)[0]
    if serial < 0:
        serial, parallel = 0.0, 1 / (1 / counts / seconds_).mean()
    return float(serial), float(parallel)


def foretold(times: dict[int, float], work: Work, cores: int, bandwidth: float) -> float:
    """Seconds on a machine, from those with some numbers of threads on this one."""
    moving, least = limits.streaming(work.read, work.written), (work.read + work.written) / bandwidth
    here = times[max(times)]
    if moving is not None and moving > here / 2:
        return max(times[1] / cores, least * here / moving)
    serial, parallel = fitted(times)
    return max(serial + parallel / cores, least)


def main() -> None:
    cores = limits.cores()
    counts = sorted({1, *(2**k for k in range(cores.bit_length()) if 2**k <= cores), cores})
    found = {n: measured(n) for n in counts}
    print(f"milliseconds, and how much quicker than with one thread; foretold: {', '.join(MACHINES)}")
    for k, first in enumerate(found[1]):
        times = {n: found[n][k].seconds for n in counts}
        text = [f"{n}: {1e3 * t:8.3f} {first.seconds / t:5.2f}x" for n, t in times.items()]
        for n, bandwidth in MACHINES.values():
            guess = foretold(times, first.work, n, bandwidth)
            text.append(f"{n} foretold: {1e3 * guess:7.3f} {first.seconds / guess:5.1f}x")
        print(f"{first.name:28s} {'   '.join(text)}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["measure"]:
        print(json.dumps([(k.name, k.seconds, (k.work.read, k.work.written, k.work.operations)) for k in kernels()]))
    else:
        main()
