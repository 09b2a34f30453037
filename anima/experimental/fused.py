"""Functions that run as one: every compiled program does, as far as it can be fused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anima import errors
from anima.api.jit import jit
from anima.names import access
from anima.util import wraps


def fused(*, out_spaces: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator for functions to be compiled as one.

    Args:
      out_spaces: kinds of memory for the results, as many as the function returns: a CPU has one.

    Raises:
      TypeError: for another number of results than kinds of memory.
    """
    expected = len(out_spaces) if isinstance(out_spaces, (tuple, list)) else None

    def decorate(f: Callable[..., Any]) -> Callable[..., Any]:
        compiled = jit(f)

        @wraps(f)
        @errors.api_boundary
        def run(*args: Any) -> Any:
            outs = compiled(*args)
            if expected is not None and (not isinstance(outs, (tuple, list)) or len(outs) != expected):
                raise TypeError(f"fused: {expected} kinds of memory for the results of a function that returns {outs}.")
            return outs

        return run

    return decorate

globals().update(access(__name__, globals()))
