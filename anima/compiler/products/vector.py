"""Products of a matrix and one vector, or a few: as fast as the matrix comes from memory.

    gemm_dot      y[i, l] = sum of M[i, p] x[p, l]   where rows of M and each x are contiguous: four rows of M at a
                                                     time, by dot products
    gemm_along    y[j] = sum of M[p, j] x[p]         where rows of M and y are contiguous: eight rows at a time are
                                                     added to a stretch of y

Both take `(pool, ctx, units, grain)` as the driver of matrix products does. Whatever the number of threads, every
element of y is summed in the same order.
"""

from __future__ import annotations

from collections.abc import Callable

from anima.compiler.ir.assembly import Builder, ModuleBuilder, Type, Value
from anima.compiler.products.driver import write_run
from anima.compiler.products.kernel import I64, PTR, PackWriter, i64, loop, when

PLAN = ("outputs", "k", "stride", "x_stride", "y_stride", "size", "blocks", "m_step", "x_step", "y_step", "keep",
        "lines", "x_line", "y_line")
DOT, ALONG = "gemm_dot", "gemm_along"
_DOT_ROWS, _DOT_VECTORS = 4, 2
_ALONG_ROWS = 8


class VectorUnit:
    """What a unit works on: `count` results from y on, of the rows (or columns) of the matrix from m on, and x."""

    def __init__(self, b: Builder, move: PackWriter, context: Value, number: Value, line: str | None) -> None:
        plan = b.load(PTR, context)
        words = {name: b.load(I64, b.gep("i64", plan, place)) for place, name in enumerate(PLAN)}
        m, x, y = (b.load(PTR, b.gep("ptr", context, place)) for place in (1, 2, 3))
        t, block = b.op("udiv", number, words["blocks"]), b.op("urem", number, words["blocks"])
        first = b.op("mul", block, words["size"])
        self.count = b.intrinsic("smin", words["size"], b.op("sub", words["outputs"], first))
        self.k, self.stride, self.x_stride, self.y_stride = (words[w] for w in ("k", "stride", "x_stride", "y_stride"))
        self.keep = b.cmp("ne", words["keep"], 0)
        self.lines, self.x_line, self.y_line = (words[w] for w in ("lines", "x_line", "y_line"))
        self.m = move.at(m, b.op("mul", t, words["m_step"]), b.op("mul", first, words[line]) if line else first)
        self.x = move.at(x, b.op("mul", t, words["x_step"]))
        self.y = move.at(y, b.op("mul", t, words["y_step"]), b.op("mul", first, self.y_stride))


def _write(module: ModuleBuilder, name: str, scalar: str, lanes: int, masks: bool, line: str | None,
           body: Callable[[PackWriter, VectorUnit], None]) -> None:
    """A driver whose units are written by `body`."""
    b = module.function("units", [("ctx", PTR), ("begin", I64), ("end", I64)], linkage="internal")
    context, begin, end = b.params
    move = PackWriter(b, scalar, lanes, masks)

    def unit(number: Value, _: list[Value]) -> list[Value]:
        body(move, VectorUnit(b, move, context, number, line))
        return []

    loop(b, begin, end, 1, unit)
    b.ret()
    write_run(module, name, "units")


# --- Rows by x --------------------------------------------------------------------------------


def write_dot(module: ModuleBuilder, scalar: str, lanes: int, masks: bool) -> None:
    """Write `gemm_dot`."""
    def unit(move: PackWriter, u: VectorUnit) -> None:
        b = move.b
        whole = b.op("and", u.count, i64(-_DOT_ROWS))
        for start, stop, rows in ((i64(0), whole, _DOT_ROWS), (whole, u.count, 1)):
            def some(i: Value, _: list[Value], rows: int = rows) -> list[Value]:
                def line(_: Value, carried: list[Value]) -> list[Value]:
                    x, y = carried
                    _dots(move, u, i, rows, x, y)
                    return [move.at(x, u.x_line), move.at(y, u.y_line)]

                loop(b, 0, u.lines, 1, line, [u.x, u.y], sure=True)
                return []

            loop(b, start, stop, rows, some)

    _write(module, DOT, scalar, lanes, masks, "stride", unit)


def _dots(move: PackWriter, u: VectorUnit, i: Value, rows: int, x: Value, y: Value) -> None:
    """The results i, i + 1, ..., i + rows - 1 for one x."""
    b, width = move.b, move.width
    starts = [move.at(u.m, b.op("mul", b.op("add", i, r), u.stride)) for r in range(rows)]
    step = width * _DOT_VECTORS
    whole = b.op("and", u.k, i64(-step))
    zero = b.const(move.vector, 0.0)

    def vectors(p: Value, sums: list[Value]) -> list[Value]:
        for v in range(_DOT_VECTORS):
            factor = b.load(move.vector, move.at(x, p, v * width))
            for r, start in enumerate(starts):
                at = r * _DOT_VECTORS + v
                sums[at] = b.intrinsic("fmuladd", b.load(move.vector, move.at(start, p, v * width)), factor, sums[at])
        return sums

    sums = loop(b, i64(0), whole, step, vectors, [zero] * (rows * _DOT_VECTORS))
    totals = [_sum(b, sums[r * _DOT_VECTORS:(r + 1) * _DOT_VECTORS]) for r in range(rows)]

    def rest(p: Value, totals: list[Value]) -> list[Value]:
        factor = b.load(move.scalar, move.at(x, p))
        return [b.intrinsic("fmuladd", b.load(move.scalar, move.at(start, p)), factor, total)
                for start, total in zip(starts, totals, strict=True)]

    totals = loop(b, whole, u.k, 1, rest, totals)
    for r, total in enumerate(totals):
        at = move.at(y, b.op("mul", b.op("add", i, r), u.y_stride))

        def add(at: Value = at, total: Value = total) -> None:
            b.store(b.op("fadd", b.load(move.scalar, at), total), at)

        def put(at: Value = at, total: Value = total) -> None:
            b.store(total, at)

        when(b, u.keep, add, put)


def _sum(b: Builder, vectors: list[Value]) -> Value:
    """All lanes of all vectors, in pairs."""
    while len(vectors) > 1:
        vectors = [b.op("fadd", x, y) for x, y in zip(vectors[::2], vectors[1::2], strict=True)]
    total = vectors[0]
    while total.type.width > 2:
        half = total.type.width // 2
        low, high = (b.shuffle(total, b.undef(total.type), range(start, start + half)) for start in (0, half))
        total = b.op("fadd", low, high)
    return b.op("fadd", b.extract(total, 0), b.extract(total, 1))


# --- Rows added to y --------------------------------------------------------------------------


def write_along(module: ModuleBuilder, scalar: str, lanes: int, masks: bool) -> None:
    """Write `gemm_along`; y is contiguous."""
    def unit(move: PackWriter, u: VectorUnit) -> None:
        b = move.b

        def clear(j: Value, type: Type, mask: Value | None) -> None:
            move.store(b.const(type, 0.0), move.at(u.y, j), mask)

        when(b, b.op("xor", u.keep, b.const(u.keep.type, 1)), lambda: move.lanes(u.count, clear))
        whole = b.op("and", u.k, i64(-_ALONG_ROWS))
        for start, stop, rows in ((i64(0), whole, _ALONG_ROWS), (whole, u.k, 1)):
            def some(p: Value, _: list[Value], rows: int = rows) -> list[Value]:
                _add_rows(move, u, p, rows)
                return []

            loop(b, start, stop, rows, some)

    _write(module, ALONG, scalar, lanes, masks, None, unit)


def _add_rows(move: PackWriter, u: VectorUnit, p: Value, rows: int) -> None:
    """Rows p, p + 1, ..., p + rows - 1 of M by their elements of x, to y."""
    b = move.b
    places = [b.op("add", p, r) for r in range(rows)]
    starts = [move.at(u.m, b.op("mul", place, u.stride)) for place in places]
    factors = [b.load(move.scalar, move.at(u.x, b.op("mul", place, u.x_stride))) for place in places]
    wide = [b.splat(x, move.width) for x in factors]

    def add(j: Value, type: Type, mask: Value | None) -> None:
        at = move.at(u.y, j)
        total = move.load(type, at, mask)
        for start, x, factor in zip(starts, wide, factors, strict=True):
            row = move.load(type, move.at(start, j), mask)
            total = b.intrinsic("fmuladd", row, x if type is move.vector else b.splat(factor, type.width), total)
        move.store(total, at, mask)

    move.lanes(u.count, add)
