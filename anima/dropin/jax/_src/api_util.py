"""`jax._src.api_util`: which arguments are meant, by number or by name."""

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

from anima import tree

__all__ = ["flatten_axes", "infer_argnums_and_argnames"]


def flatten_axes(name: str, treedef: Any, axis_tree: Any, *, kws: bool = False, tupled_args: bool = False) -> list[Any]:
    """An axis (or None) for each leaf of a tree of this structure: `axis_tree` is a prefix of it. ValueError, which
    names the argument `name`, for one that is not."""
    whole = tree.unflatten(treedef, range(treedef.num_leaves))
    try:
        return tree.broadcast_prefix(axis_tree, whole, is_leaf=lambda x: x is None)
    except ValueError as error:
        raise ValueError(f"{name} is not a prefix of what it is about: {axis_tree} of {treedef}.") from error


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
