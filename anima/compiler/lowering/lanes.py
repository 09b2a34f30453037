"""Algorithms for one matrix or row, of which many run, one in each lane.

    for i in work.steps(0, n):                 for i < 6:
        x = a.get(i)                    ->       x = a[i]                       a: f32[6] apart
        a.put(i, None, work.op("abs", x))        v = abs(x);  a[i] = v

They are written once. Where all is written out, loops and scratch memory are there while the program is compiled only,
and elements are values; elsewhere scratch memory is a lane's own, or, for rows that are vectors themselves, all lanes'.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial, reduce

from anima.compiler.ir.index_math import Index
from anima.compiler.ir.loops import Const, Expr, Load, Local, Op, Store
from anima.compiler.lowering.array import Scope

WRITTEN_OUT = 4  # rows and columns of what is written out
REAL = {"c64": "f32", "c128": "f64"}
Thunk = Callable[[], Expr]
Choose = Callable[..., Expr]


class Number:
    """A number that changes: a variable, or what a name stands for where all is written out."""

    def __init__(self, work: Work, init: Expr) -> None:
        self.work = work
        self.current = init if work.written_out else work.scope.var(init)

    @property
    def value(self) -> Expr:
        return self.current if self.work.written_out else self.work.scope.read(self.current)  # type: ignore[arg-type]

    def set(self, value: Expr) -> None:
        if self.work.written_out:
            self.current = value
        else:
            self.work.scope.assign(self.current, value)  # type: ignore[arg-type]


class Room:
    """A matrix of work: scratch memory, or the elements themselves where all is written out."""

    def __init__(self, work: Work, dtype: str, rows: int, columns: int = 1) -> None:
        self.work, self.dtype, self.rows, self.columns = work, dtype, rows, columns
        self.elements: dict[Index, Expr] = {}
        if not work.written_out:
            scope = work.scope
            self.buffer = scope.name("row")
            scope.emit(Local(self.buffer, dtype, rows * columns, "apart" if work.lanes else ""))

    def place(self, i: Index, j: Index | None) -> Index:
        ix = self.work.scope.ix
        flat = ix.scale(i, self.columns)
        return flat if j is None else ix.add(flat, j)

    def get(self, i: Index, j: Index | None = None) -> Expr:
        place, scope = self.place(i, j), self.work.scope
        if self.work.written_out:
            return self.elements[place]
        return scope.let(Load(self.buffer, place.expr(), self.dtype), scope.depth, "x")

    def put(self, i: Index, j: Index | None, value: Expr) -> None:
        place = self.place(i, j)
        if self.work.written_out:
            self.elements[place] = value
        else:
            self.work.scope.emit(Store(self.buffer, place.expr(), value))


class Work:
    """Writes an algorithm into a kernel: written out, for a matrix in each lane, or for one whose rows are vectors."""

    def __init__(self, scope: Scope, dtype: str, written_out: bool, lanes: bool) -> None:
        self.scope, self.dtype = scope, dtype
        self.real = REAL.get(dtype, dtype)
        self.written_out, self.lanes = written_out, lanes
        self.zero = scope.ix.zero

    def const(self, value: float, dtype: str | None = None) -> Const:
        dtype = dtype or self.dtype
        return Const(complex(value, value if math.isnan(value) else 0.0) if dtype in REAL else value, dtype)

    def op(self, name: str, *args: Expr, to: str | None = None) -> Expr:
        return self.scope.op(name, args, to or self.dtype)

    def select(self, condition: Expr, yes: Expr, no: Expr) -> Expr:
        if isinstance(condition, Const):
            return yes if condition.value else no
        return self.op("select_n", condition, no, yes, to=yes.dtype)

    def conj(self, x: Expr) -> Expr:
        return self.op("conj", x) if self.dtype in REAL else x

    def part(self, name: str, x: Expr) -> Expr:
        """The real or imaginary part."""
        return self.op(name, x, to=self.real) if self.dtype in REAL else x if name == "real" else self.const(0.0)

    def size(self, x: Expr) -> Expr:
        """|x|, or for complex numbers |re x| + |im x|."""
        if self.dtype not in REAL:
            return self.op("abs", x)
        real, imaginary = (self.op("abs", self.part(name, x), to=self.real) for name in ("real", "imag"))
        return self.op("add", real, imaginary, to=self.real)

    def square(self, x: Expr, unit: Expr) -> Expr:
        """|x / unit|^2."""
        parts = [self.part(name, x) for name in (("real", "imag") if self.dtype in REAL else ("real",))]
        parts = [self.op("div", part, unit, to=self.real) for part in parts]
        return reduce(lambda a, b: self.op("add", a, b, to=self.real),
                      [self.op("mul", part, part, to=self.real) for part in parts])

    def whole(self, x: Expr) -> Expr:
        """A real number as one of the matrix's type."""
        return self.op("complex", x, self.const(0.0, self.real)) if self.dtype in REAL else x

    def index(self, name: str, i: Index, j: Index) -> Expr:
        """A comparison of indices."""
        if not i.terms and not j.terms:
            return Const(i.const < j.const if name == "lt" else i.const == j.const, "bool")
        return self.scope.condition(Op(name, (i.expr(), j.expr()), "bool"), max(i.level, j.level))

    def room(self, rows: int, columns: int = 1, dtype: str | None = None) -> Room:
        return Room(self, dtype or self.dtype, rows, columns)

    def steps(self, low: Index | int, high: Index | int, kind: str = "serial") -> Iterator[Index]:
        """Indices from `low` on, below `high`: for the body of one loop, or for one of each."""
        ix = self.scope.ix
        low, high = (ix.const(n) if isinstance(n, int) else n for n in (low, high))
        extent = ix.sub(high, low)
        if self.written_out:
            yield from map(ix.const, range(low.const, high.const))
        elif extent.terms:
            with self.scope.loop(extent.expr(), kind, extent.hi) as i:
                yield ix.add(low, i)
        elif extent.const > 0:
            with self.scope.loop(extent.const, kind) as i:
                yield ix.add(low, i)

    def after(self, k: Index, n: int) -> Iterator[Index]:
        """Rows after row k."""
        return self.steps(self.scope.ix.offset(k, 1), n)

    def row(self, low: Index, high: Index, n: int) -> Iterator[Index]:
        """The columns from `low` on, below `high`; in vectors all, for they are one: values elsewhere mean nothing."""
        return self.steps(low, high) if self.written_out or self.lanes else self.steps(0, n, "vector")

    def columns(self, k: Index, n: int) -> Iterator[tuple[Index, Choose]]:
        """Columns, and what chooses among three functions: for those before column k, at k, and after k."""
        if self.written_out or self.lanes:
            for j in self.steps(0, k):
                yield j, lambda before, at, after: before()
            if k.lo < n:
                yield k, lambda before, at, after: at()
            for j in self.after(k, n):
                yield j, lambda before, at, after: after()
            return
        for j in self.steps(0, n, "vector"):
            yield j, partial(self._chosen, self.index("lt", j, k), self.index("eq", j, k))

    def _chosen(self, first: Expr, second: Expr, before: Thunk, at: Thunk, after: Thunk) -> Expr:
        return self.select(first, before(), self.select(second, at(), after()))
