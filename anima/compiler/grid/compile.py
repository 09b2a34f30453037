"""From a jaxpr to the text of one kernel, which all threads of a grid run from the program's first step to its last.

    jaxpr   dead_code inline hoist expand simplify together dead_code fuse lower      as on a CPU
    loops   nests registers plain parts plan_buffers       products as nests; sums in parts; what is where
            hand_out barriers                              which threads run what, and where they wait
    llvm    grid_text
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from anima.compiler.driver import Pass, Run, to_loops
from anima.compiler.grid import rewrites
from anima.compiler.grid.barriers import barriers
from anima.compiler.grid.nests import nests, plain
from anima.compiler.grid.parts import parts
from anima.compiler.grid.target import GridTarget
from anima.compiler.grid.teams import hand_out, most_threads
from anima.compiler.grid.text import grid_text
from anima.compiler.ir.loops import For, Program, While, statements, statements_outside
from anima.compiler.storage.buffers import plan_buffers
from anima.compiler.storage.registers import registers
from anima.core.jaxpr import ClosedJaxpr
from anima.util import record

ENTERING = (rewrites,)  # modules that enter rewrites
LARGE = 1 << 14  # threads with something to do from which a program has more than one block


@record(eq=False)
class GridProgram:
    """A program for a grid: its loops; its LLVM text, whose kernel is called `entry`; how many threads a block has, how
    many blocks are worth having at most, and how many bytes of memory a block shares."""

    program: Program
    text: str
    threads: int
    blocks: int
    shared: int


def passes(name: str, donated: Sequence[int], target: GridTarget) -> list[Pass]:
    """The passes for a program of this name, down to loops that are handed out."""
    first = to_loops(name, donated, target)
    lowered = next(k for k, p in enumerate(first) if p.name == "lower") + 1
    return [
        *first[:lowered],
        Pass("nests", nests, "loops"),
        Pass("registers", registers, "loops"),
        Pass("plain", plain, "loops"),
        Pass("parts", partial(parts, target=target), "loops"),
        Pass("plan_buffers", plan_buffers, "loops"),
        Pass("hand_out", partial(hand_out, target=target), "loops"),
        Pass("barriers", barriers, "loops"),
    ]


def compile_grid(closed: ClosedJaxpr, name: str, donated: Sequence[int], target: GridTarget) -> GridProgram:
    """The kernel of a program. NotImplementedError for what a grid cannot do yet, naming it."""
    program = Run(name).through(passes(name, donated, target), closed)
    return kernel_of(program, target)


def kernel_of(program: Program, target: GridTarget) -> GridProgram:
    """The kernel of loops that have been handed out."""
    busy = most_threads(program)
    blocks = -(-busy // target.block) if busy >= LARGE or not _has_rounds(program) else 1
    threads = target.block
    if blocks == 1 and not _uses_blocks(program, target.block):
        threads = 1 if busy == 1 else min(max(target.warp, 1 << (busy - 1).bit_length()), target.single)
    text, shared = grid_text(program, target, threads, blocks == 1)
    return GridProgram(program, text, threads, blocks, shared)


def _has_rounds(program: Program) -> bool:
    """Whether a program has loops outside of kernels, where waiting for other blocks is dear."""
    return any(isinstance(s, (For, While)) for s in statements_outside(program.body))


def _uses_blocks(program: Program, width: int) -> bool:
    return any(isinstance(s, For) and s.kind == "spread" and s.width == width for s in statements(*program.body))
