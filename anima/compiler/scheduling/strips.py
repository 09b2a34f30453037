"""Lanes around the steps of a loop in strips, or one by one, in memory: whether that is better, and what becomes of a
kernel of a strip.

    kernel: each l < 32:                         kernel: vector m < 8:
              each i < 6: x[l*6 + i] = ... ->              for i < 6: x.l[i*8 + m] = ...

Rows that fill no vectors, or lie across memory, are what strips are better for: there, all vectors are full.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from anima.compiler.ir.affine import steps
from anima.compiler.ir.costs import cost, extent_of
from anima.compiler.ir.loops import (
    INDEX,
    Accumulate,
    Const,
    Expr,
    For,
    Kernel,
    Let,
    Load,
    Mutable,
    NamedValue,
    Op,
    Stmt,
    Store,
    While,
    affine,
    lets_of,
    map_blocks,
    statements,
    statements_outside,
    walk,
)
from anima.compiler.machine.target import Target
from anima.compiler.scheduling.independent import DifferentError, Lanes, kernels_in
from anima.compiler.scheduling.reductions import few_at_once
from anima.compiler.scheduling.schedule import APART
from anima.compiler.scheduling.vectorize import fits, widest
from anima.compiler.storage.buffers import buffers_of, rename, size_in_bytes
from anima.util import replace

MOST_COUNTS = 2        # numbers of lanes that are tried
VECTORS = 4            # of lanes in a strip, at most; one, if more have more of their own than the first cache holds
LONGEST = 256          # elements of an array that are one lane's, at most: longer rows are good vectors themselves
GAIN = 0.995           # what steps in strips must take of the time that they take as they are, at most
LIGHT = 8.0            # nanoseconds of a sum's term, up to which those of several rows are made at once
KERNEL = 4.0           # nanoseconds to begin a kernel
FEW = 8                # lanes, at least, that go through all steps one by one,
ROW = 64               # elements of their rows, at least,
LONG = 512             # and if these are added up: the sums of short ones are made beside those of others
TURN = 1.0             # nanoseconds to begin a row
ALIKE = 1.25           # of the time of all lanes in each step that they may take
SHARED = 0.7           # of its time is what a sum takes of which several rows are in registers at once
ADDED = 4              # vectors' time to add up the lanes of one


def counts(loop: For | While) -> list[int]:
    """Numbers of lanes that a loop may have: what most of its kernels' outer loops have."""
    try:
        outer = Counter(int(s.extent.value) for k in kernels_in(loop) for s in k.body
                        if isinstance(s, For) and isinstance(s.extent, Const))
    except DifferentError:
        return []
    return [n for n, _ in outer.most_common(MOST_COUNTS)]


def without_lanes(loop: For | While, count: int) -> list[Stmt]:
    """Statements of a loop that are no single values, and have no loop over so many lanes."""
    def has_lanes(stmt: Stmt) -> bool:
        return any(isinstance(s, For) and isinstance(s.extent, Const) and s.extent.value > 0 == s.extent.value % count
                   for s in statements(stmt))

    return [s for s in statements_outside((loop,)) if isinstance(s, Store) or (
        isinstance(s, Kernel) and not has_lanes(s))]


def best(lanes: Lanes, alone: Sequence[Stmt], target: Target) -> int:
    """How many lanes are a strip, as wide as some vectors. Raises DifferentError if none are better."""
    width = target.vector_bytes // widest(lanes.kernels)
    own = sum(size_in_bytes(lanes.buffers[n]) for n in lanes.small | lanes.given) // lanes.count
    most = max(1, min(VECTORS, target.first_cache // max(own * width, 1)))
    strip = width * min(range(1, most + 1), key=lambda n: n * -(-lanes.count // (n * width)))
    longest = max(map(lanes.own, lanes.small | lanes.given), default=LONGEST + 1)
    if lanes.count < width or strip * own > target.second_cache or longest > LONGEST:
        raise DifferentError
    strips, masked = -(-lanes.count // strip), target.has("avx512f")
    now = then = 0.0
    for loop in lanes.loops.values():
        in_rows, in_lanes = _times(loop, lanes, width, masked)
        now += (in_lanes if loop.kind == "vector" else min(in_rows, in_lanes)) + KERNEL
        then += strips * (lanes.each(loop) * sum(map(cost, loop.body)) * strip // width + KERNEL)
    if then + (strips - 1) * sum(map(cost, alone)) > GAIN * now:
        raise DifferentError
    return strip


def check_rows(lanes: Lanes, target: Target) -> None:
    """Raises DifferentError unless lanes are better one by one: their rows are long enough for full vectors, stay in a
    core's cache through all steps, and take about as long alone as beside the others in each step."""
    width, masked = target.vector_bytes // widest(lanes.kernels), target.has("avx512f")
    own = sum(size_in_bytes(lanes.buffers[n]) for n in lanes.small) // lanes.count
    longest = max(map(lanes.own, lanes.small), default=0)
    loops = {s.kind for s in statements(*lanes.kernels) if isinstance(s, For)}
    if lanes.count < FEW or own > target.second_cache or longest < (LONG if "reduce" in loops else ROW) or (
            not loops <= {"each", "vector", "reduce"}):
        raise DifferentError
    now = sum(min(_times(f, lanes, width, masked)) for f in lanes.loops.values())
    then = sum(_times(f, lanes, width, masked)[0] + lanes.count * TURN for f in lanes.loops.values())
    if then > ALIKE * now:
        raise DifferentError


def _times(loop: For, lanes: Lanes, width: int, masked: bool) -> tuple[float, float]:
    """Nanoseconds, about, of a kernel's loop over lanes in vectors along rows or sums, and of lanes."""
    each, one = lanes.each(loop), sum(map(cost, loop.body))
    inner = [s for s in statements(*loop.body) if isinstance(s, For)]
    if not inner and each > 1:
        return (one * each * lanes.count / width,) * 2
    lets = lets_of(statements(*loop.body))
    places = [steps(node.index, lets) for node in walk(*loop.body) if isinstance(node, (Load, Store))]

    def share(f: For) -> float:
        """Of the time of a loop's iterations that they take in vectors."""
        extent = max(int(extent_of(f.extent)), 1)
        if f.kind == "reduce":
            return (-(-extent // width) + ADDED) / extent
        if any(f.index in place and s.index in place for place in places for s in inner if s.kind == "reduce"):
            return SHARED * -(-extent // width) / extent if {1} == {p[f.index] for p in places if f.index in p} else 1.0
        return (-(-extent // width) if masked else extent // width + extent % width) / extent

    in_lanes = one / width + APART * _far(loop.body, loop.index, lets)
    in_rows = one * min([1.0, *map(share, inner)])
    return each * lanes.count * in_rows, each * lanes.count * in_lanes


def _far(stmts: Sequence[Stmt], lane: str, lets: Mapping[str, Expr]) -> int:
    """How many elements of a lane do not lie beside those of the next."""
    total = 0
    for stmt in stmts:
        if isinstance(stmt, For):
            total += extent_of(stmt.extent) * _far(stmt.body, lane, lets)
        else:
            total += sum(isinstance(node, (Load, Store)) and steps(node.index, lets).get(lane, 0) not in (0, 1)
                         for node in walk(stmt))
    return total


def in_strips(stmts: Sequence[Stmt], lane: NamedValue, strip: int, count: int, private: Collection[str],
              ) -> Iterator[Stmt]:
    """The statements of a lane as those of a strip, whose `private` buffers lie side by side: kernels are loops over
    its lanes. If these are less, all others do what the last one of the `count` lanes does."""
    mine, last = NamedValue(f"{lane.name}.m", INDEX), NamedValue(f"{lane.name}.n", INDEX)
    place = affine(0, (lane, strip), (mine, 1))
    clamped = [Let(last.name, Op("min", (place, Const(count - 1, INDEX)), INDEX))] if count % strip else []

    def at(buffer: str, index: Expr) -> Expr:
        return affine(0, (index, strip), (mine, 1)) if buffer in private else index

    for stmt in stmts:
        if not isinstance(stmt, Kernel) or (buffers_of((stmt,)).isdisjoint(private) and lane not in walk(stmt)):
            yield map_blocks(lambda block: tuple(in_strips(block, lane, strip, count, private)), stmt)
            continue
        body = rename(_in_order(stmt.body), {}, {}, {lane.name: last if clamped else place}, at)  # type: ignore[dict-item]
        loop = For(mine.name, Const(strip, INDEX), (*(clamped if lane in walk(stmt) else []), *body), "vector")
        if not fits(loop):
            raise DifferentError
        yield replace(stmt, body=(loop,), reduces=None)


def _in_order(stmts: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """Statements of a lane, in which no loop has lanes itself; short sums of several rows are made at once."""
    out: list[Stmt] = []
    for stmt in stmts:
        size = _sums_at_once(stmt)
        parts = few_at_once(stmt, size) if isinstance(stmt, For) and size else [stmt]
        out += [replace(s, kind="serial") if isinstance(s, For) and s.kind in ("each", "reduce") else s
                for s in (map_blocks(_in_order, part) for part in parts)]
    return tuple(out)


def _sums_at_once(loop: Stmt) -> int:
    """How many iterations of a loop run at once, each of which makes one sum of a few operations; 0: one by one."""
    if not (isinstance(loop, For) and loop.kind == "each" and isinstance(loop.extent, Const)):
        return 0
    sums = [s for s in statements(*loop.body) if isinstance(s, For)]
    if len(sums) != 1 or sums[0].kind != "reduce" or sum(map(cost, sums[0].body)) > LIGHT or not all(
            type(s) in (For, Let, Mutable, Accumulate, Store) for s in statements(*loop.body)):
        return 0
    return next((n for n in (4, 3, 2) if loop.extent.value % n == 0), 0)
