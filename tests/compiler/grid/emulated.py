"""Grids on a CPU: threads of the operating system stand for those of a grid, so that programs for grids run anywhere.

    outputs = run(compile_grid(closed, "f", (), TARGET), inputs)

Each thread runs the program's own code, compiled for this machine; barriers and exchanges are Python's. Memory that a
block shares, temporaries and results are full of NaN, or of -1, at first.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from anima.compiler.emitting.value import I32, NUMPY, PTR
from anima.compiler.grid.compile import GridProgram, Launch, LibraryProduct
from anima.compiler.grid.device import KINDS
from anima.compiler.grid.target import GridTarget
from anima.compiler.ir.assembly import ModuleBuilder, Value
from anima.compiler.ir.loops import Program, slots
from anima.compiler.machine import native

BLOCKS = 3
_SECONDS = 60.0


class Threads:
    """Threads of a CPU that stand for those of a grid: the host has functions `anima_barrier`, `anima_exchange`."""

    def __init__(self, module: ModuleBuilder, target: GridTarget, entry: str, threads: int, single: bool,
                 read: Sequence[bool]) -> None:
        self.target, self.entry, self.threads, self.single, self.module = target, entry, threads, single, module
        pointers, numbers = ("table", "arena", "shared"), ("thread", "block", "blocks")
        self.b = module.function(entry, [*((n, PTR) for n in pointers), *((n, I32) for n in numbers)])
        self.table, self.arena, self.memory, self.thread, self.block, self.blocks = self.b.params
        self.count = len(read)

    def arguments(self) -> list[Value]:
        found = [self.b.first(f"getelementptr i64, ptr %table, i64 {n}", PTR) for n in range(self.count)]
        return [*(self.b.first(f"load ptr, ptr {p.name}", PTR) for p in found), self.arena]

    def shared(self, offset: int) -> Value:
        return self.b.gep("i8", self.memory, offset) if offset else self.memory

    def barrier(self, width: int) -> None:
        if width == 1:
            return
        self.module.declare("anima_barrier", [I32] * 3, None)
        self.b.call("anima_barrier", [self.thread, self.block, Value(str(width), I32)])

    def exchange(self, value: Value, distance: int, width: int) -> Value:
        self.module.declare("anima_exchange", [I32] * 5, I32)
        found = self.b.call("anima_exchange", [self.thread, self.block, Value(str(width), I32),
                                               Value(str(distance), I32), value], I32)
        assert found is not None
        return found

    @staticmethod
    def finish(text: str, kernels: Sequence[Threads]) -> str:
        return text


def _target() -> GridTarget:
    host = native.host()
    KINDS[host.triple] = Threads
    return GridTarget(host.triple, host.cpu, host.features, 4, 64, second_cache=1 << 14, warp=4, block=8, single=8,
                      at_once=64, shared=1 << 16, products=True)


TARGET = _target()
_BARRIER = ctypes.CFUNCTYPE(None, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32)
_EXCHANGE = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int32] * 5)
_ENTRY = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *[ctypes.c_int32] * 3)


class Grid:
    """Threads that run one program."""

    def __init__(self, step: Launch, target: GridTarget) -> None:
        self.threads, self.blocks = step.threads, min(step.blocks, BLOCKS)
        self.warp = target.warp
        self.barriers: dict[tuple[int, int, int], threading.Barrier] = {}
        self.values: dict[tuple[int, int], int] = {}
        self.lock = threading.Lock()
        self.failed: list[BaseException] = []

    def launch(self, entry: Any, table: int, arena: int, shared: int) -> None:
        """Runs a kernel."""
        memory = [np.full(shared + 16, 255, np.uint8) for _ in range(self.blocks)]

        def work(thread: int, block: int) -> None:
            entry(table, arena, -(-memory[block].ctypes.data // 16) * 16, thread, block, self.blocks)

        threads = [threading.Thread(target=work, args=(t, b)) for b in range(self.blocks) for t in range(self.threads)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(2 * _SECONDS)
        assert not any(t.is_alive() for t in threads), "a thread of the grid never ends"
        assert not self.failed, "threads of a team did not all come to a barrier"

    def team(self, thread: int, block: int, width: int) -> threading.Barrier:
        whole = width == 0 or width >= self.threads
        key = (0, 0, 0) if width == 0 else (block, 0, 0) if whole else (block, width, thread // width)
        if width == 0:
            key = (-1, 0, 0)
        count = self.threads * self.blocks if width == 0 else min(width, self.threads)
        with self.lock:
            return self.barriers.setdefault(key, threading.Barrier(count))

    def barrier(self, thread: int, block: int, width: int) -> None:
        try:
            self.team(thread, block, width).wait(_SECONDS)
        except threading.BrokenBarrierError as error:
            self.failed.append(error)

    def exchange(self, thread: int, block: int, width: int, distance: int, value: int) -> int:
        self.values[block, thread] = value
        self.barrier(thread, block, width)
        found = self.values[block, thread ^ distance]
        self.barrier(thread, block, width)
        return found


def run(program: GridProgram, inputs: Sequence[Any], target: GridTarget = TARGET) -> list[np.ndarray]:
    """The program's results, as flat arrays, for its inputs; those that are donated are written over in a copy."""
    barriers = _BARRIER(lambda *given: grid.barrier(*given))
    exchange = _EXCHANGE(lambda *given: grid.exchange(*given))
    symbols = {"anima_barrier": ctypes.cast(barriers, ctypes.c_void_p).value or 0,
               "anima_exchange": ctypes.cast(exchange, ctypes.c_void_p).value or 0}
    module = native.load_object(native.compile_object(program.text, check=True), None, None, symbols)
    memory = memory_of(program.program, inputs)
    given = [memory[b.name] for b in slots(program.program)]
    table = np.array([*(a.ctypes.data for a in given), 0], np.int64)
    arena = np.full(program.program.arena + 64, 255, np.uint8)
    start = -arena.ctypes.data % 64
    for step in program.steps:
        if isinstance(step, LibraryProduct):
            product(step, [*given, arena[start:]])
            continue
        grid = Grid(step, target)
        grid.launch(_ENTRY(module.address(step.entry)), table.ctypes.data, arena.ctypes.data + start, step.shared)
    return [memory[b.name] for b in program.program.with_role("output")]


def product(step: LibraryProduct, memory: Sequence[np.ndarray]) -> None:
    """What a library does on a GPU."""
    a = step.arguments
    dtype = NUMPY[a["dtype"]]
    for t in range(a["batch"]):
        x, y, z = (np.lib.stride_tricks.as_strided(
            memory[p.slot].reshape(-1).view(np.uint8)[p.offset:].view(dtype)[a[f"{n}_offset"] + t * a[f"{n}_stride"]:],
            shape, (a[f"ld{n}"] * dtype.itemsize, dtype.itemsize)) for n, p, shape in zip("abc", step.places, (
                (a["k"], a["m"]) if a["transa"] == "T" else (a["m"], a["k"]),
                (a["n"], a["k"]) if a["transb"] == "T" else (a["k"], a["n"]), (a["m"], a["n"])), strict=True))
        x, y = x.T if a["transa"] == "T" else x, y.T if a["transb"] == "T" else y
        z[...] = a["alpha"] * (x @ y) + (a["beta"] * z if a["beta"] else 0)


def memory_of(program: Program, inputs: Sequence[Any]) -> dict[str, np.ndarray]:
    """The memory of what a program is given, by name."""
    given = iter(inputs)
    memory: dict[str, np.ndarray] = {}
    for b in program.buffers:
        dtype = NUMPY[b.dtype]
        if b.role == "input":
            memory[b.name] = np.array(next(given), dtype).reshape(-1)
        elif b.role == "const":
            memory[b.name] = np.ascontiguousarray(b.value, dtype).reshape(-1)
        elif b.role == "output" and b.alias is None:
            memory[b.name] = np.full(b.size * dtype.itemsize, 255, np.uint8).view(dtype)
    for b in program.buffers:
        if b.role == "output" and b.alias is not None:
            memory[b.name] = memory[b.alias].view(NUMPY[b.dtype])
    return memory
