"""Fusion: which equations are folded into their consumers, and which share a kernel.

    def softmax(x):                              map      -
        m = max(x, axis=1)                       reduce   m, e, s, p    (one kernel, three sweeps over a row)
        e = exp(x - m);  s = sum(e, axis=1)
        return e / s

An equation is folded (its value computed where it is used) if it is cheap or used once; a costly one with
several users becomes a root of its own. Roots over one space whose dependencies allow it share a kernel.
After this pass the order of equations is that of the groups.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from anima.compiler.fusing.materialise import (
    MANY,
    SHORT,
    acts_elementwise,
    halves,
    in_parts,
    is_costly,
    kind_of,
    materialise,
    size_of,
)
from anima.compiler.fusing.overwrite import Pairs, ReadsFirst, is_single, overwritten, pairs
from anima.compiler.fusing.windows import reads_what_it_writes
from anima.compiler.ir.groups import LARGE, LOAD, MOST_BOXES, Fused, Group, home_of
from anima.compiler.machine.target import Target
from anima.compiler.scheduling.reductions import form
from anima.core.avals import Shape
from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, Var
from anima.core.primitive import Inner
from anima.util import replace

MOST_ROOTS = 24        # results of one kernel
LONG = 1024            # most elements of rows at whose end a costly function counts: it is computed apart, in vectors
SMALL = 4096           # elements: kernels that share nothing are merged below this
NEAR = 16              # equations through which it is looked what an array is made of
BOXED = 1024           # elements of which that pays more than to share a kernel with a reduction

T = TypeVar("T")
Relation = tuple[int, ...] | None  # for each dimension of an array: that of the space it follows, or -1 (size 1)
IN_ORDER = (-2,)  # the relation of an array of another shape whose elements are those of the space in the same order
Place = tuple[tuple[int, int] | None, ...] | None  # the same with what is added to the space's index; None: unknown


def fuse(closed: ClosedJaxpr, target: Target, carried: Pairs = ()) -> Fused:
    """Cuts a program, and those of its loops and branches, into groups of equations, one for each kernel. `carried` are
    arguments and the results that a loop puts in their place.

    After this pass every equation is in a group, or folded into one; unused equations are gone.
    """
    jaxpr = closed.jaxpr
    kinds = {id(e): kind_of(e, target) for e in jaxpr.eqns}
    parts = in_parts(jaxpr)
    views, stored, roots = materialise(jaxpr, kinds, parts)
    reads = ReadsFirst(jaxpr, views, roots, carried).run()
    if reads.early:
        views, stored, roots = materialise(jaxpr, kinds, parts, reads.early)
        reads = ReadsFirst(jaxpr, views, roots, carried).run()
    producers = {v: e for e in jaxpr.eqns if kinds[id(e)] == "map" for v in e.outvars}
    sums = _summed([e for e in jaxpr.eqns if kinds[id(e)] == "reduce"], producers, stored)
    grouping = _Grouping(producers, stored, views, kinds, parts, _repeated(jaxpr.eqns), sums, target)
    for number in reads.order:
        grouping.place(jaxpr.eqns[number], [jaxpr.eqns[n] for n in reads.before.get(number, ())])
    groups, kept = grouping.finish(jaxpr.outvars)
    fused = Fused(closed, groups, producers, views, kept)
    inner = {e: tuple(_inner(i, target) for i in found) for e in jaxpr.eqns
             if (found := e.primitive.inner(e.params))}
    return replace(fused, over=overwritten(fused), inner=inner)


def _repeated(eqns: Sequence[Eqn]) -> dict[Var, set[Shape]]:
    """The shapes to which variables, or what is computed from each of their elements, are stretched."""
    found: dict[Var, set[Shape]] = {}
    for eqn in reversed(eqns):
        stretches = eqn.primitive.name == "broadcast_in_dim" or acts_elementwise(eqn)
        for v, out in ((v, out) for out in eqn.outvars[:1] for v in eqn.invars):
            if type(v) is Var and v.aval.size < out.aval.size and stretches:
                found.setdefault(v, set()).add(out.aval.shape)
            elif type(v) is Var and v.aval.size == out.aval.size and out in found:
                found.setdefault(v, set()).update(found[out])
    return found


def _summed(reductions: Sequence[Eqn], producers: dict[Var, Eqn], stored: set[Var]) -> dict[Var, set[Shape]]:
    """The axes over which arrays in memory, or what is computed from each of their elements, are reduced."""
    found: dict[Var, set[Shape]] = {}
    for eqn in reductions if len(reductions) > 1 else ():
        stack, seen = [v for v in eqn.invars if type(v) is Var], 0
        while stack and seen < NEAR:
            var, seen = stack.pop(), seen + 1
            if var in stored:
                if eqn.params["axes"]:
                    found.setdefault(var, set()).add(tuple(eqn.params["axes"]))
            elif var in producers and acts_elementwise(producers[var]):
                stack += [v for v in producers[var].invars if type(v) is Var and v.aval.shape == var.aval.shape]
    return found


def _inner(inner: Inner, target: Target) -> Fused:
    program, first, carries, _ = inner
    jaxpr = program.jaxpr
    return fuse(program, target, [*zip(jaxpr.invars[first:first + carries], jaxpr.outvars[:carries], strict=True)])


# ---------------------------------------------------------------- which roots share a kernel


class _Builder:
    """A group under construction: `reads` are variables that its roots load."""

    __slots__ = ("axes", "cuts", "flat", "kind", "moved", "needs", "number", "paired", "reads", "roots", "shape",
                 "size", "users")

    def __init__(self, number: int, kind: str, shape: Shape, axes: tuple[int, ...]):
        self.number = number
        self.kind = kind
        self.shape = shape
        self.axes = axes
        self.roots: list[Eqn] = []
        self.reads: dict[Var, None] = {}
        self.moved: set[Var] = set()  # those read at other indices than a result is computed at
        self.needs = 0  # bit set of the groups that this one depends on, directly or not
        self.users: dict[int, _Builder] = {}  # the groups that depend on this one directly, by number
        self.flat = True
        self.cuts: dict[int, set[int]] = {}
        self.paired = False
        self.size = 0  # instructions, about

    def kept(self) -> tuple[int, ...]:
        return tuple(d for d in range(len(self.shape)) if d not in self.axes)

    def row_shapes(self) -> set[Shape]:
        """The shapes of what there is one of for each row: without the axes of the rows, and with them, of size 1."""
        ones = tuple(1 if d in self.axes else n for d, n in enumerate(self.shape))
        return {tuple(self.shape[d] for d in self.kept()), ones} - {self.shape}


class _Grouping:
    """Places roots, in program order, into groups."""

    def __init__(self, producers: dict[Var, Eqn], stored: set[Var], views: dict[Var, Var], kinds: dict[int, str],
                 parts: set[int], repeated: dict[Var, set[Shape]], sums: dict[Var, set[Shape]], target: Target):
        self.target = target
        self.repeated = repeated
        self.sums = sums
        self.parts = parts
        self.producers = producers
        self.stored = stored
        self.views = views
        self.memory = partial(home_of, views)  # the variable whose memory holds another
        self.kinds = kinds
        self.groups: list[_Builder] = []
        self.maker: dict[Var, _Builder] = {}
        self.of: dict[int, _Builder] = {}  # by id of a root
        self.by_space: dict[tuple[Shape, str], list[_Builder]] = {}
        self.earlier: list[_Builder] = []  # groups that read what the root that was looked at last writes over
        self.paired = False  # whether the root that was looked at last has halves of a block as operands
        self.size = 0        # and its instructions, about
        self.costly = False  # and whether there are functions among them that are worth lanes
        self.effectful: _Builder | None = None  # the last group with an effect

    def reads(self, eqn: Eqn, space: Shape,
              skip: int = 0) -> tuple[dict[Var, set[Relation]], bool, dict[int, set[int]]]:
        """The variables that a root's operands (but the first `skip`) load and how their dimensions follow those of
        its space; whether all is flat; where concatenations and paddings along the space begin and end."""
        is_map = self.kinds[id(eqn)] == "map"
        self.paired, self.size, self.costly = False, size_of(eqn) if is_map else 1, is_map and is_costly(eqn)
        found: dict[Var, set[Relation]] = {}
        seen: set[tuple[Var, Relation, Place]] = set()
        flat = True
        cuts: dict[int, set[int]] = {}
        identity = tuple(range(len(space)))
        here = tuple((d, 0) for d in range(len(space)))
        stack: list[tuple[Atom, Relation, Place]] = []
        start = eqn if is_map else None
        if start is None:
            stack += [(v, identity, here) if v.aval.shape == space else (v, None, None) for v in eqn.invars[skip:]]
        else:
            stack += _operands(eqn, identity, here, space)
            flat = acts_elementwise(eqn)
            _note_cuts(eqn, here, space, cuts)
            self.paired = self._pairs(eqn, identity)
        while stack:
            atom, relation, place = stack.pop()
            if type(atom) is not Var or (atom, relation, place) in seen:
                continue
            seen.add((atom, relation, place))
            while atom in self.views:
                atom, view = self.views[atom], atom
                relation = _reshaped(view.aval.shape, atom.aval.shape, relation, space)
                place = _view_relation(view.aval.shape, atom.aval.shape, place, None)
            if atom in self.stored or atom not in self.producers:
                self.size += LOAD
                found.setdefault(atom, set()).add(relation)
                flat = flat and (atom.aval.shape == space or atom.aval.size == 1)
                continue
            producer = self.producers[atom]
            self.size += size_of(producer)
            self.costly = self.costly or is_costly(producer)
            flat = flat and acts_elementwise(producer) and atom.aval.shape in (space, ())
            if producer.primitive.name in ("concatenate", "pad"):
                _note_cuts(producer, place, space, cuts)
                self.paired = self.paired or (start is not None and self._pairs(producer, relation))
            stack += _operands(producer, relation, place, space)
        return found, flat, cuts

    def _pairs(self, eqn: Eqn, relation: Relation) -> bool:
        """Whether an equation puts two results of one that is folded behind each other, along the space."""
        return (relation is not None and relation is not IN_ORDER and halves(eqn, self.producers)
                and eqn.invars[0] not in self.stored and relation[eqn.params["dimension"]] >= 0)

    def place(self, eqn: Eqn, before: Sequence[Eqn]) -> None:
        """Adds a root to a group that can take it, or to a new one. The roots in `before` read what it overwrites."""
        kind = self.kinds[id(eqn)]
        space = eqn.invars[0].aval.shape if kind == "reduce" else eqn.outvars[0].aval.shape if eqn.outvars else ()
        axes = tuple(sorted(eqn.params["axes"])) if kind == "reduce" else ()
        reads, flat, cuts = self.reads(eqn, space)
        paired, size = self.paired, self.size
        direct = {id(g): g for g in (self.maker.get(v) for v in reads) if g is not None}
        self.earlier = [self.of[id(e)] for e in before]
        needs = 0
        for g in (*direct.values(), *self.earlier):
            needs |= g.needs | (1 << g.number)
        if eqn.effects and self.effectful is not None:  # effects happen in the program's order
            needs |= self.effectful.needs | (1 << self.effectful.number)
        alone = kind == "call" or id(eqn) in self.parts
        group = None if alone else self._find(eqn, kind, space, axes, reads, direct, cuts)
        if group is None:
            group = _Builder(len(self.groups), kind, space, axes)
            self.groups.append(group)
            if not alone:
                self._announce(group)
        elif kind == "reduce" and group.kind == "map":
            group.kind, group.axes = "reduce", axes
            self._announce(group)
        group.roots.append(eqn)
        group.reads.update(dict.fromkeys(reads))
        group.paired = group.paired or paired
        group.size += size
        group.moved.update(self._moved(eqn, kind, group, reads))
        for d, places in cuts.items():
            group.cuts.setdefault(d, set()).update(places)
        group.flat = group.flat and flat and space == group.shape
        self._depend(group, needs, direct.values())
        if eqn.effects:
            if self.effectful is not None:
                self._depend(group, 0, [self.effectful])
            self.effectful = group
        self.of[id(eqn)] = group
        for var in eqn.outvars:
            self.maker[var] = group

    def _depend(self, group: _Builder, needs: int, direct: Iterable[_Builder]) -> None:
        """Notes that a group depends on others, and so all that depend on it."""
        for other in direct:
            if other is not group:
                other.users[group.number] = group
        before = group.needs
        group.needs |= needs & ~(1 << group.number)
        changed = [group] if group.needs != before else []
        while changed:
            other = changed.pop()
            for user in other.users.values():
                if other.needs & ~user.needs:
                    user.needs |= other.needs
                    changed.append(user)

    def _moved(self, eqn: Eqn, kind: str, group: _Builder, reads: dict[Var, set[Relation]]) -> Iterable[Var]:
        """What a root reads elsewhere than at the index of its result."""
        if kind != "call" and group.kind != "call":
            return [v for v, found in reads.items() if v.aval.size != math.prod(group.shape)
                    or not all(_in_step(r, v.aval.shape, group.shape) for r in found)]
        if eqn.primitive.updates:
            if is_single(eqn):
                return ()
            array, found = self.memory(eqn.invars[0]), self.reads(eqn, (), skip=1)[0]
            own = array in found and reads_what_it_writes(eqn, array, self.producers, self.stored, self.memory)
            return [v for v in found if v is not array or not own]
        given = [self.memory(v) for v in eqn.invars]
        taken, count = {given[n] for n, _ in pairs(eqn)}, Counter(given)
        return [v for v in reads if v not in taken or count[v] > 1]

    def _in_rows(self, group: _Builder) -> bool:
        """Whether equations of the group may depend on its reductions."""
        return form(group.shape, group.axes, self.target) == "rows"

    def _announce(self, group: _Builder) -> None:
        """Lists a group under the spaces whose roots it may take."""
        self.by_space.setdefault((group.shape, group.kind), []).append(group)
        if group.kind == "reduce" and self._in_rows(group):
            for shape in group.row_shapes():
                self.by_space.setdefault((shape, "row"), []).append(group)

    def _find(self, eqn: Eqn, kind: str, space: Shape, axes: tuple[int, ...], reads: dict[Var, set[Relation]],
              direct: dict[int, _Builder], cuts: dict[int, set[int]]) -> _Builder | None:
        keys = [(space, "reduce"), (space, "map")] + ([(space, "row")] if kind == "map" else [])
        for key in keys:
            for group in reversed(self.by_space.get(key, ())[-6:]):
                if kind != group.kind and key[1] != "row" and _in_boxes(space, cuts if kind == "map" else group.cuts):
                    continue
                if self._takes(group, eqn, kind, key, axes, reads, direct):
                    return group
        return None

    def _takes(self, group: _Builder, eqn: Eqn, kind: str, key: tuple[Shape, str], axes: tuple[int, ...],
               reads: dict[Var, set[Relation]], direct: dict[int, _Builder]) -> bool:
        """Whether a root may join a group of those listed under `key` (a space, a role), and gains by it."""
        space, role = key
        if len(group.roots) >= MOST_ROOTS or group.size + self.size > LARGE:
            return False
        if kind == "reduce" and group.kind == "reduce" and group.axes != axes:
            return False
        if group.kind not in (role, "reduce"):
            return False
        if (group.paired and kind == "reduce") or (self.paired and group.kind == "reduce"):
            return False  # reductions do not run over both halves at once
        if kind == "reduce" and group.kind == "map" and any(
                min(other) > max(axes) for v in reads if self.maker.get(v) is group for other in self.sums.get(v, ())):
            return False  # another one goes along memory, where this one would step across it
        bit = 1 << group.number
        if any(g is not group and g.needs & bit for g in (*direct.values(), *self.earlier)):
            return False  # something between the two could then not be scheduled
        depends = id(group) in direct
        if role == "row" and not (depends and self._one_by_one(group, eqn)):
            return False
        shares = depends or any(v in group.reads and v.aval.size > 1 for v in reads)
        if not shares and math.prod(group.shape) > SMALL:
            return False
        if len(group.shape) > 1 and not shares and group.kind == "reduce":
            return False
        return not depends or self._aligned(group, role, space, reads)

    def _one_by_one(self, group: _Builder, eqn: Eqn) -> bool:
        """Whether a root may be computed for one row after the other: costly functions of many short rows wait for a
        kernel in which they are computed in vectors. Where whole rows depend on them, these would be read again."""
        rows, row = (math.prod([group.shape[d] for d in dims]) for dims in (group.kept(), group.axes))
        if not any(group.shape in self.repeated.get(v, ()) for v in eqn.outvars):
            return not self.costly or rows == 1 or row > LONG
        return not self.costly or rows < MANY or row > SHORT

    def _aligned(self, group: _Builder, role: str, space: Shape, reads: dict[Var, set[Relation]]) -> bool:
        """Whether all that a root over `space` reads of a group's results is at the index that it is computed at."""
        kept, all_axes = group.kept(), tuple(range(len(group.shape)))
        axes = kept if len(space) < len(group.shape) else all_axes  # of the group, for each of the root's
        for var, relations in reads.items():
            if self.maker.get(var) is not group:
                continue
            whole = var.aval.shape == group.shape
            if whole and role == "row":
                return False
            if group.kind == "reduce" and not whole and not self._in_rows(group):
                return False
            want = kept if var.aval.ndim < len(group.shape) else all_axes
            for relation in relations:
                if relation is None or not _follows(tuple([r if r < 0 else axes[r] for r in relation]), want,
                                                    var.aval.shape):
                    return False
        return True

    def finish(self, outvars: Sequence[Atom]) -> tuple[tuple[Group, ...], frozenset[Var]]:
        """The groups in an order in which they can run, and the variables that other groups or the caller read."""
        kept = {v for group in self.groups for v in group.reads if self.maker.get(v) is not group}
        kept |= {v for v in map(self.memory, outvars) if type(v) is Var}
        for group in self.groups:
            if group.kind == "call":
                kept.update(v for eqn in group.roots for v in eqn.outvars)
        ordered = [Group(g.kind, tuple(g.roots), g.shape, g.axes, g.flat,  # type: ignore[arg-type]
                         _few(g.cuts, g.roots, self.parts), g.paired, tuple(g.reads), frozenset(g.moved), g.size)
                   for g in self._in_order()]
        return tuple(ordered), frozenset(v for v in kept if v in self.maker)

    def _in_order(self) -> list[_Builder]:
        """A topological order, that of the program where it is one."""
        left = dict.fromkeys(range(len(self.groups)), 0)  # how many groups each one waits for
        for group in self.groups:
            for number in group.users:
                left[number] += 1
        ready = [(0, number) for number, count in left.items() if not count]  # (round, number)
        out: list[_Builder] = []
        while ready:
            turn, number = heapq.heappop(ready)
            out.append(self.groups[number])
            for user in self.groups[number].users:
                left[user] -= 1
                if not left[user]:
                    heapq.heappush(ready, (turn + (user < number), user))
        assert len(out) == len(self.groups), "groups depend on each other in a circle"
        return out


def _operands(eqn: Eqn, relation: Relation, place: Place, space: Shape) -> list[tuple[Atom, Relation, Place]]:
    """The operands with how their dimensions follow the space, if the result's do as `relation` and `place` say."""
    in_order = relation is IN_ORDER
    if acts_elementwise(eqn):
        shape = eqn.outvars[0].aval.shape
        return [(v, relation, place) if v.aval.shape == shape else
                (v, _spread(v.aval.shape, None if in_order else relation, -1), _spread(v.aval.shape, place, None))
                for v in eqn.invars if type(v) is Var]
    if eqn.primitive.name in ("reshape", "squeeze", "expand_dims"):
        operand, shape = eqn.invars[0], eqn.outvars[0].aval.shape
        return [(operand, _reshaped(shape, operand.aval.shape, relation, space),
                 _view_relation(shape, operand.aval.shape, place, None))]
    relations = _along(eqn, None if in_order else relation, -1) or [None] * len(eqn.invars)
    places = _along(eqn, place, None) or _shifted(eqn, place) or [None] * len(eqn.invars)
    return list(zip(eqn.invars, relations, places, strict=True))


def _spread(shape: Shape, relation: tuple[T, ...] | None, none: T) -> tuple[T, ...] | None:
    """The relation of an operand of this shape, which an elementwise operation repeats to that of its result."""
    if relation is None or not shape:
        return None if relation is None else ()
    return tuple([none if n == 1 else r for n, r in zip(shape, relation, strict=True)])


def _along(eqn: Eqn, relation: tuple[T, ...] | None, none: T) -> list[tuple[T, ...] | None] | None:
    """The relations of the operands of what keeps the order of elements; None for other equations."""
    name = eqn.primitive.name
    if relation is None:
        return None
    if not eqn.invars:
        return []
    operand = eqn.invars[0]
    if name == "broadcast_in_dim":
        dims = eqn.params["broadcast_dimensions"]
        return [tuple(none if n == 1 else relation[d] for n, d in zip(operand.aval.shape, dims, strict=True))]
    if name == "transpose":
        inner = list(relation)
        for d, p in enumerate(eqn.params["permutation"]):
            inner[p] = relation[d]
        return [tuple(inner)]
    if name == "gather" and eqn.invars[1].aval.shape[-1] == 1:  # one number says where
        offsets = eqn.params["dimension_numbers"].offset_dims
        batch = [r for d, r in enumerate(relation) if d not in offsets]
        shape = eqn.invars[1].aval.shape
        return [None, tuple([none if n == 1 else r for n, r in zip(shape, [*batch, none], strict=True)])]
    return None


def _shifted(eqn: Eqn, place: Place) -> list[Place] | None:
    """The places of the operands of slices, paddings and concatenations; None for other equations."""
    if place is None:
        return None
    name, params = eqn.primitive.name, eqn.params

    def moved(by: Sequence[int], steps: Sequence[bool] | None = None) -> Place:
        return tuple(None if at is None or (steps and steps[d]) else (at[0], at[1] + by[d])
                     for d, at in enumerate(place))

    if name == "slice":
        return [moved(params["start_indices"], [s != 1 for s in params["strides"] or [1] * len(place)])]
    if name == "pad":
        config = params["padding_config"]
        return [moved([-low for low, _, _ in config], [inner != 0 for _, _, inner in config]), None]
    if name == "concatenate":
        out, start = [], 0
        for v in eqn.invars:
            out.append(moved([-start if d == params["dimension"] else 0 for d in range(len(place))]))
            start += v.aval.shape[params["dimension"]]
        return out
    return None


def _note_cuts(eqn: Eqn, place: Place, space: Shape, cuts: dict[int, set[int]]) -> None:
    """Adds where, along the space, a concatenation's or padding's parts end."""
    name = eqn.primitive.name
    if place is None or name not in ("concatenate", "pad"):
        return
    if name == "concatenate":
        ends = np.cumsum([v.aval.shape[eqn.params["dimension"]] for v in eqn.invars])
        found = [(place[eqn.params["dimension"]], int(end)) for end in ends]
    else:
        found = [(at, end) for at, n, (low, high, _) in
                 zip(place, eqn.outvars[0].aval.shape, eqn.params["padding_config"], strict=True)
                 for end in (max(low, 0), n - max(high, 0))]
    for at, end in found:
        if at is not None and 0 < end - at[1] <= space[at[0]]:
            cuts.setdefault(at[0], set()).add(end - at[1])


def _in_boxes(space: Shape, cuts: dict[int, set[int]]) -> bool:
    """Whether kernels for the boxes between cuts are better than one for all of a space."""
    return math.prod(space) >= BOXED and any(place < space[d] for d, places in cuts.items() for place in places)


def _few(cuts: dict[int, set[int]], roots: Sequence[Eqn], parts: set[int]) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """The cuts, without those that would make too many boxes."""
    out, boxes = [], 1
    own = roots[0].params["dimension"] if id(roots[0]) in parts else None
    for d, places in sorted(cuts.items()):
        if boxes * (len(places) + 1) <= MOST_BOXES or (d == own and boxes == 1):
            boxes *= len(places) + 1
            out.append((d, tuple(sorted(places))))
    return tuple(out)


def _reshaped(shape: Shape, other: Shape, relation: Relation, space: Shape) -> Relation:
    """The relation of an operand of the shape `other` from that of its result, which has the same elements in order."""
    if relation is not IN_ORDER:
        found = _view_relation(shape, other, relation, -1)
        return IN_ORDER if found is None and shape == space and relation == tuple(range(len(space))) else found
    return tuple(range(len(space))) if other == space else IN_ORDER


def _view_relation(shape: Shape, other: Shape, relation: tuple[T, ...] | None, none: T) -> tuple[T, ...] | None:
    """As `_reshaped`; None if dimensions are merged or split."""
    if relation is None or [n for n in other if n != 1] != [n for n in shape if n != 1]:
        return None
    kept = iter([r for r, n in zip(relation, shape, strict=True) if n != 1])
    return tuple(none if n == 1 else next(kept) for n in other)


def _in_step(relation: Relation, shape: Shape, space: Shape) -> bool:
    """Whether an array of the size of a space is read at the space's own index."""
    if relation is None or shape != space:
        return relation is IN_ORDER
    return _follows(relation, tuple(range(len(space))), shape)


def _follows(relation: tuple[int, ...], want: tuple[int, ...], shape: Shape) -> bool:
    return len(relation) == len(want) and all(r == w or n == 1 for r, w, n in zip(relation, want, shape, strict=True))
