"""Triangular systems with many right sides: forward and backward substitution as generated code.

    for each strip of right sides:  pack it;  for each tile of rows:  X[i] = (B[i] - A[i, :i] X[:i]) / A[i, i];  unpack

A strip, a few vectors wide, is packed so that its rows follow each other, whichever side the matrix is on; it is
solved there, tile by tile: what is known of it is multiplied by rows of A as in a matrix product, and the triangle at
the diagonal is solved in registers. As products have it, what differs between systems is data that one driver
for each scalar type reads. Systems of more than `MOST_ROWS` rows are cut before (`lowering.blocked`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import ClassVar

from anima.compiler.ir.assembly import Builder, ModuleBuilder, Type, Value
from anima.compiler.machine.target import Target
from anima.compiler.products.blocking import grain_of
from anima.compiler.products.driver import write_run
from anima.compiler.products.gemm import PACK_COLUMNS, TRANSPOSE, TRANSPOSED, shared_text
from anima.compiler.products.kernel import (
    I1,
    I64,
    PTR,
    SCALARS,
    Rows,
    Tile,
    i64,
    loop,
    times,
)

MOST_ROWS = 512  # of a system: a strip of so many stays in a second-level cache, and on a thread's stack
DRIVER = "substitute"
CONTEXT = ("plan", "a", "b", "high", "low", "pack", "unpack")
PLAN = ("n", "columns", "width", "strips", "a_step", "b_step", "row", "column", "unit", "backward", "ld", "strip_step")
KERNEL = [("a", PTR), ("rs", I64), ("ks", I64), ("b", PTR), ("step", I64), ("k", I64), ("unit", I1)]
_MULTIPLICATIONS = 15.0  # done in a nanosecond, by vectors of 16


def _tile(registers: int) -> tuple[int, int]:
    """Rows, and vectors of right sides, of a tile."""
    return (8, 3) if registers >= 32 else (4, 2)


class SubstitutionText:
    """A call of `substitution` as its driver takes it (see `driver.Driven`)."""

    context = CONTEXT
    operands: ClassVar = {"a": "a", "b": "b"}
    driver = DRIVER

    def __init__(self, call: dict[str, object], target: Target) -> None:
        n, columns, lda, ldb, batch, unit = (int(call[x]) for x in (  # type: ignore[call-overload]
            "n", "columns", "lda", "ldb", "batch", "unit"))
        assert n <= MOST_ROWS
        self.target = target
        left, turned = call["side"] == "L", call["trans"] == "T"
        by_rows = left != turned                        # the matrix of L X = B, with the right sides in columns of B
        backward = bool(call["lower"]) == (left == turned)  # ... is an upper one
        lanes = target.vector_bytes // (8 if call["dtype"] == "f64" else 4)
        rows, vectors = _tile(target.registers)
        vectors = 1 if columns <= lanes else vectors
        width = vectors * lanes
        strips = -(-columns // width)
        row, column = (lda, 1) if by_rows else (1, lda)
        self.functions = {"high": f"substitute_{rows}x{vectors}", "low": f"substitute_1x{vectors}",
                          "pack": PACK_COLUMNS if left else TRANSPOSE, "unpack": PACK_COLUMNS if left else TRANSPOSED}
        sign = -1 if backward else 1
        self.plan = [n, columns, width, strips, call["a_stride"], call["b_stride"], sign * row, sign * column, unit,
                     (n - 1) * (lda + 1) if backward else 0, ldb, width if left else width * ldb]
        work = n * n / 2 * width / (_MULTIPLICATIONS * lanes / 16)
        self.units = strips * batch
        self.grain = grain_of(self.units, work)


@cache
def substitution_text(name: str, dtype: str, target: Target) -> str:
    """The LLVM module of the driver, of a kernel, or of what moves strips."""
    module = ModuleBuilder(target.triple, 8 * target.vector_bytes, target.features)
    scalar = Type(SCALARS[dtype])
    lanes = 8 * target.vector_bytes // scalar.bits
    if name == DRIVER:
        _write_driver(module, scalar, lanes, *_tile(target.registers))
    elif name in (PACK_COLUMNS, TRANSPOSE, TRANSPOSED):
        return shared_text(name, dtype, target)
    else:
        rows, vectors = map(int, name.removeprefix("substitute_").split("x"))
        _write_kernel(module.function(name, KERNEL), dtype, Type(scalar.text, lanes), rows, vectors)
    return module.text()


def _write_kernel(b: Builder, dtype: str, vector: Type, rows: int, vectors: int) -> None:
    """Rows k to k + `rows` of a strip: those before them are known. `a` is at the first element of the matrix's row k,
    `b` at the strip's first row; rows and columns of the matrix are `rs` and `ks` apart, rows of the strip `step`."""
    tile = Tile(b, dtype, vector, rows, vectors)
    a, rs, ks, first, step, k, unit = b.params
    rs, ks, step = (times(b, stride, tile.size) for stride in (rs, ks, step))
    matrix, strip = Rows(b, rs, rows), Rows(b, step, rows)
    sums = tile.add(matrix, matrix.bases(a), ks, first, step, k, tile.zeros, sure=False)
    triangle = matrix.bases(b.gep("i8", a, b.op("mul", k, ks)))
    here = strip.bases(b.gep("i8", first, b.op("mul", k, step)))
    one = b.const(vector.element, 1.0)
    known: list[list[Value]] = []
    for r in range(rows):
        at = matrix.at(triangle, r)
        line = [b.op("fsub", b.load(vector, tile.lanes(strip.at(here, r), v)), sums[r * vectors + v])
                for v in range(vectors)]
        for solved in known:
            factor = b.splat(b.fneg(b.load(vector.element, at)), vector.width)
            line = [b.intrinsic("fmuladd", factor, x, rest) for x, rest in zip(solved, line, strict=True)]
            at = b.gep("i8", at, ks)
        inverse = b.splat(b.select(unit, one, b.op("fdiv", one, b.load(vector.element, at))), vector.width)
        line = [b.op("fmul", x, inverse) for x in line]
        for v, x in enumerate(line):
            b.store(x, tile.lanes(strip.at(here, r), v))
        known.append(line)
    b.ret()


def _write_driver(module: ModuleBuilder, scalar: Type, lanes: int, rows: int, vectors: int) -> None:
    """Write `void substitute(ptr pool, ptr ctx, i64 units, i64 grain)`: a unit is a strip of a system of the batch."""
    b = module.function("units", [("ctx", PTR), ("begin", I64), ("end", I64)], linkage="internal")
    context, begin, end = b.params
    plan = b.load(PTR, context)
    strip = b.alloca(scalar, MOST_ROWS * vectors * lanes)

    def get(name: str) -> Value:
        return b.load(I64, b.gep("i64", plan, PLAN.index(name)))

    def address(name: str) -> Value:
        return b.load(PTR, b.gep("ptr", context, CONTEXT.index(name)))

    def at(pointer: Value, *offsets: Value) -> Value:
        for offset in offsets:
            pointer = b.gep(scalar, pointer, offset)
        return pointer

    def unit(number: Value, _: list[Value]) -> list[Value]:
        t, place = b.op("udiv", number, get("strips")), b.op("urem", number, get("strips"))
        first = b.op("mul", place, get("width"))
        count = b.intrinsic("smin", get("width"), b.op("sub", get("columns"), first))
        sides = at(address("b"), b.op("mul", t, get("b_step")), b.op("mul", place, get("strip_step")))
        b.call(address("pack"), [strip, sides, get("ld"), get("n"), count, get("width")])
        matrix = at(address("a"), b.op("mul", t, get("a_step")), get("backward"))
        back = b.cmp("ne", get("backward"), 0)
        start = b.select(back, at(strip, b.op("mul", b.op("sub", get("n"), i64(1)), get("width"))), strip)
        step = b.select(back, b.op("sub", i64(0), get("width")), get("width"))

        def tile(kernel: str) -> Callable[[Value, list[Value]], list[Value]]:
            def rows(k: Value, _: list[Value]) -> list[Value]:
                row = at(matrix, b.op("mul", k, get("row")))
                b.call(address(kernel), [row, get("row"), get("column"), start, step, k, b.cmp("ne", get("unit"), 0)])
                return []
            return rows

        whole = b.op("sub", get("n"), b.op("urem", get("n"), i64(rows)))
        loop(b, 0, whole, rows, tile("high"))
        loop(b, whole, get("n"), 1, tile("low"))
        b.call(address("unpack"), [sides, strip, get("width"), get("n"), count, get("ld")])
        return []

    loop(b, begin, end, 1, unit)
    b.ret()
    write_run(module, DRIVER, "units")
