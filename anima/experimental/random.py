"""A generator of random numbers that remembers how many it has drawn, for those who do not want to pass keys.

    rng = stateful_rng(42)
    rng.normal(size=3), rng.integers(10)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anima import random
from anima.api.refs import new_ref
from anima.core import dtypes
from anima.core.trace import inside
from anima.names import access
from anima.ops.broadcast import full
from anima.tree_util import register_pytree_node_class

_Size = int | Sequence[int] | None


def _shape(size: _Size) -> tuple[int, ...]:
    return () if size is None else (size,) if isinstance(size, int) else tuple(size)


@register_pytree_node_class
class StatefulPRNG:
    """A key, and a reference to how many times numbers were drawn from it. Each draw is from `fold_in(key, count)`.

    A pytree: functions that are jitted, mapped and differentiated may take it, return it and close over it, and count.
    """

    def __init__(self, _base_key: Any, _counter: Any = None) -> None:
        if not dtypes.issubdtype(getattr(_base_key, "dtype", None), dtypes.prng_key):
            raise ValueError(f"StatefulPRNG needs a typed key, as random.key(0) is; got {_base_key!r}.")
        self._base_key = _base_key
        self._counter = new_ref(full(_base_key.shape, 0, np.dtype(np.int32))) if _counter is None else _counter

    def tree_flatten(self) -> tuple[tuple[Any, Any], None]:
        return (self._base_key, self._counter), None

    @classmethod
    def tree_unflatten(cls, _: None, children: Any) -> StatefulPRNG:
        new = object.__new__(cls)
        new._base_key, new._counter = children
        return new

    def __repr__(self) -> str:
        return f"StatefulPRNG(_base_key={self._base_key!r}, _counter={self._counter})"

    def key(self, shape: _Size = ()) -> Any:
        """A new key, or an array of keys of a shape; ValueError for a generator that was `split`."""
        if self._base_key.shape:
            raise ValueError("cannot operate on split stateful generator: map over it, as vmap(f)(rng.split(n)).")
        key = random.fold_in(self._base_key, self._counter[...])
        self._counter[...] += 1
        wanted = _shape(shape)
        return random.split(key, wanted) if wanted else key

    def split(self, num: int | Sequence[int]) -> StatefulPRNG:
        """Generators that are independent of this one and of each other, as one that functions are mapped over.

        >>> anima.vmap(lambda rng: rng.uniform())(stateful_rng(0).split(3)).shape
        (3,)
        """
        return StatefulPRNG(self.key(num))

    def random(self, size: _Size = None, dtype: Any = float) -> Any:
        """Uniform in [0, 1)."""
        return random.uniform(self.key(), _shape(size), dtype)

    def uniform(self, low: Any = 0, high: Any = 1, size: _Size = None, *, dtype: Any = float) -> Any:
        """Uniform in [low, high)."""
        return random.uniform(self.key(), _shape(size), dtype, low, high)

    def normal(self, loc: Any = 0, scale: Any = 1, size: _Size = None, *, dtype: Any = float) -> Any:
        """Normal with mean `loc` and standard deviation `scale`."""
        return random.normal(self.key(), _shape(size), dtype) * scale + loc

    def integers(self, low: Any, high: Any = None, size: _Size = None, *, dtype: Any = int) -> Any:
        """Integers in [low, high), or [0, low) without `high`."""
        low, high = (0, low) if high is None else (low, high)
        return random.randint(self.key(), _shape(size), low, high, dtype)

    def spawn(self, n_children: int) -> list[StatefulPRNG]:
        """Generators that are independent of this one and of each other."""
        return [StatefulPRNG(key) for key in self.key(n_children)]


def stateful_rng(seed: Any = None, *, impl: Any = None) -> StatefulPRNG:
    """A generator from a seed, or, without one, from what the operating system says.

    >>> rng = stateful_rng(0)
    >>> rng.integers(10, size=2).shape, rng.integers(10).shape
    ((2,), ())
    """
    if seed is None:
        if inside("DynamicJaxprTrace"):
            raise TypeError("When used within transformed code, stateful_rng() requires an explicit seed.")
        seed = int(np.random.SeedSequence().generate_state(1)[0] >> 1)
    return StatefulPRNG(random.key(seed, impl=impl))

globals().update(access(__name__, globals()))
