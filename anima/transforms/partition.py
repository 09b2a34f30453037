"""Partitioning: from a program on whole arrays to that of one device, on parts, with explicit collectives.

    a:f32[8@x,4] b:f32[4,2]. let c = dot_general a b; d = reduce_sum[axes=(0,)] c          on 4 devices
    a:f32[2,4]   b:f32[4,2]. let c = dot_general a b; d = reduce_sum[axes=(0,)] c; e = psum[axes=('x',)] d

Propagation says how each value is to be cut. Each operation is then done on parts as its `sharding_rule` allows, in
that of a few ways which moves the fewest bytes; operands are cut so before, and results as they are wanted after.
What an operation says nothing of, it gets whole, and computes on every device.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from anima.core.avals import ShapedArray
from anima.core.dtypes import bool_
from anima.core.explicit import erased
from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var
from anima.core.mesh import Mesh
from anima.core.partition import PartitionSpec, axes_of
from anima.core.placement import completed
from anima.core.primitive import ShardingRule
from anima.core.propagation import Link, Propagation, ShardedValue, identity, projected
from anima.core.sharding_rules import Factor
from anima.core.shardings import NamedSharding
from anima.core.source import Source
from anima.core.stage import eval_jaxpr, literal_array, trace_to_jaxpr
from anima.core.state import current
from anima.core.trace import EVAL, aval_of, under
from anima.ops.broadcast import Movement, broadcast, zeros_like
from anima.ops.elementwise import eq, select
from anima.ops.exchange import flat_index
from anima.transforms.dce import dce_jaxpr
from anima.transforms.parts import untyped
from anima.transforms.reshard import Axes, Cut, apply, bytes_sent, steps
from anima.transforms.shard_map import ShardMap, on_devices, part_of

Terms = Sequence[tuple[Sequence[int], Sequence[tuple[Any, ...]], Cut]]  # shape, factors of each dimension, cut


class Part:
    """A device's part of a value that is cut so; `others` are parts of it that are cut in other ways.

    Where it is a sum along axes that is still to be taken (`over`), it is to be cut as `want` says from then on, and
    `source` is the line that asked for the sum.
    """

    __slots__ = ("cut", "others", "over", "source", "want")

    def __init__(self, value: Any, cut: Cut, over: Axes = (), want: Cut = (), source: Source | None = None):
        self.cut, self.over, self.want, self.source = cut, over, want, source
        self.others = {cut: value}

    @property
    def value(self) -> Any:
        return self.others[self.cut]


class Left(NamedTuple):
    """How an operand or result of an operation that holds programs is: how it is cut, and over which axes it is still
    to be summed, for which line."""

    cut: Cut
    over: Axes = ()
    source: Source | None = None


def partition(closed: ClosedJaxpr, mesh: Mesh, in_specs: Sequence[PartitionSpec],
              out_specs: Sequence[PartitionSpec]) -> ClosedJaxpr:
    """The program of each device of a mesh: `shard_map` of it, with these specs, computes what `closed` does."""
    ins = [_cut_of(s, a.ndim) for s, a in zip(in_specs, closed.in_avals, strict=True)]
    outs = [_cut_of(s, a.ndim) for s, a in zip(out_specs, closed.out_avals, strict=True)]
    return Partition(mesh).program(closed, ins, outs)


def _cut_of(spec: PartitionSpec, ndim: int) -> Cut:
    return tuple(axes_of(p) for p in spec.padded(ndim))


class Partition:
    """Programs on one mesh."""

    def __init__(self, mesh: Mesh):
        self.mesh, self.sizes = mesh, dict(mesh.shape_tuple)

    def program(self, closed: ClosedJaxpr, ins: Sequence[Cut], outs: Sequence[Cut]) -> ClosedJaxpr:
        """The program on parts, of arguments and results that are cut so."""
        return self.program_of_sums(closed, ins, outs, ())[0]

    def program_of_sums(self, closed: ClosedJaxpr, ins: Sequence[Cut], outs: Sequence[Cut],
                        untaken: Collection[int]) -> tuple[ClosedJaxpr, list[Left]]:
        """`program`, and how results are left: those of numbers in `untaken` may be sums that are still to be taken."""
        left: list[Left] = []

        def fun(*parts: Any) -> list[Any]:
            found = self.run(closed, list(map(Part, parts, ins)), outs, untaken)
            left.extend(Left(x.cut, x.over, x.source) for x in found)
            return [x.value for x in found]

        return self.traced(fun, [self.part(a, c) for a, c in zip(closed.in_avals, ins, strict=True)]), left

    def traced(self, fun: Callable[..., list[Any]], avals: Sequence[ShapedArray]) -> ClosedJaxpr:
        """A program of one device, of a function of parts."""
        with on_devices(self.mesh, frozenset(self.sizes), False):
            jaxpr, consts = under(EVAL, trace_to_jaxpr, fun, avals)
        live, _ = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
        return ClosedJaxpr(jaxpr.replace(eqns=live.eqns), consts)

    def run(self, closed: ClosedJaxpr, args: Sequence[Part], outs: Sequence[Cut],
            untaken: Collection[int]) -> list[Part]:
        """Applies a program to parts; gives results that are cut so, or, of numbers in `untaken`, sums to be taken."""
        wanted = self._propagated(closed, [a.cut for a in args], outs)
        uses: Counter[Any] = Counter(a for e in closed.eqns for a in e.invars if isinstance(a, Var))
        uses.update(a for a in closed.jaxpr.outvars if isinstance(a, Var))
        env: dict[Var, Part] = dict(zip(closed.jaxpr.invars, args, strict=True))
        for var, const in zip(closed.jaxpr.constvars, closed.consts, strict=True):
            env[var] = Part(const, ((),) * var.aval.ndim)  # every device has it

        def read(atom: Atom) -> Part:
            if not isinstance(atom, Literal):
                return env[atom]
            return Part(literal_array(Literal(atom.val, _plain(atom.aval))), ())

        before = current.source
        for eqn in closed.eqns:
            current.source = eqn.source or before
            try:
                operands, wants = list(map(read, eqn.invars)), [wanted[v] for v in eqn.outvars]
                found = None
                if operands and all(x.over and uses[a] == 1 for x, a in zip(operands, eqn.invars, strict=True)):
                    found = self._on_sums(eqn, operands, wants)
                if found is None:
                    found = self.equation(eqn, list(map(self.summed, operands)), wants)
            finally:
                current.source = before
            env.update(zip(eqn.outvars, found, strict=True))
        found = list(map(read, closed.jaxpr.outvars))
        return [x if x.over and k in untaken and uses[a] == 1 and x.want == want else Part(self.cut(x, want), want)
                for k, (x, a, want) in enumerate(zip(found, closed.jaxpr.outvars, outs, strict=True))]

    def _propagated(self, closed: ClosedJaxpr, ins: Sequence[Cut], outs: Sequence[Cut]) -> dict[Var, Cut]:
        """How each variable of a program is to be cut, given its arguments and results."""
        graph = Propagation(self.mesh)

        def fixed(aval: ShapedArray, cut: Cut) -> ShardedValue:
            return graph.value(aval, NamedSharding(self.mesh, PartitionSpec(*cut)))

        args = [fixed(a, c) for a, c in zip(closed.in_avals, ins, strict=True)]
        values = graph.values(closed.jaxpr, closed.consts, args)
        for atom, cut in zip(closed.jaxpr.outvars, outs, strict=True):
            if isinstance(atom, Var):
                as_result, dims = fixed(atom.aval, cut), identity(atom.aval.ndim)
                graph.links.append(Link([(values[atom], dims), (as_result, dims)]))
        graph.run()
        return {var: _cut_of(completed(self.mesh, var.aval, value.spec()).spec, var.aval.ndim)
                for var, value in values.items()}

    def part(self, aval: ShapedArray, cut: Cut) -> ShapedArray:
        """The type of a part."""
        return part_of(aval, PartitionSpec(*cut), self.sizes, False)

    def summed(self, x: Part) -> Part:
        """The same value with its sum taken."""
        if x.over:
            before, current.source = current.source, x.source
            total = apply(x.value, steps(x.cut, x.want, x.over, "add"), self.sizes)
            current.source = before
            x.cut, x.over, x.others = x.want, (), {x.want: total}
        return x

    def cut(self, x: Part, want: Cut) -> Any:
        """The part of the same value that is cut so."""
        self.summed(x)
        if want not in x.others:
            x.others[want] = apply(x.value, steps(x.cut, want), self.sizes)
        return x.others[want]

    def given(self, x: Part, as_left: Left) -> Any:
        """The part of a value that is cut so; where that is a sum, the first device has it, and the others zeros."""
        value = self.cut(x, as_left.cut)
        if not as_left.over:
            return value
        first = broadcast(eq(flat_index(as_left.over), np.int32(0)), aval_of(value).shape)
        return select(first, value, zeros_like(value))

    # ------------------------------------------------------------ equations

    def equation(self, eqn: Eqn, operands: Sequence[Part], wanted: Sequence[Cut]) -> Sequence[Part]:
        """The results of an equation, cut as is wanted."""
        primitive, params = eqn.primitive, eqn.params
        avals, outs = [a.aval for a in eqn.invars], [v.aval for v in eqn.outvars]
        if isinstance(primitive, ShardMap):
            return self._mapped(eqn, operands, wanted)
        if primitive.places(params):  # the identity
            return [Part(self.cut(x, want), want) for x, want in zip(operands, wanted, strict=True)]
        if primitive.distribute is not None:
            new, ins, left = primitive.distribute(self, [x.cut for x in operands], wanted, **params)
            found = primitive.bind(*map(self.given, operands, ins), **new)
            return [Part(x, a.cut, a.over, want, a.source) if a.over else Part(self.cut(Part(x, a.cut), want), want)
                    for x, a, want in zip(found, left, wanted, strict=True)]
        rule = primitive.sharding_rule(avals, outs, **params)
        if rule is not None:
            return self._by_rule(eqn, rule, operands, wanted)
        if primitive.body is not None and not (primitive.on_words or primitive.inner(params)):
            return self.run(primitive.body(params, avals), operands, wanted, range(len(wanted)))
        return self._whole(eqn, operands, wanted)

    def _by_rule(self, eqn: Eqn, rule: ShardingRule, operands: Sequence[Part],
                 wanted: Sequence[Cut]) -> Sequence[Part]:
        avals, outs = [a.aval for a in eqn.invars], [v.aval for v in eqn.outvars]
        way = best_way(rule, avals, outs, [x.cut for x in operands], wanted, self.sizes)
        ins = [self.part(a, c) for a, c in zip(avals, way.operands, strict=True)]
        made = [self.part(a, c) for a, c in zip(outs, way.results, strict=True)]
        params = eqn.primitive.on_parts(eqn.params, ins, made)
        found = eqn.primitive.bind(*map(self.cut, operands, way.operands), **params)
        if not eqn.primitive.multiple_results:
            found = [found]
            if way.over and rule.combines == "add":
                return [Part(found[0], way.results[0], way.over, wanted[0], current.source)]
        plans = [steps(c, want, way.over, rule.combines) for c, want in zip(way.results, wanted, strict=True)]
        return [Part(apply(x, plan, self.sizes), want) for x, plan, want in zip(found, plans, wanted, strict=True)]

    def _on_sums(self, eqn: Eqn, operands: Sequence[Part], wanted: Sequence[Cut]) -> Sequence[Part] | None:
        """The result of a linear operation on sums that are still to be taken, as such a sum: one is taken in place of
        several. None where it is not linear, would need parts that are cut otherwise, or makes more to be sent."""
        if not (eqn.primitive.linear or isinstance(eqn.primitive, Movement)) or eqn.primitive.multiple_results:
            return None
        avals, out = [a.aval for a in eqn.invars], eqn.outvars[0].aval
        rule, have = eqn.primitive.sharding_rule(avals, [out], **eqn.params), [x.cut for x in operands]
        if rule is None or any(x.over != operands[0].over for x in operands) or out.dtype != avals[0].dtype:
            return None
        way = best_way(rule, avals, [out], have, wanted, self.sizes)
        sent = [bytes_of(a, c, self.sizes) for a, c in zip((out, *avals), (way.results[0], *have), strict=True)]
        if way.operands != have or way.over or sent[0] > sum(sent[1:]):
            return None
        if eqn.primitive.places(eqn.params):  # the identity
            found = operands[0].value
        else:
            params = eqn.primitive.on_parts(eqn.params, list(map(self.part, avals, have)),
                                            [self.part(out, way.results[0])])
            found = eqn.primitive.bind(*(x.value for x in operands), **params)
        return [Part(found, way.results[0], operands[0].over, wanted[0], operands[0].source)]

    def _whole(self, eqn: Eqn, operands: Sequence[Part], wanted: Sequence[Cut]) -> Sequence[Part]:
        """Computes on whole operands, on every device."""
        alone = erased(ClosedJaxpr(Jaxpr([], list(dict.fromkeys(a for a in eqn.invars if isinstance(a, Var))),
                                         eqn.outvars, [eqn], eqn.effects)))
        given = {a: self.cut(x, ((),) * len(x.cut)) for a, x in zip(eqn.invars, operands, strict=True)
                 if isinstance(a, Var)}
        found = eval_jaxpr(alone.jaxpr, (), *given.values())
        return [Part(self.cut(Part(x, ((),) * len(want)), want), want) for x, want in zip(found, wanted, strict=True)]

    def _mapped(self, eqn: Eqn, operands: Sequence[Part], wanted: Sequence[Cut]) -> Sequence[Part]:
        """A function that is mapped over all axes of this mesh is as it is; another, the program that it stands for."""
        p = eqn.params
        if p["mesh"].shape_tuple != self.mesh.shape_tuple or len(p["newly_manual_axes"]) < len(self.sizes):
            body = erased(eqn.primitive.body(p, [a.aval for a in eqn.invars]))  # type: ignore[misc]
            return self.run(body, operands, wanted, range(len(wanted)))
        args = [self.cut(x, _cut_of(s, len(x.cut))) for x, s in zip(operands, p["in_specs"], strict=True)]
        program = untyped(p["jaxpr"])
        outs = eval_jaxpr(program.jaxpr, program.consts, *args)
        return [Part(self.cut(Part(x, _cut_of(s, len(want))), want), want)
                for x, s, want in zip(outs, p["out_specs"], wanted, strict=True)]


def _plain(aval: ShapedArray) -> ShapedArray:
    return ShapedArray(aval.shape, aval.dtype, aval.weak_type)


# ---------------------------------------------------------------- one operation


class Way(NamedTuple):
    """How an operation is done on parts: how operands and results are cut, and the axes `over` which results, of parts
    of what is combined, are still to be combined."""

    operands: Sequence[Cut]
    results: Sequence[Cut]
    over: Axes


def best_way(rule: ShardingRule, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], have: Sequence[Cut],
             want: Sequence[Cut], sizes: Mapping[Any, int]) -> Way:
    """The way that moves the fewest bytes, of those that cut factors as results are wanted, or as operands are."""
    ins: Terms = [(a.shape, d, c) for a, d, c in zip(avals, rule.operands, have, strict=True)]
    results: Terms = [(a.shape, d, c) for a, d, c in zip(outs, rule.results, want, strict=True)]
    kept = _cannot_be_cut(rule, outs)

    def way(order: Terms) -> Way:
        chosen = _chosen(order, [*ins, *results], kept, sizes)
        over = tuple(dict.fromkeys(n for f, axes in chosen.items() for n in axes
                                   if not any(f in dim for dim in results[0][1])))
        cuts = [_cut_by(shape, dims, chosen, sizes) for shape, dims, _ in (*ins, *results)]
        return Way(cuts[:len(ins)], cuts[len(ins):], over)  # type: ignore[arg-type]

    def cost(way: Way) -> float:
        before = [steps(c, new) for c, new in zip(have, way.operands, strict=True)]
        after = [steps(c, new, way.over, rule.combines) for c, new in zip(way.results, want, strict=True)]
        return sum(bytes_sent(bytes_of(a, c, sizes), plan, sizes)
                   for a, c, plan in (*zip(avals, have, before, strict=True),
                                      *zip(outs, way.results, after, strict=True)))

    ways = [way([*results, *ins]), way([*ins, *results]), way([*reversed(ins), *results])]
    return min(ways, key=cost)


def bytes_of(aval: ShapedArray, cut: Cut, sizes: Mapping[Any, int]) -> float:
    """The size of a part."""
    return aval.size * aval.dtype.itemsize / math.prod(sizes[n] for axes in cut for n in axes)


def _factors(terms: Iterable[Sequence[tuple[Any, ...]]]) -> list[set[Any]]:
    return [{f for dim in dims for f in dim} for dims in terms]


def _cannot_be_cut(rule: ShardingRule, outs: Sequence[ShapedArray]) -> frozenset[Any]:
    """The factors of which each device needs all: those that some result lacks, too, unless parts can be combined."""
    operands, results = _factors(rule.operands), _factors(rule.results)
    lacking = {f for f in set().union(*operands) if not all(f in r for r in results)}
    if rule.combines is not None and not any(a.dtype == bool_ for a in outs):
        lacking = {f for f in lacking if any(f in r for r in results) or not all(f in o for o in operands)}
    return rule.whole | rule.exchanged | rule.resized | lacking


def _chosen(order: Terms, terms: Terms, kept: frozenset[Any], sizes: Mapping[Any, int]) -> dict[Any, Axes]:
    """Along which axes each factor is cut: as the first in `order` that has it, as far as all can be cut so."""
    chosen: dict[Any, Axes] = {}
    for shape, dims, cut in order:
        value = ShardedValue(shape)
        value.axes = list(cut)
        for factor, axes in projected(sizes, value, dims).items():
            while axes and factor not in kept and not chosen.get(factor):
                trial = {**chosen, factor: axes}
                if all(_cut_by(s, d, trial, sizes) is not None for s, d, _ in terms if any(factor in f for f in d)):
                    chosen = trial
                axes = axes[:-1]
    return chosen


def _cut_by(shape: Sequence[int], dims: Sequence[tuple[Any, ...]], chosen: Mapping[Any, Axes],
            sizes: Mapping[Any, int]) -> Cut | None:
    """How a value is cut where its factors are; None if it cannot be."""
    found: list[Axes] = []
    for n, dim in zip(shape, dims, strict=True):
        mine: Axes = ()
        whole = False  # whether a factor before has more than one element in each part
        for factor in dim:
            axes = chosen.get(factor, ())
            parts = math.prod(sizes[name] for name in axes)
            size = factor.size if isinstance(factor, Factor) else n
            if axes and (whole or size % parts):
                return None
            whole = whole or parts != size
            mine += axes
        found.append(mine)
    names = [name for axes in found for name in axes]
    return tuple(found) if len(set(names)) == len(names) else None
