"""The inner parts of a matrix product, as LLVM functions: register kernels, packing, merging.

    kernel(a, rs, ks, b, bs, c, cs, k, add)      C[R, V*W] = A[R, k] B[k, V*W]  (+ C, if `add`, or C minus that)

A kernel keeps its tile of C, R rows of V vectors of W lanes, in registers over the whole of k; each step
loads one row of B and broadcasts one element of A for each row of C. A may have any strides; rows of B and C
are contiguous, and every row and lane is in bounds: tiles that are not whole go through buffers.

The scheme is that of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008), with
the register kernel of Van Zee and van de Geijn, "BLIS" (2015), for row-major C.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anima.compiler.ir.assembly import Builder, Type, Value
from anima.compiler.products.dots import BFLOAT, KINDS, add_dots

SCALARS = {"f32": "float", "f64": "double", **dict.fromkeys(KINDS, "i32"), BFLOAT: "float"}
I1, I32, I64, PTR = Type("i1"), Type("i32"), Type("i64"), Type("ptr")
KERNEL = [("a", PTR), ("rs", I64), ("ks", I64), ("b", PTR), ("bs", I64), ("c", PTR), ("cs", I64), ("k", I64),
          ("add", I1)]
PACK_A = [PTR, PTR, I64, I64, I64, I64, I64]
PACK_B = [PTR, PTR, I64, I64, I64, I64]
_STRIP = 16  # columns of a transposed B that are read together
_GROUP = 7   # rows addressed from one pointer: it plus 0, 1, 2, 3, 4, 5, 6 strides

Body = Callable[[Value, list[Value]], Sequence[Value]]


def i64(number: int) -> Value:
    """A constant."""
    return Value(str(number), I64)


# --- Control flow -----------------------------------------------------------------------------


def loop(b: Builder, start: Value | int, stop: Value | int, step: int, body: Body, carried: Sequence[Value] = (),
         sure: bool = False) -> list[Value]:
    """`for i in range(start, stop, step)`; the body gives the next values of what is `carried`. The last ones.

    `sure`: there is at least one iteration.
    """
    start = i64(start) if isinstance(start, int) else start
    stop = i64(stop) if isinstance(stop, int) else stop
    before, head, done = b.block, b.label("loop"), b.label("done")
    if sure:
        b.branch(head)
    else:
        b.branch_if(b.cmp("slt", start, stop), head, done)
    b.place(head)
    i = b.phi(I64, (start, before))
    phis = [b.phi(v.type, (v, before)) for v in carried]
    results = list(body(i, list(phis)))
    following = b.op("add", i, step, "nsw")
    i.add(following, b.block)
    for phi, value in zip(phis, results, strict=True):
        phi.add(value, b.block)
    latch = b.block
    b.branch_if(b.cmp("slt", following, stop), head, done)
    b.place(done)
    if sure:
        return results
    return [b.phi(v.type, (v, before), (r, latch)) for v, r in zip(carried, results, strict=True)]


def when(b: Builder, condition: Value, then: Callable[[], None], orelse: Callable[[], None] | None = None) -> None:
    """`if condition: then() else: orelse()`."""
    yes, no, done = b.label("then"), b.label("else"), b.label("endif")
    b.branch_if(condition, yes, no if orelse else done)
    b.place(yes)
    then()
    b.branch(done)
    if orelse:
        b.place(no)
        orelse()
        b.branch(done)
    b.place(done)


def times(b: Builder, value: Value, number: int) -> Value:
    """`value * number`, by a shift where that does."""
    if number & (number - 1) == 0:
        return b.op("shl", value, i64(number.bit_length() - 1), "nsw") if number > 1 else value
    return b.op("mul", value, i64(number), "nsw")


# --- The register kernel ----------------------------------------------------------------------


class Rows:
    """Addresses of rows `stride` bytes apart, of which few take registers: some are pointers, `bases`; the others are
    one of those plus 1, 2, ..., 6 strides, of which shifts are part of the machine's addressing."""

    def __init__(self, b: Builder, stride: Value, rows: int) -> None:
        self.b = b
        self.firsts = [times(b, stride, r) if r else None for r in range(0, rows, _GROUP)]
        three = times(b, stride, 3) if rows > 3 else stride
        five = times(b, stride, 5) if rows > 5 else stride
        self.offsets = [(stride, 1), (stride, 2), (three, 1), (stride, 4), (five, 1), (three, 2)]

    def bases(self, pointer: Value) -> list[Value]:
        """The pointers."""
        return [pointer if offset is None else self.b.gep("i8", pointer, offset) for offset in self.firsts]

    def at(self, bases: Sequence[Value], row: int) -> Value:
        """The address of a row."""
        group, number = divmod(row, _GROUP)
        if number == 0:
            return bases[group]
        offset, scale = self.offsets[number - 1]
        return self.b.gep("i8", bases[group], times(self.b, offset, scale))


class Tile:
    """A tile of C in registers: `rows` rows of `vectors` vectors."""

    def __init__(self, b: Builder, dtype: str, vector: Type, rows: int, vectors: int) -> None:
        self.b, self.vector, self.rows, self.vectors = b, vector, rows, vectors
        self.bytes = dtype if dtype in KINDS else ""  # the kind of a product of bytes
        self.size, self.width = vector.bits // 8, vector.width
        self.zeros = [b.const(vector, 0 if self.bytes else 0.0)] * (rows * vectors)

    def add(self, rows: Rows, bases: Sequence[Value], ks: Value, first_row: Value, bs: Value, k: Value,
            sums: Sequence[Value], sure: bool = True) -> list[Value]:
        """The sums plus the products of k columns of A, whose first is at `bases`, by rows of B; `sure`: k is at least
        1."""
        b, vector = self.b, self.vector

        def step(_: Value, carried: list[Value]) -> list[Value]:
            pointers, row, sums = carried[:len(bases)], carried[len(bases)], carried[len(bases) + 1:]
            lanes = [b.load(vector, self.lanes(row, v)) for v in range(self.vectors)]
            for r in range(self.rows):
                x = b.splat(b.load(vector.element, rows.at(pointers, r)), self.width)
                for v in range(self.vectors):
                    total = sums[r * self.vectors + v]
                    sums[r * self.vectors + v] = (add_dots(b, self.bytes, total, x, lanes[v]) if self.bytes
                                                  else b.intrinsic("fmuladd", x, lanes[v], total))
            return [*(b.gep("i8", p, ks) for p in pointers), b.gep("i8", row, bs), *sums]

        return loop(b, 0, k, 1, step, [*bases, first_row, *sums], sure)[len(bases) + 1:]

    def finish(self, c: Value, cs: Value, sums: Sequence[Value], add: Value, minus: bool = False) -> None:
        """Store the sums, or add them to what is in C (`minus`: subtract them from it)."""
        op = ("sub" if minus else "add") if self.bytes else ("fsub" if minus else "fadd")
        when(self.b, add, lambda: self._store(c, cs, sums, op), lambda: self._store(c, cs, sums, None))
        self.b.ret()

    def _store(self, c: Value, cs: Value, sums: Sequence[Value], op: str | None) -> None:
        b, rows = self.b, Rows(self.b, cs, self.rows)
        starts = rows.bases(c)
        for r in range(self.rows):
            row = rows.at(starts, r)
            for v in range(self.vectors):
                at, total = self.lanes(row, v), sums[r * self.vectors + v]
                b.store(b.op(op, b.load(self.vector, at), total) if op else total, at)

    def lanes(self, row: Value, v: int) -> Value:
        """The address of a vector of a row of B or C."""
        return self.b.gep("i8", row, v * self.width * self.size) if v else row


def write_kernel(b: Builder, dtype: str, vector: Type, rows: int, vectors: int, minus: bool) -> None:
    """Write the kernel for a tile of `rows` rows of `vectors` vectors; k is at least 1. `minus`: C - A B if `add`."""
    tile = Tile(b, dtype, vector, rows, vectors)
    a, rs, ks, first_row, bs, c, cs, k, add = b.params
    rs, ks, bs, cs = (times(b, stride, tile.size) for stride in (rs, ks, bs, cs))
    a_rows = Rows(b, rs, rows)
    tile.finish(c, cs, tile.add(a_rows, a_rows.bases(a), ks, first_row, bs, k, tile.zeros), add, minus)


# --- Packing ----------------------------------------------------------------------------------


class PackWriter:
    """Writes the functions that move data for products of one scalar type, in vectors of `width` lanes."""

    def __init__(self, b: Builder, scalar: str, width: int, masks: bool) -> None:
        self.b = b
        self.vector = Type(scalar, width)
        self.scalar = Type(scalar)
        self.width = width
        self.masks = masks  # see `Target.masks`

    def at(self, pointer: Value, *indices: Value | int) -> Value:
        """The address of the element `sum(indices)` after `pointer`."""
        for index in indices:
            if index != 0:
                pointer = self.b.gep(self.scalar, pointer, index)
        return pointer

    def lanes(self, count: Value, body: Callable[[Value, Type, Value | None], None]) -> None:
        """`body(j, type, mask)` over 0 <= j < count in vectors, and what is left masked or in shorter vectors."""
        b, width = self.b, self.width
        whole = b.op("and", count, i64(-width))

        def vectors(j: Value, _: list[Value]) -> list[Value]:
            body(j, self.vector, None)
            return []

        loop(b, 0, whole, width, vectors)
        if self.masks:
            def rest() -> None:
                left = b.splat(b.cast("trunc", b.op("sub", count, whole), I32), width)
                body(whole, self.vector, b.cmp("slt", b.step(Type("i32", width)), left))

            when(b, b.cmp("slt", whole, count), rest)
        else:
            part = width // 2
            while part:
                self._part(count, part, body)
                part //= 2

    def _part(self, count: Value, width: int, body: Callable[[Value, Type, Value | None], None]) -> None:
        """The body for `width` elements more, where the binary digit of `count` for them says that they are there."""
        b, type = self.b, Type(self.scalar.text, width)
        when(b, b.cmp("ne", b.op("and", count, i64(width)), 0),
             lambda: body(b.op("and", count, i64(-2 * width)), type, None))

    def load(self, type: Type, at: Value, mask: Value | None) -> Value:
        """A vector, masked lanes 0."""
        return self.b.load(type, at) if mask is None else self.b.masked_load(type, at, mask)

    def store(self, value: Value, at: Value, mask: Value | None) -> None:
        """The lanes where `mask`."""
        if mask is None:
            self.b.store(value, at)
        else:
            self.b.masked_store(value, at, mask)

    def copy(self, to: Value, source: Value, count: Value) -> None:
        """`count` elements."""
        def some(j: Value, type: Type, mask: Value | None) -> None:
            self.store(self.load(type, self.at(source, j), mask), self.at(to, j), mask)

        self.lanes(count, some)

    def pack_a(self) -> None:
        """`(to, a, rs, ks, rows, k, ld)`: rows of A, each `ld` after the other if they are contiguous, else columns."""
        b = self.b
        to, a, rs, ks, rows, k, ld = b.params

        def lines(count: Value, stride: Value, length: Value) -> None:
            def some(j: Value, type: Type, mask: Value | None) -> None:
                def line(_: Value, carried: list[Value]) -> list[Value]:
                    target, origin = carried
                    self.store(self.load(type, origin, mask), target, mask)
                    return [self.at(target, ld), self.at(origin, stride)]

                loop(b, 0, count, 1, line, [self.at(to, j), self.at(a, j)])

            self.lanes(length, some)

        when(b, b.cmp("eq", ks, 1), lambda: lines(rows, rs, k), lambda: lines(k, ks, rows))
        b.ret()

    def pack_b(self) -> None:
        """`(to, b, bs, k, columns, width)`: k rows of B, `width` apart."""
        b = self.b
        to, source, bs, k, columns, width = b.params

        def row(_: Value, carried: list[Value]) -> list[Value]:
            target, origin = carried
            self.copy(target, origin, columns)
            return [self.at(target, width), self.at(origin, bs)]

        loop(b, 0, k, 1, row, [to, source])
        b.ret()

    def pack_transposed(self) -> None:
        """`(to, b, bs, k, columns, width)`: the same from B's transpose, whose rows (B's columns) are `bs` apart.

        Squares of W by W are transposed in registers; a column outside is read as the last one inside. Lines of
        memory are used to their end before the next ones, whose places in the cache may be the same.
        """
        b, lanes = self.b, self.width
        to, source, bs, k, columns, width = b.params
        last = b.op("sub", columns, i64(1))
        whole = b.op("and", k, i64(-lanes))

        def strip(start: Value, _: list[Value]) -> list[Value]:
            stop = b.intrinsic("smin", b.op("add", start, i64(_STRIP)), whole)

            def some(j: Value, _: list[Value]) -> list[Value]:
                places = [b.intrinsic("smin", b.op("add", j, i64(r)), last) for r in range(lanes)]
                lines = [self.at(source, b.op("mul", place, bs)) for place in places]
                target = self.at(to, j)

                def square(p: Value, _: list[Value]) -> list[Value]:
                    at = self.at(target, b.op("mul", p, width))
                    for row in self.transposed([b.load(self.vector, self.at(line, p)) for line in lines]):
                        b.store(row, at)
                        at = self.at(at, width)
                    return []

                loop(b, start, stop, lanes, square, sure=True)
                return []

            loop(b, 0, columns, lanes, some)
            return []

        def column(j: Value, _: list[Value]) -> list[Value]:
            start, target = self.at(source, b.op("mul", j, bs)), self.at(to, j)

            def element(p: Value, _: list[Value]) -> list[Value]:
                b.store(b.load(self.scalar, self.at(start, p)), self.at(target, b.op("mul", p, width)))
                return []

            loop(b, whole, k, 1, element)
            return []

        loop(b, 0, whole, _STRIP, strip)
        loop(b, 0, columns, 1, column)
        b.ret()

    def transpose(self) -> None:
        """`(to, rows, width, k, columns, bs)`: k rows, `width` apart, to columns of rows that are `bs` apart. This is
        what undoes `pack_transposed`: nothing is written but these."""
        b, lanes = self.b, self.width
        to, source, width, k, columns, bs = b.params
        deep, wide = b.op("and", k, i64(-lanes)), b.op("and", columns, i64(-lanes))

        def some(j: Value, _: list[Value]) -> list[Value]:
            lines = [self.at(to, b.op("mul", b.op("add", j, i64(r)), bs)) for r in range(lanes)]

            def square(p: Value, _: list[Value]) -> list[Value]:
                rows = [b.load(self.vector, self.at(source, b.op("mul", b.op("add", p, i64(r)), width), j))
                        for r in range(lanes)]
                for line, row in zip(lines, self.transposed(rows), strict=True):
                    b.store(row, self.at(line, p))
                return []

            loop(b, 0, deep, lanes, square)
            return []

        def rest(j: Value, _: list[Value]) -> list[Value]:
            line = self.at(to, b.op("mul", j, bs))

            def element(p: Value, _: list[Value]) -> list[Value]:
                b.store(b.load(self.scalar, self.at(source, b.op("mul", p, width), j)), self.at(line, p))
                return []

            loop(b, b.select(b.cmp("slt", j, wide), deep, i64(0)), k, 1, element)
            return []

        loop(b, 0, wide, lanes, some)
        loop(b, 0, columns, 1, rest)
        b.ret()

    def transposed(self, rows: list[Value]) -> list[Value]:
        """W vectors of W lanes, transposed: log W rounds of interleaving vectors that are half of W apart."""
        half = self.width // 2
        low = [n // 2 + (self.width if n % 2 else 0) for n in range(self.width)]
        high = [n + half for n in low]
        for _ in range(self.width.bit_length() - 1):
            rows = [self.b.shuffle(rows[n // 2], rows[n // 2 + half], high if n % 2 else low)
                    for n in range(self.width)]
        return rows

    # --- Merging ------------------------------------------------------------------------------

    def merge(self) -> None:
        """`(c, cs, tile, width, rows, columns, alpha, beta, read)`: C = alpha*tile + (beta*C if `read`)."""
        b = self.b
        c, cs, tile, width, rows, columns, alpha, beta, read = b.params

        def lines(reads: bool) -> None:
            def line(_: Value, carried: list[Value]) -> list[Value]:
                target, origin = carried

                def lane(j: Value, type: Type, mask: Value | None) -> None:
                    value, old = self.load(type, self.at(origin, j), None), None
                    if reads:
                        old = self.load(type, self.at(target, j), mask)
                    if self.scalar.text == "i32":  # sums of products of bytes, which no factors are for
                        value = b.op("add", old, value) if old else value
                    else:
                        value = b.op("fmul", value, b.splat(alpha, type.width))
                        value = b.intrinsic("fmuladd", b.splat(beta, type.width), old, value) if old else value
                    self.store(value, self.at(target, j), mask)

                self.lanes(columns, lane)
                return [self.at(target, cs), self.at(origin, width)]

            loop(b, 0, rows, 1, line, [c, tile])

        when(b, read, lambda: lines(True), lambda: lines(False))
        b.ret()
