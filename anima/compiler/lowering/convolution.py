"""Convolutions that are calls of `convolution` (f32, f64), or loops of their own (other types).

    conv_general_dilated x[1,56,56,64] w[3,3,64,64]   ->   Call("convolution", ("f32", "rows", "x", 0, ...))

With gaps between the elements of `x`, the output is cut into phases: every phase is a convolution without gaps, by the
part of the kernel whose places meet elements. So nothing is multiplied by what is only inserted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from anima.compiler.ir.index_math import Index, conjunction
from anima.compiler.ir.loops import Call, Const, Ref
from anima.compiler.lowering.array import Scope, scalar_type
from anima.compiler.lowering.calls import ProgramBuilder, call
from anima.compiler.lowering.map import loop_kinds
from anima.core.avals import Shape
from anima.core.jaxpr import Eqn
from anima.util import record

_LANES = 16          # of a vector of f32: costs are compared for that
_RUN = 8.0           # cycles to begin a run of elements that are packed
_GATHER = 14.0       # to load a vector of elements apart from each other
_COPY = 3.0          # cycles to copy an element of the matrix
_STILL = 1 << 30     # elements of a run of terms that the last coordinate stays the same for: all
_BY_WINDOWS = ("f32", "f64")


@record
class Space:
    """One dimension of space: the output has `places`, `step` elements of x apart, the kernel `taps`, `gap` apart, and
    the first of both is at `start` in x, which has `size`; x, w and out are distances in memory."""

    places: int
    taps: int
    step: int
    gap: int
    start: int
    size: int
    x: int
    w: int
    out: int


@record
class Problem:
    """A convolution without gaps: sizes, and distances in memory by dimension."""

    groups: int
    batch: int
    features: int
    outputs: int
    x: tuple[int, int, int]      # of groups, batch, features
    w: tuple[int, int, int]      # of groups, features, outputs
    out: tuple[int, int, int]    # of groups, batch, outputs
    space: tuple[Space, ...]
    w_offset: int = 0
    out_offset: int = 0

    @property
    def terms(self) -> int:
        return self.features * math.prod(s.taps for s in self.space)

    @property
    def positions(self) -> int:
        return self.batch * math.prod(s.places for s in self.space)


def problems(eqn: Eqn) -> Iterator[Problem]:
    """The convolutions, without gaps, that an equation is made of: one for each phase of the output."""
    (x, w), out, p = [v.aval.shape for v in eqn.invars], eqn.outvars[0].aval.shape, eqn.params
    lhs, rhs, res = p["dimension_numbers"]
    xs, ws, os = map(_strides, (x, w, out))
    features, batches = p["feature_group_count"], p["batch_group_count"]
    groups = features * batches
    batch, outputs = x[lhs[0]] // batches, w[rhs[0]] // groups
    x_group = xs[lhs[0]] * batch if batches > 1 else xs[lhs[1]] * w[rhs[1]]
    dims = []
    for d in range(len(x) - 2):
        a, b, c = lhs[2 + d], rhs[2 + d], res[2 + d]
        space = Space(out[c], w[b], p["window_strides"][d], p["rhs_dilation"][d], -p["padding"][d][0], x[a],
                      xs[a], ws[b], os[c])
        dims.append(list(_phases(space, p["lhs_dilation"][d])))
    for phase in itertools.product(*dims):
        yield Problem(groups, batch, w[rhs[1]], outputs, (x_group, xs[lhs[0]], xs[lhs[1]]),
                      (ws[rhs[0]] * outputs, ws[rhs[1]], ws[rhs[0]]), (os[res[1]] * outputs, os[res[0]], os[res[1]]),
                      tuple(s for s, _, _ in phase), sum(n for _, n, _ in phase), sum(n for _, _, n in phase))


def _strides(shape: Shape) -> list[int]:
    return [math.prod(shape[d + 1:]) for d in range(len(shape))]


def _phases(space: Space, apart: int) -> Iterator[tuple[Space, int, int]]:
    """The phases along one dimension, with where their kernel and their output begin."""
    every, some = apart // math.gcd(space.step, apart), apart // math.gcd(space.gap, apart)
    for phase in range(min(every, space.places)):
        base = phase * space.step + space.start
        first = next((k for k in range(min(some, space.taps)) if (base + k * space.gap) % apart == 0), space.taps)
        yield replace(
            space, places=-(-(space.places - phase) // every), taps=max(-(-(space.taps - first) // some), 0),
            step=every * space.step // apart, gap=some * space.gap // apart,
            start=(base + first * space.gap) // apart, w=space.w * some,
            out=space.out * every), first * space.w, phase * space.out


@call("conv_general_dilated")
def _conv_general_dilated(builder: ProgramBuilder, eqn: Eqn) -> None:
    out = eqn.outvars[0]
    if out.aval.size == 0:
        return
    x, w, result = builder.memory(eqn.invars[0]), builder.memory(eqn.invars[1]), builder.result(out)
    dtype = scalar_type(out.aval)
    for problem in problems(eqn):
        if dtype in _BY_WINDOWS and problem.terms:
            _by_windows(builder, problem, dtype, x, w, result)
        else:
            _by_loops(builder, problem, dtype, x, w, result)


# ---------------------------------------------------------------- by windows


Wheel = tuple[int, int, int, int, int, int]  # size; steps in x, in the result (or in w), and of three coordinates


@record
class Plan:
    """How windows are enumerated: which are the matrix's rows, in which order; a run has `length` terms or rows."""

    side: str                   # "rows" or "columns"
    rows: tuple[Wheel, ...]
    terms: tuple[Wheel, ...]
    length: int
    stride: int
    step: int
    row_out: int
    run_w: int                  # of a run of terms: the distance of terms in w
    last: int                   # the dimension of space whose coordinate moves along runs, or -1


def plans(p: Problem) -> Iterator[Plan]:
    """All ways to enumerate windows."""
    n = len(p.space)
    batch = (p.batch, p.x[1], p.out[1], -1, 0)
    feature = (p.features, p.x[2], p.w[1], -1, 0)
    places = [(s.places, s.x * s.step, s.out, d, s.step) for d, s in enumerate(p.space)]
    taps = [(s.taps, s.x * s.gap, s.w, d, s.gap) for d, s in enumerate(p.space)]

    def plan(side: str, run: Sequence[int], last: int, length: int, stride: int, step: int, rows: list[Any],
             terms: list[Any]) -> Plan:
        axes = {d: k for k, d in enumerate([d for d in range(n) if d != last])} | ({last: 2} if last >= 0 else {})

        def wheel(size: int, x: int, other: int, d: int, step: int) -> Wheel:
            moved = [0, 0, 0]
            if d >= 0:
                moved[axes[d]] = step
            return size, x, other, *moved  # type: ignore[return-value]

        ordered = [sorted((t for t in some if t[0] > 1), key=lambda t: -t[2 - (side == "rows" and some is rows)])
                   for some in (rows, terms)]
        return Plan(side, *(tuple(wheel(*t) for t in some) for some in ordered), length, stride, step,  # type: ignore[misc]
                    run[2] if side == "columns" else 0, run[2] if side == "rows" else 0, last)

    free = n - 1 if n == 3 else -1  # with three dimensions, one has the last coordinate anyway
    yield plan("rows", feature, free, p.features, p.x[2], _STILL if p.x[2] == 1 else 0, [batch, *places], taps)
    yield plan("columns", batch, free, p.batch, p.x[1], 0, places, [feature, *taps])
    for d, s in enumerate(p.space):
        if s.x == p.features * p.x[2] and s.gap == 1 and p.x[2] == 1 and s.w == p.features * p.w[1]:
            yield plan("rows", feature, d, p.features * s.taps, 1, p.features, [batch, *places],
                       [t for t in taps if t[3] != d])
        yield plan("rows", taps[d], d, s.taps, s.x * s.gap, s.gap, [batch, *places],
                   [feature, *(t for t in taps if t[3] != d)])
        yield plan("columns", places[d], d, s.places, s.x * s.step, s.step,
                   [batch, *(t for t in places if t[3] != d)], [feature, *taps])


def _matrix(p: Problem, plan: Plan) -> tuple[int, int] | None:
    """The distances in w of terms, in the plan's order, and of outputs; None if terms are not evenly spread, or outputs
    not next to each other where they are columns (or terms, where outputs are rows)."""
    wheels = [(t[0], t[2]) for t in plan.terms]
    if plan.side == "rows" and plan.length > 1:
        wheels.append((plan.length, plan.run_w))
    if any(a != m * b for (_, a), (m, b) in itertools.pairwise(wheels)):
        return None
    term = wheels[-1][1] if wheels else 1
    if p.outputs > 1 and p.w[2] != 1 and (plan.side == "rows" or term != 1):
        return None
    return term, p.w[2] if p.outputs > 1 else 1


def cycles(p: Problem, plan: Plan) -> float:
    """What a plan costs a core, about."""
    rows, columns, terms = p.positions, p.outputs, p.terms
    by_rows = plan.side == "rows"
    if by_rows:
        sums = rows * _ceil(columns, _LANES) * max(terms / 2, 1.0)
        length, times = plan.length, _ceil(columns, 256)
    else:
        sums = _ceil(rows, _LANES) * max(columns + columns % 2 + 1, 3) * terms / 2
        length, times = min(plan.length, 2 * _LANES), 1
    vectors = _ceil(length, _LANES) * (1.5 if plan.stride == 1 else _GATHER)
    pack = rows * terms / length * (_RUN + vectors) * times
    straight = p.out[2] == 1 if by_rows else plan.row_out == 1
    write = rows * columns * (1 / _LANES if straight else 1.5)
    copy = 0.0 if _matrix(p, plan) else terms * columns * _COPY
    return p.groups * (sums + pack + write + copy)


def _ceil(x: int, y: int) -> int:
    return -(-x // y)


def _by_windows(builder: ProgramBuilder, p: Problem, dtype: str, x: str, w: str, out: str) -> None:
    """The call of `convolution` that is cheapest."""
    plan = min(plans(p), key=lambda plan: cycles(p, plan))
    matrix, w_offset, w_group = _matrix(p, plan), p.w_offset, p.w[0]
    if matrix is None:
        w = _copied(builder, p, plan, dtype, w)
        matrix, w_offset, w_group = (p.outputs, 1), 0, p.terms * p.outputs
    free = [d for d in range(len(p.space)) if d != plan.last]
    starts, sizes, base = [0, 0, 0], [1, 1, 1], 0
    for axis, d in (*enumerate(free), *([(2, plan.last)] if plan.last >= 0 else [])):
        s = p.space[d]
        starts[axis], sizes[axis], base = s.start, s.size, base + s.start * s.x

    def wheels(some: Sequence[Wheel]) -> list[int]:
        return [n for wheel in [(1, 0, 0, 0, 0, 0)] * (4 - len(some)) + list(some) for n in wheel]

    by_rows = plan.side == "rows"
    builder.emit(Call("convolution", (
        dtype, plan.side, x, base, w, w_offset, out, p.out_offset,
        p.groups, p.x[0], w_group, p.out[0], p.outputs, matrix[1], p.out[2], matrix[0],
        *wheels(plan.rows), *wheels(plan.terms), *starts, *sizes, 1 if by_rows else plan.length, plan.row_out,
        plan.length if by_rows else 1, plan.stride, plan.step)))


def _copied(builder: ProgramBuilder, p: Problem, plan: Plan, dtype: str, w: str) -> str:
    """A copy of the kernel: for each group, a row for each term in the plan's order."""
    wheels = [(p.groups, p.w[0]), *((t[0], t[2]) for t in plan.terms)]
    if plan.side == "rows":
        wheels.append((plan.length, plan.run_w))
    wheels = [wheel for wheel in (*wheels, (p.outputs, p.w[2])) if wheel[0] > 1]
    size = math.prod(n for n, _ in wheels)
    buffer, scope = builder.temp(dtype, size), builder.scope()
    ix = scope.ix
    with ExitStack() as stack:
        index = [stack.enter_context(scope.loop(n, kind))
                 for (n, _), kind in zip(wheels, loop_kinds(len(wheels)), strict=True)]
        source = ix.const(p.w_offset)
        for i, (_, step) in zip(index, wheels, strict=True):
            source = ix.add(source, ix.scale(i, step))
        scope.store(buffer, ix.flatten(index, [n for n, _ in wheels]), scope.load(w, source, dtype))
    builder.kernel("pack", scope)
    return buffer


# ---------------------------------------------------------------- by loops


def _by_loops(builder: ProgramBuilder, p: Problem, dtype: str, x: str, w: str, out: str) -> None:
    """A loop over the output, and sums in its order."""
    scope = builder.scope()
    ix = scope.ix
    n = len(p.space)
    # size; distances in x, w and out
    dims = [(p.groups, p.x[0], p.w[0], p.out[0]), (p.batch, p.x[1], 0, p.out[1]), (p.outputs, 0, p.w[2], p.out[2]),
            *((s.places, s.step * s.x, 0, s.out) for s in p.space)]
    order = sorted((d for d in range(3 + n) if dims[d][0] > 1), key=lambda d: -dims[d][3])
    index = [ix.zero] * (3 + n)
    with ExitStack() as stack:
        for d, kind in zip(order, loop_kinds(len(order)), strict=True):
            index[d] = stack.enter_context(scope.loop(dims[d][0], kind))

        def place(start: int, which: int) -> Index:
            total = ix.const(start)
            for i, dim in zip(index, dims, strict=True):
                total = ix.add(total, ix.scale(i, dim[which]))
            return total

        zero = Const(False if dtype == "bool" else 0.0 if dtype[0] in "fb" else 0, dtype)
        total = scope.var(zero)
        if p.terms:
            _add_terms(scope, p, dtype, (x, place(0, 1)), (w, place(p.w_offset, 2)), index[3:], total)
        scope.store(out, place(p.out_offset, 3), scope.read(total))
    builder.kernel("convolution", scope)


def _add_terms(scope: Scope, p: Problem, dtype: str, x: tuple[str, Index], w: tuple[str, Index],
               places: Sequence[Index], total: Ref) -> None:
    """Adds all terms of a sum to a variable."""
    ix = scope.ix
    with ExitStack() as stack:
        def term(size: int) -> Index:
            if size == 1:
                return ix.zero
            counter = stack.enter_context(scope.serial(size))
            return ix.opaque(counter, 0, size - 1, scope.depth)

        (_, x_place), (_, w_place) = x, w
        conditions = []
        for s, i in zip(p.space, places, strict=True):
            k = term(s.taps)
            at = ix.add(ix.offset(ix.scale(i, s.step), s.start), ix.scale(k, s.gap))
            conditions += [ix.at_least(at, 0), ix.less(at, s.size)]
            inside = ix.sub(ix.clamp(at, 0, s.size - 1), ix.scale(i, s.step))
            x_place, w_place = ix.add(x_place, ix.scale(inside, s.x)), ix.add(w_place, ix.scale(k, s.w))
        c = term(p.features)
        x_place, w_place = ix.add(x_place, ix.scale(c, p.x[2])), ix.add(w_place, ix.scale(c, p.w[1]))
        value = scope.load(x[0], x_place, dtype)
        inside = scope.condition(conjunction(conditions), scope.depth)
        zero = Const(False if dtype == "bool" else 0.0 if dtype[0] in "fb" else 0, dtype)
        if type(inside) is not Const:
            value = scope.op("select_n", (inside, zero, value), dtype)
        elif not inside.value:
            return
        product = scope.op("and" if dtype == "bool" else "mul", (value, scope.load(w[0], w_place, dtype)), dtype)
        scope.accumulate(total, "or" if dtype == "bool" else "add", product)
