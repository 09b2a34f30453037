"""Moving the windows of a convolution into packed panels, and results to their places, as LLVM functions.

A window matrix has a row for each place of the output and a column for each term of its sum. What is at row r and
column t is `x[r.x + t.x]` where all coordinates `r.c + t.c` are inside of the array, else zero. Rows and columns are
enumerated by odometers: four nested counters, each with what a step of it adds to an entry.

    entry    x, out: elements from the start of the array and of the output; c0, c1, c2: coordinates
    run      entries next to each other in memory, as one: that of the first, with its place in a panel and its length
"""

from __future__ import annotations

from anima.compiler.ir.assembly import Builder, ModuleBuilder, Type, Value
from anima.compiler.products.kernel import I32, I64, PTR, PackWriter, i64, loop, when

ENTRY = 8                                   # words of an entry
X, OUT, C0, C1, C2, AT, LENGTH = range(7)   # what they are
WHEELS = 4                                  # counters of an odometer: their sizes, steps, and steps after a carry,
ODOMETER = WHEELS * (1 + 2 * ENTRY) + ENTRY  # and the first entry
_ROW = Type("i64", ENTRY)
TABLE = [("odometer", PTR), ("first", I64), ("count", I64), ("to", PTR)]
PACK = [("to", PTR), ("x", PTR), ("rows", PTR), ("count", I64), ("terms", PTR), ("runs", I64), ("begin", I64),
        ("end", I64), ("ld", I64), ("sizes", PTR), ("stride", I64), ("step", I64)]


def write_table(module: ModuleBuilder) -> None:
    """Write `table(odometer, first, count, to)`: the entries first, first + 1, ..."""
    b = module.function("table", TABLE, linkage="internal", attributes="noinline")
    odometer, first, count, to = b.params
    sizes = [b.load(I64, b.gep("i64", odometer, d)) for d in range(WHEELS)]

    def steps(kind: int) -> list[Value]:
        start = WHEELS * (1 + kind * ENTRY)
        return [b.load(_ROW, b.gep("i64", odometer, start + d * ENTRY), 8) for d in range(WHEELS)]

    counters: list[Value] = []
    rest = first
    for size in reversed(sizes):
        counters.insert(0, b.op("urem", rest, size))
        rest = b.op("udiv", rest, size)
    entry = b.load(_ROW, b.gep("i64", odometer, ODOMETER - ENTRY), 8)
    for counter, step in zip(counters, steps(0), strict=True):
        entry = b.op("add", entry, b.op("mul", step, b.splat(counter, ENTRY)))
    carries = steps(1)

    def one(n: Value, carried: list[Value]) -> list[Value]:
        entry, *counters = carried
        b.store(entry, b.gep(_ROW, to, n), 8)
        move = carries[-1]
        turns: Value | None = None
        after: list[Value] = []
        for d in reversed(range(WHEELS)):
            raised = b.op("add", counters[d], 1)
            new = raised if turns is None else b.select(turns, raised, counters[d])
            whole = b.cmp("eq", new, sizes[d])
            turns = whole if turns is None else b.op("and", turns, whole)
            after.insert(0, b.select(turns, 0, new))
            if d:
                move = b.select(turns, carries[d - 1], move)
        return [b.op("add", entry, move), *after]

    loop(b, 0, count, 1, one, [entry, *counters])
    b.ret()


def word(b: Builder, entry: Value, number: int) -> Value:
    """A word of an entry."""
    return b.load(I64, b.gep("i64", entry, number))


class Windows:
    """Writes functions that pack windows: see `PACK`.

    `pack_rows`     each row's terms next to each other, rows `ld` apart: a run is of terms, from `begin` to `end`, and
                    its last coordinate moves by one every `step` elements
    `gather_rows`   the same for terms `stride` apart in memory, each of which moves the last coordinate by `step`
    `pack_columns`  each term's rows next to each other, terms `ld` apart: a run is of rows, `stride` apart in memory,
                    each of which moves the last coordinate by `step`
    """

    def __init__(self, b: Builder, scalar: str, lanes: int, masks: bool) -> None:
        self.b = b
        self.move = PackWriter(b, scalar, lanes, masks)
        self.lanes = lanes
        self.index = b.step(Type("i32", lanes))
        params = dict(zip((name for name, _ in PACK), b.params, strict=True))
        self.to, self.x, self.rows, self.count, self.terms, self.runs, self.begin, self.end, self.ld = (
            params[n] for n in ("to", "x", "rows", "count", "terms", "runs", "begin", "end", "ld"))
        self.stride, self.step = params["stride"], params["step"]
        self.sizes = [b.load(I64, b.gep("i64", params["sizes"], d)) for d in range(3)]

    def _narrow(self, value: Value) -> Value:
        return self.b.cast("trunc", value, I32)

    def _inside(self, row: list[Value], term: list[Value]) -> tuple[Value, Value]:
        """Whether the first two coordinates are inside, and the third one."""
        b = self.b
        first, second = (b.cmp("ult", b.op("add", row[c], term[c]), self.sizes[c]) for c in (0, 1))
        return b.op("and", first, second), b.op("add", row[2], term[2])

    def _coordinates(self, entry: Value) -> list[Value]:
        return [word(self.b, entry, c) for c in (C0, C1, C2)]

    def pack_rows(self, gathered: bool) -> None:
        """Write `pack_rows`, or `gather_rows`."""
        b, move = self.b, self.move
        length = b.op("sub", self.end, self.begin)

        def row(r: Value, carried: list[Value]) -> list[Value]:
            entry = b.gep(_ROW, self.rows, r)
            place, source = self._coordinates(entry), move.at(self.x, word(b, entry, X))

            def run(u: Value, carried: list[Value]) -> list[Value]:
                term = b.gep(_ROW, self.terms, u)
                inside, at = self._inside(place, self._coordinates(term))
                (self._gather_run if gathered else self._copy_run)(
                    carried[0], move.at(source, word(b, term, X)), inside, at)
                return [move.at(carried[0], length)]

            loop(b, 0, self.runs, 1, run, carried, sure=True)
            return [move.at(carried[0], self.ld)]

        loop(b, 0, self.count, 1, row, [self.to])
        b.ret()

    def _copy_run(self, target: Value, source: Value, inside: Value, at: Value) -> None:
        """The elements of a run, zero where the last coordinate is outside."""
        b, move = self.b, self.move
        begin, end = self.begin, self.end
        low = b.op("mul", b.op("sub", i64(0), at), self.step)
        high = b.op("mul", b.op("sub", self.sizes[2], at), self.step)
        low = b.intrinsic("smin", b.intrinsic("smax", low, begin), end)
        high = b.select(inside, b.intrinsic("smax", b.intrinsic("smin", high, end), low), low)
        whole = b.op("and", b.cmp("eq", low, begin), b.cmp("eq", high, end))

        def copy() -> None:
            move.copy(target, move.at(source, begin), b.op("sub", end, begin))

        def part() -> None:
            lowest, highest = (b.splat(self._narrow(v), self.lanes) for v in (low, high))

            def some(e: Value, carried: list[Value]) -> list[Value]:
                place = b.op("add", b.splat(self._narrow(e), self.lanes), self.index)
                mask = b.op("and", b.cmp("sge", place, lowest), b.cmp("slt", place, highest))
                b.store(b.masked_load(move.vector, move.at(source, e), mask), carried[0])
                return [move.at(carried[0], self.lanes)]

            loop(b, begin, end, self.lanes, some, [target], sure=True)

        when(b, whole, copy, part)

    def _gather_run(self, target: Value, source: Value, inside: Value, at: Value) -> None:
        """The same for elements apart from each other."""
        b, move = self.b, self.move

        def some(e: Value, carried: list[Value]) -> list[Value]:
            b.store(self._lanes(source, e, self.end, at, inside, True), carried[0])
            return [move.at(carried[0], self.lanes)]

        loop(b, self.begin, self.end, self.lanes, some, [target], sure=True)

    def _lanes(self, source: Value, e: Value, end: Value, at: Value, inside: Value, gathered: bool) -> Value:
        """Elements e, e + 1, ..., before `end`, of a run whose last coordinate begins at `at`."""
        b, move, lanes = self.b, self.move, self.lanes
        index = b.op("add", b.splat(self._narrow(e), lanes), self.index)
        moved = b.op("mul", index, b.splat(self._narrow(self.step), lanes))
        coordinate = b.op("add", b.splat(self._narrow(at), lanes), moved)
        mask = b.op("and", b.cmp("ult", coordinate, b.splat(self._narrow(self.sizes[2]), lanes)),
                    b.cmp("slt", index, b.splat(self._narrow(end), lanes)))
        mask = b.op("and", mask, b.splat(inside, lanes))
        if not gathered:
            return b.masked_load(move.vector, move.at(source, e), mask)
        wide = b.cast("sext", index, Type("i64", lanes))
        places = b.gep(move.scalar, source, b.op("mul", wide, b.splat(self.stride, lanes)))
        return b.gather(move.vector, places, mask)

    def pack_columns(self) -> None:
        """Write `pack_columns`."""
        b = self.b
        one = b.cmp("eq", self.stride, 1)
        when(b, one, lambda: self._columns(False), lambda: self._columns(True))
        b.ret()

    def _columns(self, gathered: bool) -> None:
        b, move = self.b, self.move

        def term(t: Value, carried: list[Value]) -> list[Value]:
            entry = b.gep(_ROW, self.terms, t)
            place, source = self._coordinates(entry), move.at(self.x, word(b, entry, X))

            def run(r: Value, _: list[Value]) -> list[Value]:
                row = b.gep(_ROW, self.rows, r)
                inside, at = self._inside(self._coordinates(row), place)
                origin, target = move.at(source, word(b, row, X)), move.at(carried[0], word(b, row, AT))
                length = word(b, row, LENGTH)

                def some(e: Value, _: list[Value]) -> list[Value]:
                    b.store(self._lanes(origin, e, length, at, inside, gathered), move.at(target, e))
                    return []

                loop(b, 0, length, self.lanes, some, sure=True)
                return []

            loop(b, 0, self.count, 1, run, sure=True)
            return [move.at(carried[0], self.ld)]

        loop(b, 0, self.runs, 1, term, [self.to], sure=True)
