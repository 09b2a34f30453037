"""Lanes around the steps of a loop in strips, in memory: whether that is better, and what becomes of a kernel.

    kernel: each l < 32:                         kernel: vector m < 8:
              each i < 6: x[l*6 + i] = ... ->              for i < 6: x.l[i*8 + m] = ...

Rows that fill no vectors, or lie across memory, are what strips are better for: there, all vectors are full.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

from anima.compiler.ir.affine import steps
from anima.compiler.ir.costs import cost, extent_of
from anima.compiler.ir.loops import (
    INDEX,
    Const,
    Expr,
    For,
    Kernel,
    Load,
    NamedValue,
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
from anima.compiler.scheduling.schedule import APART
from anima.compiler.scheduling.vectorize import fits, widest
from anima.compiler.storage.buffers import buffers_of, rename, size_in_bytes
from anima.util import replace

MOST_COUNTS = 2        # numbers of lanes that are tried
VECTORS = 4            # of lanes in a strip, at most; one, if more have more of their own than the first cache holds
LONGEST = 256          # elements of an array that are one lane's, at most: longer rows are good vectors themselves
GAIN = 1.02            # what steps in strips must take of the time that they take as they are, at most
KERNEL = 4.0           # nanoseconds to begin a kernel
SHARED = 0.7           # of its time is what a sum takes of which several rows are in registers at once


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
    """How many lanes are a strip, of which all are alike. Raises DifferentError if none are better."""
    width = target.vector_bytes // widest(lanes.kernels)
    own = sum(size_in_bytes(lanes.buffers[n]) for n in lanes.small) // lanes.count
    most = max(width, min(VECTORS * width, target.first_cache // max(own, 1)))
    rounds = partial(_rounds, width=width, masked=target.has("avx512f"))
    strip = min((n for n in range(1, most + 1) if lanes.count % n == 0), key=lambda n: rounds(n) / n)
    if strip < width or strip * own > target.second_cache or any(lanes.own(n) > LONGEST for n in lanes.small):
        raise DifferentError
    strips = lanes.count // strip
    now = then = 0.0
    for loop in lanes.loops.values():
        now += _time(loop, lanes, width, rounds) + KERNEL
        then += strips * (lanes.each(loop) * sum(map(cost, loop.body)) * rounds(strip) + KERNEL)
    if then + (strips - 1) * sum(map(cost, alone)) > GAIN * now:
        raise DifferentError
    return strip


def _rounds(extent: int, width: int, masked: bool) -> int:
    """How often the body of a loop runs, in vectors: without masks, what is left over goes one by one."""
    return -(-extent // width) if masked else extent // width + extent % width


def _time(loop: For, lanes: Lanes, width: int, rounds: Callable[[int], int]) -> float:
    """Nanoseconds, about, of a kernel's loop over lanes as it is: in vectors along rows or sums, or of lanes."""
    each, one = lanes.each(loop), sum(map(cost, loop.body))
    inner = [max(int(extent_of(s.extent)), 1) for s in statements(*loop.body) if isinstance(s, For)]
    if not inner and each > 1:
        return one * rounds(each * lanes.count)
    if any(s.kind == "reduce" for s in statements(*loop.body) if isinstance(s, For)):
        along = min(SHARED * -(-n // width) / n for n in inner)
    else:
        along = min([1.0, *(rounds(n) / n for n in inner)])
    lets = lets_of(statements(*loop.body))
    far = sum(isinstance(node, (Load, Store)) and steps(node.index, lets).get(loop.index, 0) not in (0, 1)
              for node in walk(*loop.body))
    return each * lanes.count * min(one * along, one / width + APART * far * math.prod(inner))


def in_strips(stmts: Sequence[Stmt], lane: NamedValue, strip: int, private: Collection[str]) -> Iterator[Stmt]:
    """The statements of a lane as those of so many lanes, whose `private` buffers lie side by side: each of their
    kernels is a loop over them."""
    mine = NamedValue(f"{lane.name}.m", INDEX)
    place = affine(0, (lane, strip), (mine, 1))

    def at(buffer: str, index: Expr) -> Expr:
        return affine(0, (index, strip), (mine, 1)) if buffer in private else index

    for stmt in stmts:
        if not isinstance(stmt, Kernel) or (buffers_of((stmt,)).isdisjoint(private) and lane not in walk(stmt)):
            yield map_blocks(lambda block: tuple(in_strips(block, lane, strip, private)), stmt)
            continue
        body = rename(_in_order(stmt.body), {}, {}, {lane.name: place}, at)  # type: ignore[dict-item]
        loop = For(mine.name, Const(strip, INDEX), body, "vector")
        if not fits(loop):
            raise DifferentError
        yield replace(stmt, body=(loop,), reduces=None)


def _in_order(stmts: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """Statements of a lane, in which no loop has lanes itself."""
    ordered = (map_blocks(_in_order, s) for s in stmts)
    return tuple(replace(s, kind="serial") if isinstance(s, For) and s.kind in ("each", "reduce") else s
                 for s in ordered)
