"""Convolutions of each channel by itself ("depthwise"), or of a few, where channels come last in memory.

    parallel line: for x: vector g: s = x[x, g] * w[0, g]; s += x[x + 1, g] * w[1, g]; ...
    parallel line: for x: for g: vector o: for f: s += x[x, g, f] * w[0, f, g, o]; s += x[x + 1, g, f] * w[1, f, g, o]

With few places in the kernel, its terms are written out, where all of them lie in the array; with few places in the
output (the gradient of a kernel), those are, and each sum is one over all lines.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from contextlib import ExitStack

from anima.compiler.ir.index_math import Index, conjunction
from anima.compiler.ir.loops import Const, Expr, NamedValue
from anima.compiler.lowering.array import Scope
from anima.compiler.lowering.calls import ProgramBuilder
from anima.compiler.lowering.problem import Problem, SpatialDim
from anima.util import replace

_WRITTEN_OUT = 64   # terms of a sum
_PIXELS = 4         # places in the output (or terms of a line) that are computed at once: they share what they read
_TOGETHER = 12      # sums over lines that stay in registers together
_LANES = 32         # channels that a thread takes at once
_MANY = 64          # channels that are enough for threads
_LEAST = 8          # channels that are worth vectors
_GROUP = range(4, 9)    # outputs of a group, of at most as many features: they are the lanes of a vector
_MORE_PIXELS = 6        # places at once, of groups


def in_channels(p: Problem) -> bool:
    """Whether channels are groups of one output, and lie next to each other in all arrays."""
    few = math.prod(s.taps for s in p.space) <= _WRITTEN_OUT or _sums_lines(p)
    return (p.outputs == 1 and p.groups >= _LEAST and p.x[0] == p.w[0] == p.out[0] == 1 and few and bool(p.space)
            and p.terms > 0)


def in_groups(p: Problem) -> bool:
    """Whether channels are many groups of a few outputs, which lie next to each other in all arrays."""
    return (p.groups > 1 and p.outputs in _GROUP and p.features < _GROUP.stop and p.out[2] == p.x[2] == 1
            and bool(p.space) and 0 < math.prod(s.taps for s in p.space) <= _WRITTEN_OUT)


def _sums_lines(p: Problem) -> bool:
    """Whether there are few sums, of many terms."""
    return p.batch == 1 and math.prod(s.places for s in p.space) <= min(_WRITTEN_OUT, p.terms // 4)


def by_channels(builder: ProgramBuilder, p: Problem, dtype: str, x: str, w: str, out: str) -> None:
    """The kernel of such a convolution."""
    if p.outputs > 1 and p.w[2] != 1:
        p, w = _outputs_last(builder, p, dtype, w)
    scope = builder.scope()
    (_line_sums if p.outputs == 1 and _sums_lines(p) else _lines)(scope, p, dtype, x, w, out)
    builder.kernel("convolution", scope)


def _outputs_last(builder: ProgramBuilder, p: Problem, dtype: str, w: str) -> tuple[Problem, str]:
    """The problem with a copy of its kernel in which the outputs of all groups lie next to each other."""
    dims = [*((s.taps, s.w) for s in p.space), (p.features, p.w[1]), (p.groups, p.w[0]), (p.outputs, p.w[2])]
    sizes = [n for n, _ in dims]
    buffer, scope = builder.temp(dtype, math.prod(sizes)), builder.scope()
    ix = scope.ix
    with ExitStack() as stack:
        index = [stack.enter_context(scope.loop(n, "each")) for n in sizes]
        source = ix.const(p.w_offset)
        for i, (_, step) in zip(index, dims, strict=True):
            source = ix.add(source, ix.scale(i, step))
        scope.store(buffer, ix.flatten(index, sizes), scope.load(w, source, dtype))
    builder.kernel("pack", scope)
    *steps, term, group, _ = (math.prod(sizes[k + 1:]) for k in range(len(sizes)))
    space = tuple(replace(s, w=step) for s, step in zip(p.space, steps, strict=True))
    return replace(p, w=(group, term, 1), w_offset=0, space=space), buffer


def zero_of(dtype: str) -> Const:
    return Const(False if dtype == "bool" else 0.0 if dtype[0] in "fb" else 0, dtype)


def product(scope: Scope, dtype: str, a: Expr, b: Expr) -> Expr:
    return scope.op("and" if dtype == "bool" else "mul", (a, b), dtype)


def plus(dtype: str) -> str:
    return "or" if dtype == "bool" else "add"


def inner_range(s: SpatialDim) -> tuple[int, int]:
    """The places of the output whose terms all lie in the array."""
    reach = (s.taps - 1) * s.gap
    first = min(max(-(s.start // s.step), 0), s.places)
    last = (s.size - 1 - reach - s.start) // s.step + 1
    return first, max(min(last, s.places), first)


def _coordinate(scope: Scope, s: SpatialDim, place: Index, tap: int) -> Index:
    return scope.ix.offset(scope.ix.scale(place, s.step), s.start + tap * s.gap)


def _inside(scope: Scope, s: SpatialDim, at: Index) -> list[Expr]:
    return [scope.ix.at_least(at, 0), scope.ix.less(at, s.size)]


def _lines(scope: Scope, p: Problem, dtype: str, x: str, w: str, out: str) -> None:
    """A line of the output after the other; its inner part apart from its ends."""
    ix, (*others, last) = scope.ix, sorted(p.space, key=lambda s: s.x, reverse=True)
    most = _PIXELS if p.outputs == 1 else _MORE_PIXELS
    with ExitStack() as stack:
        outer = [stack.enter_context(scope.loop(n, "each")) for n in (p.batch, *(s.places for s in others))]
        conditions = [c for s, i in zip(others, outer[1:], strict=True) for tap in (0, s.taps - 1)
                      for c in _inside(scope, s, _coordinate(scope, s, i, tap))]
        whole = scope.condition(conjunction(conditions), scope.depth)
        first, end = inner_range(last)

        def part(begin: int, stop: int, sure: bool) -> None:
            count = stop - begin
            for start, some, width in blocks(count, most if sure else 1):
                with scope.loop(some, "each") as i:
                    at = ix.offset(ix.scale(i, width), begin + start)
                    _pixels(scope, p, (*others, last), dtype, x, w, out,
                            [[*outer, ix.offset(at, k)] for k in range(width)], sure)

        part(0, first, False)
        if type(whole) is Const:
            part(first, end, bool(whole.value))
        elif first < end:
            with scope.when(whole):
                part(first, end, True)
            with scope.when(scope.op("not", (whole,), "bool")):
                part(first, end, False)
        part(end, last.places, False)


def blocks(count: int, most: int) -> list[tuple[int, int, int]]:
    """Where blocks of equal widths begin, how many there are, and their width."""
    whole = count // most
    return [b for b in ((0, whole, most), (whole * most, count - whole * most, 1)) if b[1]]


def _pixels(scope: Scope, p: Problem, space: Sequence[SpatialDim], dtype: str, x: str, w: str, out: str,
            places: Sequence[Sequence[Index]], sure: bool) -> None:
    """All channels of some places in the output; `sure`: all of their terms lie in the array."""
    ix = scope.ix
    targets, origins = [], []
    for at in places:
        target, origin = ix.offset(ix.scale(at[0], p.out[1]), p.out_offset), ix.scale(at[0], p.x[1])
        for s, i in zip(space, at[1:], strict=True):
            target, origin = ix.add(target, ix.scale(i, s.out)), ix.add(origin, ix.scale(i, s.step * s.x))
        targets.append(target)
        origins.append(origin)
    conditions = {}
    if not sure:
        assert len(places) == 1
        for d, (s, i) in enumerate(zip(space, places[0][1:], strict=True)):
            for tap in range(s.taps):
                inside = conjunction(_inside(scope, s, _coordinate(scope, s, i, tap)))
                conditions[d, tap] = scope.condition(inside, scope.depth)
    with ExitStack() as lanes:
        if p.outputs == 1:
            g, j = lanes.enter_context(scope.loop(p.groups, "vector")), ix.zero
        else:
            g = lanes.enter_context(scope.loop(p.groups, "each"))
            j = lanes.enter_context(scope.loop(p.outputs, "vector"))
        weights, sources = ix.add(ix.scale(g, p.w[0]), j), ix.scale(g, p.x[0])
        totals = [scope.var(zero_of(dtype)) for _ in places]
        with ExitStack() as inner:
            features = [ix.const(c) for c in range(p.features)]
            if p.outputs > 1 < p.features:
                features = [ix.opaque(inner.enter_context(scope.serial(p.features)), 0, p.features - 1, scope.depth)]
            for c, taps in itertools.product(features, itertools.product(*(range(s.taps) for s in space))):
                more = ix.offset(ix.scale(c, p.x[2]), sum(
                    (s.start + k * s.gap) * s.x for s, k in zip(space, taps, strict=True)))
                factor = ix.offset(ix.scale(c, p.w[1]), p.w_offset + sum(
                    k * s.w for s, k in zip(space, taps, strict=True)))
                needed = [] if sure else [conditions[d, k] for d, k in enumerate(taps)]
                needed = [n for n in needed if not (type(n) is Const and n.value)]
                if any(type(n) is Const for n in needed):
                    continue
                with ExitStack() as stack:
                    for n in needed:
                        stack.enter_context(scope.when(n))
                    weight = scope.load(w, ix.add(weights, factor), dtype)
                    for origin, total in zip(origins, totals, strict=True):
                        value = scope.load(x, ix.add(ix.add(origin, more), sources), dtype)
                        scope.accumulate(total, plus(dtype), product(scope, dtype, value, weight))
        for target, total in zip(targets, totals, strict=True):
            scope.store(out, ix.add(target, ix.add(ix.scale(g, p.out[0]), j)), scope.read(total))


def _line_sums(scope: Scope, p: Problem, dtype: str, x: str, w: str, out: str) -> None:
    """The sums over lines: for all places at once if they are few, else for those of the last dimension, at each place
    of the others."""
    ix, (*others, last) = scope.ix, sorted(p.space, key=lambda s: s.x, reverse=True)
    together = math.prod(s.places for s in p.space) <= _TOGETHER and p.groups >= _MANY
    with ExitStack() as stack:
        if together:
            places = [[ix.const(k) for k in at] for at in itertools.product(*(range(s.places) for s in others))]
        else:
            places = [[stack.enter_context(scope.loop(s.places, "each")) for s in others]]
        size = next(n for n in range(min(p.groups, _LANES), 0, -1) if p.groups % n == 0)
        block = stack.enter_context(scope.loop(p.groups // size, "each"))
        g = ix.add(ix.scale(block, size), stack.enter_context(scope.loop(size, "vector")))
        totals = [[scope.var(zero_of(dtype)) for _ in range(last.places)] for _ in places]
        with ExitStack() as inner:
            def count(n: int) -> Index:
                if n == 1:
                    return ix.zero
                return ix.opaque(inner.enter_context(scope.serial(n)), 0, n - 1, scope.depth)

            c, taps = count(p.features), [count(s.taps) for s in others]
            for at, sums in zip(places, totals, strict=True):
                _line_sum(scope, p, dtype, x, w, (c, g, *taps), at, sums)
        for at, sums in zip(places, totals, strict=True):
            target = ix.offset(g, p.out_offset)
            for s, i in zip(others, at, strict=True):
                target = ix.add(target, ix.scale(i, s.out))
            for y, total in enumerate(sums):
                scope.store(out, ix.offset(target, y * last.out), scope.read(total))


def _line_sum(scope: Scope, p: Problem, dtype: str, x: str, w: str, term: Sequence[Index], at: Sequence[Index],
              totals: Sequence[NamedValue]) -> None:
    """Adds the terms of one line to the sums at one place of all dimensions but the last one."""
    ix, (*others, last), (c, g, *taps) = scope.ix, sorted(p.space, key=lambda s: s.x, reverse=True), term
    source = ix.add(ix.scale(c, p.x[2]), g)
    factor = ix.add(ix.offset(ix.scale(c, p.w[1]), p.w_offset), g)
    conditions = []
    for s, i, k in zip(others, at, taps, strict=True):
        place = ix.add(_coordinate(scope, s, i, 0), ix.scale(k, s.gap))
        conditions += _inside(scope, s, place)
        source, factor = ix.add(source, ix.scale(place, s.x)), ix.add(factor, ix.scale(k, s.w))
    inside = scope.condition(conjunction(conditions), scope.depth)
    if type(inside) is Const and not inside.value:
        return
    with scope.when(inside):
        sums = [scope.var(zero_of(dtype)) for _ in totals]
        _along(scope, last, dtype, (x, source), (w, factor), sums)
        for total, part in zip(totals, sums, strict=True):
            scope.accumulate(total, plus(dtype), scope.read(part))


def _along(scope: Scope, s: SpatialDim, dtype: str, x: tuple[str, Index], w: tuple[str, Index],
           sums: Sequence[NamedValue]) -> None:
    """Adds the terms of a line to the sums of all places of the last dimension."""
    ix = scope.ix

    def bounds(y: int) -> tuple[int, int]:
        begin = max(-((s.start + y * s.step) // s.gap), 0)
        end = (s.size - 1 - s.start - y * s.step) // s.gap + 1
        return min(begin, s.taps), max(min(end, s.taps), min(begin, s.taps))

    ranges = [bounds(y) for y in range(s.places)]
    cuts = sorted({0, s.taps, *(b for r in ranges for b in r)})
    for begin, end in itertools.pairwise(cuts):
        inside = [y for y, (a, b) in enumerate(ranges) if a <= begin and end <= b]
        if not inside:
            continue
        for start, count, width in blocks(end - begin, _PIXELS):
            with ExitStack() as stack:
                block = ix.zero if count == 1 else ix.opaque(stack.enter_context(scope.serial(count)), 0, count - 1,
                                                             scope.depth)
                first = ix.offset(ix.scale(block, width), begin + start)
                ks = [ix.offset(first, n) for n in range(width)]
                factors = [scope.load(w[0], ix.add(w[1], ix.scale(k, s.w)), dtype) for k in ks]
                for y in inside:
                    terms = [product(scope, dtype, scope.load(x[0], ix.add(x[1], ix.offset(
                        ix.scale(k, s.gap * s.x), (s.start + y * s.step) * s.x)), dtype), factor)
                        for k, factor in zip(ks, factors, strict=True)]
                    while len(terms) > 1:
                        pairs = zip(terms[::2], terms[1::2], strict=True)
                        terms = [scope.op(plus(dtype), pair, dtype) for pair in pairs]
                    scope.accumulate(sums[y], plus(dtype), terms[0])
