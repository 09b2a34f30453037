"""Devices: the places where arrays live and programs run."""

from __future__ import annotations

import os
import platform as _platform
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

    def memory_stats(self) -> None:
        """Allocation statistics; None, as the operating system serves memory on a CPU."""
        return None

    def __repr__(self) -> str:
        return f"CpuDevice(id={self.id})"

    def __str__(self) -> str:
        return f"CPU_{self.id} ({_platform.machine()}, {os.cpu_count()} cores)"


CPU = Device()


def device_of(device: Any = None) -> Device:
    """The device that is meant: this one or "cpu", or by default that of the option `default_device`.

    ValueError for what is no device; RuntimeError for a platform that is not there.
    """
    if device is None:
        device = default_device.value
    if device in (None, CPU, CPU.platform):
        return CPU
    if isinstance(device, (Device, str)):
        raise RuntimeError(f"Unknown device {device!r}: there is {CPU!r} alone.")
    raise ValueError(f"A device is one of anima.devices() or None, not {device!r}.")
