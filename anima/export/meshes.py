"""How the arguments and results of an exported function are cut over the devices that it was exported for.

    Cut(AbstractMesh((8,), ("x",)), (P("x"), None), (P("x"),))

The mesh is one of names and sizes of axes: devices are those of the arguments of a call. A program on arrays that are
cut is the program on whole arrays, so that nothing in it tells of this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima.api.jit import jit
from anima.core.format import Reader, Writer
from anima.core.mesh import AbstractMesh, Mesh, mesh_that_is_set
from anima.core.partition import PartitionSpec, axes_of
from anima.core.placement import committed_sharding, mesh_of
from anima.core.shardings import NamedSharding, Sharding
from anima.core.state import current
from anima.core.trace import EVAL
from anima.ops.placing import sharding_constraint_p
from anima.util import record

Specs = tuple[PartitionSpec | None, ...]
_AXES = 32


@record
class Cut:
    """The mesh, and a spec for each leaf of the arguments and of the results; None where nothing is said."""

    mesh: AbstractMesh
    ins: Specs
    outs: Specs

    def shardings(self, specs: Specs, mesh: Mesh | AbstractMesh) -> tuple[NamedSharding | None, ...]:
        """The specs with a mesh; ValueError for one with other axes."""
        if mesh.shape_tuple != self.mesh.shape_tuple:
            raise ValueError(f"The mesh {mesh} does not match the mesh that the function was exported for, "
                             f"{self.mesh}: it needs the same axes, of the same sizes.")
        return tuple(None if spec is None else NamedSharding(mesh, spec) for spec in specs)

    def derivative(self) -> Cut:
        """Of the function that takes the arguments and cotangents of the results, and gives cotangents of the
        arguments."""
        return Cut(self.mesh, self.ins + self.outs, self.ins)

    def mesh_of_call(self, name: str, leaves: Sequence[Any]) -> Mesh | AbstractMesh:
        """The mesh of devices that the arguments of a call lie on; ValueError where these are not as many. Within a
        program it is not known on which devices that will run."""
        if current.trace is not EVAL:
            return self.mesh
        known = [s for s in map(committed_sharding, leaves) if s is not None]
        mesh = mesh_of(known) or mesh_that_is_set()
        count = mesh.size or 1
        if count != self.mesh.size:
            raise ValueError(f"Function {name} was exported for {self.mesh.size} devices and is called in a context "
                             f"with {count} devices, which is not allowed. Fix: anima.device_put the arguments as "
                             "`exported.in_shardings_jax(mesh)` says, for a mesh of as many devices.")
        if mesh.shape_tuple == self.mesh.shape_tuple:
            return mesh
        return Mesh(np.array(mesh.device_list).reshape(self.mesh.axis_sizes), self.mesh.axis_names)

    def over(self, mesh: Mesh | AbstractMesh, fun: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        """A function of the leaves of the arguments that gives those of the results, which lie as the specs say."""
        def run(*xs: Any) -> list[Any]:
            return fun(*(x if s is None else sharding_constraint_p.bind(x, sharding=s) for x, s in zip(xs, ins,
                                                                                                       strict=True)))

        ins, outs = self.shardings(self.ins, mesh), self.shardings(self.outs, mesh)
        run.__name__ = fun.__name__
        return jit(run, out_shardings=list(outs))


def write_cut(w: Writer, cut: Cut | None) -> None:
    """The axes of the mesh, none for None, and the specs. NotImplementedError for axes whose names are no texts."""
    axes = () if cut is None else cut.mesh.shape_tuple
    w.natural(len(axes))
    for name, size in axes:
        if not isinstance(name, str):
            raise NotImplementedError(f"A mesh with an axis named {name!r} cannot be exported: names are texts.")
        w.text(name)
        w.natural(size)
    for spec in () if cut is None else (*cut.ins, *cut.outs):
        w.natural(0 if spec is None else 1 + len(spec))
        for partition in spec or ():
            names = axes_of(partition)
            w.natural(len(names))
            for name in names:
                w.text(name)


def read_cut(reader: Reader, ins: Sequence[Any], outs: Sequence[Any]) -> Cut | None:
    """What `write_cut` wrote of a function with arguments and results of these types; None for no axes."""
    count = reader.below(_AXES, "mesh")
    if not count:
        return None
    axes = [(reader.text(), reader.natural()) for _ in range(count)]

    def spec(aval: Any) -> PartitionSpec | None:
        rank = reader.below(2 + len(aval.shape), "spec")
        if rank == 0:
            return None
        found = PartitionSpec(*(tuple(reader.many(reader.text)) or None for _ in range(rank - 1)))
        NamedSharding(mesh, found).check_compatible_aval(aval.shape)
        return found

    try:
        names, sizes = zip(*axes, strict=True)
        mesh = AbstractMesh(sizes, names)
        return Cut(mesh, tuple(map(spec, ins)), tuple(map(spec, outs)))
    except (ValueError, TypeError) as error:
        reader.fail(f"arguments and results cannot be cut so: {error}")


def said_cut(ins: Sequence[Sharding | None], outs: Sequence[Sharding | None], others: Sequence[Sharding]) -> Cut | None:
    """How a function is cut whose arguments and results have these shardings; None for one of a single device."""
    mesh = mesh_of([*ins, *outs, *others]) or mesh_that_is_set()
    if mesh.size < 2:
        return None

    def specs(shardings: Sequence[Sharding | None]) -> Specs:
        return tuple(s.spec if isinstance(s, NamedSharding) and s.mesh.shape_tuple == mesh.shape_tuple else None
                     for s in shardings)

    return Cut(AbstractMesh(mesh.axis_sizes, mesh.axis_names), specs(ins), specs(outs))
