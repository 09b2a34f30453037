"""Runs many random programs, in processes of their own: a crash or a hang names its program, and the rest goes on.

    python -m tests.laws.run --programs 20000 --threads 1,2,8 --seed 0 --log /tmp/laws.jsonl

The log has a line for each program; a program that is in it is not run again, so a run can be stopped and taken up.
`--show 17` prints program 17, made as small as still fails. With `--scramble`, the compiler has other thresholds in
each process, and a program of products comes with each.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import faulthandler
import json
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from tests.laws import product_programs
from tests.laws.random_control import draw
from tests.laws.random_laws import broken
from tests.laws.random_programs import Program, shrink
from tests.laws.thresholds import scrambled

SLICE = 250   # programs of one process
SCRAMBLED = 40  # ... and of one that has thresholds of its own: those of its first program
PATIENCE = 300  # seconds for one program


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--programs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0, help="number of the first program")
    parser.add_argument("--threads", default="1,2,8", help="the numbers of threads that must give the same bits")
    parser.add_argument("--log", type=Path, default=Path("out/laws.jsonl"))
    parser.add_argument("--show", type=int, help="print this program, made small, and what it breaks")
    parser.add_argument("--scramble", action="store_true", help="change the compiler's thresholds at random")
    parser.add_argument("--child", nargs="*", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    counts = [int(n) for n in options.threads.split(",")]
    if options.show is not None:
        return show(options.show, counts)
    if options.child is not None:
        return child(options.child, counts, sys.stdout, options.scramble)
    return parent(options, range(options.seed, options.seed + options.programs))


def parent(options: argparse.Namespace, numbers: Sequence[int]) -> int:
    """Start a process for each slice of what is left; the program in which it ends early has crashed."""
    log = options.log
    log.parent.mkdir(parents=True, exist_ok=True)
    log.touch()
    left = unfinished(log, numbers)
    while left:
        now = left[:SCRAMBLED if options.scramble else SLICE]
        end = run_slice(log, now, options.threads, options.scramble)
        rest = unfinished(log, now)
        if rest:
            with log.open("a") as out:
                out.write(json.dumps({"number": rest[0], "broken": [("crash", end)]}) + "\n")
        left = unfinished(log, left)
    return report(log)


def unfinished(log: Path, numbers: Sequence[int]) -> list[int]:
    done = {json.loads(line)["number"] for line in log.read_text().splitlines()}
    return [n for n in numbers if n not in done]


def run_slice(log: Path, numbers: Sequence[int], threads: str, scramble: bool) -> str:
    """Run programs in another process, which adds to the log; how it ended."""
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.laws.run", "--threads", threads,
               *["--scramble"] * scramble, "--child"]
    with log.open("a") as out:
        ran = subprocess.run([*command, *map(str, numbers)], stdout=out, stderr=subprocess.PIPE, text=True)
    return f"exit status {ran.returncode}: {ran.stderr[-2000:]}"


def child(numbers: Sequence[int], counts: Sequence[int], out: TextIO, scramble: bool) -> int:
    with scrambled(numbers[0]) if scramble else contextlib.nullcontext():
        for number in numbers:
            faulthandler.dump_traceback_later(PATIENCE, exit=True)
            found = of_number(number, counts) + (of_products(number) if scramble else [])
            out.write(json.dumps({"number": number, "broken": found}) + "\n")
            out.flush()
    faulthandler.cancel_dump_traceback_later()
    return 0


def of_number(number: int, counts: Sequence[int]) -> list[tuple[str, str]]:
    try:
        program = draw(number)
    except Exception as error:  # of any kind: tracing is under test, too
        return [("drawn", f"{type(error).__name__}: {error}")]
    return broken(program, counts)


def of_products(number: int) -> list[tuple[str, str]]:
    try:
        product_programs.check(number)
    except Exception as error:
        return [("products", f"{type(error).__name__}: {error}")]
    return []


def report(log: Path) -> int:
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    bad = [one for one in lines if one["broken"]]
    laws = collections.Counter(law for one in bad for law, _ in one["broken"])
    print(f"{len(lines)} programs, {len(bad)} broken: {dict(laws)}")
    for one in bad:
        print(one["number"], *(f"{law}: {what[:200]}" for law, what in one["broken"][:1]))
    return int(bool(bad))


def show(number: int, counts: Sequence[int]) -> int:
    program = draw(number)
    found = broken(program, counts)
    if found:
        law, what = found[0]

        def fails(one: Program) -> bool:
            return any(w.split(":")[0] == what.split(":")[0] or ("differ" in w and "differ" in what)
                       for _, w in broken(one, counts, only=law))

        program = shrink(program, fails)
    print(program.source())
    for law, what in broken(program, counts):
        print(f"# {law}: {what}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
