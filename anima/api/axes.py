"""The current mesh, and functions that see some of its axes in another way.

    auto_axes(f, out_sharding=P("x"))(x)       within f, types do not say how values are cut; that of the result does
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from anima import tree
from anima.api.devices import reshard, resharded_on
from anima.core.array import Array, PlacedArray
from anima.core.mesh import AbstractMesh, AxisType, Mesh, get_abstract_mesh, mesh_option, use_abstract_mesh
from anima.core.partition import PartitionSpec
from anima.core.shardings import NamedSharding
from anima.core.trace import is_tracing
from anima.ops.placing import seen_on
from anima.util import wraps


def get_mesh() -> Mesh:
    """The mesh of `set_mesh`; an empty one if there is none. ValueError within a function that is being traced."""
    if is_tracing():
        raise ValueError("`get_mesh` can only be used outside of `anima.jit`. Maybe you want "
                         "`anima.sharding.get_abstract_mesh()`?")
    return mesh_option.value


def auto_axes(f: Callable[..., Any] | None = None, /, *, axes: Any = None, out_sharding: Any = None) -> Any:
    """`f`, within which axes of type Explicit are of type Auto: types do not tell along them how values are cut.

    Args:
      axes: a name of an axis, or several; None: all.
      out_sharding: how the results are cut, as their types then tell: a `PartitionSpec` about the current mesh or a
        `NamedSharding`, or a tree prefix of these.

    Raises:
      ValueError: where there is no mesh; TypeError: without `out_sharding`, here or among the arguments of the call.

    >>> mesh = anima.make_mesh((1,), ("x",))
    >>> with anima.set_mesh(mesh):
    ...     f = anima.sharding.auto_axes(lambda x: x.T @ x, out_sharding=anima.P("x"))
    ...     anima.typeof(f(anima.device_put(jnp.ones((4, 4)), anima.P("x"))))
    ShapedArray(float32[4@x,4])
    """
    if f is None:
        return partial(auto_axes, axes=axes, out_sharding=out_sharding)
    function = f

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        asked = kwargs.pop("out_sharding", None) if out_sharding is None else out_sharding
        if asked is None:
            raise TypeError("Missing required keyword argument: 'out_sharding'. auto_axes needs it: how the results "
                            "are cut, as their types tell.")
        mesh = _mesh_of((args, kwargs), asked, "auto_axes")
        if not set(_chosen(mesh, axes)).intersection(mesh.explicit_axes):
            return function(*args, **kwargs)  # they are so already
        inside = mesh.update_axis_types(dict.fromkeys(_chosen(mesh, axes), AxisType.Auto))
        with use_abstract_mesh(inside):
            given, named = tree.map(partial(seen_on, inside), (args, kwargs))
            result = function(*given, **named)
        wanted = tree.map(lambda s: NamedSharding(mesh, s) if isinstance(s, PartitionSpec) else s, asked,
                          is_leaf=_is_place)
        return reshard(result, wanted)

    return call


def explicit_axes(f: Callable[..., Any] | None = None, /, *, axes: Any = None, in_sharding: Any = None) -> Any:
    """`f`, within which axes of type Auto are of type Explicit: types tell how values are cut along them.

    Args:
      axes: a name of an axis, or several; None: all.
      in_sharding: how the arguments are cut: `PartitionSpec`s about the current mesh, `NamedSharding`s, or a tree
        prefix of these, for the tuple of positional arguments.

    Raises:
      ValueError: where there is no mesh; TypeError: without `in_sharding`, here or among the arguments of the call.
    """
    if f is None:
        return partial(explicit_axes, axes=axes, in_sharding=in_sharding)
    function = f

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        where = kwargs.pop("in_sharding", call if in_sharding is None else in_sharding)  # None: as they are cut already
        if where is call:
            raise TypeError("Missing required keyword argument: 'in_sharding'. explicit_axes needs it: how the "
                            "arguments are cut.")
        mesh = _mesh_of((args, kwargs), where, "explicit_axes")
        inside = mesh.update_axis_types(dict.fromkeys(_chosen(mesh, axes), AxisType.Explicit))
        specs = tree.map(lambda s: s.update(mesh=s.mesh.update(axis_types=inside.axis_types))
                         if isinstance(s, NamedSharding) else NamedSharding(inside, s), where, is_leaf=_is_place)
        with use_abstract_mesh(inside):
            given = (tree.map(partial(seen_on, inside), args) if where is None else
                     resharded_on(mesh, args, specs))
            result = function(*given, **kwargs)
        return tree.map(partial(seen_on, mesh), result)

    return call


def _is_place(x: Any) -> bool:
    return isinstance(x, (PartitionSpec, NamedSharding))


def _chosen(mesh: AbstractMesh, axes: Any) -> tuple[Any, ...]:
    names = mesh.axis_names if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)
    unknown = [n for n in names if n not in mesh.axis_names]
    if unknown:
        raise ValueError(f"axes names {', '.join(map(repr, unknown))}, and the mesh has the axes {mesh.axis_names}.")
    return names


def _mesh_of(arguments: Any, shardings: Any, name: str) -> AbstractMesh:
    """The current mesh, or that of a sharding or an array; ValueError if there is none."""
    known = [s for s in tree.leaves(shardings, is_leaf=_is_place) if isinstance(s, NamedSharding)]
    known += [x.sharding if isinstance(x, PlacedArray) else x.aval.sharding
              for x in tree.leaves(arguments) if isinstance(x, Array)]
    for mesh in (get_abstract_mesh(), *(s.mesh.abstract_mesh for s in known if isinstance(s, NamedSharding))):
        if not mesh.empty:
            return mesh
    raise ValueError(f"{name} needs a mesh: anima.set_mesh(mesh), or arguments that are on one.")
