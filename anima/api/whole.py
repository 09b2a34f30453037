"""Functions that run as one compiled program where that pays though nobody asked for `jit`: on large arrays.

    @as_one
    def silu(x): return x * sigmoid(x)        of 1e6 elements: one pass over memory, where each operation takes one
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import update_wrapper
from typing import Any

from anima.api.jit import JitFunction
from anima.config import config
from anima.core.array import ConcreteArray
from anima.core.state import current
from anima.core.trace import EVAL

LARGE = 1 << 18  # elements from which passes over memory for each operation cost more than one compiled program
_PLAIN = frozenset((type(None), bool, int, float, str))


def as_one(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Has a function of an array that is made of several operations run as one compiled program, where it is called on
    a large array outside of any transformation. Its other arguments are then part of the program."""
    _, *others = inspect.signature(fun).parameters
    jitted = JitFunction(fun, static_argnames=others or None)

    def call(*args: Any, **kwargs: Any) -> Any:
        x = args[0] if args else None
        if (x.__class__ is ConcreteArray and current.trace is EVAL and x.aval.size >= LARGE and not config.disable_jit
                and {*map(type, args[1:]), *map(type, kwargs.values())} <= _PLAIN):
            return jitted(*args, **kwargs)
        return fun(*args, **kwargs)

    return update_wrapper(call, fun)
