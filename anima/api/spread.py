"""Jitted calls on arrays that are cut over several processes, each of which runs the program of its own device.

    f = jit(lambda a, b: a.T @ b, in_shardings=(rows, rows))      mpirun -n 4: each process multiplies its rows, and
    f(a, b)                                                       `psum` between processes adds the products up

All processes call the same functions in the same order. An argument that is not cut is one that all have alike.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from anima import errors
from anima.api.partitioned import partitioned
from anima.api.placed_calls import Places
from anima.config import config
from anima.core import processes
from anima.core.array import ConcreteArray, PlacedArray
from anima.core.avals import ShapedArray
from anima.core.explicit import erased
from anima.core.jaxpr import ClosedJaxpr
from anima.core.placement import own_index
from anima.core.shardings import NamedSharding, Sharding, spreads
from anima.core.source import here
from anima.core.trace import numpy_value
from anima.runtime import programs
from anima.transforms.discharge import discharged
from anima.transforms.messages import exchanging

_ADDRESS = re.compile(r"\b0x[0-9a-f]+")                  # what each process writes otherwise
_SET = re.compile(r"frozenset\(\{(.*?)\}\)")
RECORD = 256  # bytes that tell a call: a digest of its program, and what it is


def program(name: str, closed: ClosedJaxpr, places: Places, avals: Sequence[ShapedArray],
            known: Sequence[Sharding | None], donated: Sequence[int]) -> SpreadProgram | None:
    """What runs a program on arguments of these types that lie so; None where it is about no device of another process.

    ValueError for arguments on meshes without a device of this process.
    """
    said = [*known, *(s for _, s in places.pins), *(places.ins or ()), *(places.outs or ()), places.device]
    if not any(map(spreads, said)):
        return None
    outs, _ = places.results_of(avals, known)
    taken = places.taken(tuple(donated), avals, known, outs)
    return SpreadProgram(name, closed, places.arguments(known), outs, [s for _, s in places.pins], taken)


class Passage:
    """Calls of one program in machine code, as an `Entry` of `jit` has them: `run` refuses all arguments but those that
    lie as these did."""

    __slots__ = ("donated", "finish", "options", "read", "run")

    def __init__(self, run: Any, entry: Any) -> None:
        self.run, self.read, self.options, self.donated = run, entry.read, entry.options, ()
        self.finish = entry.out_tree.spec.unflatten if entry.form == "list" else None


_WAYS = 64  # of one program, at most


class SpreadProgram:
    """One program, for arguments that lie in one way, in this process."""

    def __init__(self, name: str, closed: ClosedJaxpr, ins: Sequence[Sharding | None], outs: Sequence[Sharding | None],
                 pins: Sequence[Sharding], donated: Sequence[int]) -> None:
        bare, changed = discharged(erased(closed))
        if changed:
            raise NotImplementedError(f"{name} changes mutable references, which belong to one process, on devices of "
                                      "several. Fix: pass what they hold, and return it.")
        split = partitioned(bare, ins, outs, pins, None, None)
        if all(d.process_index != processes.here.index for d in split.mesh.device_list):
            raise ValueError(f"{name}: process {processes.here.index} has no device of {split.mesh}. Fix: a mesh over "
                             "the devices of all processes.")
        self.name, self.donated = name, tuple(donated)
        self.own = [own_index(a.shape, NamedSharding(split.mesh, s))
                    for a, s in zip(closed.in_avals, split.in_specs, strict=True)]
        self.outs = [PlacedArray(np.empty(()), aval, NamedSharding(split.mesh, s))  # like results, but for elements
                     for aval, s in zip(closed.out_avals, split.out_specs, strict=True)]
        closed = exchanging(split.jaxpr, split.mesh)
        self.in_avals, self.part_avals = closed.in_avals, closed.out_avals
        ranks = [d.id for d in split.mesh.device_list]
        self.record = record_of(f"{split.jaxpr}{split.in_specs}{split.out_specs}{split.mesh.shape_tuple}{ranks}", name)
        self.executable = programs.executable_of(closed, name, self.donated)
        typed = getattr(type(self.executable), "typed", None)
        self.run = typed(self.executable, self.in_avals, self.part_avals, "list",
                         self.donated) if typed and self.executable.donors else None
        self.ways: dict[tuple[int, ...], Passage | None] = {}  # by the identity of the arguments' shardings

    def __call__(self, leaves: Sequence[Any]) -> list[PlacedArray]:
        """The results, of which this process has its parts."""
        parts = [ConcreteArray(x.part() if type(x) is PlacedArray and x.is_cut else _own(x, a, index), a)
                 for x, a, index in zip(leaves, self.in_avals, self.own, strict=True)]
        for k in self.donated:
            if isinstance(leaves[k], ConcreteArray):
                leaves[k].delete(self.name)
        processes.here.calls(self.record)
        values = self._values(parts)
        processes.here.returns()
        if config.debug_nans or config.debug_infs:
            errors.check_finite(self.name, [v for v in values if v.dtype.kind in "fc"])
        return [*map(PlacedArray.with_part, self.outs, values)]

    def way(self, leaves: Sequence[Any], entry: Any) -> Passage | None:
        """How calls with arguments that lie just like these are made by machine code, after one that was not; None
        where they cannot be."""
        placed = getattr(type(self.executable), "placed", None)
        if placed is None or self.donated or not all(map(_as_it_is, leaves, self.own)):
            return None
        lies = [x.sharding if type(x) is PlacedArray else None for x in leaves]
        key = tuple(map(id, lies))  # which live as long as the way
        if key not in self.ways:
            if len(self.ways) >= _WAYS:
                self.ways.clear()
            avals = [ShapedArray(part.shape, part.dtype, whole.weak_type)
                     for part, whole in zip(self.in_avals, entry.avals, strict=True)]
            run = placed(self.executable, avals, lies, self.outs, entry.form, processes.here.log.entry(self.record))
            self.ways[key] = None if run is None else Passage(run, entry)
        return self.ways[key]

    def _values(self, parts: Sequence[ConcreteArray]) -> list[np.ndarray]:
        if self.run is not None:  # of arrays whose memory nothing else here holds
            found = self.run(*parts)
            if found is not NotImplemented:
                return [x.elements() for x in found]
        values = [x.elements() for x in parts]
        for k in self.executable.donors:
            values[k] = values[k].copy()
        return self.executable(values)


def _as_it_is(x: Any, index: tuple[slice, ...] | None) -> bool:
    """Whether an argument's memory here is what the program of this process takes."""
    if type(x) is PlacedArray:
        return x.committed and (x.is_cut or index is None)
    return index is None


def _own(x: Any, aval: ShapedArray, index: tuple[slice, ...] | None) -> np.ndarray:
    """The elements that this process takes of an argument that all processes have."""
    value = numpy_value(x, aval)
    return value if index is None else np.asarray(value[index], order="C")


def record_of(text: str, name: str) -> bytes:
    """What tells a call: the digest of a text that is the same in all processes (but for addresses, and the order of
    sets), the name, and the user's line."""
    source = here()
    where = errors.line_of(source) if source else ""
    said = f"{name} {where}".strip().encode()[:RECORD - 32]
    text = _SET.sub(lambda found: str(sorted(found[1].split(", "))), _ADDRESS.sub("", text))
    return (hashlib.blake2b(text.encode(), digest_size=32).digest() + said).ljust(RECORD, b"\0")
