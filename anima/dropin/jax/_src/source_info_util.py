"""`jax._src.source_info_util`: places in the user's code as frames; else the public functions."""

from typing import NamedTuple

from anima.core.source import Source, SourceInfo

__all__ = ["Frame", "user_frame"]


class Frame(NamedTuple):
    """A place in a program; columns are not known here, and 0."""

    file_name: str
    function_name: str
    start_line: int
    start_column: int
    end_line: int
    end_column: int


def user_frame(traceback: Source | SourceInfo | None) -> Frame | None:
    """The user's line behind an equation, as its `source_info` or `source_info.traceback` tell; None: not known."""
    place = traceback.traceback if isinstance(traceback, SourceInfo) else traceback
    return None if place is None else Frame(place.file, place.function, place.line, 0, place.line, 0)
