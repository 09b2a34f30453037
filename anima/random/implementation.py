"""Generators of random bits: what one consists of, and those that there are.

A generator is four functions on the words of keys, arrays of uint32 whose last dimensions are `key_shape`:

    seed(integers) -> keys    split(keys, shape) -> keys    fold_in(keys, integers) -> keys
    random_bits(keys, bit_width, shape) -> unsigned integers

All of them take arrays of keys; `each` makes them from functions of a single key.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from anima.api.mapping import vmap
from anima.core import dtypes
from anima.core.avals import Shape
from anima.ops import shape as sh
from anima.util import record


@record
class Implementation:
    """A generator: its name, its tag in printed types, the shape of a key's words, its functions on words."""

    name: str
    tag: str
    key_shape: Shape
    seed: Callable[[Any], Any]
    split: Callable[[Any, Shape], Any]
    random_bits: Callable[[Any, int, Shape], Any]
    fold_in: Callable[[Any, Any], Any]

    @property
    def dtype(self) -> dtypes.KeyDType:
        """The type of its keys: the same object each time, by which compiled code knows it."""
        return _key_dtype(self.tag, self.key_shape)

    def __repr__(self) -> str:
        return self.tag


@cache
def _key_dtype(tag: str, shape: Shape) -> dtypes.KeyDType:
    return dtypes.KeyDType(tag, np.uint32, shape)


_by_name: dict[str, Implementation] = {}
_by_tag: dict[str, Implementation] = {}


def register(impl: Implementation) -> Implementation:
    """Makes a generator known under its name and its tag; ValueError if either is taken."""
    if impl.name in _by_name or impl.tag in _by_tag:
        raise ValueError(f"A PRNG implementation named {impl.name!r} or tagged {impl.tag!r} exists already.")
    _by_name[impl.name] = _by_tag[impl.tag] = impl
    return impl


def named(name: str) -> Implementation:
    """The generator of a name; ValueError if there is none."""
    if name in _by_name:
        return _by_name[name]
    names = ", ".join(f'"{n}"' for n in _by_name)
    raise ValueError(f'unrecognized PRNG implementation "{name}". Did you mean one of: {names}?')


def of_dtype(dtype: dtypes.KeyDType) -> Implementation:
    """The generator of the keys of a dtype."""
    return _by_tag[dtype.tag]


def pprint(keys: Any) -> str:
    """The shape of keys, and the generator that they belong to, as text.

    >>> print(random.key(0).pprint().splitlines()[1].strip())
    shape = ()
    """
    impl = of_dtype(keys.dtype)
    functions = [f"{name} = {function.__module__}.{function.__qualname__}" for name, function in (
        ("seed", impl.seed), ("split", impl.split), ("random_bits", impl.random_bits), ("fold_in", impl.fold_in))]
    return "\n    ".join([f"Random keys:\n  shape = {keys.shape}\n  generator = {impl.name} [{impl.tag}]:",
                          f"key_shape = {impl.key_shape}", *functions])


def each(fun: Callable[..., Any], key_shape: Shape, mapped: int = 1) -> Callable[..., Any]:
    """A function of arrays of keys that applies `fun`, a function of one key, to each of them.

    The first `mapped` arguments are taken apart together; the others are the same for all keys.
    """
    def on_arrays(words: Any, *others: Any) -> Any:
        outer = tuple(words.shape[:len(words.shape) - len(key_shape)])
        if not outer:
            return fun(words, *others)
        flat = [sh.reshape(x, (math.prod(outer), *x.shape[len(outer):])) for x in (words, *others[:mapped - 1])]
        out = vmap(lambda *xs: fun(*xs, *others[mapped - 1:]))(*flat)
        return sh.reshape(out, outer + tuple(out.shape[1:]))

    return on_arrays
