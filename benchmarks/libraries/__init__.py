"""Programs on the libraries of JAX's world: Anima in JAX's place beside JAX itself, each in a process of its own.

    ANIMA_BENCH_JAX=/path/to/python python -m benchmarks.libraries [WORD ...]  a Python that has JAX and the libraries
    ANIMA_BENCH_OLD_JAX=/path/to/python ...      another, of JAX 0.4.31 with the libraries of what people filed as slow
    python -m anima run benchmarks/libraries/programs.py optax_mlp      one program, as JSON

Processes of all run in turn; a row gives the time from the program's definition to its first step (tracing and
compiling), and that of later steps, of others as multiples of Anima's. WORDs choose programs by parts of their names.
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

from benchmarks.libraries.programs import PROGRAMS

HERE = Path(__file__).resolve().parent
ROUNDS = 3
FILED = ("jaxley_gradient", "jnkepler_orbit", "pyhgf_filter")  # beside JAX 0.4.31 too: people stay there for these
ONLY_OLD = ("pyhgf_filter",)  # asks for a JAX before 0.4.32


def in_process(command: list[str], name: str) -> dict[str, float] | str:
    """What a process finds for a program; its last line of errors if it fails."""
    path = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # or modules that nobody installed are compiled again each time
    done = subprocess.run([*command, str(HERE / "programs.py"), name], capture_output=True, text=True, env=environment)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no message"])[-1][:100]
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def peers_of(name: str) -> dict[str, list[str]]:
    """How each peer that has the libraries of a program starts one."""
    found: dict[str, list[str]] = {"anima": [sys.executable, "-m", "anima", "run"]}
    if os.environ.get("ANIMA_BENCH_JAX") and name not in ONLY_OLD:
        found["jax"] = [os.environ["ANIMA_BENCH_JAX"]]
    if os.environ.get("ANIMA_BENCH_OLD_JAX") and name in FILED:
        found["jax-0.4.31"] = [os.environ["ANIMA_BENCH_OLD_JAX"]]
    return found


def main(words: list[str] | None = None) -> None:
    print(f"Medians of {ROUNDS} processes; N x = takes N times as long as Anima")
    ratios: dict[tuple[str, str], list[float]] = {}
    for name in PROGRAMS:
        if words and not any(word in name for word in words):
            continue
        peers = peers_of(name)
        found: dict[str, list[Any]] = {peer: [] for peer in peers}
        for _ in range(ROUNDS):
            for peer, command in peers.items():
                found[peer].append(in_process(command, name))
        for text in lines(name, found, ratios):
            print(text, flush=True)
    for (peer, what), values in ratios.items():
        print(f"{peer}, {what}: geometric mean {math.exp(statistics.mean(map(math.log, values))):.2f}x")


def lines(name: str, found: dict[str, list[Any]], ratios: dict[tuple[str, str], list[float]]) -> list[str]:
    """Lines of the report, one a peer; the ratios of others to Anima are put into `ratios`."""
    made = []
    own: dict[str, float] = {}
    for peer, rounds in found.items():
        failed = next((r for r in rounds if isinstance(r, str)), None)
        if failed is not None:
            made.append(f"{name:24s} {peer:10s} {failed}")
            continue
        times = {what: statistics.median(r[what] for r in rounds) for what in ("first", "step")}
        text = f"{name:24s} {peer:10s}"
        for what, seconds in times.items():
            text += f"  {what} {seconds * 1e3:10.3f} ms"
            if own:
                text += f" {seconds / own[what]:7.2f}x"
                ratios.setdefault((peer, what), []).append(seconds / own[what])
        if own:
            a, b = own["value"], rounds[0]["value"]
            text += f"  values differ by {abs(a - b) / max(abs(b), 1e-30):.0e}"
        elif peer == "anima":
            own = {**times, "value": rounds[0]["value"]}
        made.append(text)
    return made
