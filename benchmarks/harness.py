"""Timing functions beside each other: in turn, in one process, ratios of medians.

A case gives the same work to several contestants, each a function that does it once. Rounds alternate
between contestants, so that what else the machine does falls on all of them alike.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # or PyTorch's threads keep the cores when it is another's turn

HAVE_JAX = importlib.util.find_spec("jax") is not None
HAVE_TORCH = importlib.util.find_spec("torch") is not None


@dataclass
class Case:
    """One piece of work. `contestants`: name -> function doing it once, results ready when it returns."""

    name: str
    contestants: dict[str, Callable[[], Any]]
    rounds: int = 15
    unit: str = "run"
    notes: dict[str, str] = field(default_factory=dict)


def seconds(run: Callable[[], Any], least: float = 0.004) -> float:
    """Seconds of one call: a mean over as many as `least` seconds hold."""
    start = time.perf_counter()
    run()
    once = time.perf_counter() - start
    if once >= least:
        return once
    count = max(1, int(least / max(once, 1e-7)))
    start = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - start) / count


def measure(case: Case) -> dict[str, float]:
    """Median seconds of each contestant."""
    for run in case.contestants.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in case.contestants}
    for _ in range(case.rounds):
        for name, run in case.contestants.items():
            times[name].append(seconds(run))
    return {name: statistics.median(t) for name, t in times.items()}


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


def row(name: str, medians: dict[str, float]) -> str:
    """A line of the report: Anima's median, and the others' as multiples of it."""
    own = medians["anima"]
    others = "  ".join(f"{n} {m / own:8.2f}x" for n, m in medians.items() if n != "anima")
    return f"{name:34s} anima {own * 1e3:10.4f} ms   {others}"


def report(cases: list[Case], title: str) -> None:
    """Runs cases and prints how many times longer than Anima each contestant takes."""
    print(f"{title}: median of each; N x = takes N times as long as Anima")
    for case in cases:
        print(row(case.name, measure(case)), flush=True)
