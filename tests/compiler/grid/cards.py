"""Texts for NVIDIA's cards, run by threads of this machine: functions of the host stand where the text asks the card.

    Warps(threads=8, blocks=3, warp=4).launch(entry(text), addresses, shared=1024)

What a card leaves undefined is a failure: threads that wait for a warp's lanes and are none of these, or for lanes that
there are none of; values of lanes that give none. Memory that blocks share is full of NaN, or of -1, at first.
"""

from __future__ import annotations

import ctypes
import re
import threading
import time
from collections.abc import Callable, Sequence
from ctypes import CFUNCTYPE, c_int32, c_uint32, c_void_p
from typing import Any

import numpy as np

from anima.compiler.grid.device import WHOLE_WARP
from anima.compiler.machine import native

_SECONDS = 60.0
_ASM = r'asm (?:sideeffect )?"{}[^"]*", "[^"]*"\('
_HOSTED = [(re.escape(old), new) for old, new in (
    ("define ptx_kernel void", "define void"), ("@anima_shared = external addrspace(3) global [0 x i8], align 16", ""),
    ("addrspacecast ptr addrspace(3) @anima_shared to ptr", "call ptr @card_shared()"),
    ("llvm.nvvm.read.ptx.sreg.tid.x", "card_tid"), ("llvm.nvvm.read.ptx.sreg.ctaid.x", "card_ctaid"),
    ("llvm.nvvm.read.ptx.sreg.nctaid.x", "card_nctaid"), ("llvm.nvvm.barrier0", "card_block"),
    ("llvm.nvvm.bar.warp.sync", "card_warp"), ("llvm.nvvm.shfl.sync.bfly.i32", "card_shuffle"))]
_HOSTED += [(_ASM.format(re.escape(old)), new) for old, new in (
    ("mov.u32 $0, %tid.x", "@card_tid("), ("mov.u32 $0, %ctaid.x", "@card_ctaid("),
    ("fence.acq_rel.gpu", "@card_fence("), ("fence.acq_rel.sys", "@card_fence("),
    ("atom.add.acq_rel.gpu.u32", "@card_atom("), ("ld.acquire.gpu.u32", "@card_load("),
    ("st.release.sys.u32", "@card_store("), ("ld.acquire.sys.u32", "@card_load("))]
_HOSTED.append((r'@card_fence\("~\{memory\}"\)', "@card_fence()"))
_FUNCTIONS: dict[str, tuple[str, Any]] = {
    "tid": ("i32 @card_tid()", CFUNCTYPE(c_int32)), "ctaid": ("i32 @card_ctaid()", CFUNCTYPE(c_int32)),
    "nctaid": ("i32 @card_nctaid()", CFUNCTYPE(c_int32)), "block": ("void @card_block()", CFUNCTYPE(None)),
    "warp": ("void @card_warp(i32)", CFUNCTYPE(None, c_uint32)), "shared": ("ptr @card_shared()", CFUNCTYPE(c_void_p)),
    "shuffle": ("i32 @card_shuffle(i32, i32, i32, i32)", CFUNCTYPE(c_int32, c_uint32, *[c_int32] * 3)),
    "fence": ("void @card_fence()", CFUNCTYPE(None)),
    "atom": ("i32 @card_atom(ptr, i32)", CFUNCTYPE(c_int32, c_void_p, c_int32)),
    "load": ("i32 @card_load(ptr)", CFUNCTYPE(c_int32, c_void_p)),
    "store": ("void @card_store(ptr, i32)", CFUNCTYPE(None, c_void_p, c_int32))}


def hosted(text: str) -> str:
    """A text for a card as one for this machine."""
    text = re.sub(r'target triple = ".*"', f'target triple = "{native.host().triple}"', text)
    for old, new in _HOSTED:
        text = re.sub(old, new, text)
    text = "\n".join(line for line in text.split("\n") if not line.startswith("declare") or "@card_" not in line)
    return text + "\n" + "\n".join(f"declare {declared}" for declared, _ in _FUNCTIONS.values()) + "\n"


class Warps:
    """Threads, in warps, in blocks, that run one kernel. `current` has the ones that run, for functions of the host."""

    current: Warps
    here = threading.local()
    lock = threading.Lock()

    def __init__(self, threads: int, blocks: int, warp: int) -> None:
        self.threads, self.blocks, self.warp_size = threads, blocks, warp
        self.barriers: dict[Any, threading.Barrier] = {}
        self.values: dict[tuple[int, int], int] = {}
        self.failed: list[BaseException] = []

    def launch(self, entry: int, addresses: Sequence[int], shared: int) -> None:
        """Runs a kernel, to its end."""
        Warps.current = self
        self.memory = [np.full(shared + 16, 255, np.uint8) for _ in range(self.blocks)]
        kernel = CFUNCTYPE(None, *[c_void_p] * len(addresses))(entry)

        def work(thread: int, block: int) -> None:
            Warps.here.thread, Warps.here.block = thread, block
            kernel(*addresses)

        workers = [threading.Thread(target=work, args=(t, b)) for b in range(self.blocks) for t in range(self.threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(2 * _SECONDS)
        assert not self.failed, self.failed
        assert not any(worker.is_alive() for worker in workers), "a thread of the grid never ends"

    def wait(self, key: Any, count: int) -> None:
        with Warps.lock:
            barrier = self.barriers.setdefault(key, threading.Barrier(count))
        barrier.wait(_SECONDS)

    # ------------------------------------------------------------ what the text calls

    def tid(self) -> int:
        return Warps.here.thread

    def ctaid(self) -> int:
        return Warps.here.block

    def nctaid(self) -> int:
        return self.blocks

    def shared(self) -> int:
        return -(-self.memory[Warps.here.block].ctypes.data // 16) * 16

    def fence(self) -> None:
        pass

    def block(self) -> None:
        self.wait(("block", Warps.here.block), self.threads)

    def lanes(self, mask: int) -> list[int]:
        """The lanes of a warp that a mask names."""
        number, mine = divmod(Warps.here.thread, self.warp_size)
        there = [lane for lane in range(self.warp_size) if number * self.warp_size + lane < self.threads]
        assert mask == WHOLE_WARP or mask < 1 << len(there), f"lanes {mask:b} of a warp that has {len(there)}"
        assert mask != WHOLE_WARP or len(there) == self.warp_size, "a whole warp of less than a whole one"
        named = [lane for lane in there if mask >> lane & 1]
        assert mine in named, f"lane {mine} waits for {named}"
        return named

    def warp(self, mask: int) -> None:
        named = self.lanes(mask)
        self.wait((Warps.here.block, Warps.here.thread // self.warp_size, *named), len(named))

    def shuffle(self, mask: int, value: int, distance: int, last: int) -> int:
        thread, block = Warps.here.thread, Warps.here.block
        assert last == 31 and thread % self.warp_size ^ distance in self.lanes(mask), "a lane that gives no value"
        self.values[block, thread] = value
        self.warp(mask)
        found = self.values[block, thread ^ distance]
        self.warp(mask)
        return found

    def atom(self, address: int, step: int) -> int:
        with Warps.lock:
            word = c_uint32.from_address(address)
            before = word.value
            word.value = before + step
        return c_int32(before).value

    def load(self, address: int) -> int:
        time.sleep(0)
        assert not self.failed
        return c_int32.from_address(address).value

    def store(self, address: int, value: int) -> None:
        c_int32.from_address(address).value = value


def _function(name: str, kind: Any) -> Any:
    def call(*args: int) -> Any:
        try:
            return getattr(Warps.current, name)(*args)
        except BaseException as error:
            Warps.current.failed.append(error)
            return 0

    return kind(call)


_KEPT = {f"card_{name}": _function(name, kind) for name, (_, kind) in _FUNCTIONS.items()}


def load(text: str) -> Callable[[str], int] | None:
    """From names of kernels of a text to where they are; None if there are none."""
    if "define ptx_kernel" not in text:
        return None
    symbols = {name: ctypes.cast(function, c_void_p).value or 0 for name, function in _KEPT.items()}
    return native.load_object(native.compile_object(hosted(text), check=True), None, None, symbols).address
