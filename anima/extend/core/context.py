"""Who is told of operations now: the current trace, as what wraps transformations asks for it."""

from __future__ import annotations

import weakref
from typing import Any

from anima.core.state import current
from anima.core.trace import EVAL, Trace, check_leaks, inside


class TraceTag:
    """The identity of a transformation in progress."""


class OpaqueTraceState:
    """Which trace was the current one, to be compared: values made in one trace mean nothing in another."""

    def __init__(self, trace: Trace) -> None:
        self._trace = weakref.ref(trace)

    def __eq__(self, other: object) -> bool:
        mine = self._trace()
        return isinstance(other, OpaqueTraceState) and mine is not None and mine is other._trace()

    def __hash__(self) -> int:
        return hash(self._trace)


def get_opaque_trace_state(convention: Any = None) -> OpaqueTraceState:
    """The current trace, to be compared with what it is later. `convention` is of no consequence."""
    return OpaqueTraceState(current.trace)


def find_top_trace(_: Any) -> Trace:
    """The current trace, whatever the values are."""
    return current.trace


class set_current_trace:
    """A block in which `trace` is told of operations; None: they are done at once."""

    def __init__(self, trace: Trace | None, check_leaks: bool = False) -> None:
        self.trace, self.check_leaks = EVAL if trace is None else trace, check_leaks
        self.before: list[Trace] = []

    def __enter__(self) -> Trace:
        self.before.append(current.trace)
        current.trace = self.trace
        return self.trace

    def __exit__(self, kind: type | None, *exception: object) -> None:
        current.trace = self.before.pop()
        if self.check_leaks and kind is None:
            check_leaks(self.trace)


class take_current_trace(set_current_trace):
    """A block that is handed the current trace, and in which operations are done at once."""

    def __init__(self) -> None:
        super().__init__(None)

    def __enter__(self) -> Trace:
        super().__enter__()
        return self.before[-1]


def nonempty_axis_env_DO_NOT_USE() -> bool:
    """Whether some mapped axis has a name here."""
    return bool(current.axes)


def unsafe_get_axis_names_DO_NOT_USE() -> list[Any]:
    """Names of the mapped axes here."""
    return [name for name, _ in current.axes]


def unsafe_am_i_under_a_jit_DO_NOT_USE() -> bool:
    """Whether a program is being recorded."""
    return inside("DynamicJaxprTrace")


def unsafe_am_i_under_a_vmap_DO_NOT_USE() -> bool:
    """Whether a function is being mapped."""
    return inside("BatchTrace")
