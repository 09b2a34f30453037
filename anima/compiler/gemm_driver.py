"""The driver of matrix products: a walk over blocks, which packs, and calls register kernels.

    for each block of columns:  for each block of k:  pack B;  for each tile of rows, each panel of columns: kernel

The driver of a scalar type serves all products of that type: `PLAN` has what differs between them. A unit of
work is one tile of rows in one block of columns.
"""

from __future__ import annotations

from collections.abc import Callable

from anima.compiler.assembly import Builder, ModuleBuilder, Type, Value
from anima.compiler.gemm_blocking import BLOCK_BYTES, DEPTH_BYTES, MOST_ROWS, MOST_VECTORS
from anima.compiler.gemm_kernel import I1, I64, PACK, PTR, SCALARS, Writer, i64, loop, when

# What the driver reads: the context has addresses, the plan integers (alpha and beta as bits).
CONTEXT = ("plan", "a", "b", "c", "kernel0", "kernel1", "edge0", "edge1", "transpose")
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


class Driver:
    """Writes `void gemm(ptr pool, ptr ctx, i64 units, i64 grain)` and what it calls, for one scalar type."""

    def __init__(self, module: ModuleBuilder, dtype: str, lanes: int, masks: bool) -> None:
        self.module = module
        self.scalar = Type(SCALARS[dtype])
        self.lanes = lanes
        self.masks = masks
        self.size = self.scalar.bits // 8

    def write(self) -> None:
        one = self.scalar
        self._part("pack_a", [PTR, PTR, I64, I64, I64, I64, I64], Writer.pack_a)
        self._part("pack_b", PACK, Writer.pack_b)
        self._part("merge", [PTR, I64, PTR, I64, I64, I64, one, one, I1], Writer.merge)
        self._segment()
        self._units()
        write_run(self.module, DRIVER, "units")

    def _part(self, name: str, params: list[Type], write: Callable[[Writer], None]) -> None:
        b = self.module.function(name, params, linkage="internal", attributes="noinline")
        write(Writer(b, self.scalar.text, self.lanes, self.masks))

    def _units(self) -> None:
        """Units `begin` to `end`, those next to each other in a block of columns at once."""
        b = self.module.function("units", [("ctx", PTR), ("begin", I64), ("end", I64)], linkage="internal")
        context, begin, end = b.params
        plan = b.load(PTR, context)
        tiles = b.load(I64, b.gep("i64", plan, PLAN.index("tiles")))
        blocks = b.load(I64, b.gep("i64", plan, PLAN.index("blocks")))
        tile_bytes = MOST_ROWS * MOST_VECTORS * self.lanes * self.size
        room = BLOCK_BYTES, MOST_ROWS * (max(DEPTH_BYTES.values()) + self.lanes * self.size), tile_bytes
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
        Segment(b, Writer(b, self.scalar.text, self.lanes, self.masks), self.size).write()


class Segment:
    """Writes `segment`: for each block of k, pack B; for each tile of rows, for each panel of columns, a kernel."""

    def __init__(self, b: Builder, move: Writer, size: int) -> None:
        self.b = b
        self.move = move
        self.context, self.t, self.block, self.begin, self.end, self.packed, self.row_room, self.tile_room = b.params
        self.words: dict[str, Value] = {}
        plan = b.load(PTR, self.context)
        for number, name in enumerate(PLAN):
            self.words[name] = b.load(I64, b.gep("i64", plan, number))
        for number, name in enumerate(CONTEXT):
            if name != "plan":
                self.words[name] = b.load(PTR, b.gep("ptr", self.context, number))
        self.alpha, self.beta = (b.cast("bitcast", self.words[w], Type("double")) for w in ("alpha", "beta"))
        if size == 4:
            self.alpha, self.beta = (b.cast("fptrunc", v, Type("float")) for v in (self.alpha, self.beta))

    def __getattr__(self, name: str) -> Value:
        return self.words[name]

    def write(self) -> None:
        b, move = self.b, self.move
        mul = self._mul
        left = mul(self.block, self.nc)
        self.columns = b.intrinsic("smin", self.nc, b.op("sub", self.n, left))
        self.panels = b.op("sdiv", b.op("add", self.columns, b.op("sub", self.width, i64(1))), self.width)
        a = move.at(self.a, mul(self.t, self.a_step))
        source = move.at(self.words["b"], mul(self.t, self.b_step), mul(left, self.js))
        target = move.at(self.c, mul(self.t, self.c_step), left)

        def deep(p: Value, _: list[Value]) -> list[Value]:
            depth = b.intrinsic("smin", self.kc, b.op("sub", self.k, p))
            origin = move.at(source, mul(p, self.bs))
            self._pack(origin, depth)

            def tile(number: Value, _: list[Value]) -> list[Value]:
                self._tile(number, move.at(a, mul(p, self.ks)), origin, target, depth, b.cmp("sgt", p, 0))
                return []

            loop(b, self.begin, self.end, 1, tile)
            return []

        self._deep(deep)
        b.ret()

    def _mul(self, x: Value, y: Value) -> Value:
        return self.b.op("mul", x, y, "nsw")

    def _deep(self, body: Callable) -> None:
        """`body(p)` for each block of k that starts at p."""
        b = self.b
        count = b.op("sdiv", b.op("add", self.k, b.op("sub", self.kc, i64(1))), self.kc)
        loop(b, 0, count, 1, lambda q, _: body(self._mul(q, self.kc), []), sure=True)

    def _panel(self, number: Value) -> tuple[Value, Value, Value, Value]:
        """First column, columns, width and whether it is the narrow one, of a panel."""
        b = self.b
        first = self._mul(number, self.width)
        columns = b.intrinsic("smin", self.width, b.op("sub", self.columns, first))
        last = b.cmp("slt", columns, self.width)
        return first, columns, b.select(last, self.edge, self.width), last

    def _pack(self, origin: Value, depth: Value) -> None:
        """Panels of B that kernels cannot read where they are: all, or one that is not whole."""
        b, move = self.b, self.move

        def panel(number: Value, _: list[Value]) -> list[Value]:
            first, columns, width, _last = self._panel(number)
            room = move.at(self.packed, self._mul(first, depth))
            direct = b.cmp("eq", self.js, 1)

            start, step = move.at(origin, self._mul(first, self.js)), b.select(direct, self.bs, self.js)

            def by(function: str | Value) -> Callable[[], None]:
                def call() -> None:
                    b.call(function, [room, start, step, depth, columns, width])

                return call

            when(b, b.op("or", b.cmp("ne", self.pack_b, 0), b.cmp("ne", columns, width)),
                 lambda: when(b, direct, by("pack_b"), by(self.transpose)))
            return []

        loop(b, 0, self.panels, 1, panel)

    def _tile(self, number: Value, a: Value, origin: Value, target: Value, depth: Value, more: Value) -> None:
        b, move = self.b, self.move
        late = b.cmp("sge", number, self.first)
        height = b.select(late, self.low, self.high)
        high_tiles = b.intrinsic("smin", number, self.first)
        top = b.op("add", self._mul(high_tiles, self.high), self._mul(b.op("sub", number, high_tiles), self.low))
        rows = b.intrinsic("smin", height, b.op("sub", self.rows, top))
        partial = b.cmp("slt", rows, height)
        a = move.at(a, self._mul(top, self.rs))
        target = move.at(target, self._mul(top, self.cs))
        by_rows = b.cmp("eq", self.ks, 1)
        copied = b.op("or", b.cmp("ne", self.pack_a, 0), partial)
        ld = b.select(by_rows, b.op("add", depth, i64(move.width)), i64(MOST_ROWS))
        where = a

        def pack() -> None:
            b.call("pack_a", [self.row_room, where, self.rs, self.ks, rows, depth, ld])

        when(b, copied, pack)
        a = b.select(copied, self.row_room, a)
        rs = b.select(copied, b.select(by_rows, ld, i64(1)), self.rs)
        ks = b.select(copied, b.select(by_rows, i64(1), ld), self.ks)
        kernel, edge = (b.select(late, self.words[f"{w}1"], self.words[f"{w}0"]) for w in ("kernel", "edge"))

        def panel(p: Value, _: list[Value]) -> list[Value]:
            first, columns, width, last = self._panel(p)
            chosen = b.select(last, edge, kernel)
            broken = b.cmp("ne", columns, width)
            packed = b.op("or", b.cmp("ne", self.pack_b, 0), broken)
            source = b.select(packed, move.at(self.packed, self._mul(first, depth)), move.at(origin, first))
            step = b.select(packed, width, self.bs)
            c = move.at(target, first)

            def through_tile() -> None:
                b.call(chosen, [a, rs, ks, source, step, self.tile_room, width, depth, b.const(I1, 0)])
                beta = b.select(more, b.const(self.beta.type, 1.0), self.beta)
                reads = b.op("or", more, b.cmp("ne", self.keep, 0))
                b.call("merge", [c, self.cs, self.tile_room, width, rows, columns, self.alpha, beta, reads])

            def straight() -> None:
                add = b.op("or", more, b.cmp("ne", self.keep, 0))
                b.call(chosen, [a, rs, ks, source, step, c, self.cs, depth, add])

            indirect = b.op("or", b.op("or", broken, partial), b.cmp("ne", self.scaled, 0))
            when(b, indirect, through_tile, straight)
            return []

        loop(b, 0, self.panels, 1, panel)
