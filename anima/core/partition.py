"""Partition specs: along which axes of a mesh each dimension of an array is cut.

    >>> anima.P("x", None, ("y", "z"))
    P('x', None, ('y', 'z'))

The first dimension is cut along the axis "x", the second not at all, the third along "y", each part of it along "z";
dimensions not named are whole. `UNCONSTRAINED` leaves a dimension to propagation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Self


class Unconstrained:
    """The one object that, in place of a dimension's axes, leaves them open."""

    _the_one: Unconstrained | None = None

    def __new__(cls) -> Unconstrained:
        if cls._the_one is None:
            cls._the_one = super().__new__(cls)
        return cls._the_one

    def __repr__(self) -> str:
        return "UNCONSTRAINED"

    def __reduce__(self) -> Any:
        return Unconstrained, ()


UNCONSTRAINED = Unconstrained()


class PartitionSpec:
    """For each dimension the name of a mesh axis, a tuple of them, None or `UNCONSTRAINED`.

    Args:
      partitions: one for each dimension; those that are missing at the end count as None.
      unreduced: names of axes along which the array is still to be summed.
      reduced: names of axes along which the derivatives of the array are still to be summed.

    Raises:
      ValueError: for tuples in tuples, and axes that are both partitions and unreduced or reduced.
      TypeError: for axes in `unreduced` or `reduced` that are not a set.

    >>> anima.P("x") == anima.P(("x",)), len(anima.P("x", None)), anima.P("x") + anima.P("y")
    (True, 2, P('x', 'y'))
    """

    __slots__ = ("_hash", "partitions", "reduced", "unreduced")
    __module__ = "anima.sharding"

    UNCONSTRAINED = UNCONSTRAINED
    partitions: tuple[Any, ...]
    unreduced: frozenset[Any]
    reduced: frozenset[Any]
    _hash: int

    def __new__(cls, *partitions: Any, unreduced: Any = frozenset(), reduced: Any = frozenset()) -> Self:
        self, set_field = super().__new__(cls), object.__setattr__
        set_field(self, "partitions", tuple([_partition(p) for p in partitions]))
        used = {name for name, _ in _names(self.partitions)}
        for kind, given in (("unreduced", unreduced), ("reduced", reduced)):
            if not isinstance(given, (set, frozenset)):
                raise TypeError(f"{kind} argument of PartitionSpec should be of type `frozenset` or `set`. Got "
                                f"{given!r} of type {type(given)}")
            if None in given:
                raise ValueError(f"{kind} cannot contain None. All elements in {kind} should refer to the mesh axes.")
            if used & given:
                raise ValueError(f"partitions cannot overlap with {kind} axes passed to PartitionSpec. Got partitions: "
                                 f"{self.partitions} and {kind} axes: {_set(given)}")
            set_field(self, kind, frozenset(given))
        if self.unreduced & self.reduced:
            raise ValueError(f"unreduced and reduced axes of a PartitionSpec cannot overlap. Got {_set(unreduced)} and "
                             f"{_set(reduced)}")
        set_field(self, "_hash", hash((self.partitions, self.unreduced, self.reduced)))
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"A PartitionSpec cannot be changed. Fix: spec.update({name}=...) makes another.")

    def update(self, partitions: Any = None, unreduced: Any = None, reduced: Any = None) -> PartitionSpec:
        """The spec with some of its fields changed."""
        return PartitionSpec(*(self.partitions if partitions is None else partitions),
                             unreduced=self.unreduced if unreduced is None else unreduced,
                             reduced=self.reduced if reduced is None else reduced)

    def padded(self, ndim: int) -> PartitionSpec:
        """The spec with None for each of `ndim` dimensions that it does not name."""
        return self if len(self) >= ndim else self.update((*self.partitions, *[None] * (ndim - len(self))))

    def to_ct_spec(self) -> PartitionSpec:
        """The spec of cotangents: what is unreduced of a value is reduced of them, and the other way round."""
        return PartitionSpec(*self.partitions, unreduced=self.reduced, reduced=self.unreduced)

    def to_tangent_spec(self) -> PartitionSpec:
        """The spec of tangents: the same."""
        return self

    def to_lo(self) -> list[PartitionSpec]:
        """The specs of the arrays that a value of such a spec consists of: one."""
        return [self]

    def count(self, value: Any) -> int:
        """How many dimensions are cut so."""
        return self.partitions.count(_partition(value))

    def index(self, value: Any) -> int:
        """The first dimension that is cut so; ValueError if none is."""
        return self.partitions.index(_partition(value))

    def __getitem__(self, index: Any) -> Any:
        return self.partitions[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.partitions)

    def __len__(self) -> int:
        return len(self.partitions)

    def __bool__(self) -> bool:
        return bool(self.partitions or self.unreduced or self.reduced)

    def __add__(self, other: Any) -> PartitionSpec:
        if isinstance(other, PartitionSpec):
            return PartitionSpec(*self, *other, unreduced=self.unreduced | other.unreduced,
                                 reduced=self.reduced | other.reduced)
        return self.update((*self, *other)) if isinstance(other, tuple) else NotImplemented

    def __radd__(self, other: Any) -> PartitionSpec:
        return self.update((*other, *self)) if isinstance(other, tuple) else NotImplemented

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PartitionSpec):
            return NotImplemented
        return (self.partitions == other.partitions and self.unreduced == other.unreduced
                and self.reduced == other.reduced)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        sets = ", ".join(f"{kind}={_set(names)}" for kind, names in
                         (("unreduced", self.unreduced), ("reduced", self.reduced)) if names)
        if not sets:
            return f"P{self.partitions!r}"
        return f"P({''.join(f'{p!r}, ' for p in self.partitions)}{sets})"

    def __reduce__(self) -> Any:
        return _rebuild, (self.partitions, self.unreduced, self.reduced)


def _rebuild(partitions: tuple[Any, ...], unreduced: frozenset[Any], reduced: frozenset[Any]) -> PartitionSpec:
    return PartitionSpec(*partitions, unreduced=unreduced, reduced=reduced)


def _partition(given: Any) -> Any:
    """One axis is itself, no axes are None, several a tuple."""
    if not isinstance(given, (tuple, list)):
        return given
    for name in given:
        if isinstance(name, (tuple, list)):
            raise ValueError("A tuple inside PartitionSpec cannot contain a nested tuple. Got partition: "
                             f"{given} and the nested tuple: {name}")
    return tuple(given) if len(given) > 1 else given[0] if given else None


def axes_of(partition: Any) -> tuple[Any, ...]:
    """The names of the axes along which one dimension is cut; () for None and `UNCONSTRAINED`."""
    if partition is None or partition is UNCONSTRAINED:
        return ()
    return partition if isinstance(partition, tuple) else (partition,)


def _names(partitions: Iterable[Any]) -> Iterator[tuple[Any, int]]:
    for dimension, partition in enumerate(partitions):
        for name in axes_of(partition):
            yield name, dimension


def used_axes(spec: PartitionSpec) -> list[Any]:
    """The names of the axes along which something is cut, in order, as often as they stand there."""
    return [name for name, _ in _names(spec.partitions)]


def _set(names: Iterable[Any]) -> str:
    return "{" + ", ".join(sorted(map(repr, names))) + "}"
