"""The current trace of each thread: who is told when a primitive is applied."""

from __future__ import annotations

import threading
from typing import Any


class _State(threading.local):
    trace: Any = None  # set to the evaluating trace by core/trace.py for every thread
    axes: tuple[tuple[Any, int], ...] = ()  # names and sizes of the mapped axes, for collectives
    source: Any = None  # while a recorded program is gone through again: where its current equation came from


current = _State()
