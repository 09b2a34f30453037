"""What the kernels of a loop do with buffers: which elements they read and write, and how they could use registers.

    kernel: whole i < 3: t[i] = x[2 - i]        x is loaded, t is stored, at elements 0, 1 and 2 each
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np

from anima.compiler.emitting.held import lanes_for
from anima.compiler.emitting.value import itemsize
from anima.compiler.ir.affine import known, steps
from anima.compiler.ir.costs import cost
from anima.compiler.ir.loops import (
    INDEX,
    Accumulate,
    Again,
    Call,
    Const,
    Expr,
    For,
    If,
    Kernel,
    Let,
    Load,
    Local,
    NamedValue,
    Op,
    Stmt,
    Store,
    While,
    children,
    map_blocks,
    statements,
)
from anima.compiler.scheduling.vectorize import fits
from anima.compiler.storage.buffers import buffers_of
from anima.ops.family import ELEMENTWISE
from anima.util import record, replace

Mode = Literal["elements", "lanes"]
MOST = 4096      # of an index, so many values are told apart: more are not those of a small array
LARGEST = 64     # elements of a buffer in registers
LONGEST = 8      # iterations of a loop that is written out for single elements
_LANES = 16      # elements of a vector, in most cases
_TOGETHER = 256  # bytes of a vector that is put together of elements that lie apart: of more, LLVM takes seconds
_SHUFFLE = 3.0   # nanoseconds, as `costs` counts, to move elements between lanes


def unrolled_size(stmts: Sequence[Stmt], mode: Mode, vectors: int = 1, longest: int = LONGEST) -> int | None:
    """How many statements there are when loops are written out, or run as a whole in lanes; None where they cannot, or
    where one that is written out for single elements has more than `longest` iterations.
    A costly function counts as what it is made of, for each of the `vectors` that all lanes make."""
    total = 0
    for stmt in stmts:
        match stmt:
            case For(extent=Const(value=count), body=body, kind=kind):
                whole = mode == "lanes" and kind == "vector"
                if count > (longest if mode == "elements" else LARGEST) or (whole and not fits(stmt)):
                    return None
                inside = unrolled_size(body, mode, -(-int(count) // _LANES) if whole else vectors, longest)
                if inside is None:
                    return None
                total += inside * (1 if whole else int(count))
            case If(then=then, orelse=orelse):
                sizes = [unrolled_size(block, mode, vectors, longest) for block in (then, orelse)]
                if None in sizes:
                    return None
                total += 1 + sum(sizes)  # type: ignore[arg-type]
            case For() | While() | Kernel() | Call():
                return None
            case Let(value=Op(name=name)) if name in ELEMENTWISE:
                own = int(ELEMENTWISE[name].cost)
                total += own * vectors if own > 1 else 1
            case _:
                total += vectors
    return total


def marked(stmt: Stmt, mode: Mode) -> Stmt:
    """A statement of a kernel with its loops as they run on registers."""
    whole = isinstance(stmt, For) and mode == "lanes" and stmt.kind == "vector"
    stmt = map_blocks(lambda block: tuple(marked(s, mode) for s in block), stmt)
    if not isinstance(stmt, For):
        return stmt
    if not whole:
        return replace(stmt, kind="unrolled")
    assert isinstance(stmt.extent, Const)
    return replace(stmt, kind="whole", width=lanes_for(int(stmt.extent.value)))


# ---------------------------------------------------------------- what kernels do with buffers


@record
class _Access:
    """A load or a store: its type, its index and the elements that this can be (None: not known), the vector loop
    around it, and whether it surely happens."""

    buffer: str
    dtype: str
    index: Expr
    elements: frozenset[int] | None
    loop: For | None
    is_store: bool
    sure: bool = True

    def is_too_long(self) -> bool:
        """Whether the elements of all of a loop's lanes, which lie apart, are more than a vector is put together of."""
        loop = self.loop
        if loop is None or not isinstance(loop.extent, Const):
            return False
        apart = abs(steps(self.index, {}).get(loop.index) or 0) > 1
        return apart and lanes_for(int(loop.extent.value)) * itemsize(self.dtype) > _TOGETHER


class _Walk:
    """The accesses of a kernel, in the order of its text, loops ahead of what they hold."""

    def __init__(self, stmts: Sequence[Stmt]) -> None:
        self.found: list[_Access] = []
        self.numbers: dict[str, Any] = {}
        self.known: dict[Expr, frozenset[int] | None] = {}
        self.axes = 0
        self.block(stmts, None, True)

    def block(self, stmts: Sequence[Stmt], loop: For | None, sure: bool) -> None:
        for stmt in stmts:
            self.stmt(stmt, loop, sure)

    def stmt(self, stmt: Stmt, loop: For | None, sure: bool) -> None:
        match stmt:
            case For(index=index, extent=extent, body=body, kind=kind):
                self.expr(extent, loop)
                if isinstance(extent, Const) and extent.value <= LARGEST:
                    self.axes += 1
                    self.numbers[index] = np.arange(int(extent.value)).reshape(-1, *(1,) * (self.axes - 1))
                self.block(body, stmt if kind == "vector" else loop, sure and isinstance(extent, Const))
            case If(cond=cond, then=then, orelse=orelse):
                self.expr(cond, loop)
                self.block(then, loop, False)
                self.block(orelse, loop, False)
            case Let(name=name, value=value):
                self.expr(value, loop)
                if value.dtype in (INDEX, "bool") and (number := known(value, self.numbers)) is not None:
                    self.numbers[name] = number
            case Store(buffer=buffer, index=index, value=value, op=op):
                self.expr(value, loop)
                self.expr(index, loop)
                if op is not None:
                    self.found.append(_Access(buffer, value.dtype, index, self.elements(index), loop, False))
                self.found.append(_Access(buffer, value.dtype, index, self.elements(index), loop, True, sure))
            case _:
                for child in children(stmt):
                    if isinstance(child, Expr):
                        self.expr(child, loop)
                    else:
                        self.stmt(child, loop, False)

    def expr(self, expr: Expr, loop: For | None) -> None:
        for child in children(expr):
            self.expr(child, loop)  # type: ignore[arg-type]
        if type(expr) is Load:
            self.found.append(_Access(expr.buffer, expr.dtype, expr.index, self.elements(expr.index), loop, False))

    def elements(self, index: Expr) -> frozenset[int] | None:
        if type(index) is Const:
            return frozenset((int(index.value),))
        if index not in self.known:
            found = known(index, self.numbers)
            if found is not None and np.size(found) > MOST:
                found = None
            self.known[index] = None if found is None else frozenset(map(int, np.ravel(found)))
        return self.known[index]


class Block:
    """A kernel of a loop, or a statement beside kernels: its accesses, and how it could work on registers."""

    def __init__(self, stmt: Stmt, longest: int = LONGEST) -> None:
        self.stmt = stmt
        self.is_kernel = isinstance(stmt, Kernel)
        whole = isinstance(stmt, (Call, Again))
        body = stmt.body if isinstance(stmt, Kernel) else () if whole else (map_blocks(lambda _: (), stmt),)
        self.accesses = _Walk(body).found
        self.touches = {a.buffer for a in self.accesses}
        self.open = {a.buffer for a in self.accesses if a.elements is None}  # at indices that are not known
        self.banned: set[str] = set()
        if whole:
            self.banned = self.touches = buffers_of((stmt,))
        self.sizes: dict[Mode, int | None] = {"elements": 0, "lanes": 0}
        if self.is_kernel:
            too_long = any(a.is_too_long() for a in self.accesses)
            self.sizes = {"elements": unrolled_size(body, "elements", longest=longest),
                          "lanes": None if too_long else unrolled_size(body, "lanes")}
        self.own = {s.buffer for s in body if isinstance(s, Local)}

    def cost(self, mode: Mode, held: set[str]) -> float:
        """What it costs, about, with buffers held in a mode."""
        if not self.is_kernel:
            return 0.0
        assert isinstance(self.stmt, Kernel)
        if mode == "elements":
            return cost(self.stmt)
        return sum(map(_whole_cost, self.stmt.body)) + sum(_moves(a, held) for a in self.accesses)


_BESIDE = Block(Let("", Const(0, INDEX)))


def block_of(stmt: Stmt, longest: int = LONGEST) -> Block:
    """The block of a statement; operations on values alone have one for all. Loops of more than `longest` iterations
    are not written out."""
    value = stmt.value if type(stmt) is Let else None
    plain = type(value) is Op and all(type(a) is NamedValue or type(a) is Const for a in value.args)
    return _BESIDE if plain else Block(stmt, longest)


def _whole_cost(stmt: Stmt) -> float:
    match stmt:
        case For(kind="vector", body=body):
            sums = sum(isinstance(s, Accumulate) for s in statements(*body))
            return sum(map(_whole_cost, body)) + 2 * _SHUFFLE * sums
        case For(extent=Const(value=count), body=body):
            return int(count) * sum(map(_whole_cost, body))
    return cost(stmt)


def _moves(access: _Access, held: set[str]) -> float:
    """What an access in a whole loop costs for elements that are in other lanes; in memory, that are apart."""
    loop = access.loop
    times = 1 if access.elements is None else len(access.elements)
    found = {} if loop is None else steps(access.index, {})
    if loop is None or loop.index not in found:
        return _SHUFFLE * times if access.buffer in held else 0.0
    if access.buffer in held:
        return 0.0 if access.index == NamedValue(loop.index, INDEX) else _SHUFFLE
    step = found[loop.index]
    return 0.0 if step is None or abs(step) <= 1 else float(times)


# ---------------------------------------------------------------- over statements

Elements = frozenset[tuple[str, int]]


class Covered:
    """Which elements of buffers statements may read before they have written them (`exposed`), and which they surely
    write (`written`)."""

    def __init__(self, blocks: dict[int, Block], names: Iterable[str]) -> None:
        self.blocks = blocks
        self.names = set(names)
        self.exposed: set[tuple[str, int]] = set()
        self.stored: set[str] = set()
        self.written: Elements = frozenset()

    def block(self, stmts: Sequence[Stmt], written: Elements) -> Elements:
        for stmt in stmts:
            written = self.stmt(stmt, written)
        self.written = written
        return written

    def stmt(self, stmt: Stmt, written: Elements) -> Elements:
        if not isinstance(stmt, While):
            written = self.own(self.blocks[id(stmt)], written)
        match stmt:
            case For(extent=extent, body=body):
                inside = self.block(body, written)
                return inside if isinstance(extent, Const) and extent.value > 0 else written
            case While(before=before, body=body):
                first = self.own(self.blocks[id(stmt)], self.block(before, written))
                self.block(body, first)
                return first
            case If(then=then, orelse=orelse):
                return self.block(then, written) & self.block(orelse, written)
        return written

    def own(self, block: Block, written: Elements) -> Elements:
        """The accesses of a statement itself. What a loop of a kernel stores counts for the same index only, until
        the kernel is over."""
        new: set[tuple[str, int]] = set()
        same: set[tuple[str, Expr]] = set()
        for a in block.accesses:
            if a.buffer not in self.names or a.elements is None:
                continue
            elements = {(a.buffer, i) for i in a.elements}
            if a.is_store:
                self.stored.add(a.buffer)
                if a.sure:
                    new |= elements
                    same.add((a.buffer, a.index))
            elif (a.buffer, a.index) not in same:
                self.exposed |= elements - written
        return written | new
