"""Key paths: how to reach a leaf from the root of a pytree.

    path = (DictKey("params"), SequenceKey(0), GetAttrKey("W"))
    keystr(path) == "['params'][0].W"
"""
from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from anima.util import record


@record
class SequenceKey:
    """The place `[idx]` of a tuple or a list."""

    idx: int

    def __str__(self) -> str:
        return f"[{self.idx!r}]"


@record
class DictKey:
    """The place `[key]` of a dictionary."""

    key: Hashable

    def __str__(self) -> str:
        return f"[{self.key!r}]"


@record
class GetAttrKey:
    """The attribute `.name` of a named tuple or a registered class."""

    name: str

    def __str__(self) -> str:
        return f".{self.name}"


@record
class FlattenedIndexKey:
    """The `key`-th child of a registered class that names none of its children."""

    key: int

    def __str__(self) -> str:
        return f"[<flat index {self.key}>]"


KeyEntry = Any
KeyPath = tuple[Any, ...]


def keystr(keys: KeyPath, *, simple: bool = False, separator: str = "") -> str:
    """A key path as text: `['a'][0].x`; with `simple`, the bare keys joined by `separator`: `a/0/x`.

    >>> keystr((DictKey("a"), SequenceKey(0)))
    "['a'][0]"
    >>> keystr((DictKey("a"), SequenceKey(0)), simple=True, separator="/")
    'a/0'
    """
    return separator.join([_simple(key) if simple else str(key) for key in keys])


def _simple(key: KeyEntry) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
