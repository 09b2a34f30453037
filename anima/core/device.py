"""Devices: the places where arrays live and programs run; shardings: how an array lies on them.

There is one device, and every array lies on it whole:

    >>> jnp.ones(3).sharding
    SingleDeviceSharding(device=CpuDevice(id=0), memory_kind=device)
"""

from __future__ import annotations

import enum
import os
import platform as _platform
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from anima.config import default_device
from anima.util import record


@record
class Device:
    """A device: `id`, `platform` ("cpu"), `process_index`."""

    id: int = 0
    platform: str = "cpu"
    process_index: int = 0

    @property
    def device_kind(self) -> str:
        return self.platform

    @property
    def host_id(self) -> int:
        return self.process_index

    @property
    def local_hardware_id(self) -> int:
        return self.id

    task_id = property(lambda self: self.process_index)

    @property
    def client(self) -> Client:
        return Client(self.platform)

    def addressable_memories(self) -> list[Memory]:
        """The memories that it reaches: one and the same, under the names that programs know."""
        return [Memory(self, kind) for kind in MEMORY_KINDS]

    def memory(self, kind: str) -> Memory:
        """The memory of a kind; ValueError if there is none."""
        if kind not in MEMORY_KINDS:
            raise ValueError(f"Could not find memory {kind!r} on {self!r}, which has {', '.join(MEMORY_KINDS)}.")
        return Memory(self, kind)

    def default_memory(self) -> Memory:
        """The memory where arrays are."""
        return Memory(self, MEMORY_KINDS[0])

    def memory_stats(self) -> None:
        """Allocation statistics; None, as the operating system serves memory on a CPU."""
        return None

    def __repr__(self) -> str:
        return f"CpuDevice(id={self.id})"

    def __str__(self) -> str:
        return f"CPU_{self.id} ({_platform.machine()}, {os.cpu_count()} cores)"


@record
class Client:
    """What runs programs on the devices of a platform."""

    platform: str
    platform_version: str = "anima"

    def devices(self) -> list[Device]:
        return [CPU]

    local_devices = devices

    def device_count(self) -> int:
        return len(self.devices())

    local_device_count = device_count

    def process_index(self) -> int:
        return CPU.process_index


@record
class Memory:
    """A memory of a device: `kind` is "device", "pinned_host" or "unpinned_host"."""

    device: Device
    kind: str

    platform = property(lambda self: self.device.platform)
    process_index = property(lambda self: self.device.process_index)

    def addressable_by_devices(self) -> list[Device]:
        """The devices that reach it."""
        return [self.device]

    def __repr__(self) -> str:
        return (f"CpuDeviceMemory(id={MEMORY_KINDS.index(self.kind)}, process_index={self.process_index}, "
                f"client={self.platform})")


class MemorySpace(enum.Enum):
    """Where a program may put an array: on a CPU, names of one memory."""

    Device = enum.auto()
    Host = enum.auto()
    Any = enum.auto()

    def __repr__(self) -> str:
        return f"MemorySpace.{self.name}"


memory = SimpleNamespace(Space=MemorySpace)
CPU = Device()


Index = tuple[slice, ...]
MEMORY_KINDS = ("device", "pinned_host", "unpinned_host")  # names of one and the same memory, on a CPU


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
        return (self.memory_kind == other.memory_kind
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
        if kind not in MEMORY_KINDS:
            raise ValueError(f"Could not find memory {kind!r} on {device!r}, which has {', '.join(MEMORY_KINDS)}.")
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


WHOLE = SingleDeviceSharding(CPU)


@record(eq=False)
class Shard:
    """The part of an array that one device holds: `device`, `index` (slices of the whole), `data`."""

    device: Device
    sharding: Sharding
    global_shape: tuple[int, ...]
    data: Any = None
    replica_id = 0  # no other device holds the same part

    @property
    def index(self) -> Index:
        return self.sharding.devices_indices_map(self.global_shape)[self.device]

    def __repr__(self) -> str:
        return f"Shard(device={self.device!r}, index={self.index}, replica_id={self.replica_id}, data={self.data})"


def device_of(device: Any = None) -> Device:
    """The device that is meant: this one, its sharding or "cpu", or by default that of the option `default_device`.

    ValueError for what is no device; RuntimeError for a platform that is not there.
    """
    if device is None:
        device = default_device.value
    if isinstance(device, SingleDeviceSharding):
        device = device.device
    if device in (None, CPU, CPU.platform) or isinstance(device, MemorySpace):
        return CPU
    if isinstance(device, (Device, str)):
        raise RuntimeError(f"Unknown device {device!r}: there is {CPU!r} alone.")
    raise ValueError(f"A device is one of anima.devices() or None, not {device!r}.")


def is_here(place: Any) -> bool:
    """Whether this is the one device, or its sharding."""
    return place == CPU or (isinstance(place, SingleDeviceSharding) and place.device == CPU)


def check_sharding(name: str, out_sharding: Any) -> None:
    """TypeError unless the result of the function `name` is asked for on the one device, or nothing is asked."""
    if out_sharding is not None and not (isinstance(out_sharding, Sharding) and is_here(out_sharding)):
        raise TypeError(f"{name}: out_sharding must be None or a sharding on {CPU!r}, where all results are, got "
                        f"{out_sharding!r} of type {type(out_sharding)}.")


def check_place(name: str, device: Any, out_sharding: Any) -> None:
    """`check_sharding`, and the errors of `device_of`, of a function that takes both."""
    check_sharding(name, out_sharding)
    device_of(device)
