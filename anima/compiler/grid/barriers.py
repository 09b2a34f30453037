"""Threads of a team wait for each other wherever one may need what another has stored.

    spread(1) i < 64: t[i] = x[i] * 2                spread(1) i < 64: t[i] = x[i] * 2
    spread(1) i < 64: y[i] = t[63 - i]      ->       barrier(block)
                                                     spread(1) i < 64: y[i] = t[63 - i]

Between two barriers of a team no place is stored that another statement of the team loads or stores. What lies in the
same memory counts as one, and so do all tapes; what one thread has to itself needs no barrier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anima.compiler.grid.nests import asks_host
from anima.compiler.ir.loops import (
    Call,
    Expr,
    For,
    If,
    Kernel,
    Load,
    Local,
    Program,
    Stmt,
    Store,
    While,
    walk,
)
from anima.compiler.ir.routines import TAPE_ROUTINES, buffers_read, buffers_written
from anima.compiler.storage.proof import MemorySpan, memory_spans, overlap
from anima.util import replace

_SHARED: MemorySpan = "shared memory of blocks", 0, 1
_TAPES: MemorySpan = "memory of tapes", 0, 1
GRID = 0  # the width of a barrier of the whole grid

def barriers(program: Program) -> Program:
    """Puts barriers between statements that depend on each other."""
    worker = _Synchroniser(program)
    body, _ = worker.block(program.body, GRID, _Since())
    return replace(program, body=body)


@dataclass(slots=True, frozen=True)
class _Since:
    """What a team has loaded and stored since its last barrier; `first`: what its first thread has stored for it."""

    loads: frozenset[MemorySpan] = frozenset()
    stores: frozenset[MemorySpan] = frozenset()
    first: frozenset[MemorySpan] = frozenset()

    def meets(self, other: _Since) -> bool:
        """Whether something that has been done must be over before something else is."""
        return (_overlap(self.stores, other.loads | other.stores | other.first)
                or _overlap(self.first, other.loads | other.stores)
                or _overlap(self.loads, other.stores | other.first))

    def __or__(self, other: _Since) -> _Since:
        return _Since(self.loads | other.loads, self.stores | other.stores, self.first | other.first)


def _overlap(some: frozenset[MemorySpan], others: frozenset[MemorySpan]) -> bool:
    return any(overlap(a, b) for a in some for b in others)


class _Synchroniser:
    def __init__(self, program: Program) -> None:
        self.places = memory_spans(program) | {b.name: _TAPES for b in program.with_role("window")}
        self.mine: set[str] = set()  # scratch memory of single threads, and what is in registers

    def block(self, stmts: Sequence[Stmt], team: int, since: _Since) -> tuple[tuple[Stmt, ...], _Since]:
        """The statements of a team with barriers, and what there is since the last one."""
        out: list[Stmt] = []
        for stmt in stmts:
            new, since, before = self.statement(stmt, team, since)
            out += before
            out.append(new)
        return tuple(out), since

    def statement(self, stmt: Stmt, team: int, since: _Since) -> tuple[Stmt, _Since, list[Stmt]]:
        """A statement, what there is since the last barrier after it, and the barrier before it."""
        match stmt:
            case Call(routine="barrier"):
                return stmt, _Since() if stmt.args == (team,) else since, []
            case Call() if asks_host(stmt):  # after which the whole grid waits for the answer
                return stmt, _Since(), self.after(since, self.touched(stmt), team)[1]
            case Kernel(body=body):
                new, since = self.block(body, team, since)
                return replace(stmt, body=new), since, []
            case For(kind="spread", body=body, width=width):
                since, before = self.after(since, self.touched(stmt), team)
                if width > 1:
                    body, _ = self.rounds(body, width, _Since())
                return replace(stmt, body=body), since, before
            case For(body=body, extent=extent):
                since, before = self.after(since, self.touched(extent), team)
                body, since = self.rounds(body, team, since)
                return replace(stmt, body=body), since, before
            case While():
                stmt, since = self.loop(stmt, team, since)
                return stmt, since, []
            case If(cond=cond, then=then, orelse=orelse):
                since, before = self.after(since, self.touched(cond), team)
                (then, one), (orelse, other) = (self.block(b, team, since) for b in (then, orelse))
                return replace(stmt, then=then, orelse=orelse), one | other, before
            case Local(buffer=buffer, held=held):
                if held:
                    self.mine.add(buffer)
                else:
                    self.mine.discard(buffer)
                    self.places[buffer] = buffer, 0, 1
                return stmt, since, []
        done = self.touched(stmt)
        since, before = self.after(since, _Since(done.loads, frozenset(), done.stores), team)
        return stmt, since, before

    @staticmethod
    def after(since: _Since, done: _Since, team: int) -> tuple[_Since, list[Stmt]]:
        """What there is since the last barrier after something is done, and the barrier that it needs before it."""
        if since.meets(done):
            return done, [Call("barrier", (team,))]
        return since | done, []

    def rounds(self, body: Sequence[Stmt], team: int, since: _Since) -> tuple[tuple[Stmt, ...], _Since]:
        """The body of a loop: what an iteration does may meet what the one before it did."""
        new, once = self.block(body, team, since)
        new, twice = self.block(new, team, since | once)
        return new, since | once | twice

    def loop(self, stmt: While, team: int, since: _Since) -> tuple[While, _Since]:
        before, body, cond = stmt.before, stmt.body, stmt.cond
        left = since
        for _ in range(2):
            before, since = self.block(before, team, since)
            since, barrier = self.after(since, self.touched(cond), team)
            before = (*before, *barrier)
            left = left | since
            body, since = self.block(body, team, since)
            since = since | left
        return replace(stmt, before=before, body=body), left

    def touched(self, node: Stmt | Expr) -> _Since:
        """What a statement loads and stores that other threads may see."""
        loads: set[str] = set()
        stores: set[str] = set()
        own = set(self.mine)
        shared = tapes = False
        for part in walk(node):
            match part:
                case Load(buffer=buffer):
                    loads.add(buffer)
                case Store(buffer=buffer, op=op):
                    stores.add(buffer)
                    if op is not None:
                        loads.add(buffer)
                case Local(buffer=buffer, held=held):
                    own.add(buffer)
                    shared = shared or not held
                case Call(routine=routine, args=args) if routine != "barrier":
                    loads.update(buffers_read(routine, args))
                    stores.update(buffers_written(routine, args))
                    tapes = tapes or routine in TAPE_ROUTINES  # which may move, or be freed
        found = frozenset(self.places[b] for b in stores - own)
        if shared and isinstance(node, For) and node.width > 1:
            found |= {_SHARED}
        if tapes:
            found |= {_TAPES}
        return _Since(frozenset(self.places[b] for b in loads - own), found)
