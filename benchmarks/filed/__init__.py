"""What people filed as slow on CPUs since JAX 0.4.32: orbits, neurons, robots, filters, loops; beside JAX and Numba.

    ANIMA_BENCH_OLD_JAX=/path/to/python python -m benchmarks.filed [WORD ...]     JAX 0.4.31, the last quick one

Each library is a process of its own, with its own dependencies; they run in turn. A row is the time of a call,
another (`first`) that from the definition to the end of the first call.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.filed.programs import PROGRAMS
from benchmarks.harness import HAVE_JAX, HAVE_NUMBA, print_row

ROUNDS = 9
SPIN = 0.3  # seconds


class Peer:
    """A process that measures one library."""

    def __init__(self, python: str, library: str) -> None:
        root = Path(__file__).resolve().parents[2]
        path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [python, str(root / "benchmarks/filed/programs.py"), library], stdin=subprocess.PIPE, text=True,
            stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path})

    def ask(self, *question: Any) -> list[float]:
        """What it answers; RuntimeError if it has died. What is measured once waits for the threads of the peer before,
        which spin for a while when they have nothing to do."""
        if question:
            time.sleep(SPIN)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(question), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.process.args} ended with status {self.process.wait()}")
        found: list[float] = json.loads(answer)
        return found

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def peers() -> dict[str, Peer]:
    """Those that are installed."""
    found = {"anima": Peer(sys.executable, "anima")}
    if os.environ.get("ANIMA_BENCH_JAX") or HAVE_JAX:
        found["jax"] = Peer(os.environ.get("ANIMA_BENCH_JAX", sys.executable), "jax")
    if os.environ.get("ANIMA_BENCH_OLD_JAX"):
        found["jax-0.4.31"] = Peer(os.environ["ANIMA_BENCH_OLD_JAX"], "jax")
    if HAVE_NUMBA:
        found["numba"] = Peer(sys.executable, "numba")
    return found


def main(words: list[str] | None = None) -> None:
    print(f"medians of {ROUNDS} rounds, each library in a process of its own; N x = takes N times as long as Anima")
    found = peers()
    for name, (_, _, differentiable) in PROGRAMS.items():
        if words and not any(word in name for word in words):
            continue
        for gradient in (False, True)[:1 + differentiable]:
            made = {who: answer for who, peer in found.items() if (answer := peer.ask(name, gradient))}
            times: dict[str, list[float]] = {who: [] for who in made}
            for _ in range(ROUNDS):
                for who in made:
                    times[who] += found[who].ask()
            values = {who: value for who, (_, value) in made.items()}
            differ = max(abs(v - values["anima"]) / abs(values["anima"]) for v in values.values())
            part = "gradient" if gradient else ""
            print_row(name, {who: statistics.median(t) for who, t in times.items()}, f"values differ by {differ:.0e}",
                      part=part)
            print_row(name, {who: first for who, (first, _) in made.items()}, part=f"{part} first".strip())
    for peer in found.values():
        peer.close()
