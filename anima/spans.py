"""Spans of time, recorded while a profile is taken (`anima.profiler`): what Anima does, and what users name.

    with span("simplify", "pass", program="step"):      # costs a comparison while nothing is recorded
        ...

Compiled programs record theirs themselves: `runtime/stamps.py`.
"""
from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any

from anima.util import record


@record
class Event:
    """What thread `thread` did in a span of time, in nanoseconds of `time.perf_counter_ns`."""

    name: str
    kind: str
    start: int
    duration: int
    thread: int
    details: dict[str, Any]


class _Recorder:
    """`events` are those of the profile that is being taken; None while none is."""

    def __init__(self) -> None:
        self.events: list[Event] | None = None


recorder = _Recorder()


class span:
    """A context manager: what is in it, for one thread. `details` may be added to until it ends."""

    __slots__ = ("details", "kind", "name", "start")

    def __init__(self, name: str, kind: str, **details: Any) -> None:
        self.name, self.kind, self.details = name, kind, details
        self.start = 0

    def __enter__(self) -> span:
        if recorder.events is not None:
            self.start = time.perf_counter_ns()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        events = recorder.events
        if events is not None and self.start:
            events.append(Event(self.name, self.kind, self.start, time.perf_counter_ns() - self.start,
                                threading.get_ident(), self.details))
