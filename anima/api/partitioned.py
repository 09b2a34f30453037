"""The program of one device: what `jit(f).lower(x).partitioned` shows, and runs for checking.

    on each of 4 devices of Mesh('x': 4)
    { lambda ; a:f32[2,8] b:f32[2,4]. let
        c:f32[8,4] = dot_general[dimension_numbers=(([0], [0]), ([], []))] a b
        d:f32[8,4] = psum[axes=('x',)] c
      in (d,) }
    psum over x      192 bytes  at train.py:12, in loss
    each device sends 192 bytes in all
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from anima import tree
from anima.api.shard_map import shard_map_p
from anima.core.jaxpr import ClosedJaxpr, Eqn, Jaxpr, subjaxprs
from anima.core.mesh import Mesh
from anima.core.partition import PartitionSpec
from anima.core.placement import dividing, mesh_of
from anima.core.primitive import Work
from anima.core.shardings import NamedSharding, Sharding
from anima.core.source import Source
from anima.ops.broadcast import as_operand
from anima.transforms.partition import partition
from anima.util import record


@record
class CollectiveTraffic:
    """One collective of a program: its operand has `size` bytes on each device, and `sent` are the bytes that each
    device sends to others in all its `runs`; in a loop of unknown length, in one step."""

    name: str
    axes: tuple[Any, ...]
    size: float
    sent: float
    runs: float
    source: Source | None

    def __str__(self) -> str:
        often = f" in {self.runs:,.0f} runs" if self.runs != 1 else ""
        where = f"  at {self.source}" if self.source else ""
        return f"{self.name} over {', '.join(map(str, self.axes))}: {self.sent:,.0f} bytes{often}{where}"


@record(eq=False)
class Partitioned:
    """The program of one device of a mesh. Called, it runs on all of them, and gives what the function does."""

    jaxpr: ClosedJaxpr
    mesh: Mesh
    in_specs: tuple[PartitionSpec, ...]   # of the leaves of the arguments
    out_specs: tuple[PartitionSpec, ...]  # of the leaves of the result
    in_tree: Any
    out_tree: Any

    @property
    def collectives(self) -> list[CollectiveTraffic]:
        """All collectives, in the order of the program."""
        return list(_collectives(self.jaxpr.jaxpr, dict(self.mesh.shape_tuple), 1.0))

    @property
    def bytes_sent(self) -> float:
        """How many bytes each device sends to others in one call."""
        return sum(c.sent for c in self.collectives)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result for these arguments; TypeError if they are of another structure."""
        leaves, in_tree = tree.flatten((args, kwargs))
        if in_tree != self.in_tree:
            raise TypeError(f"A program partitioned for input pytree {self.in_tree} was called with {in_tree}.")
        outs = shard_map_p.bind(*map(as_operand, leaves), jaxpr=self.jaxpr, mesh=self.mesh, in_specs=self.in_specs,
                                out_specs=self.out_specs, check_vma=False,
                                newly_manual_axes=frozenset(self.mesh.axis_names))
        return tree.unflatten(self.out_tree, outs)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{n!r}: {size}" for n, size in self.mesh.shape_tuple)
        return "\n".join([f"on each of {self.mesh.size} devices of Mesh({sizes})", str(self.jaxpr),
                          *map(str, self.collectives), f"each device sends {self.bytes_sent:,.0f} bytes in all"])


def _collectives(jaxpr: Jaxpr, sizes: dict[Any, int], runs: float) -> Iterator[CollectiveTraffic]:
    for eqn in jaxpr.eqns:
        names = eqn.primitive.axis_names(eqn.params) if eqn.primitive.axis_names is not None else ()
        size = float(sum(a.aval.size * a.aval.dtype.itemsize for a in eqn.invars))
        sent = eqn.primitive.sent(size, _count(eqn, names, sizes))
        if sent:
            yield CollectiveTraffic(eqn.primitive.name, tuple(names), size, sent * runs, runs, eqn.source)
        for inner in subjaxprs(eqn.params):
            often = eqn.primitive.work([a.aval for a in eqn.invars], [v.aval for v in eqn.outvars],
                                       [Work(1.0)], **eqn.params).flops  # how often a program in it runs
            yield from _collectives(inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner, sizes, runs * often)


def _count(eqn: Eqn, names: Sequence[Any], sizes: dict[Any, int]) -> int:
    """How many devices exchange something."""
    groups = eqn.params.get("axis_index_groups")
    return len(groups[0]) if groups else math.prod(sizes.get(n, 1) for n in names)


def partitioned(closed: ClosedJaxpr, ins: Sequence[Sharding | None], outs: Sequence[Sharding | None],
                pins: Sequence[Sharding], in_tree: Any, out_tree: Any) -> Partitioned:
    """The program of one device, where arguments and results lie so.

    Raises:
      ValueError: where nothing tells of a mesh; NotImplementedError: where there are several.
    """
    said = [*ins, *pins, *outs]
    mesh = mesh_of(said)
    if mesh is None:
        raise ValueError("Nothing in this program tells how arrays are cut along a mesh, so that there is no program "
                         "of one device. Fix: jit(f, in_shardings=NamedSharding(mesh, P('x'))), or arguments that "
                         "lie on a mesh.")
    for sharding in said:
        if isinstance(sharding, NamedSharding) and sharding.mesh.shape_tuple != mesh.shape_tuple:
            raise NotImplementedError(f"A program about two meshes, {mesh} and {sharding.mesh}, is not partitioned. "
                                      "Fix: anima.device_put arrays to one mesh, and name its axes alone.")
    in_specs, out_specs = (
        tuple(dividing(s.spec if isinstance(s, NamedSharding) else PartitionSpec(), a.shape, mesh)
              for s, a in zip(each, avals, strict=True))
        for each, avals in ((ins, closed.in_avals), (outs, closed.out_avals)))
    program = partition(closed, mesh, in_specs, out_specs)
    return Partitioned(program, mesh, in_specs, out_specs, in_tree, out_tree)
