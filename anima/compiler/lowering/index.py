"""Indexing with computed indices: dynamic slices, gather, scatter.

    gather: value at index  =  in bounds ? operand[start + offset, clamped] : fill
    scatter: a copy of the operand (none if the operand dies), then a loop over the updates in order

Whatever the indices are, nothing outside of a buffer is touched: windows are moved inside or left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from anima.compiler.ir.index_math import TRUE, Index, conjunction
from anima.compiler.ir.loops import INDEX, Const, Expr, Load, Op, Store, affine
from anima.compiler.ir.neutral import neutral
from anima.compiler.lowering.array import Indices, Scope, at, constant, scalar_type
from anima.compiler.lowering.calls import ProgramBuilder, call
from anima.compiler.lowering.reduce import combine as combine_op
from anima.compiler.lowering.runs import Run
from anima.compiler.scalars.small import HALVES
from anima.core.avals import Shape
from anima.core.jaxpr import Atom, Eqn
from anima.ops.gather import GatherDimensionNumbers, GatherScatterMode, default_fill, window_sizes

UNROLLED = 4    # elements of a window that are written one by one: less than a vector, and the next window may overlap
LEAST_INSIDE = 4  # updates, from which windows are walked over outside of them
PARTS = 16      # of many updates, at most, each with results of its own ...
SPARE = 4       # ... if there are so many times more updates than results,
LEAST = 1 << 13  # and so many in a part
BLOCK = 1024    # updates of which the places are computed at once, in vectors
RUNS = 16       # updates in order for each place, from which those that go to one place are looked for ...
LEAST_RUNS = 64  # ... if there are so many
GROUP = 16      # updates of which it is asked at once whether they go to one place
_COMBINE = {"scatter": None, "scatter-add": "add", "scatter-mul": "mul", "scatter-min": "min", "scatter-max": "max"}


@at("dynamic_slice")
def _dynamic_slice(scope: Scope, eqn: Eqn, index: Indices) -> Expr:
    operand, *starts = eqn.invars
    first = _starts(scope, starts, operand.aval.shape, eqn.params["slice_sizes"])
    return scope.at(operand, tuple(scope.ix.add(s, i) for s, i in zip(first, index, strict=True)))


def _starts(scope: Scope, starts: Sequence[Atom], shape: Shape, sizes: Shape) -> list[Index]:
    """The first index of a window, moved so that all of it is inside."""
    return [scope.as_index(scope.at(s, ()), 0, n - size) if n != size else scope.ix.zero
            for s, n, size in zip(starts, shape, sizes, strict=True)]


@call("dynamic_update_slice", inline=tuple(range(1, 64)))
def _dynamic_update_slice(builder: ProgramBuilder, eqn: Eqn) -> None:
    operand, update, *starts = eqn.invars
    out, aval = builder.updated(eqn), operand.aval
    if 0 in update.aval.shape:
        return
    scope = builder.scope()
    first = _starts(scope, starts, aval.shape, update.aval.shape)
    with ExitStack() as stack:
        index = tuple(_loops(scope, stack, update.aval.shape))
        place = [scope.ix.add(s, i) for s, i in zip(first, index, strict=True)]
        scope.store(out, scope.ix.flatten(place, aval.shape), scope.at(update, index))
    builder.kernel("dynamic_update_slice", scope, eqn.source)


def _loops(scope: Scope, stack: ExitStack, sizes: Sequence[int], inner: str = "each") -> list[Index]:
    """Loops over all indices of a shape, the innermost one of kind `inner`."""
    last = max((d for d, n in enumerate(sizes) if n != 1), default=-1)
    return [stack.enter_context(scope.loop(n, inner if d == last else "each")) for d, n in enumerate(sizes)]


# ---------------------------------------------------------------- windows


def _windows(scope: Scope, indices: Atom, batch: Sequence[Index], shape: Shape, sizes: Shape,
             dims: GatherDimensionNumbers, mode: GatherScatterMode, guarded: bool = False) -> tuple[list[Index], Expr]:
    """The first index, in each dimension of the operand, of the window of a batch index; whether it is inside.

    `guarded`: the index is used only where it is.
    """
    starts = [scope.ix.zero] * len(shape)
    checks: list[Expr] = []
    for d, b in zip(dims.operand_batching_dims, dims.start_indices_batching_dims, strict=True):
        starts[d] = batch[b]
    for j, d in enumerate(dims.start_index_map):
        value = scope.at(indices, (*batch, scope.ix.const(j)))
        high = shape[d] - sizes[d]
        if not mode.clips:
            checks += _inside(scope, value, high)
        if guarded and not mode.clips and type(value) is not Const:
            wide = scope.wide_index(value)
            starts[d] = scope.ix.opaque(wide, 0, high, scope.level(wide))
        else:
            starts[d] = scope.as_index(value, 0, high)
    checks = [c for c in checks if c is not TRUE]
    if not checks:
        return starts, TRUE
    total = conjunction(checks)
    if type(total) is Op:
        total = scope.let(total, max(scope.level(c) for c in checks), "c")
    return starts, total


def _inside(scope: Scope, value: Expr, high: int) -> list[Expr]:
    """The conditions for an integer value to be in `0 .. high`."""
    if type(value) is Const:
        return [Const(0 <= value.value <= high, "bool")] if not 0 <= value.value <= high else [TRUE]
    wide = scope.wide_index(value)
    level = scope.level(wide)
    least, most = scope.ranges.of(wide)
    checks = [] if least >= 0 else [Op("ge", (wide, Const(0, INDEX)), "bool")]
    checks += [] if most <= high else [Op("le", (wide, Const(high, INDEX)), "bool")]
    return [scope.let(check, level, "c") for check in checks]


@at("gather")
def _gather(scope: Scope, eqn: Eqn, index: Indices) -> Expr:
    operand, indices = eqn.invars
    dims, sizes, mode = eqn.params["dimension_numbers"], eqn.params["slice_sizes"], eqn.params["mode"]
    batch = [i for d, i in enumerate(index) if d not in dims.offset_dims]
    offsets = iter([i for d, i in enumerate(index) if d in dims.offset_dims])
    starts, inside = _windows(scope, indices, batch, operand.aval.shape, sizes, dims, mode)
    single = {*dims.collapsed_slice_dims, *dims.operand_batching_dims}
    place = tuple(s if d in single else scope.ix.add(s, next(offsets)) for d, s in enumerate(starts))
    value = scope.at(operand, place)
    if inside is TRUE:
        return value
    dtype = scalar_type(operand.aval)
    fill = 0 if mode is GatherScatterMode.ONE_HOT else eqn.params.get("fill_value")
    fill = default_fill(operand.aval.dtype) if fill is None else fill
    outside = constant(np.asarray(fill).astype(operand.aval.dtype), dtype)
    return scope.op("select_n", (inside, outside, value), dtype)


# ---------------------------------------------------------------- scatter


@call("scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max", inline=(1, 2))
def _scatter(builder: ProgramBuilder, eqn: Eqn) -> None:
    operand, _, updates = eqn.invars
    dtype, combine = scalar_type(operand.aval), _COMBINE[eqn.primitive.name]
    if combine is None or dtype not in HALVES:
        out = builder.updated(eqn)
        if updates.aval.size and operand.aval.size:
            _scatter_updates(builder, eqn, out, dtype, combine)
        return
    out, size = builder.result(eqn.outvars[0]), operand.aval.size
    wide = builder.temp("f32", size)  # halves add up in f32 and are rounded once
    builder.copy(builder.memory(operand), wide, size)
    if updates.aval.size and size:
        _scatter_updates(builder, eqn, wide, "f32", combine)
    builder.copy(wide, out, size)


def _scatter_updates(builder: ProgramBuilder, eqn: Eqn, out: str, dtype: str, combine: str | None) -> None:
    """Combines updates into `out`, in the order of the index array."""
    operand, indices, updates = eqn.invars
    params: dict[str, Any] = eqn.params
    dims, shape = params["dimension_numbers"], operand.aval.shape
    numbers = GatherDimensionNumbers(*dims)
    sizes = window_sizes(len(shape), updates.aval.shape, dims)
    window_dims = dims.update_window_dims
    single = {*dims.inserted_window_dims, *dims.operand_batching_dims}
    batch_sizes = indices.aval.shape[:-1]
    window_shape = [updates.aval.shape[d] for d in window_dims]
    independent = bool(params.get("unique_indices"))
    single_elements = math.prod(window_shape) == 1
    parts = min(PARTS, math.prod(batch_sizes) // max(SPARE * operand.aval.size, LEAST))
    if combine is not None and not independent and single_elements and parts:
        _in_parts(builder, eqn, out, dtype, combine_op(combine, dtype), parts)
        return
    scope = builder.scope()
    run = Run(scope, dtype) if combine is not None and not independent and single_elements and _has_runs(eqn) else None
    apart = set(numbers.start_indices_batching_dims) if run is None else set()  # each in a part of the operand
    # Axes of windows along which memory is farther apart than between windows: all updates stand inside of them.
    far = min(numbers.start_index_map, default=0) if math.prod(batch_sizes) >= LEAST_INSIDE else 0
    outer = len(set(range(far)) - single)
    with ExitStack() as stack:
        window = _loops(scope, stack, window_shape[:outer])
        loops = {d: stack.enter_context(scope.loop(batch_sizes[d], "each" if independent or d in apart else "serial"))
                 for d in sorted(range(len(batch_sizes)), key=lambda d: d not in apart)}
        batch = [loops[d] for d in range(len(batch_sizes))]
        starts, inside = _windows(scope, indices, batch, shape, sizes, numbers, params["mode"].exact, guarded=True)
        stack.enter_context(scope.when(inside))
        inner = window_shape[outer:]
        window += _loops(scope, stack, inner, "unrolled" if math.prod(inner) <= UNROLLED else "each")
        in_window, in_batch = iter(window), iter(batch)
        source = tuple(next(in_window) if d in window_dims else next(in_batch) for d in range(updates.aval.ndim))
        offsets = iter(window)
        place = [s if d in single else scope.ix.add(s, next(offsets)) for d, s in enumerate(starts)]
        target = scope.ix.flatten(place, shape).expr()
        value = scope.cast(scope.at(updates, source), dtype)
        if combine is None:
            scope.emit(Store(out, target, value))
        else:
            _update(scope, run, (out, target), combine_op(combine, dtype), value)
    builder.kernel(eqn.primitive.name.replace("-", "_"), scope, eqn.source)


def _in_parts(builder: ProgramBuilder, eqn: Eqn, out: str, dtype: str, op: str, parts: int) -> None:
    """Updates of single elements, each part of which has results of its own; these are then combined in order."""
    size, count = eqn.invars[0].aval.size, math.prod(eqn.invars[1].aval.shape[:-1])
    blocks = -(-count // BLOCK)
    each = -(-blocks // parts)
    parts = -(-blocks // each)
    own = builder.temp(dtype, parts * (size + 1))
    scope = builder.scope()
    ix = scope.ix
    with scope.loop(parts, "each") as part:
        base, first = ix.scale(part, size + 1), ix.scale(part, each)
        places, values = scope.local("i32", BLOCK), scope.local(dtype, BLOCK)
        with scope.loop(size + 1, "each") as j:
            scope.store(own, ix.add(base, j), constant(neutral(op, dtype), dtype))
        with scope.serial(Op("min", (Const(each, INDEX), affine(blocks, (first.expr(), -1))), INDEX)) as number:
            begin = ix.scale(ix.add(first, ix.opaque(number, 0, each - 1, scope.depth)), BLOCK)
            rest = Op("min", (Const(BLOCK, INDEX), affine(count, (begin.expr(), -1))), INDEX)
            _in_block(scope, eqn, (own, base.expr()), begin, scope.let(rest, scope.depth, "n"), (places, values), op)
    builder.kernel(f"{eqn.primitive.name.replace('-', '_')}_parts", scope, eqn.source)
    scope = builder.scope()
    with scope.loop(size, "each") as j:
        total = scope.load(out, j, dtype)
        for place in range(0, parts * (size + 1), size + 1):
            total = scope.op(op, (total, scope.load(own, scope.ix.offset(j, place), dtype)), dtype)
        scope.store(out, j, total)
    builder.kernel(eqn.primitive.name.replace("-", "_"), scope, eqn.source)


def _in_block(scope: Scope, eqn: Eqn, target: tuple[str, Expr], begin: Index, extent: Expr, rooms: tuple[str, str],
              op: str) -> None:
    """Finds the places of a block of updates, in vectors, and what they add; then adds it. `target` has a place more
    than the operand has, for all that is outside: no update is a branch."""
    operand, indices, updates = eqn.invars
    dims, ix, (places, values) = eqn.params["dimension_numbers"], scope.ix, rooms
    sizes = window_sizes(operand.aval.ndim, updates.aval.shape, dims)
    with scope.loop(extent, "each", bound=BLOCK) as k:
        batch = ix.unflatten(ix.add(begin, k), indices.aval.shape[:-1])
        starts, inside = _windows(scope, indices, batch, operand.aval.shape, sizes, GatherDimensionNumbers(*dims),
                                  eqn.params["mode"].exact)
        place = scope.index_value(ix.flatten(starts, operand.aval.shape), "i32")
        if inside is not TRUE:
            place = scope.op("select_n", (inside, Const(operand.aval.size, "i32"), place), "i32")
        scope.store(places, k, place)
        given = iter(batch)
        source = tuple(ix.zero if d in dims.update_window_dims else next(given) for d in range(updates.aval.ndim))
        value = scope.at(updates, source)
        if type(value) is not Const:
            scope.store(values, k, scope.cast(value, "f32" if value.dtype in HALVES else value.dtype))
    dtype = "f32" if value.dtype in HALVES else value.dtype
    run = Run(scope, dtype) if _has_runs(eqn) else None

    def where(step: Expr) -> tuple[str, Expr]:
        place = scope.let(Op("cast", (Load(places, step, "i32"),), INDEX), scope.depth, "n")
        return target[0], affine(0, (target[1], 1), (place, 1))

    def one_by_one(first: Expr, count: Expr) -> None:
        with scope.serial(count) as k:
            step = scope.let(affine(0, (first, 1), (k, 1)), scope.depth, "n")
            _update(scope, run, where(step), op,
                    scope.cast(value, dtype) if type(value) is Const else Load(values, step, dtype))

    if run is None or type(value) is Const:
        one_by_one(Const(0, INDEX), extent)
        return
    groups = scope.let(Op("div", (extent, Const(GROUP, INDEX)), INDEX), scope.depth, "n")
    with scope.serial(Op("min", (groups, Const(BLOCK // GROUP, INDEX)), INDEX)) as number:
        first = scope.let(affine(0, (number, GROUP)), scope.depth, "n")
        here = scope.let(Load(places, first, "i32"), scope.depth)
        others, total = scope.var(Const(0, "i32")), scope.var(constant(neutral(op, dtype), dtype))
        with scope.loop(GROUP, "vector") as i:
            k = ix.add(ix.opaque(first, 0, BLOCK - GROUP, scope.depth), i)
            scope.accumulate(others, "or", scope.op("xor", (scope.load(places, k, "i32", scope.depth), here), "i32"))
            scope.accumulate(total, op, scope.load(values, k, dtype, scope.depth))
        alone = scope.let(Op("eq", (scope.read(others), Const(0, "i32")), "bool"), scope.depth)
        with scope.when(alone):
            _update(scope, run, where(first), op, scope.read(total))
        with scope.when(scope.let(Op("not", (alone,), "bool"), scope.depth)):
            one_by_one(first, Const(GROUP, INDEX))
    behind = scope.let(affine(0, (groups, GROUP)), scope.depth, "n")
    one_by_one(behind, scope.let(affine(0, (extent, 1), (behind, -1)), scope.depth, "n"))


def _has_runs(eqn: Eqn) -> bool:
    """Whether updates that follow each other go to one place, mostly."""
    count = math.prod(eqn.invars[1].aval.shape[:-1])
    return bool(eqn.params.get("indices_are_sorted")) and count >= max(RUNS * eqn.invars[0].aval.size, LEAST_RUNS)


def _update(scope: Scope, run: Run | None, place: tuple[str, Expr], op: str, value: Expr) -> None:
    """Combines what is at a place of memory with a value."""
    if run is not None:
        run.move(*place)
        run.update(op, value)
        return
    old = scope.let(Load(*place, value.dtype), scope.depth, "x")
    scope.emit(Store(*place, scope.let(Op(op, (old, value), value.dtype), scope.depth)))
