"""The current trace of each thread: who is told when a primitive is applied."""

from __future__ import annotations

import threading
import warnings
from typing import Any

from anima import errors


class _State(threading.local):
    trace: Any = None  # set to the evaluating trace by core/trace.py for every thread
    axes: tuple[tuple[Any, int], ...] = ()  # names and sizes of the mapped axes, for collectives
    manual: Any = None  # of these, the axes of a mesh that types tell of (`core.axes.Manual`)
    recording: Any = None  # the tape that is being made (`core.replay`), which has to know who looks into arrays
    names: tuple[Any, ...] = ()  # of the scopes and transformations around what is done (`core.source.NameStack`)
    source: Any = None  # while a recorded program is gone through again: where its current equation came from


current = _State()


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the user's line. A tape gives no warnings: of what is being recorded, there will be none."""
    if current.recording is not None:
        current.recording.looked = True
    warnings.warn(message, category, stacklevel=errors.user_stacklevel())


def is_tracing() -> bool:
    """Whether some enclosing trace records a program rather than running it."""
    return inside("DynamicJaxprTrace")


def inside(label: str) -> bool:
    """Whether the current trace, or one that it runs under, is of this kind."""
    trace = current.trace
    while trace is not None:
        if trace.label == label:
            return True
        trace = trace.parent
    return False
