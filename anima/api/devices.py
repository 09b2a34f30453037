"""Where arrays live and programs run: one process, one device, the CPU."""

from __future__ import annotations

import gc
import os
import platform
import sys
from typing import Any

import numpy as np

from anima import tree
from anima.config import platform_name, platforms
from anima.core.array import ConcreteArray
from anima.core.device import CPU, Device, device_of
from anima.core.trace import aval_of
from anima.ops.elementwise import convert
from anima.util import lazy_module

llvm = lazy_module("llvmlite")


def block_until_ready(x: Any) -> Any:
    """`x`, once every array in it is computed."""
    return tree.map(lambda v: v.block_until_ready() if hasattr(v, "block_until_ready") else v, x)


def device_put(x: Any, device: Any = None, **_: Any) -> Any:
    """`x` with every leaf as an array on a device: one for all, or a tree with one for each leaf.

    ValueError for what is no device, RuntimeError for one that is not there.
    """
    for place in [device] if isinstance(device, (Device, str, type(None))) else tree.leaves(device):
        device_of(place)

    def put(leaf: Any) -> Any:
        try:
            aval = aval_of(leaf)
        except TypeError:
            raise TypeError(f"Argument '{leaf}' of type {type(leaf)} is not a valid Anima type") from None
        return leaf if isinstance(leaf, ConcreteArray) else convert(leaf, aval.dtype, aval.weak_type)

    return tree.map(put, x)


def device_get(x: Any) -> Any:
    """`x` with every array as a NumPy array."""
    return tree.map(lambda v: v.__array__() if hasattr(v, "__array__") else v, x)


def devices(backend: str | None = None) -> list[Device]:
    """The devices of a platform (default: all); RuntimeError for a platform that is not there."""
    wanted = backend or platforms.value or platform_name.value or CPU.platform
    if CPU.platform not in wanted.split(","):
        raise RuntimeError(f"Unknown backend {wanted}. Available backends are {[CPU.platform]}")
    return [CPU]


def device_count(backend: str | None = None) -> int:
    """How many devices there are."""
    return len(devices(backend))


def local_devices(process_index: int | None = None, backend: str | None = None,
                  host_id: int | None = None) -> list[Device]:
    """The devices of a process (default: this one); ValueError for a process that is not there."""
    index = host_id if process_index is None else process_index
    if index not in (None, 0):
        raise ValueError(f"Unknown process_index {index}")
    return devices(backend)


def local_device_count(backend: str | None = None) -> int:
    """How many devices this process has."""
    return device_count(backend)


def process_index(backend: str | None = None) -> int:
    """The number of this process among those that compute together."""
    return devices(backend)[0].process_index


def process_count(backend: str | None = None) -> int:
    """How many processes compute together."""
    return len(process_indices(backend))


def process_indices(backend: str | None = None) -> list[int]:
    """The numbers of the processes that compute together."""
    return sorted({d.process_index for d in devices(backend)})


def default_backend() -> str:
    """The platform that arrays are made on: "cpu"."""
    return CPU.platform


def live_arrays(platform: str | None = None) -> list[ConcreteArray]:
    """Every array that something in this process still refers to: for finding out who holds memory."""
    devices(platform)
    # Instances refer to their class. Asking for all objects would refer, too, to tuples that other threads are making,
    # which then fail there. What another thread is making has no value yet.
    return [x for x in gc.get_referrers(ConcreteArray)
            if type(x) is ConcreteArray and hasattr(x, "_value") and not x.is_deleted()]


def print_environment_info(return_string: bool = False) -> str | None:
    """Prints (or returns) what a report of a bug should say of this machine and its packages."""
    settings = [f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith(("ANIMA_", "JAX_"))]
    lines = [f"anima:    {sys.modules['anima'].__version__}", f"llvmlite: {llvm.__version__}",
             f"numpy:    {np.__version__}", f"python:   {sys.version}",
             f"devices:  {devices()} ({CPU})", f"process_count: {process_count()}",
             f"platform: {platform.uname()}", *settings]
    text = "\n".join(lines)
    if return_string:
        return text
    print(text)
    return None


host_id, host_ids, host_count = process_index, process_indices, process_count
