"""Independent lanes of statements in order: what each has of its own, and the statements as one of them runs them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

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
    Stmt,
    Store,
    While,
    affine,
    map_blocks,
    names_in,
    normal,
    statements,
    statements_outside,
    walk,
)
from anima.compiler.storage.buffers import buffers_of, rename
from anima.util import replace

Bounds = dict[str, tuple[Expr, Expr]]


class DifferentError(Exception):
    """Statements are not those of independent lanes."""


class Lanes:
    """What the lanes of a loop are. Each has rows in the buffers that it writes: `rows` are their lengths.

    Loops over lanes are those of the `kinds`; statements `alone` have none. Buffers of which a lane has places for each
    step are `streams`, all others that lanes write are `small`; what is written alone is `shared`. Rows that lanes only
    read, in all steps, and that lie apart are `given`.
    """

    def __init__(self, loop: For | While, buffers: Mapping[str, Buffer], count: int,
                 kinds: Sequence[str] = ("each",), alone: Sequence[Stmt] = ()) -> None:
        self.loop, self.buffers, self.count, self.kinds = loop, buffers, count, kinds
        self.alone = {id(s) for s in alone}
        self.kernels = [s for s in statements_outside((loop,)) if isinstance(s, Kernel) and id(s) not in self.alone]
        self.written = {s.buffer for s in statements(*self.kernels) if isinstance(s, Store)} & buffers.keys()
        self.shared = {s.buffer for s in statements(*alone) if isinstance(s, Store)} & buffers.keys()
        self.touched = buffers_of((loop,)) & buffers.keys()
        self.rows: dict[str, int] = {}
        self.streams: set[str] = set()
        self.loops: dict[int, For] = {}  # those of lanes, by id
        self.check_single()
        reads: dict[str, list[tuple[Load, For, Bounds]]] = {}
        for kernel in self.kernels:
            bounds = _bounds(kernel)
            for f in self.find(kernel.body):
                self.check(f, bounds)
                for node in walk(f):
                    if isinstance(node, Load) and node.buffer in buffers.keys() - self.written:
                        reads.setdefault(node.buffer, []).append((node, f, bounds))
        self.small = self.written - self.streams
        if not all(map(self.are_rows, self.small)):
            raise DifferentError
        all_reads = Counter(node.buffer for node in walk(loop) if isinstance(node, Load))
        self.given = {name for name, found in reads.items() if len(found) == all_reads[name] and self.is_given(found)}

    def own(self, name: str) -> int:
        """How many elements of a buffer are one lane's."""
        return self.buffers[name].size // self.count

    def are_rows(self, name: str) -> bool:
        """Whether a buffer is nothing but rows of lanes."""
        return self.buffers[name].size % (self.rows[name] * self.count) == 0

    def is_given(self, reads: Sequence[tuple[Load, For, Bounds]]) -> bool:
        """Whether a buffer that is read like this has rows for lanes, none of them a single element."""
        name = reads[0][0].buffer
        try:
            for read in reads:
                self.check_access(*read)
        except DifferentError:
            return False
        return name not in self.streams and self.rows[name] > 1 and self.are_rows(name)

    def each(self, loop: For) -> int:
        """How many iterations of a loop over lanes are one lane's."""
        assert isinstance(loop.extent, Const)
        return int(loop.extent.value) // self.count

    def find(self, stmts: Sequence[Stmt]) -> Iterator[For]:
        """The loops over lanes: what stands around them is the same for all."""
        lets = [s for s in stmts if isinstance(s, Let)]
        if len(lets) == len(stmts) or buffers_of(lets) & self.written:
            raise DifferentError
        for stmt in stmts:
            if isinstance(stmt, Let):
                continue
            if not (isinstance(stmt, For) and stmt.kind in self.kinds and isinstance(stmt.extent, Const)):
                raise DifferentError
            if stmt.extent.value and stmt.extent.value % self.count == 0:
                self.loops[id(stmt)] = stmt
                yield stmt
            else:
                yield from self.find(stmt.body)

    def check_single(self) -> None:
        """Single values, and what stands alone, are the same for all lanes."""
        for stmt in statements_outside((self.loop,)):
            own = map_blocks(lambda _: (), stmt)
            if (not isinstance(stmt, Kernel) or id(stmt) in self.alone) and buffers_of((own,)) & self.written:
                raise DifferentError

    def check(self, loop: For, bounds: Bounds) -> None:
        """Whether a loop over lanes does with the buffers that are written what lanes may do."""
        for node in walk(loop):
            if isinstance(node, (If, While, Call)):
                raise DifferentError
            if isinstance(node, Op) and (node.name == "foreign" or (
                    node.name in ("div", "rem") and node.dtype[0] in "iu" and not isinstance(node.args[1], Const))):
                raise DifferentError
            if isinstance(node, (Load, Store)) and node.buffer in self.written:
                self.check_access(node, loop, bounds)

    def check_access(self, node: Load | Store, loop: For, bounds: Bounds) -> None:
        """A lane's elements are rows, one for each lane, one after the other: `(i * lanes + lane) * row + j`, whatever
        `i` is."""
        terms = dict(node.index.terms) if isinstance(node.index, Affine) else {node.index: 1}
        lane = NamedValue(loop.index, INDEX)
        if lane not in terms or any(loop.index in names_in(v) for v in terms if v != lane):
            raise DifferentError
        step, some = terms.pop(lane), self.each(loop)
        row = step * some
        if self.rows.setdefault(node.buffer, row) != row or row < 1:
            raise DifferentError
        inside = {v: c for v, c in terms.items() if c % (row * self.count)}
        self.streams.update(node.buffer for v in terms if not isinstance(v, NamedValue) or v.name not in bounds)
        const = node.index.const if isinstance(node.index, Affine) else 0
        place = affine(const % (row * self.count), *inside.items())
        if _limit(place, bounds, -1) < 0 or _limit(place, bounds, 1) + step * (some - 1) >= row:
            raise DifferentError

    def types(self, names: Sequence[str]) -> Iterator[tuple[str, str]]:
        """The types of single values."""
        known = {s.name: s.value.dtype for s in statements_outside((self.loop,)) if isinstance(s, Assign)}
        return ((name, known[name]) for name in names)

    def placed(self, stmts: Sequence[Stmt], lane: NamedValue, private: Mapping[str, str]) -> tuple[Stmt, ...]:
        """The statements as one lane runs them."""
        out: list[Stmt] = []
        for stmt in stmts:
            if id(stmt) in self.alone:
                out.append(stmt)
            elif isinstance(stmt, Kernel):
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

        some, inner = self.each(loop), NamedValue(loop.index, INDEX)
        place = affine(0, (lane, some), *([(inner, 1)] if some > 1 else []))
        body = rename(loop.body, private, {}, {loop.index: place}, at)  # type: ignore[dict-item]
        return (replace(loop, extent=Const(some, INDEX), body=body),) if some > 1 else body

    def copy(self, source: str, target: str, like: Buffer, lane: NamedValue) -> Kernel:
        """What a lane does before its steps, or after them."""
        row, count = self.rows[like.name], self.own(like.name) // self.rows[like.name]
        i, j = (NamedValue(name, INDEX) if n > 1 else Const(0, INDEX) for name, n in (("i", count), ("j", row)))
        mine, place = affine(0, (i, row), (j, 1)), affine(0, (i, row * self.count), (lane, row), (j, 1))
        value = Load(source, place if source == like.name else mine, like.dtype)
        body: Stmt = Store(target, place if target == like.name else mine, value)
        for index, extent in ((j, row), (i, count)):
            if isinstance(index, NamedValue):
                body = For(index.name, Const(extent, INDEX), (body,), "each")
        return Kernel("copy", (body,))


def kernels_in(loop: For | While) -> list[Kernel]:
    """The kernels of a loop that is made of such, single values and loops in order alone."""
    found = []
    for stmt in statements_outside((loop,)):
        if isinstance(stmt, Kernel):
            found.append(stmt)
        elif not isinstance(stmt, (While, Let, Mutable, Assign, Store)) and not (
                isinstance(stmt, For) and stmt.kind == "serial"):
            raise DifferentError
    return found


def without_kernels(stmts: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """The statements on single values."""
    return tuple(map_blocks(without_kernels, s) for s in stmts if not isinstance(s, Kernel))


def _bounds(kernel: Kernel) -> Bounds:
    """The least and the largest number that each index of a kernel's loops, or made of such, may be: in the order in
    which these names are given, in terms of those before."""
    found: Bounds = {}
    for s in statements(kernel):
        ends: tuple[Expr, Expr]
        if isinstance(s, For):
            name, ends = s.index, (Const(0, INDEX), _in_terms(affine(-1, (s.extent, 1)), found, 1))
        elif isinstance(s, Let) and s.value.dtype == INDEX:
            name, ends = s.name, (_in_terms(s.value, found, -1), _in_terms(s.value, found, 1))
        else:
            continue
        if found.setdefault(name, ends) != ends:  # the name is given twice
            raise DifferentError
    return found


def _in_terms(index: Expr, bounds: Bounds, sign: int) -> Expr:
    """A sum of other indices as it is; of what is none, the largest number that it may be, or the least."""
    values = index.values if isinstance(index, Affine) else (index,)
    sums = all(isinstance(v, (NamedValue, Const)) for v in values)
    return index if sums else Const(_limit(index, bounds, sign), INDEX)


def _limit(index: Expr, bounds: Bounds, sign: int) -> float:
    """The largest number that an index may be, or the least if the sign is -1; infinite where that is not known."""
    if isinstance(index, Op) and index.name in ("min", "max"):
        return (min if index.name == "min" else max)(_limit(a, bounds, sign) for a in index.args)
    for name in reversed(bounds):
        terms = dict(index.terms) if isinstance(index, Affine) else {index: 1}
        if c := terms.get(NamedValue(name, INDEX), 0):
            end = bounds[name][c * sign > 0]
            index = affine(0, (index, 1), (NamedValue(name, INDEX), -c), (end, c))
    return index.value if isinstance(index, Const) else sign * math.inf
