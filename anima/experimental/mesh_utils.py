"""Devices in arrays, to be the axes of a mesh.

    create_device_mesh((1, 1))   ->   array([[CpuDevice(id=0)]], dtype=object)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from anima.api.devices import devices as _devices
from anima.names import access


def create_device_mesh(mesh_shape: Sequence[int], devices: Sequence[Any] | None = None, *,
                       contiguous_submeshes: bool = False, allow_split_physical_axes: bool = False) -> np.ndarray:
    """The devices (default: all) as an array of objects of a shape; ValueError if there are more or fewer.

    The other arguments are about the wires between devices, of which CPUs have none.
    """
    given = _devices() if devices is None else list(devices)
    shape = tuple(mesh_shape)
    if math.prod(shape) != len(given):
        raise ValueError(f"Number of devices {len(given)} must equal the product of mesh_shape {shape}")
    mesh = np.empty(len(given), object)
    mesh[:] = given
    return mesh.reshape(shape)


def create_hybrid_device_mesh(mesh_shape: Sequence[int], dcn_mesh_shape: Sequence[int],
                              devices: Sequence[Any] | None = None, *, process_is_granule: bool = False,
                              should_sort_granules_by_key: bool = True,
                              allow_split_physical_axes: bool = False) -> np.ndarray:
    """The devices of groups (slow wires between, fast ones within) as an array: each axis is one of `dcn_mesh_shape`
    times one of `mesh_shape`.

    Raises:
      ValueError: for devices that know no `slice_index`, unless `process_is_granule`; or if there are more or fewer
        groups than `dcn_mesh_shape` has.
    """
    given = _devices() if devices is None else list(devices)
    if len(mesh_shape) != len(dcn_mesh_shape):
        raise ValueError(f"mesh_shape {tuple(mesh_shape)} and dcn_mesh_shape {tuple(dcn_mesh_shape)} must have as many "
                         "axes as each other.")
    attribute = "process_index" if process_is_granule else "slice_index"
    groups: dict[int, list[Any]] = {}
    for device in given:
        if not hasattr(device, attribute):
            raise ValueError(f"Device {device} does not have attribute {attribute}. See `process_is_granule` option.")
        groups.setdefault(getattr(device, attribute), []).append(device)
    if math.prod(dcn_mesh_shape) != len(groups):
        raise ValueError(f"Number of slices {len(groups)} must equal the product of dcn_mesh_shape "
                         f"{tuple(dcn_mesh_shape)}")
    order = sorted(groups) if should_sort_granules_by_key else list(groups)
    meshes = np.stack([create_device_mesh(mesh_shape, groups[k]) for k in order])
    rank = len(mesh_shape)
    blocks = meshes.reshape(*dcn_mesh_shape, *mesh_shape)
    pairs = [axis for k in range(rank) for axis in (k, rank + k)]
    return blocks.transpose(pairs).reshape([a * b for a, b in zip(dcn_mesh_shape, mesh_shape, strict=True)])

globals().update(access(__name__, globals()))
