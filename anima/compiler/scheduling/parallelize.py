"""Parallel loops get their grain, or become serial where threads would not pay.

    kernel add:                            kernel add:
      vector j < 1000000:          ->        parallel b < 125, grain 2:
        z[j] = x[j] + y[j]                     vector j < 8000:
                                                 z[b*8000 + j] = x[b*8000 + j] + y[b*8000 + j]

An iteration's work is estimated, never measured, and blocks depend on sizes alone: the same program
computes the same numbers on any number of threads.
"""

from __future__ import annotations

from anima.compiler.ir.costs import cost, extent_of
from anima.compiler.ir.loops import (
    INDEX,
    Accumulate,
    Const,
    For,
    Let,
    NamedValue,
    Op,
    Program,
    Stmt,
    Store,
    statements,
    with_kernels,
)
from anima.compiler.scheduling.tile import even_block, split
from anima.util import replace

WORTH = 25_000.0   # nanoseconds of work from which threads are used
PIECE = 8_000.0    # least work for one piece
_BLOCK = 8192       # iterations of a block that a lone loop is cut into, about
ENOUGH = 64        # iterations that are enough for any number of threads


def parallelize(program: Program) -> Program:
    """Decides which loops run on several threads.

    After this pass every `parallel` loop has the grain that it runs with.
    """
    return replace(program, body=with_kernels(
        lambda kernel: replace(kernel, body=tuple(map(_outermost, kernel.body))), program.body))


def _outermost(stmt: Stmt) -> Stmt:
    """A statement directly in a kernel."""
    if isinstance(stmt, For) and stmt.kind == "parallel":
        return _grained(stmt)
    if isinstance(stmt, For) and stmt.kind == "vector":
        return _cut(stmt)
    return stmt


def _grained(loop: For) -> For:
    loop = _collapsed(loop)
    each = sum(cost(s) for s in loop.body)
    if each * extent_of(loop.extent) < WORTH:
        return replace(loop, kind="serial")
    return replace(loop, grain=max(1, int(PIECE / max(each, 1.0))))


def _collapsed(loop: For) -> For:
    """A parallel loop of few, long iterations together with the loop inside of it, if that is independent too.

        parallel i < 2:                      parallel p < 2000:
          for k < 1000: ...          ->        i = p / 1000;  k = p % 1000;  ...
    """
    if not isinstance(loop.extent, Const) or not loop.body:
        return loop
    extent = int(loop.extent.value)
    each = sum(cost(s) for s in loop.body)
    *lets, inner = loop.body
    if (extent >= ENOUGH or each < 4 * PIECE or not isinstance(inner, For) or not isinstance(inner.extent, Const)
            or not all(isinstance(s, Let) for s in lets)):
        return loop
    if inner.kind == "vector":
        inner = _blocks(inner)
    elif inner.kind != "each" or not all(isinstance(s, (For, Let, Store)) for s in statements(*inner.body)):
        return loop  # totals stay with the thread that has the data near
    if inner.kind == "vector" or not isinstance(inner.extent, Const):
        return loop
    count = int(inner.extent.value)
    both, size = NamedValue(f"{loop.index}.{inner.index}", INDEX), Const(count, INDEX)
    body = (Let(loop.index, Op("div", (both, size), INDEX)), *lets, Let(inner.index, Op("rem", (both, size), INDEX)),
            *inner.body)
    return replace(loop, index=both.name, extent=Const(extent * count, INDEX), body=body)


def _cut(loop: For) -> For:
    """A lone vector loop in blocks for threads, if it reduces nothing and is long."""
    if cost(loop) < WORTH:
        return loop
    blocks = _blocks(loop)
    return loop if blocks is loop else _grained(blocks)


def _blocks(loop: For) -> For:
    """A vector loop as a parallel loop over blocks, if it reduces nothing and has enough to do."""
    if not isinstance(loop.extent, Const) or any(isinstance(s, Accumulate) for s in statements(*loop.body)):
        return loop
    extent, total = int(loop.extent.value), cost(loop)
    if extent < 2 * loop.width or total < 2 * PIECE:
        return loop
    most = max(loop.width, min(_BLOCK, int(extent * PIECE / total)) // loop.width * loop.width)
    blocks, lanes = split(loop, even_block(extent, most, loop.width))
    return replace(blocks, kind="parallel", body=(lanes,))
