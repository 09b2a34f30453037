"""How arrays lie on devices: each on the one there is.

    >>> anima.sharding.make_single_device_sharding(anima.devices()[0])
    SingleDeviceSharding(device=CpuDevice(id=0), memory_kind=device)
"""

from __future__ import annotations

from anima import errors as _errors
from anima.core.device import Device, Sharding as Sharding, SingleDeviceSharding as SingleDeviceSharding


def make_single_device_sharding(device: Device, *, memory_kind: str | None = None) -> SingleDeviceSharding:
    """`SingleDeviceSharding(device, memory_kind=memory_kind)`."""
    return SingleDeviceSharding(device, memory_kind=memory_kind)


globals().update(_errors.public_face(__name__, globals()))  # errors show the user's frames only
