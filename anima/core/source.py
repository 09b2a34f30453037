"""Where in the user's code an operation was asked for.

Every equation carries a `Source`: the innermost frame outside of this package at the time it was
recorded. Errors, printed programs and profiles all speak of that line.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from anima.errors import user_frame


class Source(NamedTuple):
    """A place in the user's program."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line}, in {self.function}"


def here() -> Source | None:
    """The innermost place outside of this package on the current stack."""
    frame = user_frame()
    return None if frame is None else Source(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
