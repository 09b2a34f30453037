"""An interpreter of programs for grids that proves their barriers right, for the inputs that it is given.

    run(program, inputs)        the results; RaceError where two threads touch a place, one of them storing, and no
                                barrier of a team of both is between; where threads of a team part at a barrier

Threads are generators, which stop where they wait. Every access is checked against its buffer, too. What moves or frees
tapes is done by the grid's first thread, at once, and loads or stores all that they have.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anima.compiler.grid.barriers import GRID
from anima.compiler.grid.compile import GridProgram, Launch
from anima.compiler.ir.interpret import DTYPES, Machine, operation
from anima.compiler.ir.loops import (
    Accumulate,
    Assign,
    Call,
    For,
    If,
    Kernel,
    Let,
    Local,
    Mutable,
    Program,
    Stmt,
    Store,
    While,
    WindowAt,
    statements,
)
from anima.compiler.ir.neutral import neutral
from anima.compiler.ir.routines import buffers_read, buffers_written
from anima.compiler.lowering.tape import TAPES
from anima.runtime.cuda_tapes import Tapes

BLOCKS = 2
Key = tuple[Any, ...]


class RaceError(AssertionError):
    """Threads that do not wait for each other where they must."""


@dataclass(slots=True)
class Team:
    """Threads that run statements together: how many (0: the grid), and which of them this one is."""

    width: int
    rank: int


class Grid:
    """The memory that threads share, and who waits for whom."""

    def __init__(self, program: Program, step: Launch, memory: dict[str, np.ndarray]) -> None:
        self.memory, self.threads, self.blocks = memory, step.threads, min(step.blocks, BLOCKS)
        self.shared: dict[Key, np.ndarray] = {}
        self.touched: dict[int, tuple[Any, dict[int, dict[Key, int]]]] = {}
        self.arrived: dict[Key, set[int]] = {}
        self.values: dict[Key, dict[int, Any]] = {}
        self.program = program
        self.windows = {b.name: b for b in program.with_role("window")}
        self.blocks_of_tapes: dict[int, np.ndarray] = {}
        self.driver, self.tapes = self, Tapes(self)
        self.first: Thread

    def size(self, key: Key) -> int:
        """How many threads a team has."""
        return {"grid": self.threads * self.blocks, "block": self.threads}.get(key[0], key[-1])

    def run(self, body: Sequence[Stmt]) -> None:
        """All threads, in turn, as far as they come."""
        waiting = {t: thread.block_of(body, Team(self.threads if self.blocks == 1 else GRID, t))
                   for t in range(self.threads * self.blocks)
                   for thread in [Thread(self, t)]}
        blocked: dict[int, Any] = {}
        while waiting:
            moved = False
            for t in list(waiting):
                if t in blocked and not blocked[t]():
                    continue
                moved = True
                blocked.pop(t, None)
                try:
                    blocked[t] = next(waiting[t])
                except StopIteration:
                    del waiting[t]
            if not moved:
                raise RaceError(f"threads {sorted(waiting)} wait for others, which never come")

    # ------------------------------------------------------------ memory of tapes, as of a GPU

    def allocate(self, nbytes: int, aside: bool) -> int:
        block = np.full(nbytes, 255, np.uint8)
        self.blocks_of_tapes[block.ctypes.data] = block
        return block.ctypes.data

    def copy(self, target: int, source: int, nbytes: int) -> None:
        self._touch_all(source, nbytes, False)
        self.blocks_of_tapes[target][:nbytes] = self.blocks_of_tapes[source][:nbytes]

    def clear(self, address: int, nbytes: int) -> None:
        self.blocks_of_tapes[address][:nbytes] = 0

    def free(self, address: int, aside: bool) -> None:
        block = self.blocks_of_tapes[address]
        if aside:
            self._touch_all(address, block.size, True)
            block[:] = 255

    def _touch_all(self, address: int, nbytes: int, stores: bool) -> None:
        for place in range(nbytes):
            self.touch(self.first, self.blocks_of_tapes[address], place, stores, "a tape")

    def touch(self, thread: Thread, array: np.ndarray, place: int, stores: bool, what: str) -> None:
        """Notes an access; RaceError if another thread's is not over for sure."""
        start = array.__array_interface__["data"][0] + place * array.itemsize
        for byte in (start, start + array.itemsize - 1):
            last, reads = self.touched.setdefault(byte, (None, {}))
            others = [] if last is None else [(last, "stored")]
            if stores:
                others += [(item, "loaded") for item in reads.items()]
            for (other, then), did in others:
                if other != thread.number and not any(thread.passed.get(k, 0) > n for k, n in then.items()
                                                      if k in thread.teams):
                    raise RaceError(f"{what}[{place}]: thread {thread.number} {'stores' if stores else 'loads'} what "
                                    f"thread {other} has {did}, and no barrier is between")
            now = {k: thread.passed.get(k, 0) for k in thread.teams}
            if stores:
                self.touched[byte] = (thread.number, now), {}
            else:
                reads[thread.number] = now


class Thread(Machine):
    """One thread: its own names, and the grid's memory."""

    def __init__(self, grid: Grid, number: int) -> None:
        super().__init__(grid.program)
        self.grid, self.number, self.memory = grid, number, grid.memory
        self.inner, self.outer = number % grid.threads, number // grid.threads
        self.passed: dict[Key, int] = {}
        self.teams: list[Key] = [("grid",), ("block", self.outer)]
        width = 2
        while width < grid.threads:
            self.teams.append(self.key(width))
            width *= 2

    def key(self, width: int) -> Key:
        """The team of so many threads that this one is in."""
        if width == GRID:
            return ("grid",)
        if width >= self.grid.threads:
            return "block", self.outer
        return "lanes", self.outer, self.inner // width, width

    def load(self, buffer: str, place: int) -> Any:
        array = self.array(buffer)
        if not 0 <= place < array.size:
            raise RaceError(f"load of {buffer}[{place}] of {array.size}")
        if buffer not in self.held:
            self.grid.touch(self, array, place, False, buffer)
        return np.asarray(array[place])

    held: frozenset[str] = frozenset()

    def block_of(self, stmts: Sequence[Stmt], team: Team) -> Iterator[Any]:
        for stmt in stmts:
            yield from self.statement(stmt, team)

    def statement(self, stmt: Stmt, team: Team) -> Iterator[Any]:
        match stmt:
            case Kernel(body=body):
                outer = set(self.names)
                yield from self.block_of(body, team)
                for name in self.names.keys() - outer:
                    del self.names[name]
            case For(kind="spread"):
                yield from self.spread(stmt, team)
            case For(index=index, extent=extent, body=body):
                for i in range(self.value(extent)):
                    self.names[index] = i
                    yield from self.block_of(body, team)
            case While(before=before, cond=cond, body=body):
                while True:
                    yield from self.block_of(before, team)
                    if not self.value(cond):
                        break
                    yield from self.block_of(body, team)
            case If(cond=cond, then=then, orelse=orelse):
                yield from self.block_of(then if self.value(cond) else orelse, team)
            case Call(routine="barrier", args=(width,)):
                yield from self.wait(self.key(width))
            case Call(routine=routine, args=args) if routine.startswith("tape_"):
                if self.number == 0:
                    self.ask(routine, args)
                yield from self.wait(("grid",))
            case WindowAt(buffer=buffer, address=address):
                window, start = self.grid.windows[buffer], int(self.value(address))
                nbytes = window.size * DTYPES[window.dtype].itemsize
                assert any(a <= start and start + nbytes <= a + m.size for a, m in self.grid.blocks_of_tapes.items())
                self.names[buffer] = np.frombuffer((ctypes.c_char * nbytes).from_address(start), DTYPES[window.dtype])
            case Local(buffer=buffer, dtype=dtype, size=size, held=held):
                self.local(buffer, dtype, size, held, team)
            case Store(buffer=buffer, index=index, value=value, op=op):
                new, place, array = self.value(value), self.value(index), self.array(buffer)
                if not 0 <= place < array.size:
                    raise RaceError(f"store to {buffer}[{place}] of {array.size}")
                if buffer in self.held or team.width == 1 or team.rank == 0:
                    if buffer not in self.held:
                        self.grid.touch(self, array, place, True, buffer)
                    array[place] = new if op is None else operation(op)(array[place], new)
            case Let() | Assign() | Mutable() | Accumulate():
                self.stmt(stmt)
            case _:
                raise NotImplementedError(f"{stmt}")

    def ask(self, routine: str, args: tuple[Any, ...]) -> None:
        """Has the host do what a routine of tapes does."""
        self.grid.first = self
        read, written = ([n for n in find(routine, args) if n != TAPES] for find in (buffers_read, buffers_written))
        for name in read:
            for place in range(self.memory[name].size):
                self.grid.touch(self, self.memory[name], place, False, name)
        self.grid.tapes.answer(routine, self.memory[(read + written)[0]])
        for name in written:
            for place in range(self.memory[name].size):
                self.grid.touch(self, self.memory[name], place, True, name)

    def local(self, buffer: str, dtype: str, size: int, held: str, team: Team) -> None:
        key = ("own", self.number, buffer) if held or team.width == 1 else (*self.key(team.width), buffer)
        if key not in self.grid.shared:
            self.grid.shared[key] = np.full(size, 0, DTYPES[dtype])
        if held:
            self.held |= {buffer}
        self.names[buffer] = self.grid.shared[key]

    def wait(self, key: Key) -> Iterator[Any]:
        """Until all threads of a team are here."""
        turn = (*key, "turn", self.passed.get(key, 0))
        self.grid.arrived.setdefault(turn, set()).add(self.number)
        if self.grid.size(key) > 1:
            yield lambda: len(self.grid.arrived[turn]) == self.grid.size(key)
        self.passed[key] = self.passed.get(key, 0) + 1

    def spread(self, loop: For, team: Team) -> Iterator[Any]:
        threads, width = self.grid.threads, loop.width
        everybody = threads * self.grid.blocks if team.width == GRID else team.width
        inside = list(statements(*loop.body))
        own = {s.name for s in inside if isinstance(s, Mutable)}
        sums = {s.name: s for s in inside if isinstance(s, Accumulate) and s.name not in own}
        before = {name: self.names[name] for name in sums}
        for name, stmt in sums.items():
            self.names[name] = np.asarray(neutral(stmt.op, stmt.value.dtype), DTYPES[stmt.value.dtype])
        inner = Team(width, self.number % width)
        for i in range(team.rank // width, self.value(loop.extent), everybody // width):
            self.names[loop.index] = i
            yield from self.block_of(loop.body, inner)
        for name, stmt in sums.items():
            key = (*self.key(team.width), "sum", name, self.passed.get(("sum", name, team.width), 0))
            self.passed["sum", name, team.width] = key[-1] + 1
            posted = self.grid.values.setdefault(key, {})
            posted[team.rank] = self.names[name]
            if everybody > 1:
                yield lambda posted=posted: len(posted) == everybody
            total = before[name]
            for rank in sorted(posted):
                total = operation(stmt.op)(total, posted[rank])
            self.names[name] = total


def run(program: GridProgram, inputs: Sequence[Any]) -> list[np.ndarray]:
    """The results of a program that is one kernel; RaceError for what is wrong with it."""
    (step,) = program.steps
    assert isinstance(step, Launch)
    machine = Machine(program.program)
    given = iter(inputs)
    arena = np.zeros(program.program.arena, np.uint8)
    for b in program.program.buffers:
        dtype = DTYPES[b.dtype]
        if b.role == "input":
            machine.memory[b.name] = np.array(next(given), dtype).reshape(-1)
        elif b.role == "const":
            machine.memory[b.name] = np.array(b.value, dtype).reshape(-1)
        elif b.offset is not None:
            machine.memory[b.name] = arena[b.offset:b.offset + b.size * dtype.itemsize].view(dtype)
        elif b.alias is None:
            machine.memory[b.name] = np.zeros(b.size, dtype)
    for b in program.program.buffers:
        if b.alias is not None:
            machine.memory[b.name] = machine.memory[b.alias].view(DTYPES[b.dtype])
    with np.errstate(all="ignore"):
        Grid(program.program, step, machine.memory).run(program.program.body)
    return [machine.memory[b.name] for b in program.program.with_role("output")]
