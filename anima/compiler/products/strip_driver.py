"""Drivers of convolutions whose features lie next to each other in memory.

    conv_strips    windows are rows of C: what those along a line of the output see of a line of x is one strip, which
                   is copied with its padding; windows overlap there, and none is copied twice
    conv_lines     windows are columns of C, features of one place in the kernel: lines of x are read where they are, as
                   far as they lie in the array

The first is a convolution, or the gradient of its input, the second the gradient of its kernel. Sums over stretches of
terms are done by `window_kernel`. Otherwise all is as in `window_driver`.
"""

from __future__ import annotations

from anima.compiler.ir.assembly import ModuleBuilder, Type, Value
from anima.compiler.products.kernel import I32, I64, PackWriter, i64, loop, when
from anima.compiler.products.window_driver import WindowUnit, write_units
from anima.compiler.products.window_kernel import STEP
from anima.compiler.products.windows import AT, C0, C1, C2, ENTRY, LENGTH, ODOMETER, OUT, X, word, write_table

STRIPS, LINES = "conv_strips", "conv_lines"
_NUMBERS = (
    "size0", "size1", "size2",      # of the array, by coordinate
    "tiles",                        # of windows in a line, or panels of columns at a place of the kernel
    "pieces", "window_block",       # tiles (panels) in all, and in a unit
    "windows", "blocks",            # units by windows, and by columns of the matrix
    "outputs", "output_block",      # columns of the matrix, and those in a unit
    "places",                       # windows in a line, or features
    "runs", "run_block",            # lines of x that a window sees, and those in a block
    "taps", "gap",                  # of the last dimension of space
    "features", "pixel",            # features, and distance of neighbours in a line of x
    "strip",                        # elements of a strip
    "stretches", "stretch",         # of a line: how many, of how many terms,
    "stretch_a", "stretch_w",       # and their distances in a strip and in the matrix
    "row_stride", "term_stride",    # in a strip
    "begin_x", "begin_out", "begin_at", "begin_place",  # what a window adds to the first of a tile: in x, in the
                                    # result, to the last coordinate, to its place in the strip
    "batch", "batch_out",           # windows next to each other in a place, and their distance in the result
    "height", "low_height", "first",  # of tiles: so many are `height` high, the others `low_height`
    "width", "edge",                # of panels, the last one perhaps narrower
    "ld",                           # of C in scratch memory
    "term", "output",               # steps in the matrix: of a term, of an output
    "row_out", "out_output",        # distances in the result: of windows, of outputs
    "x_group", "w_group", "out_group")
PLAN = _NUMBERS + tuple(f"positions{d}" for d in range(ODOMETER)) + tuple(f"terms{d}" for d in range(ODOMETER))
SUM_BYTES = 1 << 17      # of a block of C
STRIP_BYTES = 1 << 17    # of the strips of a unit
_SLACK = 1 << 15         # behind it, which may be read
MOST_RUNS = 128          # lines in a block
MOST_STEPS = 512         # stretches in a block
MOST_PIECES = 64         # tiles or panels in a unit
_PLACE = LENGTH + 1      # in an entry: where a tile's windows begin in a strip
_ROW = Type("i64", ENTRY)


def write_driver(module: ModuleBuilder, name: str, scalar: str, lanes: int, masks: bool) -> None:
    """Write `void conv_strips(ptr pool, ptr ctx, i64 units, i64 grain)`, or `conv_lines`, and what it calls."""
    write_table(module)
    size = Type(scalar).bits // 8
    rooms = {"sums": SUM_BYTES + _SLACK, "strips": STRIP_BYTES + 4 * lanes * size, "entries": MOST_PIECES * ENTRY * 8,
             "terms": MOST_RUNS * ENTRY * 8, "steps": MOST_STEPS * STEP * 8}
    kind = StripUnit if name == STRIPS else LineUnit
    write_units(module, name, rooms, lambda b: kind(b, PackWriter(b, scalar, lanes, masks)).write())


class PieceUnit(WindowUnit):
    """Writes `unit`: some tiles or panels of windows, by some outputs."""

    numbers = PLAN

    def write(self) -> None:
        """Write the function."""
        self.enumerate()
        self.deep()
        self.finish()
        self.b.ret()

    def rooms(self) -> None:
        self.sums, self.strips, self.entries, self.terms, self.steps = self.b.params[2:]

    def window_range(self) -> None:
        b = self.b
        self.piece0 = self.mul(self.window, self.get("window_block"))
        self.count = b.intrinsic("smin", self.get("window_block"), b.op("sub", self.get("pieces"), self.piece0))

    def enumerate(self) -> None:
        """The entries of the unit's tiles or panels; in each, AT is its first window in the line."""
        b = self.b

        def piece(n: Value, _: list[Value]) -> list[Value]:
            number = b.op("add", self.piece0, n)
            tiles = self.get("tiles")
            line, tile = b.op("udiv", number, tiles), b.op("urem", number, tiles)
            entry = b.gep(_ROW, self.entries, n)
            self.table("positions0", line, i64(1), entry)
            self.begin(entry, tile)
            return []

        loop(b, 0, self.count, 1, piece, sure=True)

    def begin(self, entry: Value, tile: Value) -> None:
        """Complete the entry of a tile or panel, which so far is that of its line."""
        raise NotImplementedError

    def put(self, entry: Value, place: int, value: Value) -> None:
        self.b.store(value, self.b.gep("i64", entry, place))

    def store_step(self, number: Value, a: Value, b_place: Value, count: Value) -> None:
        """Store a step of the kernel."""
        entry = self.b.gep("i64", self.steps, self.mul(number, i64(STEP)))
        for k, value in enumerate((a, b_place, count)):
            self.b.store(value, self.b.gep("i64", entry, k))

    def deep(self) -> None:
        """Add block after block of lines to the sums."""
        b = self.b
        runs, most = self.get("runs"), self.get("run_block")

        def block(number: Value, _: list[Value]) -> list[Value]:
            first = self.mul(number, most)
            some = b.intrinsic("smin", most, b.op("sub", runs, first))
            self.table("terms0", first, some, self.terms)
            self.add_block(some, b.cmp("sgt", number, 0))
            return []

        loop(b, 0, self.pieces(runs, most), 1, block, sure=True)

    def add_block(self, runs: Value, later: Value) -> None:
        """Add one block of lines."""
        raise NotImplementedError

    def finish(self) -> None:
        """Write the sums to their places."""
        raise NotImplementedError


class StripUnit(PieceUnit):
    """Windows are rows."""

    def begin(self, entry: Value, tile: Value) -> None:
        b = self.b
        first, high, low = self.get("first"), self.get("height"), self.get("low_height")
        late = b.cmp("sge", tile, first)
        before = b.intrinsic("smin", tile, first)
        place = b.op("add", self.mul(before, high), self.mul(b.op("sub", tile, before), low))
        for word_, step in ((X, "begin_x"), (OUT, "begin_out"), (C2, "begin_at")):
            self.put(entry, word_, b.op("add", word(b, entry, word_), self.mul(place, self.get(step))))
        self.put(entry, _PLACE, self.mul(place, self.get("begin_place")))
        height = b.select(late, low, high)
        self.put(entry, AT, b.intrinsic("smin", height, b.op("sub", self.get("places"), place)))
        self.put(entry, LENGTH, b.cast("zext", late, I64))

    def add_block(self, runs: Value, later: Value) -> None:
        b, move = self.b, self.move
        strip, pieces = self.get("strip"), self.get("stretches")

        def step(u: Value, _: list[Value]) -> list[Value]:
            place = word(b, b.gep(_ROW, self.terms, u), OUT)

            def piece(t: Value, _: list[Value]) -> list[Value]:
                self.store_step(b.op("add", self.mul(u, pieces), t),
                                b.op("add", self.mul(u, strip), self.mul(t, self.get("stretch_a"))),
                                b.op("add", place, self.mul(t, self.get("stretch_w"))), self.get("stretch"))
                return []

            loop(b, 0, pieces, 1, piece, sure=True)
            return []

        loop(b, 0, runs, 1, step, sure=True)
        count = self.mul(runs, pieces)

        room = self.mul(self.get("run_block"), strip)  # for the strips of a tile

        def copy(n: Value, carried: list[Value]) -> list[Value]:
            self._strips(b.gep(_ROW, self.entries, n), runs, carried[0])
            return [move.at(carried[0], room)]

        loop(b, 0, self.count, 1, copy, [self.strips], sure=True)

        def panel(_: Value, first: Value, columns: Value, width: Value, narrow: Value) -> None:
            def tile(n: Value, carried: list[Value]) -> list[Value]:
                entry = b.gep(_ROW, self.entries, n)
                low = b.cmp("ne", word(b, entry, LENGTH), 0)
                b.call(self.kernel(low, narrow),
                       [move.at(carried[0], word(b, entry, _PLACE)), self.get("row_stride"), self.get("term_stride"),
                        move.at(self.w, first), self.get("term"), carried[1], self.get("ld"), self.steps, count, later])
                return [move.at(carried[0], room), move.at(carried[1], self.mul(self.get("height"), self.get("ld")))]

            loop(b, 0, self.count, 1, tile, [self.strips, move.at(self.sums, first)], sure=True)

        self.panels(self.outputs, panel)

    def _strips(self, entry: Value, runs: Value, to: Value) -> None:
        """Copy what a tile sees of each line."""
        b, move = self.b, self.move
        features, pixel, strip = self.get("features"), self.get("pixel"), self.get("strip")
        source, at = move.at(self.x, word(b, entry, X)), word(b, entry, C2)
        places = [word(b, entry, c) for c in (C0, C1)]
        size = self.get("size2")
        pixels = b.op("udiv", strip, features)
        low = b.intrinsic("smin", b.intrinsic("smax", b.op("sub", i64(0), at), i64(0)), pixels)
        high = b.intrinsic("smax", b.intrinsic("smin", b.op("sub", size, at), pixels), low)
        whole = b.cmp("eq", pixel, features)

        def run(u: Value, carried: list[Value]) -> list[Value]:
            term, to = b.gep(_ROW, self.terms, u), carried[0]
            above, beside = (b.cmp("ult", b.op("add", place, word(b, term, c)), self.get(f"size{d}"))
                             for d, (place, c) in enumerate(zip(places, (C0, C1), strict=True)))
            inside = b.op("and", above, beside)
            first, last = b.select(inside, low, i64(0)), b.select(inside, high, i64(0))
            begin, end = self.mul(first, features), self.mul(last, features)
            origin = move.at(source, word(b, term, X))
            self._clear(to, begin)

            def together() -> None:
                move.copy(move.at(to, begin), move.at(origin, begin), b.op("sub", end, begin))

            def apart() -> None:
                def one(p: Value, _: list[Value]) -> list[Value]:
                    move.copy(move.at(to, self.mul(p, features)), move.at(origin, self.mul(p, pixel)), features)
                    return []

                loop(b, first, last, 1, one)

            when(b, whole, together, apart)
            self._clear(move.at(to, end), b.op("sub", strip, end))
            return [move.at(to, strip)]

        loop(b, 0, runs, 1, run, [to], sure=True)

    def _clear(self, to: Value, count: Value) -> None:
        """Zeros: `count`, and perhaps some behind them."""
        b, move = self.b, self.move

        def some(n: Value, _: list[Value]) -> list[Value]:
            b.store(b.const(move.vector, 0.0), move.at(to, n))
            return []

        loop(b, 0, count, move.width, some)

    def finish(self) -> None:
        b, move = self.b, self.move
        batch = self.get("batch")
        across = b.op("and", b.cmp("ne", self.get("out_output"), 1),
                      b.op("and", b.cmp("eq", self.get("row_out"), 1), b.cmp("eq", self.get("begin_place"), 0)))

        def tile(n: Value, _: list[Value]) -> list[Value]:
            entry = b.gep(_ROW, self.entries, n)
            target, rows = move.at(self.out, word(b, entry, OUT)), word(b, entry, AT)
            source = move.at(self.sums, self.mul(self.mul(n, self.get("height")), self.get("ld")))

            def straight() -> None:
                def row(r: Value, _: list[Value]) -> list[Value]:
                    number = b.op("add", word(b, entry, _PLACE), r)
                    place, inner = b.op("udiv", number, batch), b.op("urem", number, batch)
                    self.copy_run(move.at(target, self.mul(place, self.get("row_out")),
                                          self.mul(inner, self.get("batch_out"))),
                                  move.at(source, self.mul(r, self.get("ld"))), self.outputs, self.get("out_output"))
                    return []

                loop(b, 0, rows, 1, row, sure=True)

            when(b, across, lambda: self._turned(target, source, rows), straight)
            return []

        loop(b, 0, self.count, 1, tile, sure=True)

    def _turned(self, target: Value, source: Value, rows: Value) -> None:
        """Write a tile whose rows lie next to each other in the result: squares of it are transposed in registers."""
        b, move, lanes = self.b, self.move, self.move.width
        ld, far = self.get("ld"), self.get("out_output")
        index = b.step(Type("i32", lanes))

        def high(r: Value, _: list[Value]) -> list[Value]:
            left = b.splat(b.cast("trunc", b.op("sub", rows, r), I32), lanes)
            inside = b.cmp("slt", index, left)

            def wide(o: Value, _: list[Value]) -> list[Value]:
                place = move.at(source, self.mul(r, ld), o)
                lines = [b.load(move.vector, move.at(place, self.mul(ld, i64(k)))) for k in range(lanes)]
                for k, line in enumerate(move.transposed(lines)):
                    number = b.op("add", o, k)
                    mask = b.op("and", inside, b.splat(b.cmp("slt", number, self.outputs), lanes))
                    b.masked_store(line, move.at(target, self.mul(number, far), r), mask)
                return []

            loop(b, 0, self.outputs, lanes, wide, sure=True)
            return []

        loop(b, 0, rows, lanes, high, sure=True)


class LineUnit(PieceUnit):
    """Windows are columns: features, at one place of the kernel."""

    def begin(self, entry: Value, tile: Value) -> None:
        b = self.b
        place = self.mul(tile, self.get("width"))
        for word_, more in ((X, place), (OUT, self.mul(place, self.get("row_out")))):
            self.put(entry, word_, b.op("add", word(b, entry, word_), more))
        self.put(entry, AT, b.intrinsic("smin", self.get("width"), b.op("sub", self.get("places"), place)))

    def add_block(self, runs: Value, later: Value) -> None:
        b, move = self.b, self.move
        gap, pixel = self.get("gap"), self.get("pixel")

        def panel(n: Value, _: list[Value]) -> list[Value]:
            entry = b.gep(_ROW, self.entries, n)
            count = self._stretches(entry, runs)
            narrow = b.cmp("sle", word(b, entry, AT), self.get("edge"))
            origin = move.at(self.x, word(b, entry, X))
            sums = move.at(self.sums, self.mul(n, self.get("width")))

            def tile(number: Value, _: list[Value]) -> list[Value]:
                first, high = self.get("first"), self.get("height")
                low = b.cmp("sge", number, first)
                before = b.intrinsic("smin", number, first)
                top = b.op("add", self.mul(before, high),
                           self.mul(b.op("sub", number, before), self.get("low_height")))
                b.call(self.kernel(low, narrow),
                       [move.at(self.w, self.mul(top, self.get("output"))), self.get("output"), self.get("term"),
                        origin, self.mul(gap, pixel), move.at(sums, self.mul(top, self.get("ld"))), self.get("ld"),
                        self.steps, count, later])
                return []

            rest = b.op("sub", self.outputs, self.mul(self.get("first"), self.get("height")))
            tiles = b.op("add", self.get("first"), self.pieces(b.intrinsic("smax", rest, i64(0)),
                                                               self.get("low_height")))
            full = self.pieces(self.outputs, self.get("height"))
            loop(b, 0, b.select(b.cmp("slt", rest, 0), full, tiles), 1, tile, sure=True)
            return []

        loop(b, 0, self.count, 1, panel, sure=True)

    def _stretches(self, entry: Value, runs: Value) -> Value:
        """The stretches of lines that lie in the array, at one place of the kernel; how many there are."""
        b = self.b
        gap, size, taps = self.get("gap"), self.get("size2"), self.get("taps")
        at = word(b, entry, C2)
        places = [word(b, entry, c) for c in (C0, C1)]
        begin = self.pieces(b.intrinsic("smax", b.op("sub", i64(0), at), i64(0)), gap)
        end = b.intrinsic("smin", self.pieces(b.intrinsic("smax", b.op("sub", size, at), i64(0)), gap), taps)
        length = b.op("sub", end, begin)
        a, x = self.mul(begin, self.get("term")), self.mul(self.mul(begin, gap), self.get("pixel"))
        some = b.cmp("sgt", length, 0)

        def line(u: Value, carried: list[Value]) -> list[Value]:
            term, count = b.gep(_ROW, self.terms, u), carried[0]
            inside = some
            for d, (place, c) in enumerate(zip(places, (C0, C1), strict=True)):
                inside = b.op("and", inside, b.cmp("ult", b.op("add", place, word(b, term, c)), self.get(f"size{d}")))
            self.store_step(count, b.op("add", word(b, term, OUT), a), b.op("add", word(b, term, X), x), length)
            return [b.op("add", count, b.cast("zext", inside, I64))]

        return loop(b, 0, runs, 1, line, [i64(0)], sure=True)[0]

    def finish(self) -> None:
        b, move = self.b, self.move

        def output(o: Value, _: list[Value]) -> list[Value]:
            source = move.at(self.sums, self.mul(o, self.get("ld")))
            target = move.at(self.out, self.mul(o, self.get("out_output")))

            def panel(n: Value, _: list[Value]) -> list[Value]:
                entry = b.gep(_ROW, self.entries, n)
                self.copy_run(move.at(target, word(b, entry, OUT)), move.at(source, self.mul(n, self.get("width"))),
                              word(b, entry, AT), self.get("row_out"))
                return []

            loop(b, 0, self.count, 1, panel, sure=True)
            return []

        loop(b, 0, self.outputs, 1, output, sure=True)

