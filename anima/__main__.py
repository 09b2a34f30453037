"""Anima's commands.

    python -m anima run train.py ARGS...        a program written for JAX, on Anima
    python -m anima run -m pytest ARGS...       a module
    python -m anima report script.py:function   where the time of a function's compiled programs goes
    python -m anima cache [show|check|clear]    the compiled programs on disk
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from anima.commands.cache import cache
from anima.commands.report import report
from anima.dropin.command import run

COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {"cache": cache, "report": report, "run": run}


def main(arguments: Sequence[str]) -> None:
    """Runs the command that the first argument names."""
    if not arguments or arguments[0] not in COMMANDS:
        asked = bool(arguments) and arguments[0] in ("-h", "--help")
        print(__doc__, file=sys.stdout if asked else sys.stderr)
        sys.exit(0 if asked else 2)
    COMMANDS[arguments[0]](arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
