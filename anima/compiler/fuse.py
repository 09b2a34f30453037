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

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from anima.compiler.calls import CALLS, INLINE_OPERANDS
from anima.compiler.groups import Fused, Group
from anima.compiler.lower_array import AT, is_elementwise, not_lowered
from anima.compiler.lower_reduce import REDUCTIONS, strategy
from anima.core.avals import Shape
from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Var

CHEAP = 6              # scalar operations that may be done again rather than stored
DEEP = 300             # longest chain of folded equations
MOST_ROOTS = 24        # results of one kernel
SMALL = 4096           # elements: kernels that share nothing are merged below this
MOST_BOXES = 40        # kernels for the parts of concatenations and paddings
CONCATENATED = 3       # most operands of a concatenation that is folded into its consumer

_COSTS = {name: 20 for name in (
    "exp", "exp2", "expm1", "log", "log1p", "sin", "cos", "tan", "tanh", "logistic", "sinh", "cosh", "asin", "acos",
    "atan", "atan2", "asinh", "acosh", "atanh", "erf", "erfc", "erf_inv", "cbrt", "lgamma", "digamma")}
_COSTS |= {"pow": 40, "div": 4, "rem": 6, "sqrt": 4, "rsqrt": 5, "integer_pow": 3, "threefry2x32": 100, "gather": 3,
           "dynamic_slice": 2, "copy": 0, "convert_element_type": 1}
_DEFAULT_COST = {True: 1, False: 0}
_UNKNOWN_COST = 30

Relation = tuple[int, ...] | None  # for each dimension of an array: that of the space it follows, or -1 (size 1)


def fuse(closed: ClosedJaxpr) -> Fused:
    """Cuts a program into groups of equations, one for each kernel.

    After this pass every equation is in a group, or folded into one; unused equations are gone.
    """
    jaxpr = closed.jaxpr
    kinds = {id(e): kind_of(e) for e in jaxpr.eqns}
    views, stored, roots = _materialise(jaxpr, kinds)
    producers = {v: e for e in jaxpr.eqns if kinds[id(e)] == "map" for v in e.outvars}
    grouping = _Grouping(producers, stored, views, kinds)
    for number, eqn in enumerate(jaxpr.eqns):
        if number in roots:
            grouping.place(eqn)
    groups, kept = grouping.finish(jaxpr.outvars)
    return Fused(closed, groups, producers, views, kept)


def kind_of(eqn: Eqn) -> str:
    """How an equation is lowered: "map" (a value at each index), "reduce" or "call"."""
    name = eqn.primitive.name
    if is_elementwise(eqn):
        return "map"
    if name in REDUCTIONS:
        unrolled = strategy(eqn.invars[0].aval.shape, eqn.params["axes"]) == "unrolled"
        return "map" if unrolled else "reduce"
    if name in CALLS:
        return "call"
    if name in AT:
        return "map"
    raise not_lowered(eqn)


# ---------------------------------------------------------------- what goes to memory


@dataclass(slots=True)
class _Use:
    """How a variable is used: by which kernels' roots, how many times each element, by how many shapings."""

    roots: set[int] = field(default_factory=set)
    evaluations: float = 0.0
    moved: int = 0
    same: bool = False
    forced: bool = False


def _cost_of(eqn: Eqn) -> int:
    name = eqn.primitive.name
    if name in REDUCTIONS:
        return 2 * math.prod(eqn.invars[0].aval.shape[a] for a in eqn.params["axes"])
    known = _COSTS.get(name)
    if known is None:
        simple = name in AT
        known = _DEFAULT_COST[not simple] if simple or name in _SIMPLE else _UNKNOWN_COST
    return known


_SIMPLE = frozenset((
    "add", "sub", "mul", "neg", "sign", "abs", "max", "min", "floor", "ceil", "round", "square", "real", "imag",
    "conj", "complex", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "not", "shift_left",
    "shift_right_logical", "shift_right_arithmetic", "population_count", "clz", "is_finite", "clamp", "select_n",
    "add_any", "stop_gradient", "bitcast_convert_type", "reduce_precision", "mulhi", "nextafter"))


def _materialise(jaxpr: Jaxpr, kinds: dict[int, str]) -> tuple[dict[Var, Var], set[Var], set[int]]:
    """Views of other variables, variables to be computed as a whole, and positions of the equations that do (roots)."""
    costs, depths = _costs(jaxpr, kinds)
    uses: dict[Var, _Use] = {}
    views: dict[Var, Var] = {}
    stored: set[Var] = set()
    roots: set[int] = set()
    for out in jaxpr.outvars:
        if type(out) is Var:
            uses.setdefault(out, _Use()).forced = True
    given = {*jaxpr.invars, *jaxpr.constvars}
    for number in range(len(jaxpr.eqns) - 1, -1, -1):
        eqn = jaxpr.eqns[number]
        used = [v for v in eqn.outvars if v in uses]
        if not used and not eqn.effects:
            continue
        kind = kinds[id(eqn)]
        use = _joined([uses[v] for v in used])
        root = kind != "map" or _wants_memory(used[0], use, costs, depths)
        if root and _is_view(eqn) and type(eqn.invars[0]) is Var:
            views[eqn.outvars[0]] = eqn.invars[0]
            uses.setdefault(eqn.invars[0], _Use()).forced = True
        elif root:
            stored.update(eqn.outvars)
            roots.add(number)
            _note_operands(eqn, uses, {number}, 1.0 * _work(eqn, kind), kind)
        else:
            _note_operands(eqn, uses, use.roots, use.evaluations, kind)
    for var in given:
        stored.discard(var)
    return views, stored, roots


def _joined(uses: list[_Use]) -> _Use:
    """The use of an equation whose results are used so: those at other indices do not share its evaluations."""
    if len(uses) <= 1:
        return uses[0] if uses else _Use(forced=True)
    count = sum if any(u.moved for u in uses) else max
    return _Use(set().union(*(u.roots for u in uses)), count(u.evaluations for u in uses),
                max(u.moved for u in uses), any(u.same for u in uses), any(u.forced for u in uses))


def _is_view(eqn: Eqn) -> bool:
    """Whether the result is the operand's elements in the same order."""
    name = eqn.primitive.name
    if name in ("reshape", "squeeze", "expand_dims"):
        return True
    return name == "broadcast_in_dim" and eqn.invars[0].aval.size == eqn.outvars[0].aval.size


def _work(eqn: Eqn, kind: str) -> int:
    """How many times a root's operands are looked at, in all."""
    if kind == "reduce":
        return eqn.invars[0].aval.size
    return max((v.aval.size for v in eqn.outvars), default=1)


def _note_operands(eqn: Eqn, uses: dict[Var, _Use], roots: set[int], evaluations: float, kind: str) -> None:
    """Records on the operands that `eqn` evaluates them."""
    out = eqn.outvars[0].aval if eqn.outvars else None
    folded = INLINE_OPERANDS.get(eqn.primitive.name, ()) if kind == "call" else None
    elementwise = kind == "map" and is_elementwise(eqn)
    for place, operand in enumerate(eqn.invars):
        if type(operand) is not Var:
            continue
        use = uses.get(operand)
        if use is None:
            use = uses[operand] = _Use()
        use.roots |= roots
        if folded is not None:
            if folded != "all" and place not in folded:
                use.forced = True
            else:
                use.evaluations += max(evaluations, operand.aval.size)
                use.moved += 1
        elif kind == "reduce":
            use.same = True
            use.evaluations = max(use.evaluations, evaluations)
        elif elementwise and operand.aval.shape == out.shape:  # type: ignore[union-attr]
            use.same = True
            use.evaluations = max(use.evaluations, evaluations)
        else:
            _note_moved(eqn, operand, use, evaluations)


def _note_moved(eqn: Eqn, operand: Var, use: _Use, evaluations: float) -> None:
    """An operand that is evaluated at other indices than those of the result."""
    name, size = eqn.primitive.name, operand.aval.size
    use.moved += 1
    if name in REDUCTIONS:
        use.evaluations += evaluations * size / max(eqn.outvars[0].aval.size, 1)
    elif name == "concatenate" and len(eqn.invars) <= CONCATENATED:
        use.evaluations += size
    elif name == "broadcast_in_dim" or is_elementwise(eqn):
        use.evaluations += _broadcast_evaluations(eqn, operand, evaluations)
    else:
        use.evaluations += evaluations


def _broadcast_evaluations(eqn: Eqn, operand: Var, evaluations: float) -> float:
    """Values repeated along the last dimensions are computed once, before the loops over them."""
    out = eqn.outvars[0].aval.shape
    dims = eqn.params.get("broadcast_dimensions", range(len(out)))
    last = max((d for n, d in zip(operand.aval.shape, dims, strict=False) if n != 1), default=-1)
    return evaluations / max(math.prod(out[last + 1:]), 1)


def _wants_memory(var: Var, use: _Use, costs: dict[Var, int], depths: dict[Var, int]) -> bool:
    """Whether a value is better computed once, as a whole, than where it is used."""
    if use.forced or depths[var] >= DEEP:
        return True
    size, cost = var.aval.size, costs[var]
    if size == 0 or cost <= CHEAP:
        return False
    if len(use.roots) > 1:
        return True
    repeated = use.moved > 1 or (use.moved and use.same) or use.evaluations > 1.5 * size
    return bool(repeated) and size > 1


def _costs(jaxpr: Jaxpr, kinds: dict[int, str]) -> tuple[dict[Var, int], dict[Var, int]]:
    """For each variable, scalar operations to compute one element if all is folded; length of that chain."""
    costs: dict[Var, int] = {}
    depths: dict[Var, int] = {}
    for eqn in jaxpr.eqns:
        cost, depth = 0, 0
        if kinds[id(eqn)] == "map":
            factor = _cost_of(eqn) if eqn.primitive.name in REDUCTIONS else 1
            for operand in eqn.invars:
                if type(operand) is Var and operand in costs:
                    cost += costs[operand] * factor
                    depth = max(depth, depths[operand])
            cost, depth = min(cost + _cost_of(eqn), 1 << 20), depth + 1
            if eqn.primitive.name == "concatenate" and len(eqn.invars) > CONCATENATED:
                cost = max(cost, 4 * CHEAP)
        for var in eqn.outvars:
            costs[var] = cost
            depths[var] = depth
    return costs, depths


# ---------------------------------------------------------------- which roots share a kernel


class _Builder:
    """A group under construction: `reads` are variables that its roots load."""

    __slots__ = ("axes", "cuts", "flat", "kind", "needs", "number", "reads", "roots", "shape")

    def __init__(self, number: int, kind: str, shape: Shape, axes: tuple[int, ...]):
        self.number = number
        self.kind = kind
        self.shape = shape
        self.axes = axes
        self.roots: list[Eqn] = []
        self.reads: set[Var] = set()
        self.needs = 0  # bit set of the groups that this one depends on, directly or not
        self.flat = True
        self.cuts: dict[int, set[int]] = {}

    def multilevel(self) -> bool:
        """Whether equations of the group may depend on its reductions."""
        return strategy(self.shape, self.axes) == "rows"

    def kept(self) -> tuple[int, ...]:
        return tuple(d for d in range(len(self.shape)) if d not in self.axes)


class _Grouping:
    """Places roots, in program order, into groups."""

    def __init__(self, producers: dict[Var, Eqn], stored: set[Var], views: dict[Var, Var], kinds: dict[int, str]):
        self.producers = producers
        self.stored = stored
        self.views = views
        self.kinds = kinds
        self.groups: list[_Builder] = []
        self.home: dict[Var, _Builder] = {}
        self.by_space: dict[tuple[Shape, str], list[_Builder]] = {}

    def reads(self, eqn: Eqn, space: Shape) -> tuple[dict[Var, set[Relation]], bool, dict[int, set[int]]]:
        """The variables that a root loads and how their dimensions follow those of its space; whether all is flat;
        where concatenations and paddings along the space begin and end."""
        found: dict[Var, set[Relation]] = {}
        seen: set[tuple[Var, Relation]] = set()
        flat = True
        cuts: dict[int, set[int]] = {}
        identity = tuple(range(len(space)))
        stack: list[tuple[Atom, Relation]] = []
        start = eqn if self.kinds[id(eqn)] == "map" else None
        if start is None:
            stack += [(v, identity if v.aval.shape == space else None) for v in eqn.invars]
        else:
            stack += _operand_relations(eqn, identity)
            flat = is_elementwise(eqn)
            _note_cuts(eqn, identity, cuts)
        while stack:
            atom, relation = stack.pop()
            if type(atom) is not Var or (atom, relation) in seen:
                continue
            seen.add((atom, relation))
            while atom in self.views:
                atom, relation = self.views[atom], _view_relation(atom, self.views[atom], relation)
            if atom in self.stored or atom not in self.producers:
                found.setdefault(atom, set()).add(relation)
                flat = flat and (atom.aval.shape == space or atom.aval.size == 1)
                continue
            producer = self.producers[atom]
            flat = flat and is_elementwise(producer) and atom.aval.shape in (space, ())
            _note_cuts(producer, relation, cuts)
            stack += _operand_relations(producer, relation)
        return found, flat, cuts

    def place(self, eqn: Eqn) -> None:
        """Adds a root to a group that can take it, or to a new one."""
        kind = self.kinds[id(eqn)]
        space = eqn.invars[0].aval.shape if kind == "reduce" else eqn.outvars[0].aval.shape if eqn.outvars else ()
        axes = tuple(sorted(eqn.params["axes"])) if kind == "reduce" else ()
        reads, flat, cuts = self.reads(eqn, space)
        direct = {id(g): g for g in (self.home.get(v) for v in reads) if g is not None}
        needs = 0
        for g in direct.values():
            needs |= g.needs | (1 << g.number)
        group = None if kind == "call" else self._find(eqn, kind, space, axes, reads, direct)
        if group is None:
            group = _Builder(len(self.groups), kind, space, axes)
            self.groups.append(group)
            if kind != "call":
                self._announce(group)
        elif kind == "reduce" and group.kind == "map":
            group.kind, group.axes = "reduce", axes
            self._announce(group)
        group.roots.append(eqn)
        group.reads.update(reads)
        for d, places in cuts.items():
            group.cuts.setdefault(d, set()).update(places)
        group.flat = group.flat and flat and space == group.shape
        added = needs & ~(1 << group.number) & ~group.needs
        group.needs |= added
        if added and len(group.roots) > 1:
            for other in self.groups:
                if other.needs >> group.number & 1:
                    other.needs |= group.needs
        for var in eqn.outvars:
            self.home[var] = group

    def _announce(self, group: _Builder) -> None:
        """Lists a group under the spaces whose roots it may take."""
        self.by_space.setdefault((group.shape, group.kind), []).append(group)
        if group.kind == "reduce" and group.multilevel():
            kept = tuple(group.shape[d] for d in group.kept())
            self.by_space.setdefault((kept, "row"), []).append(group)

    def _find(self, eqn: Eqn, kind: str, space: Shape, axes: tuple[int, ...], reads: dict[Var, set[Relation]],
              direct: dict[int, _Builder]) -> _Builder | None:
        keys = [(space, "reduce"), (space, "map")] + ([(space, "row")] if kind == "map" else [])
        for key in keys:
            for group in reversed(self.by_space.get(key, ())[-6:]):
                if self._takes(group, eqn, kind, key[1], axes, reads, direct):
                    return group
        return None

    def _takes(self, group: _Builder, eqn: Eqn, kind: str, role: str, axes: tuple[int, ...],
               reads: dict[Var, set[Relation]], direct: dict[int, _Builder]) -> bool:
        """Whether a root may join a group, and gains by it."""
        if len(group.roots) >= MOST_ROOTS or (kind == "reduce" and group.kind == "reduce" and group.axes != axes):
            return False
        if kind == "reduce" and group.kind == "map" and strategy(group.shape, axes) == "unrolled":
            return False
        if group.kind not in (role, "reduce"):
            return False
        bit = 1 << group.number
        if any(g is not group and g.needs & bit for g in direct.values()):
            return False  # something between the two could then not be scheduled
        depends = id(group) in direct
        if role == "row" and not depends:
            return False
        shares = depends or any(v in group.reads and v.aval.size > 1 for v in reads)
        if not shares and math.prod(group.shape) > SMALL:
            return False
        if len(group.shape) > 1 and not shares and group.kind == "reduce":
            return False
        return not depends or self._aligned(group, role, reads)

    def _aligned(self, group: _Builder, role: str, reads: dict[Var, set[Relation]]) -> bool:
        """Whether all that a root reads of a group's results is at the index that it is computed at."""
        kept = group.kept()
        for var, relations in reads.items():
            if self.home.get(var) is not group:
                continue
            whole = var.aval.shape == group.shape and not (group.kind == "reduce" and self._is_total(var, group))
            if group.kind == "reduce" and not whole and not group.multilevel():
                return False
            if role == "row":
                if whole:
                    return False
                want = tuple(range(len(kept)))
            else:
                want = tuple(range(len(group.shape))) if whole else kept
            if any(r is None or not _follows(r, want, var.aval.shape) for r in relations):
                return False
        return True

    def _is_total(self, var: Var, group: _Builder) -> bool:
        """Whether a result is a reduction of the group, or computed from such at the rows' index."""
        return var.aval.shape != group.shape

    def finish(self, outvars: Sequence[Atom]) -> tuple[tuple[Group, ...], frozenset[Var]]:
        """The groups in an order in which they can run, and the variables that other groups or the caller read."""
        kept: set[Var] = set()
        for group in self.groups:
            for var in group.reads:
                if self.home.get(var) is not group:
                    kept.add(var)
        for out in outvars:
            while type(out) is Var and out in self.views:
                out = self.views[out]
            if type(out) is Var:
                kept.add(out)
        for group in self.groups:
            if group.kind == "call":
                kept.update(v for eqn in group.roots for v in eqn.outvars)
        ordered = [Group(g.kind, tuple(g.roots), g.shape, g.axes, g.flat, _few(g.cuts))  # type: ignore[arg-type]
                   for g in self._in_order()]
        return tuple(ordered), frozenset(v for v in kept if v in self.home)

    def _in_order(self) -> list[_Builder]:
        """A topological order, that of the program where it is one."""
        done = 0
        waiting = list(self.groups)
        out: list[_Builder] = []
        while waiting:
            later = []
            for group in waiting:
                if group.needs & ~done:
                    later.append(group)
                else:
                    out.append(group)
                    done |= 1 << group.number
            assert len(later) < len(waiting), "groups depend on each other in a circle"
            waiting = later
        return out


def _operand_relations(eqn: Eqn, relation: Relation) -> list[tuple[Atom, Relation]]:
    """How the operands' dimensions follow the space, if the result's do as `relation` says."""
    name = eqn.primitive.name
    if relation is None:
        return [(v, None) for v in eqn.invars]
    if is_elementwise(eqn):
        out = eqn.outvars[0].aval.shape
        return [(v, relation if v.aval.shape == out else () if not v.aval.shape else
                 tuple(-1 if n == 1 else r for n, r in zip(v.aval.shape, relation, strict=True)))
                for v in eqn.invars]
    operand = eqn.invars[0] if eqn.invars else None
    if name == "broadcast_in_dim":
        dims = eqn.params["broadcast_dimensions"]
        return [(operand, tuple(-1 if n == 1 else relation[d]
                                for n, d in zip(operand.aval.shape, dims, strict=True)))]  # type: ignore[union-attr]
    if name in ("reshape", "squeeze", "expand_dims"):
        return [(operand, _view_relation(eqn.outvars[0], operand, relation))]  # type: ignore[arg-type]
    if name == "transpose":
        inner = [0] * len(relation)
        for place, p in enumerate(eqn.params["permutation"]):
            inner[p] = relation[place]
        return [(operand, tuple(inner))]  # type: ignore[list-item]
    return [(v, None) for v in eqn.invars]


def _note_cuts(eqn: Eqn, relation: Relation, cuts: dict[int, set[int]]) -> None:
    """Adds the ends of a concatenation's or padding's parts."""
    if relation is None:
        return
    name = eqn.primitive.name
    if name == "concatenate" and relation[eqn.params["dimension"]] >= 0:
        axis, end = eqn.params["dimension"], 0
        for operand in eqn.invars:
            end += operand.aval.shape[axis]
            cuts.setdefault(relation[axis], set()).add(end)
    elif name == "pad":
        for d, n, (low, high, _) in zip(relation, eqn.outvars[0].aval.shape, eqn.params["padding_config"], strict=True):
            if d >= 0:
                cuts.setdefault(d, set()).update((max(low, 0), n - max(high, 0)))


def _few(cuts: dict[int, set[int]]) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """The cuts, without those that would make too many boxes."""
    out, boxes = [], 1
    for d, places in sorted(cuts.items()):
        if boxes * (len(places) + 1) <= MOST_BOXES:
            boxes *= len(places) + 1
            out.append((d, tuple(sorted(places))))
    return tuple(out)


def _view_relation(view: Var, base: Var, relation: Relation) -> Relation:
    """The relation of an operand whose elements are the result's in the same order; None if dimensions are merged."""
    old, new = base.aval.shape, view.aval.shape
    if relation is None or [n for n in old if n != 1] != [n for n in new if n != 1]:
        return None
    kept = iter([r for r, n in zip(relation, new, strict=True) if n != 1])
    return tuple(-1 if n == 1 else next(kept) for n in old)


def _follows(relation: tuple[int, ...], want: tuple[int, ...], shape: Shape) -> bool:
    return len(relation) == len(want) and all(r == w or n == 1 for r, w, n in zip(relation, want, shape, strict=True))
