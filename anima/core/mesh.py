"""Meshes: devices in an array whose axes have names, along which arrays are cut.

    Mesh(np.array(devices()).reshape(4, 2), ("x", "y"))
    ->  Mesh(axis_sizes=(4, 2), axis_names=('x', 'y'), axis_types=(Auto, Auto))

An axis of type Auto leaves to propagation how the values of a program are cut along it; of type Explicit, it is part
of their types; of type Manual, each device sees its own part (in `shard_map`). `set_mesh` says which mesh is current:
programs depend on it, so that it is a part of the key under which they are kept.
"""

from __future__ import annotations

import contextlib
import enum
import math
import warnings
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from anima.config import Option, make_user_context
from anima.core.device import Device, devices as all_devices
from anima.core.state import is_tracing
from anima.util import record, replace


class AxisType(enum.Enum):
    """Who decides along an axis of a mesh: Auto, propagation; Explicit, types; Manual, the function itself."""

    Auto = enum.auto()
    Explicit = enum.auto()
    Manual = enum.auto()

    def __repr__(self) -> str:
        return self.name


@record
class AbstractDevice:
    """What is known of devices of which it is not yet known which they are."""

    device_kind: str
    num_cores: int | None
    platform: str

    def __repr__(self) -> str:
        return f"AbstractDevice({self._fields()})"

    def _fields(self) -> str:
        return f"device_kind={self.device_kind}, num_cores={self.num_cores}, platform={self.platform}"


class _BaseMesh:
    """Names, sizes and types of axes."""

    __slots__ = ()

    axis_names: tuple[Any, ...]
    axis_sizes: tuple[int, ...]
    axis_types: tuple[AxisType, ...]
    _hash: int

    @property
    def shape_tuple(self) -> tuple[tuple[Any, int], ...]:
        """Each axis as (name, size)."""
        return tuple(zip(self.axis_names, self.axis_sizes, strict=True))

    @property
    def shape(self) -> OrderedDict[Any, int]:
        """The size of each axis by its name."""
        return OrderedDict(self.shape_tuple)

    @property
    def size(self) -> int:
        """How many devices there are; 0 if there are no axes."""
        return math.prod(self.axis_sizes) if self.axis_names else 0

    @property
    def empty(self) -> bool:
        return self.size == 0

    def axes_of_type(self, kind: AxisType) -> tuple[Any, ...]:
        """The names of the axes of a type."""
        return tuple(n for n, t in zip(self.axis_names, self.axis_types, strict=True) if t is kind)

    def are_all(self, kind: AxisType) -> bool:
        """Whether there are axes, all of one type."""
        return bool(self.axis_types) and set(self.axis_types) == {kind}

    auto_axes = property(lambda self: self.axes_of_type(AxisType.Auto))
    explicit_axes = property(lambda self: self.axes_of_type(AxisType.Explicit))
    manual_axes = property(lambda self: self.axes_of_type(AxisType.Manual))
    _any_axis_explicit = property(lambda self: bool(self.explicit_axes))  # libraries ask for it
    are_all_axes_auto = property(lambda self: self.are_all(AxisType.Auto))
    are_all_axes_explicit = property(lambda self: self.are_all(AxisType.Explicit))
    are_all_axes_manual = property(lambda self: self.are_all(AxisType.Manual))

    def type_of(self, name: Any) -> AxisType:
        """The type of the axis of a name."""
        return self.axis_types[self.axis_names.index(name)]

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"A mesh cannot be changed. Fix: mesh.update({name}=...) makes another.")

    def __hash__(self) -> int:
        return self._hash


def _axis_types(name: str, axis_names: tuple[Any, ...], given: Any) -> tuple[AxisType, ...]:
    """One type for each axis, Auto by default; TypeError and ValueError for what is not that."""
    if given is None:
        return (AxisType.Auto,) * len(axis_names)
    types = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    if not all(isinstance(t, AxisType) for t in types):
        raise TypeError(f"axis_types passed to {name} must be of type `anima.sharding.AxisType`. Got {types} of type "
                        f"{tuple(map(type, types))}")
    if len(types) != len(axis_names):
        raise ValueError("Number of axis names should match the number of axis_types. Got "
                         f"axis_names={axis_names} and axis_types={types}")
    return types


def _axis_names(given: Any) -> tuple[Any, ...]:
    names = (given,) if isinstance(given, str) else tuple(given)
    if None in names:
        raise ValueError(f"Mesh axis names cannot be None. Got: {names}")
    if len(set(names)) < len(names):
        raise ValueError(f"Each axis of a mesh has a name of its own. Got: {names}")
    return names


@record
class ManualAxisType:
    """What a type says along axes of type Manual: those along which values differ, those along which they, or their
    derivatives, are still to be summed."""

    varying: frozenset[Any] = frozenset()
    unreduced: frozenset[Any] = frozenset()
    reduced: frozenset[Any] = frozenset()

    @property
    def empty(self) -> bool:
        return not (self.varying or self.unreduced or self.reduced)

    @property
    def vur(self) -> frozenset[Any]:
        return self.varying | self.unreduced | self.reduced

    def invarying(self, mesh: Any) -> frozenset[Any]:
        """The Manual axes of a mesh along which values are the same."""
        return frozenset(mesh.manual_axes) - self.vur

    def to_ct_mat(self) -> ManualAxisType:
        """Of cotangents: what is unreduced of a value is reduced of them, and the other way round."""
        return ManualAxisType(self.varying, self.reduced, self.unreduced)

    def update(self, **kwargs: Any) -> ManualAxisType:
        """The same with some of the fields changed."""
        return replace(self, **kwargs)


class AbstractMesh(_BaseMesh):
    """A mesh of which only the axes are known.

    Args:
      axis_sizes: the size of each axis.
      axis_names: the name of each.
      axis_types: the type of each; None: Auto.
      abstract_device: what is known of its devices.

    >>> anima.sharding.AbstractMesh((4, 2), ("x", "y"))
    AbstractMesh('x': 4, 'y': 2, axis_types=(Auto, Auto))
    """

    __slots__ = ("_hash", "abstract_device", "axis_names", "axis_sizes", "axis_types")
    __module__ = "anima.sharding"
    abstract_device: AbstractDevice | None

    def __new__(cls, axis_sizes: Sequence[int], axis_names: Any, axis_types: Any = None, *,
                abstract_device: AbstractDevice | None = None) -> AbstractMesh:
        names, sizes = _axis_names(axis_names), tuple(axis_sizes)
        if len(names) != len(sizes):
            raise ValueError(f"AbstractMesh needs as many axis_sizes as axis_names, got {sizes} and {names}.")
        types, self = _axis_types("AbstractMesh", names, axis_types), object.__new__(cls)
        for field, value in (("axis_names", names), ("axis_sizes", sizes), ("axis_types", types),
                             ("abstract_device", abstract_device),
                             ("_hash", hash((names, sizes, types, abstract_device)))):
            object.__setattr__(self, field, value)
        return self

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, AbstractMesh):
            return NotImplemented
        return (self.axis_names == other.axis_names and self.axis_sizes == other.axis_sizes
                and self.axis_types == other.axis_types and self.abstract_device == other.abstract_device)

    __hash__ = _BaseMesh.__hash__

    @property
    def abstract_mesh(self) -> AbstractMesh:
        return self

    def update(self, axis_sizes: Any = None, axis_names: Any = None, axis_types: Any = None,
               **kwargs: Any) -> AbstractMesh:
        """The mesh with some of its fields changed."""
        return AbstractMesh(self.axis_sizes if axis_sizes is None else axis_sizes,
                            self.axis_names if axis_names is None else axis_names,
                            self.axis_types if axis_types is None else axis_types,
                            **{"abstract_device": self.abstract_device, **kwargs})

    def update_axis_types(self, name_to_type: Mapping[Any, AxisType]) -> AbstractMesh:
        """The mesh with other types of the axes of these names."""
        return self.update(axis_types=tuple(name_to_type.get(n, t)
                                            for n, t in zip(self.axis_names, self.axis_types, strict=True)))

    @staticmethod
    def _without(what: str) -> property:
        def missing(self: AbstractMesh) -> Any:
            raise ValueError(f"AbstractMesh does not implement {what}")

        return property(missing)

    def __repr__(self) -> str:
        if not self.axis_names:
            return "AbstractMesh((), axis_types=())"
        device = "" if self.abstract_device is None else f", {self.abstract_device._fields()}"
        return f"AbstractMesh({_axes(self)}, axis_types={self.axis_types}{device})"

    def __reduce__(self) -> Any:
        return _abstract_mesh, (self.axis_sizes, self.axis_names, self.axis_types, self.abstract_device)


for _what in ("devices", "device_ids", "local_devices", "local_mesh", "is_multi_process"):
    setattr(AbstractMesh, _what, AbstractMesh._without(_what))


def _abstract_mesh(sizes: Any, names: Any, types: Any, device: Any) -> AbstractMesh:
    return AbstractMesh(sizes, names, types, abstract_device=device)


def _axes(mesh: _BaseMesh) -> str:
    return ", ".join(f"{name!r}: {size}" for name, size in mesh.shape_tuple)


class Mesh(_BaseMesh, contextlib.ContextDecorator):
    """Devices in an array whose axes have names.

    Args:
      devices: an array-like of devices, with one axis for each name.
      axis_names: a name, or a sequence of names.
      axis_types: a type, or one for each axis; None: Auto.

    Raises:
      ValueError: for another number of names, or of types, than of axes.
      TypeError: for what is no device, or no type of an axis.

    >>> anima.sharding.Mesh(anima.devices(), "x")
    Mesh(axis_sizes=(1,), axis_names=('x',), axis_types=(Auto,))
    """

    __slots__ = ("_entered", "_hash", "abstract_mesh", "axis_names", "axis_sizes", "axis_types",
                 "device_list", "devices")
    __module__ = "anima.sharding"
    devices: np.ndarray
    device_list: tuple[Device, ...]
    abstract_mesh: AbstractMesh
    _entered: list[Any]

    def __init__(self, devices: Any, axis_names: Any, axis_types: Any = None) -> None:
        names = _axis_names(axis_names)
        array = np.array(devices, object)
        if array.ndim != len(names):
            raise ValueError("Mesh requires the ndim of its first argument (`devices`) to equal the length of its "
                             f"second argument (`axis_names`), but got devices.ndim == {array.ndim} and "
                             f"len(axis_names) == {len(names)}.")
        flat = tuple(d for d in array.flat if d is not None or names)
        for device in flat:
            if not isinstance(device, Device):
                raise TypeError(f"A mesh is of devices (anima.devices()), got {device!r} of type {type(device)}.")
        types = _axis_types("Mesh", names, axis_types)
        array.flags.writeable = False
        kind = AbstractDevice(flat[0].device_kind, None, flat[0].platform) if flat and names else None
        for field, value in (
                ("devices", array), ("device_list", flat), ("axis_names", names), ("axis_sizes", array.shape),
                ("axis_types", types), ("_entered", []), ("_hash", hash((flat, array.shape, names, types))),
                ("abstract_mesh", AbstractMesh(array.shape, names, types, abstract_device=kind))):
            object.__setattr__(self, field, value)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Mesh):
            return NotImplemented
        return (self.axis_names == other.axis_names and self.axis_sizes == other.axis_sizes
                and self.axis_types == other.axis_types and self.device_list == other.device_list)

    __hash__ = _BaseMesh.__hash__

    @property
    def device_ids(self) -> np.ndarray:
        """The numbers of the devices, in an array as they are."""
        return np.array([d.id for d in self.device_list], np.int64).reshape(self.axis_sizes)

    @property
    def is_multi_process(self) -> bool:
        return len({d.process_index for d in self.device_list}) > 1

    @property
    def is_scalar(self) -> bool:
        """Whether it is one device without axes."""
        return self.devices.ndim == 0

    @property
    def local_devices(self) -> list[Device]:
        """Those of its devices that are this process's."""
        here = set(all_devices())
        return [d for d in self.device_list if d in here]

    @property
    def local_mesh(self) -> Mesh:
        """The part of the mesh that is this process's; ValueError where it is no box."""
        here = set(all_devices())
        mine = np.array([d in here for d in self.device_list], bool).reshape(self.axis_sizes)
        box = tuple(slice(w.min(), w.max() + 1) for w in np.nonzero(mine)) if mine.any() else ()
        if (not box and self.axis_names) or not mine[box].all():
            raise ValueError("The devices of this process are not a box of the mesh, so that it has no local mesh: "
                             f"{self.device_ids.tolist()}.")
        return Mesh(self.devices[box], self.axis_names, self.axis_types)

    def update(self, devices: Any = None, axis_names: Any = None, axis_types: Any = None) -> Mesh:
        """The mesh with some of its fields changed."""
        return Mesh(self.devices if devices is None else devices,
                    self.axis_names if axis_names is None else axis_names,
                    self.axis_types if axis_types is None else axis_types)

    def __enter__(self) -> Mesh:
        warnings.warn("`with mesh:` context manager has been deprecated. Please use `with anima.set_mesh(mesh):` "
                      "instead.", DeprecationWarning, stacklevel=2)
        override = _resources(self)
        override.__enter__()
        self._entered.append(override)
        return self

    def __exit__(self, *exception: Any) -> None:
        self._entered.pop().__exit__(*exception)

    def __repr__(self) -> str:
        types = f", axis_types={self.axis_types}" if self.device_list else ""
        return f"Mesh(axis_sizes={self.axis_sizes}, axis_names={self.axis_names}{types})"

    def __str__(self) -> str:
        return f"Mesh({_axes(self)}, axis_types={self.axis_types})" if self.device_list else "Mesh()"

    def __reduce__(self) -> Any:
        return Mesh, (self.devices, self.axis_names, self.axis_types)

    def __deepcopy__(self, memo: Any) -> Mesh:
        return self


NO_MESH = Mesh(np.empty((), object), ())
NO_ABSTRACT_MESH = NO_MESH.abstract_mesh
mesh_option: Option = make_user_context(NO_MESH)
_abstract: Option = make_user_context(NO_ABSTRACT_MESH)
_resources: Option = make_user_context(NO_MESH)  # of `with mesh:`, for partition specs that name no mesh


def current_mesh() -> Mesh:
    """The mesh of `set_mesh`, or that of `with mesh:`; an empty one if there is none."""
    mesh = mesh_that_is_set()
    return mesh if mesh is not NO_MESH else _resources.value


def mesh_that_is_set() -> Mesh:
    """The mesh of `set_mesh`, with the axes under which `use_abstract_mesh` has it seen."""
    mesh = mesh_option.value
    return mesh if mesh is NO_MESH else _seen(mesh, _abstract.value)


@lru_cache(256)
def _seen(mesh: Mesh, abstract: AbstractMesh) -> Mesh:
    """The mesh's devices along the axes of another mesh; those along which functions are mapped keep their types."""
    mapped = frozenset(abstract.manual_axes)
    if abstract.empty or not mapped.issubset(mesh.axis_names):
        return mesh
    if abstract.size != mesh.size:
        raise ValueError("use_abstract_mesh cannot change the size of the mesh in context: there are the devices of "
                         f"{mesh}, got {abstract}.")
    types = tuple(mesh.type_of(n) if n in mapped else t
                  for n, t in zip(abstract.axis_names, abstract.axis_types, strict=True))
    if (abstract.shape_tuple, types) == (mesh.shape_tuple, mesh.axis_types):
        return mesh
    return Mesh(mesh.devices.reshape(abstract.axis_sizes), abstract.axis_names, types)


def get_abstract_mesh() -> AbstractMesh:
    """The current mesh, as programs know it, while they are traced too; an empty one if there is none.

    >>> anima.sharding.get_abstract_mesh()
    AbstractMesh((), axis_types=())
    """
    return _abstract.value


class _Context:
    """Holds what this thread sees of some options from when it is made, or entered, until it is left."""

    __slots__ = ("_overrides",)

    def __init__(self, *overrides: Any) -> None:
        self._overrides = overrides

    def _hold(self) -> None:
        for override in self._overrides:
            override.__enter__()

    def __exit__(self, *exception: Any) -> None:
        for override in reversed(self._overrides):
            override.__exit__(*exception)


class set_mesh(_Context):
    """Makes a mesh the current one of this thread, from now on or, as a context manager, within a block.

    Args:
      mesh: a `Mesh`; None: none.

    Raises:
      ValueError: for what is no mesh.

    >>> with anima.set_mesh(anima.make_mesh((1,), ("x",))):
    ...     anima.sharding.get_abstract_mesh().axis_names
    ('x',)
    """

    __slots__ = ("prev_abstract_mesh", "prev_mesh")
    __module__ = "anima.sharding"

    def __init__(self, mesh: Mesh | None) -> None:
        if is_tracing():
            raise ValueError("`set_mesh` can only be used outside of `anima.jit`.")
        if mesh is None:
            mesh = NO_MESH
        if not isinstance(mesh, Mesh):
            raise ValueError(f"Expected mesh of type `anima.sharding.Mesh`. Got {type(mesh)}")
        if mesh.axis_types and AxisType.Manual in mesh.axis_types:
            raise ValueError(f"set_mesh: the mesh {mesh} contains manual axes: functions are mapped over these, by "
                             "shard_map. Fix: axes of type Auto or Explicit.")
        self.prev_mesh, self.prev_abstract_mesh = mesh_option.value, _abstract.value
        super().__init__(mesh_option(mesh), _abstract(mesh.abstract_mesh))
        self._hold()

    def __enter__(self) -> None:
        """The mesh holds already."""


class use_abstract_mesh(_Context):
    """A context manager within which programs are traced for a mesh of which only the axes are known.

    ValueError for what is no `AbstractMesh`.
    """

    __slots__ = ("mesh", "prev")
    __module__ = "anima.sharding"

    def __init__(self, mesh: AbstractMesh) -> None:
        if not isinstance(mesh, AbstractMesh):
            raise ValueError(f"Expected mesh of type `anima.sharding.AbstractMesh`. Got {type(mesh)}")
        self.mesh = mesh
        super().__init__(_abstract(mesh))

    def __enter__(self) -> AbstractMesh:
        self.prev = _abstract.value
        self._hold()
        return self.mesh


def make_mesh(axis_shapes: Sequence[int], axis_names: Any, axis_types: Any = None, *,
              devices: Sequence[Device] | None = None) -> Mesh:
    """A mesh of the first devices (default: of all).

    Args:
      axis_shapes: the size of each axis.
      axis_names: the name of each.
      axis_types: the type of each; None: Explicit.
      devices: those to take from, in their order.

    Raises:
      ValueError: for more places than devices, sizes below 1, and other numbers of names or types than of sizes.

    >>> anima.make_mesh((1, 1), ("x", "y"))
    Mesh(axis_sizes=(1, 1), axis_names=('x', 'y'), axis_types=(Explicit, Explicit))
    """
    shape, names = tuple(axis_shapes), _axis_names(axis_names)
    if not all(isinstance(n, (int, np.integer, float)) for n in shape):
        raise ValueError(f"`axis_shapes` of `make_mesh` should be a sequence of ints, got {shape}.")
    given = list(all_devices() if devices is None else devices)
    count = math.prod(shape)
    if any(n < 1 for n in shape):
        raise ValueError(f"make_mesh: each axis has one device at least, got sizes {shape}.")
    if count > len(given):
        raise ValueError(f"Number of devices {len(given)} must be >= the product of mesh_shape {shape}. A CPU "
                         "has as many as the option anima_num_cpu_devices says, before the first array is made.")
    if axis_types is None:
        axis_types = (AxisType.Explicit,) * len(names)
    array = np.empty(count, object)
    array[:] = given[:count]
    return Mesh(array.reshape(shape), names, axis_types)
