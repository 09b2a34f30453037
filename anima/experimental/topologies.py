"""Descriptions of machines: of this one, whose devices are there.

    make_mesh(get_attached_topology(), (1,), ("x",))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from anima.api.devices import devices
from anima.core.device import Device
from anima.core.mesh import Mesh
from anima.experimental.mesh_utils import create_device_mesh
from anima.names import access


class TopologyDescription:
    """Devices, in order."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self.devices = list(devices)

    def __repr__(self) -> str:
        return f"TopologyDescription({self.devices})"


def get_attached_topology(platform: str | None = None) -> TopologyDescription:
    """The devices that are there, of a platform: RuntimeError for one that is not."""
    return TopologyDescription(devices(platform))


def get_topology_desc(topology_name: str = "", platform: str | None = None, **kwargs: Any) -> NoReturn:
    """NotImplementedError: programs are compiled for machines that are there."""
    raise NotImplementedError(
        f"topologies.get_topology_desc({topology_name!r}): Anima has no descriptions of machines that are not there. "
        "Use get_attached_topology; programs of more devices than cores run with anima_num_cpu_devices.")


def make_mesh(topo: TopologyDescription, mesh_shape: Sequence[int], axis_names: tuple[str, ...], *,
              contiguous_submeshes: bool = False) -> Mesh:
    """The devices of a topology as a mesh.

    >>> make_mesh(get_attached_topology(), (1,), ("x",)).axis_names
    ('x',)
    """
    return Mesh(create_device_mesh(mesh_shape, topo.devices, contiguous_submeshes=contiguous_submeshes), axis_names)


globals().update(access(__name__, globals()))
