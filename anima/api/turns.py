"""What several threads ask for at the same time, made by one of them.

    made = in_turn(key, lambda: known[key] if key in known else make())     # waits while another thread is in a call
                                                                            # with an equal key
A thread that is in such a call never waits for another one, so no two wait for each other: what is made may need
something that another thread makes, which may need this.

That a thread is in a call, a lock says that it holds for as long, by a `with` of the call itself: Python takes and
releases such a lock without looking for interrupts in between. All else may be as an interrupt has left it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable
from typing import TypeVar

from anima.util import fork_safe

A = TypeVar("A")

_PATIENCE = 60.0  # seconds; then a thread goes on: the other one may wait for it in a way of its own
_LOOK = 0.1       # seconds after which it looks whether the other one is still there, if nobody tells


class _Turn:
    """A thread's call: it is in it while the lock is held, and says when it is `done`, unless an interrupt comes in
    between."""

    __slots__ = ("done", "lock")

    def __init__(self) -> None:
        self.lock, self.done = threading.Lock(), threading.Event()


class _Here(threading.local):
    turn: _Turn | None = None  # the last one of this thread


_here = _Here()
_lock = fork_safe(threading.Lock())
_making: dict[Hashable, _Turn] = {}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_making.clear)  # those threads are not there


def in_turn(key: Hashable, make: Callable[[], A]) -> A:
    """`make()`, where one thread at a time is in such a call, for equal keys; see the module."""
    if _here.turn is not None and _here.turn.lock.locked():
        return make()
    own = _here.turn = _Turn()
    with own.lock:
        try:
            _wait(key, own)
            return make()
        finally:
            with _lock:
                if _making.get(key) is own:
                    del _making[key]
            own.done.set()


def _wait(key: Hashable, own: _Turn) -> None:
    """Returns when it is this turn, or after a time."""
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        with _lock:
            other = _making.setdefault(key, own)
            if other is not own and not other.lock.locked():
                other = _making[key] = own
        if other is own:
            return
        other.done.wait(_LOOK)
