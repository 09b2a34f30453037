"""A generator of random numbers that remembers how many it has drawn, for those who do not want to pass keys.

    rng = stateful_rng(42)
    rng.normal(size=3), rng.integers(10)
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from anima import random
from anima.core import dtypes
from anima.core.state import current
from anima.core.trace import Trace

Size = int | Sequence[int] | None


def _recording() -> Trace | None:
    """The trace that records a program now, if there is one."""
    trace = current.trace
    while trace is not None and trace.label != "DynamicJaxprTrace":
        trace = trace.parent
    return trace


def _shape(size: Size) -> tuple[int, ...]:
    return () if size is None else (size,) if isinstance(size, int) else tuple(size)


class StatefulPRNG:
    """A key, and how many times numbers were drawn from it. Each draw is from `fold_in(key, count)`.

    It counts in Python. Within a function that is recorded (by `jit`, `scan`, ...), use one that is made there: one
    from outside would draw the same numbers in every call, and raises a RuntimeError.
    """

    def __init__(self, _base_key: Any, _counter: int = 0) -> None:
        if not dtypes.issubdtype(getattr(_base_key, "dtype", None), dtypes.prng_key):
            raise ValueError(f"StatefulPRNG needs a typed key, as random.key(0) is; got {_base_key!r}.")
        self._base_key, self._counter = _base_key, _counter
        trace = _recording()
        self._made = trace and weakref.ref(trace)

    def __repr__(self) -> str:
        return f"StatefulPRNG(_base_key={self._base_key!r}, _counter={self._counter})"

    def key(self, shape: Size = ()) -> Any:
        """A new key, or an array of keys of a shape."""
        if _recording() is not (self._made and self._made()):
            raise RuntimeError("A StatefulPRNG was used in a function that is being recorded, which did not make it: "
                               "the program would draw the same numbers in every call. Fix: make it in the function, "
                               "as stateful_rng(seed) from an argument, or pass a key.")
        key = random.fold_in(self._base_key, self._counter)
        self._counter += 1
        wanted = _shape(shape)
        return random.split(key, wanted) if wanted else key

    def random(self, size: Size = None, dtype: Any = float) -> Any:
        """Uniform in [0, 1)."""
        return random.uniform(self.key(), _shape(size), dtype)

    def uniform(self, low: Any = 0, high: Any = 1, size: Size = None, *, dtype: Any = float) -> Any:
        """Uniform in [low, high)."""
        return random.uniform(self.key(), _shape(size), dtype, low, high)

    def normal(self, loc: Any = 0, scale: Any = 1, size: Size = None, *, dtype: Any = float) -> Any:
        """Normal with mean `loc` and standard deviation `scale`."""
        return random.normal(self.key(), _shape(size), dtype) * scale + loc

    def integers(self, low: Any, high: Any = None, size: Size = None, *, dtype: Any = int) -> Any:
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
        if _recording() is not None:
            raise TypeError("When used within transformed code, stateful_rng() requires an explicit seed.")
        seed = int(np.random.SeedSequence().generate_state(1)[0] >> 1)
    return StatefulPRNG(random.key(seed, impl=impl))
