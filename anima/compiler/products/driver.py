"""The driver of matrix products: a walk over blocks, which packs, and calls register kernels.

    for each block of columns:  for each block of k:  pack B;  for each tile of rows, each panel of columns: kernel

The driver of a scalar type serves all products of that type: `PLAN` has what differs between them. A unit of
work is one tile of rows in one block of columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from anima.compiler.ir.assembly import Builder, ModuleBuilder, Type, Value
from anima.compiler.machine.target import Target
from anima.compiler.products.blocking import BLOCK_BYTES, MOST_ROWS, MOST_VECTORS, ROW_BYTES
from anima.compiler.products.kernel import I1, I64, PTR, SCALARS, PackWriter, i64, loop, times, when

# What the driver reads: the context has addresses, the plan integers (alpha and beta as bits).
CONTEXT = ("plan", "a", "b", "c", "kernel0", "kernel1", "edge0", "edge1", "pack_a", "pack_b", "transpose", "merge")
PLAN = ("n", "k", "nc", "kc", "high", "low", "first", "tiles", "rows", "blocks", "width", "edge", "rs", "ks", "bs",
        "js", "cs", "a_step", "b_step", "c_step", "pack_a", "pack_b", "scaled", "keep", "alpha", "beta")
DRIVER = "gemm"


def write_run(module: ModuleBuilder, name: str, units: str) -> None:
    """Write `void name(ptr pool, ptr ctx, i64 n, i64 grain)`: `units(ctx, 0, n)`, by the pool if there is one and it is
    worth it (grain is not 0)."""
    b = module.function(name, [("pool", PTR), ("ctx", PTR), ("units", I64), ("grain", I64)])
    pool, context, count, grain = b.params
    alone = b.op("or", b.cmp("eq", pool, 0), b.cmp("eq", grain, 0))

    def here() -> None:
        b.call(units, [context, i64(0), count])

    def shared() -> None:
        b.call(b.load(PTR, pool), [pool, Value(f"@{units}", PTR), context, count, grain])

    when(b, alone, here, shared)
    b.ret()


class Driven(Protocol):
    """A call of a routine as its driver takes it: the driver's name, the names of the context's places, which of the
    call's arrays and which functions stand there, the plan, and units of work, of which a thread takes `grain` (0: all
    in order). `target` is the machine, perhaps with shorter vectors."""

    driver: str
    context: Sequence[str]
    operands: Mapping[str, str]
    functions: Mapping[str, str]
    plan: Sequence[int]
    units: int
    grain: int
    target: Target


def emit_driven(b: Builder, call: Driven, operand: Callable[[str], Value], pool: Value, place: Callable[[str], int]
                ) -> None:
    """Write the call of a driver: `operand` gives the address of an array's first element, `place` that of a shared
    function in the table of addresses, which is the first parameter of `b`; `pool` is that of the pool or null. What
    calls of the same functions have in common is a function of its own."""
    text = "_".join(map(str, call.plan)).replace("-", "m")
    plan = b.module.constant(f"{call.driver}.plan.{text}", "i64", call.plan, 8)
    driver, functions = place(call.driver), {where: place(name) for where, name in call.functions.items()}
    name = ".".join(["call", f"{call.driver}_{driver}", *call.operands,
                     *(f"{where}_{number}" for where, number in functions.items())])
    if not b.module.defines(name):
        params = [("table", PTR), ("plan", PTR), *((x, PTR) for x in call.operands), ("pool", PTR), ("units", I64),
                  ("grain", I64)]
        _write_call(b.module.function(name, params, linkage="internal", attributes="noinline"), call, driver, functions)
    b.call(name, [b.params[0], plan, *map(operand, call.operands.values()), pool, i64(call.units), i64(call.grain)])


def _write_call(b: Builder, call: Driven, driver: int, functions: Mapping[str, int]) -> None:
    """Fill a context and call the driver."""
    table, plan, *operands, pool, units, grain = b.params

    def function(number: int) -> Value:
        return b.load(PTR, b.gep("ptr", table, number))

    context = b.alloca(PTR, len(call.context))
    words = {"plan": plan, **dict(zip(call.operands, operands, strict=True))}
    words |= {where: function(number) for where, number in functions.items()}
    for where, value in words.items():
        b.store(value, b.gep("ptr", context, call.context.index(where)))
    b.call(function(driver), [pool, context, units, grain])
    b.ret()


class Driver:
    """Writes `void gemm(ptr pool, ptr ctx, i64 units, i64 grain)` and what it calls, for one scalar type."""

    def __init__(self, module: ModuleBuilder, dtype: str, lanes: int, masks: bool) -> None:
        self.module = module
        self.scalar = Type(SCALARS[dtype])
        self.lanes = lanes
        self.masks = masks
        self.size = self.scalar.bits // 8

    def write(self) -> None:
        """All functions."""
        self._segment()
        self._units()
        write_run(self.module, DRIVER, "units")

    def _units(self) -> None:
        """Units `begin` to `end`, those next to each other in a block of columns at once."""
        b = self.module.function("units", [("ctx", PTR), ("begin", I64), ("end", I64)], linkage="internal")
        context, begin, end = b.params
        plan = b.load(PTR, context)
        tiles = b.load(I64, b.gep("i64", plan, PLAN.index("tiles")))
        blocks = b.load(I64, b.gep("i64", plan, PLAN.index("blocks")))
        tile_bytes = MOST_ROWS * MOST_VECTORS * self.lanes * self.size
        room = BLOCK_BYTES, ROW_BYTES, tile_bytes
        scratch = [b.alloca(Type("i8"), bytes_) for bytes_ in room]
        head, done = b.label("next"), b.label("done")
        before = b.block
        b.branch_if(b.cmp("slt", begin, end), head, done)
        b.place(head)
        unit = b.phi(I64, (begin, before))
        tile, which = b.op("urem", unit, tiles), b.op("udiv", unit, tiles)
        stop = b.intrinsic("smin", tiles, b.op("add", tile, b.op("sub", end, unit)))
        b.call("segment", [context, b.op("udiv", which, blocks), b.op("urem", which, blocks), tile, stop, *scratch])
        following = b.op("add", unit, b.op("sub", stop, tile))
        unit.add(following, b.block)
        b.branch_if(b.cmp("slt", following, end), head, done)
        b.place(done)
        b.ret()

    def _segment(self) -> None:
        """Tiles `begin` to `end` of rows in one block of columns of one product of the batch."""
        b = self.module.function("segment", [("ctx", PTR), ("t", I64), ("block", I64), ("begin", I64), ("end", I64),
                                             ("packed", PTR), ("rows", PTR), ("tile", PTR)],
                                 linkage="internal", attributes="noinline")
        Segment(b, PackWriter(b, self.scalar.text, self.lanes, self.masks)).write()


class Planned:
    """Writes a function `b` which finds addresses in a `context`, and numbers in its `plan`, by these names."""

    addresses: Sequence[str] = CONTEXT
    numbers: Sequence[str] = PLAN
    b: Builder
    context: Value
    plan: Value

    def get(self, name: str) -> Value:
        """A number of the plan, loaded where it is used: there are more of them than registers."""
        return self.b.load(I64, self.part(name))

    def part(self, name: str) -> Value:
        """The place of a number of the plan."""
        return self.b.gep("i64", self.plan, self.numbers.index(name))

    def address(self, name: str) -> Value:
        return self.b.load(PTR, self.b.gep("ptr", self.context, self.addresses.index(name)))

    def mul(self, x: Value, y: Value) -> Value:
        return self.b.op("mul", x, y, "nsw")

    def pieces(self, total: Value, size: Value) -> Value:
        """How many pieces of a size there are, the last one perhaps smaller."""
        return self.b.op("sdiv", self.b.op("add", total, self.b.op("sub", size, i64(1))), size)


class Segment(Planned):
    """Writes `segment`: for each block of k, pack B; for each tile of rows, for each panel of columns, a kernel."""

    def __init__(self, b: Builder, move: PackWriter) -> None:
        self.b = b
        self.move = move
        self.context, self.t, self.block, self.begin, self.end, self.packed, self.row_room, self.tile_room = b.params
        self.plan = b.load(PTR, self.context)

    def _is(self, name: str) -> Value:
        return self.b.cmp("ne", self.get(name), 0)

    def _scale(self, name: str) -> Value:
        """alpha or beta."""
        if self.move.scalar.text == "i32":
            return self.b.const(self.move.scalar, 1)
        value = self.b.cast("bitcast", self.get(name), Type("double"))
        return value if self.move.scalar is value.type else self.b.cast("fptrunc", value, self.move.scalar)

    def write(self) -> None:
        """The whole function."""
        b, move, mul = self.b, self.move, self.mul
        nc = self.get("nc")
        left = mul(self.block, nc)
        self.columns = b.intrinsic("smin", nc, b.op("sub", self.get("n"), left))
        self.panels = self.pieces(self.columns, self.get("width"))
        a = move.at(self.address("a"), mul(self.t, self.get("a_step")))
        source = move.at(self.address("b"), mul(self.t, self.get("b_step")), mul(left, self.get("js")))
        target = move.at(self.address("c"), mul(self.t, self.get("c_step")), left)
        k, kc = self.get("k"), self.get("kc")

        def deep(number: Value, _: list[Value]) -> list[Value]:
            p = mul(number, kc)
            depth = b.intrinsic("smin", kc, b.op("sub", k, p))
            origin, rows = move.at(source, mul(p, self.get("bs"))), move.at(a, mul(p, self.get("ks")))
            self._pack(origin, depth)

            def tile(number: Value, _: list[Value]) -> list[Value]:
                self._tile(number, rows, origin, target, depth, b.cmp("sgt", p, 0))
                return []

            loop(b, self.begin, self.end, 1, tile)
            return []

        loop(b, 0, self.pieces(k, kc), 1, deep, sure=True)
        b.ret()

    def _panel(self, number: Value) -> tuple[Value, Value, Value, Value]:
        """First column, columns, width and whether it is the narrow one, of a panel."""
        b, width = self.b, self.get("width")
        first = self.mul(number, width)
        columns = b.intrinsic("smin", width, b.op("sub", self.columns, first))
        last = b.cmp("slt", columns, width)
        return first, columns, b.select(last, self.get("edge"), width), last

    def _pack(self, origin: Value, depth: Value) -> None:
        """Panels of B that kernels cannot read where they are: all, or one that is not whole."""
        b, move = self.b, self.move

        def panel(number: Value, _: list[Value]) -> list[Value]:
            first, columns, width, _last = self._panel(number)

            def pack() -> None:
                js = self.get("js")
                direct = b.cmp("eq", js, 1)
                args = [move.at(self.packed, self.mul(first, depth)), move.at(origin, self.mul(first, js)),
                        b.select(direct, self.get("bs"), js), depth, columns, width]

                def rows() -> None:
                    b.call(self.address("pack_b"), args)

                def transposed() -> None:
                    b.call(self.address("transpose"), args)

                when(b, direct, rows, transposed)

            when(b, b.op("or", self._is("pack_b"), b.cmp("ne", columns, width)), pack)
            return []

        loop(b, 0, self.panels, 1, panel)

    def _tile(self, number: Value, a: Value, origin: Value, target: Value, depth: Value, later: Value) -> None:
        """A tile of rows by all panels; `later`: not in the first block of k."""
        b, move = self.b, self.move
        high, low, first = self.get("high"), self.get("low"), self.get("first")
        late = b.cmp("sge", number, first)
        before = b.intrinsic("smin", number, first)
        top = b.op("add", self.mul(before, high), self.mul(b.op("sub", number, before), low))
        height = b.select(late, low, high)
        rows = b.intrinsic("smin", height, b.op("sub", self.get("rows"), top))
        partial = b.cmp("slt", rows, height)
        place = move.at(a, self.mul(top, self.get("rs")))
        target = move.at(target, self.mul(top, self.get("cs")))
        matrix = self._packed_rows(place, rows, depth, b.op("or", self._is("pack_a"), partial))
        reads = b.op("or", later, self._is("keep"))

        def panel(p: Value, _: list[Value]) -> list[Value]:
            first, columns, width, last = self._panel(p)
            row = b.op("add", b.cast("zext", late, I64), times(b, b.cast("zext", last, I64), 2))
            kernel = b.load(PTR, b.gep("ptr", b.gep("ptr", self.context, CONTEXT.index("kernel0")), row))
            broken = b.cmp("ne", columns, width)
            packed = b.op("or", self._is("pack_b"), broken)
            source = b.select(packed, move.at(self.packed, self.mul(first, depth)), move.at(origin, first))
            step = b.select(packed, width, self.get("bs"))
            c = move.at(target, first)

            def through_tile() -> None:
                b.call(kernel, [*matrix, source, step, self.tile_room, width, depth, b.const(I1, 0)])
                beta = b.select(later, b.const(move.scalar, 1), self._scale("beta"))
                b.call(self.address("merge"), [c, self.get("cs"), self.tile_room, width, rows, columns,
                                                self._scale("alpha"), beta, reads])

            def straight() -> None:
                b.call(kernel, [*matrix, source, step, c, self.get("cs"), depth, reads])

            when(b, b.op("or", b.op("or", broken, partial), self._is("scaled")), through_tile, straight)
            return []

        loop(b, 0, self.panels, 1, panel)

    def _packed_rows(self, a: Value, rows: Value, depth: Value, copied: Value) -> list[Value]:
        """Address and strides of a tile of A, which is packed if `copied`."""
        b = self.b
        rs, ks = self.get("rs"), self.get("ks")
        by_rows = b.cmp("eq", ks, 1)
        ld = b.select(by_rows, b.op("add", depth, i64(self.move.width)), i64(MOST_ROWS))

        def pack() -> None:
            b.call(self.address("pack_a"), [self.row_room, a, rs, ks, rows, depth, ld])

        when(b, copied, pack)
        return [b.select(copied, self.row_room, a), b.select(copied, b.select(by_rows, ld, i64(1)), rs),
                b.select(copied, b.select(by_rows, i64(1), ld), ks)]
