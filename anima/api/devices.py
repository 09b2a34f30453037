"""Where arrays live and programs run: one process, one device, the CPU."""

from __future__ import annotations

import enum
import gc
import os
import platform
import sys
from typing import Any

import numpy as np

from anima import tree
from anima.config import platform_name, platforms
from anima.core.array import ConcreteArray
from anima.core.device import CPU, Device, check_sharding, device_of
from anima.core.trace import aval_of, is_tracing
from anima.ops.elementwise import convert
from anima.transforms.composed import Composed
from anima.util import lazy_module

llvm = lazy_module("llvmlite")


def block_until_ready(x: Any) -> Any:
    """`x`, once every array in it is computed."""
    return tree.map(lambda v: v.block_until_ready() if hasattr(v, "block_until_ready") else v, x)


class ArrayCopySemantics(enum.Enum):
    """What `device_put` may do with the memory of its operand."""

    REUSE_INPUT = 0
    ALWAYS_COPY = 1
    DONATE_INPUT = 2

    def __repr__(self) -> str:
        return str(self)


device_put_p = Composed("device_put", lambda *xs, devices, srcs, copy_semantics: xs, multiple_results=True)


def device_put(x: Any, device: Any = None, *, src: Any = None, donate: Any = False, may_alias: Any = None) -> Any:
    """`x` with every leaf as an array on a device: `device` is a device or a sharding, or a tree prefix of them.

    Args:
      src: where the leaves are, as `device`.
      donate: whether the memory of `x` is not needed any more, a bool or a tree prefix: where nothing moves, it stays.
      may_alias: False for an array in memory of its own; likewise.

    Raises:
      ValueError: for what is no device, for trees that do not fit, and where `donate` and `may_alias` are both True.
      RuntimeError: for a device that is not there.

    >>> anima.device_put([1.0, 2], anima.devices()[0])
    [Array(1., dtype=float32, weak_type=True), Array(2, dtype=int32, weak_type=True)]
    """
    leaves, structure = tree.flatten(x)

    def each(name: str, given: Any) -> list[Any]:
        return tree.broadcast_prefix(given, x, is_leaf=lambda v: v is None, what=f"device_put {name}")

    places, sources = each("device", device), each("src", src)
    for place in (*places, *sources):
        device_of(place)
    semantics = [_semantics(d, a) for d, a in zip(each("donate", donate), each("may_alias", may_alias), strict=True)]
    put = [_array(leaf, copied is ArrayCopySemantics.ALWAYS_COPY)
           for leaf, copied in zip(leaves, semantics, strict=True)]
    if is_tracing() and put:
        put = device_put_p.bind(*put, devices=tuple(places), srcs=tuple(sources), copy_semantics=tuple(semantics))
    return tree.unflatten(structure, put)


def _semantics(donate: bool, may_alias: bool | None) -> ArrayCopySemantics:
    if donate:
        if may_alias:
            raise ValueError("device_put: may_alias and donate cannot be True at the same time.")
        return ArrayCopySemantics.DONATE_INPUT
    return ArrayCopySemantics.ALWAYS_COPY if may_alias is False else ArrayCopySemantics.REUSE_INPUT


def _array(leaf: Any, copied: bool) -> Any:
    if isinstance(leaf, ConcreteArray):
        return leaf.clone() if copied else leaf
    try:
        aval = aval_of(leaf)
    except TypeError:
        raise TypeError(f"Argument '{leaf}' of type {type(leaf)} is not a valid Anima type") from None
    return convert(leaf, aval.dtype, aval.weak_type)


sharding_constraint_p = Composed("sharding_constraint", lambda x, *, sharding: x)


def with_sharding_constraint(x: Any, shardings: Any) -> Any:
    """`x`, every leaf of it lying as `shardings` says, a sharding or a tree prefix of them: on the one device.

    TypeError for what is no sharding of it.
    """
    leaves, structure = tree.flatten(x)
    wanted = tree.broadcast_prefix(shardings, x, is_leaf=lambda v: v is None, what="with_sharding_constraint shardings")
    for sharding in wanted:
        check_sharding("with_sharding_constraint", sharding)
    return tree.unflatten(structure, [
        _array(leaf, False) if sharding is None else sharding_constraint_p.bind(_array(leaf, False), sharding=sharding)
        for leaf, sharding in zip(leaves, wanted, strict=True)])


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
