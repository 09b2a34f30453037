"""Where in the user's code an operation was asked for.

Every equation carries a `Source`: the innermost frame outside of this package at the time it was
recorded. Errors, printed programs and profiles all speak of that line.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from copy import copy
from functools import wraps
from typing import Any, NamedTuple, TypeVar

from anima.core.state import current
from anima.errors import user_frame
from anima.util import record, replace

A = TypeVar("A")


@record
class NamedScope:
    """A name that the user gave to what is done within it."""

    name: str

    def around(self, inside: list[str]) -> list[str]:
        """The names outside in, for those inside of it."""
        return [self.name, *inside]


@record
class Transform:
    """A transformation that what is done within it is part of."""

    name: str

    def around(self, inside: list[str]) -> list[str]:
        return [f"{self.name}({inside[0] if inside else ''})", *inside[1:]]


@record
class NameStack:
    """Scopes and transformations around an operation, outside in; as text, a transformation is around the next scope.

    >>> str(NameStack().transform("jvp").extend("layer").extend("norm"))
    'jvp(layer)/norm'
    """

    stack: tuple[NamedScope | Transform, ...] = ()

    def extend(self, name: str) -> NameStack:
        return NameStack((*self.stack, NamedScope(name)))

    def transform(self, name: str) -> NameStack:
        """The stack within a transformation of this name."""
        return NameStack((*self.stack, Transform(name)))

    def __add__(self, other: NameStack) -> NameStack:
        return NameStack(self.stack + other.stack)

    def __getitem__(self, part: slice) -> NameStack:
        return NameStack(self.stack[part])

    def __len__(self) -> int:
        return len(self.stack)

    def __str__(self) -> str:
        text: list[str] = []
        for name in reversed(self.stack):
            text = name.around(text)
        return "/".join(text)


class Source(NamedTuple):
    """A place in the user's program, and the names around what was done there."""

    file: str
    line: int
    function: str
    names: tuple[NamedScope | Transform, ...] = ()

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line}, in {self.function}"


@record
class SourceInfo:
    """An equation's place, as its readers ask for it: `traceback` is the user's line."""

    traceback: Source | None
    name_stack: NameStack = NameStack()

    @property
    def place(self) -> Source | None:
        """The line with the names, as equations keep it."""
        return None if self.traceback is None else self.traceback._replace(names=self.name_stack.stack)

    def replace(self, **changes: Any) -> SourceInfo:
        return replace(self, **changes)


Names = tuple[NamedScope | Transform, ...]


def names_here() -> Names:
    """The names around what is done now; of a recorded operation that is gone through again, its own too."""
    return current.names if current.source is None else current.names + current.source.names


class among:
    """A block, or a decorator of functions, with other names than around it: `names` finds them from those."""

    def __init__(self, names: Callable[[Names], Names]) -> None:
        self.names = names
        self.before: list[tuple[Names, Source | None]] = []

    def __call__(self, fun: Callable[..., A]) -> Callable[..., A]:
        @wraps(fun)
        def inside(*args: Any, **kwargs: Any) -> A:
            with copy(self):
                return fun(*args, **kwargs)

        return inside

    def __copy__(self) -> among:
        block = object.__new__(type(self))
        block.__dict__.update(self.__dict__, before=[])
        return block

    def __enter__(self) -> None:
        self.before.append((current.names, current.source))
        current.names = self.names(names_here())
        if current.source is not None and current.source.names:
            current.source = current.source._replace(names=())

    def __exit__(self, *exception: object) -> None:
        current.names, current.source = self.before.pop()


def no_names() -> among:
    """A block that no names are around."""
    return among(lambda around: ())


class within(among):
    """A block with one more name around it."""

    def __init__(self, name: NamedScope | Transform) -> None:
        super().__init__(lambda around: (*around, name))


def here() -> Source | None:
    """The innermost place outside of this package on the current stack."""
    frame = user_frame()
    return None if frame is None else Source(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
