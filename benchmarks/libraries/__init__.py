"""Programs on the libraries of JAX's world: Anima in JAX's place beside JAX itself, each in a process of its own.

    ANIMA_BENCH_JAX=/path/to/python python -m benchmarks libraries      a Python that has JAX and the libraries
    python -m anima run benchmarks/libraries/programs.py optax_mlp      one program, as JSON

Processes of both run in turn; a row gives the time from the
program's definition to its first step (tracing and compiling), and that of later steps, as multiples of Anima's.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROUNDS = 3


def in_process(command: list[str], name: str) -> dict[str, float] | str:
    """What a process finds for a program; its last line of errors if it fails."""
    path = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([*command, str(HERE / "programs.py"), name], capture_output=True, text=True, env=environment)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no message"])[-1][:100]
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    from benchmarks.libraries.programs import PROGRAMS

    peers: dict[str, list[str]] = {"anima": [sys.executable, "-m", "anima", "run"]}
    if os.environ.get("ANIMA_BENCH_JAX"):
        peers["jax"] = [os.environ["ANIMA_BENCH_JAX"]]
    print(f"Medians of {ROUNDS} processes; N x = JAX takes N times as long as Anima")
    ratios: dict[str, list[float]] = {"first": [], "step": []}
    for name in PROGRAMS:
        found: dict[str, list[Any]] = {peer: [] for peer in peers}
        for _ in range(ROUNDS):
            for peer, command in peers.items():
                found[peer].append(in_process(command, name))
        print(line(name, found, ratios), flush=True)
    for what, values in ratios.items():
        if values:
            print(f"{what}: geometric mean {math.exp(statistics.mean(map(math.log, values))):.2f}x")


def line(name: str, found: dict[str, list[Any]], ratios: dict[str, list[float]]) -> str:
    """A line of the report; JAX's ratios are put into `ratios`."""
    for peer, rounds in found.items():
        failed = next((r for r in rounds if isinstance(r, str)), None)
        if failed is not None:
            return f"{name:24s} {peer}: {failed}"
    text = f"{name:24s}"
    for what, unit in (("first", 1e3), ("step", 1e3)):
        own = statistics.median(r[what] for r in found["anima"])
        text += f"  {what} {own * unit:10.3f} ms"
        if "jax" in found:
            ratio = statistics.median(r[what] for r in found["jax"]) / own
            ratios[what].append(ratio)
            text += f" {ratio:7.2f}x"
    if "jax" in found:
        a, b = found["anima"][0]["value"], found["jax"][0]["value"]
        text += f"  values differ by {abs(a - b) / max(abs(b), 1e-30):.0e}"
    return text

