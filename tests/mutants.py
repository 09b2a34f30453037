"""Mutation testing: one file's code is changed in one place at a time, and the tests that belong to it have to see it.

    python3 run.py mutants anima/api/jit.py --sample 60       cosmic-ray's operators, and those of `slips.py`

Everything happens in copies of the tree. Survivors are printed as diffs: each is a test that is missing, or a change
that changes nothing. Cosmic-ray itself runs one command in place, on one mutant at a time; hence only its operators.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

from tests.slips import changed, slips

ROOT = Path(__file__).resolve().parent.parent
BYTECODE = "build/bytecode"  # where a tree has that of its modules
# A mutant must not take the machine with it: a loop that does not end may allocate.
MOST_MEMORY = 12 << 30
RUN = (f"import resource, sys, pytest; resource.setrlimit(resource.RLIMIT_AS, ({MOST_MEMORY}, {MOST_MEMORY}))\n"
       "sys.exit(pytest.main(sys.argv[1:]))")
_stopping = threading.Event()


class _Bare(ast.NodeTransformer):
    """Takes out what running code does not depend on: annotations."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = None
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        node.annotation = ast.Constant(None)
        self.generic_visit(node)
        return node


def meaning(code: str) -> str:
    """A text that is equal for code that differs in annotations and layout only. SyntaxError if it is no good code."""
    with warnings.catch_warnings(action="error"):  # comparing a literal by `is`
        compile(code, "mutant", "exec")
    return ast.dump(_Bare().visit(ast.parse(code)))


def mutants(code: str, seed: int) -> Iterator[str]:
    """The code with one change each, every change once, in an order of chance."""
    tree = get_ast(code)
    operators = [get_operator(name) for name in operator_names()]
    changes = [partial(mutate_code, code, operator(), n) for operator in operators if not operator.arguments()
               for n in range(sum(len(list(operator().mutation_positions(node))) for node in ast_nodes(tree)))]
    changes += [partial(changed, code, slip) for slip in slips(code)]
    random.Random(seed).shuffle(changes)
    known = {meaning(code)}
    for change in changes:
        mutant = change()
        with contextlib.suppress(SyntaxError):
            if mutant is not None and (means := meaning(mutant)) not in known:
                known.add(means)
                yield mutant


def tests_of(file: Path) -> list[str]:
    """The test files that belong to a file of the package: of its name, else those beside that name it, else all."""
    place = file.relative_to("anima").parent
    while place.parts and not (ROOT / "tests" / place).is_dir():
        place = place.parent
    folder = ROOT / "tests" / (place if place.parts else "base")
    beside = sorted(folder.glob("test_*.py"))
    named = [t for t in beside if t.stem.startswith(f"test_{file.stem}")]
    module = ".".join(file.with_suffix("").parts)
    package, _, name = module.rpartition(".")
    naming = [t for t in beside if module in t.read_text() or f"from {package} import {name}" in t.read_text()]
    chosen = sorted({*named, *naming}) or beside
    if not chosen:
        raise SystemExit(f"No tests beside {file}: name some.")
    return [str(t.relative_to(ROOT)) for t in chosen]


def copy_tree(to: Path) -> Path:
    """A copy of the tree as it is now."""
    ignored = shutil.ignore_patterns(".git", ".venv*", "__pycache__", ".*_cache", ".hypothesis", "build", "out")
    return Path(shutil.copytree(ROOT, to, ignore=ignored))


def passes(tree: Path, tests: list[str], limit: float | None) -> bool:
    """Whether the tests pass in a tree; taking longer than `limit` seconds counts as a failure."""
    command = [sys.executable, "-c", RUN, "-q", "-x", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONPYCACHEPREFIX": str(tree / BYTECODE)}
    process = subprocess.Popen(command, cwd=tree, env=environment, text=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    start = time.monotonic()
    try:
        while process.poll() is None:
            if _stopping.is_set() or (limit is not None and time.monotonic() - start > limit):
                return False
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
        return process.returncode == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def survives(trees: SimpleQueue[Path], file: Path, mutant: str, tests: list[str], limit: float) -> bool:
    """Whether the tests pass with the mutant in place of the file."""
    tree = trees.get()
    place = tree / file
    original = place.read_text()
    try:
        for compiled in (tree / BYTECODE).rglob(f"{file.stem}.*.pyc"):
            compiled.unlink()  # it would be taken for that of a mutant of the same size and second
        place.write_text(mutant)
        return passes(tree, tests, limit)
    finally:
        place.write_text(original)
        trees.put(tree)


def report(file: Path, tests: list[str], sample: int | None, seed: int, limit: float | None, jobs: int) -> None:
    """Runs the mutants of a file and prints which of them no test saw."""
    code = (ROOT / file).read_text()
    chosen = [m for m, _ in zip(mutants(code, seed), range(sample), strict=False)] if sample else [*mutants(code, seed)]
    with tempfile.TemporaryDirectory(prefix="anima-mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        copies = [copy_tree(Path(folder) / str(k)) for k in range(jobs)]
        start = time.monotonic()
        if not all(pool.map(lambda tree: passes(tree, tests, None), copies)):
            raise SystemExit(f"The tests fail without any change: {' '.join(tests)}")
        limit = limit or 3 * (time.monotonic() - start) + 10
        print(f"{len(chosen)} mutants of {file}, {limit:.0f} s for each; {' '.join(tests)}", flush=True)
        trees: SimpleQueue[Path] = SimpleQueue()
        for copy in copies:
            trees.put(copy)
        runs = {pool.submit(survives, trees, file, m, tests, limit): m for m in chosen}
        seen = 0
        try:
            for done, run in enumerate(as_completed(runs), 1):
                seen += not run.result()
                if run.result():
                    diff = difflib.unified_diff(code.split("\n"), runs[run].split("\n"), str(file), "survivor",
                                                lineterm="", n=1)
                    print("\n".join(diff), f"\nseen {seen} of {done}\n", flush=True)
        finally:
            _stopping.set()
            pool.shutdown(cancel_futures=True)
    print(f"seen {seen} of {len(chosen)} mutants of {file}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="run.py mutants", description=__doc__.split("\n")[0])
    parser.add_argument("file", type=Path, help="a file of the package")
    parser.add_argument("tests", nargs="*", help="test files, or whatever pytest takes (those that belong to the file)")
    parser.add_argument("--sample", type=int, help="so many mutants, chosen by chance (all)")
    parser.add_argument("--seed", type=int, default=0, help="of that chance (0)")
    parser.add_argument("--limit", type=float, help="seconds for each (thrice what the tests take, and 10)")
    parser.add_argument("--jobs", type=int, default=2, help="how many run at once (2)")
    given = parser.parse_intermixed_args()
    file = given.file.resolve().relative_to(ROOT)
    report(file, given.tests or tests_of(file), given.sample, given.seed, given.limit, given.jobs)


if __name__ == "__main__":
    main()
