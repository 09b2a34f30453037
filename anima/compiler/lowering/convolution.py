"""Convolutions that are calls of `convolution` (f32, f64), or loops of their own (other types).

    conv_general_dilated x[1,56,56,64] w[3,3,64,64]   ->   Call("convolution", ("f32", "rows", "x", 0, ...))
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from anima.compiler.ir.index_math import Index, conjunction
from anima.compiler.ir.loops import Call, Const, NamedValue
from anima.compiler.lowering.along import along_lines, by_lines
from anima.compiler.lowering.array import Scope, scalar_type
from anima.compiler.lowering.calls import ProgramBuilder, call
from anima.compiler.lowering.channels import by_channels, in_channels, in_groups, zero_of
from anima.compiler.lowering.problem import Problem, problems
from anima.compiler.products.blocking import cover, exact_cover, families
from anima.compiler.products.strip_driver import STRIP_BYTES
from anima.core.avals import Shape
from anima.core.jaxpr import Eqn
from anima.util import record, replace

_LANES = 16          # of a vector of f32: costs are compared for that
_LEAST_LANES = 4     # of shorter vectors
_RUN = 20.0          # cycles to begin a run of elements that are packed
_GATHER = 14.0       # to load a vector of elements apart from each other
_TILE = 15 / 14      # for tiles of 14 rows: a row more to load what all rows have in common
_COPY = 3.0          # cycles to copy an element of the matrix
_CALL = 5000.0       # cycles until all threads are at work
_DEEP = 256          # terms of a stretch of a strip, at most
_MOST_ROWS = 1024    # outputs that are rows of one block
_MOST_SPAN = 256     # rows of a strip
_HEIGHTS = families(32)[0]
_BY_WINDOWS = ("f32", "f64")


@call("conv_general_dilated")
def _conv_general_dilated(builder: ProgramBuilder, eqn: Eqn) -> None:
    out = eqn.outvars[0]
    if out.aval.size == 0:
        return
    x, w, result = builder.memory(eqn.invars[0]), builder.memory(eqn.invars[1]), builder.result(out)
    dtype = scalar_type(out.aval)
    for problem in problems(eqn.invars[0].aval.shape, eqn.invars[1].aval.shape, out.aval.shape, eqn.params):
        if in_channels(problem) or in_groups(problem):
            by_channels(builder, problem, dtype, x, w, result)
        elif along_lines(problem):
            by_lines(builder, problem, dtype, x, w, result)
        elif dtype in _BY_WINDOWS and problem.terms:
            if not _by_product(builder, problem, dtype, x, w, result):
                _by_windows(builder, problem, dtype, x, w, result)
        else:
            _by_loops(builder, problem, dtype, x, w, result)


def is_product(p: Problem) -> bool:
    """Whether a problem is, for each element of the batch, the product of the kernel and x, as both lie in memory."""
    x = out = 1
    for s in sorted(p.space, key=lambda s: s.x, reverse=False):
        if s.places > 1 and not (s.x == x and s.out == out):
            return False
        if not (s.taps == 1 and s.start == 0 and s.step == 1 and s.places == s.size):
            return False
        x, out = x * s.places, out * s.places
    return x > 1 and p.groups == 1 and 1 in p.w[1:] and p.x[2] >= x and p.out[2] >= out


def _by_product(builder: ProgramBuilder, p: Problem, dtype: str, x: str, w: str, out: str) -> bool:
    """The call of `gemm` for a kernel of one place, where space comes last in memory; False where that is not so."""
    if not is_product(p):
        return False
    m, n, k = p.outputs, math.prod(s.places for s in p.space), p.features
    trans, lda = ("N", max(p.w[2], k)) if p.w[1] == 1 else ("T", max(p.w[1], m))
    builder.emit(Call("gemm", (dtype, trans, "N", m, n, k, 1.0, w, 0, lda, x, 0, max(p.x[2], n), 0.0, out, 0,
                               max(p.out[2], n), p.batch, 0, p.x[1], p.out[1])))
    return True


# ---------------------------------------------------------------- by windows


def cycles(x: Shape, w: Shape, out: Shape, params: dict[str, Any]) -> float:
    """What a convolution takes one core, about."""
    alike = Counter(replace(p, w_offset=0, out_offset=0, space=tuple(replace(s, start=0) for s in p.space))
                    for p in problems(x, w, out, params) if p.terms)
    return sum((ConvolutionPlanner(p).best().cost + _CALL) * n for p, n in alike.items())


Wheel = tuple[int, int, int, int, int, int]  # size; steps in x, in the result (or in w), and of three coordinates
Run = tuple[int, int, int, int]              # size; steps in x, in the result (or in w), and of the last coordinate
_ONE: Run = (1, 0, 0, 0)


@record
class ConvolutionPlan:
    """How windows are enumerated, as the arguments of `convolution`; `last` is the dimension of space whose coordinate
    moves along runs, or -1; `cost` in cycles of a core."""

    side: str
    rows: tuple[Wheel, ...]
    terms: tuple[Wheel, ...]
    places: Run
    taps: Run
    features: Run
    last: int
    cost: float

    @property
    def order(self) -> list[tuple[int, int]]:
        """Sizes, and distances in w, of all that is summed."""
        return [(n, w) for n, w in (*((t[0], t[2]) for t in self.terms), (self.taps[0], self.taps[2]),
                                    (self.features[0], self.features[2])) if n > 1]


class ConvolutionPlanner:
    """The ways to enumerate the windows of a problem."""

    def __init__(self, p: Problem) -> None:
        self.p = p
        self.batch = (p.batch, p.x[1], p.out[1], -1, 0)
        self.feature = (p.features, p.x[2], p.w[1], -1, 0)
        self.places = [(s.places, s.x * s.step, s.out, d, s.step) for d, s in enumerate(p.space)]
        self.taps = [(s.taps, s.x * s.gap, s.w, d, s.gap) for d, s in enumerate(p.space)]
        # With three dimensions, one has the last coordinate anyway.
        self.free = 2 if len(p.space) == 3 else -1

    def best(self) -> ConvolutionPlan:
        """The cheapest way."""
        return min(self.plans(), key=lambda plan: plan.cost)

    def plans(self) -> list[ConvolutionPlan]:
        """All ways."""
        p, plans = self.p, [self._rows(self.feature, self.free, _ONE, _run(self.feature)),
                            self._columns(self.batch, self.free)]
        for d, s in enumerate(p.space):
            plans += [self._rows(self.taps[d], d, _run(self.taps[d]), _ONE), self._columns(self.places[d], d)]
            if s.x == p.features * p.x[2] and s.gap == 1 == p.x[2] and s.w == p.features * p.w[1]:
                plans.append(self._rows(self.taps[d], d, _run(self.taps[d]), _run(self.feature)))
        return plans + [plan for plan in (self._strips(), self._spans(), self._lines()) if plan is not None]

    def _wheels(self, some: Sequence[tuple[int, ...]], last: int, by: int) -> tuple[Wheel, ...]:
        """Dimensions as wheels, in the order of their distances number `by`."""
        axes = {d: k for k, d in enumerate(d for d in range(len(self.p.space)) if d != last)}
        axes[last] = 2
        out = []
        for size, x, other, d, step in sorted((t for t in some if t[0] > 1), key=lambda t: -t[by]):
            moved = [0, 0, 0]
            if d >= 0:
                moved[axes[d]] = step
            out.append((size, x, other, *moved))
        return tuple(out)  # type: ignore[arg-type]

    def _rows(self, run: tuple[int, ...], last: int, taps: Run, features: Run) -> ConvolutionPlan:
        """A run is of terms."""
        p, used = self.p, {run[3], -1 if features[0] > 1 or run is self.feature else -2}
        rows = self._wheels([self.batch, *self.places], last, 1)
        terms = self._wheels([t for t in (self.feature, *self.taps) if t[3] not in used], last, 2)
        length, stride = taps[0] * features[0], features[1] if features[0] > 1 else taps[1] if taps[0] > 1 else 1
        sums = p.positions * _TILE * _ceil(p.outputs, _LANES) * max(p.terms / 2, 1.0)
        plan = ConvolutionPlan("rows", rows, terms, _ONE, taps, features, last, 0.0)
        return self._priced(plan, sums, length, stride, _ceil(p.outputs, 256), p.out[2] == 1)

    def _columns(self, run: tuple[int, ...], last: int) -> ConvolutionPlan:
        """A run is of rows."""
        p = self.p
        rows = self._wheels([t for t in (self.batch, *self.places) if t[3] != run[3]], last, 2)
        terms = self._wheels([self.feature, *self.taps], last, 2)
        sums = _ceil(p.positions, _LANES) * max(p.outputs + p.outputs % 2 + 1, 3) * p.terms / 2
        plan = ConvolutionPlan("columns", rows, terms, _run(run), _ONE, _ONE, last, 0.0)
        return self._priced(plan, sums, min(run[0], 2 * _LANES), run[1], 1, run[2] == 1)

    def _priced(self, plan: ConvolutionPlan, sums: float, length: int, stride: int, times: int,
                straight: bool) -> ConvolutionPlan:
        p = self.p
        vectors = _ceil(length, _LANES) * (4.0 if stride == 1 else _GATHER)
        pack = p.positions * p.terms / length * (_RUN + vectors) * times
        write = p.positions * p.outputs * (1 / _LANES if straight else 1.5)
        copy = 0.0 if matrix_steps(p, plan) else p.terms * p.outputs * _COPY
        return replace(plan, cost=p.groups * (sums + pack + write + copy))

    def _line(self) -> int | None:
        """The dimension of space along which lines of x lie, where features (or the batch) are next to each other."""
        space = self.p.space
        return min(range(len(space)), key=lambda d: space[d].x) if space else None

    def _strips(self) -> ConvolutionPlan | None:
        """Windows are rows, and read features, which are next to each other, from strips."""
        p, d = self.p, self._line()
        if d is None or (p.x[2] != 1 and p.features > 1):
            return None
        s = p.space[d]
        features = _part(p.features, max(_DEEP // s.taps, 1))
        high, low, first, tiles = cover(s.places, _HEIGHTS)
        strip = ((high - 1) * s.step + (s.taps - 1) * s.gap + 1) * features
        if features * 4 < min(p.features, 16) or strip * 8 > STRIP_BYTES:
            return None
        rows = self._wheels([t for t in (self.batch, *self.places) if t[3] != d], d, 1)
        more = [(p.features // features, features, features * p.w[1], -1, 0)]
        terms = self._wheels([*more, *(t for t in self.taps if t[3] != d)], d, 2)
        lines = p.positions // s.places
        steps = first * max(high + 1, 6) + (tiles - first) * max(low + 1, 6)
        sums = lines * steps * _ceil(p.outputs, _LANES) * p.terms / 2
        runs = p.terms // (features * s.taps)
        vectors = strip / _LANES * 1.2 if s.x == features else strip / features * (12.0 + _ceil(features, _LANES))
        stretches = 1 if s.gap == 1 and s.w == features * p.w[1] else s.taps
        calls = _ceil(p.outputs, 2 * _LANES) * (60.0 + 15.0 * stretches * runs)
        pack = lines * tiles * (runs * (20.0 + vectors) + calls)
        write = p.positions * p.outputs * (2 / _LANES if p.out[2] == 1 else 0.4 if s.out == 1 else 1.5)
        copy = 0.0 if self._straight() else p.terms * p.outputs * _COPY
        return ConvolutionPlan("strips", rows, terms, _run(self.places[d]), _run(self.taps[d]),
                               (features, 1, p.w[1], 0), d, p.groups * (sums + pack + write + copy))

    def _spans(self) -> ConvolutionPlan | None:
        """Windows are rows, together with the batch, whose few elements are next to each other in lines of x."""
        p, d = self.p, self._line()
        if d is None or (p.x[1] != 1 and p.batch > 1):
            return None
        s = p.space[d]
        size = s.places * p.batch
        strip = ((s.taps - 1) * s.gap + s.places) * p.batch
        if s.step != 1 or s.x != p.batch or size > _MOST_SPAN or strip * 8 > STRIP_BYTES:
            return None
        high, low, first, tiles = cover(size, _HEIGHTS)
        others = self._wheels([t for t in self.places if t[3] != d], d, 2)
        terms = self._wheels([self.feature, *(t for t in self.taps if t[3] != d)], d, 2)
        lines, runs = p.positions // size, p.terms // s.taps
        steps = first * max(high + 1, 6) + (tiles - first) * max(low + 1, 6)
        sums = lines * steps * _ceil(p.outputs, _LANES) * p.terms / 2
        pack = lines * tiles * runs * (40.0 + 1.5 * strip / _LANES + 15.0 * _ceil(p.outputs, 2 * _LANES))
        copy = 0.0 if self._straight() else p.terms * p.outputs * _COPY
        rows = (*others, (p.batch, 1, p.out[1], 0, 0, 0))
        return ConvolutionPlan("spans", rows, terms, _run(self.places[d]), _run(self.taps[d]), _ONE, d,
                               p.groups * (sums + pack + p.positions * p.outputs * 0.5 + copy))

    def _straight(self) -> bool:
        """Whether outputs lie next to each other in w, in whole vectors."""
        return self.p.w[2] == 1 and self.p.outputs % _LANES == 0

    def _lines(self) -> ConvolutionPlan | None:
        """Windows are columns of elements of the batch, next to each other; lines of x are read where they are."""
        p, d = self.p, self._line()
        tiles = exact_cover(p.outputs, _HEIGHTS)
        lanes = min(p.batch & -p.batch, _LANES)  # of vectors that are whole ones
        if d is None or p.x[1] != 1 or lanes < _LEAST_LANES or p.outputs > _MOST_ROWS or tiles is None:
            return None
        s = p.space[d]
        rows = self._wheels(self.places, d, 2)
        terms = self._wheels([self.feature, *(t for t in self.taps if t[3] != d)], d, 2)
        panels = p.positions // p.batch * _ceil(p.batch, 2 * lanes)
        runs = p.terms // s.taps
        sums = panels * (p.outputs + tiles[3]) * p.terms
        steps = panels * runs * (30.0 + 20.0 * tiles[3])
        write = p.positions * p.outputs * 1.5
        return ConvolutionPlan("lines", rows, terms, (p.batch, 1, p.out[1], 0), _run(self.taps[d]), _ONE, d,
                               p.groups * (sums + steps + write))


def _run(dim: tuple[int, ...]) -> Run:
    return dim[0], dim[1], dim[2], dim[4]


def _part(n: int, most: int) -> int:
    """The largest divisor of n that is no more than `most`."""
    return next(k for k in range(min(n, most), 0, -1) if n % k == 0)


def _ceil(x: int, y: int) -> int:
    return -(-x // y)


def matrix_steps(p: Problem, plan: ConvolutionPlan) -> tuple[int, int] | None:
    """The distances in w of terms, in the plan's order, and of outputs; None if terms are not evenly spread, or outputs
    not next to each other where they are columns (or terms, where outputs are rows)."""
    if any(a != m * b for (_, a), (m, b) in itertools.pairwise(plan.order)):
        return None
    term = plan.order[-1][1] if plan.order else 1
    if p.outputs > 1 and p.w[2] != 1 and (plan.side == "rows" or term != 1):
        return None
    return term, p.w[2] if p.outputs > 1 else 1


def _by_windows(builder: ProgramBuilder, p: Problem, dtype: str, x: str, w: str, out: str) -> None:
    """The call of `convolution` that is cheapest."""
    plan = ConvolutionPlanner(p).best()
    steps: tuple[int, int] | None
    if plan.side == "lines":
        steps = plan.taps[2], p.w[2]
    elif plan.side in ("strips", "spans"):
        steps = (0, 1) if p.w[2] == 1 and p.outputs % _LANES == 0 else None
    else:
        steps = matrix_steps(p, plan)
    if steps is None:
        p, plan, w = _copied(builder, p, plan, dtype, w)
        steps = p.w[1], 1
    free = [d for d in range(len(p.space)) if d != plan.last]
    starts, sizes, base = [0, 0, 0], [1, 1, 1], 0
    for axis, d in (*enumerate(free), *([(2, plan.last)] if plan.last >= 0 else [])):
        s = p.space[d]
        starts[axis], sizes[axis], base = s.start, s.size, base + s.start * s.x

    def wheels(some: Sequence[Wheel]) -> list[int]:
        return [n for wheel in [(1, 0, 0, 0, 0, 0)] * (4 - len(some)) + list(some) for n in wheel]

    builder.emit(Call("convolution", (
        dtype, plan.side, x, base, w, p.w_offset, out, p.out_offset,
        p.groups, p.x[0], p.w[0], p.out[0], p.outputs, steps[1], p.out[2], steps[0],
        *wheels(plan.rows), *wheels(plan.terms), *starts, *sizes, *plan.places, *plan.taps, *plan.features[:3])))


def _copied(builder: ProgramBuilder, p: Problem, plan: ConvolutionPlan, dtype: str,
            w: str) -> tuple[Problem, ConvolutionPlan, str]:
    """A copy of the kernel: for each group, a row for each term in the plan's order. The problem and plan with it."""
    padded = _ceil(p.outputs, _LANES) * _LANES if plan.side in ("strips", "spans") else p.outputs
    dims = [(p.groups, p.w[0]), *plan.order, (padded, p.w[2])]
    wheels = [d for d in dims if d[0] > 1]
    size = math.prod(n for n, _ in wheels)
    buffer, scope = builder.temp(dtype, size), builder.scope()
    ix = scope.ix
    with ExitStack() as stack:
        index = [stack.enter_context(scope.loop(n, "each")) for n, _ in wheels]
        source, inside = ix.const(p.w_offset), None
        for place, (i, (_, step)) in enumerate(zip(index, wheels, strict=True)):
            if padded > p.outputs and place == len(wheels) - 1:
                inside = ix.less(i, p.outputs)
                i = ix.clamp(i, 0, p.outputs - 1)
            source = ix.add(source, ix.scale(i, step))
        value = scope.load(w, source, dtype)
        if inside is not None:
            value = scope.op("select_n", (scope.condition(inside, scope.depth), Const(0.0, dtype), value), dtype)
        scope.store(buffer, ix.flatten(index, [n for n, _ in wheels]), value)
    builder.kernel("pack", scope)
    return _repacked(p, padded), _with_order(plan, padded), buffer


def _repacked(p: Problem, row: int) -> Problem:
    """The problem with a kernel of rows of that length, one for each term."""
    return replace(p, w=(p.terms * row, row, 1), w_offset=0)


def _with_order(plan: ConvolutionPlan, row: int) -> ConvolutionPlan:
    """The plan with the distances in such a kernel."""
    def taken(n: int) -> int:
        nonlocal row
        before, row = row, row * n
        return before

    features = (*plan.features[:2], taken(plan.features[0]), plan.features[3])
    taps = (*plan.taps[:2], taken(plan.taps[0]), plan.taps[3])
    terms = [(t[0], t[1], taken(t[0]), *t[3:]) for t in reversed(plan.terms)]
    return replace(plan, features=features, taps=taps, terms=tuple(reversed(terms)))  # type: ignore[arg-type]


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
        for d in order:
            index[d] = stack.enter_context(scope.loop(dims[d][0], "vector" if d == order[-1] else "each"))

        def place(start: int, which: int) -> Index:
            total = ix.const(start)
            for i, dim in zip(index, dims, strict=True):
                total = ix.add(total, ix.scale(i, dim[which]))
            return total

        total = scope.var(zero_of(dtype))
        if p.terms:
            _add_terms(scope, p, dtype, (x, place(0, 1)), (w, place(p.w_offset, 2)), index[3:], total)
        scope.store(out, place(p.out_offset, 3), scope.read(total))
    builder.kernel("convolution", scope)


def _add_terms(scope: Scope, p: Problem, dtype: str, x: tuple[str, Index], w: tuple[str, Index],
               places: Sequence[Index], total: NamedValue) -> None:
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
            near = ix.sub(ix.clamp(at, 0, s.size - 1), ix.scale(i, s.step))
            x_place, w_place = ix.add(x_place, ix.scale(near, s.x)), ix.add(w_place, ix.scale(k, s.w))
        c = term(p.features)
        x_place, w_place = ix.add(x_place, ix.scale(c, p.x[2])), ix.add(w_place, ix.scale(c, p.w[1]))
        value = scope.load(x[0], x_place, dtype)
        inside = scope.condition(conjunction(conditions), scope.depth)
        if type(inside) is not Const:
            value = scope.op("select_n", (inside, zero_of(dtype), value), dtype)
        elif not inside.value:
            return
        product = scope.op("and" if dtype == "bool" else "mul", (value, scope.load(w[0], w_place, dtype)), dtype)
        scope.accumulate(total, "or" if dtype == "bool" else "add", product)
