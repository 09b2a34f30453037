"""Named axes: what `vmap(f, axis_name="i")` maps over, as the collectives within `f` call it.

    >>> vmap(lambda x: x - lax.pmean(x, "i"), axis_name="i")(jnp.array([1.0, 3.0]))
    Array([-1.,  1.], dtype=float32)

While `f` is traced, `current.axes` says which names there are. Batching rules get the size of the mapped axis as an
`Axis`, an int that knows its name, and hand it on to the programs that they batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from anima.core.jaxpr import ClosedJaxpr, Jaxpr, subjaxprs
from anima.core.primitive import Primitive
from anima.core.state import current
from anima.util import weak_cache


class Axis(int):
    """The size of a mapped axis, and its name."""

    name: Any

    def __new__(cls, size: int, name: Any) -> Axis:
        axis = super().__new__(cls, size)
        axis.name = name
        return axis


def name_of(size: int) -> Any:
    """The name of the axis that a batching rule is about; None if it has none."""
    return size.name if isinstance(size, Axis) else None


@contextmanager
def naming(axes: Sequence[tuple[Any, int]]) -> Iterator[None]:
    """Within, the named axes (name, size) can be used by collectives; one within hides an outer one of its name."""
    before = current.axes
    new = dict(axes)
    current.axes = (*[pair for pair in before if pair[0] not in new], *new.items())
    try:
        yield
    finally:
        current.axes = before


def size_of(name: Any, caller: str) -> int:
    """The size of a named axis; NameError if there is no axis of this name here."""
    for known, size in current.axes:
        if known == name:
            return size
    names = ", ".join(repr(known) for known, _ in current.axes) or "none"
    raise NameError(f"Found an unbound axis name: {name}. To fix this, call {caller} within a function that is mapped "
                    f"by `anima.vmap(..., axis_name={name!r})`. Names that are bound here: {names}.")


def mentions(primitive: Primitive, params: dict[str, Any], name: Any) -> bool:
    """Whether an application is about the axis of this name, itself or in a program that it holds."""
    if primitive.axis_names is not None and name in primitive.axis_names(params):
        return True
    return any(_mentions(inner, name) for inner in subjaxprs(params))


def wants_all(primitive: Primitive, params: dict[str, Any]) -> bool:
    """Whether an application, or one in a program that it holds, is to be batched where nothing is mapped, too."""
    return primitive.maps_all or any(map(_wants_all, subjaxprs(params)))


@weak_cache
def _wants_all(program: ClosedJaxpr | Jaxpr) -> bool:
    return any(wants_all(e.primitive, e.params) for e in program.eqns)


@weak_cache
def _mentions(program: ClosedJaxpr | Jaxpr, name: Any) -> bool:
    return any(mentions(e.primitive, e.params, name) for e in program.eqns)
