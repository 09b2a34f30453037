"""Where arrays live and programs run: one process, one device, the CPU."""

from __future__ import annotations

import enum
import gc
import os
import platform
import sys
from types import NoneType
from typing import Any

import numpy as np

from anima import tree
from anima.config import config, default_device, platform_name, platforms, transfer_guard
from anima.core import dtypes, transfers
from anima.core.array import ConcreteArray, PlacedArray
from anima.core.device import (
    CPU,
    Device,
    LaterDevice,
    MemorySpace,
    devices as all_devices,
    machines,
)
from anima.core.layout import AUTO, Format
from anima.core.mesh import AbstractMesh, AxisType, current_mesh, get_abstract_mesh
from anima.core.partition import PartitionSpec, used_axes
from anima.core.placement import elsewhere, whole
from anima.core.shardings import NamedSharding, Sharding, SingleDeviceSharding, device_of
from anima.core.trace import Tracer, aval_of, is_tracing
from anima.ops.elementwise import convert
from anima.ops.placing import (
    check_explicit,
    check_fits,
    check_mesh_is_set,
    device_put_p,
    on_current_mesh,
    origin,
    reshard_p,
    sharding_constraint_p,
)
from anima.util import lazy_module, once
from anima.version import __version__

llvm = lazy_module("llvmlite")
remotes = lazy_module("anima.api.remotes")


def block_until_ready(x: Any) -> Any:
    """`x`, once every array in it is computed."""
    if type(x) is ConcreteArray:  # `isinstance` takes longer than an addition
        return x.block_until_ready()
    for v in tree.leaves(x):
        if hasattr(v, "block_until_ready"):
            v.block_until_ready()
    return x


class ArrayCopySemantics(enum.Enum):
    """What `device_put` may do with the memory of its operand."""

    REUSE_INPUT = 0
    ALWAYS_COPY = 1
    DONATE_INPUT = 2

    def __repr__(self) -> str:
        return str(self)


def device_put(x: Any, device: Any = None, *, src: Any = None, donate: Any = False, may_alias: Any = None) -> Any:
    """`x` with every leaf as an array on a device: `device` is a device or a sharding, or a tree prefix of them.

    Args:
      device: a `Sharding`, a device, a `PartitionSpec` about the mesh of `set_mesh`, a `Format`, a memory space or
        None, which leaves leaves where they are; or a tree prefix of these. In a program that is being traced, a device
        says nothing, as in JAX: the program runs where its arguments are.
      src: where the leaves are, as `device`: gradients are put there. Default: as far as it is known.
      donate: whether the memory of `x` is not needed any more, a bool or a tree prefix: an array that is put elsewhere
        is deleted.
      may_alias: False for an array in memory of its own; likewise. Devices share memory: by default, nothing is copied.

    Raises:
      ValueError: for what is no device, for trees that do not fit, for arrays that do not divide as a sharding wants,
        and where `donate` and `may_alias` are both True.
      RuntimeError: for a device that is not there.

    >>> anima.device_put([1.0, 2], anima.devices()[0])
    [Array(1., dtype=float32, weak_type=True), Array(2, dtype=int32, weak_type=True)]
    """
    leaves, structure = tree.flatten(x)

    def each(name: str, given: Any) -> list[Any]:
        return tree.broadcast_prefix(given, x, is_leaf=lambda v: v is None, what=f"device_put {name}")

    targets = each("device", device)
    if is_tracing():  # a program runs where its arguments are: a device is a wish, a sharding is not
        targets = [None if isinstance(target, Device) else target for target in targets]
    places, sources = list(map(_place, targets)), list(map(_place, each("src", src)))
    semantics = [_semantics(d, a) for d, a in zip(each("donate", donate), each("may_alias", may_alias), strict=True)]
    put = [_put(leaf, *how) for leaf, *how in zip(leaves, places, sources, semantics, strict=True)]
    return tree.unflatten(structure, put)


def _put(leaf: Any, place: Any, source: Any, semantics: ArrayCopySemantics) -> Any:
    if config.call_key().guarded:
        transfers.explicit(leaf, place)
        with transfer_guard("allow"):
            return _put(leaf, place, source, semantics)
    leaf = _array(leaf, semantics is ArrayCopySemantics.ALWAYS_COPY)
    if place is None and not is_tracing():
        return _at_default(leaf)
    if isinstance(place, Sharding):
        check_fits("One of device_put args", aval_of(leaf).shape, place)
    if source is None and not is_tracing():  # where gradients go back to, as far as it is known
        known = leaf.concrete() if isinstance(leaf, Tracer) else leaf
        source = origin(known) if isinstance(known, ConcreteArray) else None
    (out,) = device_put_p.bind(leaf, devices=(place,), srcs=(source,), copy_semantics=(semantics,))
    if semantics is ArrayCopySemantics.DONATE_INPUT and out is not leaf and isinstance(leaf, ConcreteArray):
        leaf.delete("device_put")
    return out


def _at_default(leaf: Any) -> Any:
    """An array that nobody places, where arrays are made."""
    where, committed = elsewhere(leaf.ndim)
    if type(leaf) is not ConcreteArray or not isinstance(where, SingleDeviceSharding) or where.device not in machines:
        return leaf
    return PlacedArray(leaf.elements(), leaf.aval, where, committed)


def _place(given: Any) -> Any:
    """A device or a sharding, or None; ValueError for what is none of these."""
    if isinstance(given, Format):
        if given.layout is AUTO:
            raise ValueError(f"device_put needs a layout that is known, got {given}.")
        given = given.sharding
    if given is None or isinstance(given, (Sharding, MemorySpace)):
        return None if given is MemorySpace.Any else given
    if isinstance(given, PartitionSpec):
        if current_mesh().empty:
            raise ValueError("Please set a mesh via `anima.set_mesh` if a PartitionSpec is passed to device_put")
        return on_current_mesh("device_put", given, "device")
    if not isinstance(given, Device):
        raise ValueError("`anima.device_put` only accepts `None`, `anima.sharding.Sharding`, `anima.Device`, `Format`, "
                         f"`anima.memory.Space` or a pytree of these values. Received invalid value: {given}. A device "
                         "is one of anima.devices().")
    return device_of(given)


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


def with_sharding_constraint(x: Any, shardings: Any) -> Any:
    """`x`, every leaf of it cut along axes of type Auto as `shardings` says.

    Args:
      shardings: a sharding, a `PartitionSpec` about the current mesh, or None; or a tree prefix of these. Dimensions
        that are `PartitionSpec.UNCONSTRAINED` are left to propagation.

    Raises:
      RuntimeError: for specs where there is no mesh; TypeError: for what is no sharding.
      ValueError: for axes of type Explicit, and for arrays that do not divide.
      AssertionError: where all axes are Explicit, and the array is cut in another way.
    """
    leaves, structure = tree.flatten(x)
    wanted = tree.broadcast_prefix(shardings, x, is_leaf=lambda v: v is None, what="with_sharding_constraint shardings")
    return tree.unflatten(structure, [_constrained(_array(leaf, False), s)
                                      for leaf, s in zip(leaves, wanted, strict=True)])


def _constrained(leaf: Any, sharding: Any) -> Any:
    name = "with_sharding_constraint"
    if isinstance(sharding, Format):
        sharding = sharding.sharding
    if sharding is None:
        raise ValueError(f"One of {name} arguments got sharding None which is not allowed. Fix: leave it out, or a "
                         "Sharding or PartitionSpec.")
    from_spec = isinstance(sharding, PartitionSpec)
    if from_spec:
        sharding = on_current_mesh(name, sharding, "shardings")
    elif (isinstance(sharding, NamedSharding) and sharding.mesh.axis_names
          and sharding.mesh == current_mesh().abstract_mesh):
        sharding = sharding.update(mesh=current_mesh())  # results lie on its devices
    if not isinstance(sharding, Sharding):
        raise TypeError(f"{name}: a sharding must be a Sharding or a PartitionSpec, got {sharding!r} of type "
                        f"{type(sharding)}.")
    aval = aval_of(leaf)
    check_fits(f"One of {name} arguments", aval.shape, sharding, divides=not is_tracing())
    if isinstance(sharding, NamedSharding):
        mesh, spec = sharding.mesh, sharding.spec
        mapped = [n for n in used_axes(spec) if n in get_abstract_mesh().manual_axes]
        if mapped:
            raise ValueError(f"{name}: {spec} names {', '.join(map(repr, mapped))}, along which each device has "
                             "its own part here, as the function is mapped over it. Fix: specs about other axes.")
        if get_abstract_mesh().are_all_axes_explicit:
            own, wanted = aval.sharding.spec, spec.padded(aval.ndim)
            if any(w is not PartitionSpec.UNCONSTRAINED and w != p for p, w in zip(own, wanted, strict=True)):
                raise AssertionError(
                    f"`{name}` acts as an assert when all axes of mesh are of type `Explicit`. The array sharding: "
                    f"{own} did not match the sharding provided: {wanted}. Please use "
                    "`anima.sharding.reshard` to shard your input to the sharding you want.")
            return leaf
        if any(mesh.type_of(axis) is AxisType.Explicit for axis in used_axes(spec)):
            raise ValueError(f"The spec of NamedSharding passed to {name} can only refer to Auto axes of the mesh. Got "
                             f"spec={spec} and mesh={mesh}. You probably meant to use `reshard` API?")
    return sharding_constraint_p.bind(leaf, sharding=sharding)


def reshard(xs: Any, out_shardings: Any) -> Any:
    """`xs`, every leaf of it cut along axes of type Explicit as `out_shardings` says, which its type then tells.

    Args:
      out_shardings: a `NamedSharding`, or a `PartitionSpec` about the current mesh; or a tree prefix of these.

    Raises:
      ValueError: for axes of other types, for specs where there is no mesh, and for arrays that do not divide.

    >>> mesh = anima.make_mesh((1,), ("x",))
    >>> anima.typeof(anima.reshard(jnp.ones(4), anima.NamedSharding(mesh, anima.P("x"))))
    ShapedArray(float32[4@x])
    """
    return resharded_on(None, xs, out_shardings)


def resharded_on(mesh: AbstractMesh | None, xs: Any, out_shardings: Any) -> Any:
    """`reshard`, of values that are seen on this mesh."""
    leaves, structure = tree.flatten(xs)
    wanted = tree.broadcast_prefix(out_shardings, xs, is_leaf=lambda v: v is None, what="reshard out_shardings")
    seen = {} if mesh is None else {"seen_on": mesh}
    return tree.unflatten(structure, [_resharded(_array(leaf, False), s, **seen)
                                      for leaf, s in zip(leaves, wanted, strict=True)])


def _resharded(leaf: Any, sharding: Any, **params: Any) -> Any:
    if isinstance(sharding, PartitionSpec):
        check_mesh_is_set(sharding)
        sharding = on_current_mesh("reshard", sharding, "out_shardings")
    if not isinstance(sharding, (Sharding, NoneType)):
        raise TypeError("`out_sharding` argument of reshard only supports instances of `NamedSharding` or "
                        f"`PartitionSpec`. Got {sharding!r} of type: {type(sharding)}")
    if not isinstance(sharding, NamedSharding) or sharding.mesh.empty:
        raise ValueError("Reshard should only be used with out_shardings which are non-None and have a non-empty mesh. "
                         f"Got sharding {sharding}.")
    check_explicit("reshard", sharding)
    shape = aval_of(leaf).shape
    check_fits("One of reshard arguments", shape, sharding)
    return reshard_p.bind(leaf, dst_sharding=whole(sharding.mesh, sharding.spec, len(shape)), **params)


def device_get(x: Any) -> Any:
    """`x` with every array as a NumPy array; those of random keys, of which NumPy knows nothing, and traced ones as
    they are."""
    def get(value: Any) -> Any:
        kept = isinstance(value, Tracer) or dtypes.is_extended(getattr(value, "dtype", None))
        return value.__array__() if hasattr(value, "__array__") and not kept else value

    return tree.map(get, x)


def devices(backend: str | None = None) -> list[Device]:
    """The devices of a platform (default: the first one of the option `platforms` that is there; the CPU);
    RuntimeError for a platform that is not there."""
    if backend in _GPUS:
        return remotes.gpus()  # the first time this looks for a driver
    wanted = _platforms() if backend is None else backend
    missing = ""
    for name in wanted.split(","):
        if name == CPU.platform:
            return all_devices()
        if name in _GPUS:
            try:
                return remotes.gpus()
            except RuntimeError as error:
                missing = f". {error}"
    raise RuntimeError(f"Unknown backend {wanted}. Available backends are {[CPU.platform]}{missing}")


def _platforms() -> str:
    """The platforms whose devices are the default, best first."""
    return platforms.value or platform_name.value or CPU.platform


@once
def _default_devices() -> list[Device]:
    return devices()


def _prefer(before: Any, now: Any) -> None:
    """Where an option says that arrays are made on GPUs, these are looked for when the first one is made."""
    _default_devices.cache_clear()
    if _platforms().split(",")[0] in _GPUS:
        default_device.set(LaterDevice("gpu", _default_devices))
    elif isinstance(default_device.value, LaterDevice):
        default_device.set(None)


_GPUS = ("gpu", "cuda")
platforms.on_set = platform_name.on_set = _prefer
_prefer(None, None)


def device_count(backend: str | None = None) -> int:
    """How many devices there are."""
    return len(devices(backend))


def local_devices(process_index: int | None = None, backend: str | None = None,
                  host_id: int | None = None) -> list[Device]:
    """The devices of a process (default: this one); ValueError for a process that is not there."""
    there = devices(backend)
    index = next((i for i in (process_index, host_id) if i is not None), CPU.process_index)
    found = [d for d in there if d.process_index == index]
    if not found:
        raise ValueError(f"Unknown process_index {index}")
    return found


def local_device_count(backend: str | None = None) -> int:
    """How many devices this process has."""
    return len(local_devices(backend=backend))


def process_index(backend: str | None = None) -> int:
    """The number of this process among those that compute together."""
    return local_devices(backend=backend)[0].process_index


def process_count(backend: str | None = None) -> int:
    """How many processes compute together."""
    return len(process_indices(backend))


def process_indices(backend: str | None = None) -> list[int]:
    """The numbers of the processes that compute together."""
    return sorted({d.process_index for d in devices(backend)})


def default_backend() -> str:
    """The platform that arrays are made on: "cpu", or "gpu" where the option `platforms` says so."""
    return CPU.platform if _platforms() == CPU.platform else devices()[0].platform


def live_arrays(platform: str | None = None) -> list[ConcreteArray]:
    """Every array that something in this process still refers to: for finding out who holds memory."""
    kinds = {d.platform for d in devices(platform)} if platform is not None else ()
    # Instances refer to their class. Asking for all objects would refer, too, to tuples that other threads are making,
    # which then fail there. What another thread is making has no value yet.
    return [x for kind in (ConcreteArray, PlacedArray) for x in gc.get_referrers(kind)
            if type(x) is kind and hasattr(x, "_value") and not x.is_deleted()
            and (platform is None or x.platform() in kinds)]


def print_environment_info(return_string: bool = False) -> str | None:
    """Prints (or returns) what a report of a bug should say of this machine and its packages."""
    settings = [f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith(("ANIMA_", "JAX_"))]
    lines = [f"anima:    {__version__}", f"llvmlite: {llvm.__version__}",
             f"numpy:    {np.__version__}", f"python:   {sys.version}",
             f"devices:  {devices()} ({CPU})", f"process_count: {process_count()}",
             f"platform: {platform.uname()}", *settings]
    text = "\n".join(lines)
    if return_string:
        return text
    print(text)
    return None


host_id, host_ids, host_count = process_index, process_indices, process_count
