"""Places in the user's code, for those who record equations of their own, or wrap functions.

    with user_context(eqn.source_info.traceback):
        ...                                  # what is recorded in here was asked for there
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from anima import errors
from anima.core.source import NameStack as NameStack, Source, SourceInfo as SourceInfo, here
from anima.core.state import current as _state


class _Names(threading.local):
    stack = NameStack()


_names = _Names()


def current() -> SourceInfo:
    """The user's line now, and the names around it."""
    return SourceInfo(_state.source or here(), _names.stack)


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


@contextmanager
def user_context(traceback: Source | None, *, name_stack: NameStack | None = None) -> Iterator[None]:
    """A block in which what is recorded was asked for at another place."""
    before = _state.source
    _state.source = before if traceback is None else traceback
    try:
        with set_name_stack(_names.stack if name_stack is None else name_stack):
            yield
    finally:
        _state.source = before


# ---------------------------------------------------------------- names

def current_name_stack() -> NameStack:
    """The names around what is done now."""
    return _names.stack


def new_name_stack(name: str = "") -> NameStack:
    """No names, or one."""
    return NameStack((name,) if name else ())


@contextmanager
def set_name_stack(name_stack: NameStack) -> Iterator[None]:
    """A block with other names around it."""
    before, _names.stack = _names.stack, name_stack
    try:
        yield
    finally:
        _names.stack = before


def reset_name_stack() -> Any:
    """A block without names around it."""
    return set_name_stack(NameStack())


def extend_name_stack(name: str) -> Any:
    """A block within one more name."""
    return set_name_stack(_names.stack.extend(name))


def transform_name_stack(name: str) -> Any:
    """A block within a transformation of this name."""
    return set_name_stack(_names.stack.transform(name))
