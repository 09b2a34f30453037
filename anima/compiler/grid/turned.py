"""What is loaded along one axis and stored along another goes through memory that a block shares, tile by tile.

    each i < 4096: each j < 4096:                       spread(block) tile < 16384:
      y[i*4096 + j] = x[j*4096 + i] + 1         ->        local t: f32[32 * 33]
                                                          spread e < 1024: t[...] = x[...]       neighbours in x
                                                          spread e < 1024: y[...] = t[...] + 1   neighbours in y

A row of a tile is one element longer than it need be, so that its columns lie in different banks of the memory. Source:
Ruetsch and Micikevicius, Optimizing matrix transpose in CUDA (2009).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anima.compiler.emitting.value import COMPLEX_TYPES, itemsize
from anima.compiler.grid.target import GridTarget
from anima.compiler.ir.affine import steps
from anima.compiler.ir.loops import (
    INDEX,
    Const,
    Expr,
    For,
    If,
    Let,
    Load,
    Local,
    NamedValue,
    Op,
    Stmt,
    Store,
    affine,
    lets_of,
    statements,
    walk,
)
from anima.compiler.storage.buffers import rename

SIDE = 32   # elements of a side of a tile
MOST = 4    # arrays that are turned together


def turned(loops: Sequence[tuple[str, int]], body: tuple[Stmt, ...], target: GridTarget,
           name: Callable[[], str]) -> For | None:
    """The loops as one over tiles, which blocks have; None where nothing is to be turned.

    Args:
      loops: indices and extents, outside in; the last is that along which results are stored.
      body: what is done for each element: lets and stores.
    """
    if not all(isinstance(s, (Let, Store)) for s in body) or len(loops) < 2:
        return None
    lets = lets_of(body)
    last, columns = loops[-1]
    found: dict[Load, str] = {}
    for node in walk(*body):
        if isinstance(node, Load):
            step = steps(node.index, lets)
            along = [n for n, _ in loops[:-1] if step.get(n) == 1]
            if along and step.get(last, 0) not in (0, 1):
                found[node] = along[0]
    rows = set(found.values())
    looked_up = any(isinstance(n, Load) for x in found for n in walk(x.index))
    if not found or len(found) > MOST or len(rows) != 1 or looked_up:
        return None
    (row,) = rows
    extents = dict(loops)
    if min(extents[row], columns) < SIDE or any(x.dtype in COMPLEX_TYPES or itemsize(x.dtype) > 8 for x in found):
        return None
    return _tiles(loops, body, row, list(found), name)


def _tiles(loops: Sequence[tuple[str, int]], body: tuple[Stmt, ...], row: str, loads: list[Load],
           name: Callable[[], str]) -> For:
    extents = dict(loops)
    last, columns = loops[-1]
    high, wide = -(-extents[row] // SIDE), -(-columns // SIDE)
    others = [(n, e) for n, e in loops if n not in (row, last)]
    tile = name()
    places: dict[str, Expr] = {}
    rest: Expr = NamedValue(tile, INDEX)
    lets: list[Stmt] = []
    for n, extent in [("", wide), ("", high), *reversed(others)]:
        number, quotient = name(), name()
        lets += [Let(number, Op("rem", (rest, Const(extent, INDEX)), INDEX)),
                 Let(quotient, Op("div", (rest, Const(extent, INDEX)), INDEX))]
        places[n or f"tile{len(places)}"] = NamedValue(number, INDEX)
        rest = NamedValue(quotient, INDEX)
    across, down = places["tile0"], places["tile1"]
    fixed = {n: places[n] for n, _ in others}
    scratch = [f"{tile}.t{k}" for k in range(len(loads))]
    needed = [s for s in body if isinstance(s, Let) and s.value.dtype == INDEX]

    def part(inner: Callable[[NamedValue, NamedValue], tuple[dict[str, Expr], tuple[Stmt, ...]]]) -> For:
        """What the threads of a block do with each element of the tile, whose row and column they have."""
        e, r, c = name(), name(), name()
        which: Expr = NamedValue(e, INDEX)
        numbers, stmts = inner(NamedValue(r, INDEX), NamedValue(c, INDEX))
        stmts = rename(stmts, {}, {}, {**fixed, **numbers})  # type: ignore[dict-item]
        checks = [Op("lt", (numbers[n], Const(extents[n], INDEX)), "bool") for n in (row, last) if extents[n] % SIDE]
        if checks:
            both = checks[0] if len(checks) == 1 else Op("and", (checks[0], checks[1]), "bool")
            stmts = (If(both, stmts),)
        return For(e, Const(SIDE * SIDE, INDEX), (
            Let(r, Op("div", (which, Const(SIDE, INDEX)), INDEX)),
            Let(c, Op("rem", (which, Const(SIDE, INDEX)), INDEX)),
            *stmts), "spread", 1)

    def fetch(r: NamedValue, c: NamedValue) -> tuple[dict[str, Expr], tuple[Stmt, ...]]:
        at = affine(0, (r, SIDE + 1), (c, 1))
        numbers = {row: affine(0, (down, SIDE), (c, 1)), last: affine(0, (across, SIDE), (r, 1))}
        return numbers, (*needed, *(Store(t, at, x) for t, x in zip(scratch, loads, strict=True)))

    def put(r: NamedValue, c: NamedValue) -> tuple[dict[str, Expr], tuple[Stmt, ...]]:
        at = affine(0, (c, SIDE + 1), (r, 1))
        numbers = {row: affine(0, (down, SIDE), (r, 1)), last: affine(0, (across, SIDE), (c, 1))}
        held = {x: Load(t, at, x.dtype) for t, x in zip(scratch, loads, strict=True)}
        return numbers, tuple(_with(s, held) for s in body)

    locals_ = [Local(t, x.dtype, SIDE * (SIDE + 1)) for t, x in zip(scratch, loads, strict=True)]
    count = high * wide
    for _, extent in others:
        count *= extent
    names = {s.name: name() for s in statements(*body) if isinstance(s, Let)}
    first = rename((part(fetch),), {}, names)
    return For(tile, Const(count, INDEX), (*lets, *locals_, *first, part(put)), "spread", -1)


def _with(stmt: Stmt, held: dict[Load, Load]) -> Stmt:
    """A statement with loads put in the place of others."""
    def expr(e: Expr) -> Expr:
        if isinstance(e, Load):
            return held.get(e) or Load(e.buffer, expr(e.index), e.dtype)
        if isinstance(e, Op):
            return Op(e.name, tuple(map(expr, e.args)), e.dtype, e.params)
        return e

    if isinstance(stmt, Let):
        return Let(stmt.name, expr(stmt.value))
    assert isinstance(stmt, Store)
    return Store(stmt.buffer, stmt.index, expr(stmt.value), stmt.op)
