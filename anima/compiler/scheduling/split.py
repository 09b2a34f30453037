"""Loops cut into blocks.

    for i < 100:  y[i] = ...      ->      for i.block < 7:
                                            for i.in < min(16, 100 - i.block * 16):
                                              i = i.block * 16 + i.in
                                              y[i] = ...
"""

from __future__ import annotations

from dataclasses import replace

from anima.compiler.ir.loops import INDEX, Const, Expr, For, Let, Op, Ref


def even_block(extent: int, most: int, step: int = 1) -> int:
    """The size of blocks of at most `most` iterations, a multiple of `step`: a divisor of the extent, if one of more
    than half of `most` is."""
    size = min(most, extent)
    return next((n for n in range(size, most // 2, -step) if extent % n == 0), size)


def split(loop: For, size: int) -> tuple[For, For]:
    """The loop over the blocks of a loop of constant extent, which is empty, and the loop over one block."""
    extent = int(loop.extent.value)  # type: ignore[union-attr]
    block, inner = Ref(f"{loop.index}.block", INDEX), Ref(f"{loop.index}.in", INDEX)
    start = Op("mul", (block, Const(size, INDEX)), INDEX)
    count: Expr = Const(min(size, extent), INDEX)
    if extent % size and extent > size:
        count = Op("min", (count, Op("sub", (Const(extent, INDEX), start), INDEX)), INDEX)
    body = (Let(loop.index, Op("add", (start, inner), INDEX)), *loop.body)
    return (replace(loop, index=block.name, extent=Const(-(-extent // size), INDEX), body=()),
            replace(loop, index=inner.name, extent=count, body=body))
