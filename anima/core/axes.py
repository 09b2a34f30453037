"""Named axes: what `vmap(f, axis_name="i")` maps over, as the collectives within `f` call it.

    >>> vmap(lambda x: x - lax.pmean(x, "i"), axis_name="i")(jnp.array([1.0, 3.0]))
    Array([-1.,  1.], dtype=float32)

While `f` is traced, `current.axes` says which names there are. Batching rules get the size of the mapped axis as an
`Axis`, an int that knows its name, and hand it on to the programs that they batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from anima.core.jaxpr import ClosedJaxpr, Jaxpr, subjaxprs
from anima.core.primitive import Primitive
from anima.core.state import current
from anima.core.trace import aval_of
from anima.util import record, weak_cache


class Axis(int):
    """The size of a mapped axis, its name, which axes of meshes its elements are spread over (`spmd`; `typed`, where
    types tell), and whether it is one of a mesh, whose elements are devices: of these, programs do not know that they
    are mapped."""

    name: Any
    spmd: tuple[Any, ...]
    of_devices: bool
    typed: tuple[Any, ...]

    def __new__(cls, size: int, name: Any, spmd: tuple[Any, ...] = (), of_devices: bool = False,
                typed: tuple[Any, ...] = ()) -> Axis:
        axis = super().__new__(cls, size)
        axis.name, axis.spmd, axis.of_devices, axis.typed = name, spmd, of_devices, typed
        return axis


@record
class Manual:
    """Axes of a mesh of which types say whether a value varies along them (`vma`), and the operation that declares
    that it does: where an operation's operands differ in that, it is applied to those that do not vary."""

    names: frozenset[Any]
    vary: Primitive


def name_of(size: int) -> Any:
    """The name of the axis that a batching rule is about; None if it has none."""
    return size.name if isinstance(size, Axis) else None


def is_of_devices(size: int) -> bool:
    """Whether the axis that a batching rule is about is one of a mesh."""
    return isinstance(size, Axis) and size.of_devices


@contextmanager
def naming(axes: Sequence[tuple[Any, int]]) -> Iterator[None]:
    """Within, the named axes (name, size) can be used by collectives; one within hides an outer one of its name."""
    before, manual, new = current.axes, current.manual, dict(axes)
    current.axes = (*[pair for pair in before if pair[0] not in new], *new.items())
    if manual is not None and not manual.names.isdisjoint(new):
        current.manual = Manual(manual.names - new.keys(), manual.vary)
    try:
        yield
    finally:
        current.axes, current.manual = before, manual


@contextmanager
def typing(manual: Manual | None) -> Iterator[None]:
    """Within, types tell of these axes of a mesh."""
    before, current.manual = current.manual, manual
    try:
        yield
    finally:
        current.manual = before


def manual_names() -> frozenset[Any]:
    """The axes that types tell of here."""
    return frozenset() if current.manual is None else current.manual.names


def varying(x: Any, names: frozenset[Any]) -> Any:
    """`x`, declared to vary along these axes, as far as types tell of them."""
    missing = (names & manual_names()) - aval_of(x).vma
    return current.manual.vary.bind(x, axes=ordered(missing)) if missing else x


def ordered(names: Iterable[Any]) -> tuple[Any, ...]:
    """Names of mapped axes in the order in which they are mapped."""
    return tuple(name for name, _ in current.axes if name in set(names))


def size_of(name: Any, caller: str) -> int:
    """The size of a named axis; NameError if there is no axis of this name here."""
    for known, size in current.axes:
        if known == name:
            return size
    names = ", ".join(repr(known) for known, _ in current.axes) or "none"
    raise NameError(f"Found an unbound axis name: {name}. To fix this, call {caller} within a function that is mapped "
                    f"by `anima.vmap(..., axis_name={name!r})`, `anima.pmap` or `anima.shard_map`. Names that are "
                    f"bound here: {names}.")


def mentions(primitive: Primitive, params: dict[str, Any], name: Any) -> bool:
    """Whether an application is about the axis of this name, itself or in a program that it holds."""
    if primitive.axis_names is not None and name in primitive.axis_names(params):
        return True
    if any(name == bound for bound, _ in primitive.binds(params)):
        return False
    return any(_mentions(inner, name) for inner in subjaxprs(params))


def wants_all(primitive: Primitive, params: dict[str, Any], of_devices: bool = False) -> bool:
    """Whether an application, or one in a program that it holds, is to be batched where nothing is mapped, too."""
    return primitive.maps_all or (of_devices and primitive.on_each_device) or any(
        _wants_all(program, of_devices) for program in subjaxprs(params))


@weak_cache
def _wants_all(program: ClosedJaxpr | Jaxpr, of_devices: bool) -> bool:
    return any(wants_all(e.primitive, e.params, of_devices) for e in program.eqns)


def joins_lanes(primitive: Primitive, params: dict[str, Any], name: Any) -> bool:
    """Whether an application, or one in a program that it holds, may exchange values between lanes of the axis of this
    name: they cannot run one after the other."""
    return primitive.maps_freely or mentions(primitive, params, name) or any(map(_maps_freely, subjaxprs(params)))


@weak_cache
def _maps_freely(program: ClosedJaxpr | Jaxpr) -> bool:
    return any(e.primitive.maps_freely or any(map(_maps_freely, subjaxprs(e.params))) for e in program.eqns)


@weak_cache
def _mentions(program: ClosedJaxpr | Jaxpr, name: Any) -> bool:
    return any(mentions(e.primitive, e.params, name) for e in program.eqns)
