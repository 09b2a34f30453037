"""The drivers of convolutions: products of a matrix and windows, which are packed as they are needed.

    conv_rows      C[r, o] = sum of windows[r, t] * B[t, o]: windows packed a tile of rows at a time
    conv_columns   C[o, r] = sum of A[o, t] * windows[t, r]: windows packed a panel of columns at a time

A unit of work is a block of C, which is summed in scratch memory, block after block of terms in order, by the register
kernels of `products.kernel`, and then written to its place element by element or run by run. So every element is summed
in the same order whatever the number of threads.

The idea is that of Chetlur et al., "cuDNN: Efficient Primitives for Deep Learning" (2014): the matrix of windows never
exists as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from anima.compiler.ir.assembly import Builder, ModuleBuilder, Type, Value
from anima.compiler.products.blocking import DEPTH_BYTES, MOST_ROWS, MOST_VECTORS
from anima.compiler.products.driver import Planned, write_run
from anima.compiler.products.kernel import I64, PTR, PackWriter, i64, loop, when
from anima.compiler.products.windows import AT, ENTRY, LENGTH, ODOMETER, OUT, PACK, Windows, X, word, write_table

ROWS, COLUMNS = "conv_rows", "conv_columns"
CONTEXT = ("plan", "x", "w", "out", "high", "low", "high_edge", "low_edge", "pack_matrix")
_NUMBERS = (
    "size0", "size1", "size2",    # of the array, by coordinate
    "positions", "outputs",       # rows of windows, columns of the matrix
    "runs", "length",             # terms: how many runs of how many elements
    "run_block", "length_block",  # of which so many make a block
    "window_block",               # rows of windows in a unit
    "windows", "blocks",          # units by windows, and by columns of the matrix
    "output_block",               # columns of the matrix in a unit
    "height", "low_height", "first",  # of tiles: so many are `height` high, the others `low_height`
    "width", "edge",              # of panels, the last one perhaps narrower
    "ld",                         # of C in scratch memory
    "term", "output",             # steps in the matrix: of a term, of an output
    "stride", "step",             # of elements of a run: in memory, and of their last coordinate
    "row_length", "row_out",      # rows in a run, and their distance in the result (columns)
    "out_output",                 # distance of outputs in the result
    "x_group", "w_group", "out_group", "copied")
PLAN = _NUMBERS + tuple(f"positions{d}" for d in range(ODOMETER)) + tuple(f"terms{d}" for d in range(ODOMETER))
SUM_BYTES = 1 << 17    # of a block of C
MOST_ENTRIES = 256     # of a table
MOST_DEPTH = 256       # terms in a block
_ROW = Type("i64", ENTRY)


def write_units(module: ModuleBuilder, name: str, rooms: Mapping[str, int], write: Callable[[Builder], None]) -> None:
    """Write the driver `name` of the units that `write` writes: `unit(ctx, number, *rooms)`, with scratch memory of so
    many bytes."""
    b = module.function("units", [("ctx", PTR), ("begin", I64), ("end", I64)], linkage="internal")
    context, begin, end = b.params
    places = [b.alloca(Type("i8"), n) for n in rooms.values()]

    def unit(number: Value, _: list[Value]) -> list[Value]:
        b.call("unit", [context, number, *places])
        return []

    loop(b, begin, end, 1, unit)
    b.ret()
    write(module.function("unit", [("ctx", PTR), ("number", I64), *((room, PTR) for room in rooms)],
                          linkage="internal", attributes="noinline"))
    write_run(module, name, "units")


def write_driver(module: ModuleBuilder, name: str, scalar: str, lanes: int, masks: bool) -> None:
    """Write `void conv_rows(ptr pool, ptr ctx, i64 units, i64 grain)`, or `conv_columns`, and what it calls."""
    write_table(module)
    size = Type(scalar).bits // 8
    pack = [PACK] if name == COLUMNS else [PACK, PACK]
    for place, params in enumerate(pack):
        function = module.function(("pack", "gather")[place], params, linkage="internal", attributes="noinline")
        windows = Windows(function, scalar, lanes, masks)
        if name == COLUMNS:
            windows.pack_columns()
        else:
            windows.pack_rows(gathered=bool(place))
    wide = max(DEPTH_BYTES.values()) * MOST_VECTORS * lanes + lanes * size
    tall = MOST_ROWS * (max(DEPTH_BYTES.values()) + 2 * lanes * size)
    rooms = {"sums": SUM_BYTES, "wide": wide, "tall": tall, "rows": MOST_ENTRIES * ENTRY * 8,
             "terms": MOST_DEPTH * ENTRY * 8, "counts": MOST_ENTRIES * 8}
    kind = RowUnit if name == ROWS else ColumnUnit
    write_units(module, name, rooms, lambda b: kind(b, PackWriter(b, scalar, lanes, masks)).write())


class WindowUnit(Planned):
    """Writes `unit`: one block of C, some windows by some outputs."""

    addresses = CONTEXT

    def __init__(self, b: Builder, move: PackWriter) -> None:
        self.b, self.move = b, move
        self.context, number = b.params[:2]
        self.rooms()
        self.plan = b.load(PTR, self.context)
        windows, blocks = self.get("windows"), self.get("blocks")
        self.window, rest = b.op("urem", number, windows), b.op("udiv", number, windows)
        block, group = b.op("urem", rest, blocks), b.op("udiv", rest, blocks)
        self.output0 = self.mul(block, self.get("output_block"))
        self.outputs = b.intrinsic("smin", self.get("output_block"), b.op("sub", self.get("outputs"), self.output0))
        self.window_range()
        self.x = move.at(self.address("x"), self.mul(group, self.get("x_group")))
        self.w = move.at(self.address("w"), self.mul(group, self.get("w_group")),
                         self.mul(self.output0, self.get("output")))
        self.out = move.at(self.address("out"), self.mul(group, self.get("out_group")),
                           self.mul(self.output0, self.get("out_output")))

    def rooms(self) -> None:
        """Name the function's scratch memory."""
        raise NotImplementedError

    def window_range(self) -> None:
        """The first of the unit's windows, and `count`."""
        raise NotImplementedError

    def table(self, odometer: str, first: Value, count: Value, to: Value) -> None:
        self.b.call("table", [self.part(odometer), first, count, to])

    def panels(self, columns: Value, body: object) -> None:
        """`body(first, columns, width, is narrow)` for each panel of columns."""
        b = self.b
        width, edge = self.get("width"), self.get("edge")

        def panel(number: Value, _: list[Value]) -> list[Value]:
            first = self.mul(number, width)
            left = b.op("sub", columns, first)
            narrow = b.cmp("sle", left, edge)
            body(number, first, b.intrinsic("smin", left, width), b.select(narrow, edge, width),  # type: ignore[operator]
                 narrow)
            return []

        loop(b, 0, self.pieces(columns, width), 1, panel, sure=True)

    def kernel(self, low: Value, narrow: Value) -> Value:
        """The register kernel for a tile."""
        b = self.b
        place = b.op("add", b.cast("zext", low, I64), b.op("shl", b.cast("zext", narrow, I64), i64(1)))
        return b.load(PTR, b.gep("ptr", b.gep("ptr", self.context, CONTEXT.index("high")), place))

    def copy_run(self, target: Value, source: Value, count: Value, step: Value) -> None:
        """`count` results, `step` apart."""
        b, move = self.b, self.move

        def apart() -> None:
            def one(n: Value, _: list[Value]) -> list[Value]:
                b.store(b.load(move.scalar, move.at(source, n)), move.at(target, self.mul(n, step)))
                return []

            loop(b, 0, count, 1, one)

        when(b, b.cmp("eq", step, 1), lambda: move.copy(target, source, count), apart)


class PackedUnit(WindowUnit):
    """A unit that packs windows."""

    numbers = PLAN

    def rooms(self) -> None:
        self.sums, self.wide, self.tall, self.rows, self.terms, self.counts = self.b.params[2:]

    def window_range(self) -> None:
        b = self.b
        self.row0 = self.mul(self.window, self.get("window_block"))
        self.count = b.intrinsic("smin", self.get("window_block"), b.op("sub", self.get("positions"), self.row0))

    def pack(self, name: str, to: Value, rows: Value, count: Value, runs: Value, begin: Value, end: Value,
             ld: Value) -> None:
        """Pack windows: see `windows`."""
        self.b.call(name, [to, self.x, rows, count, self.terms, runs, begin, end, ld, self.part("size0"),
                           self.get("stride"), self.get("step")])

    def deep(self) -> None:
        """Add block after block of terms to the sums."""
        b = self.b
        runs, length = self.get("runs"), self.get("length")

        def outer(number: Value, _: list[Value]) -> list[Value]:
            first = self.mul(number, self.get("run_block"))
            some = b.intrinsic("smin", self.get("run_block"), b.op("sub", runs, first))
            self.table("terms0", first, some, self.terms)

            def inner(piece: Value, _: list[Value]) -> list[Value]:
                begin = self.mul(piece, self.get("length_block"))
                end = b.intrinsic("smin", b.op("add", begin, self.get("length_block")), length)
                depth = self.mul(some, b.op("sub", end, begin))
                place = b.op("add", self.mul(first, length), begin)
                source = self.move.at(self.w, self.mul(place, self.get("term")))
                self.block(some, begin, end, depth, source, b.cmp("sgt", place, 0))
                return []

            loop(b, 0, self.pieces(length, self.get("length_block")), 1, inner, sure=True)
            return []

        loop(b, 0, self.pieces(runs, self.get("run_block")), 1, outer, sure=True)

    def block(self, runs: Value, begin: Value, end: Value, depth: Value, source: Value, later: Value) -> None:
        """One block of terms; `later`: not the first one."""
        raise NotImplementedError


class RowUnit(PackedUnit):
    """Windows are rows: tiles of them by panels of the matrix."""

    def write(self) -> None:
        self.table("positions0", self.row0, self.count, self.rows)
        self.deep()
        self._finish()
        self.b.ret()

    def block(self, runs: Value, begin: Value, end: Value, depth: Value, source: Value, later: Value) -> None:
        b, move = self.b, self.move
        height, term = self.get("height"), self.get("term")

        def edge(number: Value, first: Value, columns: Value, width: Value, narrow: Value) -> None:
            def pack() -> None:
                b.call(self.address("pack_matrix"), [self.wide, move.at(source, first), term, depth, columns, width])

            when(b, b.cmp("ne", columns, width), pack)

        self.panels(self.outputs, edge)
        ld = b.op("add", depth, i64(2 * move.width))
        plain = b.cmp("eq", self.get("stride"), 1)

        def tile(number: Value, _: list[Value]) -> list[Value]:
            top = self.mul(number, height)
            rows = b.intrinsic("smin", height, b.op("sub", self.count, top))
            entries = b.gep(_ROW, self.rows, top)
            when(b, plain, lambda: self.pack("pack", self.tall, entries, rows, runs, begin, end, ld),
                 lambda: self.pack("gather", self.tall, entries, rows, runs, begin, end, ld))
            sums = move.at(self.sums, self.mul(top, self.get("ld")))

            def panel(_: Value, first: Value, columns: Value, width: Value, narrow: Value) -> None:
                broken = b.cmp("ne", columns, width)
                matrix = b.select(broken, self.wide, move.at(source, first))
                step = b.select(broken, width, term)
                b.call(self.kernel(b.const(Type("i1"), 0), narrow),
                       [self.tall, ld, i64(1), matrix, step, move.at(sums, first), self.get("ld"), depth, later])

            self.panels(self.outputs, panel)
            return []

        loop(b, 0, self.pieces(self.count, height), 1, tile, sure=True)

    def _finish(self) -> None:
        b, move = self.b, self.move

        def row(r: Value, _: list[Value]) -> list[Value]:
            target = move.at(self.out, word(b, b.gep(_ROW, self.rows, r), OUT))
            source = move.at(self.sums, self.mul(r, self.get("ld")))
            self.copy_run(target, source, self.outputs, self.get("out_output"))
            return []

        loop(b, 0, self.count, 1, row, sure=True)


class ColumnUnit(PackedUnit):
    """Windows are columns: panels of them by tiles of the matrix."""

    def write(self) -> None:
        self.panels(self.count, self._runs)
        self.deep()
        self._finish()
        self.b.ret()

    def _entries(self, first: Value) -> Value:
        """The table of the runs of a panel: it has as many entries as the panel could have runs."""
        return self.b.gep(_ROW, self.rows, first)

    def _runs(self, number: Value, first: Value, columns: Value, width: Value, narrow: Value) -> None:
        """Enumerate the runs of rows that are a panel's columns."""
        b = self.b
        length = self.get("row_length")
        row = b.op("add", self.row0, first)
        outer, skipped = b.op("udiv", row, length), b.op("urem", row, length)
        count = self.pieces(b.op("add", skipped, columns), length)
        entries = self._entries(first)
        self.table("positions0", outer, count, entries)
        b.store(count, b.gep("i64", self.counts, number))

        def run(n: Value, carried: list[Value]) -> list[Value]:
            at, skipped = carried
            entry = b.gep(_ROW, entries, n)
            length_ = b.intrinsic("smin", b.op("sub", length, skipped), b.op("sub", columns, at))
            for place, step in ((X, "stride"), (OUT, "row_out"), (4, "step")):
                b.store(b.op("add", word(b, entry, place), self.mul(skipped, self.get(step))),
                        b.gep("i64", entry, place))
            b.store(at, b.gep("i64", entry, AT))
            b.store(length_, b.gep("i64", entry, LENGTH))
            return [b.op("add", at, length_), i64(0)]

        loop(b, 0, count, 1, run, [i64(0), skipped], sure=True)

    def block(self, runs: Value, begin: Value, end: Value, depth: Value, source: Value, later: Value) -> None:
        b, move = self.b, self.move
        output, term = self.get("output"), self.get("term")

        def panel(number: Value, first: Value, columns: Value, width: Value, narrow: Value) -> None:
            count = b.load(I64, b.gep("i64", self.counts, number))
            self.pack("pack", self.wide, self._entries(first), count, runs, begin, end, width)

            def tile(number: Value, _: list[Value]) -> list[Value]:
                top, height, low = self._tile(number)
                rows = b.intrinsic("smin", height, b.op("sub", self.outputs, top))
                place = move.at(source, self.mul(top, output))
                copied = b.op("or", b.cmp("ne", rows, height), b.cmp("ne", self.get("copied"), 0))
                by_rows = b.cmp("eq", term, 1)
                ld = b.select(by_rows, b.op("add", depth, i64(move.width)), i64(MOST_ROWS))

                def copy() -> None:
                    b.call(self.address("pack_matrix"), [self.tall, place, output, term, rows, depth, ld])

                when(b, copied, copy)
                matrix = [b.select(copied, self.tall, place), b.select(copied, b.select(by_rows, ld, i64(1)), output),
                          b.select(copied, b.select(by_rows, i64(1), ld), term)]
                sums = move.at(self.sums, self.mul(top, self.get("ld")), first)
                b.call(self.kernel(low, narrow), [*matrix, self.wide, width, sums, self.get("ld"), depth, later])
                return []

            loop(b, 0, self._tiles(), 1, tile, sure=True)

        self.panels(self.count, panel)

    def _tiles(self) -> Value:
        """How many tiles the outputs are."""
        b = self.b
        high = self.mul(self.get("first"), self.get("height"))
        rest = b.intrinsic("smax", b.op("sub", self.outputs, high), i64(0))
        first = b.intrinsic("smin", self.get("first"), self.pieces(self.outputs, self.get("height")))
        return b.op("add", first, self.pieces(rest, self.get("low_height")))

    def _tile(self, number: Value) -> tuple[Value, Value, Value]:
        """The first row of a tile, its height, and whether it is one of the lower ones."""
        b = self.b
        first, height, lower = self.get("first"), self.get("height"), self.get("low_height")
        low = b.cmp("sge", number, first)
        before = b.intrinsic("smin", number, first)
        top = b.op("add", self.mul(before, height), self.mul(b.op("sub", number, before), lower))
        return top, b.select(low, lower, height), low

    def _finish(self) -> None:
        b, move = self.b, self.move

        def output(o: Value, _: list[Value]) -> list[Value]:
            source = move.at(self.sums, self.mul(o, self.get("ld")))
            target = move.at(self.out, self.mul(o, self.get("out_output")))

            def panel(number: Value, first: Value, columns: Value, width: Value, narrow: Value) -> None:
                entries = self._entries(first)

                def run(n: Value, _: list[Value]) -> list[Value]:
                    entry = b.gep(_ROW, entries, n)
                    self.copy_run(move.at(target, word(b, entry, OUT)), move.at(source, first, word(b, entry, AT)),
                                  word(b, entry, LENGTH), self.get("row_out"))
                    return []

                loop(b, 0, b.load(I64, b.gep("i64", self.counts, number)), 1, run, sure=True)

            self.panels(self.count, panel)
            return []

        loop(b, 0, self.outputs, 1, output, sure=True)
