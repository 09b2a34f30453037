"""Compiled programs, kept: the same program is compiled once in a process.

The key is the program itself as text: equal programs share the code while one of them is in use, and the code of the
last few programs stays for those that may come. Those of another name share all but the loops, which reports show. What
outlives the process is in `machine/objects.py`.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict

from anima.compiler.ir.loops import Program
from anima.compiler.machine.backend import LoadedCode
from anima.compiler.machine.target import Target
from anima.util import cleared, fork_safe, record

_KEPT = 64  # programs that nothing else may refer to; each takes some 50 KiB


@record(eq=False)
class Code:
    """A compiled program: its last loops, LLVM text and modules; what it calls (see `Emitted.callees`); whether it
    uses the thread pool."""

    program: Program
    texts: tuple[str, ...]
    modules: tuple[LoadedCode, ...]
    callees: tuple[tuple[int | None, str], ...]
    parallel: bool


Key = tuple[str, str, Target]  # name, text, machine
_known: weakref.WeakValueDictionary[Key, Code] = weakref.WeakValueDictionary()
_unnamed: weakref.WeakValueDictionary[tuple[str, Target], Code] = weakref.WeakValueDictionary()
_recent: OrderedDict[Key, Code] = OrderedDict()
_lock = fork_safe(threading.RLock())


def find(key: Key) -> Code | None:
    """The code of an equal program, if there is one."""
    code = _known.get(key)
    return None if code is None else keep(key, code)


def of_another_name(key: Key) -> Code | None:
    """The code of a program that differs in its name alone, if there is one."""
    return _unnamed.get(key[1:])


def keep(key: Key, code: Code) -> Code:
    """Remembers code; gives what another thread was quicker to make."""
    with _lock:
        code = _known.setdefault(key, code)
        _unnamed.setdefault(key[1:], code)
        _recent[key] = code
        _recent.move_to_end(key)
        while len(_recent) > _KEPT:
            _recent.popitem(last=False)
    return code


def alive() -> list[Code]:
    """The compiled programs that are in use, or kept for those that may come."""
    with _lock:
        return [*_known.values()]


@cleared
def clear() -> None:
    """Forgets the programs compiled by this process; objects in the folder stay."""
    with _lock:
        _known.clear()
        _unnamed.clear()
        _recent.clear()
