"""Who does what: iterations that do not depend on each other are handed out to teams of threads.

    each i < 100:                                        spread(32) i < 100:          a warp has a row
      var s = -inf                                         var s = -inf
      reduce j < 64: s max= x[i*64 + j]          ->        spread(1) j < 64: s max= x[i*64 + j]
      each k < 64: y[i*64 + k] = x[i*64 + k] - s           spread(1) k < 64: y[i*64 + k] = x[i*64 + k] - s

All threads of a team run its statements together, with the same values: loops in order, branches, variables. A loop
that is `spread(n)` hands its iterations out, in turn, to teams of n threads of the team; what is added up in them is
added up over the team afterwards. Outside of kernels the team is the whole grid. What a team stores at a place outside
of such loops, its first thread stores.

After this pass no loop is `each` or `reduce` but those that one thread runs by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from anima.compiler.emitting.value import itemsize
from anima.compiler.grid.target import GridTarget
from anima.compiler.grid.turned import turned
from anima.compiler.ir.affine import steps
from anima.compiler.ir.costs import cost
from anima.compiler.ir.loops import (
    INDEX,
    Accumulate,
    Assign,
    Call,
    Const,
    Expr,
    For,
    If,
    Kernel,
    Let,
    Load,
    Local,
    Mutable,
    NamedValue,
    Op,
    Program,
    Stmt,
    Store,
    While,
    WindowAt,
    affine,
    lets_of,
    map_blocks,
    statements,
    walk,
)
from anima.compiler.scheduling.vectorize import fits
from anima.compiler.storage.buffers import rename
from anima.util import replace

SHORT = 4       # iterations that are not worth handing out inside of a team
ALONE = 4096    # bytes of scratch memory that a thread may have by itself
LIGHT = 20.0    # nanoseconds, about, that an element takes of which a thread does several at once
EACH = 4        # iterations, at most, of each lane of a warp that does what is done once
LONG = 2048     # iterations from which a row is work for a block

_MOVED = 16     # bytes that a thread moves at once


def hand_out(program: Program, target: GridTarget) -> Program:
    """Decides which threads run what."""
    return replace(program, body=_outside(program.body, _Teams(target)))


def most_threads(stmts: Sequence[Stmt]) -> int:
    """How many threads have something to do at the same time, at most."""
    most = 1
    for loop in _outermost(stmts):
        most = max(most, loop.width * (int(loop.extent.value) if isinstance(loop.extent, Const) else loop.width))
    return most


def _outermost(stmts: Sequence[Stmt]) -> Iterator[For]:
    for stmt in stmts:
        if isinstance(stmt, For) and stmt.kind == "spread":
            yield stmt
        else:
            for name in ("body", "then", "orelse", "before"):
                yield from _outermost(getattr(stmt, name, ()))


def _outside(stmts: Sequence[Stmt], teams: _Teams) -> tuple[Stmt, ...]:
    out: list[Stmt] = []
    for stmt in stmts:
        if isinstance(stmt, Kernel):
            out.append(stmt if stmt.inline else replace(stmt, body=teams.kernel(stmt.body)))
        else:
            out.append(map_blocks(lambda block: _outside(block, teams), stmt))
    return tuple(out)


@dataclass(slots=True)
class Nest:
    """Loops of one kind inside of each other, outside in, with constant extents, and the statements inside, to which
    those between the loops have been moved."""

    loops: list[tuple[str, int]]
    body: tuple[Stmt, ...]

    @property
    def count(self) -> int:
        return math.prod(n for _, n in self.loops)


def nest(loop: For) -> Nest:
    """The nest that a loop is the outermost of."""
    loops: list[tuple[str, int]] = []
    between: list[Stmt] = []
    while isinstance(loop.extent, Const):
        loops.append((loop.index, int(loop.extent.value)))
        *before, last = loop.body or (None,)
        if not (isinstance(last, For) and last.kind == loop.kind and isinstance(last.extent, Const)
                and all(isinstance(s, Let) for s in before) and len(before) <= 4):
            break
        between += before  # type: ignore[arg-type]
        loop = last
    return Nest(loops, (*between, *loop.body))


def around(loops: Sequence[tuple[str, int]], body: Sequence[Stmt], kind: Literal["each", "reduce"]) -> tuple[Stmt, ...]:
    """Statements in loops of a kind, outside in: indices and extents."""
    stmts = tuple(body)
    for name, extent in reversed(loops):
        stmts = (For(name, Const(extent, INDEX), stmts, kind),)
    return stmts


class _Teams:
    def __init__(self, target: GridTarget) -> None:
        self.target = target
        self.count = 0

    def name(self) -> str:
        self.count += 1
        return f"g{self.count}"

    # ---------------------------------------------------------------- kernels

    def kernel(self, stmts: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """The statements of a kernel, for the whole grid."""
        loops = [s for s in stmts if isinstance(s, For)]
        if loops and all(isinstance(s, (Let, For)) for s in stmts) and all(s.kind == "each" for s in loops):
            return tuple(self.rows(s) if isinstance(s, For) else s for s in stmts)
        lengths = [nest(s).count if isinstance(s.extent, Const) else LONG for s in _loops_of(stmts)]
        few = max(lengths, default=0) <= EACH * self.target.warp
        return (self.one(stmts, self.target.warp if few else self.target.block),)

    def one(self, stmts: tuple[Stmt, ...], width: int) -> For:
        """Statements that one team of the grid runs."""
        together = self.together(stmts, width)
        if together is None:
            rows = [s for s in stmts if isinstance(s, Local) and not s.held]
            rest = tuple(s for s in stmts if s not in rows)
            if not rows:
                return For(self.name(), Const(1, INDEX), stmts, "spread", 1)
            together = (*rows, For(self.name(), Const(1, INDEX), rest, "spread", 1))
        return For(self.name(), Const(1, INDEX), together, "spread", width)

    def rows(self, loop: For) -> Stmt:
        """A loop over what is independent, for the whole grid."""
        found = nest(loop)
        if not found.loops:  # of an extent that is not known
            return replace(loop, kind="spread", width=1)
        width = self.width(found)
        together = self.together(found.body, width) if width > 1 else None
        if together is None and width > 1:  # a block has more memory than a warp
            width = self.target.block
            together = self.together(found.body, width)
        if together is None:
            scratch = sum(s.size * itemsize(s.dtype) for s in statements(*found.body)
                          if isinstance(s, Local) and not s.held)
            if scratch > ALONE:
                width = self.target.warp if scratch * self.target.block // self.target.warp <= self.target.shared // 2 \
                    else self.target.block
                loop_ = self.one(found.body, width)
                return self.linear(Nest(found.loops, loop_.body), width)
            found = self.fastest(found)
            tiles = turned(found.loops, found.body, self.target, self.name)
            if tiles is not None:
                return replace(tiles, width=self.target.block)
            return self.linear(self.in_lanes(found, self.target.at_once // 4), 1)
        return self.linear(Nest(found.loops, together), width)

    def in_lanes(self, found: Nest, least: int) -> Nest:
        """A nest whose iterations do several elements beside each other, which are moved at once, if that leaves at
        least so many iterations."""
        *others, (name, extent) = found.loops
        moved = [node for node in walk(*found.body) if isinstance(node, (Load, Store))]
        lanes = min((_MOVED // itemsize(_dtype(n)) for n in moved), default=1)
        if lanes < 2 or extent % lanes or found.count // lanes < least:
            return found
        lets = lets_of(statements(*found.body))
        if (any(steps(n.index, lets).get(name, 0) not in (0, 1) for n in moved)
                or any(isinstance(s, (Local, If)) for s in statements(*found.body))
                or sum(map(cost, found.body)) > LIGHT):
            return found
        lane, outer = self.name(), self.name()
        index = affine(0, (NamedValue(outer, INDEX), lanes), (NamedValue(lane, INDEX), 1))
        body = rename(found.body, {}, {}, {name: index})  # type: ignore[dict-item]
        loop = For(lane, Const(lanes, INDEX), body, "vector", lanes)
        return Nest([*others, (outer, extent // lanes)], (loop,)) if fits(loop) else found

    def linear(self, found: Nest, width: int) -> For:
        """One loop over all iterations of a nest, for teams of a width."""
        *slow, last = [n for n in found.loops if n[1] != 1] or [found.loops[-1]]
        ones = {name: Const(0, INDEX) for name, n in found.loops if n == 1 and name != last[0]}
        body = rename(found.body, {}, {}, ones) if ones else found.body
        if not slow:
            return For(last[0], Const(last[1], INDEX), body, "spread", width)
        index = self.name()
        lets: list[Stmt] = []
        places: dict[str, Expr] = {}
        whole = NamedValue(index, INDEX)
        for name, extent in [last, *reversed(slow[1:])]:  # what is left in the end is the slowest loop's index
            quotient = self.name() if len(lets) + 1 < len(slow) else slow[0][0]
            lets.append(Let(quotient, Op("div", (whole, Const(extent, INDEX)), INDEX)))
            rest = NamedValue(quotient, INDEX)
            places[name] = affine(0, (whole, 1), (rest, -extent))
            whole = rest
        body = rename(body, {}, {}, places)  # type: ignore[arg-type]
        return For(index, Const(found.count, INDEX), (*lets, *body), "spread", width)

    # ---------------------------------------------------------------- how many threads an iteration takes

    def width(self, found: Nest) -> int:
        """How many threads are to have an iteration of a nest together."""
        inner = list(_loops_of(found.body))
        lengths = [nest(s).count if isinstance(s.extent, Const) else LONG for s in inner]
        if not inner or max(lengths) < SHORT or any(isinstance(s, (While, Call)) for s in statements(*found.body)):
            return 1
        if self._steps_across(found, inner) and found.count * 8 >= self.target.at_once // 32:
            return 1
        longest, target = max(lengths), self.target
        if longest >= LONG and found.count * target.warp < target.at_once:
            return target.block
        return min(target.warp, 1 << (longest - 1).bit_length())

    def _steps_across(self, found: Nest, inner: Sequence[For]) -> bool:
        """Whether neighbouring threads should have neighbouring iterations rather than neighbours in an inner loop."""
        lets = lets_of(statements(*found.body))
        last = {found.loops[-1][0]}
        across = along = 0
        for loop in inner:
            ins = {loop.index, *(s.index for s in statements(*loop.body) if isinstance(s, For))}
            for node in walk(*loop.body):
                if isinstance(node, (Load, Store)):
                    step = steps(node.index, lets)
                    across += any(step.get(n) == 1 for n in last)
                    along += any(step.get(n) == 1 for n in ins)
        return across > 0 and across >= along

    def fastest(self, found: Nest) -> Nest:
        """The nest with the loop inside along which neighbours in memory are stored."""
        lets = lets_of(statements(*found.body))
        scores = dict.fromkeys((name for name, _ in found.loops), 0)
        for node in walk(*found.body):
            if isinstance(node, (Load, Store)):
                for name, step in steps(node.index, lets).items():
                    if name in scores and step == 1:
                        scores[name] += 2 if isinstance(node, Store) else 1
        best = max(reversed(found.loops), key=lambda n: scores[n[0]] if n[1] > 1 else -1)
        return Nest([*(n for n in found.loops if n != best), best], found.body)

    # ---------------------------------------------------------------- inside of a team

    def together(self, stmts: Sequence[Stmt], width: int) -> tuple[Stmt, ...] | None:
        """Statements for a team; None for those that one thread had better run alone."""
        out: list[Stmt] = []
        scratch = sum(s.size * itemsize(s.dtype) for s in stmts if isinstance(s, Local) and not s.held)
        if scratch * max(1, self.target.block // width) > self.target.shared // 2:
            return None
        for stmt in stmts:
            match stmt:
                case Let() | Mutable() | Local() | Assign() | Accumulate() | Store():
                    out.append(stmt)
                case For(kind="each" | "reduce"):
                    spread = self.inside(stmt, width)
                    if spread is None:
                        return None
                    out.append(spread)
                case For() | If():
                    blocks = [self.together(b, width) for b in _blocks(stmt)]
                    if None in blocks or (isinstance(stmt, For) and not _spreads(blocks[0] or ()) and _stores(stmt)):
                        return None
                    out.append(replace(stmt, body=blocks[0]) if isinstance(stmt, For) else
                               replace(stmt, then=blocks[0], orelse=blocks[1]))
                case _:
                    return None
        return tuple(out)

    def inside(self, loop: For, width: int) -> Stmt | None:
        """A loop in a team, handed out to its threads."""
        if any(isinstance(s, (WindowAt, Call)) for s in statements(*loop.body)):
            return None
        found = nest(loop)
        if not found.loops:
            return replace(loop, kind="spread", width=1)
        if loop.kind == "each" and len(found.loops) > 1:
            found = self.fastest(found)
        return self.linear(self.in_lanes(found, width), 1)


def _dtype(node: Load | Store) -> str:
    return node.dtype if isinstance(node, Load) else node.value.dtype if node.value.dtype != INDEX else "i64"


def _blocks(stmt: For | If) -> list[tuple[Stmt, ...]]:
    return [stmt.body] if isinstance(stmt, For) else [stmt.then, stmt.orelse]


def _spreads(stmts: Sequence[Stmt]) -> bool:
    return any(isinstance(s, For) and s.kind == "spread" for s in statements(*stmts))


def _stores(stmt: Stmt) -> bool:
    return any(isinstance(s, Store) for s in statements(stmt))


def _loops_of(stmts: Sequence[Stmt]) -> Iterator[For]:
    """The outermost loops that can be handed out."""
    for stmt in stmts:
        if isinstance(stmt, For) and stmt.kind in ("each", "reduce"):
            yield stmt
        elif isinstance(stmt, (For, If)):
            for block in _blocks(stmt):
                yield from _loops_of(block)
