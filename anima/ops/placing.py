"""Putting arrays where a sharding says: identities that the propagation of shardings, and types, know of.

    sharding_constraint    how a value is cut along axes of type Auto
    reshard                how it is cut along axes of type Explicit: that is part of its type
    device_put             both, and on which devices

Devices of one process share memory, so that none of them copies anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from anima import tree
from anima.core.array import Array, ConcreteArray, PlacedArray
from anima.core.avals import ShapedArray, ShardedArray, sharded
from anima.core.device import MemorySpace, accelerators, devices
from anima.core.layout import Format
from anima.core.mesh import AbstractMesh, AxisType, Mesh, current_mesh, get_abstract_mesh
from anima.core.partition import UNCONSTRAINED, PartitionSpec, axes_of, used_axes
from anima.core.placement import check_together, committed_sharding, completed, place, whole
from anima.core.primitive import ShardingRule, Zero
from anima.core.propagation import propagate_one
from anima.core.sharding_rules import each_alike
from anima.core.shardings import WHOLE, NamedSharding, Sharding, SingleDeviceSharding, device_of, spreads
from anima.core.state import current, is_tracing
from anima.core.trace import EVAL, aval_of, numpy_value
from anima.ops.composite import Composite
from anima.util import record


class Placing(Composite):
    """The identity of its operand, which lies as the parameters say."""

    linear = True
    cost = 0.0

    def program(self, x: Any, **params: Any) -> Any:
        return [x] if self.multiple_results else x

    def infer(self, x: ShapedArray, **params: Any) -> Any:
        (sharding,) = self.places(params)
        out = x if sharding is None else sharded(x, sharding)
        return [out] if self.multiple_results else out

    def sharding_rule(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], **params: Any) -> ShardingRule:
        return each_alike(avals[0].shape, avals, outs)

    def with_sharding(self, params: dict[str, Any], sharding: Sharding) -> dict[str, Any]:
        """The parameters with another sharding."""
        raise self._missing("Batching (vmap)")

    def bind(self, *args: Any, **params: Any) -> Any:
        if current.trace is not EVAL:
            return super().bind(*args, **params)
        out = self.put(args[0], self.places(params)[0])
        return [out] if self.multiple_results else out

    def put(self, x: Any, sharding: Sharding | None) -> ConcreteArray:
        """The array under the sharding."""
        if sharding is not None:
            sharding = concrete(sharding, x)
            check_together([committed_sharding(x)], [("explicit output sharding", sharding)],
                           lambda k: f"x of {self.name} with shape {aval_of(x).str_short()}")
        return put(x, sharding)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        (t,) = tangents
        slope = ([t] if self.multiple_results else t) if isinstance(t, Zero) else self.bind(t, **params)
        return self.bind(*primals, **params), slope

    def transpose(self, ct: Any, *args: Any, **params: Any) -> Sequence[Any]:
        (found,) = ct if self.multiple_results else [ct]
        if isinstance(found, Zero):
            return [found]
        aval = args[0].aval
        if type(aval) is ShardedArray:
            return [found]  # transposition gives it the type of the operand
        if type(aval_of(found)) is ShardedArray:
            mesh = params.get("seen_on")
            return [found if mesh is None else seen_on(mesh, found)]
        out = self.back(found, params)
        return out if self.multiple_results else [out]

    def back(self, ct: Any, params: dict[str, Any]) -> Any:
        """The cotangent of the operand."""
        return self.bind(ct, **params)

    def stacked(self, sharding: NamedSharding, size: int, ndim: int, d: int | None) -> NamedSharding:
        """The sharding of a stack of so many, along dimension `d`, of values under this one."""
        given = sharding.spec.padded(ndim).partitions
        return sharding.update(spec=sharding.spec.update((*given[:d], self.batched(size, sharding), *given[d:])))

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
        (sharding,), (d,) = self.places(params), dims
        if isinstance(sharding, NamedSharding):
            params = self.with_sharding(params, self.stacked(sharding, size, aval_of(args[0]).ndim - 1, d))
        return self.bind(*args, **params), [d] if self.multiple_results else d

    def batched(self, size: int, sharding: NamedSharding) -> Any:
        """How the new dimension of a stack is cut."""
        return typed_axes(size, sharding.mesh) or None


class Constraint(Placing):
    """How a value is cut along axes of type Auto; dimensions may be left UNCONSTRAINED."""

    def batched(self, size: int, sharding: NamedSharding) -> Any:
        spmd = getattr(size, "spmd", ())
        if set(spmd).intersection(used_axes(sharding.spec)):
            raise ValueError(f"vmap spmd_axis_name {spmd} cannot appear in with_sharding_constraint spec, got the spec "
                             f"{sharding.spec}: along that axis lie the elements that vmap maps over.")
        return spmd or UNCONSTRAINED

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
        if getattr(size, "spmd", ()) and not isinstance(params["sharding"], NamedSharding):
            raise ValueError("If you are using spmd_axis_name of vmap, with_sharding_constraint within takes "
                             f"NamedShardings, got {params['sharding']}.")
        return super().batch(size, args, dims, **params)

    def infer(self, x: ShapedArray, **params: Any) -> ShapedArray:
        return x

    def places(self, params: dict[str, Any]) -> Sequence[Sharding | None]:
        return (params["sharding"],)

    def with_sharding(self, params: dict[str, Any], sharding: Sharding) -> dict[str, Any]:
        return {**params, "sharding": sharding}

    def put(self, x: Any, sharding: Sharding | None) -> ConcreteArray:
        if isinstance(sharding, NamedSharding) and UNCONSTRAINED in sharding.spec.partitions:
            known = getattr(x, "sharding", None)
            same = isinstance(known, NamedSharding) and known.mesh == sharding.mesh
            own = (known.spec if same and known else PartitionSpec()).padded(aval_of(x).ndim)
            used = [name for p in sharding.spec for name in axes_of(p)]
            free = [tuple(n for n in axes_of(p) if n not in used) for p in own]
            sharding = sharding.update(spec=PartitionSpec(*(
                free[k] if p is UNCONSTRAINED else p for k, p in enumerate(sharding.spec))))
        return super().put(x, sharding)


class Reshard(Placing):
    """How a value is cut along axes of type Explicit. Along those of type Auto, dimensions that it does not cut stay
    as they are. An operand whose type does not tell as it is seen on another mesh, `seen_on`, has a cotangent there."""

    places_all = False

    def places(self, params: dict[str, Any]) -> Sequence[Sharding | None]:
        return (params["dst_sharding"],)

    def with_sharding(self, params: dict[str, Any], sharding: Sharding) -> dict[str, Any]:
        return {**params, "dst_sharding": sharding}

    def infer(self, x: ShapedArray, **params: Any) -> ShapedArray:
        wanted = params["dst_sharding"].mesh
        if type(x) is ShardedArray and x.sharding.mesh.shape_tuple != wanted.shape_tuple and is_tracing():
            raise NotImplementedError(f"In a program, reshard of {x.str_short()} to a mesh of other axes, {wanted}, is "
                                      "not supported. Fix: reshard outside of it.")
        return super().infer(x, **params)

    def put(self, x: Any, sharding: Sharding | None) -> ConcreteArray:
        wanted = sharding and concrete(sharding, x)
        aval = aval_of(x)
        if type(aval) is ShardedArray and isinstance(wanted, NamedSharding) and (
                aval.sharding.mesh.shape_tuple != wanted.mesh.shape_tuple):
            return super().put(x, wanted)
        if isinstance(wanted, NamedSharding) and isinstance(wanted.mesh, Mesh) and wanted.mesh.explicit_axes:
            out = sharded(aval, wanted)
            specs = propagate_one(self, [aval], [out], {"dst_sharding": wanted}, wanted.mesh, [committed_sharding(x)])
            wanted = completed(wanted.mesh, out, *specs)
        return super().put(x, wanted)


@record
class Loosely:
    """A place of an array that operations may take elsewhere."""

    sharding: Sharding


def origin(x: ConcreteArray) -> Sharding | Loosely:
    """Where an array is, for what goes back there."""
    return x.sharding if x.committed else Loosely(x.sharding)


class DevicePut(Placing):
    """An array on devices, wherever it was."""

    multiple_results = True

    def bind(self, *args: Any, **params: Any) -> Any:
        (x,), (target,) = args, params["devices"]
        if isinstance(target, MemorySpace) and current.trace is EVAL:
            lies, kind = x.sharding if isinstance(x, ConcreteArray) else WHOLE, target.kind
            if kind is None or lies.memory_kind == kind:
                return [x]
            params = {**params, "devices": (lies.with_memory_kind(kind),)}
        if isinstance(target, Loosely) and current.trace is EVAL:
            aval, sharding = aval_of(x), None if target.sharding == WHOLE else target.sharding
            bare = ShapedArray(aval.shape, aval.dtype, aval.weak_type)
            return [place(numpy_value(x, aval), bare, sharding, committed=False)]
        return super().bind(*args, **params)

    def places(self, params: dict[str, Any]) -> Sequence[Sharding | None]:
        return [_sharding_of(d) for d in params["devices"]]

    def with_sharding(self, params: dict[str, Any], sharding: Sharding) -> dict[str, Any]:
        return {**params, "devices": (sharding,)}

    def transpose(self, ct: Any, *args: Any, **params: Any) -> Sequence[Any]:
        if isinstance(params["devices"][0], MemorySpace) and not isinstance(ct[0], Zero):
            return self.back(ct[0], params)  # type: ignore[no-any-return]
        return super().transpose(ct, *args, **params)

    def back(self, ct: Any, params: dict[str, Any]) -> Any:
        (source,) = params["srcs"]
        return [ct] if source is None else self.bind(ct, **{**params, "devices": (source,), "srcs": params["devices"]})

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
        (source,), (d,) = params["srcs"], dims
        if isinstance(source, NamedSharding):
            params["srcs"] = (self.stacked(source, size, aval_of(args[0]).ndim - 1, d),)
        return super().batch(size, args, dims, **params)

    def put(self, x: Any, sharding: Sharding | None) -> ConcreteArray:
        return put(x, sharding and concrete(sharding, x))


sharding_constraint_p = Constraint("sharding_constraint")
reshard_p = Reshard("reshard")
device_put_p = DevicePut("device_put")


def concrete(sharding: Sharding, x: Any) -> Sharding:
    """A sharding that knows its devices: of one about an abstract mesh, the array's own mesh, or the current one.

    ValueError if neither is a mesh with these axes.
    """
    if not (isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, AbstractMesh)):
        return sharding
    mesh = _known_mesh(sharding.mesh, x)
    if mesh is not None:
        types = sharding.mesh.axis_types
        return NamedSharding(mesh if mesh.axis_types == types else mesh.update(axis_types=types), sharding.spec)
    raise ValueError(f"An array cannot be put under {sharding}: which devices these are is not known. Fix: "
                     "anima.set_mesh(mesh), or a NamedSharding about a Mesh.")


def _known_mesh(wanted: Mesh | AbstractMesh, x: Any) -> Mesh | None:
    """The mesh that an array is on, or the current one, if it has these axes."""
    own = getattr(x.sharding, "mesh", None) if isinstance(x, ConcreteArray) else None
    return next((m for m in (own, current_mesh())
                 if isinstance(m, Mesh) and m.axis_names and m.shape_tuple == wanted.shape_tuple), None)


def typed_axes(size: int, mesh: Mesh | AbstractMesh) -> tuple[Any, ...]:
    """The axes of this mesh along which types tell that a mapped dimension of this size is cut."""
    return tuple(n for n in getattr(size, "typed", ()) if n in mesh.axis_names)


def stack_type(aval: ShapedArray, size: int, d: int | None) -> ShapedArray:
    """The type of a stack along dimension `d`; None: not stacked."""
    out = aval.inc_rank(int(size), d)
    if d is None or not getattr(size, "typed", ()):
        return out
    before = out.sharding
    axes, parts = typed_axes(size, before.mesh), before.spec.partitions
    return out.update(sharding=before.update(spec=PartitionSpec(*parts[:d], axes or None, *parts[d + 1:])))


def spread(x: Any, size: int) -> Any:
    """A stack of what all elements have alike, cut along its first dimension as those are that are mapped."""
    if not getattr(size, "typed", ()):
        return x
    mesh = aval_of(x).sharding.mesh
    rest = aval_of(x).sharding.spec.partitions[1:]
    axes = typed_axes(size, mesh)
    return reshard_p.bind(x, dst_sharding=NamedSharding(mesh, PartitionSpec(axes, *rest))) if axes else x


def typed_as(x: Any, aval: ShapedArray) -> Any:
    """A cotangent that is cut as its primal; outside of programs, as far as it is known which devices there are."""
    if type(aval) is not ShardedArray or getattr(aval_of(x), "sharding", None) == aval.sharding:
        return x
    if not is_tracing() and _known_mesh(aval.sharding.mesh, x) is None:
        return x
    return reshard_p.bind(x, dst_sharding=aval.sharding)


def put(x: Any, sharding: Sharding | None) -> ConcreteArray:
    """An array under a sharding, over the same memory; `x` itself if it is there."""
    aval = aval_of(x)
    if not isinstance(x, ConcreteArray):
        x = ConcreteArray(numpy_value(x, aval).copy(), aval)
    if sharding is None or (type(x) is PlacedArray and x.committed and x.sharding == sharding):
        return x
    check_known(sharding)
    if type(x) is PlacedArray and x.is_cut:
        return _put_cut(x, sharding)
    if sharding == WHOLE and len(devices()) == 1 and not accelerators():
        return x if type(x) is ConcreteArray else ConcreteArray(x.elements(), ShapedArray(
            aval.shape, aval.dtype, aval.weak_type))  # there is nowhere else
    return place(x.elements(), ShapedArray(aval.shape, aval.dtype, aval.weak_type), sharding)


def _put_cut(x: PlacedArray, sharding: Sharding) -> ConcreteArray:
    """An array that is cut over processes, under another sharding over them; by way of the whole, to another mesh."""
    if not (isinstance(sharding, NamedSharding) and spreads(sharding)):
        raise ValueError(f"An array over several processes cannot be put under {sharding}, which is of one. Fix: "
                         "anima.experimental.multihost_utils.process_allgather(x, tiled=True).")
    if sharding.is_equivalent_to(x.sharding, x.ndim):
        return PlacedArray(x.part(), ShapedArray(x.shape, x.dtype, x.weak_type), sharding)
    mesh = x.sharding.mesh  # type: ignore[attr-defined]
    direct = sharding.mesh == mesh
    target = sharding if direct else NamedSharding(mesh, PartitionSpec())
    (out,) = EVAL.on_parts(device_put_p, [x], {"devices": (target,), "srcs": (None,), "copy_semantics": (None,)})
    return out if direct else put(out, sharding)


def _sharding_of(place: Any) -> Sharding | None:
    """The sharding that is meant by a device, a `Format` or a sharding."""
    if isinstance(place, Format):
        place = place.sharding
    if place is None or isinstance(place, (Sharding, MemorySpace, Loosely)):
        return place if isinstance(place, Sharding) else None
    return SingleDeviceSharding(device_of(place))


def on_current_mesh(name: str, spec: PartitionSpec, what: str) -> NamedSharding:
    """A spec about the current mesh; RuntimeError if there is none."""
    mesh: Mesh | AbstractMesh = current_mesh()
    if mesh.empty:
        mesh = get_abstract_mesh()
    if mesh.empty:
        raise RuntimeError(f"{name} requires a non-empty mesh in context if you are passing `PartitionSpec`s to {what}."
                           " You can define a context mesh via `anima.set_mesh(mesh)`. Alternatively, provide "
                           f"`Sharding`s to {what} and then the mesh context manager is not required.")
    return NamedSharding(mesh, spec)


def check_known(sharding: Sharding) -> None:
    """RuntimeError for a sharding over devices that are not there."""
    known = [*devices(), *accelerators()]
    unknown = sharding.device_set.difference(known)
    if unknown:
        raise RuntimeError(f"Unknown device {next(iter(unknown))!r}: there are {known}.")


def check_fits(what: str, shape: tuple[int, ...], sharding: Sharding, divides: bool = True) -> None:
    """ValueError unless an array of a shape can lie under a sharding; `what` is its name for the message."""
    if isinstance(sharding, NamedSharding):
        try:
            sharding.check_compatible_aval(shape)
        except ValueError as error:
            raise ValueError(f"{what} is incompatible with its sharding annotation {sharding}: {error}") from None
    if divides:
        sharding.shard_shape(shape)


def check_mesh_is_set(spec: PartitionSpec) -> None:
    """ValueError for a spec about axes of type Explicit where there is no mesh."""
    if current_mesh().empty and get_abstract_mesh().empty:
        raise ValueError("Using PartitionSpec when you are not under a mesh context is not allowed. Please pass a "
                         f"NamedSharding instance or enter into a mesh context via `anima.set_mesh`. Got {spec}")


def check_explicit(name: str, sharding: NamedSharding) -> None:
    """ValueError for axes of which types do not tell."""
    for axis in used_axes(sharding.spec):
        kind = sharding.mesh.type_of(axis)
        if kind is not AxisType.Explicit:
            raise ValueError(f"PartitionSpec passed to {name} cannot contain axis names that are of type Auto or "
                             f"Manual. Got PartitionSpec: {sharding.spec} with axis name: {axis} of type: {kind}.")


def asked_sharding(name: str, asked: Any) -> NamedSharding | None:
    """What an `out_sharding` of the function `name` says, of a spec about the current mesh; None if it is that of a
    type that says nothing.

    Raises:
      TypeError: for what is no sharding; ValueError: for one along axes that are not of type Explicit, or a spec where
      there is no mesh.
    """
    if isinstance(asked, PartitionSpec):
        check_mesh_is_set(asked)
        asked = on_current_mesh(name, asked, "out_sharding")
    if not isinstance(asked, NamedSharding):
        raise TypeError(f"`out_sharding` argument of {name} only supports instances of `NamedSharding` or "
                        f"`PartitionSpec`. Got {asked!r} of type: {type(asked)}")
    if not asked.mesh.axis_names:
        return None
    check_explicit(name, asked)
    return asked


def as_asked(name: str, device: Any, out_sharding: Any, fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`fun(*args, **kwargs)`, with its result where the arguments `device` or `out_sharding` of the function say.

    Raises:
      TypeError: for what is no sharding; ValueError: for what is no device, results that do not divide, and an
      `out_sharding` along axes that are not of type Explicit, or that is a spec where there is no mesh;
      RuntimeError: for a spec as `device` where there is no mesh.
    """
    asked: Any = device
    if device is None:
        asked = asked_sharding(name, out_sharding)
    elif isinstance(device, PartitionSpec):
        asked = on_current_mesh(name, device, "out_sharding")
    elif not isinstance(device, Sharding):
        asked = SingleDeviceSharding(device_of(device))
    if asked is None or (isinstance(asked, NamedSharding) and not asked.mesh.axis_names):
        return fun(*args, **kwargs)

    def placed(x: Any) -> Any:
        return _asked(name, x, asked if device is not None else whole(asked.mesh, asked.spec, aval_of(x).ndim))

    return tree.map(placed, fun(*map(_whole, args), **kwargs))


def _asked(name: str, x: Any, sharding: Sharding) -> Any:
    check_fits(f"The result of {name}", aval_of(x).shape, sharding)
    if isinstance(sharding, NamedSharding) and sharding.mesh.explicit_axes and current.trace is not EVAL:
        closed = any(sharding.mesh.type_of(axis) is not AxisType.Explicit for axis in used_axes(sharding.spec))
        if closed:
            return constrained_to(x, sharding)
        inside = _all_auto(sharding.mesh.abstract_mesh) if is_tracing() else None
        return reshard_p.bind(x, dst_sharding=sharding, seen_on=inside)
    (out,) = device_put_p.bind(x, devices=(sharding,), srcs=(None,), copy_semantics=(None,))
    return out


def constrained_to(x: Any, sharding: NamedSharding) -> Any:
    """A value of a program that is being traced, under a sharding: as its type tells, and along the other axes."""
    mesh = sharding.mesh
    if mesh.explicit_axes:
        x = reshard_p.bind(x, dst_sharding=sharding)
    return x if mesh.are_all_axes_explicit else sharding_constraint_p.bind(x, sharding=sharding)


def _whole(x: Any) -> Any:
    """An operand whose type does not say that it is cut: the sharding of the result is asked for."""
    if not isinstance(x, Array) or type(x.aval) is not ShardedArray:
        return x
    sharding = x.aval.sharding
    mesh = sharding.mesh.abstract_mesh
    if not is_tracing():  # there, operations look at the mesh of each operand, and what is made is on that which is set
        return reshard_p.bind(x, dst_sharding=sharding.update(spec=PartitionSpec(*[None] * x.ndim)))
    return seen_on(_all_auto(mesh), x)


def _all_auto(mesh: AbstractMesh) -> AbstractMesh:
    return mesh.update_axis_types(dict.fromkeys(mesh.explicit_axes, AxisType.Auto))


def seen_on(mesh: AbstractMesh, x: Any) -> Any:
    """A value whose type tells of axes of a mesh as it is seen where these are of the types that this one has."""
    if not isinstance(x, Array) or type(x.aval) is not ShardedArray:
        return x
    return reshard_p.bind(x, dst_sharding=x.aval.sharding.seen_on(mesh))


def lies_somewhere(x: Any, shape: Any = None) -> bool:
    """Whether somebody put an array somewhere, or its type, or what only describes one, says how it is cut; for one of
    another shape that is to lie there, too, whether it is on one device."""
    placed = type(x) is PlacedArray and x.committed
    if not (placed or _described_place(x) is not None or (isinstance(x, Array) and type(x.aval) is ShardedArray)):
        return False
    if shape is None or (isinstance(shape, (tuple, list)) and tuple(shape) == tuple(x.shape)):
        return True
    return placed and isinstance(x.sharding, SingleDeviceSharding)


def put_like(x: Any, result: Any) -> Any:
    """The result where `x` lies, of which `lies_somewhere` holds."""
    described = _described_place(x)
    sharding = x.sharding if type(x) is PlacedArray else x.aval.sharding if described is None else described
    return _asked("like", result, sharding)


def _described_place(x: Any) -> Sharding | None:
    """Where an array is to lie of which `x` is a description alone; in programs, types tell that, and nothing else."""
    sharding = None if isinstance(x, (Array, ShapedArray)) else getattr(x, "sharding", None)
    if not isinstance(sharding, Sharding):
        return None
    named = sharding if isinstance(sharding, NamedSharding) else None
    if is_tracing():
        return named if named is not None and named.mesh.explicit_axes else None
    if named is not None and isinstance(named.mesh, AbstractMesh):  # it has devices where a mesh is set
        return None if current_mesh().empty else on_current_mesh("like", named.spec, "sharding")
    return sharding


class InspectSharding(Composite):
    """Tells a function how a value lies: now if it has a value, else when propagation has found out."""

    multiple_results = True

    def program(self, x: Any, *, callback: Any) -> Any:
        return []

    def bind(self, *args: Any, **params: Any) -> Any:
        if current.trace is not EVAL:
            return super().bind(*args, **params)
        params["callback"](getattr(args[0], "sharding", WHOLE))
        return []

    def effects_of(self, params: dict[str, Any]) -> frozenset[str]:
        return frozenset(("debug",))

    def watches(self, params: dict[str, Any]) -> Any:
        return params["callback"]

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        return self.bind(*primals, **params), []

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
        return self.bind(*args, **params), []


inspect_sharding_p = InspectSharding("inspect_sharding")
