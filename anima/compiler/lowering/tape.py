"""Loops and tapes: `tape_while` records a value for each step, `tape_scan` goes over what was recorded.

    while: ...                                   table: capacity, count, (header, bytes, data) of each tape
      if cond & n >= capacity: call tape_grow      (twice as large)
      if not cond & n < capacity: break
      window w = table[4] + n*32                   w: the n-th element of the first tape
      kernel: w[i] = cos(...)

Elements are computed where they are to be kept, and read where they are: nothing is copied. A program that
uses tapes has one more input, `tapes`: the address of (budget, bytes used, status, chain of headers). What a
program (or a loop's body) without tapes among its results has recorded is freed at its end.

A loop whose tapes do not fit the budget ends where they are full, and calls back into Python for the rest of its
way (`TapedLoop`). What is on its tapes then is computed again as it is read (`Refill`), some steps at a time.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from anima.compiler.ir.loops import (
    INDEX,
    Assign,
    Call,
    Const,
    Expr,
    For,
    If,
    Let,
    Load,
    Mutable as Variable,
    NamedValue,
    Op,
    Store,
    While,
    WindowAt,
    affine,
)
from anima.compiler.lowering.array import scalar_type
from anima.compiler.lowering.calls import Operand, ProgramBuilder, call
from anima.compiler.lowering.control import Carry
from anima.compiler.rewriting.expand import RECORDED, RECORDS as RECORDS
from anima.compiler.storage.buffers import BYTES
from anima.core.avals import ShapedArray
from anima.core.jaxpr import ClosedJaxpr, Eqn, Var
from anima.core.source import Source
from anima.util import record, split_list

TAPES = "tapes"
_WORD = ShapedArray((), np.dtype(np.int64))


@record
class TapedLoop:
    """The callback of a loop whose tapes are full: (tapes, table, constants of the condition and of the body, first
    carry, carry) -> (last carry, table). `cond` and `body` are the loop's programs."""

    cond: ClosedJaxpr
    body: ClosedJaxpr
    cond_nconsts: int
    body_nconsts: int
    operands: tuple[ShapedArray, ...]
    results: tuple[ShapedArray, ...]
    source: Source | None


@record
class Refill:
    """The callback of a loop over tapes that have but a part of their elements: (table, step, reader) -> (table,
    reader). It finds elements around a step; table[0] says how far they go. `reader`, 0 at first, tells the loop
    from others that read the same tapes; step -1 is its end."""

    reverse: bool
    operands: tuple[ShapedArray, ...]
    results: tuple[ShapedArray, ...]


def source_code(source: Source | None) -> int:
    """A number other than 0 for a place in the user's program."""
    return zlib.crc32(str(source).encode()) | 1


def tapes(builder: ProgramBuilder) -> str:
    """The input through which a program finds its tapes."""
    if TAPES not in builder.buffers:
        builder.buffer(TAPES, "i64", 1, "input")
    return TAPES


def mark(builder: ProgramBuilder) -> str:
    """Remembers which tapes there are."""
    place = builder.temp("i64", 1)
    builder.emit(Call("tape_mark", (tapes(builder), place)))
    return place


def release(builder: ProgramBuilder, place: str) -> None:
    """Frees the tapes made since the mark."""
    builder.emit(Call("tape_release", (tapes(builder), place)))


class _TapeTable:
    """Addresses and sizes of the tapes that one loop writes, or reads."""

    def __init__(self, builder: ProgramBuilder, avals: Sequence[ShapedArray | None], source: Source | None):
        self.builder = builder
        self.avals = avals
        self.source, self.code = source, source_code(source)
        self.sizes = [0 if a is None else a.size * BYTES[scalar_type(a)] for a in avals]
        self.name = builder.temp("i64", 2 + 3 * len(avals))
        self.windows = [self._window(a) for a in avals]
        for k, size in enumerate(self.sizes):
            self.store(3 + 3 * k, Const(size, "i64"))

    def _window(self, aval: ShapedArray | None) -> str:
        if aval is None or not aval.size:
            return self.builder.temp("i8" if aval is None else scalar_type(aval), 0)
        return self.builder.buffer(self.builder.name("w"), scalar_type(aval), aval.size, "window")

    def store(self, place: int, value: Expr) -> None:
        self.builder.emit(Store(self.name, Const(place, INDEX), value))

    def load(self, place: int) -> Expr:
        return Load(self.name, Const(place, INDEX), "i64")

    def call(self, routine: str, code: int | None = None) -> None:
        """Calls a routine; where there is not the memory, the program's status will be `code` (that of the line)."""
        code = self.code if code is None else code
        self.builder.emit(Call(routine, (tapes(self.builder), self.name, len(self.avals), code), self.source))

    @property
    def aval(self) -> ShapedArray:
        return ShapedArray((2 + 3 * len(self.avals),), _WORD.dtype)

    def named(self, value: Expr) -> NamedValue:
        """A name for a value."""
        name = self.builder.name("v")
        self.builder.emit(Let(name, value))
        return NamedValue(name, value.dtype)

    def open_windows(self, step: Expr) -> None:
        """Makes the windows show elements number `step`."""
        for k, (window, size) in enumerate(zip(self.windows, self.sizes, strict=True)):
            if size:
                distance = _as("i64", affine(0, (step, size)))
                self.builder.emit(WindowAt(window, Op("add", (self.load(4 + 3 * k), distance), "i64")))

    def give(self, results: Sequence[Var]) -> None:
        """Makes the tapes the values of results."""
        for k, var in enumerate(results):
            self.builder.set_value(var, self.named(self.load(2 + 3 * k)))


def _as(dtype: str, value: Expr) -> Expr:
    return Op("cast", (value,), dtype)


@call("tape_while")
def _tape_while(builder: ProgramBuilder, eqn: Eqn) -> None:
    p = eqn.params
    cond_consts, body_consts, initial = split_list(eqn.invars, [p["cond_nconsts"], p["body_nconsts"]])
    cond, body = builder.inner(eqn)
    for_cond: list[Operand] = [builder.operand(c) for c in cond_consts]
    for_body: list[Operand] = [builder.operand(c) for c in body_consts]
    count = len(initial)
    table = _TapeTable(builder, [None, *(v.aval for v in body.closed.jaxpr.outvars[count:])], eqn.source)
    table.call("tape_open")
    carry = Carry(builder, body, for_body, initial, eqn.outvars[:count])
    step, capacity = (NamedValue(builder.name("s"), INDEX) for _ in range(2))
    for ref in (step, capacity):
        builder.emit(Variable(ref.name, INDEX, Const(0, INDEX)))
    found: list[Expr] = []

    def grow() -> None:
        table.call("tape_grow", 0)
        builder.emit(Assign(capacity.name, _as(INDEX, table.load(0))))

    nested = RECORDED in body.closed.jaxpr.effects  # each step makes tapes of its own

    def test() -> None:
        (value,) = builder.program(cond, [*for_cond, *carry.current()], [None])
        if nested:
            table.call("tape_check")
            builder.emit(Assign(capacity.name, _as(INDEX, table.load(0))))
        assert value is not None
        full = Op("ge", (step, capacity), "bool")
        builder.emit(If(Op("and", (value, full), "bool"), builder.block(grow)))
        found.append(Op("and", (value, Op("lt", (step, capacity), "bool")), "bool"))

    def advance() -> None:
        table.open_windows(step)
        carry.step(outputs=table.windows[1:])
        builder.emit(Assign(step.name, affine(1, (step, 1))))

    before = builder.block(test)
    builder.emit(While(before, found[0], builder.block(advance)))
    full = table.named(Op("lt", (table.load(1), Const(0, "i64")), "bool"))
    table.store(1, _as("i64", step))
    builder.emit(If(full, builder.block(lambda: _go_on(builder, eqn, table, carry))))
    table.call("tape_close")
    carry.finish(eqn.outvars[:count])
    table.give(eqn.outvars[count:])


def _go_on(builder: ProgramBuilder, eqn: Eqn, table: _TapeTable, carry: Carry) -> None:
    """Calls back for the rest of a loop's steps."""
    p = eqn.params
    avals = [v.aval for v in eqn.invars]
    now = [v.aval for v in eqn.outvars[:len(carry.slots)]]
    loop = TapedLoop(p["cond_jaxpr"], p["body_jaxpr"], p["cond_nconsts"], p["body_nconsts"],
                     (ShapedArray((1,), _WORD.dtype), table.aval, *avals, *now), (*now, table.aval), eqn.source)
    given = [_copy(builder, builder.operand(v), v.aval) for v in eqn.invars]
    places = [_copy(builder, x, a) for x, a in zip(carry.current(), now, strict=True)]
    number = len(builder.callbacks)
    builder.callbacks.append(loop)
    reads = [tapes(builder), table.name, *given, *places]
    builder.emit(Call("callback", (number, len(reads), *reads, *places, table.name)))
    carry.read_back(places)


def _copy(builder: ProgramBuilder, value: Operand, aval: ShapedArray) -> str:
    """A buffer of its own with the value of an operand."""
    place = builder.temp(scalar_type(aval), aval.size)
    builder.move(value, place, aval)
    return place


class _Reader:
    """Keeps the windows of a loop over tapes on elements that there are."""

    def __init__(self, table: _TapeTable, count: Expr, reverse: bool):
        self.table, self.builder, self.reverse = table, table.builder, reverse
        self.places = [self.builder.temp("i64", 1) for _ in range(2)]  # the step, the reader
        self._set(1, Const(0, "i64"))
        self.partial = table.named(Op("ne", (table.load(0), Const(0, "i64")), "bool"))
        limits: list[Expr] = [Const(0, INDEX), count]
        whole, none = limits if reverse else limits[::-1]
        self.edge = NamedValue(self.builder.name("s"), INDEX)
        self.builder.emit(Variable(self.edge.name, INDEX, Op("select_n", (self.partial, whole, none), INDEX)))

    def _set(self, place: int, value: Expr) -> None:
        self.builder.emit(Store(self.places[place], Const(0, INDEX), value))

    def find(self, step: Expr) -> None:
        """Before `step` is read."""
        outside = Op("lt" if self.reverse else "ge", (step, self.edge), "bool")
        self.builder.emit(If(outside, self.builder.block(lambda: self._refill(step))))

    def _refill(self, step: Expr) -> None:
        self._set(0, _as("i64", step))
        self._call()
        self.builder.emit(Assign(self.edge.name, _as(INDEX, self.table.load(0))))

    def close(self) -> None:
        """After the loop."""
        def end() -> None:
            self._set(0, Const(-1, "i64"))
            self._call()

        self.builder.emit(If(self.partial, self.builder.block(end)))

    def _call(self) -> None:
        number, word = len(self.builder.callbacks), _WORD.update(shape=(1,))
        self.builder.callbacks.append(Refill(self.reverse, (self.table.aval, word, word), (self.table.aval, word)))
        reads = [self.table.name, *self.places]
        self.builder.emit(Call("callback", (number, len(reads), *reads, self.table.name, self.places[1])))


@call("tape_scan")
def _tape_scan(builder: ProgramBuilder, eqn: Eqn) -> None:
    p = eqn.params
    num_carry, counting, reverse = p["num_carry"], p["length"], p["reverse"]
    (fused,) = builder.inner(eqn)
    jaxpr = fused.closed.jaxpr
    consts, initial, xs = split_list(eqn.invars, [p["num_consts"], num_carry])
    given: list[Operand] = [builder.operand(c) for c in consts]
    x_vars = jaxpr.invars[len(consts) + num_carry:]
    read = _TapeTable(builder, [None if c else v.aval for v, c in zip(x_vars, counting, strict=True)], eqn.source)
    for k, x in enumerate(xs):
        read.store(2 + 3 * k, builder.value(x))
    read.call("tape_read")
    count: NamedValue = read.named(_as(INDEX, read.load(1)))
    reader = _Reader(read, count, reverse) if any(read.sizes) else None
    written = None
    if len(jaxpr.outvars) > num_carry:
        written = _TapeTable(builder, [v.aval for v in jaxpr.outvars[num_carry:]], eqn.source)
        written.call("tape_open")
        written.store(1, _as("i64", count))
        written.call("tape_grow")
        enough = Op("ge", (_as(INDEX, written.load(0)), count), "bool")
        count = written.named(Op("select_n", (enough, Const(0, INDEX), count), INDEX))
        written.store(1, _as("i64", count))
    carry = Carry(builder, fused, given, initial, eqn.outvars[:num_carry])
    position = NamedValue(builder.name("k"), INDEX)

    def body() -> None:
        step: Expr = position
        if reverse:
            step = read.named(affine(-1, (count, 1), (position, -1)))
        if reader is not None:
            reader.find(step)
        read.open_windows(step)
        if written is not None:
            written.open_windows(step)
        number = _as("i32", step)
        elements = [read.named(number) if c else w for w, c in zip(read.windows, counting, strict=True)]
        carry.step(elements, [] if written is None else written.windows)

    builder.emit(For(position.name, count, builder.block(body)))
    if reader is not None:
        reader.close()
    carry.finish(eqn.outvars[:num_carry])
    if written is not None:
        written.call("tape_close")
        written.give(eqn.outvars[num_carry:])
