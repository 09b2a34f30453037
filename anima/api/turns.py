"""What several threads ask for at the same time, made by one of them.

    with turn(key):                     # waits while another thread is in a block for an equal key
        if key not in known:
            known[key] = make()

A thread that is in such a block never waits for another one, so no two wait for each other: what is made may need
something that another thread makes, which may need this.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from anima.util import fork_safe

_PATIENCE = 60.0  # seconds; then a thread goes on: the other one may wait for it in a way of its own


class _Here(threading.local):
    inside = False


_here = _Here()
_lock = fork_safe(threading.Lock())
_making: dict[Hashable, threading.Event] = {}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_making.clear)  # those threads are not there


@contextmanager
def turn(key: Hashable) -> Iterator[None]:
    """A block that one thread at a time is in, for equal keys; see the module."""
    if _here.inside:
        yield
        return
    done = threading.Event()
    try:  # from here on, so that an interrupt leaves nobody waiting
        while True:
            with _lock:
                other = _making.setdefault(key, done)
            _here.inside = other is done
            if _here.inside or not other.wait(_PATIENCE):
                break
        yield
    finally:
        _here.inside = False
        with _lock:
            if _making.get(key) is done:
                del _making[key]
        done.set()
