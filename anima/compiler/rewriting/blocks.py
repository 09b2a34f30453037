"""Large arrays between products of matrices, made and used up by blocks of rows, or matrix by matrix.

    s = dot_general q k                               for each block of rows of q and o:
    p = exp s;  t = reduce_sum[axes=(1,)] p    ->         s = dot_general q k;  p = exp s;  t = reduce_sum[axes=(1,)] p
    o = dot_general (div p t) v                           o = dot_general (div p t) v

Scores of attention, kernels and distances of all pairs of points are much larger than what they are made of, and than
what becomes of them. Whole, they go through memory once for each equation; a block stays in a cache. So do the matrices
of a batch, each by itself. Which dimensions go together, `sharding_rule` of the operations says. Method: Rabe
and Staats, "Self-attention does not need O(n^2) memory" (2021).

After this pass no array of `LEAST` bytes lies between a product that makes it of small ones and reductions of its rows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from anima.compiler.lowering import matrices
from anima.compiler.rewriting.inline import has_programs, map_programs
from anima.compiler.rewriting.simplify import dead_code, simplify
from anima.control.scan import scan_p
from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var, subjaxprs
from anima.core.sharding_rules import ShardingRule, dims
from anima.core.stage import bind_eqn, literal_array, trace_to_jaxpr
from anima.core.state import current
from anima.core.trace import EVAL, aval_of, under
from anima.ops import elementwise
from anima.ops.broadcast import broadcast_in_dim_p, broadcasted_iota, iota, iota_p
from anima.ops.contract import DotGeneral, dot_general_p
from anima.ops.elementwise import add, convert_element_type, div, mul, rem
from anima.ops.index import dynamic_slice
from anima.ops.linalg import Factorization, LuSolve, TriangularSolve
from anima.ops.shape import concatenate, reshape, slice_in_dim, transpose

LEAST = 1 << 24   # bytes of an array between products from which it is made by blocks
BLOCK = 1 << 20   # bytes of a block, about: what a core has a cache of its own for
ROWS = 32         # of a block, at least: products of fewer take longer
BLOCKS = 4        # of an array, at least
BATCH = 1 << 21   # bytes of a batch of matrices that is cut into these ...
MATRIX = 1 << 13  # ... which have as many bytes, at least
BATCHES = 16      # matrices, at least
SAVED = 3         # bytes that products and factors leave to each other, for each byte that a region gives
CONTRACTED = 256  # by the first product, at most: if it is more, arithmetic takes longer than memory does
_IN_LANES = Factorization, TriangularSolve, LuSolve
_OF_MATRICES = DotGeneral, *_IN_LANES

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
    firsts = [e for e in eqns if _may_begin(e)]
    known = _Equations(eqns if firsts else (), jaxpr.outvars)
    for first in firsts:
        region = known.region(first)
        around = None if region is None else known.around(region)
        if region is not None and around is not None:
            program = region.program()
            eqns = [*around[0], *region.named(program.jaxpr), *around[1]]
            known = _Equations(eqns, jaxpr.outvars)
            consts, constvars, changed = [*consts, *program.consts], [*constvars, *program.jaxpr.constvars], True
    return ClosedJaxpr(jaxpr.replace(constvars=constvars, eqns=eqns), consts) if changed else closed


def _may_begin(eqn: Eqn) -> bool:
    """Whether an equation can be the first of a region."""
    return next(_choices(eqn), None) is not None


def _choices(eqn: Eqn) -> Iterator[_Choice]:
    """How an equation's result may be cut: the rows, or the columns, of products that make large arrays of small ones,
    and batches of large matrices."""
    primitive, size = eqn.primitive, _bytes(eqn.outvars[0]) if eqn.outvars else 0
    if size < min(LEAST, BATCH) or not isinstance(primitive, _OF_MATRICES):
        return
    shape = eqn.outvars[0].aval.shape
    batches: Sequence[int] = range(len(shape) - 2)
    if primitive is dot_general_p:
        (contracted, _), (batch, _) = eqn.params["dimension_numbers"]
        x, y = (a.aval for a in eqn.invars)
        ends = [0, len(batch), x.ndim - len(contracted), x.ndim + y.ndim - 2 * len(contracted) - len(batch)]
        batches, rows, columns = (range(*ends_of) for ends_of in pairwise(ends))
        few = math.prod(x.shape[a] for a in contracted) <= CONTRACTED
        if few and size >= LEAST and 4 * max(x.size, y.size) <= math.prod(shape):
            for dimensions in ((*batches, *rows), (*batches, *columns)):
                yield _Choice(tuple([d for d in dimensions if shape[d] != 1]), ROWS, BLOCK, BLOCKS)
    count = math.prod([shape[d] for d in batches])
    if size >= max(BATCH, MATRIX * count):
        yield _Choice(tuple([d for d in batches if shape[d] != 1]), 1, size // count, BATCHES)


def _bytes(atom: Atom) -> int:
    return atom.aval.size * atom.aval.dtype.itemsize


class _Member(NamedTuple):
    """An equation of a region: how its operands and results are cut."""

    eqn: Eqn
    operands: list[Cut]
    results: list[Cut]


class _Equations:
    """The equations of a program: what each reads, where each variable is made and used last, and by how many."""

    def __init__(self, eqns: Sequence[Eqn], results: Sequence[Atom]) -> None:
        self.eqns = eqns
        self.reads = [{*_variables(e)} for e in eqns]
        self.places = {v: n for n, e in enumerate(eqns) for v in e.outvars}
        self.users = Counter(v for reads in self.reads for v in reads)
        self.last = dict.fromkeys(self.places, -1) | {v: n for n, reads in enumerate(self.reads) for v in reads}
        for result in results:
            if isinstance(result, Var):
                self.users[result] += 1
                self.last[result] = len(eqns)

    def region(self, first: Eqn) -> _Region | None:
        """The one that begins with an equation of these, if there is one."""
        number = self.places.get(first.outvars[0])
        if number is None or self.eqns[number] is not first:
            return None  # an earlier region has it
        for choice in _choices(first):
            region = _Region(first, choice)
            if region.members and region.pays() and region.grow(self):
                return region
        return None

    def around(self, region: _Region) -> tuple[list[Eqn], list[Eqn]] | None:
        """The other equations: those before the region, and those after it. They stay in order, but that what the
        region needs comes before it; None if that has effects."""
        inside = {id(m.eqn) for m in region.members} - region.twice
        needed = {*region.operands}
        for n in reversed(range(len(self.eqns))):
            if not needed.isdisjoint(self.eqns[n].outvars):
                needed |= self.reads[n]
        before: list[Eqn] = []
        after: list[Eqn] = []
        exports = {*region.exports}
        for eqn, reads in zip(self.eqns, self.reads, strict=True):
            if id(eqn) in inside:
                continue
            if after and not needed.isdisjoint(eqn.outvars) and eqn.effects:
                return None
            early = not needed.isdisjoint(eqn.outvars) or (not after and exports.isdisjoint(reads))
            (before if early else after).append(eqn)
        return before, after


class _Choice(NamedTuple):
    """Dimensions of a result to cut, how many of these rows a block has at least, bytes of it, about, and how many
    blocks there must be."""

    dimensions: tuple[int, ...]
    rows: int
    block: int
    blocks: int


class _Region:
    """Equations from one on, each of which can be done by blocks along some dimensions of its result."""

    def __init__(self, first: Eqn, choice: _Choice) -> None:
        shape, dimensions = first.outvars[0].aval.shape, choice.dimensions
        self.choice = choice
        self.sizes = [shape[d] for d in dimensions]
        self.large = _bytes(first.outvars[0]) // 2 + 1  # bytes from which an array must not leave the region,
        self.least = _bytes(first.outvars[0]) // 4      # and from which one is better made and used in it
        self.cuts: dict[Var, Cut] = {}
        self.members: list[_Member] = []
        self.late: set[Var] = set()  # what depends on the region, and is not in it
        self.twice: set[int] = set()  # ids of equations that stand outside of the region, too
        self.parts = self._parts(_bytes(first.outvars[0]) // math.prod(self.sizes))
        cut = tuple([list(dimensions).index(d) if d in dimensions else None for d in range(len(shape))])
        self.take(first, {}, {k: d for k, d in enumerate(cut) if d is not None})

    def _parts(self, row: int) -> list[int]:
        """How much of each dimension a block has, if rows have so many bytes."""
        room, parts = max(self.choice.block // row, self.choice.rows), []
        for size in reversed(self.sizes):
            parts.append(-(-size // max(1, size // room)))
            room = max(1, room // size)
        return parts[::-1]

    def pays(self) -> bool:
        """Whether blocks have enough rows, and there are enough of them."""
        rows = math.prod(self.parts)
        return rows >= self.choice.rows and math.prod(self.sizes) >= self.choice.blocks * rows

    def take(self, eqn: Eqn, known: dict[Any, int], seed: dict[int, int] | None = None, number: int = 0) -> bool:
        """Adds an equation, if its rule lets it be done by blocks. `seed`: which dimensions of one of its results these
        are."""
        if isinstance(eqn.primitive, _IN_LANES) and max(eqn.invars[0].aval.shape[-2:]) <= matrices.LARGE:
            return False  # one of a batch takes much longer than its share of all
        if eqn.effects or not all(isinstance(a.aval.dtype, np.dtype) for a in (*eqn.invars, *eqn.outvars)):
            return False
        ins, outs = [a.aval for a in eqn.invars], [v.aval for v in eqn.outvars]
        rule = (ShardingRule([], [dims(*range(outs[0].ndim))]) if eqn.primitive is iota_p else
                eqn.primitive.sharding_rule(ins, outs, **eqn.params))
        if rule is None:
            return False
        places = [(rule.results[number], dict(seed))] if seed is not None else [
            (labels, {k: d for k, d in enumerate(self.cuts[a]) if d is not None})
            for a, labels in zip(eqn.invars, rule.operands, strict=True) if isinstance(a, Var) and a in self.cuts]
        for labels, cut in places:
            for k, d in cut.items():
                if (len(labels[k]) != 1 or getattr(labels[k][0], "size", self.sizes[d]) != self.sizes[d]
                        or known.setdefault(labels[k][0], d) != d):
                    return False
        merged = {label for labels in (*rule.operands, *rule.results) for several in labels if len(several) > 1
                  for label in several}
        if set(known) & (rule.whole | rule.exchanged | rule.resized | merged) or len({*known.values()}) < len(known):
            return False
        operands, results = ([tuple([known.get(label[0]) if len(label) == 1 else None for label in labels])
                              for labels in terms] for terms in (rule.operands, rule.results))
        if any(set(known.values()) != {d for d in cut if d is not None} for cut in results):
            return False  # what a result lacks would have to be added up over blocks
        self.members.append(_Member(eqn, operands, results))
        self.cuts.update(zip(eqn.outvars, results, strict=True))
        return True

    def grow(self, known: _Equations) -> bool:
        """Adds the equations after the first one, as far as large arrays are needed; False if that cannot be."""
        large = set(self.members[0].eqn.outvars)
        number = known.places[self.members[0].eqn.outvars[0]] + 1
        last = max(known.last[v] for v in large)
        while number <= min(last, len(known.eqns) - 1):
            eqn, ins = known.eqns[number], known.reads[number]
            number += 1
            if not any(v in self.cuts or v in self.late for v in ins):
                continue
            if any(v in self.late for v in ins) or not self.take(eqn, {}):
                if ins & large:
                    return False
                self.late.update(eqn.outvars)
                continue
            large |= {v for v in eqn.outvars if _bytes(v) >= self.large}
            last = max([last, *(known.last[v] for v in eqn.outvars if _bytes(v) >= self.least)])
        self._reach_back(known)
        inside = Counter(v for m in self.members if id(m.eqn) not in self.twice for v in {*_variables(m.eqn)})
        self.exports = [v for m in self.members if id(m.eqn) not in self.twice
                        for v in m.eqn.outvars if inside[v] < known.users[v]]
        kept = {v for m in self.members if isinstance(m.eqn.primitive, _OF_MATRICES)
                for v in (*_variables(m.eqn), *m.eqn.outvars) if v in large}
        return (len(self.members) > 2 and not large & {*self.exports}
                and SAVED * sum(map(_bytes, self.exports)) <= sum(map(_bytes, kept)))

    def _reach_back(self, known: _Equations) -> None:
        """Adds what makes large operands of the region, such as masks, of smaller ones or for the region alone."""
        wanted: dict[Atom, set[Cut]] = {}
        inside: Counter[Atom] = Counter()  # how many members use it, of those that stand in the region alone

        def note(member: _Member) -> None:
            if id(member.eqn) not in self.twice:
                inside.update({*_variables(member.eqn)})
            for a, cut in zip(member.eqn.invars, member.operands, strict=True):
                if a not in self.cuts:
                    wanted.setdefault(a, set()).add(cut)

        for member in self.members:
            note(member)
        for eqn in reversed(known.eqns):
            for number, v in enumerate(eqn.outvars):
                cuts = wanted.get(v, set())
                seed = {k: d for k, d in enumerate(min(cuts)) if d is not None} if len(cuts) == 1 else {}
                alone = len(seed) == len(self.sizes) and all(inside[one] == known.users[one] for one in eqn.outvars)
                if (seed and _bytes(v) >= self.least and (alone or eqn.primitive in _MAKING)
                        and self.take(eqn, {}, seed, number)):
                    if not alone:
                        self.twice.add(id(eqn))
                    note(self.members[-1])
                    break
        self.members.sort(key=lambda m: known.places[m.eqn.outvars[0]])
        self.operands = list(dict.fromkeys(a for m in self.members for a in _variables(m.eqn) if a not in self.cuts))

    def named(self, jaxpr: Jaxpr) -> list[Eqn]:
        """The equations of the region's program with the names that operands and results have around it."""
        names: dict[Any, Var] = dict(zip(jaxpr.invars, self.operands, strict=True))
        names.update(zip(jaxpr.outvars, self.exports, strict=True))
        return [e.replace(invars=[a if isinstance(a, Literal) else names.get(a, a) for a in e.invars],
                          outvars=[names.get(v, v) for v in e.outvars]) for e in jaxpr.eqns]

    def program(self) -> ClosedJaxpr:
        """The region as a program: its arguments are `operands`, its results `exports`."""
        return ClosedJaxpr(*under(EVAL, trace_to_jaxpr, self._run, [v.aval for v in self.operands]))

    def _run(self, *operands: Any) -> list[Any]:
        current.source = self.members[-1].eqn.source
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
            types = [v.aval.update(shape=self._shape(v, cut)) for v, cut in zip(eqn.outvars, made, strict=True)]
            params = eqn.primitive.on_parts(params, [aval_of(x) for x in parts], types)
            env.update(zip(eqn.outvars, bind_eqn(eqn.replace(params=params), parts), strict=True))
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
