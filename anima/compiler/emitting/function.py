"""Functions: kernels, and the bodies of parallel loops as functions of their own.

    parallel i < n: body    ->    ctx = {addresses, values};  parallel_for(pool, @body, ctx, n, grain)

`pool` points to a structure whose first word is the address of `parallel_for(pool, body, ctx, n, grain)`,
or is null: then the loop runs here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from anima.compiler.emitting.control import part_types
from anima.compiler.emitting.memory import Place
from anima.compiler.emitting.rows import RowsInLanes
from anima.compiler.emitting.value import I1, I8, I64, PTR, LaneIndex, Val, constant_of, i64, parts
from anima.compiler.ir.assembly import Builder, ModuleBuilder, Type, Value
from anima.compiler.ir.loops import (
    INDEX,
    Again,
    Call,
    Const,
    For,
    Let,
    Load,
    Local,
    Mutable,
    NamedValue,
    Stmt,
    Store,
    children,
)
from anima.compiler.ir.routines import buffers_read, buffers_written
from anima.util import record


@record
class Operands:
    """What a block of statements uses from outside: buffers, and names of values with their types."""

    buffers: tuple[str, ...]
    values: tuple[tuple[str, str], ...]


def operands(stmts: Sequence[Stmt]) -> Operands:
    """The free buffers and names of statements, in order of appearance."""
    buffers: dict[str, None] = {}
    names: dict[str, str] = {}
    bound: set[str] = set()
    scratch: set[str] = set()
    stack: list[Any] = list(reversed(stmts))
    while stack:
        node = stack.pop()
        kind = type(node)
        if kind is NamedValue:
            names.setdefault(node.name, node.dtype)
            continue
        if kind is Const:
            continue
        if kind is Let or kind is Mutable:
            bound.add(node.name)
        elif kind is Load or kind is Store:
            buffers.setdefault(node.buffer)
        elif kind is For:
            bound.add(node.index)
        elif kind is Call:
            used = *buffers_read(node.routine, node.args), *buffers_written(node.routine, node.args)
            buffers.update(dict.fromkeys(used))
        elif kind is Local:
            scratch.add(node.buffer)
        elif kind is Again:
            new = dict(node.names)
            buffers.update(dict.fromkeys(new[b] for b in operands((node.kernel,)).buffers))
            continue
        stack += reversed(children(node))
    return Operands(tuple(b for b in buffers if b not in scratch),
                    tuple((n, d) for n, d in names.items() if n not in bound))


@dataclass(slots=True)
class TextModule:
    """The LLVM module under construction.

    `written` says how often each long function stands in it in line, by name, element type and lanes."""

    builder: ModuleBuilder
    masks: bool
    parallel: bool = False  # whether anything uses the pool
    bodies: int = 0
    written: dict[tuple[str, str, int], int] = field(default_factory=dict)


class Function(RowsInLanes):
    """One LLVM function under construction; `pool` is its parameter for the thread pool, if it has one."""

    def __init__(self, module: TextModule, b: Builder, pool: Value | None) -> None:
        super().__init__(b)
        self.module = module
        self.masks = module.masks
        self.pool = pool
        self.env = {}
        self.renamed = {}
        self.made, self.written = {}, module.written
        self.held, self.sizes, self.numbers = {}, {}, {}
        self.tests, self.waiting = {}, {}
        self.heap, self.guarded = [], []
        self.windows = {}
        self.on_stack = 0
        self.outside = None

    def parallel(self, loop: For) -> None:
        """Outline the body and hand it to the pool."""
        extent = self.index(loop.extent)
        extent = LaneIndex(self.total(extent), 0, extent.lo, extent.hi)
        if self.pool is None or constant_of(extent.value) in (0, 1):
            self.serial(loop)
            return
        name = self._next_body()
        uses = operands(loop.body)
        given = self._context(uses, loop.index)
        fails = self._body(name, loop, uses, extent, len(given))
        self._hand_out(name, given, fails, extent.value, loop.grain)
        self.forget_stores(loop.body)

    def on_threads(self, given: Sequence[Value], extent: Value, grain: int, own: int,
                   body: Callable[[Function, Sequence[Value], Value, Value], None]) -> None:
        """Has the pool do `body(f, given, memory, i)` for all i < extent, in a function `f` that gets the values
        `given` and has `own` bytes of memory."""
        name = self._next_body()
        b = self.module.builder.function(name, [("ctx", PTR), ("begin", I64), ("end", I64)], linkage="internal")
        inner = Function(self.module, b, None)
        words = [self._word(b, value.type, number) for number, value in enumerate(given)]
        memory = inner.aligned_scratch(name, own) if own else Value("null", PTR)
        inner.counted(b.params[1], b.params[2], 1, [], (), lambda i: body(inner, words, memory, i))
        inner.finish(lambda: self._fail(b, len(given)))
        self._hand_out(name, given, inner.exhausted is not None, extent, grain)

    @staticmethod
    def _fail(b: Builder, number: int) -> None:
        """Writes into a word of what threads share that one of them got no memory."""
        b.store(i64(1), b.gep("i64", b.params[0], number))

    @staticmethod
    def _word(b: Builder, type: Type, number: int) -> Value:
        """A value that `_in_memory` put there."""
        address = b.gep("i64", b.params[0], number)
        return b.cast("trunc", b.load(I8, address), I1) if type is I1 else b.load(type, address)

    def _next_body(self) -> str:
        """The name of the function for another body that threads share."""
        self.module.parallel = True
        self.module.bodies += 1
        return f"{self.b.name}.parallel{self.module.bodies}"

    def _context(self, uses: Operands, index: str) -> list[Value]:
        """Addresses and values that the body uses."""
        values = [self.places[name].pointer for name in uses.buffers]
        for name, _ in uses.values:
            if name != index:
                values += parts(self.plain(self.env[name]))
        return values

    def _in_memory(self, values: Sequence[Value]) -> Value:
        """Values one after the other, eight bytes each."""
        b = self.b
        context = b.alloca(I64, max(len(values), 1))
        for number, value in enumerate(values):
            if value.type is I1:
                value = b.cast("zext", value, I8)
            b.store(value, b.gep("i64", context, number), 8)
        return context

    def _body(self, name: str, loop: For, uses: Operands, extent: LaneIndex, words: int) -> bool:
        """`void body(ptr ctx, i64 begin, i64 end)`; whether it fails where it gets no memory: then the word after all
        others of `ctx` is 1."""
        b = self.module.builder.function(name, [("ctx", PTR), ("begin", I64), ("end", I64)], linkage="internal")
        inner = Function(self.module, b, None)
        _, begin, end = b.params
        numbers = count()

        def word(type: Type) -> Value:
            return self._word(b, type, next(numbers))

        for buffer in uses.buffers:
            outer = self.places[buffer]
            inner.places[buffer] = Place(word(PTR), outer.dtype, outer.root)
        for value, dtype in uses.values:
            if value != loop.index:
                inner.env[value] = self._received(dtype, [word(t) for t in part_types(dtype, 1)], self.env[value])

        def body(i: Value) -> None:
            inner.env[loop.index] = LaneIndex(i, 0, 0, max(extent.hi - 1, 0))
            inner.block(loop.body)

        inner.counted(begin, end, 1, [], loop.body, body)
        inner.finish(lambda: self._fail(b, words))
        return inner.exhausted is not None

    def receive(self, names: Sequence[tuple[str, str]], params: Sequence[Value]) -> None:
        """Takes parameters of the function for the values of names."""
        given = iter(params)
        for name, dtype in names:
            registers = [next(given) for _ in part_types(dtype, 1)]
            if dtype == INDEX:
                self.env[name] = LaneIndex(registers[0])
            else:
                self.env[name] = registers[0] if len(registers) == 1 else (registers[0], registers[1])

    def plain(self, value: Val) -> Val:
        """A uniform value as registers hold it."""
        return LaneIndex(self.total(value)) if isinstance(value, LaneIndex) else value

    @staticmethod
    def _received(dtype: str, values: list[Value], original: Val) -> Val:
        if dtype == INDEX:
            assert isinstance(original, LaneIndex)
            return LaneIndex(values[0], 0, original.lo, original.hi)
        return values[0] if len(values) == 1 else (values[0], values[1])

    def _hand_out(self, body: str, given: Sequence[Value], fails: bool, extent: Value, grain: int) -> None:
        b = self.b
        assert self.pool is not None
        context = self._in_memory([*given, i64(0)] if fails else given)
        alone, shared, done = b.label("alone"), b.label("shared"), b.label("joined")
        b.branch_if(b.cmp("eq", self.pool, 0), alone, shared)
        b.place(alone)
        b.call(body, [context, i64(0), extent])
        b.branch(done)
        b.place(shared)
        parallel_for = b.load(PTR, self.pool)
        b.call(parallel_for, [self.pool, Value("@" + body, PTR), context, extent, i64(grain)])
        b.branch(done)
        b.place(done)
        if fails:
            self.give_up_unless_zero(b.load(I64, b.gep("i64", context, len(given))))
