"""Sorting rows of unsigned integers, by vectors: quicksort, whose short parts a network sorts in registers.

    order(a):   pivot = median of a few;   those not above it | those above it;   each again, until 128 are left, or 64

A vector is parted by two instructions that move the lanes of a mask together. Long rows go in pieces: pieces are parted
alike, by numbers from a sample, on all threads; then the first part of each piece is put together and sorted, the
second part of each, and so on. Equal integers cannot be told apart, so the result never depends on how rows were
parted. Numbers to part by that turn out to be bad ones, time and again, give way to the middle of what is possible:
after as many steps as an integer has bits nothing is left to part.

Methods: Hoare, "Quicksort" (1962); Batcher, "Sorting networks and their applications" (1968); Frazer and McKellar,
"Samplesort" (1970).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar

from anima.compiler.emitting.interleave import interleaved
from anima.compiler.ir.assembly import Builder, ModuleBuilder, Type, Value
from anima.compiler.machine.target import Target
from anima.compiler.products.blocking import grain_of
from anima.compiler.products.driver import write_run
from anima.compiler.products.kernel import I32, I64, PTR, i64, loop, when

PIECES = 16       # of a long row; and parts of each piece
ROWS, IN_PIECES = "order_rows", "order_pieces"
_HIGH = 8         # vectors that the network sorts at once
_SAMPLE = 32      # integers of a sample for each part
_MULTIPLE = 2654435769  # of 2**32, the golden section: multiples of it lie evenly among all remainders
_STEP = 0.35      # nanoseconds in which an integer is parted
_CONTEXT = ("plan", "a", "b", "c")
_WORK = ("a", "b", "c", "n", "places", "sizes", "starts", "bounds")  # what threads know of a row in pieces
_ORDER = [("a", PTR), ("b", PTR), ("c", PTR), ("n", I64)]


class OrderText:
    """A call of `order` as its driver takes it (see `driver.Driven`)."""

    context = _CONTEXT
    operands: ClassVar = {"a": "a", "b": "b", "c": "c"}
    functions: ClassVar[dict[str, str]] = {}

    def __init__(self, call: dict[str, object], target: Target) -> None:
        n, rows = int(call["n"]), int(call["rows"])  # type: ignore[call-overload]
        self.driver = IN_PIECES if call["pieces"] else ROWS
        self.plan = [n]
        self.target, self.units = target, rows
        self.grain = 1 if call["pieces"] else grain_of(rows, _STEP * n * n.bit_length())


@cache
def order_text(name: str, dtype: str, target: Target) -> str:
    """The LLVM module of a driver."""
    module = ModuleBuilder(target.triple, 8 * target.vector_bytes, target.features)
    writer = OrderWriter(module, Type(f"i{dtype[1:]}"), target)
    writer.write_network()
    writer.write_copy()
    writer.write_part()
    writer.write_order()
    if name == ROWS:
        writer.write_rows()
    else:
        writer.write_split()
        writer.write_pieces()
    return module.text()


def exchanges(n: int) -> list[tuple[int, int]]:
    """Pairs of places, each of which gets the smaller and the larger of both, in order, until all n are sorted: Knuth,
    The Art of Computer Programming 3, 5.2.2, Algorithm M, for a power of two."""
    pairs = []
    p = n // 2
    while p:
        q, r, d = n // 2, 0, p
        while True:
            pairs += [(i, i + d) for i in range(n - d) if i & p == r]
            if q == p:
                break
            d, q, r = q - p, q // 2, p
        p //= 2
    return pairs


class OrderWriter:
    """Writes the functions that sort integers of one type."""

    def __init__(self, module: ModuleBuilder, key: Type, target: Target) -> None:
        self.module, self.key = module, key
        self.lanes = 8 * target.vector_bytes // key.bits
        self.vector = Type(key.scalar, self.lanes)
        self.short = _HIGH * self.lanes
        self.most = (1 << key.bits) - 1

    def _function(self, name: str, params: Sequence[tuple[str, Type]], result: Type | None = None) -> Builder:
        return self.module.function(name, params, result, linkage="internal", attributes="noinline")

    def _wide(self, b: Builder, number: Value) -> Value:
        """A number, at least 0, in all lanes."""
        return b.splat(number if self.key is I64 else b.cast("trunc", number, self.key), self.lanes)

    def _first(self, b: Builder, count: Value) -> Value:
        """A mask with so many lanes on, at most all of them."""
        return b.cmp("ult", b.step(self.vector), self._wide(b, count))

    def _at(self, b: Builder, pointer: Value, *places: Value) -> Value:
        for place in places:
            pointer = b.gep(self.key, pointer, place)
        return pointer

    def write_copy(self) -> None:
        """Write `void copy(ptr to, ptr from, i64 n)`."""
        b = self._function("copy", [("to", PTR), ("from", PTR), ("n", I64)])
        to, source, n = b.params
        whole = b.op("and", n, i64(-self.lanes))

        def vector(i: Value, _: list[Value]) -> list[Value]:
            b.store(b.load(self.vector, self._at(b, source, i)), self._at(b, to, i))
            return []

        loop(b, 0, whole, self.lanes, vector)
        rest = self._first(b, b.op("sub", n, whole))
        b.masked_store(b.masked_load(self.vector, self._at(b, source, whole), rest), self._at(b, to, whole), rest)
        b.ret()

    # -- short parts ----------------------------------------------------------------------------

    def write_network(self) -> None:
        """Write `void network(ptr from, ptr to, i64 n)` for n up to `short`.

        The integers are a matrix of `_HIGH` rows, vectors, of which no more columns than needed count, a power of two.
        Columns are sorted, and then merged by twos: those sorted are in the order of columns.
        """
        b = self._function("network", [("from", PTR), ("to", PTR), ("n", I64)])
        start, to, n = b.params
        needed = b.intrinsic("umax", b.op("lshr", b.op("add", n, i64(_HIGH - 1)), i64(_HIGH.bit_length() - 1)), i64(1))
        bits = b.op("sub", i64(64), b.flagged("ctlz", b.op("sub", needed, i64(1))))
        columns = b.op("shl", i64(1), bits)
        count, across, lane = self._wide(b, n), self._wide(b, columns), b.step(self.vector)
        inside, place, rows = b.cmp("ult", lane, across), lane, []
        for _ in range(_HIGH):
            there = b.op("and", inside, b.cmp("ult", place, count))
            rows.append(b.masked_load(self.vector, start, there, self.most))
            place, start = b.op("add", place, across), self._at(b, start, columns)
        for i, j in exchanges(_HIGH):
            rows[i], rows[j] = self._exchanged(b, rows[i], rows[j])
        rows = loop(b, 0, bits, 1, lambda level, rows: self._merge(b, level, rows), rows)
        for r, row in enumerate(interleaved(b, rows)):
            there = b.cmp("ult", b.step(self.vector, r * self.lanes), count)
            b.masked_store(row, b.gep(self.key, to, r * self.lanes), there)
        b.ret()

    def _exchanged(self, b: Builder, x: Value, y: Value) -> tuple[Value, Value]:
        return b.intrinsic("umin", x, y), b.intrinsic("umax", x, y)

    def _lane(self, b: Builder, x: Value, order: Value) -> Value:
        """The lanes of x in an order that is not known before."""
        return b.intrinsic(f"x86.avx512.permvar.{'si' if self.key is I32 else 'di'}.512", x, order, suffix="")

    def _merge(self, b: Builder, level: Value, rows: list[Value]) -> list[Value]:
        """Of each 2, 4, 8, ... columns, at level 0, 1, 2, ..., the first half of which is in order and the second half,
        too, put all in order.

        The second half, backwards, behind the first one falls and rises once: what is half as far apart as there are
        integers, then a quarter, ..., is exchanged.
        """
        lane, half = b.step(self.vector), self._wide(b, b.op("shl", i64(1), level))
        zero, choice = b.const(self.vector, 0), f"x86.avx512.vpermi2var.{'d' if self.key is I32 else 'q'}.512"
        backwards = b.op("sub", b.op("shl", half, 1), b.const(self.vector, 1))
        far = b.op("or", half, b.const(self.vector, self.lanes))  # the lane half as many before, of the second operand
        order = b.op("xor", lane, b.select(b.cmp("eq", b.op("and", lane, half), zero), zero, far))
        for r in range(_HIGH // 2):
            low, high = self._exchanged(b, rows[r], self._lane(b, rows[-1 - r], b.op("xor", lane, backwards)))
            rows[r], rows[-1 - r] = (b.intrinsic(choice, low, x, high, suffix="")
                                     for x in (order, b.op("xor", order, backwards)))

        def columns(k: Value, rows: list[Value]) -> list[Value]:
            apart = self._wide(b, b.op("shl", i64(1), b.op("sub", b.op("sub", level, i64(1)), k)))
            first = b.cmp("eq", b.op("and", lane, apart), zero)
            other = b.op("xor", lane, apart)
            return [b.select(first, *self._exchanged(b, x, self._lane(b, x, other))) for x in rows]

        rows = loop(b, 0, level, 1, columns, rows)
        apart = _HIGH // 2
        while apart:
            for r in range(_HIGH):
                if not r & apart:
                    rows[r], rows[r + apart] = self._exchanged(b, rows[r], rows[r + apart])
            apart //= 2
        return rows

    # -- long parts -----------------------------------------------------------------------------

    def write_part(self) -> None:
        """Write `i64 part(ptr from, ptr low, i64 n, key pivot)`: those not above the pivot go to `low`, and their
        number is the result; the others go to the front of `from`. All that is written is where all is read by then."""
        b = self._function("part", [("from", PTR), ("low", PTR), ("n", I64), ("pivot", self.key)], I64)
        source, low, n, pivot = b.params
        pivots, none = b.splat(pivot, self.lanes), b.undef(self.vector)

        def number(mask: Value) -> Value:
            bits = b.cast("bitcast", mask, Type(f"i{self.lanes}"))
            return b.cast("zext", b.intrinsic("ctpop", bits), I64)

        def together(x: Value, mask: Value) -> Value:
            return b.intrinsic("experimental.vector.compress", x, mask, none)

        def vector(i: Value, carried: list[Value]) -> list[Value]:
            taken = carried[0]
            x = b.load(self.vector, self._at(b, source, i))
            mask = b.cmp("ule", x, pivots)
            b.store(together(x, mask), self._at(b, low, taken))
            b.store(together(x, b.op("xor", mask, 1)), self._at(b, source, b.op("sub", i, taken)))
            return [b.op("add", taken, number(mask))]

        begin = b.op("and", n, i64(-self.lanes))
        taken, = loop(b, 0, begin, self.lanes, vector, [i64(0)])
        there = self._first(b, b.op("sub", n, begin))
        x = b.masked_load(self.vector, self._at(b, source, begin), there)
        below = b.cmp("ule", x, pivots)
        lows, highs = b.op("and", there, below), b.op("and", there, b.op("xor", below, 1))
        for mask, to in ((lows, self._at(b, low, taken)), (highs, self._at(b, source, b.op("sub", begin, taken)))):
            b.masked_store(together(x, mask), to, self._first(b, number(mask)))
        b.ret(b.op("add", taken, number(lows)))

    def _median(self, b: Builder, start: Value, n: Value) -> Value:
        """One of the middle ones: the median of three medians of three ..., of nine vectors and then of nine lanes."""
        def middle(x: Value, y: Value, z: Value) -> Value:
            low, high = self._exchanged(b, x, y)
            return b.intrinsic("umax", low, b.intrinsic("umin", high, z))

        step = b.op("lshr", b.op("sub", n, i64(self.lanes)), i64(3))
        some = []
        for _ in range(9):
            some.append(b.load(self.vector, start))
            start = self._at(b, start, step)
        x, y, z = (middle(*some[k::3]) for k in range(3))
        x = middle(x, y, z)
        for by in (self.lanes // 3, 1):
            y, z = (b.shuffle(x, x, [(j + k * by) % self.lanes for j in range(self.lanes)]) for k in (1, 2))
            x = middle(x, y, z)
        return b.extract(x, 0)

    def write_order(self) -> None:
        """Write `void order(ptr a, ptr b, ptr c, i64 n, key least, key most, i64 steps)`: c is what is in a, sorted.

        All of a is from `least` to `most`; it is lost, and so is b, which is as long. After that many steps it is the
        middle of what is possible by which a is parted.
        """
        b = self._function("order", [*_ORDER, ("least", self.key), ("most", self.key), ("steps", I64)])
        a, spare, to, n, least, most, steps = b.params

        def part() -> None:
            half = b.op("add", least, b.op("lshr", b.op("sub", most, least), 1))
            before, guess, known = b.block, b.label("guess"), b.label("pivot")
            b.branch_if(b.cmp("sgt", steps, 0), guess, known)
            b.place(guess)
            median = self._median(b, a, n)
            b.branch(known)
            b.place(known)
            found = b.phi(self.key, (half, before), (median, guess))
            pivot, less = b.intrinsic("umin", found, b.op("sub", most, 1)), b.op("sub", steps, 1)
            low, high = self._parted(b, a, spare, n, pivot)
            b.call("order", [spare, self._at(b, a, high), to, low, least, pivot, less])
            b.call("order", [a, *(self._at(b, x, low) for x in (spare, to)), high, b.op("add", pivot, 1), most, less])

        def alike() -> None:
            b.call("copy", [to, a, n])

        def short() -> None:
            b.call("network", [a, to, n])

        when(b, b.cmp("sle", n, self.short), short, lambda: when(b, b.cmp("eq", least, most), alike, part))
        b.ret()

    def _parted(self, b: Builder, a: Value, spare: Value, n: Value, pivot: Value) -> tuple[Value, Value]:
        """Part a, and how many are low, at the beginning of `spare`, and high, at that of a."""
        low = b.call("part", [a, spare, n, pivot], I64)
        assert low is not None
        return low, b.op("sub", n, low)

    def _order(self, b: Builder, arrays: Sequence[Value], n: Value, least: Value | None = None,
               most: Value | None = None) -> None:
        """Sort, with twice as many steps as a row takes whose parts are halves."""
        steps = b.op("sub", i64(2 * 64), b.op("mul", b.flagged("ctlz", n), i64(2)))
        b.call("order", [*arrays, n, least or b.const(self.key, 0), most or b.const(self.key, self.most), steps])

    def write_rows(self) -> None:
        """Write `void order_rows(ptr pool, ptr ctx, i64 units, i64 grain)`: a unit is a row."""
        b = self._function("units", [("ctx", PTR), ("begin", I64), ("end", I64)])
        context, begin, end = b.params
        n = b.load(I64, b.load(PTR, context))
        arrays = [b.load(PTR, b.gep("ptr", context, place)) for place in (1, 2, 3)]

        def row(number: Value, _: list[Value]) -> list[Value]:
            first = b.op("mul", number, n)
            self._order(b, [self._at(b, x, first) for x in arrays], n)
            return []

        loop(b, begin, end, 1, row)
        b.ret()
        write_run(self.module, ROWS, "units")

    # -- rows in pieces -------------------------------------------------------------------------

    def write_split(self) -> None:
        """Write `void split(ptr a, ptr b, i64 n, ptr bounds, ptr places, ptr sizes, i64 first, i64 last)`: parts from
        `first` to `last` of a piece. Each is left somewhere in a or b."""
        b = self._function("split", [("a", PTR), ("b", PTR), ("n", I64), ("bounds", PTR), ("places", PTR),
                                     ("sizes", PTR), ("first", I64), ("last", I64)])
        a, spare, n, bounds, places, sizes, first, last = b.params
        middle = b.op("lshr", b.op("add", first, last), 1)

        def one() -> None:
            b.store(a, b.gep("ptr", places, first))
            b.store(n, b.gep("i64", sizes, first))

        def more() -> None:
            low, high = self._parted(b, a, spare, n, b.load(self.key, self._at(b, bounds, middle)))
            b.call("split", [spare, self._at(b, a, high), low, bounds, places, sizes, first, middle])
            b.call("split", [a, self._at(b, spare, low), high, bounds, places, sizes, middle, last])

        when(b, b.cmp("eq", middle, first), one, more)
        b.ret()

    def write_pieces(self) -> None:
        """Write `void order_pieces(ptr pool, ptr ctx, i64 units, i64 grain)`: units are rows, one after the other."""
        for name, write in (("pieces", self._piece), ("gathered", self._gather), ("parts", self._sort_part)):
            b = self._function(name, [("work", PTR), ("begin", I64), ("end", I64)])
            work, begin, end = b.params
            kinds = dict.fromkeys(_WORK, PTR) | {"n": I64}
            words = [b.load(kinds[word], b.gep("ptr", work, place)) for place, word in enumerate(_WORK)]

            def unit(number: Value, _: list[Value], b: Builder = b, write: Any = write,
                     words: Sequence[Value] = words) -> list[Value]:
                write(b, number, *words)
                return []

            loop(b, begin, end, 1, unit)
            b.ret()
            write_run(self.module, f"run_{name}", name)
        b = self.module.function(IN_PIECES, [("pool", PTR), ("ctx", PTR), ("units", I64), ("grain", I64)])
        pool, context, rows, grain = b.params
        n = b.load(I64, b.load(PTR, context))
        arrays = [b.load(PTR, b.gep("ptr", context, place)) for place in (1, 2, 3)]
        starts, bounds = b.alloca(I64, PIECES + 1), b.alloca(self.key, PIECES + 1)
        work, sizes = b.alloca(PTR, len(_WORK)), b.alloca(I64, PIECES * PIECES)
        tables = [n, b.alloca(PTR, PIECES * PIECES), sizes, starts, bounds]
        for k in (0, PIECES):  # one more than the first is 0
            b.store(b.const(self.key, self.most), b.gep(self.key, bounds, k))

        def row(number: Value, _: list[Value]) -> list[Value]:
            first = b.op("mul", number, n)
            here = [self._at(b, x, first) for x in arrays]
            for place, word in enumerate([*here, *tables]):
                b.store(word, b.gep("ptr", work, place))
            self._sample(b, here[0], here[1], n, bounds)
            b.call("run_pieces", [pool, work, i64(PIECES), grain])
            self._add_up(b, sizes, starts)
            for name in ("gathered", "parts"):
                b.call(f"run_{name}", [pool, work, i64(PIECES), grain])
            return []

        loop(b, 0, rows, 1, row)
        b.ret()

    def _sample(self, b: Builder, a: Value, spare: Value, n: Value, bounds: Value) -> None:
        """Between the bounds that are known, those that cut a sample into equal parts."""
        size = PIECES * _SAMPLE

        def take(i: Value, _: list[Value]) -> list[Value]:
            share = b.op("and", b.op("mul", i, i64(_MULTIPLE)), i64(2**32 - 1))
            place = b.op("lshr", b.op("mul", share, n), i64(32))
            b.store(b.load(self.key, self._at(b, a, place)), self._at(b, spare, i))
            return []

        loop(b, 0, size, 1, take)
        others = [self._at(b, spare, i64(k * size)) for k in (1, 2)]
        self._order(b, [spare, *others], i64(size))

        def bound(k: Value, _: list[Value]) -> list[Value]:
            found = b.load(self.key, self._at(b, others[-1], b.op("mul", k, i64(_SAMPLE))))
            b.store(found, self._at(b, bounds, k))
            return []

        loop(b, 1, PIECES, 1, bound)

    def _add_up(self, b: Builder, sizes: Value, starts: Value) -> None:
        """Where parts of a row begin, from how many of each there are in all pieces."""
        def part(k: Value, before: list[Value]) -> list[Value]:
            b.store(before[0], b.gep("i64", starts, k))

            def piece(p: Value, total: list[Value]) -> list[Value]:
                place = b.op("add", b.op("mul", p, i64(PIECES)), k)
                return [b.op("add", total[0], b.load(I64, b.gep("i64", sizes, place)))]

            return loop(b, 0, PIECES, 1, piece, before, sure=True)

        total, = loop(b, 0, PIECES, 1, part, [i64(0)], sure=True)
        b.store(total, b.gep("i64", starts, PIECES))

    def _piece(self, b: Builder, number: Value, *words: Value) -> None:
        """Part a piece."""
        a, _, spare, n, places, sizes, _, bounds = words
        size = b.op("lshr", b.op("add", n, i64(PIECES - 1)), i64(PIECES.bit_length() - 1))
        first, row = b.op("mul", number, size), b.op("mul", number, i64(PIECES))
        here = [self._at(b, x, first) for x in (a, spare)]
        count = b.intrinsic("smin", size, b.op("sub", n, first))
        tables = [bounds, b.gep("ptr", places, row), b.gep("i64", sizes, row)]
        b.call("split", [*here, count, *tables, i64(0), i64(PIECES)])

    def _gather(self, b: Builder, number: Value, *words: Value) -> None:
        """Put together one part of all pieces."""
        _, to, _, _, places, sizes, starts, _ = words

        def piece(p: Value, carried: list[Value]) -> list[Value]:
            place = b.op("add", b.op("mul", p, i64(PIECES)), number)
            count = b.load(I64, b.gep("i64", sizes, place))
            b.call("copy", [self._at(b, to, carried[0]), b.load(PTR, b.gep("ptr", places, place)), count])
            return [b.op("add", carried[0], count)]

        loop(b, 0, PIECES, 1, piece, [b.load(I64, b.gep("i64", starts, number))], sure=True)

    def _sort_part(self, b: Builder, number: Value, *words: Value) -> None:
        """Sort a part of a row."""
        spare, a, to, _, _, _, starts, bounds = words
        following = b.op("add", number, 1)
        first, end = (b.load(I64, b.gep("i64", starts, k)) for k in (number, following))
        below, most = (b.load(self.key, self._at(b, bounds, k)) for k in (number, following))
        here = [self._at(b, x, first) for x in (a, spare, to)]
        self._order(b, here, b.op("sub", end, first), b.op("add", below, 1), most)
