"""Where results are, from where the arguments are: what eager operations and jitted calls have in common.

Arrays that nobody placed go where the others are. Placed ones have to be on the same devices; along the axes of their
mesh, propagation says how the results are cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima import errors
from anima.config import default_device
from anima.core.array import ConcreteArray, PlacedArray
from anima.core.avals import ShapedArray, ShardedArray
from anima.core.device import CPU
from anima.core.jaxpr import ClosedJaxpr, subjaxprs
from anima.core.mesh import NO_MESH, AbstractMesh, AxisType, Mesh, mesh_option, mesh_that_is_set
from anima.core.partition import PartitionSpec, axes_of
from anima.core.primitive import Primitive
from anima.core.propagation import propagate_one
from anima.core.shardings import (
    NamedSharding,
    Sharding,
    SingleDeviceSharding,
    common_memory,
    device_of,
    in_memory,
    memory_of,
    spreads,
)
from anima.core.state import is_tracing
from anima.util import deeper, weak_cache


def committed_sharding(x: Any) -> Sharding | None:
    """The sharding of an array that has to stay where it is."""
    return x._sharding if type(x) is PlacedArray and x.committed else None


def pulls(x: Any) -> bool:
    """Whether operations on an array run where it is, so that its value alone does not stand for it; a program runs
    where its arguments are."""
    return type(x) is PlacedArray and x.committed and not is_tracing()


def moved() -> bool:
    """Whether an option, or `set_mesh`, says where arrays are made that nothing places."""
    return default_device.value is not None or mesh_option.value is not NO_MESH


def elsewhere(ndim: int) -> tuple[Sharding | None, bool]:
    """Where arrays of so many dimensions are made that nothing places (None: where they are by default), and whether
    they have to stay."""
    if default_device.value is not None:
        device = device_of()
        return None if device == CPU else SingleDeviceSharding(device), False
    mesh = mesh_that_is_set()
    return (None, False) if mesh is NO_MESH else (whole(mesh, PartitionSpec(), ndim), True)


def whole(mesh: Mesh | AbstractMesh, spec: PartitionSpec, ndim: int) -> NamedSharding:
    """A sharding whose spec names every dimension, as types do, where the mesh has axes of type Explicit."""
    return NamedSharding(mesh, spec.padded(ndim) if mesh.explicit_axes else spec)


CONSTANT = "a constant"  # what a function closes over goes where the arguments are, if anything else says where


@weak_cache
def pins(closed: ClosedJaxpr) -> tuple[tuple[str, Sharding], ...]:
    """What a program says of where its values are, with what says it, for errors."""
    found: dict[Any, str] = {}
    for const in closed.consts:
        sharding = committed_sharding(const)
        if sharding is not None:
            found.setdefault(sharding, CONSTANT)
    with deeper():
        _collect(closed.jaxpr, found)
    return tuple((text, sharding) for sharding, text in found.items())


def _collect(jaxpr: Any, found: dict[Any, str]) -> None:
    for eqn in jaxpr.eqns:
        if not eqn.params:
            continue
        for sharding in eqn.primitive.places(eqn.params):
            if sharding is not None and not is_abstract(sharding):
                where = f" {errors.line_of(eqn.source)}" if eqn.source else ""
                found.setdefault(sharding, f"{eqn.primitive.name} inside jit{where}")
        for inner in subjaxprs(eqn.params):
            if isinstance(inner, ClosedJaxpr):
                found.update({s: t for t, s in pins(inner) if s not in found})
            else:
                _collect(inner, found)


def is_abstract(sharding: Sharding) -> bool:
    """Whether it is not known which devices a sharding is about."""
    return isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, AbstractMesh)


def check_together(shardings: Sequence[Sharding | None], others: Sequence[tuple[str, Sharding | None]] = (),
                   describe: Callable[[int], str] = "number {}".format) -> None:
    """ValueError unless all arguments that stay where they are, and what else says so, are on the same devices.

    Args:
      shardings: of the arguments; None for those that go where the others are.
      others: what else there is, with what it is for the message.
      describe: from the number of an argument, what it is.
    """
    meshes = {s.mesh for s in shardings if isinstance(s, NamedSharding)}
    if len(meshes) > 1 and any(m.explicit_axes for m in meshes):
        one, other = list(meshes)[:2]
        raise ValueError(f"Mesh for all inputs should be equal. Got one mesh: {one} and another mesh: {other}")
    first: tuple[Any, tuple[str, list[int]]] | None = None
    for what, sharding in (*enumerate(shardings), *others):
        if sharding is None:
            continue
        devices = _ordered(sharding)
        if first is None:
            first = what, devices
        elif devices != first[1]:
            a, b = [(f"argument {describe(w)} and with" if isinstance(w, int) else f"{w} with") +
                    f" device ids {ids} on platform {platform.upper()}"
                    for w, (platform, ids) in (first, (what, devices))]
            raise ValueError(f"Received incompatible devices for jitted computation. Got {a} and {b}. Fix: "
                             "anima.device_put them to the same devices, in the same order.")


def _ordered(sharding: Sharding) -> tuple[str, list[int]]:
    """The platform and numbers of the devices, in the order in which they have parts where that is known."""
    if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh):
        return sharding.mesh.device_list[0].platform, [d.id for d in sharding.mesh.device_list]
    return min(d.platform for d in sharding.device_set), sorted(d.id for d in sharding.device_set)


def meshes_of(shardings: Sequence[Sharding | None]) -> list[Mesh]:
    """The meshes of shardings, each once, in their order."""
    return list(dict.fromkeys(s.mesh for s in shardings if isinstance(s, NamedSharding) and isinstance(s.mesh, Mesh)))


def mesh_of(shardings: Sequence[Sharding | None]) -> Mesh | None:
    """The mesh of the first sharding that has one."""
    return next(iter(meshes_of(shardings)), None)


def completed(mesh: Mesh, aval: ShapedArray, spec: PartitionSpec) -> NamedSharding:
    """The sharding of a result: along Explicit axes as its type says, along the others as propagation does, as far as
    it divides."""
    spec = dividing(spec, aval.shape, mesh)
    if type(aval) is not ShardedArray:
        return NamedSharding(mesh, spec)
    known = [_merged(mesh, axes_of(mine), axes_of(p))
             for mine, p in zip(aval.sharding.spec, spec.padded(aval.ndim), strict=True)]
    return NamedSharding(mesh, aval.sharding.spec.update(partitions=known))


def dividing(spec: PartitionSpec, shape: Sequence[int], mesh: Mesh) -> PartitionSpec:
    """The spec as far as dimensions divide: constraints in programs may ask for more, and are then obeyed in part."""
    found = []
    for n, axes in zip(shape, map(axes_of, spec), strict=False):
        while n % math.prod(mesh.shape[name] for name in axes):
            axes = axes[:-1]
        found.append(axes)
    return PartitionSpec(*found[:max((k + 1 for k, axes in enumerate(found) if axes), default=0)])


def _merged(mesh: Mesh, typed: tuple[Any, ...], found: tuple[Any, ...]) -> tuple[Any, ...]:
    """Along which axes a dimension is cut: as propagation found, where it knew of the type."""
    return found if tuple(n for n in found if mesh.type_of(n) is AxisType.Explicit) == typed else typed


def made_at(aval: ShapedArray, known: Sequence[Sharding | None]) -> tuple[Sharding | None, bool]:
    """Where an array of this type is made, and whether it has to stay, if nothing that it is made of is placed: as its
    type says, on the current mesh or that of `known` shardings; else where nothing places arrays."""
    if type(aval) is ShardedArray:
        meshes = [mesh_that_is_set(), *(s.mesh for s in known if isinstance(s, NamedSharding))]
        axes = aval.sharding.mesh.shape_tuple
        mesh = next((m for m in meshes if isinstance(m, Mesh) and m.shape_tuple == axes), None)
        if mesh is not None:
            return completed(mesh, aval, PartitionSpec()), True
    return elsewhere(aval.ndim)


def placed_results(primitive: Primitive, args: Sequence[Any], avals: Sequence[ShapedArray],
                   outs: Sequence[ShapedArray], params: dict[str, Any]) -> list[Sharding] | None:
    """Where the results of an eager operation on placed arrays are; None: where arrays are by default."""
    shardings = [committed_sharding(x) for x in args]
    said = primitive.pins(params)
    known = [*(s for _, s in said), *(s for s in shardings if s is not None)]
    if not known:
        return None
    if len(known) > 1:
        names = getattr(primitive, "operands", ())
        check_together(shardings, said, lambda k: f"{names[k] if k < len(names) else k} of {primitive.name} with "
                       f"shape {avals[k].str_short()}")
    mesh, memory = mesh_of(known), common_memory(list(map(memory_of, shardings)), [a.ndim for a in avals])
    if mesh is None:
        return [in_memory(known[0], memory)] * len(outs)
    specs = propagate_one(primitive, avals, outs, params, mesh, shardings)
    found = [in_memory(completed(mesh, a, s), memory) for a, s in zip(outs, specs, strict=True)]
    asked = primitive.places(params) or [None] * len(outs)  # kept as it was written: P(None), say, for P()
    return [s if p is None or is_abstract(p) or not p.is_equivalent_to(s, a.ndim) else p
            for p, s, a in zip(asked, found, outs, strict=True)]


def place(value: np.ndarray, aval: ShapedArray, sharding: Sharding | None, committed: bool = True) -> ConcreteArray:
    """An array over these elements; the sharding None is that of arrays that nobody placed."""
    if sharding is None:
        return ConcreteArray(value, aval)
    return PlacedArray(own_part(value, aval.shape, sharding), aval, sharding, committed)


def own_part(value: np.ndarray, shape: Sequence[int], sharding: Sharding) -> np.ndarray:
    """Of the elements of an array those that processes keep where it lies so: all, unless it is cut over several; then
    in memory of their own, so that nothing of the rest stays."""
    index = own_index(shape, sharding)
    return value if index is None else np.array(value[index], order="C")


def own_index(shape: Sequence[int], sharding: Sharding) -> tuple[slice, ...] | None:
    """Where in an array of this shape the elements are that this process keeps of it; None: all of it is kept."""
    if not spreads(sharding):
        return None
    if not sharding.has_addressable_devices:
        raise ValueError(f"An array was put under {sharding}, and process {CPU.process_index} has none of its devices. "
                         "Fix: meshes over the devices of all processes.")
    ((index, *_),) = [sharding.addressable_devices_indices_map(tuple(shape)).values()]
    return None if sharding.is_fully_replicated else index
