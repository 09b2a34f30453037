"""Large arrays between products of matrices, made and used up by blocks of rows.

    s = dot_general q k                               for each block of rows of q and o:
    p = exp s;  t = reduce_sum[axes=(1,)] p    ->         s = dot_general q k;  p = exp s;  t = reduce_sum[axes=(1,)] p
    o = dot_general (div p t) v                           o = dot_general (div p t) v

Scores of attention, kernels and distances of all pairs of points are much larger than what they are made of, and than
what becomes of them. Whole, they go through memory once for each equation; a block stays in a cache. Which dimensions
of operands and results go together the operations' `sharding_rule` says. The method is that of Rabe and Staats,
"Self-attention does not need O(n^2) memory" (2021).

After this pass no array of `LEAST` bytes lies between a product that makes it of small ones and reductions of its rows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from anima.compiler.rewriting.inline import has_programs, map_programs
from anima.compiler.rewriting.simplify import dead_code, simplify
from anima.control.scan import scan_p
from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var, subjaxprs
from anima.core.sharding_rules import ShardingRule, dims
from anima.core.stage import literal_array, trace_to_jaxpr
from anima.core.state import current
from anima.core.trace import EVAL, under
from anima.ops import elementwise
from anima.ops.broadcast import broadcast_in_dim_p, broadcasted_iota, iota, iota_p, reduce_sum_p
from anima.ops.contract import dot_general_p
from anima.ops.elementwise import add, convert_element_type, div, mul, rem
from anima.ops.family import Elementwise
from anima.ops.index import dynamic_slice
from anima.ops.reduce import reduce_and_p, reduce_max_p, reduce_min_p, reduce_or_p, reduce_prod_p
from anima.ops.shape import concatenate, reshape, slice_in_dim, transpose, transpose_p

LEAST = 1 << 24   # bytes of an array between products from which it is made by blocks
BLOCK = 1 << 20   # bytes of a block, about: what a core has a cache of its own for
ROWS = 32         # of a block, at least: products of fewer take longer
BLOCKS = 4        # of an array, at least
CONTRACTED = 256  # by the first product, at most: if it is more, arithmetic takes longer than memory does
_FOLLOWED = frozenset((reduce_sum_p, reduce_max_p, reduce_min_p, reduce_prod_p, reduce_and_p, reduce_or_p, transpose_p,
                       broadcast_in_dim_p, iota_p, dot_general_p))

_MAKING = frozenset((broadcast_in_dim_p, iota_p))  # what makes arrays of less

Cut = tuple["int | None", ...]  # for each dimension of an array, which of a region's dimensions it is


def blocks(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Makes large arrays between products by blocks, in a program and those of its loops and branches."""
    return _changed(dead_code(simplify(closed))) if _has_any(closed.jaxpr) else closed


def _has_any(jaxpr: Jaxpr | ClosedJaxpr) -> bool:
    """Whether there is a region to look at, in loops and branches, too."""
    return any(_may_begin(e) or any(map(_has_any, subjaxprs(e.params))) for e in jaxpr.eqns)


def _changed(closed: ClosedJaxpr) -> ClosedJaxpr:
    jaxpr = closed.jaxpr
    eqns = [e.replace(params=map_programs(e.params, _changed)) if has_programs(e.params) else e for e in jaxpr.eqns]
    consts, constvars = [*closed.consts], [*jaxpr.constvars]
    changed = any(a is not b for a, b in zip(eqns, jaxpr.eqns, strict=True))
    for first in [e for e in eqns if _may_begin(e)]:
        for region in _regions(eqns, first, jaxpr.outvars):
            program = region.program()
            eqns = _with(eqns, region, program)
            consts, constvars, changed = [*consts, *program.consts], [*constvars, *program.jaxpr.constvars], True
            break
    return ClosedJaxpr(jaxpr.replace(constvars=constvars, eqns=eqns), consts) if changed else closed


def _may_begin(eqn: Eqn) -> bool:
    """Whether an equation is a product that makes a large array of small ones."""
    if eqn.primitive is not dot_general_p or _bytes(eqn.outvars[0]) < LEAST:
        return False
    x, y = (a.aval for a in eqn.invars)
    contracted = math.prod(x.shape[a] for a in eqn.params["dimension_numbers"][0][0])
    return contracted <= CONTRACTED and 4 * max(x.size, y.size) <= eqn.outvars[0].aval.size


def _bytes(atom: Atom) -> int:
    return atom.aval.size * atom.aval.dtype.itemsize


class _Member(NamedTuple):
    """An equation of a region: how its operands and results are cut."""

    eqn: Eqn
    operands: list[Cut]
    results: list[Cut]


class _Region:
    """Equations from a product on, each of which can be done by blocks along some dimensions of its result."""

    def __init__(self, first: Eqn, dimensions: Sequence[int]) -> None:
        shape = first.outvars[0].aval.shape
        self.sizes = [shape[d] for d in dimensions]
        self.large = _bytes(first.outvars[0]) // 4  # bytes from which an array must not leave the region
        self.cuts: dict[Var, Cut] = {}
        self.members: list[_Member] = []
        self.late: set[Var] = set()  # what depends on the region, and is not in it
        self.parts = self._parts(_bytes(first.outvars[0]) // math.prod(self.sizes))
        cut = tuple([list(dimensions).index(d) if d in dimensions else None for d in range(len(shape))])
        self.take(first, {}, {k: d for k, d in enumerate(cut) if d is not None})

    def _parts(self, row: int) -> list[int]:
        """How much of each dimension a block has, if rows have so many bytes."""
        room, parts = max(BLOCK // row, ROWS), []
        for size in reversed(self.sizes):
            parts.append(-(-size // max(1, size // room)))
            room = max(1, room // size)
        return parts[::-1]

    def pays(self) -> bool:
        """Whether blocks have enough rows, and there are enough of them."""
        rows = math.prod(self.parts)
        return rows >= ROWS and math.prod(self.sizes) >= BLOCKS * rows

    def take(self, eqn: Eqn, known: dict[Any, int], seed: dict[int, int] | None = None) -> bool:
        """Adds an equation, if its rule lets it be done by blocks. `seed`: which dimensions of its result these are."""
        if eqn.effects or len(eqn.outvars) > 1 or not (
                isinstance(eqn.primitive, Elementwise) or eqn.primitive in _FOLLOWED):
            return False
        ins, outs = [a.aval for a in eqn.invars], [v.aval for v in eqn.outvars]
        rule = (ShardingRule([], [dims(*range(outs[0].ndim))]) if eqn.primitive is iota_p else
                eqn.primitive.sharding_rule(ins, outs, **eqn.params))
        if rule is None:
            return False
        places = [(rule.results[0], dict(seed))] if seed is not None else [
            (labels, {k: d for k, d in enumerate(self.cuts[a]) if d is not None})
            for a, labels in zip(eqn.invars, rule.operands, strict=True) if isinstance(a, Var) and a in self.cuts]
        for labels, cut in places:
            for k, d in cut.items():
                if len(labels[k]) != 1 or known.setdefault(labels[k][0], d) != d:
                    return False
        if set(known) & (rule.whole | rule.exchanged | rule.resized) or len(set(known.values())) < len(known):
            return False
        operands, results = ([tuple([known.get(label[0]) if len(label) == 1 else None for label in labels])
                              for labels in terms] for terms in (rule.operands, rule.results))
        if any(set(known.values()) != {d for d in cut if d is not None} for cut in results):
            return False  # what a result lacks would have to be added up over blocks
        self.members.append(_Member(eqn, operands, results))
        self.cuts.update(zip(eqn.outvars, results, strict=True))
        return True

    def grow(self, eqns: Sequence[Eqn], results: Sequence[Atom]) -> bool:
        """Adds the equations after the first one, as far as large arrays are needed; False if that cannot be."""
        large = set(self.members[0].eqn.outvars)
        last = max((n for n, e in enumerate(eqns) if large & {*_variables(e)}), default=-1)
        number = 0
        while number <= last:
            eqn = eqns[number]
            number += 1
            ins = {*_variables(eqn)}
            if not ins & (self.cuts.keys() | self.late):
                continue
            if ins & self.late or not self.take(eqn, {}):
                if ins & large:
                    return False
                self.late.update(eqn.outvars)
                continue
            more = {v for v in eqn.outvars if _bytes(v) >= self.large}
            large |= more
            last = max((n for n, e in enumerate(eqns) if n > last and more & {*_variables(e)}), default=last)
        self._reach_back(eqns, results)
        left = {*(a for a in results if isinstance(a, Var)), *(a for e in self.outside(eqns) for a in _variables(e))}
        self.exports = [v for m in self.members for v in m.eqn.outvars if v in left]
        return len(self.members) > 2 and not large & {*self.exports} and sum(map(_bytes, self.exports)) <= self.large

    def _reach_back(self, eqns: Sequence[Eqn], results: Sequence[Atom]) -> None:
        """Adds what makes large operands of the region, such as masks, of smaller ones or element by element."""
        wanted: dict[Atom, set[Cut]] = {}
        inside: Counter[Atom] = Counter()  # how many members use it
        users = Counter(a for e in eqns for a in {*_variables(e)})
        users.update(a for a in results if isinstance(a, Var))

        def note(member: _Member) -> None:
            inside.update({*_variables(member.eqn)})
            for a, cut in zip(member.eqn.invars, member.operands, strict=True):
                if a not in self.cuts:
                    wanted.setdefault(a, set()).add(cut)

        for member in self.members:
            note(member)
        for eqn in reversed(eqns):
            for v in {*eqn.outvars} & wanted.keys():
                seed = {k: d for k, d in enumerate(min(wanted[v])) if d is not None} if len(wanted[v]) == 1 else {}
                alone = isinstance(eqn.primitive, Elementwise) and inside[v] == users[v]
                if (seed and _bytes(v) >= self.large and (alone or eqn.primitive in _MAKING)
                        and self.take(eqn, {}, seed)):
                    note(self.members[-1])
        order = {v: n for n, e in enumerate(eqns) for v in e.outvars}
        self.members.sort(key=lambda m: order[m.eqn.outvars[0]])

    def outside(self, eqns: Sequence[Eqn]) -> Iterator[Eqn]:
        """The other equations."""
        inside = {id(m.eqn) for m in self.members}
        return (e for e in eqns if id(e) not in inside)

    def program(self) -> ClosedJaxpr:
        """The region as a program: its arguments are `operands`, its results `exports`."""
        made = {v for m in self.members for v in m.eqn.outvars}
        self.operands = list(dict.fromkeys(a for m in self.members for a in m.eqn.invars
                                           if isinstance(a, Var) and a not in made))
        return ClosedJaxpr(*under(EVAL, trace_to_jaxpr, self._run, [v.aval for v in self.operands]))

    def _run(self, *operands: Any) -> list[Any]:
        counts = [-(-n // part) for n, part in zip(self.sizes, self.parts, strict=True)]
        steps = math.prod(counts)

        def step(*args: Any) -> list[Any]:
            places, rest = [], args[-1]
            for count, part, size in zip(reversed(counts), reversed(self.parts), reversed(self.sizes), strict=True):
                place = mul(rem(rest, np.int32(count)), np.int32(part))
                places.append(elementwise.min(place, np.int32(size - part)) if size % part else place)
                rest = div(rest, np.int32(count))
            return self._block(dict(zip(self.operands, args, strict=False)), places[::-1])

        number = iota(np.dtype(np.int32), steps)
        body = ClosedJaxpr(*trace_to_jaxpr(step, [*(v.aval for v in self.operands), number.aval.update(shape=())]))
        outs = scan_p.call(body, operands, [], [number], length=steps, reverse=False, unroll=1)
        return [self._whole(x, v, counts) for x, v in zip(outs, self.exports, strict=True)]

    def _block(self, env: dict[Var, Any], places: Sequence[Any]) -> list[Any]:
        """The exports' parts of a block that begins there."""
        read: dict[tuple[Var, Cut], Any] = {}
        for eqn, cuts, made in self.members:
            current.source = eqn.source
            parts = []
            for a, cut in zip(eqn.invars, cuts, strict=True):
                if isinstance(a, Literal):
                    parts.append(literal_array(a))
                elif a in self.cuts or all(d is None for d in cut):
                    parts.append(env[a])
                else:
                    if (a, cut) not in read:
                        starts = [np.int32(0) if d is None else places[d] for d in cut]
                        read[a, cut] = dynamic_slice(env[a], starts, self._shape(a, cut), allow_negative_indices=False)
                    parts.append(read[a, cut])
            params, out = eqn.params, eqn.outvars[0]
            if eqn.primitive is iota_p:
                d, shape = made[0][params["dimension"]], self._shape(out, made[0])
                count = broadcasted_iota(np.int32, shape, params["dimension"])
                env[out] = convert_element_type(count if d is None else add(count, places[d]), out.aval.dtype)
                continue
            if eqn.primitive is broadcast_in_dim_p:
                params = params | {"shape": self._shape(out, made[0])}
            env[out] = eqn.primitive.bind(*parts, **params)
        return [env[v] for v in self.exports]

    def _whole(self, x: Any, export: Var, counts: Sequence[int]) -> Any:
        """An array of the blocks of all steps. Where they do not come out even, the last one has some rows that the one
        before has, too."""
        cut, shape = self.cuts[export], export.aval.shape
        x = reshape(x, (*counts, *self._shape(export, cut)))
        order = [axis for k, d in enumerate(cut) for axis in (*([] if d is None else [d]), len(counts) + k)]
        x = reshape(transpose(x, order), [n if d is None else counts[d] * self.parts[d]
                                          for n, d in zip(shape, cut, strict=True)])
        for axis, d in enumerate(cut):
            if d is not None and shape[axis] < x.shape[axis]:
                last = x.shape[axis] - self.parts[d]
                again = x.shape[axis] - shape[axis]
                x = concatenate([slice_in_dim(x, 0, last, axis=axis), slice_in_dim(x, last + again, None, axis=axis)],
                                axis)
        return x

    def _shape(self, atom: Atom, cut: Cut) -> tuple[int, ...]:
        return tuple([n if d is None else self.parts[d] for n, d in zip(atom.aval.shape, cut, strict=True)])


def _variables(eqn: Eqn) -> Iterator[Var]:
    return (a for a in eqn.invars if isinstance(a, Var))


def _regions(eqns: Sequence[Eqn], first: Eqn, results: Sequence[Atom]) -> Iterator[_Region]:
    """Those that begin with a product: by its batches and the rows of its first operand, or of its second one."""
    (_, contracted), (batch, _) = first.params["dimension_numbers"]
    x, y = (a.aval for a in first.invars)
    ends = [0, len(batch), x.ndim - len(contracted), x.ndim + y.ndim - 2 * len(contracted) - len(batch)]
    batches, rows, columns = (range(*ends_of) for ends_of in pairwise(ends))
    for dimensions in ((*batches, *rows), (*batches, *columns)):
        region = _Region(first, dimensions)
        if region.members and region.pays() and region.grow(eqns, results):
            yield region


def _with(eqns: Sequence[Eqn], region: _Region, program: ClosedJaxpr) -> list[Eqn]:
    """The equations with a region's program in its place: after what it needs, before what needs it."""
    names: dict[Any, Var] = dict(zip(program.jaxpr.invars, region.operands, strict=True))
    names.update(zip(program.jaxpr.outvars, region.exports, strict=True))
    made = [e.replace(invars=[a if isinstance(a, Literal) else names.get(a, a) for a in e.invars],
                      outvars=[names.get(v, v) for v in e.outvars]) for e in program.jaxpr.eqns]
    before: list[Eqn] = []
    after: list[Eqn] = []
    known: Collection[Var] = {*region.exports}
    for eqn in region.outside(eqns):
        if any(a in known for a in _variables(eqn)):
            known = {*known, *eqn.outvars}
            after.append(eqn)
        else:
            before.append(eqn)
    return [*before, *made, *after]
