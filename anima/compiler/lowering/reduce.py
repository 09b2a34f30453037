"""Reductions, as plain nests: for each result, a loop over all that it is made of.

    each i < 4096:                 sum(exp(x), axis=1)
      var s: f32 = 0.0
      reduce j < 1024: s += exp(x[i*1024 + j])
      y[i] = s

Equations over the same rows share the kernel, in sweeps: softmax is max, then exp and sum (its row kept in local
memory), then div. In what order and in which parts all this runs, `scheduling/reductions.py` decides.

Halves accumulate in f32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

import numpy as np

from anima.compiler.ir.groups import Group
from anima.compiler.ir.index_math import Index
from anima.compiler.ir.loops import Const, Expr, NamedValue
from anima.compiler.ir.neutral import neutral
from anima.compiler.lowering.array import Indices, Scope, at, constant, scalar_type
from anima.compiler.lowering.map import IterationSpace, Run, merge_runs, open_loops, write_each
from anima.compiler.scalars.small import HALVES
from anima.core.jaxpr import Eqn, Var

# Of each reduction: the operation.
REDUCTIONS = {"reduce_sum": "add", "reduce_prod": "mul", "reduce_max": "max", "reduce_min": "min", "reduce_and": "and",
              "reduce_or": "or", "reduce_xor": "xor"}


def combine(name: str, dtype: str) -> str:
    """The scalar operation of a reduction; on bools max is "or" and min is "and"."""
    if dtype == "bool":
        return {"max": "or", "min": "and", "add": "or", "mul": "and"}.get(name, name)
    return name


def _accumulation(eqn: Eqn) -> tuple[str, Const]:
    """The scalar operation of a reduction, and what it starts with."""
    name = scalar_type(eqn.invars[0].aval)
    dtype = "f32" if name in HALVES else name
    op = combine(REDUCTIONS[eqn.primitive.name], dtype)
    return op, constant(0 if op == "add" else neutral(op, dtype), dtype)


def unrolled(scope: Scope, eqn: Eqn, index: Indices) -> Expr:
    """A short reduction at one index of its result, as a single expression."""
    aval = eqn.invars[0].aval
    axes = eqn.params["axes"]
    op, init = _accumulation(eqn)
    counts = [aval.shape[a] for a in axes]
    # A sum of several zeros starts at 0.0: it is -0.0 only if it is one term, -0.0.
    total: Expr | None = init if op == "add" and math.prod(counts) > 1 and init.dtype[0] in "fc" else None
    for place in np.ndindex(*counts):
        where, kept = dict(zip(axes, place, strict=True)), iter(index)
        inner = tuple(scope.ix.const(where[d]) if d in where else next(kept) for d in range(aval.ndim))
        term = scope.cast(scope.at(eqn.invars[0], inner), init.dtype)
        total = term if total is None else scope.op(op, (total, term), init.dtype)
    return scope.cast(init if total is None else total, scalar_type(eqn.outvars[0].aval))


for _name in REDUCTIONS:
    at(_name)(unrolled)


# ---------------------------------------------------------------- kernels


def _reads(eqn: Eqn, members: dict[Var, int], producers: dict[Var, Eqn], stored: frozenset[Var]) -> set[Var]:
    """The group's own results that an equation depends on directly or through folded equations."""
    found: set[Var] = set()
    seen: set[Var] = set()
    stack = [v for v in eqn.invars if type(v) is Var]
    while stack:
        var = stack.pop()
        if var in seen:
            continue
        seen.add(var)
        if var in members:
            found.add(var)
        elif var in producers and var not in stored:
            stack.extend(v for v in producers[var].invars if type(v) is Var)
    return found


def is_reduction(eqn: Eqn, group: Group) -> bool:
    """Whether a group's root is one of its reductions (rather than a map over the rows or their results)."""
    return (eqn.primitive.name in REDUCTIONS and eqn.invars[0].aval.shape == group.shape
            and tuple(sorted(eqn.params["axes"])) == group.axes)


class Sweeps:
    """In which sweep over the row each root of a group is computed, and which rows are kept for later ones."""

    def __init__(self, group: Group, producers: dict[Var, Eqn], stored: frozenset[Var]):
        members = {v: i for i, eqn in enumerate(group.roots) for v in eqn.outvars}
        known: dict[Var, int] = {}  # the first sweep that can use it
        self.roots: list[list[Eqn]] = []
        self.after: list[list[Eqn]] = []  # results of the rows' shape, known when a sweep begins
        self.kept: list[Var] = []
        kept_shape = tuple(n for d, n in enumerate(group.shape) if d not in group.axes)
        for eqn in group.roots:
            reads = _reads(eqn, members, producers, stored)
            sweep = max((known[v] for v in reads), default=0)
            while len(self.roots) <= sweep + 1:
                self.roots.append([])
                self.after.append([])
            reduction = is_reduction(eqn, group)
            whole = reduction or eqn.outvars[0].aval.shape == group.shape != kept_shape
            (self.roots if whole else self.after)[sweep].append(eqn)
            known.update((v, sweep + reduction) for v in eqn.outvars)
            if whole:
                for v in reads:
                    full = v.aval.shape == group.shape != kept_shape
                    if full and known[v] < sweep and v not in stored and v not in self.kept:
                        self.kept.append(v)
        self._reads_of = partial(_reads, producers=producers, stored=stored)

    def written_last(self, result: Var, operand: Var) -> bool:
        """Whether elements of a result are stored in a sweep after which none of an operand are read."""
        for eqns, after in zip(reversed(self.roots), reversed(self.after), strict=True):
            if any(result in e.outvars and e.primitive.name not in REDUCTIONS for e in eqns):
                return True
            if any(self._reads_of(e, {operand: 0}) for e in (*eqns, *after)):
                return False
        return False


def reduce_kernel(new_scope: Callable[[], Scope], group: Group, stored: frozenset[Var]) -> Scope:
    """One kernel for the reductions of a group and all that is computed over the same rows."""
    space, _ = merge_runs(_dummy(new_scope, group), group, lambda s, i: _probe(s, group, i))
    outer = [r for r in space.runs if not space.inside(r, group.axes)]
    inner = [r for r in space.runs if space.inside(r, group.axes)]
    scope = new_scope()
    sweeps = Sweeps(group, scope.producers, stored)
    with ExitStack() as stack:
        values = open_loops(scope, stack, space, outer)
        index = space.index(scope, values)
        row = _kept(index, group)
        for var in sweeps.kept:
            shape = tuple(group.shape[a] for a in group.axes)
            buffer = scope.local(scalar_type(var.aval), math.prod(shape))
            scope.scratch[var] = buffer, group.axes, shape, scope.depth
        for eqns, after in zip(sweeps.roots, sweeps.after, strict=True):
            write_each(scope, [(eqn, _place(scope, eqn, index, group)) for eqn in after], stored)
            if eqns:
                _sweep(scope, space, values, inner, eqns, group, row, stored)
    return scope


def _kept(index: Indices, group: Group) -> Indices:
    return tuple(i for d, i in enumerate(index) if d not in group.axes)


def _place(scope: Scope, eqn: Eqn, index: Indices, group: Group) -> Indices:
    """Where a result that is no reduction is computed, at an index of the group's space: there, at the row, or at the
    row with axes of size 1 left."""
    shape = eqn.outvars[0].aval.shape
    if shape == group.shape:
        return index
    if len(shape) == len(group.shape):
        return tuple(scope.ix.zero if d in group.axes else i for d, i in enumerate(index))
    return _kept(index, group)


def _dummy(new_scope: Callable[[], Scope], group: Group) -> Callable[[], Scope]:
    """Scopes in which the group's own results are loaded from memory; good for nothing but a look at the indices."""
    def make() -> Scope:
        scope = new_scope()
        scope.places = scope.places | {v: "" for eqn in group.roots for v in eqn.outvars}
        return scope
    return make


def _probe(scope: Scope, group: Group, index: Indices) -> None:
    for eqn in group.roots:
        if is_reduction(eqn, group):
            scope.at(eqn.invars[0], index)
            place = _kept(index, group)
        else:
            place = _place(scope, eqn, index, group)
            scope.define(eqn, place)
        scope.used.append(scope.ix.flatten(place, eqn.outvars[0].aval.shape))


def _sweep(scope: Scope, space: IterationSpace, values: dict[Run, Index], inner: Sequence[Run], eqns: Sequence[Eqn],
           group: Group, row: Indices, stored: frozenset[Var]) -> None:
    """One pass over a row: its reductions, and its elements that are wanted."""
    totals: dict[Eqn, tuple[str, NamedValue]] = {}
    for eqn in eqns:
        if is_reduction(eqn, group):
            op, init = _accumulation(eqn)
            totals[eqn] = op, scope.var(init)
    with ExitStack() as stack:
        index = space.index(scope, values | open_loops(scope, stack, space, inner, "reduce" if totals else "each"))
        wanted: list[Var] = []
        for eqn in eqns:
            if eqn in totals:
                op, total = totals[eqn]
                scope.accumulate(total, op, scope.cast(scope.at(eqn.invars[0], index), total.dtype))
            elif any(v in stored or v in scope.scratch for v in eqn.outvars):
                scope.define(eqn, index)
                wanted += eqn.outvars
        for var in wanted:  # everything has been read: a result may take over the memory of an operand
            value = scope.memo[var, index]
            if var in stored:
                scope.write(var, index, value)
            if var in scope.scratch:
                buffer, axes, shape, _ = scope.scratch[var]
                scope.store(buffer, scope.ix.flatten([index[a] for a in axes], shape), value)
    for eqn, (_, total) in totals.items():
        var = eqn.outvars[0]
        result = scope.memo[var, row] = scope.cast(total, scalar_type(var.aval))
        if var in stored:
            scope.write(var, row, result)
