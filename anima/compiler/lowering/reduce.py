"""Reductions: how rows, columns and whole arrays are summed (or multiplied, compared, ...).

rows      the last dimension is reduced: a loop over it accumulates in registers. Equations over the same rows
          share the kernel, in sweeps: softmax is max, then exp and sum (its row kept in local memory), then div.
columns   the last dimension is kept: a row of accumulators in local memory, so that memory is read in order
blocks    few results from many elements: blocks of the outermost reduced loop give partial results in
          parallel, and a second kernel combines them. Block sizes depend on shapes alone, so results do
          not depend on the number of threads.

Halves accumulate in f32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from anima.compiler.ir.groups import Group
from anima.compiler.ir.index_math import Index
from anima.compiler.ir.loops import Const, Expr, Load, Op, Ref, Store
from anima.compiler.lowering.array import Indices, Scope, at, constant, scalar_type
from anima.compiler.lowering.map import Run, Space, block_extent, even_blocks, merge_runs, open_loops, write_roots
from anima.compiler.scalars.small import HALVES
from anima.core import dtypes
from anima.core.avals import Shape, ShapedArray
from anima.core.jaxpr import Eqn, Var
from anima.util import record

ROW_LIMIT = 65536        # longest row that one iteration reduces, and most elements for one thread
UNROLLED = 8             # rows up to this length are written out term by term
COLUMNS = 1024           # accumulators of a block of columns
BLOCK = 8192             # least number of elements in a block
RUN_LIMIT = 4096         # a longer loop is summed in blocks, for accuracy
MOST_BLOCKS = 4096



def _lowest(aval: ShapedArray) -> Any:
    if dtypes.issubdtype(aval.dtype, np.integer):
        return int(dtypes.iinfo(aval.dtype).min)
    return False if aval.dtype.kind == "b" else -math.inf


def _highest(aval: ShapedArray) -> Any:
    if dtypes.issubdtype(aval.dtype, np.integer):
        return int(dtypes.iinfo(aval.dtype).max)
    return True if aval.dtype.kind == "b" else math.inf


# Of each reduction: the operation and its neutral element.
REDUCTIONS: dict[str, tuple[str, Callable[[ShapedArray], Any]]] = {
    "reduce_sum": ("add", lambda aval: 0),
    "reduce_prod": ("mul", lambda aval: 1),
    "reduce_max": ("max", _lowest),
    "reduce_min": ("min", _highest),
    "reduce_and": ("and", lambda aval: -1 if dtypes.issubdtype(aval.dtype, np.signedinteger) else _highest(aval)),
    "reduce_or": ("or", lambda aval: 0),
    "reduce_xor": ("xor", lambda aval: 0),
}


def accumulator(aval: ShapedArray) -> str:
    """The scalar type in which values of a dtype are accumulated."""
    name = scalar_type(aval)
    return "f32" if name in HALVES else name


def combine(name: str, dtype: str) -> str:
    """The scalar operation of a reduction; on bools max is "or" and min is "and"."""
    if dtype == "bool":
        return {"max": "or", "min": "and", "add": "or", "mul": "and"}.get(name, name)
    return name


def strategy(shape: Shape, axes: Sequence[int]) -> str:
    """How a reduction is done: "unrolled", "rows", "columns" or "blocks"."""
    row = math.prod(shape[a] for a in axes)
    outer = math.prod(n for d, n in enumerate(shape) if d not in axes)
    if row <= UNROLLED:
        return "unrolled"
    last = max((d for d, n in enumerate(shape) if n != 1), default=-1)
    if last not in axes:
        return "columns"
    if row * outer <= ROW_LIMIT or (outer >= 8 and row <= ROW_LIMIT):
        return "rows"
    return "blocks"


@record
class Sum:
    """One reduction inside a kernel: `value` gives the term at an index of the operand, `finish` takes the
    total at an index of the result."""

    op: str
    init: Const
    value: Callable[[Indices], Expr]
    finish: Callable[[Indices, Expr], None]


def sum_of(scope: Scope, eqn: Eqn, finish: Callable[[Indices, Expr], None]) -> Sum:
    """The `Sum` of a reduction equation."""
    aval = eqn.invars[0].aval
    dtype = accumulator(aval)
    name, neutral = REDUCTIONS[eqn.primitive.name]
    return Sum(combine(name, dtype), constant(neutral(aval), dtype),
               lambda index: scope.cast(scope.at(eqn.invars[0], index), dtype), finish)


def unrolled(scope: Scope, eqn: Eqn, index: Indices) -> Expr:
    """A short reduction at one index of its result, as a single expression."""
    aval = eqn.invars[0].aval
    axes = eqn.params["axes"]
    dtype = accumulator(aval)
    name, neutral = REDUCTIONS[eqn.primitive.name]
    total: Expr | None = None
    for place in np.ndindex(*[aval.shape[a] for a in axes]):
        where, kept = dict(zip(axes, place, strict=True)), iter(index)
        inner = tuple(scope.ix.const(where[d]) if d in where else next(kept) for d in range(aval.ndim))
        term = scope.cast(scope.at(eqn.invars[0], inner), dtype)
        total = term if total is None else scope.op(combine(name, dtype), (total, term), dtype)
    return scope.cast(constant(neutral(aval), dtype) if total is None else total, scalar_type(eqn.outvars[0].aval))


for _name in REDUCTIONS:
    at(_name)(unrolled)


# ---------------------------------------------------------------- rows


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


class Schedule:
    """In which sweep over the row each root of a group is computed, and which rows are kept for later ones."""

    def __init__(self, group: Group, producers: dict[Var, Eqn], stored: frozenset[Var]):
        members = {v: i for i, eqn in enumerate(group.roots) for v in eqn.outvars}
        known: dict[Var, int] = {}  # the first sweep that can use it
        self.sweeps: list[list[Eqn]] = []
        self.after: list[list[Eqn]] = []  # results of the rows' shape, known when a sweep begins
        self.kept: list[Var] = []
        kept_shape = tuple(n for d, n in enumerate(group.shape) if d not in group.axes)
        for eqn in group.roots:
            reads = _reads(eqn, members, producers, stored)
            sweep = max((known[v] for v in reads), default=0)
            while len(self.sweeps) <= sweep + 1:
                self.sweeps.append([])
                self.after.append([])
            reduction = is_reduction(eqn, group)
            whole = reduction or eqn.outvars[0].aval.shape == group.shape != kept_shape
            (self.sweeps if whole else self.after)[sweep].append(eqn)
            known.update((v, sweep + reduction) for v in eqn.outvars)
            if whole:
                for v in reads:
                    full = v.aval.shape == group.shape != kept_shape
                    if full and known[v] < sweep and v not in stored and v not in self.kept:
                        self.kept.append(v)


def rows_kernel(new_scope: Callable[[], Scope], group: Group, stored: frozenset[Var]) -> Scope:
    """One kernel for reductions along rows and all that is computed over the same rows."""
    space = merge_runs(_dummy(new_scope, group), group, lambda s, i: _probe(s, group, i, stored))
    outer = [r for r in space.runs if r[0] not in group.axes]
    inner = [r for r in space.runs if r[0] in group.axes]
    scope = new_scope()
    schedule = Schedule(group, scope.producers, stored)
    kinds = ["parallel"] + ["serial"] * (len(outer) - 1) if outer else []
    with ExitStack() as stack:
        values = open_loops(scope, stack, space, outer, kinds)
        row = _kept(space.index(scope, values), group)
        for var in schedule.kept:
            shape = tuple(group.shape[a] for a in group.axes)
            buffer = scope.local(scalar_type(var.aval), math.prod(shape))
            scope.scratch[var] = buffer, group.axes, shape, scope.depth
        for eqns, after in zip(schedule.sweeps, schedule.after, strict=True):
            write_roots(scope, after, row, stored)
            if eqns:
                _sweep(scope, space, values, inner, eqns, group, row, stored)
    return scope


def _kept(index: Indices, group: Group) -> Indices:
    return tuple(i for d, i in enumerate(index) if d not in group.axes)


def _dummy(new_scope: Callable[[], Scope], group: Group) -> Callable[[], Scope]:
    """Scopes in which the group's own results are loaded from memory; good for nothing but a look at the indices."""
    def make() -> Scope:
        scope = new_scope()
        scope.places = scope.places | {v: "" for eqn in group.roots for v in eqn.outvars}
        return scope
    return make


def _probe(scope: Scope, group: Group, index: Indices, stored: frozenset[Var]) -> None:
    for eqn in group.roots:
        if is_reduction(eqn, group):
            scope.at(eqn.invars[0], index)
            place = _kept(index, group)
        else:
            place = index if eqn.outvars[0].aval.shape == group.shape else _kept(index, group)
            scope.define(eqn, place)
        scope.used.append(scope.ix.flatten(place, eqn.outvars[0].aval.shape))


def _sweep(scope: Scope, space: Space, values: dict[Run, Index], inner: Sequence[Run], eqns: Sequence[Eqn],
           group: Group, row: Indices, stored: frozenset[Var]) -> None:
    """One pass over a row: its reductions, and its elements that are wanted."""
    sums = [(eqn, sum_of(scope, eqn, _row_result(scope, eqn, stored))) for eqn in eqns if is_reduction(eqn, group)]
    accumulators = {eqn: scope.var(s.init) for eqn, s in sums}

    def term(index: Indices, totals: dict[Eqn, Ref]) -> None:
        for eqn in eqns:
            if eqn in totals:
                s = found[eqn]
                scope.accumulate(totals[eqn], s.op, s.value(index))
            else:
                _write_element(scope, eqn, index, stored)

    found = dict(sums)
    _long_loop(scope, space, values, inner, term, [(eqn, found[eqn], ref) for eqn, ref in accumulators.items()])
    for eqn, s in sums:
        s.finish(row, accumulators[eqn])


def _row_result(scope: Scope, eqn: Eqn, stored: frozenset[Var]) -> Callable[[Indices, Expr], None]:
    """Takes a row's total: casts, remembers and stores it."""
    var = eqn.outvars[0]

    def finish(row: Indices, total: Expr) -> None:
        result = scope.cast(total, scalar_type(var.aval))
        scope.memo[var, row] = result
        if var in stored:
            scope.write(var, row, result)
    return finish


def _write_element(scope: Scope, eqn: Eqn, index: Indices, stored: frozenset[Var]) -> None:
    """Stores results of the whole space at an index: in memory, or in the row that is kept."""
    write_roots(scope, [eqn], index, stored)
    for var in eqn.outvars:
        if var in scope.scratch:
            scope.define(eqn, index)
            buffer, axes, shape, _ = scope.scratch[var]
            scope.store(buffer, scope.ix.flatten([index[a] for a in axes], shape), scope.memo[var, index])


def _long_loop(scope: Scope, space: Space, values: dict[Run, Index], runs: Sequence[Run],
               term: Callable[[Indices, dict[Eqn, Ref]], None], totals: Sequence[tuple[Eqn, Sum, Ref]]) -> None:
    """The loops of a row, the last one cut into blocks with totals of their own where it is long."""
    with ExitStack() as stack:
        values = values | open_loops(scope, stack, space, runs[:-1], ["serial"] * (len(runs) - 1))
        extent = space.extent(runs[-1]) if runs else 1
        if extent <= RUN_LIMIT or not any(s.op == "add" for _, s, _ in totals):
            with scope.loop(extent, "vector") as j:
                here = values | ({runs[-1]: j} if runs else {})
                term(space.index(scope, here), {eqn: ref for eqn, _, ref in totals})
            return
        blocks, size = even_blocks(extent, RUN_LIMIT // 2)
        with scope.loop(blocks, "serial") as b:
            partial = {eqn: scope.var(s.init) for eqn, s, _ in totals}
            with scope.loop(block_extent(b, size, extent), "vector", size) as j:
                here = values | {runs[-1]: scope.ix.add(scope.ix.scale(b, size), j)}
                term(space.index(scope, here), partial)
            for eqn, s, ref in totals:
                scope.accumulate(ref, s.op, partial[eqn])


# ---------------------------------------------------------------- columns and blocks


def reduce_kernels(new_scope: Callable[[], Scope], group: Group, stored: frozenset[Var],
                   emit: Callable[[str, Scope], None], new_temp: Callable[[str, int], str]) -> None:
    """Kernels for reductions that no other equation of the group depends on: one, or partial results and their sum."""
    space = merge_runs(_dummy(new_scope, group), group, lambda s, i: _probe(s, group, i, stored))
    reductions = [eqn for eqn in group.roots if is_reduction(eqn, group)]
    others = [eqn for eqn in group.roots if not is_reduction(eqn, group)]
    kept = math.prod(n for d, n in enumerate(group.shape) if d not in group.axes)
    plan = _plan(space, group, kept)
    scope = new_scope()
    if plan is None:
        sums = [sum_of(scope, eqn, _row_result(scope, eqn, stored)) for eqn in reductions]
        _write(scope, space, group, sums, others, stored, None)
        emit(reductions[0].primitive.name, scope)
        return
    blocks, _ = plan
    partials = [new_temp(accumulator(eqn.invars[0].aval), blocks * kept) for eqn in reductions]
    sums = [sum_of(scope, eqn, _store_partial(scope, buffer)) for eqn, buffer in zip(reductions, partials, strict=True)]
    _write(scope, space, group, sums, others, stored, plan)
    emit(reductions[0].primitive.name + "_blocks", scope)
    for eqn, buffer in zip(reductions, partials, strict=True):
        emit(eqn.primitive.name, _combine_partials(new_scope(), eqn, buffer, blocks, kept, stored))


def _plan(space: Space, group: Group, kept: int) -> tuple[int, int] | None:
    """(number of blocks, iterations of the first reduced loop in a block), or None to do without blocks."""
    reduced = [r for r in space.runs if r[0] in group.axes]
    total = math.prod(group.shape)
    if not reduced or total <= ROW_LIMIT:
        return None
    columns = bool(space.runs) and space.runs[-1] not in reduced
    last = space.extent(space.runs[-1]) if columns else 1
    tasks = kept // last * (-(-last // COLUMNS)) if columns else kept
    first = space.extent(reduced[0])
    if tasks >= 16 or first < 2:
        return None
    inside = total // first
    size = max(-(-BLOCK // max(inside // (kept // last if columns else kept), 1)), -(-first // MOST_BLOCKS))
    if columns:  # partial results must stay few beside the elements
        size = max(size, min(first, 32))
    if size >= first:
        return None
    return even_blocks(first, size) if size > 1 else (first, 1)


def _store_partial(scope: Scope, buffer: str) -> Callable[[Indices, Expr], None]:
    """Stores a block's total; the flat place in the buffer comes as the only index."""
    def finish(place: Indices, total: Expr) -> None:
        scope.store(buffer, place[0], total)
    return finish


def _write(scope: Scope, space: Space, group: Group, sums: Sequence[Sum], others: Sequence[Eqn],
           stored: frozenset[Var], plan: tuple[int, int] | None) -> None:
    """The kernel that runs over all elements; with `plan`, each block has totals of its own."""
    outer = [r for r in space.runs if r[0] not in group.axes]
    inner = [r for r in space.runs if r[0] in group.axes]
    columns = bool(outer) and space.runs[-1] is outer[-1]
    lanes = outer.pop() if columns else None
    kept_shape = tuple(n for d, n in enumerate(group.shape) if d not in group.axes)
    with ExitStack() as stack:
        values: dict[Run, Index] = {}
        block: Index | None = None
        first_extent: int | Expr = space.extent(inner[0]) if inner else 1
        if plan is not None:
            block = stack.enter_context(scope.loop(plan[0], "parallel"))
            first_extent = block_extent(block, plan[1], space.extent(inner[0]))
        kinds = ["serial" if plan is not None or n else "parallel" for n in range(len(outer))]
        values |= open_loops(scope, stack, space, outer, kinds)

        def place(index: Indices) -> Indices:
            kept = _kept(index, group)
            if block is None:
                return kept
            flat = scope.ix.flatten(kept, kept_shape)
            return (scope.ix.add(scope.ix.scale(block, math.prod(kept_shape)), flat),)

        def inner_loops(body: ExitStack, runs: Sequence[Run], last_kind: str) -> dict[Run, Index]:
            here = dict(values)
            for n, run in enumerate(runs):
                kind = last_kind if n == len(runs) - 1 else "serial"
                if n == 0 and block is not None:
                    step = body.enter_context(scope.loop(first_extent, kind, plan[1]))  # type: ignore[index]
                    here[run] = scope.ix.add(scope.ix.scale(block, plan[1]), step)  # type: ignore[index]
                else:
                    here[run] = body.enter_context(scope.loop(space.extent(run), kind))
            return here

        if lanes is None:
            refs = [scope.var(s.init) for s in sums]
            with ExitStack() as body:
                index = space.index(scope, inner_loops(body, inner, "vector"))
                for eqn in others:
                    write_roots(scope, [eqn], index, stored)
                for s, ref in zip(sums, refs, strict=True):
                    scope.accumulate(ref, s.op, s.value(index))
            for s, ref in zip(sums, refs, strict=True):
                s.finish(place(space.index(scope, values)), ref)
            return
        _columns(scope, space, values, lanes, lambda body: inner_loops(body, inner, "serial"), sums, others, stored,
                 place, first=plan is None and not outer)


def _columns(scope: Scope, space: Space, values: dict[Run, Index], lanes: Run,
             open_inner: Callable[[ExitStack], dict[Run, Index]], sums: Sequence[Sum], others: Sequence[Eqn],
             stored: frozenset[Var], place: Callable[[Indices], Indices], first: bool) -> None:
    """Accumulates rows of a block of columns in local memory."""
    extent = space.extent(lanes)
    blocks, size = even_blocks(extent, COLUMNS) if extent > COLUMNS else (1, extent)
    with scope.loop(blocks, "parallel" if first else "serial") as c:
        base = scope.ix.scale(c, size)
        width = block_extent(c, size, extent) if blocks > 1 else size
        buffers = [scope.local(s.init.dtype, size) for s in sums]
        with scope.loop(width, "vector", size) as j:
            for s, buffer in zip(sums, buffers, strict=True):
                scope.emit(Store(buffer, j.expr(), s.init))
        with ExitStack() as body:
            here = open_inner(body)
            with scope.loop(width, "vector", size) as j:
                index = space.index(scope, here | {lanes: scope.ix.add(base, j)})
                for eqn in others:
                    write_roots(scope, [eqn], index, stored)
                for s, buffer in zip(sums, buffers, strict=True):
                    value = s.value(index)
                    old = scope.let(Load(buffer, j.expr(), s.init.dtype), scope.depth)
                    scope.emit(Store(buffer, j.expr(), Op(s.op, (old, value), s.init.dtype)))
        with scope.loop(width, "vector", size) as j:
            index = space.index(scope, values | {lanes: scope.ix.add(base, j)})
            for s, buffer in zip(sums, buffers, strict=True):
                s.finish(place(index), scope.let(Load(buffer, j.expr(), s.init.dtype), scope.depth))


def _combine_partials(scope: Scope, eqn: Eqn, buffer: str, blocks: int, kept: int, stored: frozenset[Var]) -> Scope:
    """The kernel that adds up the blocks' totals."""
    aval = eqn.outvars[0].aval
    result = _row_result(scope, eqn, stored)
    name, neutral = REDUCTIONS[eqn.primitive.name]
    dtype = accumulator(eqn.invars[0].aval)
    init = constant(neutral(eqn.invars[0].aval), dtype)
    op = combine(name, dtype)
    if kept == 1:
        total = scope.var(init)
        with scope.loop(blocks, "vector") as b:
            scope.accumulate(total, op, scope.load(buffer, b, dtype))
        result(tuple(scope.ix.zero for _ in aval.shape), total)
        return scope
    table = Space((blocks, kept), [(0,), (1,)])
    s = Sum(op, init, lambda index: scope.load(buffer, scope.ix.flatten(index, table.shape), dtype),
            lambda place, total: result(scope.ix.unflatten(place[0], aval.shape), total))

    def open_rows(body: ExitStack) -> dict[Run, Index]:
        return {(0,): body.enter_context(scope.loop(blocks, "serial"))}

    _columns(scope, table, {}, (1,), open_rows, [s], (), stored, lambda index: (index[1],), first=True)
    return scope

