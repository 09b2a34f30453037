"""Partial applications that are pytrees."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from anima.util import ByIdentity, exact_type

_PLAIN = (int, float, complex, str, bytes, type(None), np.generic)


class _Opaque:
    """A `functools.partial` inside a Partial: called as it is, compared by what it holds.

    Numbers and texts are the same where they are equal and of one type, all else where it is one object.
    """

    __slots__ = ("fun",)

    def __init__(self, fun: functools.partial) -> None:
        self.fun = fun

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fun(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "fun":  # of an object that is being made
            raise AttributeError(name)
        return getattr(self.fun, name)  # what it holds

    def _key(self) -> tuple[Any, ...]:
        held = (*self.fun.args, *self.fun.keywords.values())
        return self.fun.func, len(self.fun.args), *self.fun.keywords, *(
            (x, exact_type(x)) if isinstance(x, _PLAIN) else ByIdentity(x) for x in held)

    def __hash__(self) -> int:
        return hash(self._key())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Opaque) and self._key() == other._key()

    def __repr__(self) -> str:
        return repr(self.fun)


class Partial(functools.partial):
    """A `functools.partial` that is a pytree: its arguments are children, its function part of the structure.

    >>> anima.tree.leaves(Partial(print, 1, sep=2))
    [1, 2]
    """

    def __new__(cls, func: Callable[..., Any], *args: Any, **kw: Any) -> Self:
        # functools would merge a partial's own arguments into ours, and make children of them.
        if isinstance(func, functools.partial):
            func = _Opaque(func)
        return super().__new__(cls, func, *args, **kw)
