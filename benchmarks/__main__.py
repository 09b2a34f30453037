"""Runs every benchmark: each module of this folder that has a `main`.

    python -m benchmarks [NAME ...]

At the end stand, for each peer that is installed, the geometric mean of Anima's time over its time, and the rows in
which it is quicker; all rows are kept as JSON in `out/`.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path

import benchmarks
from benchmarks import harness


def main(names: list[str]) -> int:
    found = [m.name for m in pkgutil.iter_modules(benchmarks.__path__) if not m.name.startswith("_")]
    unknown = sorted(set(names) - set(found))
    if unknown:
        print(f"No such benchmark: {', '.join(unknown)}; there are {', '.join(found)}.")
        return 2
    for name in names or found:
        module = importlib.import_module(f"benchmarks.{name}")
        if hasattr(module, "main"):
            print(f"\n{name}: {(module.__doc__ or '').splitlines()[0]}", flush=True)
            module.main()
        elif name in names:
            print(f"{name} is not a benchmark: it has no main().")
            return 2
    if harness.ROWS:
        print(harness.summary())
        print(f"\nkept in {harness.keep(Path(__file__).resolve().parents[1] / 'out')}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
