"""Events that listeners are told of: a library's own, and how long Anima traces and compiles.

    >>> from anima import monitoring
    >>> seen = []
    >>> monitoring.register_event_listener(lambda event, **details: seen.append((event, details)))
    >>> monitoring.record_event("/library/restart", step=3)
    >>> seen
    [('/library/restart', {'step': 3})]
    >>> monitoring.clear_event_listeners()

Anima records the durations "/jax/core/compile/jaxpr_trace_duration" and "/jax/core/compile/backend_compile_duration",
in seconds and as spans of `time.time()`, with the `fun_name` of what is compiled.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anima.names import access

_Listener = Callable[..., None]
_events: list[_Listener] = []
_durations: list[_Listener] = []
_spans: list[_Listener] = []
_scalars: list[_Listener] = []


def _tell(listeners: list[_Listener], *event: Any, **details: Any) -> None:
    for listener in [*listeners]:
        listener(*event, **details)


def _forget(listeners: list[_Listener], callback: _Listener) -> None:
    if callback not in listeners:
        raise ValueError(f"{callback!r} is not registered as a listener of such events")
    listeners.remove(callback)


def record_event(event: str, **kwargs: Any) -> None:
    """Tells listeners that `event` happened: `callback(event, **kwargs)`."""
    _tell(_events, event, **kwargs)


def record_event_duration_secs(event: str, duration: float, **kwargs: Any) -> None:
    """Tells listeners how many seconds `event` took: `callback(event, duration, **kwargs)`."""
    _tell(_durations, event, duration, **kwargs)


def record_event_time_span(event: str, start_time: float, end_time: float, **kwargs: Any) -> None:
    """Tells listeners from when to when `event` took place: `callback(event, start_time, end_time, **kwargs)`."""
    _tell(_spans, event, start_time, end_time, **kwargs)


def record_scalar(event: str, value: float, **kwargs: Any) -> None:
    """Tells listeners a number: `callback(event, value, **kwargs)`."""
    _tell(_scalars, event, value, **kwargs)


def register_event_listener(callback: _Listener) -> None:
    """`callback` is called for each `record_event`."""
    _events.append(callback)


def register_event_duration_secs_listener(callback: _Listener) -> None:
    """`callback` is called for each `record_event_duration_secs`."""
    _durations.append(callback)


def register_event_time_span_listener(callback: _Listener) -> None:
    """`callback` is called for each `record_event_time_span`."""
    _spans.append(callback)


def register_scalar_listener(callback: _Listener) -> None:
    """`callback` is called for each `record_scalar`."""
    _scalars.append(callback)


def unregister_event_listener(callback: _Listener) -> None:
    """Undoes `register_event_listener`; ValueError if there is nothing to undo, here and below."""
    _forget(_events, callback)


def unregister_event_duration_listener(callback: _Listener) -> None:
    """Undoes `register_event_duration_secs_listener`."""
    _forget(_durations, callback)


def unregister_event_time_span_listener(callback: _Listener) -> None:
    """Undoes `register_event_time_span_listener`."""
    _forget(_spans, callback)


def unregister_scalar_listener(callback: _Listener) -> None:
    """Undoes `register_scalar_listener`."""
    _forget(_scalars, callback)


def clear_event_listeners() -> None:
    """Forgets every listener."""
    for listeners in (_events, _durations, _spans, _scalars):
        listeners.clear()


globals().update(access(__name__, globals()))
