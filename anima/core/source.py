"""Where in the user's code an operation was asked for.

Every equation carries a `Source`: the innermost frame outside of this package at the time it was
recorded. Errors, printed programs and profiles all speak of that line.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from anima.errors import user_frame
from anima.util import record


class Source(NamedTuple):
    """A place in the user's program."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line}, in {self.function}"


@record
class NameStack:
    """Names of the scopes around an operation. Programs know lines and functions instead: it stays empty, unless a
    program's readers fill one of their own."""

    stack: tuple[str, ...] = ()

    def extend(self, name: str) -> NameStack:
        return NameStack((*self.stack, name))

    def transform(self, name: str) -> NameStack:
        """The stack within a transformation of this name."""
        return NameStack((*self.stack, f"{name}()"))

    def __add__(self, other: NameStack) -> NameStack:
        return NameStack(self.stack + other.stack)

    def __len__(self) -> int:
        return len(self.stack)

    def __str__(self) -> str:
        return "/".join(self.stack)


@record
class SourceInfo:
    """An equation's place, as its readers ask for it: `traceback` is the user's line."""

    traceback: Source | None
    name_stack: NameStack = NameStack()


def here() -> Source | None:
    """The innermost place outside of this package on the current stack."""
    frame = user_frame()
    return None if frame is None else Source(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
