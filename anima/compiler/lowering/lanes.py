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
from contextlib import contextmanager
from functools import partial, reduce
from typing import Any

from anima.compiler.ir.index_math import Index
from anima.compiler.ir.loops import PARTS, Const, Expr, Load, Local, Op, Store
from anima.compiler.lowering.array import Scope
from anima.util import record

WRITTEN_OUT = 4  # rows and columns of what is written out
_SAME_PLACES = 16  # vectors of a row: rows of a multiple of it share places of the cache
BITS = {"f32": ("u32", 0x7F800000), "f64": ("u64", 0x7FF0000000000000)}  # of exponents
Thunk = Callable[[], Expr]


@record
class FloatLimits:
    """Of a real type: the relative distance of numbers, the least normal one, and the exponent of that."""

    eps: float
    tiny: float
    exponent: int


LIMITS = {"f32": FloatLimits(2.0**-23, 2.0**-126, -126), "f64": FloatLimits(2.0**-52, 2.0**-1022, -1022)}
Choose = Callable[..., Expr]


class Number:
    """A number that changes: a variable, or what a name stands for where all is written out."""

    def __init__(self, work: MatrixWriter, init: Expr) -> None:
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

    def __init__(self, work: MatrixWriter, dtype: str, rows: int, columns: int = 1) -> None:
        self.work, self.dtype, self.rows, self.columns = work, dtype, rows, columns
        # In lanes, a column of such rows would fall on few places of the cache: one element more keeps it apart.
        vectors = 2 * columns if dtype in PARTS else columns
        self.stride = columns + 1 if work.lanes and vectors % _SAME_PLACES == 0 else columns
        self.elements: dict[Index, Expr] = {}
        if not work.written_out:
            scope = work.scope
            self.buffer = scope.name("row")
            scope.emit(Local(self.buffer, dtype, rows * self.stride, "apart" if work.lanes else ""))

    def place(self, i: Index, j: Index | None) -> Index:
        ix = self.work.scope.ix
        flat = ix.scale(i, self.stride)
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


    def __getitem__(self, place: Index | tuple[Index, Index]) -> Term:
        return Term(self.work, self.get(*place) if isinstance(place, tuple) else self.get(place))

    def __setitem__(self, place: Index | tuple[Index, Index], value: Term) -> None:
        i, j = place if isinstance(place, tuple) else (place, None)
        self.put(i, j, value.expr)


class Submatrix:
    """A room without its first rows and columns, and with its rows as columns if it is `turned`."""

    def __init__(self, room: Room, row: int, column: int, rows: int | None = None, turned: bool = False) -> None:
        self.room, self.row, self.column, self.turned = room, row, column, turned
        self.rows, self.columns = room.rows - row, room.columns - column
        if turned:
            self.rows, self.columns = self.columns, self.rows
        self.rows = self.rows if rows is None else rows

    def get(self, i: Index, j: Index) -> Expr:
        return self.room.get(*self._place(i, j))

    def put(self, i: Index, j: Index, value: Expr) -> None:
        self.room.put(*self._place(i, j), value)

    def _place(self, i: Index, j: Index) -> tuple[Index, Index]:
        ix = self.room.work.scope.ix
        i, j = (j, i) if self.turned else (i, j)
        return ix.offset(i, self.row), ix.offset(j, self.column)


class Term:
    """A value with the operators of Python: numbers beside it are of its type."""

    __slots__ = ("expr", "work")

    def __init__(self, work: MatrixWriter, expr: Expr) -> None:
        self.work, self.expr = work, expr

    def _of(self, other: Operand, dtype: str | None = None) -> Expr:
        if isinstance(other, Term):
            return other.expr
        return Const(other, dtype or self.expr.dtype) if isinstance(other, (int, float)) else other

    def _op(self, name: str, other: Operand, to: str | None = None) -> Term:
        return Term(self.work, self.work.op(name, self.expr, self._of(other), to=to or self.expr.dtype))

    def _one(self, name: str) -> Term:
        return Term(self.work, self.work.op(name, self.expr, to=self.expr.dtype))

    def __add__(self, other: Operand) -> Term:
        return self._op("add", other)

    def __sub__(self, other: Operand) -> Term:
        return self._op("sub", other)

    def __mul__(self, other: Operand) -> Term:
        return self._op("mul", other)

    def __truediv__(self, other: Operand) -> Term:
        return self._op("div", other)

    def __rtruediv__(self, other: float) -> Term:
        return Term(self.work, self._of(other)) / self

    def __neg__(self) -> Term:
        return self._one("neg")

    def __abs__(self) -> Term:
        return self._one("abs")

    def sqrt(self) -> Term:
        return self._one("sqrt")

    def max(self, other: Operand) -> Term:
        return self._op("max", other)

    def min(self, other: Operand) -> Term:
        return self._op("min", other)

    def __lt__(self, other: Operand) -> Term:
        return self._op("lt", other, "bool")

    def __le__(self, other: Operand) -> Term:
        return self._op("le", other, "bool")

    def __gt__(self, other: Operand) -> Term:
        return self._op("gt", other, "bool")

    def __ge__(self, other: Operand) -> Term:
        return self._op("ge", other, "bool")

    def __eq__(self, other: Operand) -> Term:  # type: ignore[override]
        return self._op("eq", other, "bool")

    __hash__ = None  # type: ignore[assignment]

    def __and__(self, other: Operand) -> Term:
        return self._op("and", other)

    def __or__(self, other: Operand) -> Term:
        return self._op("or", other)

    def __xor__(self, other: Operand) -> Term:
        return self._op("xor", other)

    def __invert__(self) -> Term:
        return self._one("not")

    def where(self, yes: Operand, no: Operand) -> Term:
        """`yes` where this holds, else `no`: one of them may be a number."""
        dtype = next((x.expr.dtype if isinstance(x, Term) else x.dtype for x in (yes, no)
                      if not isinstance(x, (int, float))), self.work.real)
        return Term(self.work, self.work.select(self.expr, self._of(yes, dtype), self._of(no, dtype)))


Operand = Term | Expr | float


class MatrixWriter:
    """Writes an algorithm into a kernel: written out, for a matrix in each lane, or for one whose rows are vectors."""

    def __init__(self, scope: Scope, dtype: str, written_out: bool, lanes: bool) -> None:
        self.scope, self.dtype = scope, dtype
        self.real = PARTS.get(dtype, dtype)
        self.limits = LIMITS["f32" if self.real == "f32" else "f64"]
        self.written_out, self.lanes = written_out, lanes
        self.zero = scope.ix.zero

    def const(self, value: float, dtype: str | None = None) -> Const:
        dtype = dtype or self.dtype
        return Const(complex(value, value if math.isnan(value) else 0.0) if dtype in PARTS else value, dtype)

    def op(self, name: str, *args: Expr, to: str | None = None) -> Expr:
        return self.scope.op(name, args, to or self.dtype)

    def select(self, condition: Expr, yes: Expr, no: Expr) -> Expr:
        if isinstance(condition, Const):
            return yes if condition.value else no
        return self.op("select_n", condition, no, yes, to=yes.dtype)

    def conj(self, x: Expr) -> Expr:
        return self.op("conj", x) if self.dtype in PARTS else x

    def part(self, name: str, x: Expr) -> Expr:
        """The real or imaginary part."""
        return self.op(name, x, to=self.real) if self.dtype in PARTS else x if name == "real" else self.const(0.0)

    def size(self, x: Expr) -> Expr:
        """|x|, or for complex numbers |re x| + |im x|."""
        if self.dtype not in PARTS:
            return self.op("abs", x)
        real, imaginary = (self.op("abs", self.part(name, x), to=self.real) for name in ("real", "imag"))
        return self.op("add", real, imaginary, to=self.real)

    def square(self, x: Expr) -> Expr:
        """|x|^2."""
        parts = [self.part(name, x) for name in (("real", "imag") if self.dtype in PARTS else ("real",))]
        return reduce(lambda a, b: self.op("add", a, b, to=self.real),
                      [self.op("mul", part, part, to=self.real) for part in parts])

    def power_of_two(self, x: Expr) -> Expr:
        """The largest power of two that is not above x > 0; the least normal number, if x is less than that."""
        kind, mask = BITS[self.real]
        bits = self.op("and", self.op("bitcast", x, to=kind), Const(mask, kind), to=kind)
        return self.op("max", self.op("bitcast", bits, to=self.real), self.const(self.limits.tiny, self.real),
                       to=self.real)

    def whole(self, x: Expr) -> Expr:
        """A real number as one of the matrix's type."""
        return self.op("complex", x, self.const(0.0, self.real)) if self.dtype in PARTS else x

    def index(self, name: str, i: Index, j: Index) -> Expr:
        """A comparison of indices."""
        if not i.terms and not j.terms:
            return Const(i.const < j.const if name == "lt" else i.const == j.const, "bool")
        return self.scope.condition(Op(name, (i.expr(), j.expr()), "bool"), max(i.level, j.level))

    def room(self, rows: int, columns: int = 1, dtype: str | None = None) -> Room:
        return Room(self, dtype or self.dtype, rows, columns)

    @contextmanager
    def repeat(self, going: Number, *changed: Number | Room) -> Iterator[None]:
        """The body for as long as `going` holds; it changes that and `changed`. In lanes: until the last is done."""
        scope = self.scope
        if not self.written_out:
            with scope.while_(going.current):
                yield
            return
        places: list[tuple[Any, Any]] = [(vars(number), "current") for number in (going, *changed)
                                         if isinstance(number, Number)]
        places += [(room.elements, place) for room in changed if isinstance(room, Room) for place in room.elements]
        held = [scope.var(owner[key]) for owner, key in places]

        def read() -> None:
            for (owner, key), var in zip(places, held, strict=True):
                owner[key] = scope.read(var)

        with scope.while_(held[0]):
            read()
            yield
            for (owner, key), var in zip(places, held, strict=True):
                scope.assign(var, owner[key])
        read()

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

    def columns(self, k: Index, n: int, together: bool = False) -> Iterator[tuple[Index, Choose]]:
        """Columns, and what chooses among three functions: for those before column k, at k, and after k; `together`,
        if that is no more work, so that they are one loop."""
        if self.written_out or (self.lanes and not together):
            for j in self.steps(0, k):
                yield j, lambda before, at, after: before()
            if k.lo < n:
                yield k, lambda before, at, after: at()
            for j in self.after(k, n):
                yield j, lambda before, at, after: after()
            return
        for j in self.steps(0, n, "serial" if self.lanes else "vector"):
            yield j, partial(self._chosen, self.index("lt", j, k), self.index("eq", j, k))

    def _chosen(self, first: Expr, second: Expr, before: Thunk, at: Thunk, after: Thunk) -> Expr:
        return self.select(first, before(), self.select(second, at(), after()))
