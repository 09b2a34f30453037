"""`jax._src.api_util`: which arguments are meant, by number or by name."""

import inspect
from collections.abc import Iterable, Sequence

__all__ = ["infer_argnums_and_argnames"]


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
