"""Kernels that compute each element by itself, and the loops over a space of indices.

An `IterationSpace` is a shape whose dimensions are grouped in runs: consecutive dimensions that one loop can run
over, because every access steps through them alike. `merge_runs` finds them by writing the kernel once
with a loop for each dimension and looking at the indices that came out.

    f32[64,32,16] + f32[1,1,16]:   runs (0, 1), (2)    ->    for i < 2048: for j < 16
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack

from anima.compiler.ir.groups import LARGE, LOAD, MOST_BOXES, PIECES, TURNS, Group
from anima.compiler.ir.index_math import Index, IndexAtom
from anima.compiler.ir.loops import INDEX, Expr, For
from anima.compiler.lowering.array import ROW, Indices, Scope
from anima.core.avals import Shape
from anima.core.jaxpr import Eqn, Var
from anima.util import replace

Run = tuple[int, ...]
Part = tuple[int, int]  # from, to
Box = tuple[Part, ...]
THIN = 8  # parts of a dimension, of each of which what is computed in vain does not matter
SPARSE = 1024  # elements of an array, for each row of a frame that one kernel goes through ...
LITTLE = 1 << 13  # ... if it has more than these
ASIDE = 2  # how much more there is to do inside of it, at least: it does everywhere what is to be done somewhere
SMALL = 1024  # elements of boxes that share a kernel where there are many
FEW_COLUMNS = 8  # of which vectors are put together with ease
TURNED = 64  # statements of all columns of such rows, at most, where arrays are turned


class IterationSpace:
    """A shape and the runs of its dimensions; dimensions of size 1 are in no run.

    `parts` has for each dimension the sizes that it is cut into, outer loops first: of most it is one, their own. Runs
    are of parts, by their number among all; `of` tells the dimension of each.
    """

    def __init__(self, parts: Sequence[Shape], runs: Sequence[Run]):
        self.parts = parts
        self.sizes = [n for sizes in parts for n in sizes]
        self.of = [d for d, sizes in enumerate(parts) for _ in sizes]
        self.runs = list(runs)

    @classmethod
    def separate(cls, parts: Sequence[Shape]) -> IterationSpace:
        """One run for each part of a dimension."""
        space = cls(parts, ())
        space.runs = [(k,) for k, n in enumerate(space.sizes) if n != 1]
        return space

    @classmethod
    def flat(cls, shape: Shape, axes: Sequence[int] = ()) -> IterationSpace:
        """As few runs as possible without mixing dimensions in `axes` with others."""
        runs: list[Run] = []
        for d, n in enumerate(shape):
            if n == 1:
                continue
            if runs and (runs[-1][0] in axes) == (d in axes):
                runs[-1] += (d,)
            else:
                runs.append((d,))
        return cls([(n,) for n in shape], runs)

    def extent(self, run: Run) -> int:
        return math.prod(self.sizes[k] for k in run)

    def inside(self, run: Run, axes: Sequence[int]) -> bool:
        """Whether a run is of dimensions in `axes`."""
        return self.of[run[0]] in axes

    def index(self, scope: Scope, values: dict[Run, Index]) -> Indices:
        """The full index for the values of the runs' loops; 0 where there is none."""
        out = [scope.ix.zero] * len(self.sizes)
        for run, value in values.items():
            if len(run) == 1:
                out[run[0]] = value
            else:
                for k, i in zip(run, scope.ix.unflatten(value, [self.sizes[k] for k in run]), strict=True):
                    out[k] = i
        if len(out) == len(self.parts):
            return tuple(out)
        found = iter(out)
        return tuple(scope.ix.flatten([next(found) for _ in sizes], sizes) for sizes in self.parts)


def open_loops(scope: Scope, stack: ExitStack, space: IterationSpace, runs: Sequence[Run], kind: str = "each"
               ) -> dict[Run, Index]:
    """Opens a loop for each run until the stack unwinds; their indices."""
    return {run: stack.enter_context(scope.loop(space.extent(run), kind)) for run in runs}


def merge_runs(new_scope: Callable[[], Scope], group: Group, write: Callable[[Scope, Indices], None]
               ) -> tuple[IterationSpace, Scope | None]:
    """The space of a group with the runs that can be one loop merged, and dimensions cut that are several of an array.

    `write` writes everything at one index. With the space, what was written to find out, if that is in its loops.
    """
    if group.flat:
        return IterationSpace.flat(group.shape, group.axes), None
    parts: list[Shape] = [(n,) for n in group.shape]
    while True:
        space = IterationSpace.separate(parts)
        if not space.runs or (len(parts) == len(space.sizes) and not _may_change(space, group)):
            return space, None
        scope = new_scope()
        with ExitStack() as stack:
            values = open_loops(scope, stack, space, space.runs)
            write(scope, space.index(scope, values))
            atoms = {run: index.terms[0][0] for run, index in values.items()}
        cut = _cut(scope.used, {atom: run[0] for run, atom in atoms.items()})
        if cut is None:
            break
        k, size = cut
        d, place = space.of[k], k - space.of.index(space.of[k])
        parts[d] = (*parts[d][:place], parts[d][place] // size, size, *parts[d][place + 1:])
    runs: list[Run] = [space.runs[0]]
    for run in space.runs[1:]:
        last = runs[-1][-1:]
        if (space.inside(last, group.axes) == space.inside(run, group.axes)
                and _alike(scope.used, atoms[last], atoms[run], space.extent(run))):
            runs[-1] += run
        else:
            runs.append(run)
    return IterationSpace(parts, runs), scope if len(runs) == len(space.runs) else None


def _may_change(space: IterationSpace, group: Group) -> bool:
    """Whether there are runs that may be merged, or arrays with dimensions that may be parts of one."""
    return (any(space.inside(a, group.axes) == space.inside(b, group.axes) for a, b in itertools.pairwise(space.runs))
            or any(n != 1 and n not in group.shape for v in group.reads for n in v.aval.shape))


def _cut(used: Sequence[Index], loops: dict[IndexAtom, int]) -> tuple[int, int] | None:
    """A part of a dimension whose index is divided by a number, and the largest such number that divides its size."""
    found: dict[int, int] = {}
    for index in used:
        for atom, _ in index.terms if index.nonlinear else ():
            if atom.source is None:
                continue
            _, inner, divisor = atom.source
            if len(inner.terms) == 1 and not inner.const and inner.terms[0][1] == 1 and inner.terms[0][0] in loops:
                extent = inner.hi + 1
                if divisor >= ROW and extent % divisor == 0 and divisor < extent:
                    found[loops[inner.terms[0][0]]] = max(divisor, found.get(loops[inner.terms[0][0]], 0))
    return next(iter(found.items()), None)


def _alike(used: Sequence[Index], outer: IndexAtom, inner: IndexAtom, extent: int) -> bool:
    """Whether all indices step through two adjacent loops as through one."""
    for index in used:
        if index.coefficient(outer) != extent * index.coefficient(inner):
            return False
        if index.nonlinear and any(atom.source is not None and (atom.source[1].mentions(outer)
                                                                or atom.source[1].mentions(inner))
                                   for atom, _ in index.terms):
            return False
    return True


def write_each(scope: Scope, pairs: Iterable[tuple[Eqn, Indices]], stored: frozenset[Var]) -> None:
    """Computes equations at an index each and stores the results that are wanted in memory.

    Everything is read before anything is stored: a result may take over the memory of an operand.
    """
    wanted = [pair for pair in pairs if any(v in stored for v in pair[0].outvars)]
    for eqn, index in wanted:
        scope.define(eqn, index)
    for eqn, index in wanted:
        for var in eqn.outvars:
            if var in stored:
                scope.write(var, index, scope.memo[var, index])


def map_kernels(new_scope: Callable[[], Scope], group: Group, stored: frozenset[Var]) -> Iterator[Scope]:
    """The kernels of a group of kind "map": one, or one for each box between the group's cuts; many or tiny boxes
    share a kernel, and so do the rows around what is inside.

    With one cut in a `paired` group, one for both boxes as far as they reach, and one for what is left. One for all, if
    these are single elements of short rows: what is stacked along the last dimension.
    """
    if group.paired and len(group.cuts) == 1 and len(group.cuts[0][1]) == 2:
        yield from _paired_kernels(new_scope, group, stored, group.cuts[0][0], group.cuts[0][1][0])
        return
    boxes = list(_boxes(group.shape, dict(group.cuts)))
    if len(boxes) == 1 and _turned(new_scope, group, stored):
        boxes = list(_boxes(group.shape, {len(group.shape) - 1: range(group.shape[-1])}))
    if _interleaved(group, boxes):
        corners = [tuple(a for a, _ in box) for box in boxes]
        yield _box_kernel(new_scope, group, stored, (*group.shape[:-1], 1), *corners)
        return
    frame, outer = _frame(group, boxes)
    if frame:
        inside = [box for box in boxes if box not in frame]
        kernels = [_box_kernel(new_scope, group, stored, tuple(b - a for a, b in box), tuple(a for a, _ in box))
                   for box in inside]
        around = _frame_kernel(new_scope, group, stored, frame, outer)
        work = _steps(around) * sum(map(_size, frame))
        if work * ASIDE <= sum(_steps(kernel) * _size(box) for kernel, box in zip(kernels, inside, strict=True)):
            yield from (around, *kernels)
            return
    apart = len(boxes) <= MOST_BOXES and math.prod(group.shape) > PIECES * len(boxes)
    scope = new_scope()
    for box in boxes:
        sizes = tuple(b - a for a, b in box)
        scope = _write_box(new_scope, scope, group, stored, sizes, tuple(a for a, _ in box))
        if apart or math.prod(sizes) > SMALL or scope.count > LARGE // LOAD:
            yield scope
            scope = new_scope()
    if scope.body:
        yield scope


def _frame(group: Group, boxes: Sequence[Box]) -> tuple[list[Box], int]:
    """Thin boxes of whole rows, if there are several, and the number of dimensions that say which row it is.

    None if finding out where each row is takes time that can be noticed.
    """
    cut = [d for d, places in group.cuts if d < len(group.shape) - 1 and any(0 < c < group.shape[d] for c in places)]
    outer = 1 + max(cut, default=-1)
    thin = [box for box in boxes if any(_thin(part, n) for part, n in zip(box[:outer], group.shape, strict=False))]
    rows = sum(math.prod(b - a for a, b in box[:outer]) for box in thin)
    few = rows * SPARSE <= math.prod(group.shape) or math.prod(group.shape) <= LITTLE
    return thin if len(thin) > 1 and few and math.prod(group.shape[outer:]) >= ROW else [], outer


def _frame_kernel(new_scope: Callable[[], Scope], group: Group, stored: frozenset[Var], frame: Sequence[Box],
                  outer: int) -> Scope:
    """One kernel for all rows of these boxes, counted one box after the other."""
    sizes = [tuple(b - a for a, b in box[:outer]) for box in frame]
    ends = list(itertools.accumulate(math.prod(s) for s in sizes))

    def write(scope: Scope, index: Indices) -> None:
        ix, row = scope.ix, index[0]
        found: list[Expr] = []
        for box, size, end in zip(reversed(frame), reversed(sizes), reversed(ends), strict=True):
            count = math.prod(size)
            begun = scope.let(ix.offset(row, count - end).expr(), row.level, "n")
            inside = ix.unflatten(ix.opaque(begun, 0, count - 1, row.level), size)
            place = [scope.let(ix.offset(i, a).expr(), row.level, "n") for i, (a, _) in zip(inside, box, strict=False)]
            here = scope.condition(ix.less(row, end), row.level)
            found = [scope.op("select_n", (here, a, b), INDEX) for a, b in zip(found or place, place, strict=True)]
        rows = [ix.opaque(i, 0, n - 1, row.level) for i, n in zip(found, group.shape, strict=False)]
        write_each(scope, [(eqn, (*rows, *index[1:])) for eqn in group.roots], stored)

    shape = (ends[-1], *group.shape[outer:])
    return _loops_kernel(new_scope, new_scope(), replace(group, shape=shape, axes=(), flat=False), write)


def _steps(kernel: Scope) -> int:
    """The statements of the innermost loop."""
    block = kernel.body
    while block and isinstance(block[-1], For):
        block = block[-1].body
    return len(block)


def _size(box: Box) -> int:
    return math.prod(b - a for a, b in box)


def _thin(part: Part, n: int) -> bool:
    return (part[1] - part[0]) * THIN <= n


def _interleaved(group: Group, boxes: Sequence[Box]) -> bool:
    """Whether boxes are the elements of rows, which are many and short."""
    return (1 < len(boxes) == group.shape[-1] <= TURNS <= math.prod(group.shape[:-1])
            and all(box[-1][1] - box[-1][0] == 1 for box in boxes))


def _turned(new_scope: Callable[[], Scope], group: Group, stored: frozenset[Var]) -> bool:
    """Whether rows, which are many and short, are computed from what lies across them: columns side by side."""
    n = group.shape[-1] if group.shape else 1
    if group.flat or not 1 < n <= TURNS <= math.prod(group.shape[:-1]) or (n > FEW_COLUMNS and n % 2):
        return False
    space, scope = IterationSpace.separate([(n,) for n in group.shape]), new_scope()
    with ExitStack() as stack:
        values = open_loops(scope, stack, space, space.runs)
        write_each(scope, [(eqn, space.index(scope, values)) for eqn in group.roots], stored)
        *outer, row = (values[run].terms[0][0] for run in space.runs)
    along = outer if n <= FEW_COLUMNS else outer[-1:]
    return scope.count * n <= TURNED and any(
        not index.nonlinear and abs(index.coefficient(row)) >= TURNS and any(index.coefficient(a) == 1 for a in along)
        for index in scope.used)


def _boxes(shape: Shape, cuts: dict[int, Sequence[int]], before: tuple[Part, ...] = ()) -> Iterator[Box]:
    """The parts along all dimensions, of each box. Those that are thin along one are not cut along the next ones: three
    dimensions with a first and a last element of their own have seven boxes, not 27."""
    d = len(before)
    if d == len(shape):
        yield before
        return
    n = shape[d]
    for part in itertools.pairwise([0, *(c for c in sorted(cuts.get(d, ())) if 0 < c < n), n]):
        yield from _boxes(shape, {} if _thin(part, n) else cuts, (*before, part))


def _paired_kernels(new_scope: Callable[[], Scope], group: Group, stored: frozenset[Var], d: int, cut: int
                    ) -> Iterator[Scope]:
    """The kernels for what is before and after `cut` along dimension `d`, two elements at a time."""
    both = min(cut, group.shape[d] - cut)

    def at(place: int) -> tuple[int, ...]:
        return tuple(place if k == d else 0 for k in range(len(group.shape)))

    def sized(n: int) -> Shape:
        return tuple(n if k == d else m for k, m in enumerate(group.shape))

    yield _box_kernel(new_scope, group, stored, sized(both), at(0), at(cut))
    if both < cut:
        yield _box_kernel(new_scope, group, stored, sized(cut - both), at(both))
    elif cut + both < group.shape[d]:
        yield _box_kernel(new_scope, group, stored, sized(group.shape[d] - cut - both), at(cut + both))


def _box_kernel(new_scope: Callable[[], Scope], group: Group, stored: frozenset[Var], sizes: Shape,
                *corners: tuple[int, ...]) -> Scope:
    """The kernel for the indices `corner <= index < corner + sizes`, at once for all corners."""
    return _write_box(new_scope, new_scope(), group, stored, sizes, *corners)


def _write_box(new_scope: Callable[[], Scope], scope: Scope, group: Group, stored: frozenset[Var], sizes: Shape,
               *corners: tuple[int, ...]) -> Scope:
    """The kernel with the loops of a box behind what it has."""
    def write(scope: Scope, index: Indices) -> None:
        places = [tuple(scope.ix.offset(i, c) for i, c in zip(index, corner, strict=True)) if any(corner) else index
                  for corner in corners]
        write_each(scope, [(eqn, place) for eqn in group.roots for place in places], stored)

    box = replace(group, shape=sizes, flat=group.flat and sizes == group.shape)
    return _loops_kernel(new_scope, scope, box, write)


def _loops_kernel(new_scope: Callable[[], Scope], scope: Scope, group: Group, write: Callable[[Scope, Indices], None]
                  ) -> Scope:
    """A kernel with the loops of a group's shape, in which `write` writes, behind what it has."""
    space, written = merge_runs(new_scope, group, write)
    if written is not None and not scope.body:
        return written
    with ExitStack() as stack:
        write(scope, space.index(scope, open_loops(scope, stack, space, space.runs)))
    return scope
