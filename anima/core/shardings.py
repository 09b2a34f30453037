"""Shardings: on which devices an array lies, and which part of it on which.

    >>> mesh = anima.sharding.AbstractMesh((4, 2), ("x", "y"))
    >>> anima.NamedSharding(mesh, anima.P("x")).shard_shape((8, 2))
    (2, 2)

Virtual devices share memory: whatever its sharding, an array is one piece of memory, and its shards are views of it.
An array that nothing placed lies whole on the default device.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from anima.config import default_device
from anima.core import processes
from anima.core.device import CPU, MEMORY_KINDS, Device, LaterDevice, MemorySpace, accelerators, devices
from anima.core.mesh import AbstractMesh, AxisType, Mesh
from anima.core.partition import PartitionSpec, axes_of, used_axes
from anima.util import record

Index = tuple[slice, ...]


class DuplicateSpecError(ValueError):
    """A partition spec that cuts two dimensions along one axis."""


class IndivisibleError(ValueError):
    """A dimension that does not divide into as many parts as a sharding makes of it."""


class Sharding:
    """On which devices an array lies, and which part of it on which: `devices_indices_map` says it."""

    __slots__ = ()
    __module__ = "anima.sharding"

    def devices_indices_map(self, global_shape: tuple[int, ...]) -> Mapping[Device, Index]:
        """For each device, the slices of an array of this shape that it holds."""
        raise NotImplementedError(f"{type(self).__name__} does not say which device holds what.")

    def addressable_devices_indices_map(self, global_shape: tuple[int, ...]) -> Mapping[Device, Index]:
        """As `devices_indices_map`, of this process's devices."""
        return {d: i for d, i in self.devices_indices_map(global_shape).items() if d in self.addressable_devices}

    def shard_shape(self, global_shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the part that one device holds."""
        index = next(iter(self.devices_indices_map(global_shape).values()))
        return tuple(len(range(*part.indices(n))) for part, n in zip(index, global_shape, strict=True))

    @property
    def device_set(self) -> set[Device]:
        raise NotImplementedError(f"{type(self).__name__} does not say on which devices it is.")

    @property
    def memory_kind(self) -> str | None:
        return MEMORY_KINDS[0]

    def with_memory_kind(self, kind: str) -> Sharding:
        """The same in another kind of memory."""
        raise NotImplementedError(f"{type(self).__name__} has one kind of memory.")

    @property
    def addressable_devices(self) -> set[Device]:
        return {d for d in self.device_set if d.process_index == CPU.process_index}

    _addressable_device_assignment = addressable_devices  # the name that libraries know it by

    @property
    def has_addressable_devices(self) -> bool:
        return bool(self.addressable_devices)

    @property
    def is_fully_addressable(self) -> bool:
        return self.addressable_devices == self.device_set

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device holds the whole array."""
        return self.num_devices == 1

    @property
    def num_devices(self) -> int:
        return len(self.device_set)

    def is_equivalent_to(self, other: Sharding, ndim: int) -> bool:
        """Whether an array of `ndim` dimensions lies in the same way under both."""
        shape = (self.num_devices,) * ndim
        return (self.device_set == other.device_set and self.memory_kind == other.memory_kind
                and self.devices_indices_map(shape) == other.devices_indices_map(shape))


@record
class SingleDeviceSharding(Sharding):  # type: ignore[misc]
    """The whole array lies on one device.

    >>> anima.sharding.SingleDeviceSharding(anima.devices()[0]).shard_shape((2, 3))
    (2, 3)
    """

    device: Device
    memory_kind: str

    def __init__(self, device: Device, *, memory_kind: str | None = None):
        kind = MEMORY_KINDS[0] if memory_kind is None else memory_kind
        _check_memory_kind(kind, device)
        object.__setattr__(self, "device", device)
        object.__setattr__(self, "memory_kind", kind)

    @property
    def device_set(self) -> set[Device]:
        return {self.device}

    def devices_indices_map(self, global_shape: tuple[int, ...]) -> Mapping[Device, Index]:
        return {self.device: (slice(None),) * len(global_shape)}

    def with_memory_kind(self, kind: str) -> SingleDeviceSharding:
        """The same with another name of the memory; ValueError for a name that the device does not know."""
        return SingleDeviceSharding(self.device, memory_kind=kind)

    def check_compatible_aval(self, aval_shape: tuple[int, ...]) -> None:
        """Every shape fits on one device."""

    def __repr__(self) -> str:
        return f"SingleDeviceSharding(device={self.device!r}, memory_kind={self.memory_kind})"


def _check_memory_kind(kind: str, device: Device) -> None:
    if kind not in MEMORY_KINDS:
        raise ValueError(f"Could not find memory {kind!r}: it is not addressable by device {device!r}, which has "
                         f"{', '.join(MEMORY_KINDS)}. Got memory kind: {kind}")


class NamedSharding(Sharding):
    """The dimensions of an array are cut along the axes of a mesh that a partition spec names.

    Args:
      mesh: a `Mesh`, or an `AbstractMesh`.
      spec: a `PartitionSpec`.
      memory_kind: None, or the memory of the devices where the parts are.

    Raises:
      TypeError: for what is no mesh or no spec; ValueError: for axes that the mesh has not, or that are named twice.

    >>> mesh = anima.make_mesh((1,), ("x",), (anima.sharding.AxisType.Auto,))
    >>> anima.NamedSharding(mesh, anima.P("x"))
    NamedSharding(mesh=Mesh('x': 1, axis_types=(Auto,)), spec=P('x',), memory_kind=device)
    """

    __slots__ = ("_hash", "_maps", "_memory_kind", "mesh", "spec")
    mesh: Mesh | AbstractMesh
    spec: PartitionSpec
    _memory_kind: str | None
    _maps: dict[Any, Mapping[Device, Index]]
    _hash: int

    def __init__(self, mesh: Mesh | AbstractMesh, spec: PartitionSpec, memory_kind: str | None = None) -> None:
        if not isinstance(mesh, (Mesh, AbstractMesh)):
            raise TypeError(f"NamedSharding: `mesh` must be a Mesh or AbstractMesh, got {mesh!r} of type {type(mesh)}.")
        if not isinstance(spec, PartitionSpec):
            raise TypeError(f"NamedSharding: `spec` must be a PartitionSpec, got {spec!r} of type {type(spec)}. Fix: "
                            "anima.P('x') cuts the first dimension along the axis 'x', anima.P() nothing.")
        check_spec(mesh, spec)
        if isinstance(mesh, Mesh) and mesh.device_list:
            memory_kind = MEMORY_KINDS[0] if memory_kind is None else memory_kind
            _check_memory_kind(memory_kind, mesh.device_list[0])
        for field, value in (("mesh", mesh), ("spec", spec), ("_memory_kind", memory_kind), ("_maps", {}),
                             ("_hash", hash((mesh, spec, memory_kind)))):
            object.__setattr__(self, field, value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"A sharding cannot be changed. Fix: sharding.update({name}=...) makes another.")

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, NamedSharding):
            return NotImplemented
        return self.spec == other.spec and self.mesh == other.mesh and self._memory_kind == other._memory_kind

    def __hash__(self) -> int:
        return self._hash

    @property
    def memory_kind(self) -> str | None:
        return self._memory_kind

    def with_memory_kind(self, kind: str) -> NamedSharding:
        """The same with another name of the memory; ValueError for a name that the devices do not know."""
        return self.update(memory_kind=kind)

    def update(self, **kwargs: Any) -> NamedSharding:
        """The sharding with another `mesh`, `spec` or `memory_kind`."""
        return NamedSharding(**{"mesh": self.mesh, "spec": self.spec, "memory_kind": self._memory_kind, **kwargs})

    def seen_on(self, mesh: Mesh | AbstractMesh) -> NamedSharding:
        """The same where axes are of the types that this mesh has: sums still to be taken are told along Explicit ones.
        """
        spec, told = self.spec, frozenset(mesh.explicit_axes)
        return NamedSharding(mesh, spec.update(unreduced=spec.unreduced & told, reduced=spec.reduced & told))

    @property
    def device_list(self) -> tuple[Device, ...]:
        """The devices in the order of the mesh; ValueError if it is abstract."""
        if isinstance(self.mesh, AbstractMesh):
            raise ValueError("device_set is not implemented for `anima.sharding.AbstractMesh`: a program that is being "
                             "traced knows the axes of the mesh, not its devices.")
        return self.mesh.device_list

    @property
    def device_set(self) -> set[Device]:
        return set(self.device_list)

    @property
    def num_devices(self) -> int:
        return math.prod(self.mesh.axis_sizes)

    @property
    def replicated_axes(self) -> frozenset[Any]:
        """The axes of the mesh along which every device holds the same."""
        return frozenset(self.mesh.axis_names) - {*used_axes(self.spec), *self.spec.unreduced}

    @property
    def is_fully_replicated(self) -> bool:
        sizes = self.mesh.shape
        return all(sizes[name] == 1 for name in used_axes(self.spec))

    def parts(self, ndim: int) -> tuple[int, ...]:
        """Into how many parts each of `ndim` dimensions is cut."""
        sizes = self.mesh.shape
        cut = [math.prod(sizes[name] for name in axes_of(p)) for p in self.spec]
        return (*cut, *[1] * (ndim - len(cut)))

    def check_compatible_aval(self, aval_shape: tuple[int, ...]) -> None:
        """ValueError unless an array of this shape has as many dimensions as the spec names."""
        if len(aval_shape) < len(self.spec):
            extra = " For scalars the PartitionSpec should be P()" if not aval_shape else ""
            raise ValueError(f"Sharding {self} is only valid for values of rank at least {len(self.spec)}, but was "
                             f"applied to a value of rank {len(aval_shape)}.{extra}")

    def shard_shape(self, global_shape: tuple[int, ...]) -> tuple[int, ...]:
        self.check_compatible_aval(global_shape)
        parts = self.parts(len(global_shape))
        for axis, (size, count) in enumerate(zip(global_shape, parts, strict=True)):
            if size % count:
                raise IndivisibleError(
                    f"Sharding {self} implies that array axis {axis} is partitioned {count} times, but the dimension "
                    f"size is {size} (full shape: {tuple(global_shape)}, per-dimension tiling factors: {list(parts)} "
                    "should evenly divide the shape)")
        return tuple(size // count for size, count in zip(global_shape, parts, strict=True))

    def devices_indices_map(self, global_shape: tuple[int, ...]) -> Mapping[Device, Index]:
        shape = tuple(global_shape)
        known = self._maps.get(shape)
        if known is None:
            known = self._maps[shape] = dict(zip(self.device_list, self.indices(shape), strict=True))
        return known

    def indices(self, global_shape: tuple[int, ...]) -> list[Index]:
        """For each place of the mesh, in row-major order, the slices of an array of this shape that it holds."""
        shard = self.shard_shape(global_shape)
        sizes = self.mesh.shape
        strides, step = {}, 1
        for name in reversed(self.mesh.axis_names):
            strides[name], step = step, step * sizes[name]
        found = []
        for place in range(step):
            index = []
            for size, n, partition in zip(global_shape, shard, self.spec.padded(len(global_shape)), strict=True):
                at = 0
                for name in axes_of(partition):
                    at = at * sizes[name] + place // strides[name] % sizes[name]
                index.append(slice(None) if n == size else slice(at * n, (at + 1) * n))
            found.append(tuple(index))
        return found

    def __repr__(self) -> str:
        kind = "" if self._memory_kind is None else f", memory_kind={self._memory_kind}"
        return f"NamedSharding(mesh={self.mesh!s}, spec={self.spec}{kind})"

    def __reduce__(self) -> Any:
        return NamedSharding, (self.mesh, self.spec, self._memory_kind)

    def __deepcopy__(self, memo: Any) -> NamedSharding:
        return self


def check_spec(mesh: Mesh | AbstractMesh, spec: PartitionSpec) -> None:
    """ValueError unless each axis that a spec names is one of the mesh, and is named once."""
    axes = used_axes(spec)
    for name in axes:
        if name not in mesh.axis_names:
            raise ValueError(f"Resource axis: {name} of {spec} is not found in mesh: {mesh.axis_names}.")
    for name, count in Counter(axes).items():
        if count > 1:
            raise DuplicateSpecError("A single NamedSharding spec specification can map every mesh axis to at most one "
                                     f"positional dimension, but {spec} has duplicate entries for `{name}`")
    for kind, names in (("Unreduced", spec.unreduced), ("Reduced", spec.reduced)):
        for name in names:
            if name not in mesh.axis_names:
                raise ValueError(f"{kind} axes {name} is not found in mesh.axis_names={mesh.axis_names}. Got "
                                 f"pspec={spec}")
        if any(mesh.type_of(name) is AxisType.Auto for name in names):
            raise ValueError(f"{kind} axes can only refer to mesh axes that is of type `Explicit`. Got "
                             f"{kind.lower()} axes: {names} and mesh: {mesh}")


WHOLE = SingleDeviceSharding(CPU)


def spreads(sharding: Any) -> bool:
    """Whether devices of other processes have parts of what lies so."""
    return processes.here.count > 1 and isinstance(sharding, Sharding) and not sharding.is_fully_addressable


class Shard:
    """The part of an array that one device holds: `device`, `index` (slices of the whole), `data` (an array, or what
    makes it when it is asked for)."""

    __slots__ = ("_data", "device", "global_shape", "sharding")
    __module__ = "anima"

    def __init__(self, device: Device, sharding: Sharding, global_shape: tuple[int, ...], data: Any = None) -> None:
        self.device, self.sharding, self.global_shape, self._data = device, sharding, tuple(global_shape), data

    @property
    def data(self) -> Any:
        """The part, as an array on the device."""
        if callable(self._data):
            self._data = self._data()
        return self._data

    @property
    def index(self) -> Index:
        return self.sharding.devices_indices_map(self.global_shape)[self.device]

    @property
    def replica_id(self) -> int:
        """How many devices before this one hold the same part."""
        mine, count = self.index, 0
        for device, index in self.sharding.devices_indices_map(self.global_shape).items():
            if device == self.device:
                break
            count += index == mine
        return count

    def __repr__(self) -> str:
        return f"Shard(device={self.device!r}, index={self.index}, replica_id={self.replica_id}, data={self.data})"


def memory_of(sharding: Sharding | None) -> str | None:
    """The kind of memory that a sharding names, where that is another one than a device's own."""
    kind = None if sharding is None else sharding.memory_kind
    return None if kind == MEMORY_KINDS[0] else kind


def in_memory(sharding: Sharding, kind: str | None) -> Sharding:
    """The same in the kind of memory that `memory_of` gives."""
    return sharding if memory_of(sharding) == kind else sharding.with_memory_kind(kind or MEMORY_KINDS[0])


def common_memory(kinds: Sequence[str | None], ranks: Sequence[int]) -> str | None:
    """Where an operation's results are, of operands with so many dimensions: where all of these are that have any."""
    named = {k for k in kinds if k is not None}
    alike = {k for k, rank in zip(kinds, ranks, strict=True) if rank}
    return next(iter(named)) if len(named) == 1 and alike <= named else None


def device_of(device: Any = None) -> Device:
    """The device that is meant: this one, its sharding or "cpu", or by default that of the option `default_device`.

    ValueError for what is no device; RuntimeError for a platform that is not there.
    """
    if device is None:
        device = default_device.value
    if isinstance(device, SingleDeviceSharding):
        device = device.device
    if isinstance(device, LaterDevice):
        device = device.find()[0]
    if device in (None, CPU, CPU.platform) or isinstance(device, MemorySpace):
        return CPU
    if isinstance(device, Device) and device in (*devices(), *accelerators()):
        return device
    if isinstance(device, (Device, str)):
        found = [d for d in accelerators() if d.platform == device or device == "cuda"]
        if found:
            return found[0]
        raise RuntimeError(f"Unknown device {device!r}: there are {[*devices(), *accelerators()]}.")
    raise ValueError(f"A device is one of anima.devices() or None, not {device!r}.")
