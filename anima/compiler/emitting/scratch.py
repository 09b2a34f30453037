"""Scratch memory of functions: on the stack, as long as it is small, else from the C library.

Where memory is checked (`ANIMA_CHECK=2`), guard bytes stand after each piece; a function that finds them changed when
it returns leaves the name of the buffer in its module's `OVERRUN`. Fresh memory is full of NaN then.

A function for which there is no memory does nothing, and says so to its caller (`Control.finish`).
"""

from __future__ import annotations

from anima.compiler.emitting.held import Held
from anima.compiler.emitting.value import I1, I8, I64, PTR, itemsize
from anima.compiler.ir.assembly import Type, Value
from anima.compiler.storage.buffers import ALIGNMENT
from anima.util import check_level

OVERRUN = "anima.overrun"
_STACK_LIMIT = 1 << 17  # bytes of scratch memory of a function on the stack; more comes from malloc
_GUARD = Type("i64", 8)
_UNTOUCHED = 0x5A5A5A5A5A5A5A5A


class Scratch(Held):
    """Adds scratch memory to a function.

    `heap` is what to free at the end, `on_stack` the bytes of the rest; `guarded` the names of the buffers with guard
    bytes, and the addresses of these; `exhausted` the label of what is done where there is no memory, if that may be.
    """

    heap: list[Value]
    exhausted: str | None = None
    on_stack: int
    guarded: list[tuple[str, Value]]

    def scratch(self, buffer: str, dtype: str, size: int) -> Value:
        """Memory for a buffer, until the function returns."""
        nbytes = max(size, 1) * itemsize(dtype)
        if check_level() < 2:
            return self._memory(nbytes)
        guard = _GUARD.bits // 8 * _GUARD.width
        memory = self._memory(nbytes + guard)
        there = self.b.first(f"icmp ne {memory}, null", I1)
        self.b.module.declare("memset", [PTR, Type("i32"), I64], PTR)
        fresh, behind = (self.b.first(f"select {there}, i64 {n}, i64 0", I64) for n in (nbytes, guard))
        self.b.first(f"call ptr @memset(ptr {memory.name}, i32 255, {fresh})", PTR)
        end = self.b.first(f"getelementptr i8, {memory}, i64 {nbytes}", PTR)
        self.b.first(f"call ptr @memset({end}, i32 {_UNTOUCHED & 0xFF}, {behind})", PTR)
        self.guarded.append((buffer, end))
        return memory

    def aligned_scratch(self, name: str, nbytes: int) -> Value:
        """Memory that begins where vectors do, until the function returns."""
        memory = self.b.cast("ptrtoint", self.scratch(name, "u8", nbytes + ALIGNMENT - 1), I64)
        up = self.b.op("add", memory, ALIGNMENT - 1)
        return self.b.cast("inttoptr", self.b.op("and", up, -ALIGNMENT), PTR)

    def _memory(self, nbytes: int) -> Value:
        self.on_stack += nbytes
        if self.on_stack <= _STACK_LIMIT:
            return self.b.alloca(I8, nbytes)
        self.on_stack -= nbytes
        # The C library is asked at the function's start, whatever loop the statement is in, and once.
        self.b.module.declare("malloc", [I64], PTR)
        self.b.module.declare("free", [PTR], None)
        memory = self.b.first(f"call ptr @malloc(i64 {nbytes})", PTR)
        self.heap.append(memory)
        return memory

    def may_exhaust(self) -> str:
        """The label to jump to where there is no memory."""
        self.exhausted = self.exhausted or self.b.label("exhausted")
        return self.exhausted

    def look_at_memory(self) -> None:
        """Has the function begin with a look at whether it got its memory."""
        if self.heap:
            missing = [self.b.first(f"icmp eq {memory}, null", I1) for memory in self.heap]
            some = missing[0]
            for one in missing[1:]:
                some = self.b.first(f"or {some}, {one.name}", I1)
            self.b.start.append(f"  br {some}, label %{self.may_exhaust()}, label %entry")

    def look_at_guards(self) -> None:
        """Looks at guard bytes."""
        b = self.b
        for name, end in self.guarded:
            overrun, fine = b.label("overrun"), b.label("fine")
            changed = b.cast("bitcast", b.cmp("ne", b.load(_GUARD, end, 1), b.const(_GUARD, _UNTOUCHED)), I8)
            b.branch_if(b.cmp("ne", changed, 0), overrun, fine)
            b.place(overrun)
            text = b.module.constant(f"name.{name}", "i8", [*name.encode(), 0], 1)
            b.store(text, b.module.exported(OVERRUN), 8)
            b.branch(fine)
            b.place(fine)

    def release(self) -> None:
        """Frees memory."""
        for memory in self.heap:
            self.b.call("free", [memory])
