"""`python -m anima cache`: looks after the compiled programs on disk (`docs/caching.md`).

    show     where they are, how many, how large, when they were used (what is done where nothing is said)
    check    reads all of them, and deletes those that are not whole
    clear    deletes them
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from anima.compiler.machine import store
from anima.compiler.machine.folder import Folder
from anima.config import compilation_cache_max_size


def _show(folder: Folder) -> int:
    entries = folder.entries()
    size, largest = sum(e.size for e in entries), compilation_cache_max_size.value
    room = f"of {largest / 1e6:,.0f} MB" if largest >= 0 else "with no limit"
    print(f"{folder.path}\n{len(entries)} files, {size / 1e6:,.1f} MB {room}")
    if entries:
        first, last = (time.strftime("%Y-%m-%d %H:%M", time.localtime(e.used)) for e in (entries[0], entries[-1]))
        print(f"used between {first} and {last}")
    return 0


def _check(folder: Folder) -> int:
    whole, bad = folder.check()
    print(f"{folder.path}\n{whole} files are whole; {bad} were not, and are deleted")
    return int(bad > 0)


def _clear(folder: Folder) -> int:
    print(f"{folder.path}\n{folder.clear()} files deleted")
    return 0


_ACTIONS: dict[str, Callable[[Folder], int]] = {"show": _show, "check": _check, "clear": _clear}


def cache(arguments: Sequence[str]) -> None:
    """Runs the command; leaves Python with status 1 where files were damaged or the folder is not safe, 2 for words
    that it does not know."""
    action = _ACTIONS.get(arguments[0] if arguments else "show")
    if action is None or len(arguments) > 1:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    where = store.location()
    if where is None:
        print("Compiled programs are not kept on disk: anima_enable_compilation_cache is off, or there is no folder "
              "of caches.")
        sys.exit(0)
    try:
        status = action(Folder(where))
    except OSError as error:
        print(f"{where} cannot be used: {error}", file=sys.stderr)
        status = 1
    sys.exit(status)
