"""Loops in order inside of lanes: several of their rows at a time, if what they load and store goes along memory.

    vector(16) j < 1024:                             for j in 0, 16, ...:  for i in 0, 8, ..., 56:
      for(8) i < 64:                                   16 loads along i, transposed: 8 vectors along j
        s = s * x[j*64 + i]                            8 times the body
        y[j*64 + i] = s                                8 vectors along j, transposed: 16 stores along i

Elements far apart, one for each lane, are many times as slow. A short body stands there for each row; a longer one is
a loop, and what goes in and out of it waits in scratch memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from anima.compiler.emitting.interleave import LONGEST_ROW, transposed
from anima.compiler.emitting.memory import LONGEST
from anima.compiler.emitting.squares import Squares
from anima.compiler.emitting.value import MEMORY, LaneIndex, Val, i64, itemsize
from anima.compiler.ir.affine import along, index_lets
from anima.compiler.ir.assembly import Type, Value
from anima.compiler.ir.costs import cost
from anima.compiler.ir.loops import Accumulate, Assign, Expr, For, Let, Load, Stmt, Store, walk
from anima.util import record

_SHORT = 12.0  # nanoseconds of an iteration, up to which it is written out for each row


@record
class RowGroup:
    """Rows that are taken together: how many, and, where there may be fewer, a mask of those that there are."""

    size: int
    mask: Value | None


class RowsInLanes(Squares):
    """Adds such loops to a function.

    `gathered` has what rows store, by buffer: the first place, and values; `in_scratch` what they load and store, in
    scratch memory, and which row is written.
    """

    gathered: dict[str, tuple[LaneIndex, list[Value]]] | None = None
    in_scratch: tuple[dict[Expr, Value], dict[str, tuple[LaneIndex, Value]], Value] | None = None

    def serial(self, loop: For) -> None:
        """The iterations in order, `loop.width` at a time if that is as good."""
        if loop.width == 1 or self.width < loop.width or (self.mask is not None and self.mask is not self.active[0]):
            super().serial(loop)
            return
        extent, size, keys = self.index(loop.extent), loop.width, self.carried(loop.body)
        total = self.total(extent)
        whole = self._whole(total, size)

        def row(r: Value) -> None:
            self.env[loop.index] = LaneIndex(r, 0, 0, max(extent.hi - 1, 0))
            self.block(loop.body)

        def rows(body: Callable[[For, LaneIndex, Value | None], None], rest: Value | None) -> Callable[[Value], None]:
            def write(r: Value) -> None:
                first = self.env[loop.index] = LaneIndex(r, 0, 0, max(extent.hi - 1, 0))
                self.block(index_lets(loop.body))
                body(loop, first, rest)

            return write

        short = sum(map(cost, loop.body)) <= _SHORT and all(
            isinstance(s, (Let, Store, Assign, Accumulate)) for s in loop.body)
        if self.masks and not short:
            self.counted(i64(0), total, size, keys, loop.body, rows(self._one_after_the_other, total))
            return
        body = self._written_out if short else self._one_after_the_other
        self.counted(i64(0), whole, size, keys, loop.body, rows(body, None))
        self.counted(whole, total, 1, keys, loop.body, row)

    # -- bodies ---------------------------------------------------------------------------------

    def _written_out(self, loop: For, first: LaneIndex, _: Value | None) -> None:
        """The body for each of some rows."""
        rows = RowGroup(loop.width, None)
        loads, stores = self._along(loop)
        columns: dict[Expr, list[Value]] = {load: self._loaded_rows(load, by, rows) for load, by in loads.items()}
        self.gathered = {stmt.buffer: (self.index(stmt.index), []) for stmt in stores}
        for number in range(loop.width):
            self.env[loop.index] = replace(first, offset=number)
            self.columns, self.row = columns, number
            self.block(loop.body)
        stored, self.gathered, self.columns = self.gathered, None, None
        for stmt, by in stores.items():
            self._store_rows(stmt.buffer, *stored[stmt.buffer], by, rows)

    def _one_after_the_other(self, loop: For, first: LaneIndex, total: Value | None) -> None:
        """The body in a loop over some rows: fewer, if the `total` number of rows ends with them."""
        b, size = self.b, loop.width
        count, mask = i64(size), None
        if total is not None and self._whole(total, size).name != total.name:
            rest = b.op("sub", total, first.value)
            count = b.intrinsic("smin", rest, i64(size))
            mask = b.cmp("slt", b.step(Type("i64", size)), b.splat(rest, size))
        rows = RowGroup(size, mask)
        loads, stores = self._along(loop)
        read: dict[Expr, Value] = {}
        for load, by in loads.items():
            values = self._loaded_rows(load, by, rows)
            read[load] = self._room(load.dtype, size)
            for number, value in enumerate(values):
                b.store(value, self._in_room(read[load], value.type, i64(number)))
        written = {s.buffer: (self.index(s.index), self._room(s.value.dtype, size)) for s in stores}

        def row(number: Value) -> None:
            self.env[loop.index] = LaneIndex(b.op("add", first.value, number), 0, first.lo, first.hi)
            self.in_scratch = read, written, number
            self.block(loop.body)
            self.in_scratch = None

        self.counted(i64(0), count, 1, self.carried(loop.body), loop.body, row)
        for stmt, by in stores.items():
            index, room = written[stmt.buffer]
            type = Type(MEMORY[stmt.value.dtype], self.width)
            values = [b.load(type, self._in_room(room, type, i64(number))) for number in range(size)]
            self._store_rows(stmt.buffer, index, values, by, rows)

    def _room(self, dtype: str, size: int) -> Value:
        return self._memory(size * self.width * itemsize(dtype))

    def _in_room(self, room: Value, type: Type, number: Value) -> Value:
        return self.b.gep(type.scalar, room, self.b.op("mul", number, i64(type.width)))

    def evaluate(self, expr: Expr) -> Val:
        """The value of an expression; of what was loaded for several rows, this row's."""
        if self.in_scratch is not None and expr in self.in_scratch[0]:
            assert isinstance(expr, Load)
            room, type = self.in_scratch[0][expr], Type(MEMORY[expr.dtype], self.width)
            return self.b.load(type, self._in_room(room, type, self.in_scratch[2]))
        return super().evaluate(expr)

    def store(self, buffer: str, index: LaneIndex, value: Val) -> None:
        """Puts a value where the index says; of what several rows store, when all of them are there."""
        if self.gathered is not None and buffer in self.gathered:
            self.gathered[buffer][1].append(self._in_all_lanes(value))
        elif self.in_scratch is not None and buffer in self.in_scratch[1]:
            wide = self._in_all_lanes(value)
            self.b.store(wide, self._in_room(self.in_scratch[1][buffer][1], wide.type, self.in_scratch[2]))
        else:
            super().store(buffer, index, value)

    def _in_all_lanes(self, value: Val) -> Value:
        wide = self.wide(value)
        assert isinstance(wide, Value)
        return wide

    # -- memory ---------------------------------------------------------------------------------

    def _along(self, loop: For) -> tuple[Mapping[Load, int], Mapping[Store, int]]:
        """What a loop in order loads and stores along memory, and in steps across the lanes; none, where what is loaded
        may be what is stored."""
        loads, stores = along(loop)
        most = LONGEST_ROW // loop.width
        loads = {n: by for n, by in loads.items()
                 if itemsize(n.dtype) <= most and self._steps_across(n.buffer, n.index)}
        stores = {s: by for s, by in stores.items()
                  if itemsize(s.value.dtype) <= most and self._steps_across(s.buffer, s.index)}
        every = list(walk(*loop.body))

        def roots(nodes: Iterable[Expr | Stmt], kind: type[Load | Store]) -> set[str]:
            return {self.places[n.buffer].root for n in nodes
                    if isinstance(n, kind) and n.buffer not in self.held and n.buffer in self.places}

        both = (roots(loads, Load) & roots(every, Store)) | (roots(every, Load) & roots(stores, Store))
        return ({}, {}) if both else (loads, stores)

    def _steps_across(self, buffer: str, index: Expr) -> bool:
        """Whether the elements at an index lie far apart in the lanes."""
        if buffer in self.held or buffer not in self.places or self.places[buffer].lanes > 1:
            return False
        where = self.index(index)
        return not where.general and abs(where.step) > LONGEST

    def _loaded_rows(self, load: Load, by: int, rows: RowGroup) -> list[Value]:
        """What rows load in all lanes, from loads along the rows for each lane; `by` is 1, or -1 backwards."""
        place, index, scalar = self.places[load.buffer], self.index(load.index), MEMORY[load.dtype]
        none = self.b.undef(Type(scalar, rows.size))
        lines = []
        for lane in range(self.width):
            with self._line(index, lane, by, rows) as line:
                lines.append(none if line is None else self._load_real(place.pointer, scalar, line))
        parts = [transposed(self.b, lines[start:start + rows.size]) for start in range(0, self.width, rows.size)]
        while len(parts) > 1:
            parts = [[self.b.shuffle(x, y, range(2 * x.type.width)) for x, y in zip(*both, strict=True)]
                     for both in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0][::by]

    def _store_rows(self, buffer: str, index: LaneIndex, values: list[Value], by: int, rows: RowGroup) -> None:
        """Stores what rows have in all lanes along the rows for each lane, beginning where the index says."""
        place = self.places[buffer]
        self.changed(place.root)
        for start in range(0, self.width, rows.size):
            columns = values[::by]
            if rows.size < self.width:
                columns = [self.b.shuffle(v, self.b.undef(v.type), range(start, start + rows.size)) for v in columns]
            for lane, value in enumerate(transposed(self.b, columns), start):
                with self._line(index, lane, by, rows) as line:
                    if line is not None:
                        self._store_real(place.pointer, MEMORY[place.dtype], line, value)

    @contextmanager
    def _line(self, index: LaneIndex, lane: int, by: int, rows: RowGroup) -> Iterator[LaneIndex | None]:
        """For access to the elements of one lane, in the order of memory: their place; None if the lane has no work."""
        b, width, mask, (_, active) = self.b, self.width, self.mask, self.active
        self.width, self.mask = rows.size, rows.mask
        if rows.mask is not None and by < 0:
            self.mask = self._reversed(rows.mask)
        if mask is not None and not isinstance(active, int):
            working = b.splat(b.cmp("sgt", active, lane), rows.size)
            self.mask = working if self.mask is None else b.op("and", self.mask, working)
        if mask is not None and isinstance(active, int) and lane >= active:
            yield None
        else:
            yield replace(index, step=1, offset=index.offset + lane * index.step - (rows.size - 1) * (by < 0))
        self.width, self.mask = width, mask
