"""What threads of a grid do besides computing, as LLVM text: which one they are, waiting for others, exchanging values.

    Nvptx     special registers, `bar.sync`, `shfl.sync`; of the whole grid: a counter in memory

A kernel is called with 16 bytes of memory for this: the counter, the status of the last callback, the address of the
mailbox, a word that the host looks at: it has the number of what is asked for, or what is answered, with the first bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from anima.compiler.emitting.value import I32, I64, PTR, i64
from anima.compiler.grid.target import GridTarget
from anima.compiler.ir.assembly import Builder, ModuleBuilder, Type, Value

WHOLE_WARP = 0xFFFFFFFF


class Threading(Protocol):
    """How a kind of grid does it, in the entry function of a program: `thread` is the number of a thread in its block,
    `block` that of the block, of `blocks`."""

    b: Builder
    entry: str
    threads: int
    single: bool
    thread: Value
    block: Value
    blocks: Value

    def arguments(self) -> list[Value]:
        """The addresses that the program is called with."""
        ...

    def shared(self, offset: int) -> Value:
        """An address in the memory that a block shares."""
        ...

    def barrier(self, width: int) -> None:
        """All threads of a team of so many threads wait for each other; 0: of the whole grid."""
        ...

    def call_back(self, thread: Value, number: int) -> Value:
        """A call back into Python, for which the first thread of the grid asks and all wait: what is its status (i32),
        0 if it went well."""
        ...

    def exchange(self, value: Value, distance: int, width: int) -> Value:
        """The i32 that another thread of a team has, whose number differs by the bit `distance`."""
        ...

    @staticmethod
    def finish(text: str, kernels: Sequence[Any]) -> str:
        """The text of a module of kernels, with what it needs."""
        ...


class Nvptx:
    """A GPU of NVIDIA's. `single`: there is one block."""

    def __init__(self, module: ModuleBuilder, target: GridTarget, entry: str, threads: int, single: bool,
                 read: Sequence[bool]) -> None:
        self.target, self.entry, self.threads, self.single, self.module = target, entry, threads, single, module
        params = [(f"a{n}", PTR, "noalias readonly" if only else "noundef") for n, only in enumerate(read)]
        self.b = module.function(entry, [*params, ("arena", PTR), ("counter", PTR)])
        self.thread = self._register("tid")
        self.block = self._register("ctaid") if not single else Value("0", I32)
        self.blocks = self._register("nctaid") if not single else Value("1", I32)

    def _register(self, name: str) -> Value:
        full = f"llvm.nvvm.read.ptx.sreg.{name}.x"
        self.module.declare(full, [], I32)
        return self.b.first(f"call i32 @{full}()", I32)

    def arguments(self) -> list[Value]:
        return self.b.params

    def shared(self, offset: int) -> Value:
        base = self.b.assign("addrspacecast ptr addrspace(3) @anima_shared to ptr", PTR)
        return self.b.gep("i8", base, offset) if offset else base

    def barrier(self, width: int) -> None:
        if width == 0 and not self.single:
            self.b.line(f"call void @anima.grid_barrier(ptr {self.b.params[-1].name}, i32 {self.blocks.name})")
        elif width == 0 or width > self.target.warp:
            if self.threads > self.target.warp:
                self.b.line("call void @llvm.nvvm.barrier0()")
            else:
                self._warp_barrier(str(WHOLE_WARP if self.threads == self.target.warp else (1 << self.threads) - 1))
        elif width > 1:
            self._warp_barrier(self._mask(width))

    def _warp_barrier(self, mask: str) -> None:
        self.b.line(f"call void @llvm.nvvm.bar.warp.sync(i32 {mask})")

    def _mask(self, width: int) -> str:
        """The lanes of a warp that are the team of this thread."""
        if width >= self.target.warp:
            return str(WHOLE_WARP)
        first = self.b.op("and", self.thread, self.target.warp - width)
        return self.b.op("shl", Value(str((1 << width) - 1), I32), first).name

    def call_back(self, thread: Value, number: int) -> Value:
        b, counter = self.b, self.b.params[-1]
        then, done = b.label("ask"), b.label("asked")
        b.branch_if(b.cmp("eq", thread, i64(0)), then, done)
        b.place(then)
        b.line(f"call void @anima.call_back(ptr {counter.name}, i32 {number})")
        b.branch(done)
        b.place(done)
        self.barrier(0)
        b.line('call void asm sideeffect "fence.acq_rel.sys;", "~{memory}"()')  # what has been written from outside
        return b.assign(f"load volatile i32, ptr {b.gep('i8', counter, 4).name}", I32)

    def exchange(self, value: Value, distance: int, width: int) -> Value:
        mask = self._mask(width)
        return self.b.assign(f"call i32 @llvm.nvvm.shfl.sync.bfly.i32(i32 {mask}, {value}, i32 {distance}, i32 31)",
                             I32)

    @staticmethod
    def finish(text: str, kernels: Sequence[Nvptx]) -> str:
        attributes, bounds = [], []  # these metadata, as LLVM 20 wants them; later ones take them, too
        for number, kernel in enumerate(kernels):
            name = f"@{kernel.entry}("
            head, _, rest = text.partition(f"define void {name}")
            params, _, body = rest.partition(") #0")
            text = f"{head}define ptx_kernel void {name}{params}) #{number + 2}{body}"
            attributes.append(f"attributes #{number + 2} = {{ nounwind }}")
            bounds.append(f"!{10 ** 6 + number}")  # beyond those of the module
            attributes.append(f'{bounds[-1]} = !{{ptr @{kernel.entry}, !"maxntidx", i32 {kernel.threads}}}')
        single = all(kernel.single for kernel in kernels)
        calls = "call void @anima.call_back(" in text
        return "\n".join([text, _NVPTX, "" if single else _GRID_BARRIER, _CALL_BACK if calls else "", *attributes,
                          f"!nvvm.annotations = !{{{', '.join(bounds)}}}"])


_NVPTX = """
@anima_shared = external addrspace(3) global [0 x i8], align 16
declare void @llvm.nvvm.barrier0()
declare void @llvm.nvvm.bar.warp.sync(i32)
declare i32 @llvm.nvvm.shfl.sync.bfly.i32(i32, i32, i32, i32)
attributes #1 = { nounwind convergent noinline }
"""
# Blocks count the barrier in a word whose first bit changes when all of them are there: the first block adds what is
# left to that. The first thread of a block counts for it; before, all of it have stored, after, all may load.
_GRID_BARRIER = '''
define internal void @anima.grid_barrier(ptr %counter, i32 %blocks) #1 {
entry:
  call void @llvm.nvvm.barrier0()
  %thread = call i32 asm "mov.u32 $0, %tid.x;", "=r"()
  %is_first = icmp eq i32 %thread, 0
  br i1 %is_first, label %first, label %done
first:
  %block = call i32 asm "mov.u32 $0, %ctaid.x;", "=r"()
  %is_zero = icmp eq i32 %block, 0
  %others = sub i32 -2147483647, %blocks
  %step = select i1 %is_zero, i32 %others, i32 1
  call void asm sideeffect "fence.acq_rel.gpu;", "~{memory}"()
  %before = call i32 asm sideeffect "atom.add.acq_rel.gpu.u32 $0, [$1], $2;", "=r,l,r,~{memory}"(
      ptr %counter, i32 %step)
  br label %wait
wait:
  %now = call i32 asm sideeffect "ld.acquire.gpu.u32 $0, [$1];", "=r,l,~{memory}"(ptr %counter)
  %changed = xor i32 %now, %before
  %all = icmp slt i32 %changed, 0
  br i1 %all, label %passed, label %wait
passed:
  call void asm sideeffect "fence.acq_rel.gpu;", "~{memory}"()
  br label %done
done:
  call void @llvm.nvvm.barrier0()
  ret void
}
'''
# The host looks at the word in its own memory; what it needs has been stored before, by all threads.
_CALL_BACK = '''
define internal void @anima.call_back(ptr %counter, i32 %number) #1 {
entry:
  %place = getelementptr i8, ptr %counter, i64 8
  %mailbox = load ptr, ptr %place
  call void asm sideeffect "fence.acq_rel.sys;", "~{memory}"()
  call void asm sideeffect "st.release.sys.u32 [$0], $1;", "l,r,~{memory}"(ptr %mailbox, i32 %number)
  br label %wait
wait:
  %now = call i32 asm sideeffect "ld.acquire.sys.u32 $0, [$1];", "=r,l,~{memory}"(ptr %mailbox)
  %answered = icmp slt i32 %now, 0
  br i1 %answered, label %done, label %wait
done:
  %status = and i32 %now, 2147483647
  %status_place = getelementptr i8, ptr %counter, i64 4
  store volatile i32 %status, ptr %status_place
  ret void
}
'''


KINDS: dict[str, Callable[..., Threading]] = {"nvptx64-nvidia-cuda": Nvptx}  # by the triple of the target


def words(b: Builder, value: Value) -> Sequence[Value]:
    """A value as i32s."""
    bits = value.type.bits
    if value.type.is_float:
        value = b.cast("bitcast", value, Type(f"i{bits}"))
    if bits < 32:
        return [b.cast("zext", value, I32)]
    if bits == 32:
        return [value]
    return [b.cast("trunc", value, I32), b.cast("trunc", b.op("lshr", value, 32), I32)]


def from_words(b: Builder, found: Sequence[Value], type: Type) -> Value:
    """A value of a type, of its `words`."""
    value = found[0]
    bits = type.bits
    if bits < 32:
        value = b.cast("trunc", value, Type(f"i{bits}"))
    elif bits == 64:
        low, high = (b.cast("zext", w, I64) for w in found)
        value = b.op("or", low, b.op("shl", high, 32))
    return b.cast("bitcast", value, type) if type.is_float else value
