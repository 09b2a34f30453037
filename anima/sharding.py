"""How arrays lie on devices: meshes, and how arrays are cut along their axes.

    >>> mesh = anima.make_mesh((1,), ("x",))
    >>> anima.sharding.NamedSharding(mesh, anima.P("x")).shard_shape((8, 2))
    (8, 2)
"""

from __future__ import annotations

from anima import errors as _errors
from anima.api.axes import auto_axes as auto_axes, explicit_axes as explicit_axes, get_mesh as get_mesh
from anima.api.devices import reshard as reshard
from anima.core.device import Device
from anima.core.mesh import (
    AbstractDevice as AbstractDevice,
    AbstractMesh as AbstractMesh,
    AxisType as AxisType,
    ManualAxisType as ManualAxisType,
    Mesh as Mesh,
    get_abstract_mesh as get_abstract_mesh,
    set_mesh as set_mesh,
    use_abstract_mesh as use_abstract_mesh,
)
from anima.core.partition import PartitionSpec as PartitionSpec
from anima.core.shardings import (
    NamedSharding as NamedSharding,
    Sharding as Sharding,
    SingleDeviceSharding as SingleDeviceSharding,
)


def make_single_device_sharding(device: Device, *, memory_kind: str | None = None) -> SingleDeviceSharding:
    """`SingleDeviceSharding(device, memory_kind=memory_kind)`."""
    return SingleDeviceSharding(device, memory_kind=memory_kind)


globals().update(_errors.public_face(__name__, globals()))  # errors show the user's frames only
