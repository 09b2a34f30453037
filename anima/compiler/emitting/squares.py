"""Squares: loads that step across memory in the lanes of a loop, and along it in the rows around, go in registers.

    square(16) i < 64:                               for i in 0, 16, 32, 48:  for j in 0, 16, ...:
      vector(16) j < 1024:              ->             16 loads along i, one for each of the lanes j ... j + 15
        y[i*1024 + j] = x[j*64 + i]                    these 16 vectors, transposed: one for each of i ... i + 15
                                                       16 stores along j

Rows and lanes that make up no square are done one row after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from anima.compiler.emitting.interleave import interleaved
from anima.compiler.emitting.memory import LINE
from anima.compiler.emitting.value import I64, MEMORY, ZERO, LaneIndex, Val, i64
from anima.compiler.emitting.vector import Vector
from anima.compiler.ir.affine import across, index_lets
from anima.compiler.ir.assembly import Value
from anima.compiler.ir.loops import Expr, For, Load, Store


class Squares(Vector):
    """Adds loops over squares to a function. `columns` has what the rows of a square load, `row` is the one written."""

    columns: dict[Expr, list[Val]] | None = None
    row = 0

    def evaluate(self, expr: Expr) -> Val:
        """The value of an expression; of what a square has loaded, this row's."""
        if self.columns is not None and expr in self.columns:
            assert isinstance(expr, Load)
            value = self.columns[expr][self.row]
            if self.places[expr.buffer].dtype == "bool":
                assert isinstance(value, Value)
                return self.b.cmp("ne", value, 0)
            return value
        return super().evaluate(expr)

    def square(self, loop: For) -> None:
        """The loop, in squares of `loop.width` rows and lanes."""
        *_, lanes = loop.body
        assert isinstance(lanes, For)
        size = loop.width
        rows, across_ = (LaneIndex(self.total(n), 0, n.lo, n.hi) for n in map(self.index, (loop.extent, lanes.extent)))
        whole_rows, whole_lanes = (self._whole(n.value, size) for n in (rows, across_))
        loads = across(loop)

        def square(r: Value) -> None:
            def at(c: Value) -> None:
                lane = LaneIndex(ZERO, 1, 0, max(across_.hi - 1, 0), c)
                self._square(loop, lanes, LaneIndex(r, 0, 0, max(rows.hi - 1, 0)), lane, loads)

            self.counted(i64(0), whole_lanes, size, [], loop.body, at)

        def row(r: Value) -> None:
            start = whole_lanes
            if whole_rows.name != "0":
                start = self.b.select(self.b.cmp("slt", r, whole_rows), whole_lanes, ZERO)
            self.env[loop.index] = LaneIndex(r, 0, 0, max(rows.hi - 1, 0))
            self.block(loop.body[:-1])
            if self.masks:
                self._masked(lanes, across_, None, start, [{}])
            else:
                self._one_by_one(lanes, across_, start, {})

        with self.scope():
            self.counted(i64(0), whole_rows, size, [], loop.body, square)
        if whole_rows.name != rows.value.name or whole_lanes.name != across_.value.name:
            with self.scope():
                start = whole_rows if whole_lanes.name == across_.value.name else ZERO
                self.counted(start, rows.value, 1, [], loop.body, row)

    def _whole(self, count: Value, size: int) -> Value:
        """The largest multiple of a size that is not above a count."""
        number = self.number(LaneIndex(count))
        return self.b.op("and", count, i64(-size)) if number is None else i64(number - number % size)

    def _square(self, loop: For, lanes: For, row: LaneIndex, lane: LaneIndex, loads: Sequence[Load]) -> None:
        """The square whose first iterations are these."""
        self.width, self.mask = loop.width, None
        with self.scope():
            self.env[loop.index], self.env[lanes.index] = row, lane
            self.block([*loop.body[:-1], *index_lets(lanes.body)])
            found: dict[Expr, list[Val]] = {load: [*self._loaded(load)] for load in loads}

            def rows(past: bool) -> None:
                for number in range(loop.width):
                    self.env[loop.index] = replace(row, offset=number)
                    self.block(loop.body[:-1])
                    self.columns, self.row, self.past = found, number, past
                    self.block(lanes.body)
                    self.columns, self.past = None, False

            if loop.kind == "stream":
                self._on_lines(loop, lanes, row, rows)
            else:
                rows(past=False)
        self.width = 1

    def _on_lines(self, loop: For, lanes: For, row: LaneIndex, rows: Callable[[bool], None]) -> None:
        """The rows of a square, past the caches if they begin where lines do.

        Other threads see them in order: what tells that a thread is done (an atomic addition, in the pool) waits for
        such stores, too.
        """
        b, ends = self.b, []
        for store in lanes.body:
            if isinstance(store, Store):
                place, firsts = self.places[store.buffer], []
                for number in (0, 1):
                    self.env[loop.index] = replace(row, offset=number)
                    self.block([*loop.body[:-1], *index_lets(lanes.body)])
                    index = self.index(store.index)
                    if index.step != 1 or index.general:
                        rows(False)
                        return
                    address = self._address(place.pointer, MEMORY[place.dtype], index)
                    firsts.append(b.cast("ptrtoint", address, I64))
                ends += [firsts[0], b.op("sub", firsts[1], firsts[0])]
        end = ends[0]
        for other in ends[1:]:
            end = b.op("or", end, other)
        past, near, done = b.label("past"), b.label("near"), b.label("stored")
        b.branch_if(b.cmp("eq", b.op("and", end, i64(LINE - 1)), i64(0)), past, near, likely=True)
        for label, is_past in ((past, True), (near, False)):
            b.place(label)
            with self.scope():
                rows(is_past)
            b.branch(done)
        b.place(done)

    def _loaded(self, load: Load) -> list[Value]:
        """What the rows of a square load, from loads along the rows for each of its lanes."""
        place, index = self.places[load.buffer], self.index(load.index)
        scalar = MEMORY[place.dtype]
        lines = [replace(index, step=1, offset=index.offset + lane * index.step) for lane in range(self.width)]
        return interleaved(self.b, [self._load_real(place.pointer, scalar, line) for line in lines])
