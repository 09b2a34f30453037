"""Which values go to memory: the roots, computed as a whole, and the views that share a root's memory.

    a = exp x;  b = a + 1;  c = sum a        a is costly and used twice: a root
    d = x + 1;  e = d * 2                     d is folded into e
    f = reshape e                             f is e's memory under another shape

An equation is a root if it is a result, if its users need it in memory, or if it is costly and would be
computed more than once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from anima.compiler.ir.groups import LARGE, LOAD, MOST_BOXES, PIECES, TURNS
from anima.compiler.lowering.array import AT, is_elementwise, not_lowered
from anima.compiler.lowering.calls import CALLS, INLINE_OPERANDS
from anima.compiler.lowering.reduce import REDUCTIONS
from anima.compiler.machine.target import Target
from anima.compiler.scheduling.reductions import form
from anima.core.jaxpr import Atom, Eqn, Jaxpr, Var
from anima.ops.broadcast import broadcast_in_dim_p

CHEAP = 6              # scalar operations that may be done again rather than stored
LOOKUP = 7             # the cost of an element that is looked up
OFTEN = 4              # unless they read several arrays, and each of many results is used that many times
FAR = 1 << 23          # bytes of an array that caches do not hold, so that storing it costs
FAR_CHEAP = 40         # as many scalar operations as this
DEEP = 40              # longest chain of folded equations that are not elementwise
PADDED = 3             # a padded array that is read this many times is made as a whole: looking for its ends costs
JOINED = 12            # and so is one that is joined, as there is a kernel for each box that cuts leave
VECTOR = 4             # a short array, of a part and ends that are so much shorter, is a vector of its own
SPREAD = 16            # most equations and sources of an array that is cut where it is stretched from them
CONCATENATED = 3       # most operands of a concatenation that is folded into its consumer

SHORT = 64             # most elements of a row for which a costly value is worth being computed apart, in vectors ...
MANY = 64              # ... if there are so many of them: before the loop over a row, it would be one at a time
POLYNOMIAL = 10        # the cost of functions that are polynomials, written in line: instructions are more


def kind_of(eqn: Eqn, target: Target) -> str:
    """How an equation is lowered: "map" (a value at each index), "reduce" or "call"."""
    name = eqn.primitive.name
    if is_elementwise(eqn):
        return "map"
    if name in REDUCTIONS:
        return "map" if form(eqn.invars[0].aval.shape, eqn.params["axes"], target) == "unrolled" else "reduce"
    if name in CALLS:
        return "call"
    if name in AT:
        return "map"
    raise not_lowered(eqn)


@dataclass(slots=True)
class _Use:
    """How a variable is used: by which kernels' roots, in which parts that have loops of their own (an equation's id
    and the operand's place), how many times each element, by how many shapings; whether by maps alone, at the index of
    their result (or the index less a constant, in `halves` of a block); whether each element is that of a short row."""

    roots: set[int] = field(default_factory=set)
    parts: set[tuple[int, int]] = field(default_factory=set)
    evaluations: float = 0.0
    moved: int = 0
    same: bool = False
    forced: bool = False
    direct: bool = True
    rows: bool = False


def cost_of(eqn: Eqn) -> int:
    """Scalar operations for one element of the result, its operands aside."""
    if eqn.primitive.name in REDUCTIONS:
        return 2 * math.prod(eqn.invars[0].aval.shape[a] for a in eqn.params["axes"])
    return LOOKUP if _looks_up(eqn) else math.ceil(eqn.primitive.cost)


def _looks_up(eqn: Eqn) -> bool:
    """Whether each element of the result is looked up at a place of its own."""
    return (eqn.primitive.name == "gather"
            and eqn.outvars[0].aval.ndim - 1 not in eqn.params["dimension_numbers"].offset_dims)


def size_of(eqn: Eqn) -> int:
    """Instructions for one element of the result, about."""
    cost = cost_of(eqn)
    return min(6 * cost, 120) if is_costly(eqn) else max(cost, 1)


def is_costly(eqn: Eqn) -> bool:
    """Whether an equation is a function that is worth the lanes of a vector."""
    return eqn.primitive.cost >= POLYNOMIAL and is_elementwise(eqn)


def materialise(jaxpr: Jaxpr, kinds: dict[int, str], parts: set[int], early: Iterable[Var] = ()
                ) -> tuple[dict[Var, Var], set[Var], set[int]]:
    """Views of other variables, variables to be computed as a whole (those in `early` among them), and positions of
    the equations that do (roots). `parts` are those of `in_parts`."""
    results = {v for v in jaxpr.outvars if type(v) is Var}
    producers = {v: e for e in jaxpr.eqns if kinds[id(e)] == "map" for v in e.outvars}
    trees = _Trees(jaxpr, kinds, results, parts, producers)
    costly = _costly(jaxpr, kinds, results | trees.ends)
    uses = {v: _Use(forced=True) for v in (*results, *early)}
    views: dict[Var, Var] = {}
    stored: set[Var] = set()
    roots: set[int] = set()
    given = {*jaxpr.invars, *jaxpr.constvars}
    for number in range(len(jaxpr.eqns) - 1, -1, -1):
        eqn = jaxpr.eqns[number]
        used = [v for v in eqn.outvars if v in uses]
        if not used and not eqn.effects:
            continue
        kind = kinds[id(eqn)]
        use = _joined([uses[v] for v in used])
        root = kind != "map" or _wants_memory(used[0], use, trees, costly) or (
            (times := _may_be_read(eqn)) and use.evaluations >= times * used[0].aval.size > times)
        if root and not use.forced and eqn.primitive is broadcast_in_dim_p and type(eqn.invars[0]) is Var:
            uses.setdefault(eqn.invars[0], _Use()).forced = True  # that is the same, and less of it
        elif root and is_view(eqn) and type(whole := eqn.invars[0]) is Var and not (
                whole not in uses and _is_apart(producers.get(whole))):
            views[eqn.outvars[0]] = whole
            uses.setdefault(whole, _Use()).forced = True
        elif root:
            stored.update(eqn.outvars)
            roots.add(number)
            use = _Use({number}, evaluations=1.0 * _work(eqn, kind), direct=kind == "map")
            _note_operands(eqn, uses, use, kind, producers, parts)
        else:
            _note_operands(eqn, uses, use, kind, producers, parts)
    for var in given:
        stored.discard(var)
    return views, stored, roots


def _is_apart(eqn: Eqn | None) -> bool:
    """Whether an equation puts padding between elements: the axes of the shape that it is brought into, which may be
    those of a matrix with these elements on its diagonal, tell where they are."""
    return eqn is not None and eqn.primitive.name == "pad" and any(n > 0 for *_, n in eqn.params["padding_config"])


def _may_be_read(eqn: Eqn) -> int:
    """How many times what joins arrays, or pads one (rather than crops it), may be read without being in memory."""
    padded = eqn.primitive.name == "pad" and any(n > 0 for config in eqn.params["padding_config"] for n in config)
    if not padded and eqn.primitive.name != "concatenate":
        return 0
    sizes = [v.aval.size for v in eqn.invars]
    out = eqn.outvars[0].aval
    if out.size == max(out.shape, default=0) <= SHORT and max(sizes) >= VECTOR * max(min(sizes), 1):
        return 1
    return PADDED if padded else JOINED


def _joined(uses: list[_Use]) -> _Use:
    """The use of an equation whose results are used so: those at other indices do not share its evaluations."""
    if len(uses) <= 1:
        return uses[0] if uses else _Use(forced=True)
    count = sum if any(u.moved for u in uses) else max
    return _Use(set().union(*(u.roots for u in uses)), set().union(*(u.parts for u in uses)),
                count(u.evaluations for u in uses),
                max(u.moved for u in uses), any(u.same for u in uses), any(u.forced for u in uses),
                all(u.direct for u in uses), any(u.rows for u in uses))


def acts_elementwise(eqn: Eqn) -> bool:
    """Whether each element of the results depends on the operands' elements at the same index."""
    name = eqn.primitive.name
    return (is_elementwise(eqn) or name == "threefry2x32"
            or (name == "bitcast_convert_type" and eqn.invars[0].aval.shape == eqn.outvars[0].aval.shape))


def in_parts(jaxpr: Jaxpr) -> set[int]:
    """By id, the concatenations of which each part is computed by itself, where it belongs: of very many or tiny parts,
    and those of several that the program returns."""
    returned = {v for v in jaxpr.outvars if type(v) is Var}
    found = set()
    for eqn in reversed(jaxpr.eqns):
        if is_view(eqn) and eqn.outvars[0] in returned and type(eqn.invars[0]) is Var:
            returned.add(eqn.invars[0])
        count = len(eqn.invars)
        if eqn.primitive.name == "concatenate" and count > CONCATENATED and (
                count > MOST_BOXES or eqn.outvars[0] in returned or eqn.outvars[0].aval.size <= PIECES * count):
            found.add(id(eqn))
    return found


def is_view(eqn: Eqn) -> bool:
    """Whether the result is the operand's elements in the same order."""
    return len(eqn.invars) == len(eqn.outvars) == 1 and eqn.primitive.is_view(eqn.invars[0].aval, eqn.outvars[0].aval)


def halves(eqn: Eqn, producers: dict[Var, Eqn]) -> bool:
    """Whether `eqn` puts the two results of one equation (or their first parts) behind each other.

    A kernel that computes an element of the first half then has that of the second at hand.
    """
    if eqn.primitive.name != "concatenate" or len(eqn.invars) != 2:
        return False
    sources = [_whole(v, producers) for v in eqn.invars]
    first = sources[0]
    return first is not None and first is sources[1] and eqn.invars[0] in first.outvars


def _whole(atom: Atom, producers: dict[Var, Eqn]) -> Eqn | None:
    """The equation with several results that an array, or one of which it is the beginning, comes from."""
    eqn = producers.get(atom) if type(atom) is Var else None
    if eqn is not None and _is_beginning(eqn):
        return _whole(eqn.invars[0], producers)
    return eqn if eqn is not None and len(eqn.outvars) > 1 else None


def _is_beginning(eqn: Eqn) -> bool:
    return (eqn.primitive.name == "slice" and not any(eqn.params["start_indices"])
            and not eqn.params.get("strides"))


def _work(eqn: Eqn, kind: str) -> int:
    """How many times a root's operands are looked at, in all."""
    if kind == "reduce":
        return eqn.invars[0].aval.size
    return max((v.aval.size for v in eqn.outvars), default=1)


def _note_operands(eqn: Eqn, uses: dict[Var, _Use], own: _Use, kind: str, producers: dict[Var, Eqn],
                   parts: set[int]) -> None:
    """Records on the operands that `eqn`, whose result is used as `own` says, evaluates them."""
    roots, evaluations = own.roots, own.evaluations
    out = eqn.outvars[0].aval if eqn.outvars else None
    folded = INLINE_OPERANDS.get(eqn.primitive.name, ()) if kind == "call" else None
    elementwise = kind == "map" and acts_elementwise(eqn)
    alone = eqn.primitive.name == "concatenate" and not _share_a_loop(eqn, parts)
    pieces = not elementwise and own.direct and (
        halves(eqn, producers) or (_is_beginning(eqn) and _whole(eqn.invars[0], producers)))
    for place, operand in enumerate(eqn.invars):
        if type(operand) is not Var:
            continue
        use = uses.get(operand)
        if use is None:
            use = uses[operand] = _Use()
        others = {(id(eqn), place)} if alone else own.parts
        elsewhere = not others <= use.parts
        if len(use.roots) < 2:  # more need not be told apart
            use.roots |= roots
        if len(use.parts) < 2:
            use.parts |= others
        if pieces:
            use.evaluations = max(use.evaluations, operand.aval.size)
            continue
        alike = elementwise and out is not None and operand.aval.shape == out.shape
        use.direct = alike and use.direct and own.direct
        if folded is not None:
            if folded != "all" and place not in folded:
                use.forced = True
            else:
                use.evaluations += max(evaluations, operand.aval.size)
                use.moved += 1
        elif alike or kind == "reduce":
            use.same = True
            use.evaluations = use.evaluations + evaluations if elsewhere else max(use.evaluations, evaluations)
        else:
            _note_moved(eqn, operand, use, evaluations, parts)


def _share_a_loop(eqn: Eqn, parts: set[int]) -> bool:
    """Whether the parts that a concatenation puts behind each other, each of one element or column, are computed side
    by side."""
    shape, count = eqn.outvars[0].aval.shape, len(eqn.invars)
    if eqn.params["dimension"] != len(shape) - 1 or shape[-1] != count:
        return False
    rows = math.prod(shape[:-1])
    return count <= TURNS <= rows or (rows == 1 and id(eqn) in parts)


def _note_moved(eqn: Eqn, operand: Var, use: _Use, evaluations: float, parts: set[int]) -> None:
    """An operand that is evaluated at other indices than those of the result."""
    name, size = eqn.primitive.name, operand.aval.size
    use.moved += 1
    if name in REDUCTIONS:
        use.evaluations += evaluations * size / max(eqn.outvars[0].aval.size, 1)
    elif name == "concatenate" and (len(eqn.invars) <= CONCATENATED or id(eqn) in parts):
        use.evaluations += size
    elif name == "broadcast_in_dim" or acts_elementwise(eqn):
        inner = _repeated_last(eqn, operand)
        use.evaluations += evaluations / inner
        use.rows = use.rows or 1 < inner <= SHORT
    else:
        use.evaluations += evaluations


def _repeated_last(eqn: Eqn, operand: Var) -> int:
    """How many times each value is repeated along the last dimensions: it is computed once, before the loops over them.
    """
    out = eqn.outvars[0].aval.shape
    dims = eqn.params.get("broadcast_dimensions", range(len(out)))
    last = max((d for n, d in zip(operand.aval.shape, dims, strict=False) if n != 1), default=-1)
    return max(math.prod(out[last + 1:]), 1)


def _wants_memory(var: Var, use: _Use, trees: _Trees, costly: set[Var]) -> bool:
    """Whether a value is better computed once, as a whole, than where it is used."""
    if use.forced or var in trees.ends:
        return True
    size, cost = var.aval.size, trees.costs[var]
    if size == 0:
        return False
    if cost <= CHEAP:
        return size >= MANY and trees.reads.get(var, 0) > 1 and use.evaluations >= OFTEN * size
    if len(use.roots) > 1 or (use.rows and size >= MANY and var in costly):
        return True
    repeated = use.moved > 1 or (use.moved and use.same) or use.evaluations > 1.5 * size
    if not repeated or size == 1:
        return False
    far = size * var.aval.dtype.itemsize >= FAR
    return not (far and cost * (use.evaluations - size) <= FAR_CHEAP * size)


@dataclass(slots=True)
class _Tree:
    """What is folded into a variable: the equations and the arrays that it reads, about how many instructions
    that makes, and the most equations on a path that are not elementwise."""

    members: frozenset[Eqn | Var] = frozenset()
    size: int = 0
    moves: int = 0


def _costly(jaxpr: Jaxpr, kinds: dict[int, str], known: set[Var]) -> set[Var]:
    """The variables that take functions that are worth lanes, or lookups, if all is folded but those `known`, which are
    in memory, and costly ones that several equations use, which will be."""
    found: set[Var] = set()
    users = Counter(v for eqn in jaxpr.eqns for v in dict.fromkeys(eqn.invars))
    for eqn in jaxpr.eqns:
        if kinds[id(eqn)] == "map" and (is_costly(eqn) or _looks_up(eqn)
                                        or any(v in found and users[v] == 1 for v in eqn.invars)):
            found.update(v for v in eqn.outvars if v not in known)
    return found


class _Trees:
    """What is folded into each variable if all is but the program's `results`, which are in memory. For each variable:
    scalar operations to compute one element (`costs`); of cheap ones, how many arrays of that size or larger are read
    (`reads`). `ends` of large trees are in memory, too."""

    def __init__(self, jaxpr: Jaxpr, kinds: dict[int, str], results: set[Var], parts: set[int],
                 producers: dict[Var, Eqn]) -> None:
        self.results, self.parts, self.producers = results, parts, producers
        self.costs: dict[Var, int] = {}
        self.reads: dict[Var, int] = {}
        self.ends: set[Var] = set()
        self.trees: dict[Var, _Tree] = {}  # of variables that equations will read: in long programs they take much
        self.order = {eqn: number for number, eqn in enumerate(jaxpr.eqns)}
        last = {v: eqn for eqn in jaxpr.eqns for v in eqn.invars if type(v) is Var}
        for eqn in jaxpr.eqns:
            if kinds[id(eqn)] == "map":
                self._add(eqn)
            else:
                self.costs.update(dict.fromkeys(eqn.outvars, 0))
            for var in eqn.invars:
                if type(var) is Var and last[var] is eqn:
                    self.trees.pop(var, None)

    def _add(self, eqn: Eqn) -> None:
        own = cost_of(eqn)
        repeated = own if eqn.primitive.name in REDUCTIONS else 1
        operands = [v for v in dict.fromkeys(eqn.invars) if type(v) is Var]
        tree = self._planted(eqn, repeated, operands)
        cost = min(sum([self.costs.get(v, 0) for v in operands if v not in self.ends]) * repeated + own, 1 << 20)
        if eqn.primitive.name == "concatenate" and len(eqn.invars) > CONCATENATED:
            cost = max(cost, 4 * CHEAP)
        if tree.size > LARGE or tree.moves >= DEEP or id(eqn) in self.parts:
            self.ends.update(eqn.outvars)
            cost = 0
        if cost <= CHEAP and len(operands) > 1:
            size = eqn.outvars[0].aval.size
            count = sum(type(m) is Var and m.aval.size >= size for m in tree.members)
            self.reads.update(dict.fromkeys(eqn.outvars, count))
        for var in eqn.outvars:
            self.costs[var] = 0 if var in self.results else cost
            if var not in self.results:
                self.trees[var] = tree

    def _planted(self, eqn: Eqn, repeated: int, operands: list[Var]) -> _Tree:
        """The tree of an equation; the operands whose trees would make it too large, or what these are stretched from,
        become ends."""
        trees, ends = self.trees, self.ends
        if id(eqn) in self.parts:
            ends.update(_entangled([v for v in operands if v in trees and v not in ends], trees))
            return _Tree()
        members: set[Eqn | Var] = {eqn}
        size, moves = size_of(eqn), 0
        if len(operands) > 1:
            operands = sorted(operands, key=lambda v: trees[v].size if v in trees else 0)
        for var in operands:
            if var in trees and var not in ends:
                new, more = self._more(var, members, repeated)
                if size + more > LARGE and self._cut(var):
                    new, more = self._more(var, members, repeated)
                if size + more <= LARGE:
                    members |= new
                    size, moves = size + more, max(moves, trees[var].moves)
                    continue
                ends.add(var)
            if var not in members:
                members.add(var)
                size += LOAD
        return _Tree(frozenset(members), size, moves + (not is_elementwise(eqn)))

    def _more(self, var: Var, members: set[Eqn | Var], repeated: int) -> tuple[frozenset[Eqn | Var], int]:
        """What a variable's tree has beside `members`, and the size of that."""
        tree = self.trees[var]
        new = tree.members - members
        return new, repeated * tree.size * len(new) // len(tree.members)

    def _cut(self, var: Var) -> bool:
        """Ends a tree at what its variable is stretched from, if that is less: a product of a product of small matrices
        has the first product in memory, and not the terms of the second. Whether it is so."""
        between: dict[Eqn, None] = {}
        sources: dict[Var, None] = {}
        stack = [var]
        while stack:
            one = stack.pop()
            eqn = self.producers.get(one)
            if eqn is None or one in self.ends or eqn in between:
                continue
            if one.aval.size == var.aval.size and (
                    acts_elementwise(eqn) or eqn.primitive is broadcast_in_dim_p or is_view(eqn)):
                between[eqn] = None
                stack += [v for v in eqn.invars if type(v) is Var]
            else:
                sources[one] = None
            if len(between) + len(sources) > SPREAD:
                return False
        if not sources or sum(v.aval.size for v in sources) >= var.aval.size:
            return False
        self.ends.update(sources)
        for eqn in sorted(between, key=lambda e: self.order[e]):
            self._add(eqn)
        return True


def _entangled(operands: list[Var], trees: dict[Var, _Tree]) -> list[Var]:
    """The variables, if their trees are too large for one kernel, and kernels for each would compute most of what they
    have in common again and again."""
    alone = sum(len(trees[v].members) for v in operands)
    together = len(set().union(*(trees[v].members for v in operands)))
    return operands if together > LARGE // LOAD and alone > 2 * together else []
