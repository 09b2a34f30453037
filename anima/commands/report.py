"""`python -m anima report script.py:function`: where the time of a function's compiled programs goes.

The script is run as a module (what stands under `if __name__ == "__main__"` is not), then the function is called six
times, without arguments. For each program that it ran there is a table: its kernels, the lines that asked for them,
bytes, operations, times, and the share of the machine's limit.
"""

from __future__ import annotations

import inspect
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from anima.api.report import noted, report as report_of
from anima.compiler import cache
from anima.config import profiling


def report(arguments: Sequence[str]) -> None:
    """Runs the command; leaves Python with status 2 where there is no such function, or one that takes arguments."""
    path, _, name = arguments[0].rpartition(":") if len(arguments) == 1 else ("", "", "")
    if not path or not name:
        _refuse(__doc__ or "")
    function = _function(path, name)
    with profiling(True):
        events = noted(function)
    called = {e.name for e in events if e.kind == "call"}
    found = [report_of(code.program, None, events) for code in cache.alive() if code.program.name in called]
    if not found:
        _refuse(f"{name} ran no compiled program: is there a jitted function in it?")
    found.sort(key=lambda r: -sum(row.measured or 0 for row in r.rows))
    print("\n\n".join(map(str, found)))


def _function(path: str, name: str) -> Callable[[], Any]:
    if not Path(path).is_file():
        _refuse(f"there is no file {path}")
    sys.path.insert(0, str(Path(path).resolve().parent))
    function = runpy.run_path(path).get(name)
    if not callable(function):
        _refuse(f"{path} has no function {name}")
    needed = [p.name for p in inspect.signature(function).parameters.values()
              if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if needed:
        _refuse(f"{name} takes arguments ({', '.join(needed)}): name a function without, which calls it")
    return function


def _refuse(text: str) -> None:
    print(text, file=sys.stderr)
    sys.exit(2)
