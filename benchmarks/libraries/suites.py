"""Libraries' own tests: how many of those that pass on JAX pass with Anima in its place, and in how much time.

    ANIMA_BENCH_JAX=/path/to/python python benchmarks/libraries/suites.py FOLDER [NAME ...]

This Python and that of ANIMA_BENCH_JAX must have the same libraries, and pytest. Sources are fetched into FOLDER by
pip; what each test came to is kept there. Only libraries that are named are run (with `--peer anima`, here alone). The
table of docs/libraries.md is written from all that FOLDER has; its lines about other libraries stay.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "libraries.md"
BEGIN, END = "<!-- suites: begin -->", "<!-- suites: end -->"
LIMIT = 600                     # seconds for the tests of one file; a file that takes longer on JAX is left out
NO_TESTS = 5                    # what pytest exits with where a file has none


@dataclass(frozen=True)
class Suite:
    """A library's tests: where they stand in its source distribution, and which of them are run."""

    title: str
    distribution: str
    folder: str                 # in the sources
    every: int = 1              # 4: each fourth file
    without: str = ""           # files that no peer runs, as a regular expression
    missing: str = ""           # what does not work, and why


SUITES = {
    "optax": Suite("Optax", "optax", "optax", missing="the text of compiled programs as HLO: there is none"),
    "chex": Suite("Chex", "chex", "chex", missing="a finite difference of float32 sums, which are rounded another way"),
    "linen": Suite("Flax linen", "flax", "tests/linen", every=4,
                   missing="the same bits of small products in and out of jit"),
    "nnx": Suite("Flax nnx", "flax", "tests/nnx", every=4, missing="variables as values of types of their own (hijax)"),
    "haiku": Suite("Haiku", "dm-haiku", "haiku", every=4),
    "numpyro": Suite("NumPyro", "numpyro", "test", every=4),
    "blackjax": Suite("Blackjax", "blackjax", "tests", every=4),
    "e3nn": Suite("e3nn-jax", "e3nn-jax", "tests", missing="numbers at the edge of a tolerance, in one function"),
    "jraph": Suite("Jraph", "jraph", "jraph"),
    "distrax": Suite("Distrax", "distrax", "distrax", every=4),
    "brax": Suite("Brax", "brax", "brax", every=4),
    "mjx": Suite("MuJoCo MJX", "mujoco-mjx", "mujoco/mjx", without="warp|integration"),
    "jaxley": Suite("Jaxley", "jaxley", "tests", every=4, without="jaxley_vs_neuron"),
    "jnkepler": Suite("jnkepler", "jnkepler", "tests",
                      missing="checkpoints stand elsewhere in programs of derivatives (a file too slow on JAX)"),
    "frax": Suite("frax", "frax", "tests", missing="one rounding error as a bound of another, in float32"),
}


def commands() -> dict[str, list[str]]:
    """How each peer starts a module of Python."""
    return {"jax": [os.environ["ANIMA_BENCH_JAX"], "-m"], "anima": [sys.executable, "-m", "anima", "run", "-m"]}


def fetched(suite: Suite, folder: Path) -> tuple[str, Path]:
    """The installed version of a library, and where its sources are."""
    text = f"from importlib.metadata import version; print(version({suite.distribution!r}))"
    version = subprocess.run([os.environ["ANIMA_BENCH_JAX"], "-c", text], capture_output=True, text=True, check=True)
    number = version.stdout.strip()
    place = folder / f"{suite.distribution.replace('-', '_')}-{number}"
    if not place.exists():
        subprocess.run([sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", suite.distribution,
                        "--dest", str(folder), f"{suite.distribution}=={number}"], check=True)
        archive = next(folder.glob(f"{suite.distribution.replace('-', '[-_]')}-{number}.tar.gz"))
        with tarfile.open(archive) as files:
            files.extractall(folder, filter="data")
    return number, place


def test_files(suite: Suite, place: Path) -> list[str]:
    """The files of tests that are run, by their paths in the sources."""
    found = sorted(str(path.relative_to(place)) for path in (place / suite.folder).rglob("*.py")
                   if re.fullmatch(r"test_.*|.*_test", path.stem))
    return [name for name in found if not (suite.without and re.search(suite.without, name))][::suite.every]


def run_file(command: list[str], place: Path, name: str) -> dict[str, Any]:
    """What each test of a file comes to ("passed", "skipped", "failed: why"), and the processor's seconds."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        try:
            done = subprocess.run([*command, "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", name],
                                  cwd=place, capture_output=True, text=True, timeout=LIMIT,
                                  env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)})
        except subprocess.TimeoutExpired:
            return {"tests": {}, "seconds": LIMIT, "stopped": f"took more than {LIMIT} s"}
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        tests = {}
        for case in ElementTree.parse(report).iter("testcase") if report.exists() else ():
            said = {child.tag: child.get("message", "") for child in case}
            failure = said.get("failure", said.get("error"))
            outcome = "skipped" if "skipped" in said else "passed" if failure is None else f"failed: {failure[:500]}"
            name = f"{case.get('classname')}.{case.get('name')}".replace("anima.numpy.", "jax.numpy.")  # as types print
            tests[name] = outcome
        if tests or done.returncode == NO_TESTS:
            return {"tests": tests, "seconds": seconds}
        lines = (done.stdout + done.stderr).strip().splitlines()
        return {"tests": {}, "seconds": seconds, "stopped": lines[-1][:300] if lines else f"status {done.returncode}"}


def run_suite(name: str, peer: str, folder: Path) -> None:
    """Runs a library's tests on one peer, and keeps what they come to."""
    suite = SUITES[name]
    version, place = fetched(suite, folder)
    found: dict[str, Any] = {"version": version, "files": {}}
    for file in test_files(suite, place):
        found["files"][file] = run_file(commands()[peer], place, file)
        (folder / f"{name}.{peer}.json").write_text(json.dumps(found, indent=1))
        outcomes = list(found["files"][file]["tests"].values())
        stopped = found["files"][file].get("stopped")
        said = f"no test ran: {stopped}" if stopped else f"{outcomes.count('passed')} of {len(outcomes)} passed"
        print(f"{name} {peer} {file}: {said}", flush=True)


def row(name: str, folder: Path) -> tuple[str, list[str]]:
    """A library's line of the table, and the tests that pass on JAX alone."""
    suite = SUITES[name]
    own, theirs = (json.loads((folder / f"{name}.{peer}.json").read_text()) for peer in ("anima", "jax"))
    files = [file for file, found in theirs["files"].items() if "passed" in found["tests"].values()]
    passing = [(file, test) for file in files for test, outcome in theirs["files"][file]["tests"].items()
               if outcome == "passed"]
    lost = [f"{file}: {test}" for file, test in passing
            if own["files"].get(file, {"tests": {}})["tests"].get(test) != "passed"]
    seconds = [sum(peer["files"][file]["seconds"] for file in files) for peer in (own, theirs)]
    share = "all" if suite.every == 1 else f"1 in {suite.every}"
    good = len(passing) - len(lost)
    return (f"| {suite.title} {theirs['version']} | {share} | {good} of {len(passing)} "
            f"| {100 * good / len(passing):.1f} % | {seconds[0]:.0f} s | {seconds[1]:.0f} s | {suite.missing} |"), lost


def write_table(folder: Path) -> None:
    """Puts the table of all libraries that both peers have run into the page; lines about others stay."""
    text = PAGE.read_text()
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    before = {line[2:].rpartition(" |")[0].split(" | ")[0].rpartition(" ")[0]: line
              for line in text[start:end].splitlines() if line.startswith("| ")}
    lines = ["| library | files | passed, of those passing on JAX | | Anima | JAX | what does not work |",
             "|---|---|---|---|---|---|---|"]
    for name in SUITES:
        if all((folder / f"{name}.{peer}.json").exists() for peer in ("anima", "jax")):
            line, lost = row(name, folder)
            lines.append(line)
            print(line, *lost, sep="\n  ")
        elif SUITES[name].title in before:
            lines.append(before[SUITES[name].title])
    PAGE.write_text(text[:start] + "\n" + "\n".join(lines) + "\n" + text[end:])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", choices=[[], *SUITES])
    parser.add_argument("--peer", choices=["anima", "jax"])
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.names:
        for peer in [options.peer] if options.peer else ["jax", "anima"]:
            run_suite(name, peer, options.folder.resolve())
    write_table(options.folder)


if __name__ == "__main__":
    main()
