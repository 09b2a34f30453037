"""Programs whose loops are handed out to teams, as LLVM text: one function, which every thread of the grid runs.

    spread(32) i < 100: ...        for (i = thread / 32; i < 100; i += threads / 32) ...      a team of 32 is as one

Values that a team has in common each of its threads computes for itself; what a team stores, its first thread stores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anima.compiler.emitting.function import Function, TextModule
from anima.compiler.emitting.memory import Place
from anima.compiler.emitting.value import (
    I8,
    I32,
    I64,
    LaneIndex,
    Val,
    constant_of,
    i64,
    itemsize,
    parts,
    rebuild,
)
from anima.compiler.grid.barriers import GRID
from anima.compiler.grid.device import KINDS, Threading, from_words, words
from anima.compiler.grid.nests import asks_host, refusal
from anima.compiler.grid.target import GridTarget
from anima.compiler.ir.assembly import ModuleBuilder, Type, Value
from anima.compiler.ir.loops import (
    INDEX,
    Accumulate,
    Affine,
    Buffer,
    Call,
    Const,
    Expr,
    For,
    Kernel,
    Let,
    Load,
    Local,
    Mutable,
    NamedValue,
    Program,
    Stmt,
    Store,
    roots,
    slots,
    statements,
)
from anima.compiler.ir.neutral import neutral
from anima.compiler.scalars.table import write_support
from anima.core.source import Source

_EXCHANGE = 64 * 16   # bytes of a block's memory in which its warps exchange values
_MOST_LOCAL = 1 << 16  # bytes that a thread may have to itself


@dataclass(slots=True)
class Team:
    """The threads that run what is being written together: how many (0: the grid), and which of them this one is."""

    width: int
    rank: Value


class GridText:
    """The LLVM text of kernels."""

    def __init__(self, target: GridTarget) -> None:
        self.target = target
        self.module = ModuleBuilder(target.triple, 0, target.features)
        self.devices: list[Threading] = []
        self.calls: list[Call] = []  # what the host does, by the numbers with which kernels ask for it

    def kernel(self, entry: str, program: Program, threads: int, single: bool) -> int:
        """Writes a program as a kernel, for blocks of so many threads; how many bytes of memory a block shares."""
        read = [_is_read(b, program) for b in slots(program)]
        device = KINDS[self.target.triple](self.module, self.target, entry, threads, single, read)
        function = GridFunction(self.module, device, self.target, threads, single, self.calls)
        function.program(program)
        self.devices.append(device)
        return function.most_shared

    def finish(self) -> str:
        """The text of the module."""
        _add_support(self.module)
        text = self.module.text()
        return text if not self.devices else self.devices[0].finish(text, self.devices)


def _is_read(buffer: Buffer, program: Program) -> bool:
    """Whether memory is only read."""
    aliased = any(b.alias == buffer.name for b in program.buffers)
    return buffer.role == "const" or (buffer.role == "input" and not buffer.donated and not aliased)


class GridFunction(Function):
    """The entry function of a program, as a thread runs it."""

    def __init__(self, module: ModuleBuilder, device: Threading, target: GridTarget, threads: int, single: bool,
                 calls: list[Call]) -> None:
        super().__init__(TextModule(module, False), device.b, None)
        self.device, self.target, self.threads, self.calls = device, target, threads, calls
        b = self.b
        thread = b.cast("zext", device.thread, I64)
        self.thread = thread
        self.block_number = b.cast("zext", device.block, I64) if not single else i64(0)
        self.blocks = b.cast("zext", device.blocks, I64) if not single else i64(1)
        rank = thread if single else b.op("add", b.op("mul", self.block_number, i64(threads)), thread)
        self.team = self.grid = Team(threads if single else GRID, rank)
        self.shared_bytes = 0
        self.most_shared = 0
        self.outside = self.outer
        self.source: Source | None = None  # of the kernel that is being written
        self.lets: dict[str, Expr] = {}    # indices that have names in it
        self.lane_names: set[str] = set()
        self.loads_at: int | None = None   # the alignment of what is loaded, in lanes
        self.stores_at: int | None = None

    def program(self, program: Program) -> None:
        """Writes a program."""
        b = self.b
        *addresses, arena = self.device.arguments()[:len(slots(program)) + 1]
        given = {x.name: a for x, a in zip(slots(program), addresses, strict=True)}
        self.windows = {b.name: b.dtype for b in program.with_role("window")}
        for buffer, root in zip(program.buffers, roots(program.buffers).values(), strict=True):
            if buffer.name in self.windows:
                continue
            if buffer.name in given:
                pointer = given[buffer.name]
            elif root.name in given:
                pointer = given[root.name]
            else:
                assert root.offset is not None
                pointer = b.gep("i8", arena, root.offset) if root.offset else arena
            self.places[buffer.name] = Place(pointer, buffer.dtype, root.name)
        self.block(program.body)
        self.finish()

    def outer(self, stmt: Stmt) -> None:
        """A kernel, or a routine."""
        if isinstance(stmt, Kernel):
            used, lets, source = self.shared_bytes, self.lets, self.source
            self.lets, self.source = {}, stmt.source or source  # names of a kernel are its own
            with self.inlined(stmt.body):
                self.block(stmt.body)
            self.shared_bytes, self.lets, self.source = used, lets, source
            return
        if isinstance(stmt, Call) and stmt.routine == "barrier":
            self.device.barrier(0 if stmt.args[0] == GRID else int(stmt.args[0]))
            for place in self.places.values():
                self.changed(place.root)
            return
        assert isinstance(stmt, Call)
        if not asks_host(stmt) or self.team is not self.grid:
            raise refusal(f"'{stmt.routine}' cannot run on a GPU here", stmt.source)
        self.calls.append(stmt)
        self.stop_unless_zero(self.device.call_back(self.team.rank, len(self.calls) - 1))
        for place in self.places.values():
            self.changed(place.root)

    def statement(self, stmt: Stmt) -> None:
        match stmt:
            case Let(name=name, value=value) if value.dtype == INDEX:
                self.lets[name] = value
                super().statement(stmt)
            case Store(buffer=buffer, index=index) if self.width > 1 and buffer not in self.held:
                before, self.stores_at = self.stores_at, self.alignment(buffer, index)
                super().statement(stmt)
                self.stores_at = before
            case For(kind="spread"):
                self.spread(stmt)
            case Local(held="") if self.team.width != 1:
                self.places[stmt.buffer] = Place(self.of_team(stmt), stmt.dtype, stmt.buffer)
                self.held.pop(stmt.buffer, None)
                self.changed(stmt.buffer)
            case Call(routine="barrier"):
                self.outer(stmt)
            case _:
                super().statement(stmt)

    # ---------------------------------------------------------------- memory

    def evaluate(self, expr: Expr) -> Val:
        if type(expr) is not Load or self.width == 1 or expr.buffer in self.held:
            return super().evaluate(expr)
        index = self.index(expr.index)
        self.loads_at = self.alignment(expr.buffer, expr.index)
        found = self.load(expr.buffer, index)
        self.loads_at = None
        return found

    def alignment(self, buffer: str, index: Expr) -> int | None:
        """The bytes that divide the address of the first lane's element, if they are as many as all lanes' have."""
        if not self.whole_lanes(index):
            return None
        return self.width * itemsize(self.places[buffer].dtype)

    def whole_lanes(self, index: Expr) -> bool:
        """Whether an index is a multiple of the number of lanes, and the lane."""
        match index:
            case Const(value=value):
                return int(value) % self.width == 0
            case Affine(const=const):
                return const % self.width == 0 and all(c % self.width == 0 or (c == 1 and self.whole_lanes(v))
                                                       for v, c in index.terms)
            case NamedValue(name=name):
                return name in self.lane_names or (name in self.lets and self.whole_lanes(self.lets[name]))
        return False

    def vector(self, loop: For) -> None:
        self.lane_names.add(loop.index)
        super().vector(loop)
        self.lane_names.discard(loop.index)

    def _load_real(self, pointer: Value, scalar: str, index: LaneIndex) -> Value:
        if self.loads_at and index.step == 1 and not index.general and self.mask is None:
            return self.b.load(Type(scalar, self.width), self._address(pointer, scalar, index), self.loads_at)
        return super()._load_real(pointer, scalar, index)

    def _store_real(self, pointer: Value, scalar: str, index: LaneIndex, value: Value) -> None:
        if self.stores_at and index.step == 1 and not index.general and self.mask is None:
            value = self.b.splat(value, self.width) if value.type.width == 1 else value
            self.b.store(value, self._address(pointer, scalar, index), self.stores_at)
            return
        super()._store_real(pointer, scalar, index, value)

    def of_team(self, local: Local) -> Value:
        """Memory that a team has."""
        size = -(-max(local.size, 1) * itemsize(local.dtype) // 16) * 16
        width = self.team.width
        start = _EXCHANGE + self.shared_bytes
        count = 1 if width in (GRID, self.threads) else self.threads // width
        self.shared_bytes += size * count
        self.most_shared = max(self.most_shared, _EXCHANGE + self.shared_bytes)
        if self.most_shared > self.target.most_shared:
            raise refusal(f"{local.size} values of {local.dtype} take more memory than a block has", self.source)
        base = self.device.shared(start)
        if count == 1:
            return base
        number = self.b.op("lshr", self.thread, i64(width.bit_length() - 1))
        return self.b.gep("i8", base, self.b.op("mul", number, i64(size)))

    def scratch(self, buffer: str, dtype: str, size: int) -> Value:
        nbytes = max(size, 1) * itemsize(dtype)
        if nbytes > _MOST_LOCAL:
            raise refusal(f"{nbytes} bytes are more than a thread of a GPU has to itself", self.source)
        return self.b.alloca(I8, nbytes)

    def store(self, buffer: str, index: LaneIndex, value: Val) -> None:
        """What a team stores, its first thread stores."""
        if self.team.width == 1:
            super().store(buffer, index, value)
            return
        b = self.b
        index = LaneIndex(self.total(index), 0, index.lo, index.hi)
        then, done = b.label("first"), b.label("stored")
        b.branch_if(b.cmp("eq", self.team.rank, i64(0)), then, done)
        with self.scope():
            b.place(then)
            super().store(buffer, index, value)
            b.branch(done)
        b.place(done)
        self.changed(self.places[buffer].root)

    # ---------------------------------------------------------------- loops

    def spread(self, loop: For) -> None:
        """Hands iterations out to teams of `loop.width` threads of the team."""
        b, team, width = self.b, self.team, loop.width
        extent = self.index(loop.extent)
        stop = self.total(extent)
        start, step = self._division(team, width)
        inside = list(statements(*loop.body))
        own = {s.name for s in inside if isinstance(s, Mutable)}
        sums = {s.name: s for s in inside if isinstance(s, Accumulate) and s.name not in own}
        keys = self.carried(loop.body)
        before = {name: self.env[name] for name in sums}
        for name, stmt in sums.items():
            dtype = stmt.value.dtype
            self.env[name] = self.constant(neutral(stmt.op, dtype), dtype)
        rank = i64(0) if width == 1 else b.op("and", self.thread, i64(width - 1))
        self.team = Team(width, self.thread if width == self.threads else rank)
        used = self.shared_bytes

        def body(i: Value) -> None:
            self.env[loop.index] = LaneIndex(i, 0, 0, max(extent.hi - 1, 0))
            self.block(loop.body)

        self._strided(start, stop, step, keys, loop.body, body)
        self.shared_bytes = used
        self.team = team
        for name, stmt in sums.items():
            total = self._added_up(stmt.op, stmt.value.dtype, self.env[name])
            self.env[name] = self.combine(stmt.op, stmt.value.dtype, before[name], total)

    def _division(self, team: Team, width: int) -> tuple[Value, Value]:
        """Which of the smaller teams of a team this thread is in, and how many of them there are."""
        b = self.b
        if width == self.threads:
            return (i64(0), i64(1)) if team.width != GRID else (self.block_number, self.blocks)
        shift = i64(width.bit_length() - 1)
        number = team.rank if width == 1 else b.op("lshr", team.rank, shift)
        if team.width == GRID:
            return number, b.op("mul", self.blocks, i64(self.threads // width))
        return number, i64(team.width // width)

    def _strided(self, start: Value, stop: Value, step: Value, keys: Sequence[str], stmts: Sequence[Stmt],
                 body: Callable[[Value], None]) -> None:
        """`body(i)`, which writes `stmts`, for i in start, start + step, ... while i < stop."""
        b = self.b
        self.forget_stores(stmts)
        before, head, done = b.block, b.label("turn"), b.label("over")
        initial = {k: self.env[k] for k in keys}
        b.branch_if(b.cmp("slt", start, stop), head, done)
        trips = constant_of(stop) is not None and constant_of(step) is not None and (
            int(stop.name) <= int(step.name))
        with self.scope(), self.repeating():
            b.place(head)
            i: Value = start
            phis = {}
            if not trips:
                i = b.phi(I64, (start, before))
                phis = self._phis(keys, before)
            body(i)
            results = {k: self.env[k] for k in keys}
            latch = b.block
            if trips:
                b.branch(done)
            else:
                following = b.op("add", i, step, "nsw")
                i.add(following, b.block)  # type: ignore[attr-defined]
                for k, values in phis.items():
                    for phi, value in zip(values, parts(results[k]), strict=True):
                        phi.add(value, latch)
                b.branch_if(b.cmp("slt", following, stop), head, done)
        b.place(done)
        self.env.update({k: self._join(initial[k], before, results[k], latch) for k in keys})
        self.forget_stores(stmts)

    # ---------------------------------------------------------------- what teams add up

    def _added_up(self, op: str, dtype: str, value: Val) -> Val:
        """A value of each thread of the team, all of them together."""
        width = self.team.width
        if width in (1, GRID):
            if width == GRID:
                raise ValueError("what a whole grid adds up is taken in parts")
            return value
        warp = min(width, self.target.warp)
        distance = warp // 2
        while distance:
            value = self.combine(op, dtype, value, self._exchanged(value, distance, warp))
            distance //= 2
        return value if width == warp else self._over_warps(op, dtype, value)

    def _exchanged(self, value: Val, distance: int, width: int) -> Val:
        found = [from_words(self.b, [self.device.exchange(w, distance, width) for w in words(self.b, p)], p.type)
                 for p in parts(value)]
        return rebuild(value, tuple(found))

    def _over_warps(self, op: str, dtype: str, value: Val) -> Val:
        """The values of the warps of a block together, in their order."""
        b, warp = self.b, self.target.warp
        self.most_shared = max(self.most_shared, _EXCHANGE)
        memory = self.device.shared(0)
        number = b.op("lshr", self.thread, i64(warp.bit_length() - 1))
        lane = b.op("and", self.thread, i64(warp - 1))
        then, done = b.label("lane"), b.label("told")
        b.branch_if(b.cmp("eq", lane, i64(0)), then, done)
        b.place(then)
        for k, part in enumerate(parts(value)):
            stored_ = b.cast("zext", part, I8) if part.type.scalar == "i1" else part
            b.store(stored_, b.gep("i8", memory, b.op("add", b.op("mul", number, i64(16)), i64(8 * k))), 8)
        b.branch(done)
        b.place(done)
        self.device.barrier(self.threads)
        total: Val | None = None
        for n in range(self.threads // warp):
            found = []
            for k, part in enumerate(parts(value)):
                place = b.gep("i8", memory, 16 * n + 8 * k)
                if part.type.scalar == "i1":
                    found.append(b.cast("trunc", b.load(I8, place), part.type))
                else:
                    found.append(b.load(part.type, place, 8))
            one = rebuild(value, tuple(found))
            total = one if total is None else self.combine(op, dtype, total, one)
        self.device.barrier(self.threads)
        assert total is not None
        return total

    # ---------------------------------------------------------------- indices

    def arithmetic(self, name: str, a: LaneIndex, c: LaneIndex) -> LaneIndex:
        """Divisions of numbers of 32 bits are done in 32 bits: machines have none of 64."""
        if name in ("div", "rem") and a.lo >= 0 and a.hi < 1 << 32 and c.lo > 0 and c.hi < 1 << 32:
            key = "narrow", name, a.value.name, a.offset, c.value.name, c.offset
            if key not in self.known:
                b = self.b
                x, y = (b.const(I32, n) if (n := constant_of(v)) is not None else b.cast("trunc", v, I32)
                        for v in (self.total(a), self.total(c)))
                self.known[key] = b.cast("zext", b.op("udiv" if name == "div" else "urem", x, y), I64)
            found = self.known[key]
            assert isinstance(found, Value)
            ends = (a.lo // c.hi, a.hi // c.lo) if name == "div" else (0, min(a.hi, c.hi - 1))
            return LaneIndex(found, 0, *ends)
        return super().arithmetic(name, a, c)


def _add_support(module: ModuleBuilder) -> None:
    """Defines the functions that are called rather than written in line."""
    while wanted := [name for name in module.declared if name.startswith("anima.support.")]:
        for name in wanted:
            module.undeclare(name)
            write_support(module, name, "internal")
