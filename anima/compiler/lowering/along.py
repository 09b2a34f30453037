"""Convolutions to one output (of each group), where space comes last in memory: outputs next to each other are lanes.

    parallel block: for k: f = w[k]; s0 += x[block + k + 0:16] * f; s1 += x[block + k + 16:32] * f; ...

Several vectors of outputs, along a line and of lines next to each other, share what they read. Nothing is multiplied
that an output does not see: what is not finite stays where it is seen.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from anima.compiler.ir.index_math import Index
from anima.compiler.ir.loops import Expr, NamedValue
from anima.compiler.lowering.array import Scope
from anima.compiler.lowering.calls import ProgramBuilder
from anima.compiler.lowering.channels import inner_range, plus, product, zero_of
from anima.compiler.lowering.problem import Problem, SpatialDim

_LANES = 16         # outputs of a vector
_VECTORS = 8        # of outputs that share what they read
_IN_A_LINE = 4      # ... of one line, where there are more
_WRITTEN_OUT = 8    # taps of a line
_SHARED = 4         # taps a vector apart
_MOST_WRITTEN = 400     # products that are written out
_MOST_FEATURES = 4
_LEAST_TERMS = 13   # of a sum that is not written out
_FEW_PLACES = 0.25  # outputs for each tap: with less, sums are long and few


def lies_along(p: Problem) -> bool:
    """Whether outputs lie next to each other, and what they see does, too."""
    if not p.space:
        return False
    last, places, taps = _last(p), math.prod(s.places for s in p.space), math.prod(s.taps for s in p.space)
    return (p.outputs == 1 and p.features <= _MOST_FEATURES and p.terms >= _LEAST_TERMS
            and last.x == last.out == last.step == 1 and places >= taps * _FEW_PLACES)


def along_lines(p: Problem) -> bool:
    """Whether that is so, and all that they see lies in the array."""
    return lies_along(p) and all(inner_range(s) == (0, s.places) for s in p.space)


def _last(p: Problem) -> SpatialDim:
    return min(p.space, key=lambda s: s.x)


def by_lines(builder: ProgramBuilder, p: Problem, dtype: str, x: str, w: str, out: str) -> None:
    """The kernel of such a convolution."""
    scope = builder.scope()
    _Lines(scope, p, dtype, (x, w, out)).write()
    builder.kernel("convolution", scope)


_Step = tuple[int, int, int]  # in x, w and out
_ONE = SpatialDim(1, 1, 1, 1, 0, 1, 0, 0, 0)


class _Lines:
    """The kernel while it is written; `last` is the dimension along lines, `across` that from line to line."""

    def __init__(self, scope: Scope, p: Problem, dtype: str, names: tuple[str, str, str]) -> None:
        self.scope, self.p, self.dtype, self.names = scope, p, dtype, names
        *others, self.last = sorted(p.space, key=lambda s: s.x, reverse=True)
        *self.others, self.across = others or [_ONE]

    def write(self) -> None:
        """The loops over outputs."""
        p, scope = self.p, self.scope
        ix, start = scope.ix, sum(s.start * s.x for s in p.space)
        at = tuple(map(ix.const, (start, p.w_offset, p.out_offset)))
        with ExitStack() as stack:
            for n, step in ((p.batch, (p.x[1], 0, p.out[1])), (p.groups, (p.x[0], p.w[0], p.out[0])),
                            *((s.places, (s.step * s.x, 0, s.out)) for s in self.others)):
                at = self._moved(at, stack.enter_context(scope.loop(n, "each")), step)
            for vectors, count in self._blocks():
                self._across(at, vectors, count)

    def _blocks(self) -> Iterator[tuple[tuple[int, ...], int]]:
        """Where the vectors of a line begin that are computed at once, and how many such blocks there are. The last
        vector ends where the line does: it shares outputs with the one before."""
        places, most = self.last.places, _VECTORS if self.across.places == 1 else _IN_A_LINE
        starts = [min(start, max(places - _LANES, 0)) for start in range(0, places, _LANES)]
        size = -(-len(starts) // -(-len(starts) // most))
        whole = places // (size * _LANES)
        if whole:
            yield tuple(starts[:size]), whole
        if len(starts) > whole * size:
            yield tuple(starts[whole * size:]), 1

    def _moved(self, at: Sequence[Index], by: Index, step: _Step) -> tuple[Index, ...]:
        ix = self.scope.ix
        return tuple(ix.add(a, ix.scale(by, n)) for a, n in zip(at, step, strict=True))

    def _across(self, at: Sequence[Index], vectors: tuple[int, ...], count: int) -> None:
        """`count` blocks of vectors in each line, for as many lines at once as pays."""
        s, scope = self.across, self.scope
        most = min(s.places, max(_VECTORS // len(vectors), 1))
        lines = next((n for n in range(most, most // 2, -1) if s.places % n == 0), most)
        lanes = min(_LANES, self.last.places)
        many, rest = divmod(s.places, lines)
        for begin, times, height in ((0, many, lines), (many * lines, 1, rest)):
            if not height:
                continue
            with scope.loop(times, "each") as i, scope.loop(count, "each") as j, scope.loop(lanes, "vector") as lane:
                line = scope.ix.offset(scope.ix.scale(i, height), begin)
                place = scope.ix.add(scope.ix.scale(j, len(vectors) * _LANES), lane)
                begins = self._moved(self._moved(at, line, (s.step * s.x, 0, s.out)), place, (1, 0, 1))
                self._sums(begins, list(itertools.product(range(height), vectors)))

    def _sums(self, at: Sequence[Index], vectors: Sequence[tuple[int, int]]) -> None:
        """The outputs of some vectors: of a line, and where they begin in it."""
        p, s, scope = self.p, self.across, self.scope
        totals = {vector: scope.var(zero_of(self.dtype)) for vector in vectors}
        with ExitStack() as stack:
            start = self._moved(at, self._counter(stack, p.features), (p.x[2], p.w[1], 0))
            for other in self.others:
                start = self._moved(start, self._counter(stack, other.taps), (other.gap * other.x, other.w, 0))
            parts = list(_taps(self.last))
            most = max(len(taps) for *_, taps in parts) * len(totals)
            rows = range(s.taps if s.taps * most <= _MOST_WRITTEN else 1)
            start = self._moved(start, self._counter(stack, s.taps // len(rows)), (s.gap * s.x, s.w, 0))
            for first, counts, taps in parts:
                with ExitStack() as inner:
                    tap = scope.ix.const(first)
                    for n, step in counts:
                        tap = scope.ix.add(tap, scope.ix.scale(self._counter(inner, n), step))
                    self._products(self._moved(start, tap, (self.last.gap, self.last.w, 0)), rows, taps, totals)
        for (y, n), total in totals.items():
            scope.store(self.names[2], scope.ix.offset(at[2], y * s.out + n), scope.read(total))

    def _products(self, at: Sequence[Index], rows: range, taps: range,
                  totals: dict[tuple[int, int], NamedValue]) -> None:
        """Adds the products of some places of the kernel: line by line of what they read, where lines share that."""
        s, last, scope, (x, w, _) = self.across, self.last, self.scope, self.names

        def order(one: tuple[int, int, tuple[int, int]]) -> tuple[int, ...]:
            row, tap, (y, n) = one
            return y * s.step + row * s.gap if len(rows) > 1 else 0, tap, y, n

        values: dict[int, Expr] = {}
        for row, tap, (y, n) in sorted(itertools.product(rows, taps, totals), key=order):
            place = (y * s.step + row * s.gap) * s.x + tap * last.gap + n
            if place not in values:
                values[place] = scope.load(x, scope.ix.offset(at[0], place), self.dtype)
            weight = scope.load(w, scope.ix.offset(at[1], row * s.w + tap * last.w), self.dtype)
            term = product(scope, self.dtype, values[place], weight)
            scope.accumulate(totals[y, n], plus(self.dtype), term)

    def _counter(self, stack: ExitStack, n: int) -> Index:
        """The counter of a loop around what is written out."""
        if n == 1:
            return self.scope.ix.zero
        return self.scope.ix.opaque(stack.enter_context(self.scope.serial(n)), 0, n - 1, self.scope.depth)


def _taps(s: SpatialDim) -> Iterator[tuple[int, list[tuple[int, int]], range]]:
    """How the taps of a line are gone through: from where on, counts and steps of loops, and those that are written
    out. Where these are a vector apart, a vector of outputs sees by one of them what the next one sees by another."""
    shared = min(s.taps // _LANES, _SHARED) if s.gap == 1 else 0
    start = 0
    if shared > 1:
        span = shared * _LANES
        yield 0, [(s.taps // span, span), (_LANES, 1)], range(0, span, _LANES)
        start = s.taps // span * span
    many, rest = divmod(s.taps - start, _WRITTEN_OUT)
    if many:
        yield start, [(many, _WRITTEN_OUT)], range(_WRITTEN_OUT)
    if rest:
        yield s.taps - rest, [], range(rest)
