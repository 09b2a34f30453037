"""`python -m anima run`: a program as Python would run it, with Anima in the place of JAX.

    python -m anima run train.py --steps 10
    python -m anima run -m pytest tests
    python -m anima run -c "import jax; print(jax.__version__)"
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence

from anima.dropin.finder import install

_USAGE = "usage: python -m anima run (FILE | -m MODULE | -c TEXT) [ARGUMENTS]"


def run(arguments: Sequence[str]) -> None:
    """Runs a file, a module (-m) or a text (-c) as `__main__`, after `install()`."""
    if not arguments or (arguments[0] in ("-m", "-c") and len(arguments) < 2):
        sys.exit(_USAGE)
    install()
    first, rest = arguments[0], list(arguments[1:])
    if first == "-m":
        sys.argv = [rest[0], *rest[1:]]
        _search_first(os.getcwd())
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *rest[1:]]
        _search_first("")
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    elif not os.path.exists(first):
        sys.exit(f"{_USAGE}\nthere is no file {first!r}")
    else:
        sys.argv = [first, *rest]
        path = os.path.abspath(first)  # what Python tells the program of itself
        _search_first(os.path.dirname(path))
        runpy.run_path(path, run_name="__main__")


def _search_first(folder: str) -> None:
    """Modules are looked for in `folder` first: what Python does with the program's folder."""
    sys.path[0] = folder
