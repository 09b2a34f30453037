"""Small tools that every layer uses: strict zip and map, splitting lists, names of functions.

    split_list([1, 2, 3, 4], [1, 2]) == [[1], [2, 3], [4]]
    partition([True, False, True], "abc") == (["b"], ["a", "c"])
"""
from __future__ import annotations

import functools
import importlib
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

A = TypeVar("A")
B = TypeVar("B")


def safe_zip(*sequences: Iterable[Any]) -> list[tuple[Any, ...]]:
    """`zip` as a list; ValueError if the lengths differ."""
    return list(zip(*sequences, strict=True))


def safe_map(function: Callable[..., B], *sequences: Iterable[Any]) -> list[B]:
    """`map` as a list; ValueError if the lengths differ."""
    if len(sequences) == 1:
        return [function(item) for item in sequences[0]]
    return [function(*items) for items in zip(*sequences, strict=True)]


def unzip2(pairs: Iterable[tuple[A, B]]) -> tuple[list[A], list[B]]:
    """A list of pairs as a pair of lists."""
    firsts: list[A] = []
    seconds: list[B] = []
    for first, second in pairs:
        firsts.append(first)
        seconds.append(second)
    return firsts, seconds


def split_list(items: Sequence[A], sizes: Sequence[int]) -> list[list[A]]:
    """Cut `items` into consecutive lists of the given sizes and a last one with the rest."""
    items = list(items)
    parts: list[list[A]] = []
    start = 0
    for size in sizes:
        if start + size > len(items):
            raise ValueError(f"cannot split {len(items)} items into parts of sizes {tuple(sizes)}")
        parts.append(items[start:start + size])
        start += size
    parts.append(items[start:])
    return parts


def partition(mask: Sequence[bool], items: Iterable[A]) -> tuple[list[A], list[A]]:
    """The items whose mask is False, and those whose mask is True, each in order."""
    falses: list[A] = []
    trues: list[A] = []
    for chosen, item in zip(mask, items, strict=True):
        (trues if chosen else falses).append(item)
    return falses, trues


def merge(mask: Sequence[bool], falses: Iterable[A], trues: Iterable[A]) -> list[A]:
    """The inverse of `partition`."""
    false_items, true_items = iter(falses), iter(trues)
    merged = [next(true_items if chosen else false_items) for chosen in mask]
    if next(false_items, merged) is not merged or next(true_items, merged) is not merged:
        raise ValueError("merge got more items than its mask has places")
    return merged


def fun_name(function: Any) -> str:
    """The name to show for a callable: its own, that of a partial's function, or its class's."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) else type(function).__name__


class ByIdentity:
    """Makes any object usable as a dictionary key, by its identity; keeps the object alive."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and self.value is other.value

    def __repr__(self) -> str:
        return f"ByIdentity({self.value!r})"


def weak_cache(function: Callable[..., B]) -> Callable[..., B]:
    """Remembers results by the identity of the first argument, as long as that lives, and the others."""
    caches: weakref.WeakKeyDictionary[Any, dict[Any, B]] = weakref.WeakKeyDictionary()

    @functools.wraps(function)
    def wrapper(first: Any, *rest: Any) -> B:
        known = caches.setdefault(first, {})
        if rest not in known:
            known[rest] = function(first, *rest)
        return known[rest]

    return wrapper


class _LazyModule:
    """Stands for a module that is imported when something is first read from it (again, if that failed)."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


def lazy_module(name: str) -> Any:
    """A module that is loaded when something is first read from it: for what most runs do not need at once."""
    return _LazyModule(name)
