"""Shapes with names for sizes: what of them means something while every size is a number.

    symbolic_shape("2, _", like=(2, 3)) == (2, 3)        symbolic_shape("n, 3")  raises NotImplementedError
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anima import tree
from anima.api.stages import ShapeDtypeStruct, type_of


def _unsupported(what: str) -> NotImplementedError:
    return NotImplementedError(f"{what}: programs for sizes that are not known (shape polymorphism) do not exist in "
                               "Anima yet. Export the function once for each shape.")


class SymbolicScope:
    """Names of sizes, with constraints; NotImplementedError where there are constraints."""

    def __init__(self, constraints_str: Sequence[str] = ()) -> None:
        if constraints_str:
            raise _unsupported(f"The constraints {list(constraints_str)}")


def is_symbolic_dim(p: Any) -> bool:
    """Whether a size is not a number: never."""
    return False


def symbolic_shape(shape_spec: str | None, *, constraints: Sequence[str] = (), scope: SymbolicScope | None = None,
                   like: Sequence[int | None] | None = None) -> tuple[int, ...]:
    """The shape that a text says.

    Args:
      shape_spec: sizes, with commas between them. "_" is the size of `like` there, "..." all that are left of it.
      constraints: none.
      scope: has no names, so far.
      like: a shape.

    Raises:
      NotImplementedError: for names of sizes, and for constraints.
      ValueError: for sizes that are not those of `like`, and for what is no shape.

    >>> symbolic_shape("2, ...", like=(2, 3, 4))
    (2, 3, 4)
    """
    if constraints:
        raise _unsupported(f"The constraints {list(constraints)}")
    text = "..." if shape_spec is None else shape_spec.strip().removeprefix("(").removesuffix(")")
    parts = [part.strip() for part in text.split(",") if part.strip()]
    known = tuple(like) if like is not None else ()
    if parts and parts[-1] == "...":
        if like is None:
            raise ValueError(f"symbolic shape '{shape_spec}' has '...', but there is no shape `like` to complete it")
        parts[-1:] = ["_"] * (len(known) - len(parts) + 1)
    if like is not None and len(parts) != len(known):
        raise ValueError(f"symbolic shape '{shape_spec}' has {len(parts)} sizes, but like={known} has {len(known)}")
    return tuple(_size(part, known[k] if like is not None else None, k, shape_spec) for k, part in enumerate(parts))


def _size(part: str, known: int | None, place: int, spec: str | None) -> int:
    if part == "_":
        if known is None:
            raise ValueError(f"symbolic shape '{spec}' has '_' in dimension {place}, but there is no size `like` it")
        return known
    if any(map(str.isalpha, part)):
        raise _unsupported(f"The symbolic shape '{spec}'")
    if not part.lstrip("-").isdecimal():
        raise ValueError(f"syntax error in symbolic shape '{spec}' in dimension {place}: {part!r}")
    size = int(part)
    if size < 0 or known not in (None, size):
        raise ValueError(f"symbolic shape '{spec}' has the size {size} in dimension {place}, different from {known}")
    return size


def symbolic_args_specs(args: Any, shapes_specs: Any, constraints: Sequence[str] = (),
                        scope: SymbolicScope | None = None) -> Any:
    """`ShapeDtypeStruct`s in the structure of `args`, of their dtypes and of the shapes that `shapes_specs`, a text or
    a prefix of the structure, says. NotImplementedError and ValueError as for `symbolic_shape`.

    >>> symbolic_args_specs((jnp.ones(3), 1.0), "...")
    (ShapeDtypeStruct(shape=(3,), dtype=float32), ShapeDtypeStruct(shape=(), dtype=float32))
    """
    leaves, treedef = tree.flatten(args)
    specs = tree.broadcast_prefix(shapes_specs, args, is_leaf=lambda x: x is None)
    found = []
    for leaf, spec in zip(leaves, specs, strict=True):
        aval = type_of(leaf)
        shape = symbolic_shape(spec, constraints=constraints, scope=scope, like=aval.shape)
        found.append(ShapeDtypeStruct(shape, aval.dtype))
    return tree.unflatten(treedef, found)
