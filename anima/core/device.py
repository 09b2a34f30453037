"""Devices: the places where arrays live and programs run.

    >>> anima.devices()
    [CpuDevice(id=0)]

The CPU is shown as one device, or as `anima_num_cpu_devices` of them (also `XLA_FLAGS`
`--xla_force_host_platform_device_count=N`). They share its cores and its memory: an array that is cut into parts for
them is one piece of memory, and a program of theirs one program that runs on all cores. Of several processes that
compute together (`anima.distributed`), each has one device.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from anima.config import fixed_device_count
from anima.core import processes
from anima.util import once, record

MEMORY_KINDS = ("device", "pinned_host", "unpinned_host")  # names of one and the same memory, on a CPU


@record
class Device:
    """A device: `id`, `platform` ("cpu"), `process_index`."""

    id: int = 0
    platform: str = "cpu"
    process_index: int = 0

    @property
    def device_kind(self) -> str:
        """What it is: "cpu", or the name of a card."""
        return machines[self].kind if self in machines else self.platform

    @property
    def family(self) -> str:
        """How it, and its memories, are called in texts."""
        return "CpuDevice" if self.platform == "cpu" else "CudaDevice"

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

    def memory_stats(self) -> dict[str, int] | None:
        """Of a GPU's memory, what this process uses, by JAX's names: "bytes_in_use", "peak_bytes_in_use",
        "bytes_limit", "num_allocs" and more. None for a CPU, where the operating system serves memory."""
        return machines[self].memory_stats() if self in machines else None

    compute_capability = property(lambda self: _of_card(self, "compute_capability"))  # "9.0"
    core_count = property(lambda self: _of_card(self, "core_count"))  # its multiprocessors

    def __repr__(self) -> str:
        return f"{self.family}(id={self.id})"

    def __str__(self) -> str:
        return f"{self.family.removesuffix('Device').lower()}:{self.id}"


@record
class LaterDevice:
    """The first device of those that `find` gives, which are looked for when somebody needs one."""

    device_kind: str
    find: Callable[[], list[Device]]


def _of_card(device: Device, name: str) -> Any:
    if device not in machines:
        raise AttributeError(f"{device!r} has no {name!r}: it is no GPU.")
    return getattr(machines[device], name)


@record
class Client:
    """What runs programs on the devices of a platform."""

    platform: str
    platform_version: str = "anima"
    runtime_type: str = "anima"

    def devices(self) -> list[Device]:
        return devices() if self.platform == CPU.platform else accelerators()

    def local_devices(self) -> list[Device]:
        return local_devices() if self.platform == CPU.platform else accelerators()

    def device_count(self) -> int:
        return len(self.devices())

    def local_device_count(self) -> int:
        return len(self.local_devices())

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
        return (f"{self.device.family}Memory(id={MEMORY_KINDS.index(self.kind)}, process_index={self.process_index}, "
                f"client={self.platform})")


class MemorySpace(enum.Enum):
    """Where a program may put an array: on a CPU, names of one memory."""

    Device = enum.auto()
    Host = enum.auto()
    Any = enum.auto()

    @property
    def kind(self) -> str | None:
        """The name of that memory; None for any."""
        return {"Device": MEMORY_KINDS[0], "Host": MEMORY_KINDS[1]}.get(self.name)

    def __repr__(self) -> str:
        return f"MemorySpace.{self.name}"


memory = SimpleNamespace(Space=MemorySpace)
CPU = Device()  # the first, and where arrays are made


@once
def _all() -> tuple[Device, ...]:
    if processes.here.count > 1:
        return tuple(CPU if k == CPU.id else Device(k, process_index=k) for k in range(processes.here.count))
    return tuple(map(Device, range(fixed_device_count())))


def join(index: int) -> None:
    """Has this process's device be that of process `index`, before anybody has asked for a device."""
    object.__setattr__(CPU, "id", index)
    object.__setattr__(CPU, "process_index", index)


def devices() -> list[Device]:
    """All devices; from the first time on that this is asked, there are as many as then."""
    return list(_all())


machines: dict[Device, Any] = {}  # of the devices that are no CPUs, from the time on that somebody asks for them


def accelerators() -> list[Device]:
    """The devices that are no CPUs, once somebody has asked for them."""
    return list(machines)


def local_devices(process_index: int | None = None) -> list[Device]:
    """The devices of a process, this one by default."""
    index = CPU.process_index if process_index is None else process_index
    return [d for d in _all() if d.process_index == index]
