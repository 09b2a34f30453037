"""Loops over two dimensions that an array lies across go in tiles, so that what is fetched is used.

    parallel i < 1024:                           parallel i.tile < 64:
      vector j < 4096:                             for j.tile < 256:
        y[i*4096 + j] = x[j*1024 + i]     ->         for i.in < 16:
                                                       vector j.in < 16:  i = ..., j = ...
                                                         y[i*4096 + j] = x[j*1024 + i]

Without tiles each step over x takes a line of memory to use one element of it. Only kernels are touched
whose iterations are independent: every element is stored once, by an index that shows it.
"""

from __future__ import annotations

from dataclasses import replace

from anima.compiler.emitting.value import itemsize
from anima.compiler.ir.affine import Nest, coefficient, independent, nest_of
from anima.compiler.ir.loops import (
    INDEX,
    Const,
    Expr,
    For,
    Kernel,
    Let,
    Load,
    Op,
    Program,
    Ref,
    Stmt,
    Store,
    map_blocks,
    walk,
    with_kernels,
)

_TILE = 16
_SMALL = 1 << 15      # bytes: what stays in the nearest cache needs no tiles
_LINE = 64            # bytes that are fetched together


def tile(program: Program) -> Program:
    """Cuts loops that step across memory into tiles."""
    return replace(program, body=with_kernels(_top, program.body))


def _top(stmt: Stmt) -> Stmt:
    match stmt:
        case Kernel(body=(For() as loop,)):
            return replace(stmt, body=(_tiled(loop),))
    return map_blocks(lambda block: tuple(map(_top, block)), stmt)


def _tiled(loop: For) -> For:
    nest = nest_of(loop)
    if nest is None or nest.loops[-1].kind != "vector":
        return loop
    across = _across(nest)
    if across is None or not independent(nest):
        return loop
    return _rebuild(nest, across)


def _accesses(nest: Nest) -> list[tuple[str, Expr, int]]:
    """(buffer, index, bytes of an element) of all loads and stores."""
    found = []
    for node in walk(*nest.between, *nest.body):
        if isinstance(node, Load):
            found.append((node.buffer, node.index, itemsize(node.dtype)))
        elif isinstance(node, Store):
            found.append((node.buffer, node.index, itemsize(node.value.dtype)))
    return found


def _across(nest: Nest) -> int | None:
    """The loop (its depth) along which memory lies that the innermost loop steps across, if that is worth tiles."""
    lets, extents = nest.lets, nest.extents
    inner = nest.loops[-1].index
    total = 1
    for _, extent in extents:
        total *= extent
    for _, index, size in _accesses(nest):
        step = coefficient(index, inner, lets)
        if step is None or abs(step) * size < _LINE or total * size < _SMALL:
            continue
        for depth, (name, extent) in enumerate(extents[:-1]):
            along = coefficient(index, name, lets)
            if along is not None and abs(along) == 1 and extent > 2:
                return depth
    return None


def _rebuild(nest: Nest, across: int) -> For:
    outer, inner = nest.loops[across], nest.loops[-1]
    places: list[Stmt] = []
    tiles: dict[str, tuple[Expr, Expr]] = {}   # number of tiles, size of one
    for loop in (outer, inner):
        extent = int(loop.extent.value)  # type: ignore[union-attr]
        start = Op("mul", (Ref(f"{loop.index}.tile", INDEX), Const(_TILE, INDEX)), INDEX)
        size: Expr = Const(min(_TILE, extent), INDEX)
        if extent % _TILE and extent > _TILE:
            size = Op("min", (size, Op("sub", (Const(extent, INDEX), start), INDEX)), INDEX)
        tiles[loop.index] = Const(-(-extent // _TILE), INDEX), size
        places.append(Let(loop.index, Op("add", (start, Ref(f"{loop.index}.in", INDEX)), INDEX)))
    body: For = For(f"{inner.index}.in", tiles[inner.index][1], (places[1], *nest.body), "vector")
    body = For(f"{outer.index}.in", tiles[outer.index][1], (places[0], *nest.between, body))
    body = For(f"{inner.index}.tile", tiles[inner.index][0], (body,))
    for loop in reversed(nest.loops[across + 1:-1]):
        body = replace(loop, body=(body,))
    body = For(f"{outer.index}.tile", tiles[outer.index][0], (body,), outer.kind)
    for loop in reversed(nest.loops[:across]):
        body = replace(loop, body=(body,))
    return body
