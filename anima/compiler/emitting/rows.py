"""Loops in order inside of lanes: several of their rows at a time, if what they load and store goes along memory.

    vector(16) j < 1024:                             for j in 0, 16, ...:  for i in 0, 8, ..., 56:
      for(8) i < 64:                                   16 loads along i, transposed: 8 vectors along j
        s = s * x[j*64 + i]                            8 times the body
        y[j*64 + i] = s                                8 vectors along j, transposed: 16 stores along i

Elements far apart, one for each lane, are many times as slow. A short body stands there for each row; a longer one is
a loop, and what goes in and out of it waits in scratch memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from anima.compiler.emitting.control import part_types
from anima.compiler.emitting.interleave import LONGEST_ROW, interleaved
from anima.compiler.emitting.memory import LONGEST, Place
from anima.compiler.emitting.squares import Squares
from anima.compiler.emitting.value import LaneIndex, Val, i64, itemsize, parts
from anima.compiler.ir.affine import along, index_lets
from anima.compiler.ir.assembly import Type, Value
from anima.compiler.ir.costs import is_short
from anima.compiler.ir.loops import Accumulate, Assign, Expr, For, Let, Load, Stmt, Store, walk


class RowsInLanes(Squares):
    """Adds such loops to a function.

    `gathered` has what rows store, by buffer: the first place, and values; `in_scratch` what they load and store, in
    scratch memory, and which row is written.
    """

    gathered: dict[str, tuple[LaneIndex, list[Val]]] | None = None
    in_scratch: tuple[dict[Expr, Value], dict[str, tuple[LaneIndex, Value]], Value] | None = None

    def serial(self, loop: For) -> None:
        """The iterations in order, `loop.width` at a time if that is as good."""
        if loop.width == 1 or self.width < loop.width or (self.mask is not None and self.mask is not self.active[0]):
            super().serial(loop)
            return
        extent, size, keys = self.index(loop.extent), loop.width, self.carried(loop.body)
        total = self.total(extent)
        whole = self._whole(total, size)

        def begin(r: Value) -> LaneIndex:
            first = self.env[loop.index] = LaneIndex(r, 0, 0, max(extent.hi - 1, 0))
            return first

        def row(r: Value) -> None:
            begin(r)
            self.block(loop.body)

        if is_short(loop.body) and all(isinstance(s, (Let, Store, Assign, Accumulate)) for s in loop.body):
            self.counted(i64(0), whole, size, keys, loop.body, lambda r: self._written_out(loop, begin(r)))
            self.counted(whole, total, 1, keys, loop.body, row)
        else:
            rest = None if whole.name == total.name else total
            self.counted(i64(0), total, size, keys, loop.body,
                         lambda r: self._one_after_the_other(loop, begin(r), rest))

    # -- bodies ---------------------------------------------------------------------------------

    def _written_out(self, loop: For, first: LaneIndex) -> None:
        """The body for each of some rows."""
        self.block(index_lets(loop.body))
        loads, stores = self._along(loop)
        columns: dict[Expr, list[Val]] = {n: self._loaded_rows(n, by, loop.width) for n, by in loads.items()}
        self.gathered = {stmt.buffer: (self.index(stmt.index), []) for stmt in stores}
        for number in range(loop.width):
            self.env[loop.index] = replace(first, offset=number)
            self.columns, self.row = columns, number
            self.block(loop.body)
        stored, self.gathered, self.columns = self.gathered, None, None
        for stmt, by in stores.items():
            self._store_rows(stmt.buffer, *stored[stmt.buffer], by)

    def _one_after_the_other(self, loop: For, first: LaneIndex, total: Value | None) -> None:
        """The body in a loop over some rows, by way of scratch memory; where the `total` number of rows ends, the last
        ones are loaded and stored one by one."""
        b, size = self.b, loop.width
        count = i64(size) if total is None else b.intrinsic("smin", b.op("sub", total, first.value), i64(size))
        whole = None if total is None else b.cmp("eq", count, size)
        self.block(index_lets(loop.body))
        loads, stores = self._along(loop)
        read: dict[Expr, Value] = {n: self._room(n.dtype, size) for n in loads}
        written = {s.buffer: (self.index(s.index), self._room(s.value.dtype, size)) for s in stores}

        def each_row(body: Callable[[Value], None], keys: Sequence[str] = ()) -> None:
            def row(number: Value) -> None:
                self.env[loop.index] = LaneIndex(b.op("add", first.value, number), 0, first.lo, first.hi)
                body(number)

            self.counted(i64(0), count, 1, keys, loop.body, row)

        def load() -> None:
            for node, by in loads.items():
                for number, value in enumerate(self._loaded_rows(node, by, size)):
                    self._keep_row(read[node], i64(number), value)

        def load_one(number: Value) -> None:
            self.block(index_lets(loop.body))
            for node in loads:
                self._keep_row(read[node], number, self.load(node.buffer, self.index(node.index)))

        def compute(number: Value) -> None:
            self.in_scratch = read, written, number
            self.block(loop.body)
            self.in_scratch = None

        def stored(stmt: Store, number: Value) -> Val:
            return self._kept_row(written[stmt.buffer][1], number, stmt.value.dtype)

        def store() -> None:
            for stmt, by in stores.items():
                values = [stored(stmt, i64(number)) for number in range(size)]
                self._store_rows(stmt.buffer, written[stmt.buffer][0], values, by)

        def store_one(number: Value) -> None:
            self.block(index_lets(loop.body))
            for stmt in stores:
                self.store(stmt.buffer, self.index(stmt.index), stored(stmt, number))

        self.either(whole, load, lambda: each_row(load_one))
        each_row(compute, self.carried(loop.body))
        self.either(whole, store, lambda: each_row(store_one))

    def either(self, condition: Value | None, usual: Callable[[], None], rare: Callable[[], None]) -> None:
        """What is to be done if a condition holds (None: it does), and else."""
        if condition is None:
            usual()
            return
        b = self.b
        labels, done = (b.label("whole"), b.label("rest")), b.label("done")
        b.branch_if(condition, *labels, likely=True)
        for label, write in zip(labels, (usual, rare), strict=True):
            b.place(label)
            with self.scope():
                write()
            b.branch(done)
        b.place(done)

    def _room(self, dtype: str, size: int) -> Value:
        return self._memory(size * self.width * itemsize(dtype))

    def _keep_row(self, room: Value, number: Value, value: Val) -> None:
        """Stores a row's value in scratch memory, the parts of complex numbers one after the other."""
        wide = parts(self.wide(value))
        for part, vector in enumerate(wide):
            self.b.store(vector, self._in_room(room, vector.type, number, part, len(wide)))

    def _kept_row(self, room: Value, number: Value, dtype: str) -> Val:
        """What was put there."""
        types = [Type(t.scalar, self.width) for t in part_types(dtype, 1)]
        values = [self.b.load(t, self._in_room(room, t, number, part, len(types))) for part, t in enumerate(types)]
        return values[0] if len(values) == 1 else (values[0], values[1])

    def _in_room(self, room: Value, type: Type, number: Value, part: int, count: int) -> Value:
        place = self.b.op("mul", number, i64(count * type.width))
        return self.b.gep(type.scalar, room, self.b.op("add", place, i64(part * type.width)) if part else place)

    def evaluate(self, expr: Expr) -> Val:
        """The value of an expression; of what was loaded for several rows, this row's."""
        if self.in_scratch is not None and expr in self.in_scratch[0]:
            assert isinstance(expr, Load)
            return self._kept_row(self.in_scratch[0][expr], self.in_scratch[2], expr.dtype)
        return super().evaluate(expr)

    def store(self, buffer: str, index: LaneIndex, value: Val) -> None:
        """Puts a value where the index says; of what several rows store, when all of them are there."""
        if self.gathered is not None and buffer in self.gathered:
            self.gathered[buffer][1].append(self.wide(value))
        elif self.in_scratch is not None and buffer in self.in_scratch[1]:
            self._keep_row(self.in_scratch[1][buffer][1], self.in_scratch[2], value)
        else:
            super().store(buffer, index, value)

    # -- memory ---------------------------------------------------------------------------------

    def _along(self, loop: For) -> tuple[Mapping[Load, int], Mapping[Store, int]]:
        """What a loop in order loads and stores along memory, and in steps across the lanes; none, where what is loaded
        may be what is stored."""
        loads, stores = along(loop)

        def fits(dtype: str) -> bool:
            return (loop.width * itemsize(dtype) <= LONGEST_ROW
                    and loop.width * len(part_types(dtype, 1)) <= self.width)

        loads = {n: by for n, by in loads.items() if fits(n.dtype) and self._steps_across(n.buffer, n.index)}
        stores = {s: by for s, by in stores.items()
                  if fits(s.value.dtype) and self._steps_across(s.buffer, s.index)}
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

    def _loaded_rows(self, load: Load, by: int, size: int) -> list[Val]:
        """What rows load in all lanes, from loads along the rows for each lane; `by` is 1, or -1 backwards."""
        b, place, index = self.b, self.places[load.buffer], self.index(load.index)
        scalar, *others = part_types(load.dtype, 1)
        type = Type(scalar.scalar, size * (1 + len(others)))
        first = self._line(place, index, 0, by, size)
        lines = [self._line(place, index, lane, by, size, first) for lane in range(self.width)]
        values = [b.undef(type) if line is None else b.load(type, line) for line in lines]
        found = [interleaved(b, values[start:start + type.width]) for start in range(0, self.width, type.width)]
        while len(found) > 1:
            found = [[b.shuffle(x, y, range(2 * x.type.width)) for x, y in zip(*both, strict=True)]
                     for both in zip(found[::2], found[1::2], strict=True)]
        (rows,) = found
        return [*(zip(rows[::2], rows[1::2], strict=True) if others else rows)][::by]

    def _store_rows(self, buffer: str, index: LaneIndex, values: list[Val], by: int) -> None:
        """Stores what rows have in all lanes along the rows for each lane, beginning where the index says."""
        b, place, rows = self.b, self.places[buffer], [part for value in values[::by] for part in parts(value)]
        self.changed(place.root)
        nowhere = None if self.mask is None else self._memory(LONGEST_ROW)
        for start in range(0, self.width, len(rows)):
            columns = rows
            if len(rows) < self.width:
                columns = [b.shuffle(v, b.undef(v.type), range(start, start + len(rows))) for v in rows]
            for lane, value in enumerate(interleaved(b, columns), start):
                line = self._line(place, index, lane, by, len(values), nowhere)
                if line is not None:
                    b.store(value, line)

    def _line(self, place: Place, index: LaneIndex, lane: int, by: int, size: int, other: Value | None = None
              ) -> Value | None:
        """The address of one lane's elements, in the order of memory; `other` if the lane has no work, None if that is
        known. (Instructions with masks take a hundred times as long where they leave out what is no memory.)"""
        line = replace(index, step=1, offset=index.offset - (size - 1) * (by < 0))
        types = part_types(place.dtype, 1)
        element = types[0].scalar if len(types) == 1 else f"[2 x {types[0].scalar}]"
        address = self._step(self._address(place.pointer, element, line), element, self.lane(lane, index.step))
        _, active = self.active
        if self.mask is None or other is None:
            return address
        if isinstance(active, int):
            return address if lane < active else None
        return self.b.select(self.b.cmp("sgt", active, lane), address, other)
