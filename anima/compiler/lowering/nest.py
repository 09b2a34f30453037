"""Writing one kernel: open loops, named values, and where each value belongs.

A `KernelBuilder` holds the blocks that are open. A value is written into the outermost block in which
everything that it depends on is known, so what does not depend on a loop is computed before it:

    nest = KernelBuilder()
    with nest.loop(n, "each") as i:
        with nest.loop(m, "each") as j:
            x = nest.load("b", nest.ix.add(nest.ix.scale(i, m), j), "f32")
            ...
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from anima.compiler.ir.index_math import Index, Indexer
from anima.compiler.ir.loops import (
    INDEX,
    Accumulate,
    Assign,
    Const,
    Expr,
    For,
    If,
    Let,
    Load,
    Local,
    Mutable,
    NamedValue,
    Op,
    Stmt,
    Store,
    While,
)
from anima.compiler.ir.ranges import INTEGERS, Ranges

_SUMS = frozenset(("add", "sub", "mul", "cast"))


class KernelBuilder:
    """The statements of a kernel under construction."""

    def __init__(self) -> None:
        self.ix = Indexer()
        self.memo: dict[Any, Any] = {}
        self.loads: dict[Any, Expr] = {}  # what was loaded, by buffer and index
        self.ranges = Ranges()
        self.sums: dict[str, Index] = {}  # integer values, by name, as the sums of multiples of indices that they are
        self.used: list[Index] = []  # indices that went into code
        self._blocks: list[list[Stmt]] = [[]]
        self._levels: dict[str, int] = {}  # of each name: the block in which it is known
        self._floor = 0  # values are not moved out of this block
        self.prefix = ""  # of names
        self.count = 0

    @property
    def body(self) -> tuple[Stmt, ...]:
        """The finished statements of the outermost block."""
        return tuple(self._blocks[0])

    @property
    def depth(self) -> int:
        return len(self._blocks) - 1

    def name(self, letter: str) -> str:
        """A name that is new in this kernel."""
        self.count += 1
        return f"{self.prefix}{letter}{self.count}"

    # ---------------------------------------------------------------- values

    def level(self, value: Expr) -> int:
        """The block in which a named value (or a constant) is known."""
        if type(value) is NamedValue:
            return self._levels.get(value.name, 0)  # what is bound around the kernel is known from the start
        return 0

    def let(self, value: Expr, level: int, letter: str = "v") -> Expr:
        """A name for a value that depends on no more than `level` blocks."""
        if type(value) is Const or type(value) is NamedValue:
            return value
        level = max(level, self._floor)
        name = self.name(letter)
        self._levels[name] = level
        self._blocks[level].append(Let(name, value))
        if value.dtype in INTEGERS or value.dtype == "bool":
            self.ranges.define(name, value)
        return NamedValue(name, value.dtype)

    def op(self, name: str, args: Sequence[Expr], dtype: str, params: tuple[tuple[str, Any], ...] = ()) -> Expr:
        """A named scalar operation on named values."""
        decided = self.ranges.decided(name, tuple(args)) if dtype == "bool" else None
        if decided is not None:
            return Const(decided, "bool")
        if name == "select_n" and type(args[0]) is Const and args[0].dtype == "bool":
            return args[1 + int(args[0].value)]
        levels = self._levels
        level = 0
        for a in args:
            if type(a) is NamedValue:
                known = levels.get(a.name, 0)
                if known > level:
                    level = known
        value = self.let(Op(name, tuple(args), dtype, params), level)
        if name in _SUMS and dtype in INTEGERS and type(value) is NamedValue:
            self._note_sum(value, self._sum(name, args))
        return value

    def _sum(self, name: str, args: Sequence[Expr]) -> Index | None:
        """What an operation on sums of indices gives, if it is one."""
        terms = [t for t in map(self._as_sum, args) if t is not None]
        if len(terms) < len(args):
            return None
        a, b = terms[0], terms[-1]
        if name == "mul":
            return self.ix.scale(b, a.const) if not a.terms else self.ix.scale(a, b.const) if not b.terms else None
        return a if name == "cast" else self.ix.add(a, b) if name == "add" else self.ix.sub(a, b)

    def _as_sum(self, value: Expr) -> Index | None:
        if type(value) is Const:
            return self.ix.const(int(value.value)) if value.dtype in INTEGERS else None
        return self.sums.get(value.name) if type(value) is NamedValue else None

    def _note_sum(self, value: Expr, index: Index | None) -> None:
        """Takes note that a value is a sum of indices, if its type can have all that this may be."""
        if index is not None and type(value) is NamedValue and self.ranges.set(value, index.lo, index.hi):
            self.sums[value.name] = index

    def cast(self, value: Expr, dtype: str) -> Expr:
        """The value in another scalar type."""
        return value if value.dtype == dtype else self.op("cast", (value,), dtype)

    def load(self, buffer: str, index: Index, dtype: str, level: int = 0) -> Expr:
        """An element of a buffer (one that changes in block `level`, where that is not 0)."""
        key = (buffer, index)
        found = self.loads.get(key)
        if found is None:
            self.used.append(index)
            value = Load(buffer, index.expr(), dtype)
            found = self.loads[key] = self.let(value, max(index.level, level), "x")
        return found

    def index_value(self, index: Index, dtype: str) -> Expr:
        """An index as a value of an array type."""
        self.used.append(index)
        value = self.let(Op("cast", (index.expr(),), dtype), index.level)
        self._note_sum(value, index)
        return value

    def condition(self, value: Expr, level: int) -> Expr:
        """A name for a condition on indices."""
        return self.let(value, level, "c")

    def as_index(self, value: Expr, lo: int, hi: int) -> Index:
        """An integer value clamped to `lo .. hi`, as an index."""
        if type(value) is Const:
            return self.ix.const(min(max(int(value.value), lo), hi))
        known = self.sums.get(value.name) if type(value) is NamedValue else None
        if known is not None and lo <= known.lo and known.hi <= hi:
            return known
        wide = self.wide_index(value)
        least, most = self.ranges.of(wide)
        clamped: Expr = wide
        if least < lo:
            clamped = Op("max", (clamped, Const(lo, INDEX)), INDEX)
        if most > hi:
            clamped = Op("min", (clamped, Const(hi, INDEX)), INDEX)
        clamped = self.let(clamped, self.level(wide), "n")
        return self.ix.opaque(clamped, lo, hi, self.level(clamped))

    def wide_index(self, value: Expr) -> Expr:
        """An integer value as one of type index; what is too large for that is still beyond any array."""
        if value.dtype == "u64":
            value = self.op("min", (value, Const(1 << 62, "u64")), "u64")
        known = self.memo.get(value)
        if known is None:
            known = self.memo[value] = self.let(Op("cast", (value,), INDEX), self.level(value), "n")
        return known

    # ---------------------------------------------------------------- statements

    def take(self) -> list[Stmt]:
        """The statements so far, which may now be followed by others: what was loaded may have changed after them."""
        stmts, self._blocks[0] = self._blocks[0], []
        self.loads = {}
        return stmts

    def emit(self, stmt: Stmt) -> None:
        self._blocks[-1].append(stmt)

    def store(self, buffer: str, index: Index, value: Expr) -> None:
        self.used.append(index)
        self.emit(Store(buffer, index.expr(), value))

    def local(self, dtype: str, size: int) -> str:
        """Scratch memory in the current block."""
        name = self.name("row")
        self.emit(Local(name, dtype, size))
        return name

    def var(self, init: Expr, letter: str = "s") -> NamedValue:
        """A mutable scalar in the current block."""
        name = self.name(letter)
        self._levels[name] = self.depth
        self.emit(Mutable(name, init.dtype, init))
        return NamedValue(name, init.dtype)

    def read(self, var: NamedValue) -> NamedValue:
        """The value that a mutable scalar has here, under a name of its own."""
        name = self.name("v")
        self._levels[name] = self.depth
        self.emit(Let(name, var))
        return NamedValue(name, var.dtype)

    def accumulate(self, var: NamedValue, op: str, value: Expr) -> None:
        self.emit(Accumulate(var.name, op, value))

    def assign(self, var: NamedValue, value: Expr) -> None:
        self.emit(Assign(var.name, value))

    @contextmanager
    def loop(self, extent: int | Expr, kind: str = "serial", bound: int | None = None,
             letter: str = "i") -> Iterator[Index]:
        """A loop; its index. `bound` is the largest extent where that is an expression. One iteration needs no loop."""
        if extent == 1:
            yield self.ix.zero
            return
        if isinstance(extent, int):
            bound, extent = extent, Const(extent, INDEX)
        assert bound is not None
        name = self.name(letter)
        self._blocks.append([])
        self._levels[name] = self.depth
        yield self.ix.var(name, bound, self.depth)
        body = tuple(self._blocks.pop())
        self._blocks[-1].append(For(name, extent, body, kind))  # type: ignore[arg-type]

    @contextmanager
    def pinned(self) -> Iterator[list[Stmt]]:
        """A block whose values stay in it (a branch, the body of a while loop); the caller makes the statement."""
        outer_floor, memo, loads, ranges = self._floor, dict(self.memo), dict(self.loads), self.ranges
        block: list[Stmt] = []
        self._blocks.append(block)
        self._floor, self.ranges = self.depth, ranges.copy()
        yield block
        self._blocks.pop()
        self._floor, self.memo, self.loads, self.ranges = outer_floor, memo, loads, ranges

    @contextmanager
    def when(self, cond: Expr) -> Iterator[None]:
        """Statements that run if `cond` holds."""
        if type(cond) is Const and cond.value:
            yield
            return
        with self.pinned() as block:
            self.ranges.suppose(cond)
            yield
        self.emit(If(cond, tuple(block)))

    @contextmanager
    def serial(self, extent: int | Expr, letter: str = "i") -> Iterator[NamedValue]:
        """A loop in order, over which no value is moved (its body reads what it writes)."""
        name = self.name(letter)
        with self.pinned() as block:
            self._levels[name] = self.depth
            yield NamedValue(name, INDEX)
        count = Const(extent, INDEX) if isinstance(extent, int) else extent
        self.emit(For(name, count, tuple(block)))

    @contextmanager
    def while_(self, cond: Expr, steps: int | None = None) -> Iterator[None]:
        """A loop for as long as `cond`, an expression over variables, holds: about `steps` times, if that is known."""
        with self.pinned() as block:
            yield
        self.emit(While((), cond, tuple(block), steps))
