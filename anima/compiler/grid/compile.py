"""From a jaxpr to the text of one kernel, which all threads of a grid run from the program's first step to its last.

    jaxpr   dead_code inline hoist expand simplify together dead_code fuse lower      as on a CPU
    loops   tapes nests registers plain parts near         tapes of the host's; products as nests; sums in parts
            plan_buffers                                   what is where
            hand_out barriers                              which threads run what, and where they wait
    llvm    GridText
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from anima.compiler.driver import Pass, PassRun, to_nests
from anima.compiler.grid import rewrites
from anima.compiler.grid.barriers import GRID, barriers
from anima.compiler.grid.near import near
from anima.compiler.grid.nests import asks_host, nests, plain
from anima.compiler.grid.parts import parts
from anima.compiler.grid.tapes import tapes
from anima.compiler.grid.target import GridTarget
from anima.compiler.grid.teams import hand_out, most_threads
from anima.compiler.grid.text import GridText
from anima.compiler.ir.loops import (
    ENTRY,
    Call,
    For,
    Program,
    Stmt,
    While,
    roots,
    slots,
    statements,
    statements_outside,
)
from anima.compiler.ir.routines import arguments, buffers_read, buffers_written
from anima.compiler.lowering.tape import TAPES
from anima.compiler.storage.buffers import plan_buffers, remove_copies, size_in_bytes
from anima.compiler.storage.registers import registers
from anima.core.jaxpr import ClosedJaxpr
from anima.util import record, replace

ENTERING = (rewrites,)  # modules that enter rewrites
ALIKE = 4        # elements, at most, of an array in a loop that every thread computes for itself
LARGE = 1 << 14  # threads with something to do from which a program has more than one block


@record
class Slot:
    """Memory that a program is called with: a slot's number, or -1 for temporaries, and bytes from its start on."""

    slot: int
    offset: int


@record
class LibraryProduct:
    """A product that a library does: the arguments of `gemm` (see `compiler/ir/routines.py`), by name, and where its
    matrices are."""

    arguments: dict[str, Any]
    places: tuple[Slot, Slot, Slot]


@record
class HostCall:
    """What kernels ask the host for: a callback, by its number among the program's, or a routine of tapes; and where
    its operands and its results are, with their bytes."""

    routine: str
    number: int
    operands: tuple[tuple[Slot, int], ...]
    results: tuple[tuple[Slot, int], ...]


@record
class Launch:
    """A kernel: its name, how many threads a block of it has, how many blocks are worth having at most, how many bytes
    of memory a block shares, and whether blocks wait for each other."""

    entry: str
    threads: int
    blocks: int
    shared: int
    waits: bool


@record(eq=False)
class GridProgram:
    """A program for a grid: its loops, their LLVM text, what is done one after the other, and what kernels ask the host
    for. Every kernel takes the addresses of all slots, of the temporaries, and of what `Nvptx` needs."""

    program: Program
    text: str
    steps: tuple[Launch | LibraryProduct, ...]
    calls: tuple[HostCall, ...] = ()


def passes(name: str, donated: Sequence[int], target: GridTarget) -> list[Pass]:
    """The passes for a program of this name, down to loops that are handed out."""
    return [
        *to_nests(name, donated, target),
        Pass("tapes", tapes, "loops"),
        Pass("nests", partial(nests, target=target), "loops"),
        Pass("registers", partial(registers, largest=ALIKE), "loops"),
        Pass("plain", plain, "loops"),
        Pass("parts", partial(parts, target=target), "loops"),
        Pass("near", partial(_near, target=target), "loops"),
        Pass("plan_buffers", plan_buffers, "loops"),
        Pass("hand_out", partial(hand_out, target=target), "loops"),
        Pass("barriers", barriers, "loops"),
    ]


def compile_grid(closed: ClosedJaxpr, name: str, donated: Sequence[int], target: GridTarget) -> GridProgram:
    """The kernel of a program. NotImplementedError for what a grid cannot do yet, naming it."""
    program = PassRun(name).through(passes(name, donated, target), closed)
    return kernel_of(program, target)


def kernel_of(program: Program, target: GridTarget) -> GridProgram:
    """The kernels of loops that have been handed out."""
    known = {b.name: b for b in program.buffers}
    places = {b.name: Slot(k, 0) for k, b in enumerate(slots(program))}
    places |= {b.name: Slot(-1, b.offset) for b in program.buffers if b.offset is not None}
    places = {name: places[root.name] for name, root in roots(program.buffers).items() if root.role != "window"}
    steps: list[Launch | LibraryProduct] = []
    text = GridText(target)
    run: list[Stmt] = []
    for stmt in (*program.body, None):
        product = isinstance(stmt, Call) and stmt.routine == "gemm"
        if stmt is not None and not product:
            if run or not _is_barrier(stmt):  # between kernels there is always one
                run.append(stmt)
            continue
        if run or (stmt is None and not steps):
            threads, blocks = _sizes(run, target)
            entry = f"{ENTRY}{len(steps)}" if steps else ENTRY
            shared = text.kernel(entry, replace(program, body=tuple(run)), threads, blocks == 1)
            steps.append(Launch(entry, threads, blocks, shared, blocks > 1 and any(map(_waits, statements(*run)))))
        run = []
        if isinstance(stmt, Call):
            given = arguments("gemm", stmt.args)
            a, b_, c = (places[str(given[name])] for name in "abc")
            steps.append(LibraryProduct(given, (a, b_, c)))
    pieces = {name: (place, size_in_bytes(known[name])) for name, place in places.items()}
    return GridProgram(program, text.finish(), tuple(steps), tuple(_host_call(call, pieces) for call in text.calls))


def _host_call(call: Call, pieces: dict[str, tuple[Slot, int]]) -> HostCall:
    number = int(call.args[0]) if call.routine == "callback" else 0  # type: ignore[call-overload]
    reads, writes = (tuple(pieces[name] for name in find(call.routine, call.args) if name != TAPES)
                     for find in (buffers_read, buffers_written))
    return HostCall(call.routine, number, reads, writes)


def _is_barrier(stmt: Stmt) -> bool:
    return isinstance(stmt, Call) and stmt.routine == "barrier" and stmt.args == (GRID,)


def _waits(stmt: Stmt) -> bool:
    """Whether blocks wait for each other."""
    return _is_barrier(stmt) or asks_host(stmt)


def _sizes(stmts: Sequence[Stmt], target: GridTarget) -> tuple[int, int]:
    """How many threads a block has, and how many blocks there are at most, to run statements."""
    busy = most_threads(stmts)
    blocks = -(-busy // target.block) if busy >= LARGE or not _has_rounds(stmts) else 1
    threads = target.block
    if blocks == 1 and not _uses_blocks(stmts, target.block):
        threads = 1 if busy == 1 else min(max(target.warp, 1 << (busy - 1).bit_length()), target.single)
    return threads, blocks


def _near(program: Program, target: GridTarget) -> Program:
    one_block = _has_rounds(program.body) and _sizes(hand_out(program, target).body, target)[1] == 1
    return near(remove_copies(program)) if one_block else program


def _has_rounds(stmts: Sequence[Stmt]) -> bool:
    """Whether a program has loops outside of kernels, where waiting for other blocks is dear."""
    return any(isinstance(s, (For, While)) for s in statements_outside(stmts))


def _uses_blocks(stmts: Sequence[Stmt], width: int) -> bool:
    return any(isinstance(s, For) and s.kind == "spread" and s.width == width for s in statements(*stmts))
