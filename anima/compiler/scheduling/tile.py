"""Loops over two dimensions that an array lies across go in tiles, so that what is fetched is used.

    each i < 1024:                               each i.block < 64:
      each j < 4096:                               each j.block < 256:
        y[i*4096 + j] = x[j*1024 + i]     ->         each i.in < 16:
                                                       each j.in < 16:  i = ..., j = ...
                                                         y[i*4096 + j] = x[j*1024 + i]

Without tiles each step over x takes a line of memory to use one element of it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

from anima.compiler.emitting.value import COMPLEX_TYPES, itemsize
from anima.compiler.ir.affine import LoopNest, nest_of, steps
from anima.compiler.ir.costs import is_short
from anima.compiler.ir.loops import (
    INDEX,
    Const,
    Expr,
    For,
    Kernel,
    Let,
    Load,
    NamedValue,
    Op,
    Program,
    Stmt,
    Store,
    affine,
    walk,
    with_blocks,
    with_kernels,
)
from anima.compiler.machine.target import Target
from anima.util import replace

_TILE = 16         # iterations of a tile, at least
_LANES = 64        # and at most, along the innermost loop
_SAME_PLACE = 4096  # bytes: addresses so far apart share a place in a first-level cache
_SQUARES = 64      # iterations along both sides of tiles that are done in squares, in registers, if they are short
_FEW = 3           # elements in a step of the innermost loop, from which arrays that are no longer near are tiled


def tile(program: Program, target: Target) -> Program:
    """Cuts loops that step across memory into tiles."""
    body = with_kernels(lambda kernel: _kernel(kernel, target), program.body)
    return program if body is program.body else replace(program, body=body)


def _kernel(kernel: Kernel, target: Target) -> Kernel:
    body = tuple(_tiled(s, target) if isinstance(s, For) else s for s in kernel.body)
    return kernel if all(map(operator.is_, body, kernel.body)) else replace(kernel, body=body)


def _tiled(loop: For, target: Target) -> Stmt:
    nest = nest_of((loop,))
    if (nest is None or len(nest.loops) < 2
            or not all(one.kind == "each" and isinstance(one.extent, Const) for one in nest.loops)):
        return loop
    across, step = _across(nest, target)
    if not step:
        return loop
    if simple(nest.body) and not any(s.value.dtype in COMPLEX_TYPES for s in nest.body if isinstance(s, Store)):
        return _rebuild(nest, across, _SQUARES, _SQUARES, _TILE)
    near = target.first_cache // math.gcd(step, _SAME_PLACE)  # lines so far apart that the cache holds at once
    return _rebuild(nest, across, _TILE, min(max(near, _TILE), _LANES), 1)


def _accesses(nest: LoopNest) -> list[tuple[str, Expr, int]]:
    """(buffer, index, bytes of an element) of all loads and stores."""
    found = []
    for node in walk(*nest.between, *nest.body):
        if isinstance(node, Load):
            found.append((node.buffer, node.index, itemsize(node.dtype)))
        elif isinstance(node, Store):
            found.append((node.buffer, node.index, itemsize(node.value.dtype)))
    return found


def _across(nest: LoopNest, target: Target) -> tuple[int, int]:
    """The loop (its depth) along which memory lies that the innermost loop steps across, and how many bytes it steps:
    0, if that is not worth tiles."""
    lets, extents = nest.lets, nest.extents
    inner = nest.loops[-1].index
    total = math.prod(extent for _, extent in extents)
    for _, index, size in _accesses(nest):
        step_of = steps(index, lets) if total * size >= target.first_cache else {}
        step = abs(step_of.get(inner, 0) or 0) * size
        if step < (_FEW * size if total * size > 2 * target.second_cache else min(target.line, _TILE * size)):
            continue
        for depth, (name, extent) in enumerate(extents[:-1]):
            along = step_of.get(name, 0)
            if along is not None and abs(along) == 1 and extent > 2:
                return depth, step
    return 0, 0


def simple(body: Sequence[Stmt]) -> bool:
    """Whether the body of a loop is short enough to stand there for each row of a square, which vectors are transposed
    in (`emitting/squares.py`)."""
    return all(isinstance(s, (Let, Store)) for s in body) and is_short(body)


def _rebuild(nest: LoopNest, across: int, rows: int, lanes: int, unit: int) -> Stmt:
    tiles, row = split(nest.loops[across], even_block(nest.extents[across][1], rows, unit))
    steps, lane = split(nest.loops[-1], even_block(nest.extents[-1][1], lanes, unit))
    body = with_blocks(row, [(row.body[0], *nest.between, lane)])
    blocks = (tiles, steps) if tiles.extent != Const(1, INDEX) else (steps, tiles)  # the first is for all threads
    for loop in reversed((*nest.loops[:across], *nest.loops[across + 1:-1], *blocks)):
        body = with_blocks(loop, [(body,)])
    return body


# ---------------------------------------------------------------- blocks


def even_block(extent: int, most: int, step: int = 1) -> int:
    """The size of blocks of at most `most` iterations, a multiple of `step`: a divisor of the extent, if one of more
    than half of `most` is."""
    size = min(most, extent)
    return next((n for n in range(size, most // 2, -step) if extent % n == 0), size)


def split(loop: For, size: int) -> tuple[For, For]:
    """The loop over the blocks of a loop of constant extent, which is empty, and the loop over one block.

        for i < 100: ...      ->      for i.block < 7:  for i.in < min(16, 100 - i.block * 16): i = ...
    """
    extent = int(loop.extent.value)  # type: ignore[union-attr]
    block, inner = NamedValue(f"{loop.index}.block", INDEX), NamedValue(f"{loop.index}.in", INDEX)
    count: Expr = Const(min(size, extent), INDEX)
    if extent % size and extent > size:
        count = Op("min", (count, affine(extent, (block, -size))), INDEX)
    body = (Let(loop.index, affine(0, (block, size), (inner, 1))), *loop.body)
    return (For(block.name, Const(-(-extent // size), INDEX), (), loop.kind),
            For(inner.name, count, body, loop.kind, loop.width))
