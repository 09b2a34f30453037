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

from anima.compiler.ir.groups import LARGE, LOAD, MOST_BOXES, PIECES, Group
from anima.compiler.ir.index_math import Index, IndexAtom
from anima.compiler.lowering.array import Indices, Scope
from anima.core.avals import Shape
from anima.core.jaxpr import Eqn, Var
from anima.util import replace

Run = tuple[int, ...]
Part = tuple[int, int]  # from, to
THIN = 32  # parts of a dimension, of each of which what is computed in vain does not matter
SMALL = 1024  # elements of boxes that share a kernel where there are many


class IterationSpace:
    """A shape and the runs of its dimensions; dimensions of size 1 are in no run."""

    def __init__(self, shape: Shape, runs: Sequence[Run]):
        self.shape = shape
        self.runs = list(runs)

    @classmethod
    def separate(cls, shape: Shape) -> IterationSpace:
        """One run for each dimension."""
        return cls(shape, [(d,) for d, n in enumerate(shape) if n != 1])

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
        return cls(shape, runs)

    def extent(self, run: Run) -> int:
        return math.prod(self.shape[d] for d in run)

    def index(self, scope: Scope, values: dict[Run, Index]) -> Indices:
        """The full index for the values of the runs' loops; 0 where there is none."""
        out = [scope.ix.zero] * len(self.shape)
        for run, value in values.items():
            if len(run) == 1:
                out[run[0]] = value
            else:
                for d, i in zip(run, scope.ix.unflatten(value, [self.shape[d] for d in run]), strict=True):
                    out[d] = i
        return tuple(out)


def open_loops(scope: Scope, stack: ExitStack, space: IterationSpace, runs: Sequence[Run], kind: str = "each"
               ) -> dict[Run, Index]:
    """Opens a loop for each run until the stack unwinds; their indices."""
    return {run: stack.enter_context(scope.loop(space.extent(run), kind)) for run in runs}


def merge_runs(new_scope: Callable[[], Scope], group: Group, write: Callable[[Scope, Indices], None]
               ) -> tuple[IterationSpace, Scope | None]:
    """The space of a group with the runs that can be one loop merged; `write` writes everything at one index. With it,
    what was written to find out, if that is in the loops of the space."""
    if group.flat:
        return IterationSpace.flat(group.shape, group.axes), None
    separate = IterationSpace.separate(group.shape)
    if all((a in group.axes) != (b in group.axes) for (a,), (b,) in itertools.pairwise(separate.runs)):
        return separate, None
    scope = new_scope()
    with ExitStack() as stack:
        values = open_loops(scope, stack, separate, separate.runs)
        write(scope, separate.index(scope, values))
        atoms = {run: index.terms[0][0] for run, index in values.items()}
    runs: list[Run] = [separate.runs[0]]
    for run in separate.runs[1:]:
        last = runs[-1][-1:]
        if ((last[0] in group.axes) == (run[0] in group.axes)
                and _alike(scope.used, atoms[last], atoms[run], separate.extent(run))):
            runs[-1] += run
        else:
            runs.append(run)
    return IterationSpace(group.shape, runs), scope if len(runs) == len(separate.runs) else None


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


def write_roots(scope: Scope, roots: Sequence[Eqn], index: Indices, stored: frozenset[Var]) -> None:
    """Computes equations at an index and stores the results that are wanted in memory.

    Everything is read before anything is stored: a result may take over the memory of an operand.
    """
    write_each(scope, [(eqn, index) for eqn in roots], stored)


def write_each(scope: Scope, pairs: Iterable[tuple[Eqn, Indices]], stored: frozenset[Var]) -> None:
    """`write_roots` of equations at an index each."""
    wanted = [pair for pair in pairs if any(v in stored for v in pair[0].outvars)]
    for eqn, index in wanted:
        scope.define(eqn, index)
    for eqn, index in wanted:
        for var in eqn.outvars:
            if var in stored:
                scope.write(var, index, scope.memo[var, index])


def map_kernels(new_scope: Callable[[], Scope], group: Group, stored: frozenset[Var]) -> Iterator[Scope]:
    """The kernels of a group of kind "map": one, or one for each box between the group's cuts; many or tiny boxes
    share a kernel.

    With one cut in a `paired` group, one for both boxes as far as they reach, and one for what is left.
    """
    if group.paired and len(group.cuts) == 1 and len(group.cuts[0][1]) == 2:
        yield from _paired_kernels(new_scope, group, stored, group.cuts[0][0], group.cuts[0][1][0])
        return
    boxes = list(_boxes(group.shape, dict(group.cuts)))
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


def _boxes(shape: Shape, cuts: dict[int, Sequence[int]], before: tuple[Part, ...] = ()) -> Iterator[tuple[Part, ...]]:
    """The parts along all dimensions, of each box. Those that are thin along one are not cut along the next ones: three
    dimensions with a first and a last element of their own have seven boxes, not 27."""
    d = len(before)
    if d == len(shape):
        yield before
        return
    n = shape[d]
    for part in itertools.pairwise([0, *(c for c in sorted(cuts.get(d, ())) if 0 < c < n), n]):
        thin = (part[1] - part[0]) * THIN <= n
        yield from _boxes(shape, {} if thin else cuts, (*before, part))


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
        write_each(scope, [(eqn, place) for place in places for eqn in group.roots], stored)

    box = replace(group, shape=sizes, flat=group.flat and sizes == group.shape)
    space, written = merge_runs(new_scope, box, write)
    if written is not None and not scope.count:
        return written
    with ExitStack() as stack:
        write(scope, space.index(scope, open_loops(scope, stack, space, space.runs)))
    return scope
