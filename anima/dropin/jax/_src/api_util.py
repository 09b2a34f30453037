"""`jax._src.api_util`: which arguments are meant, by number or by name; else the public functions."""

import inspect
import operator
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["_ensure_index", "check_callable", "infer_argnums_and_argnames"]


def check_callable(fun: Any) -> None:
    """TypeError for what cannot be called, and for generator functions: their steps come one by one."""
    if not callable(fun):
        raise TypeError(f"Expected a callable value, got {fun!r}.")
    if inspect.isgeneratorfunction(fun):
        raise TypeError(f"Expected a function, got a generator function: {fun!r}.")


def _ensure_index(x: Any) -> int | tuple[int, ...]:
    """Whole numbers of any type, one or several, as Python's; TypeError for something else."""
    try:
        return operator.index(x)
    except TypeError:
        return tuple(map(operator.index, x))


def infer_argnums_and_argnames(sig: inspect.Signature, argnums: int | Iterable[int] | None,
                               argnames: str | Iterable[str] | None) -> tuple[Sequence[int], Sequence[str]]:
    """The numbers and the names of parameters: those that are not given follow from those that are.

    Only parameters that can be given by their place have a number.
    """
    nums = (argnums,) if isinstance(argnums, int) else tuple(argnums or ())
    names = (argnames,) if isinstance(argnames, str) else tuple(argnames or ())
    positional = [p.name for p in sig.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    if argnames is None:
        names = tuple(positional[n] for n in nums if -len(positional) <= n < len(positional))
    if argnums is None:
        nums = tuple(positional.index(name) for name in names if name in positional)
    return nums, names
