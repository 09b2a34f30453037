"""Places in the user's code, for those who record equations of their own, or wrap functions.

    with user_context(eqn.source_info.traceback):
        ...                                  # what is recorded in here was asked for there
"""

from __future__ import annotations

import os

from anima import errors
from anima.core.source import (
    NamedScope as Scope,
    NameStack as NameStack,
    Source,
    SourceInfo as SourceInfo,
    Transform as Transform,
    among,
    here,
    names_here,
    within,
)
from anima.core.state import current as _state
from anima.names import access


def current() -> SourceInfo:
    """The user's line now, and the names around it."""
    return SourceInfo(_state.source or here(), current_name_stack())


def new_source_info() -> SourceInfo:
    """No place, and no names."""
    return SourceInfo(None)


def summarize(source_info: SourceInfo | Source | None, num_frames: int = 1) -> str:
    """The place as "file:line (function)"."""
    place = source_info.traceback if isinstance(source_info, SourceInfo) else source_info
    return "unknown" if place is None else f"{place.file}:{place.line} ({place.function})"


def register_exclusion(path: str) -> None:
    """Hides the frames of a file, or of the files in a folder, as Anima's own: errors and programs speak of the
    first line outside."""
    errors.hide_files(os.fspath(path))


class user_context(among):
    """A block in which what is recorded was asked for at another place."""

    def __init__(self, traceback: Source | None, *, name_stack: NameStack | None = None) -> None:
        super().__init__(lambda around: around if name_stack is None else name_stack.stack)
        self.place = traceback

    def __enter__(self) -> None:
        super().__enter__()
        if self.place is not None:
            _state.source = self.place._replace(names=())


class set_name_stack(among):
    """A block with other names around it."""

    def __init__(self, name_stack: NameStack) -> None:
        super().__init__(lambda around: name_stack.stack)


class extend_name_stack(within):
    """A block within one more name."""

    def __init__(self, name: str) -> None:
        super().__init__(Scope(name))


class transform_name_stack(within):
    """A block within a transformation of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(Transform(name))


def reset_name_stack() -> set_name_stack:
    """A block without names around it."""
    return set_name_stack(NameStack())


def current_name_stack() -> NameStack:
    """The names around what is done now."""
    return NameStack(names_here())


def new_name_stack(name: str = "") -> NameStack:
    """No names, or one."""
    return NameStack().extend(name) if name else NameStack()

globals().update(access(__name__, globals()))
