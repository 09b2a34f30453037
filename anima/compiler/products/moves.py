"""What factorizations by blocks move: parts of matrices that are turned, and rows that are exchanged.

    turn      B[j, i] = A[i, j]                                      tile by tile, to where LAPACK wants columns
    exchange  for each i in order:  row i of A <-> row pivots[i]     as partial pivoting asks for it

As products have it, what differs between calls is data that one driver for each scalar type reads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import ClassVar

from anima.compiler.ir.assembly import Builder, ModuleBuilder, Type, Value
from anima.compiler.machine.target import Target
from anima.compiler.products.blocking import grain_of
from anima.compiler.products.driver import write_run
from anima.compiler.products.gemm import TRANSPOSED, shared_text
from anima.compiler.products.kernel import I32, I64, PTR, SCALARS, PackWriter, i64, loop, when

TURN, EXCHANGE = "turn", "exchange"
_TURN_ARGUMENTS = ("rows", "columns", "lda", "ldb")
_TURN_PLAN = (*_TURN_ARGUMENTS, "wide")
_EXCHANGE_PLAN = ("count", "rows", "columns", "lda")
_TILE = 64        # rows and columns that are turned at once
_STRETCH = 256    # elements of a row that are exchanged by one thread
_BYTES = 8.0      # moved in a nanosecond, by one core


class TurnText:
    """A call of `turn` as its driver takes it (see `driver.Driven`)."""

    context = ("plan", "a", "b", "transposed")
    operands: ClassVar = {"a": "a", "b": "b"}
    functions: ClassVar = {"transposed": TRANSPOSED}
    driver = TURN

    def __init__(self, call: dict[str, object], target: Target) -> None:
        rows, columns, lda, ldb = (int(call[x]) for x in _TURN_ARGUMENTS)  # type: ignore[call-overload]
        wide = -(-columns // _TILE)
        self.plan = [rows, columns, lda, ldb, wide]
        self.target, self.units = target, -(-rows // _TILE) * wide
        self.grain = grain_of(self.units, 2 * _TILE**2 * (8 if call["dtype"] == "f64" else 4) / _BYTES)


class ExchangeText:
    """A call of `exchange` as its driver takes it (see `driver.Driven`)."""

    context = ("plan", "a", "pivots")
    operands: ClassVar = {"a": "a", "pivots": "pivots"}
    functions: ClassVar[dict[str, str]] = {}
    driver = EXCHANGE

    def __init__(self, call: dict[str, object], target: Target) -> None:
        count, rows, columns, lda = (int(call[x]) for x in _EXCHANGE_PLAN)  # type: ignore[call-overload]
        self.plan = [count, rows, columns, lda]
        self.target, self.units = target, -(-columns // _STRETCH)
        self.grain = grain_of(self.units, 4 * count * _STRETCH * (8 if call["dtype"] == "f64" else 4) / _BYTES)


@cache
def moves_text(name: str, dtype: str, target: Target) -> str:
    """The LLVM module of a driver, or of what it calls."""
    if name == TRANSPOSED:
        return shared_text(name, dtype, target)
    module = ModuleBuilder(target.triple, 8 * target.vector_bytes, target.features)
    scalar = Type(SCALARS[dtype])
    write, size = (_turn, _TILE) if name == TURN else (_exchange, _STRETCH)
    b = module.function("units", [("ctx", PTR), ("begin", I64), ("end", I64)], linkage="internal")
    context, begin, end = b.params
    move = PackWriter(b, scalar.text, 8 * target.vector_bytes // scalar.bits, target.masks)
    unit = write(move, context, b.load(PTR, context))

    def one(number: Value, _: list[Value]) -> list[Value]:
        unit(number, i64(size))
        return []

    loop(b, begin, end, 1, one)
    b.ret()
    write_run(module, name, "units")
    return module.text()


def _words(b: Builder, plan: Value, names: tuple[str, ...]) -> list[Value]:
    return [b.load(I64, b.gep("i64", plan, place)) for place in range(len(names))]


def _turn(move: PackWriter, context: Value, plan: Value) -> Callable[[Value, Value], None]:
    """A unit is a tile."""
    b = move.b
    rows, columns, lda, ldb, wide = _words(b, plan, _TURN_PLAN)
    a, to, transposed = (b.load(PTR, b.gep("ptr", context, place)) for place in (1, 2, 3))

    def unit(number: Value, size: Value) -> None:
        i, j = (b.op("mul", b.op(op, number, wide), size) for op in ("udiv", "urem"))
        high, low = (b.intrinsic("smin", size, b.op("sub", total, first)) for total, first in ((rows, i), (columns, j)))
        source, target = move.at(a, b.op("mul", i, lda), j), move.at(to, b.op("mul", j, ldb), i)
        b.call(transposed, [target, source, lda, high, low, ldb])

    return unit


def _exchange(move: PackWriter, context: Value, plan: Value) -> Callable[[Value, Value], None]:
    """A unit is a stretch of all rows."""
    b = move.b
    count, rows, columns, lda = _words(b, plan, _EXCHANGE_PLAN)
    a, pivots = (b.load(PTR, b.gep("ptr", context, place)) for place in (1, 2))

    def unit(number: Value, size: Value) -> None:
        first = b.op("mul", number, size)
        length = b.intrinsic("smin", size, b.op("sub", columns, first))
        start = move.at(a, first)

        def row(i: Value, _: list[Value]) -> list[Value]:
            pivot = b.op("sub", b.cast("sext", b.load(I32, b.gep("i32", pivots, i)), I64), i64(1))
            other = b.intrinsic("smin", b.intrinsic("smax", pivot, i), b.op("sub", rows, i64(1)))
            here, there = (move.at(start, b.op("mul", line, lda)) for line in (i, other))

            def some(j: Value, type: Type, mask: Value | None) -> None:
                x, y = (move.load(type, move.at(line, j), mask) for line in (here, there))
                move.store(y, move.at(here, j), mask)
                move.store(x, move.at(there, j), mask)

            when(b, b.cmp("ne", i, other), lambda: move.lanes(length, some))
            return []

        loop(b, 0, count, 1, row)

    return unit
