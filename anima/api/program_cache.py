"""The programs of jitted functions: what is known of each function's signatures, for as long as something may call it.

Functions that are equal, jitted with the same options, share theirs.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Hashable
from typing import Any

from anima.core.kept import ByFunction, held, loosened
from anima.util import cleared

NONE = (None, None, None)


class ProgramCache:
    """What is known of the signatures of one function, jitted with the same options, by whoever and how often.

    `simple`, `recent` and `placed` are what was used lately, the last first, by the options: for calls whose arguments
    are leaves by position (but for a leaf that is not the only one and donated: it might be given twice); for all
    calls; for those of which something says on which devices they take place. `last` is one of `simple`, found by the
    identity of the options: these, its `run` and its `finish`. `open` has what closes over tracers; `making` says which
    threads trace a program now, and for which signature.
    """

    __slots__ = ("__weakref__", "entries", "last", "making", "open", "placed", "recent", "simple")

    def __init__(self) -> None:
        self.entries: dict[Any, Any] = {}  # `Entry`s of `jit.py`, by signature
        self.simple: dict[Any, tuple[Any, ...]] = {}
        self.recent: dict[Any, tuple[Any, ...]] = {}
        self.placed: dict[Any, tuple[Any, ...]] = {}
        self.open: dict[Any, tuple[Any, list[Any]]] = {}
        self.last: tuple[Any, Any, Any] = NONE
        self.making: set[tuple[int, Any]] = set()

    def within(self, key: Any) -> Any:
        """The entry that closes over tracers which are there now; None if there is none."""
        entry, loose = self.open.get(key, (None, ()))
        outer = held(loose)
        if entry is None or outer is None:
            return None
        entry = copy.copy(entry)
        entry.outer = outer
        return entry

    def keep_within(self, key: Any, entry: Any) -> None:
        """Keeps an entry that closes over tracers, but not these."""
        loose = loosened(entry.outer)
        if loose is not None:
            alone = copy.copy(entry)
            alone.outer = []
            self.open[key] = alone, loose

    def clear(self) -> None:
        self.last = NONE
        self.entries.clear()
        self.open.clear()
        self.recent.clear()
        self.simple.clear()
        self.placed.clear()


# Those that have been traced. (The garbage collector knows them too, but it tells of tuples that other threads are
# still making, which they then cannot finish.)
traced: weakref.WeakValueDictionary[int, ProgramCache] = weakref.WeakValueDictionary()
_known = ByFunction()  # though nothing refers to what `jit` made of them


@cleared
def _clear_functions() -> None:
    for ref in traced.valuerefs():
        programs = ref()
        if programs is not None:
            programs.clear()


def programs_of(fun: Callable[..., Any], options: Hashable) -> ProgramCache:
    """Those of an equal function with the same options, if there are any."""
    known = _known.of(fun)
    try:
        return ProgramCache() if known is None else known.setdefault(options, ProgramCache())
    except Exception:  # of options without hash or equality
        return ProgramCache()
