"""Jitted functions on several devices: the shardings that are asked for, checked, and those of the results.

    jit(f, in_shardings=NamedSharding(mesh, P("x")), out_shardings=None)(x).sharding

Devices of one process share memory, so that a program on arrays that are cut is the program on whole arrays, run once
on all cores. What is asked for becomes constraints in the program; `propagate` says how the results are cut.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from anima import errors, tree
from anima.config import config
from anima.core import dtypes
from anima.core.array import ConcreteArray, PlacedArray
from anima.core.avals import ShapedArray, ShardedArray
from anima.core.elsewhere import machine_of, run
from anima.core.explicit import erased
from anima.core.jaxpr import ClosedJaxpr, subjaxprs
from anima.core.layout import Format
from anima.core.mesh import Mesh, current_mesh
from anima.core.partition import PartitionSpec
from anima.core.placement import (
    CONSTANT,
    check_together,
    committed_sharding,
    completed,
    elsewhere,
    is_abstract,
    made_at,
    meshes_of,
    moved,
    pins,
    place,
)
from anima.core.propagation import propagate
from anima.core.shardings import WHOLE, NamedSharding, Sharding, SingleDeviceSharding, device_of, in_memory, memory_of
from anima.core.trace import aval_of
from anima.ops.memories import memories, tells_of_memory
from anima.ops.placing import check_fits, check_known, concrete, constrained_to, device_put_p, on_current_mesh
from anima.runtime.logs import timed
from anima.transforms.dce import dce_jaxpr, without_dead_code
from anima.transforms.discharge import discharged
from anima.util import deeper, record, weak_cache


@record
class Wanted:
    """The shardings that `jit` was given: trees of them, as their leaves and how to put these together."""

    ins: Any = None
    outs: Any = None
    device: Any = None

    def of_arguments(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Sharding | None] | None:
        """One for each leaf of the arguments, None where nothing is asked for."""
        if self.ins is None:
            return None
        given = self.ins.tree
        if kwargs:
            raise ValueError("pjit does not support kwargs when in_shardings is specified.")
        if not _is_leaf(given):
            what = ("pjit in_shardings specification must be a tree prefix of the positional arguments tuple. In "
                    "particular, pjit in_shardings must either be a Sharding, a PartitionSpec, or a tuple of length "
                    "equal to the number of positional arguments. But pjit in_shardings is")
            if not isinstance(given, (tuple, list)):
                raise ValueError(f"{what} not a tuple: got {type(given)} instead.")
            if len(given) != len(args):
                raise ValueError(f"{what} the wrong length: got a tuple or list of length {len(given)} for an args "
                                 f"tuple of length {len(args)}.")
            given = tuple(given)
        return _resolved(given, tuple(args), "in_shardings")

    def of_results(self, result: Any) -> list[Sharding | None] | None:
        """One for each leaf of the result."""
        return None if self.outs is None else _resolved(self.outs.tree, result, "out_shardings")


@record
class Prefix:
    """A tree of shardings, which is equal to others as its leaves are."""

    leaves: tuple[Any, ...]
    structure: Any

    @property
    def tree(self) -> Any:
        return tree.unflatten(self.structure, self.leaves)


_ARRAYS = (PlacedArray, ConcreteArray)


def _is_leaf(x: Any) -> bool:
    return x is None or isinstance(x, (Sharding, PartitionSpec))


def wanted(in_shardings: Any, out_shardings: Any, device: Any, backend: Any) -> Wanted | None:
    """What `jit` is asked for; None for nothing. TypeError for what is no sharding."""
    if backend not in (None, "cpu"):
        raise RuntimeError(f"Unknown backend {backend!r}. Available backends are ['cpu']")
    if device is not None and (in_shardings is not None or out_shardings is not None):
        raise ValueError("If device is specified on jit, then in_shardings and out_shardings should not be specified.")
    prefixes = [_prefix(name, given) for name, given in (("in_shardings", in_shardings),
                                                         ("out_shardings", out_shardings))]
    place = None if device is None else SingleDeviceSharding(device_of(device))
    return None if prefixes == [None, None] and place is None else Wanted(*prefixes, place)


def _prefix(name: str, given: Any) -> Prefix | None:
    if given is None:
        return None
    leaves, structure = tree.flatten(given, is_leaf=_is_leaf)
    formats = [leaf for leaf in leaves if isinstance(leaf, Format)]
    for form in formats:
        if not form.is_row_major():
            raise NotImplementedError(f"{name}: arrays are row-major, and {form.layout} is another order.")
    leaves = [leaf.sharding if isinstance(leaf, Format) else leaf for leaf in leaves]
    if not any(leaf is not None for leaf in leaves) and formats:
        return None
    for leaf in leaves:
        if not _is_leaf(leaf):
            raise TypeError(f"{name} leaf specifications are expected to be Sharding or PartitionSpec instances or "
                            f"None, but got {leaf!r}")
        spec = leaf.spec if isinstance(leaf, NamedSharding) else leaf
        if isinstance(spec, PartitionSpec) and PartitionSpec.UNCONSTRAINED in spec.partitions:
            raise ValueError(f"Unconstrained dims are not allowed when passed to {name}: {leaf}. Fix: None in place of "
                             "the spec, or with_sharding_constraint within the function.")
    return Prefix(tuple(leaves), structure)


def _resolved(given: Any, full: Any, name: str) -> list[Sharding | None]:
    found = tree.broadcast_prefix(given, full, is_leaf=_is_leaf, what=f"pjit {name}")
    shardings = [on_current_mesh("jit", s, name) if isinstance(s, PartitionSpec)
                 else concrete(s, None) if s is not None and is_abstract(s) and not current_mesh().empty else s
                 for s in found]
    for sharding in {s for s in shardings if s is not None and not is_abstract(s)}:
        check_known(sharding)
    return shardings


def constrained(values: Sequence[Any], shardings: Sequence[Sharding | None] | None, kind: str,
                names: Sequence[str]) -> list[Any]:
    """The arguments or results of a program that is being traced, as shardings want them; ValueError where one does
    not fit."""
    if shardings is None:
        return list(values)
    found = []
    for value, sharding, name in zip(values, shardings, names, strict=True):
        if isinstance(sharding, NamedSharding):
            check_fits(f"One of pjit {kind} with pytree key path {name}", aval_of(value).shape, sharding)
            value = constrained_to(value, sharding)
        found.append(value)
    return found


@weak_cache
def watchers(closed: ClosedJaxpr) -> tuple[Callable[[Any], None], ...]:
    """What in a program wants to be told how values lie."""
    holding = [eqn for eqn in closed.eqns if eqn.params]
    found = [eqn.primitive.watches(eqn.params) for eqn in holding]
    with deeper():
        for eqn in holding:
            for inner in subjaxprs(eqn.params):
                found += watchers(inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner))
    return tuple(f for f in found if f is not None)


class Places:
    """What is known of where the arguments and results of one program are."""

    __slots__ = ("closed", "device", "found", "ins", "name", "outs", "pins", "takers", "tells_of_memory", "unused",
                 "watchers")

    def __init__(self, name: str, closed: ClosedJaxpr, asked: Wanted | None, ins: Sequence[Sharding | None] | None,
                 outs: Sequence[Sharding | None] | None, keep_unused: bool = False) -> None:
        self.name, self.closed, self.ins, self.outs = name, closed, ins, outs
        self.device = asked.device if asked else None
        self.pins, self.watchers, self.tells_of_memory = pins(closed), watchers(closed), tells_of_memory(closed)
        if self.pins:  # what nothing needs says nothing
            self.closed = without_dead_code(closed)
            self.pins = pins(self.closed)
        self.unused: list[int] | None = [] if keep_unused else None  # leaves that do not matter
        self.found: dict[Any, list[Sharding | None] | None] = {}
        self.takers: dict[Any, tuple[int, ...]] = {}

    @property
    def matter(self) -> bool:
        """Whether the program itself says something of places."""
        return bool(self.pins or self.watchers or self.ins or self.outs or self.device or self.tells_of_memory)

    def results(self, leaves: Sequence[Any]) -> tuple[Sequence[Sharding | None], bool]:
        """The sharding of each result for these arguments (None: of arrays that nobody placed), and whether they have
        to stay there.

        ValueError for arguments on different devices, or elsewhere than `in_shardings` says.
        """
        return self.results_of(leaves, [committed_sharding(x) for x in leaves])

    def knows(self, leaves: Sequence[Any], avals: Sequence[ShapedArray]) -> bool:
        """Whether a call with such arguments, which are arrays of these types that lie so, has been there before."""
        for leaf, aval in zip(leaves, avals, strict=True):
            if type(leaf) not in _ARRAYS or (leaf.aval is not aval and leaf.aval != aval):
                return False
        return self.matter or placed(leaves)

    def results_of(self, leaves: Sequence[Any], known: Sequence[Sharding | None]
                   ) -> tuple[Sequence[Sharding | None], bool]:
        """`results`, for leaves (arrays, or what has a shape and a type) that are under these shardings."""
        key = list(known)
        for k in self._unused(len(leaves)):
            key[k] = None
        shardings = tuple(key)
        if shardings not in self.found:
            self.found[shardings] = self._results(leaves, shardings)
        found = self.found[shardings]
        if found is not None:
            return found, True
        made = [made_at(a, known) for a in self.closed.out_avals]
        return [s for s, _ in made], any(stays for _, stays in made)

    def _unused(self, count: int) -> list[int]:
        if self.unused is None:
            _, used = dce_jaxpr(self.closed.jaxpr, [True] * len(self.closed.out_avals))
            self.unused = [k for k, u in enumerate(used[len(used) - count:]) if not u]
        return self.unused

    def taken(self, donated: tuple[int, ...], avals: Sequence[ShapedArray], ins: Sequence[Sharding | None],
              outs: Sequence[Sharding | None]) -> tuple[int, ...]:
        """Which of the donated arguments, which are of these types and lie so, results take the place of: as in JAX,
        those that are used, as far as a result has as many bytes on each device."""
        if not donated:
            return ()
        key = donated, *ins, *outs
        if key not in self.takers:
            unused, kinds = self._unused(len(avals)), list(map(on_device, avals, self.arguments(ins)))
            results = Counter(map(on_device, self.closed.out_avals, outs))
            found = []
            for k in donated:
                if k not in unused and results[kinds[k]]:
                    results[kinds[k]] -= 1
                    found.append(k)
            self.takers[key] = tuple(found)
        return self.takers[key]

    def arguments(self, shardings: Sequence[Sharding | None]) -> list[Sharding | None]:
        """The sharding of each argument, as far as it is known."""
        if self.ins is None:
            return list(shardings)
        return [a if b is None else b for a, b in zip(shardings, self.ins, strict=True)]

    def _results(self, leaves: Sequence[Any], shardings: Sequence[Sharding | None]) -> list[Sharding | None] | None:
        avals = self.closed.out_avals
        if self.device is not None:
            return [self.device] * len(avals)
        self._check(leaves, shardings)
        ins = self.arguments(shardings)
        outs = self.outs or [None] * len(avals)
        said = [*ins, *(s for text, s in self.pins if text != CONSTANT), *outs]
        if not any(s is not None for s in said):
            said = [s for _, s in self.pins]
        meshes = meshes_of(said)
        free = [None] * (len(self.closed.in_avals) - len(ins))  # what the function closes over, as the first arguments
        kinds = memories(self.closed, (*free, *map(memory_of, ins)))
        if not meshes:
            single = next((s for s in said if s is not None), None)
            for tell in self.watchers:
                tell(single or elsewhere(0)[0] or WHOLE)
            if single is None and self.tells_of_memory:
                return [None if k is None else in_memory(WHOLE, k) for k in kinds]
            return None if single is None else [in_memory(single, k) if o is None else o
                                                for o, k in zip(outs, kinds, strict=True)]
        found = self._propagated(meshes, [*free, *ins])
        return [in_memory(s, k) if out is None else out for s, out, k in zip(found, outs, kinds, strict=True)]

    def _propagated(self, meshes: Sequence[Mesh], ins: Sequence[Sharding | None]) -> list[NamedSharding]:
        """How the results are cut, along the axes of the first mesh that has some for them."""
        found: list[NamedSharding] = []
        for k, mesh in enumerate(meshes):
            specs = propagate(self.closed, mesh, ins, tells=not k)
            new = [completed(mesh, a, spec) for a, spec in zip(self.closed.out_avals, specs, strict=True)]
            found = [b if a.is_fully_replicated and not b.is_fully_replicated else a
                     for a, b in zip(found or new, new, strict=True)]
            if not any(s.is_fully_replicated for s in found):
                break
        return found

    def put(self, outs: Sequence[Any]) -> list[Any]:
        """The results of a call that is transformed, on the single devices where they are to be: programs say nothing
        of these."""
        asked = self.outs or [self.device] * len(outs)
        return [device_put_p.bind(x, devices=(s,), srcs=(s,), copy_semantics=(None,))[0]
                if isinstance(s, SingleDeviceSharding) else x for x, s in zip(outs, asked, strict=True)]

    def _check(self, leaves: Sequence[Any], shardings: Sequence[Sharding | None]) -> None:
        for leaf, mine, asked in zip(leaves, shardings, self.ins or [None] * len(leaves), strict=True):
            if mine is not None and asked is not None and not mine.is_equivalent_to(asked, len(leaf.shape)):
                raise ValueError(
                    f"Sharding passed to jit does not match the sharding on the respective arg. Got jit sharding: "
                    f"{asked},\narg sharding: {mine} for arg type: {_short(leaf)}. Fix: anima.device_put the "
                    "argument, or leave in_shardings out.")
        names = self.closed.jaxpr.debug_info.arg_names
        others = [("ARG_SHARDING", s) for s in self.ins or ()]
        others += [(text, s) for text, s in self.pins if text != CONSTANT]
        others += [("explicit output sharding", s) for s in self.outs or ()]
        check_together(shardings, others, lambda k: f"{names[k]} of {self.name} with shape "
                       f"{_short(leaves[k])}")


def take(entry: Any) -> None:
    """Finds which donated arguments of a program results take the place of; warns of what is donated in vain."""
    warn_of_unusable(entry.closed, [k + len(entry.outer) for k in entry.donated])
    entry.taken = entry.places.taken(entry.donated, entry.avals, [None] * len(entry.avals),
                                     [None] * len(entry.out_avals))


def warn_of_unusable(closed: ClosedJaxpr, donated: Sequence[int]) -> None:
    """Warns of donated arguments that are in use, but whose memory no result can take over."""
    if not donated:
        return
    results = Counter(map(on_device, closed.out_avals))
    used = {v for e in closed.eqns for v in e.invars} | set(closed.jaxpr.outvars)
    unusable = []
    for k in donated:
        var = closed.jaxpr.invars[k]
        kind = on_device(var.aval)
        if results[kind]:
            results[kind] -= 1
        elif var in used:
            unusable.append(var.aval.str_short())
    if unusable:
        warnings.warn(f"Some donated buffers were not usable: {', '.join(unusable)}.\nNo result has as many "
                      "bytes. Donate only arguments that a result replaces.", stacklevel=errors.user_stacklevel())


def on_device(aval: ShapedArray, sharding: Sharding | None = None) -> Any:
    """The bytes that a device has of an array; of random keys, how many, and of which kind."""
    count = math.prod(aval.shape if sharding is None else sharding.shard_shape(aval.shape))
    return count * aval.dtype.itemsize if isinstance(aval.dtype, np.dtype) else (count, aval.dtype)


def in_places(values: Sequence[Any], avals: Sequence[ShapedArray], shardings: Sequence[Sharding | None],
              committed: bool) -> list[ConcreteArray]:
    """Results, as NumPy arrays or as arrays of Anima's, where they are."""
    return [place(v.elements() if isinstance(v, ConcreteArray) else v, a, s, committed)
            for v, a, s in zip(values, avals, shardings, strict=True)]


def placed(leaves: Sequence[Any]) -> bool:
    """Whether an argument, or an option, says where a call takes place."""
    return moved() or PlacedArray in map(type, leaves)


def is_elsewhere(entry: Any, leaves: Sequence[Any]) -> bool:
    """Whether a call is one on a device that is no CPU."""
    return (entry.places.matter or placed(leaves)) and machine_of(entry.places.results(leaves)[0]) is not None


def call_elsewhere(entry: Any, leaves: Sequence[Any], shardings: Sequence[Sharding | None],
                   committed: bool) -> list[PlacedArray] | None:
    """The leaves of the result of a call on a device that is no CPU; None for another call."""
    machine = machine_of(shardings)
    if machine is None:
        return None
    program = entry.remote.get(machine)
    if program is None:
        with config.held(entry.options), timed("compile", entry.name):
            closed, _ = discharged(erased(entry.closed))
            program = entry.remote[machine] = machine.program(closed, entry.name, () if entry.outer else entry.taken)
    try:
        outs = run(machine, program, leaves, entry.avals, entry.out_avals, shardings, committed)
    finally:  # what was written over is worth nothing
        for k in entry.taken:
            if isinstance(leaves[k], ConcreteArray):
                leaves[k].delete(entry.name)
    if not entry.donated:
        entry.last = partial(run, machine, program, avals=entry.avals, out_avals=entry.out_avals, shardings=shardings,
                             committed=committed), [*map(kind_of, leaves)]
    return outs


def kind_of(x: Any) -> tuple[Any, Any]:
    """By what `Entry.again` knows an argument."""
    return (x.aval, x.sharding) if type(x) is PlacedArray and x.committed else (None, None)


def call_here(entry: Any, leaves: Sequence[Any], shardings: Any, stays: bool) -> list[PlacedArray]:
    """The leaves of the result of a call on devices of this machine."""
    given = [plain(x) for x in leaves]
    gone = entry.places.taken(entry.donated, entry.avals, [*map(committed_sharding, leaves)], shardings)
    for k in entry.donated:
        if k not in gone and type(given[k]) is ConcreteArray:
            given[k] = ConcreteArray(given[k].elements(), given[k].aval)  # the call deletes this one, if any
        elif type(leaves[k]) is PlacedArray:
            leaves[k].delete(entry.name)  # so that nobody but the call has its memory
    result = entry.run(*given) if entry.run is not None else NotImplemented
    if result is NotImplemented:
        values = entry.values([x.elements() if type(x) is ConcreteArray else to_numpy(x, a)
                               for x, a in zip(given, entry.avals, strict=True)])
        for k in gone:
            if isinstance(leaves[k], ConcreteArray):
                leaves[k].delete(entry.name)
    else:
        values = [x.elements() for x in ([result] if entry.form == "single" else result)]
    return in_places(values, entry.out_avals, shardings, stays)


def to_numpy(x: Any, aval: ShapedArray) -> np.ndarray:
    return np.asarray(x, dtype=aval.dtype)


def plain(x: Any) -> Any:
    """The array as compiled code takes it: of a type that does not tell where it is."""
    if type(x) is not PlacedArray:
        return x
    aval = x.aval
    if type(aval) is ShardedArray:
        aval = ShapedArray(aval.shape, aval.dtype, aval.weak_type)
    return ConcreteArray(x.elements(), aval)


def copied(x: Any) -> Any:
    """The array on no device, in memory of its own."""
    x = plain(x)
    return ConcreteArray(x.elements().copy(), x.aval) if type(x) is ConcreteArray else x


def _short(leaf: Any) -> str:
    """The type, with how it is cut where types tell."""
    aval = getattr(leaf, "aval", leaf)
    return aval_of(leaf).str_short() if type(aval) is ShardedArray else ShapedArray(
        tuple(leaf.shape), dtypes.canonicalize_dtype(leaf.dtype)).str_short()


def check_same(leaves: Sequence[Any], required: Sequence[Sharding | None]) -> None:
    """ValueError for arguments of a compiled program that lie in another way than those that it was compiled for."""
    wrong = []
    for k, (leaf, wanted_here) in enumerate(zip(leaves, required, strict=True)):
        mine = committed_sharding(leaf)
        if mine is not None and not mine.is_equivalent_to(wanted_here or WHOLE, len(leaf.shape)):
            wrong.append(f"Argument number {k} with shape {_short(leaf)}:\n  Passed sharding: {mine}\n"
                         f"  Required sharding: {wanted_here or WHOLE}")
    if wrong:
        raise ValueError("Computation was compiled for input shardings that disagree with the shardings of arguments "
                         f"passed to it. Here are the {len(wrong)} mismatches:\n" + "\n".join(wrong))
