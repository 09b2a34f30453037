"""Loops in order whose steps are few statements, alike for independent lanes: the lanes go around the steps.

    for k < 1000:                                parallel l < 256:
      kernel: each i < 256: t[i] = f(x[i])         kernel: x.l[0] = x[l]
      kernel: each i < 256: x[i] = g(t[i])   ->    for k < 1000:
                                                     kernel: t.l[0] = f(x.l[0])
                                                     kernel: x.l[0] = g(t.l[0])
                                                   kernel: x[l] = x.l[0]

What a lane changes is its own, small, and so in registers (`storage/registers.py`); lanes are those of vectors, and
threads share them once, not in every step. That is a `vmap` of a simulation, or an iteration on every point of a grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from anima.compiler.ir.affine import steps
from anima.compiler.ir.loops import (
    INDEX,
    Affine,
    Assign,
    Buffer,
    Call,
    Const,
    Expr,
    For,
    If,
    Kernel,
    Let,
    Load,
    Mutable,
    NamedValue,
    Op,
    Program,
    Stmt,
    Store,
    While,
    affine,
    lets_of,
    map_blocks,
    names_in,
    normal,
    roots,
    statements,
    statements_outside,
    walk,
)
from anima.compiler.storage.accesses import LARGEST, unrolled_size
from anima.compiler.storage.buffers import buffers_of, rename, size_in_bytes
from anima.compiler.storage.registers import LANES, LEAST
from anima.util import replace

MOST_COUNTS = 4      # numbers of lanes that are tried
NEAR = 4096          # bytes from a step's place in an array to the next one's, at most, if the array has more
WORK = 8             # statements for each element of such an array, at least


def interchange(program: Program) -> Program:
    """Puts lanes around the loops of a program that can have them there."""
    worker = _Interchange(program)
    body: list[Stmt] = []
    for n, stmt in enumerate(program.body):
        others = (*program.body[:n], *program.body[n + 1:])
        body += worker.loop(stmt, others) or [stmt] if isinstance(stmt, (For, While)) else [stmt]
    if not worker.count:
        return program
    used = buffers_of(body)
    kept = [b for b in program.buffers if b.role != "temp" or b.name in used]
    return replace(program, buffers=(*kept, *worker.own), body=tuple(body))


class _Different(Exception):
    """A loop is not one of independent lanes."""


class _InRegisters(Exception):
    """A loop's arrays are a few vectors each, in registers as they are."""


class _Interchange:
    def __init__(self, program: Program) -> None:
        self.buffers = {b.name: b for b in program.buffers}
        self.roots = {name: b.name for name, b in roots(program.buffers).items()}
        self.count = 0
        self.own: list[Buffer] = []

    def loop(self, loop: For | While, others: Sequence[Stmt]) -> list[Stmt] | None:
        """The statements that do what a loop does, lane by lane; None where that cannot be, or does not pay."""
        for count in _counts(loop):
            for form in (loop, *_in_rows(loop, count)):
                try:
                    return self.interchanged(form, others, count)
                except _Different:
                    continue
                except _InRegisters:
                    return None
        return None

    def interchanged(self, loop: For | While, others: Sequence[Stmt], count: int) -> list[Stmt]:
        lanes = _Lanes(loop, self.buffers, count)
        elsewhere = buffers_of(others)
        if len({self.roots[b] for b in lanes.touched}) < len(lanes.touched):
            raise _Different
        private = {name: f"{name}.l{self.count}" for name in sorted(lanes.small)}
        index = NamedValue(f"lane{self.count}", INDEX)
        live = [self.buffers[n] for n in private if n in elsewhere or self.buffers[n].role != "temp"]
        inner = lanes.placed((loop,), index, private)
        sizes = [unrolled_size(s.body, "elements", longest=LARGEST) for s in statements_outside(inner)
                 if isinstance(s, Kernel)]
        if None in sizes or sum(sizes) + 2 * sum(lanes.own(b.name) for b in live) > LANES:  # type: ignore[arg-type]
            raise _Different
        inside = {s.name for s in statements_outside(inner) if isinstance(s, Mutable)}
        changed = sorted({s.name for s in statements_outside(inner) if isinstance(s, Assign)} - inside)
        begin = [Mutable(f"{name}.l{self.count}", dtype, NamedValue(name, dtype))
                 for name, dtype in lanes.types(changed)]
        inner = rename(inner, {}, {name: f"{name}.l{self.count}" for name in changed})
        body = (*begin, *(self.copy(b.name, private[b.name], b, lanes, index) for b in live), *inner,
                *(self.copy(private[b.name], b.name, b, lanes, index) for b in live if b.name in lanes.written))
        self.own += [replace(self.buffers[n], name=new, size=lanes.own(n), role="temp", alias=None, donated=False)
                     for n, new in private.items()]
        self.count += 1
        # What is no lane's own, counters and other single values, is there after the loop as it was.
        after = _without_kernels((loop,)) if changed else ()
        names = {s.index if isinstance(s, For) else s.name for s in statements_outside(after)
                 if isinstance(s, (For, Let, Mutable))}
        after = rename(after, {}, {name: f"{name}.s{self.count}" for name in names})
        return [For(index.name, Const(lanes.count, INDEX), body, "parallel"), *after]

    def copy(self, source: str, target: str, like: Buffer, lanes: _Lanes, index: NamedValue) -> Kernel:
        """What a lane does before its steps, or after them."""
        row = lanes.rows[like.name]
        body = []
        for n in range(lanes.own(like.name)):
            mine, place = Const(n, INDEX), affine(n // row * row * lanes.count + n % row, (index, row))
            value = Load(source, place if source == like.name else mine, like.dtype)
            body.append(Store(target, place if target == like.name else mine, value))
        return Kernel("copy", tuple(body))


class _Lanes:
    """What the lanes of a loop are. Each has rows in the buffers that it writes: `rows` are their lengths."""

    def __init__(self, loop: For | While, buffers: Mapping[str, Buffer], count: int) -> None:
        self.loop, self.buffers, self.count = loop, buffers, count
        kernels = _kernels(loop)
        self.written = {s.buffer for s in statements(*kernels) if isinstance(s, Store)}
        self.touched = buffers_of([loop])
        self.steps = {s.index for s in statements_outside((loop,)) if isinstance(s, For)}
        self.rows: dict[str, int] = {}
        self.streams: set[str] = set()
        self.loops: dict[int, int] = {}  # those of lanes, by id: iterations of one lane
        self.check_single()
        for kernel in kernels:
            extents = _extents(kernel)
            for f in self.find(kernel.body):
                self.check(f, extents)
        self.small = self.written - self.streams
        if any(self.buffers[n].size % (self.rows[n] * count) or self.own(n) > LARGEST for n in self.small):
            raise _Different
        if count <= LARGEST and all(self.own(n) == 1 for n in self.small):
            raise _InRegisters
        self.check_streams(kernels)

    def own(self, name: str) -> int:
        """How many elements of a buffer are one lane's."""
        return self.buffers[name].size // self.count

    def find(self, stmts: Sequence[Stmt]) -> Iterator[For]:
        """The loops over lanes: what stands around them is the same for all."""
        lets = [s for s in stmts if isinstance(s, Let)]
        if len(lets) == len(stmts) or buffers_of(lets) & self.written:
            raise _Different
        for stmt in stmts:
            if isinstance(stmt, Let):
                continue
            if not (isinstance(stmt, For) and stmt.kind == "each" and isinstance(stmt.extent, Const)):
                raise _Different
            if stmt.extent.value and stmt.extent.value % self.count == 0:
                self.loops[id(stmt)] = stmt.extent.value // self.count
                yield stmt
            else:
                yield from self.find(stmt.body)

    def check_streams(self, kernels: Sequence[Kernel]) -> None:
        """What has a place for each step is best gone through as it lies, step by step, unless its steps are near each
        other, and what a step computes takes longer."""
        work = accesses = 0
        lets = lets_of(statements_outside((self.loop,)))
        for node in walk(*kernels):
            work += isinstance(node, (Let, Store))
            if not isinstance(node, (Load, Store)) or size_in_bytes(self.buffers[node.buffer]) <= NEAR:
                continue
            far = [c for name, c in steps(node.index, lets).items() if name in self.steps or name in lets]
            size = size_in_bytes(self.buffers[node.buffer]) // max(self.buffers[node.buffer].size, 1)
            accesses += bool(far)
            if isinstance(node, Load) and any(c is None or abs(c) * size > NEAR for c in far):
                raise _Different
        if work < WORK * accesses:
            raise _Different

    def check_single(self) -> None:
        """Single values are the same for all lanes."""
        for stmt in statements_outside((self.loop,)):
            own = map_blocks(lambda _: (), stmt)
            if not isinstance(stmt, Kernel) and buffers_of((own,)) & self.written:
                raise _Different

    def check(self, loop: For, extents: Mapping[str, int]) -> None:
        """Whether a loop over lanes does with the buffers that are written what lanes may do."""
        for node in walk(loop):
            if isinstance(node, (If, While, Call)):
                raise _Different
            if isinstance(node, Op) and (node.name == "foreign" or (
                    node.name in ("div", "rem") and node.dtype[0] in "iu" and not isinstance(node.args[1], Const))):
                raise _Different
            if isinstance(node, (Load, Store)) and node.buffer in self.written:
                self.check_access(node, loop, extents)

    def check_access(self, node: Load | Store, loop: For, extents: Mapping[str, int]) -> None:
        """A lane's elements are rows, one for each lane, one after the other: `(i * lanes + lane) * row + j`, whatever
        `i` is."""
        terms = dict(node.index.terms) if isinstance(node.index, Affine) else {node.index: 1}
        lane = NamedValue(loop.index, INDEX)
        if lane not in terms or any(loop.index in names_in(v) for v in terms if v != lane):
            raise _Different
        step, some = terms.pop(lane), self.loops[id(loop)]
        row = step * some
        if self.rows.setdefault(node.buffer, row) != row or row < 1:
            raise _Different
        low = (node.index.const if isinstance(node.index, Affine) else 0) % (row * self.count)
        high = low + step * (some - 1)
        for value, c in terms.items():
            extent = extents.get(value.name) if isinstance(value, NamedValue) else None
            if extent is None:  # not a loop of the kernel: a step, or what follows from one
                self.streams.add(node.buffer)
            if c % (row * self.count) == 0:
                continue
            if extent is None:
                raise _Different
            low, high = low + min(c * (extent - 1), 0), high + max(c * (extent - 1), 0)
        if low < 0 or high >= row:
            raise _Different

    def types(self, names: Sequence[str]) -> Iterator[tuple[str, str]]:
        """The types of single values."""
        known = {s.name: s.value.dtype for s in statements_outside((self.loop,)) if isinstance(s, Assign)}
        return ((name, known[name]) for name in names)

    def placed(self, stmts: Sequence[Stmt], lane: NamedValue, private: Mapping[str, str]) -> tuple[Stmt, ...]:
        """The statements as one lane runs them."""
        out: list[Stmt] = []
        for stmt in stmts:
            if isinstance(stmt, Kernel):
                loops = [s for s in stmt.body if not isinstance(s, Let)]
                lets = [s for s in stmt.body if isinstance(s, Let)]
                out += [replace(stmt, body=(*lets, *self.placed((f,), lane, private))) for f in loops]
            elif id(stmt) in self.loops:
                out += self.of_lane(stmt, lane, private)  # type: ignore[arg-type]
            else:
                out.append(map_blocks(lambda block: self.placed(block, lane, private), stmt))
        return tuple(out)

    def of_lane(self, loop: For, lane: NamedValue, private: Mapping[str, str]) -> tuple[Stmt, ...]:
        """A loop's iterations that are one lane's."""
        def at(buffer: str, index: Expr) -> Expr:
            if buffer not in private or index == lane:
                return Const(0, INDEX) if buffer in private else index
            assert isinstance(index, Affine)
            row = self.rows[buffer]
            terms = [(v, c if c % (row * self.count) else c // self.count) for v, c in index.terms if v != lane]
            rows, rest = divmod(index.const, row * self.count)
            return normal([v for v, _ in terms], [c for _, c in terms], rows * row + rest)

        some, inner = self.loops[id(loop)], NamedValue(loop.index, INDEX)
        place = affine(0, (lane, some), *([(inner, 1)] if some > 1 else []))
        body = rename(loop.body, private, {}, {loop.index: place}, at)  # type: ignore[dict-item]
        return (replace(loop, extent=Const(some, INDEX), body=body),) if some > 1 else body


def _kernels(loop: For | While) -> list[Kernel]:
    """The kernels of a loop that is made of such, single values and loops in order alone."""
    found = []
    for stmt in statements_outside((loop,)):
        if isinstance(stmt, Kernel):
            found.append(stmt)
        elif not isinstance(stmt, (While, Let, Mutable, Assign)) and not (
                isinstance(stmt, For) and stmt.kind == "serial"):
            raise _Different
    if any(k.reduces is not None for k in found):
        raise _Different
    return found


def _extents(kernel: Kernel) -> dict[str, int]:
    """How often the loops of a kernel run, by their indices."""
    found: dict[str, int] = {}
    for s in statements(kernel):
        if isinstance(s, For):
            if not isinstance(s.extent, Const):
                raise _Different
            found[s.index] = max(found.get(s.index, 0), int(s.extent.value))
    return found


def _counts(loop: For | While) -> list[int]:
    """Numbers of lanes that a loop may have: what its kernels' outer loops have in common, and what some loop has."""
    try:
        kernels = _kernels(loop)
    except _Different:
        return []
    outer = [int(s.extent.value) for k in kernels for s in k.body if isinstance(s, For) and isinstance(s.extent, Const)]
    every = {int(s.extent.value) for s in statements(*kernels) if isinstance(s, For) and isinstance(s.extent, Const)}
    counts = [math.gcd(*outer), *sorted(every, reverse=True)]
    return [n for n in dict.fromkeys(counts) if n >= LEAST][:MOST_COUNTS]


def _in_rows(loop: For | While, count: int) -> Iterator[For | While]:
    """A loop whose kernels go through arrays as rows of so many elements, rather than through all elements at once:
    these are lanes if others of its kernels have them in rows. Nothing where none does otherwise."""
    cut = False

    def in_rows(stmt: Stmt) -> Stmt:
        if not isinstance(stmt, Kernel):
            return map_blocks(lambda block: tuple(map(in_rows, block)), stmt)
        return replace(stmt, body=tuple(rows(s) for s in stmt.body))

    def rows(stmt: Stmt) -> Stmt:
        if not (isinstance(stmt, For) and stmt.kind == "each" and isinstance(stmt.extent, Const)
                and stmt.extent.value > count and stmt.extent.value % count == 0):
            return stmt
        nonlocal cut
        cut = True
        row = NamedValue(f"{stmt.index}.row", INDEX)
        place = affine(0, (row, count), (NamedValue(stmt.index, INDEX), 1))
        lanes = For(stmt.index, Const(count, INDEX), rename(stmt.body, {}, {}, {stmt.index: place}),  # type: ignore[dict-item]
                    stmt.kind)
        return For(row.name, Const(stmt.extent.value // count, INDEX), (lanes,), stmt.kind)

    found = in_rows(loop)
    assert isinstance(found, (For, While))
    if cut:
        yield found


def _without_kernels(stmts: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """The statements on single values."""
    return tuple(map_blocks(_without_kernels, s) for s in stmts if not isinstance(s, Kernel))
