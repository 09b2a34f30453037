"""Plain nests get their order: what runs on threads, what in vectors, what is added up in parts.

    each i < 1000:                           parallel i < 1000:
      var s: f32 = 0.0                         var s: f32 = 0.0
      reduce j < 64: s += x[i*64 + j]   ->     vector j < 64: s += x[i*64 + j]
      y[i] = s                                 y[i] = s

Lowering says which iterations are independent (`each`) and which are so but for what they add up (`reduce`). The
outermost loop of a kernel runs on threads, the innermost in vectors; of rows of two or three elements (points, say), a
lane has a whole one, and so it has of rows in each of which one element waits for the one before (running sums). How
reductions run is in `reductions.py`.

After this pass no loop is `reduce`; those that are `each` run in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anima.compiler.emitting.memory import LONGEST
from anima.compiler.ir.affine import along, largest, steps
from anima.compiler.ir.costs import cost
from anima.compiler.ir.loops import (
    INDEX,
    Accumulate,
    Again,
    Assign,
    Buffer,
    Call,
    Const,
    For,
    If,
    Kernel,
    Let,
    Load,
    Local,
    Mutable,
    Program,
    Stmt,
    Store,
    While,
    lets_of,
    map_blocks,
    statements,
    walk,
)
from anima.compiler.machine.target import Target
from anima.compiler.scheduling.reductions import arranged
from anima.compiler.scheduling.tile import even_block, split
from anima.compiler.scheduling.vectorize import fits, widest
from anima.compiler.storage.buffers import buffers_of, rename
from anima.util import replace


def schedule(program: Program, target: Target) -> Program:
    """Decides in what order the plain nests of a program run."""
    scheduler = _Scheduler(target)
    body = scheduler.block(program.body)
    return replace(program, body=body, buffers=(*program.buffers, *scheduler.buffers))


class _Scheduler:
    """Rewrites kernels; `buffers` are those that have to be added."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.buffers: list[Buffer] = []
        self.done: dict[int, list[Kernel]] = {}  # what kernels became, by id

    def block(self, stmts: Sequence[Stmt]) -> tuple[Stmt, ...]:
        """Statements outside of kernels."""
        out: list[Stmt] = []
        for stmt in stmts:
            if type(stmt) is Kernel:
                out += self.done.setdefault(id(stmt), self.kernels(stmt))
            elif type(stmt) is Again:
                for kernel in self.done[id(stmt.kernel)]:
                    used, same = buffers_of((kernel,)), ((b.name, b.name) for b in self.buffers)
                    out.append(Again(kernel, tuple(pair for pair in (*stmt.names, *same) if pair[0] in used)))
            else:
                out.append(map_blocks(self.block, stmt))
        return tuple(out)

    def kernels(self, kernel: Kernel) -> list[Kernel]:
        """What a plain kernel becomes."""
        return [Kernel(name, tuple(_ordered(s, True, self.target) for s in body), kernel.source)
                for name, body in arranged(kernel, self.target, self.temp)]

    def temp(self, dtype: str, size: int) -> str:
        """A new buffer for partial results."""
        self.buffers.append(Buffer(f"part{len(self.buffers)}", dtype, size, "temp"))
        return self.buffers[-1].name


SHORT = 8     # elements of a row of which vectors are not worth the name
MOST = 16     # elements of rows of rows that are written out
BLOCK = 512   # rows, in vectors, that are one piece of work for a thread
APART = 0.4   # nanoseconds that an element which lies apart from its neighbours takes, about
GAIN = 0.7    # what vectors along rows must take of the time of vectors in them, at most
CHAINS = 8    # rows, and elements of them, of which lanes are better than one after the other
_IN_CHAINS = {For, Let, Store, Mutable, Assign, Accumulate}
_UNLIKE_LANES = {For, If, While, Local, Call}


def _ordered(stmt: Stmt, outermost: bool, target: Target) -> Stmt:
    """A statement of a kernel with its loops on threads, in order, or in vectors."""
    if isinstance(stmt, For) and stmt.kind in ("each", "reduce"):
        if not any(type(s) in _UNLIKE_LANES for s in stmt.body):
            return For(stmt.index, stmt.extent, stmt.body, "vector")
        if _rows_are_lanes(stmt, target):
            return _in_lanes(stmt, outermost)
        if _chains_are_lanes(stmt):
            return _on_threads(replace(stmt, kind="vector"), target.vector_bytes // widest(stmt.body), outermost)
        return For(stmt.index, stmt.extent, tuple(_ordered(s, False, target) for s in stmt.body),
                   "serial" if stmt.kind == "reduce" else "parallel" if outermost else "each")
    return map_blocks(lambda block: tuple(_ordered(s, False, target) for s in block), stmt)


# ---------------------------------------------------------------- short rows


def _rows_are_lanes(loop: For, target: Target) -> bool:
    """Whether the iterations of a loop around short ones, each over a row of a few elements, or rows of rows, are
    better the lanes of vectors than these elements are."""
    if loop.kind != "each" or not isinstance(loop.extent, Const) or int(loop.extent.value) < 2 or (
            _elements(loop.body) or MOST + 1) > MOST:
        return False
    count, width = int(loop.extent.value), target.vector_bytes // widest(loop.body)
    lanes = _serial(loop.body, _extent) + APART * min(width, count) * _apart(loop)
    once = _serial(loop.body, lambda row: _turns(row, width, target))
    return -(-count // width) * lanes < GAIN * count * once


def _extent(loop: For) -> int:
    assert isinstance(loop.extent, Const)
    return int(loop.extent.value)


def _elements(stmts: Sequence[Stmt]) -> int | None:
    """The most elements of short rows, and of rows of rows, that stand among statements; None if others do."""
    most = 1
    for stmt in stmts:
        if isinstance(stmt, For):
            if stmt.kind != "each" or not isinstance(stmt.extent, Const) or _extent(stmt) > SHORT:
                return None
            inner = _elements(stmt.body)
            if inner is None:
                return None
            most = max(most, _extent(stmt) * inner)
        elif not isinstance(stmt, (Let, Store)):
            return None
    return most


def _serial(stmts: Sequence[Stmt], turns: Callable[[For], int]) -> float:
    """The time of statements, if loops go round so often."""
    return sum(turns(s) * _serial(s.body, turns) if isinstance(s, For) else cost(s) for s in stmts)


def _turns(row: For, width: int, target: Target) -> int:
    """How often the body of a loop runs, in vectors if it is an innermost one: without masks, what is left over goes
    one by one."""
    extent = _extent(row)
    if any(isinstance(s, For) for s in row.body):
        return extent
    if target.has("avx512f"):
        return -(-extent // width)
    width = min(width, 1 << (extent.bit_length() - 1))
    return extent // width + extent % width


def _apart(loop: For) -> int:
    """How many loads and stores of an iteration step over elements from one iteration to the next."""
    lets = lets_of(statements(*loop.body))

    def count(stmts: Sequence[Stmt]) -> int:
        total = 0
        for stmt in stmts:
            if isinstance(stmt, For):
                total += _extent(stmt) * count(stmt.body)
                continue
            for node in walk(stmt):
                if isinstance(node, (Load, Store)):
                    step = steps(node.index, lets).get(loop.index, 0)
                    total += step is None or abs(step) > 1
        return total

    return count(loop.body)


def _written_out(row: For) -> Sequence[Stmt]:
    """A short loop's iterations: what all of them compute, then what they store, side by side."""
    body = _without_rows(row.body)
    stores = [s for s in body if isinstance(s, Store)]
    computed = body[:-len(stores)] if stores else body
    if not all(isinstance(s, Let) for s in computed):
        return [replace(row, kind="unrolled", body=body)]
    parts = [rename(body, {}, {s.name: f"{s.name}.{i}" for s in computed if isinstance(s, Let)},
                    {row.index: Const(i, INDEX)}) for i in range(_extent(row))]
    return [*(s for part in parts for s in part[:len(computed)]),
            *(part[k] for k in range(len(computed), len(body)) for part in parts)]


def _without_rows(stmts: Sequence[Stmt]) -> tuple[Stmt, ...]:
    return tuple(part for s in stmts for part in (_written_out(s) if isinstance(s, For) else (s,)))


def _in_lanes(loop: For, outermost: bool) -> For:
    """The loop with its iterations in vectors, and the short loops in it written out."""
    return _on_threads(replace(loop, body=_without_rows(loop.body), kind="vector"), BLOCK, outermost)


def _on_threads(lanes: For, most: int, outermost: bool) -> For:
    """A loop over lanes, in pieces of at most so many if it is a kernel's outermost loop."""
    count = int(lanes.extent.value)  # type: ignore[union-attr]
    if not outermost or count <= most:
        return lanes
    blocks, block = split(lanes, even_block(count, most, 16))
    return replace(blocks, kind="parallel", body=(block,))


# ---------------------------------------------------------------- rows in order


def _chains_are_lanes(loop: For) -> bool:
    """Whether the iterations of a loop around loops in order are better the lanes of vectors: what they load and store
    lies beside each other, or along the rows, several of which are then taken at a time (`emitting/rows.py`)."""
    if loop.kind != "each" or not isinstance(loop.extent, Const) or int(loop.extent.value) < CHAINS:
        return False
    inside = list(statements(*loop.body))
    rows = [s for s in inside if isinstance(s, For)]
    if not rows or not all(type(s) in _IN_CHAINS for s in inside) or not all(
            row.kind == "serial" and (largest(row.extent) or 0) >= CHAINS for row in rows) or not fits(loop):
        return False
    lets = lets_of(inside)
    taken: set[Load | Store] = set().union(*(nodes for row in rows for nodes in along(row)))
    for node in walk(*rows):
        if isinstance(node, (Load, Store)):
            step = steps(node.index, lets).get(loop.index, 0)
            if step not in (0, 1) and (step is None or node not in taken or abs(step) <= LONGEST):
                return False
    return True
