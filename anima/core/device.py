"""Devices: the places where arrays live and programs run."""

from __future__ import annotations

import os
import platform as _platform

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
