"""Timing functions beside each other: in turn, in one process, ratios of medians.

A case gives the same work to several contestants, each a function that does it once. Rounds alternate
between contestants, so that what else the machine does falls on all of them alike. Every row that is shown is
kept, for the summary at the end of a run of all benchmarks.
"""

from __future__ import annotations

import importlib.util
import json
import math
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, astuple, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import anima
from benchmarks import limits
from benchmarks.timing import seconds

HAVE_JAX = importlib.util.find_spec("jax") is not None
HAVE_TORCH = importlib.util.find_spec("torch") is not None
HAVE_NUMBA = importlib.util.find_spec("numba") is not None
PAUSE = 0.03  # seconds after which the threads of the contestant before have stopped spinning


@dataclass(frozen=True)
class Work:
    """What a row cannot do without: bytes of its arguments and of its results, operations on floats."""

    read: int
    written: int
    operations: float


def work_of(fun: Callable[..., Any], args: Sequence[Any]) -> Work:
    """What a function of arrays must read, write and compute once: its arguments, its results, its operations."""
    lowered = anima.jit(fun).lower(*args)
    results = anima.tree_util.tree_leaves(anima.eval_shape(fun, *args))
    operations = lowered.compile().cost_analysis()["flops"]
    read = sum(np.asarray(x).nbytes for x in anima.tree_util.tree_leaves(args))
    return Work(read, sum(x.size * np.dtype(x.dtype).itemsize for x in results), operations)


@dataclass
class Case:
    """One piece of work. `contestants`: name -> function doing it once, results ready when it returns.

    `work`: what it is at least, for rows whose time the machine's bandwidth or arithmetic limits. `warm`: for how many
    seconds each does it before it is measured, where what is often called is compiled.
    """

    name: str
    contestants: dict[str, Callable[[], Any]]
    rounds: int = 15
    work: Work | None = None
    warm: float = 0.0


@dataclass(frozen=True)
class Row:
    """A measured row: seconds by contestant, and the share that Anima reaches of the machine's limit."""

    benchmark: str
    name: str
    seconds: dict[str, float]
    share: float | None = None


ROWS: list[Row] = []
LIMIT = "limit"  # the contestant that does no more than the work cannot do without
PEERS = "jax", "jax-0.4.31", "torch", "numpy", "scipy", "numba"


def measure(case: Case) -> dict[str, float]:
    """Median seconds of each contestant, and of this machine for the bare work, where it is known."""
    for run in case.contestants.values():
        begin = time.perf_counter()
        run()
        while time.perf_counter() - begin < case.warm:
            run()
    needs = limits.bare(*astuple(case.work)) if case.work is not None else []
    bare = {f"{LIMIT} {k} {n}": way for k, need in enumerate(needs) for n, way in enumerate(need)}
    times: dict[str, list[float]] = {name: [] for name in (*case.contestants, *bare)}
    for _ in range(case.rounds):
        for name, run in (case.contestants | bare).items():
            if len(times) > 1:
                time.sleep(PAUSE)
            run()
            times[name].append(seconds(run))
    medians = {name: statistics.median(t) for name, t in times.items()}
    found = {name: medians[name] for name in case.contestants}
    if needs:
        found[LIMIT] = max(min(medians[f"{LIMIT} {k} {n}"] for n in range(len(need))) for k, need in enumerate(needs))
    return found


def measure_fresh(contestants: dict[str, Callable[[], Callable[[], Any]]], rounds: int = 5) -> dict[str, float]:
    """Median seconds of work that is done once only (tracing, compiling): each maker gives a fresh run."""
    times: dict[str, list[float]] = {n: [] for n in contestants}
    for make in contestants.values():
        make()()
    for _ in range(rounds):
        for n, make in contestants.items():
            run = make()
            start = time.perf_counter()
            run()
            times[n].append(time.perf_counter() - start)
    return {n: statistics.median(t) for n, t in times.items()}


def print_row(name: str, medians: dict[str, float], more: str = "", part: str = "") -> None:
    """Prints a row: Anima's median, the others' as multiples of it, its share of the machine's limit; keeps it.

    `part`: of the row that `name` is (its gradient, compiling), printed in its place and kept behind the name.
    """
    own = medians["anima"]
    share = medians[LIMIT] / own if LIMIT in medians else None
    others = "  ".join(f"{n} {m / own:8.2f}x" for n, m in medians.items() if n not in ("anima", LIMIT))
    text = f"{f'  {part}' if part else name:34s} anima {own * 1e3:10.4f} ms   {others}"
    print("   ".join(filter(None, (text, "" if share is None else f"limit {share:5.0%}", more))), flush=True)
    ROWS.append(Row(_benchmark(), f"{name}: {part}" if part else name, medians, share))


def _benchmark() -> str:
    """The name of the module that a row is shown by."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_globals["__name__"] == __name__:
        frame = frame.f_back
    module = frame.f_globals["__name__"]
    return Path(frame.f_code.co_filename).stem if module == "__main__" else module.rpartition(".")[2]


def report(cases: Iterable[Case], title: str) -> None:
    """Runs cases and prints how many times longer than Anima each contestant takes."""
    print(f"{title}: median of each; N x = takes N times as long as Anima")
    for case in cases:
        print_row(case.name, measure(case))


def summary(rows: Sequence[Row] = ROWS) -> str:
    """How many rows each peer is quicker in, geometric means, those rows, and the share of the machine's limit."""
    lines = ["", "Anima's time over the peer's: geometric mean, and the rows in which the peer is quicker"]
    for peer in PEERS:
        ratios = {f"{r.benchmark}: {r.name}": r.seconds["anima"] / r.seconds[peer] for r in rows if peer in r.seconds}
        if ratios:
            slower = {name: ratio for name, ratio in ratios.items() if ratio > 1}
            mean = math.exp(statistics.mean(map(math.log, ratios.values())))
            lines.append(f"{peer:16s} {mean:6.2f} over {len(ratios)} rows; above 1: {len(slower)}")
            lines += [f"    {ratio:6.2f}  {name}" for name, ratio in sorted(slower.items(), key=lambda x: -x[1])]
    shares = [r.share for r in rows if r.share is not None]
    if shares:
        lines.append(f"share of the machine's limit: {statistics.mean(shares):.0%} in the mean of {len(shares)} rows")
    return "\n".join(lines)


def keep(folder: Path, rows: Sequence[Row] = ROWS) -> Path:
    """Writes the rows, and on what they were measured, as JSON; the file."""
    folder.mkdir(exist_ok=True)
    file = folder / f"bench-{time.strftime('%Y%m%d-%H%M%S')}.json"
    installed = {d.name.lower() for d in metadata.distributions()}
    versions = {name: metadata.version(name) for name in (*PEERS, "llvmlite") if name in installed}
    machine = {"processor": platform.processor() or platform.machine(), "cores": limits.cores(),
               "python": platform.python_version(), "versions": versions}
    file.write_text(json.dumps({"machine": machine, "rows": [asdict(r) for r in rows]}, indent=1))
    return file
