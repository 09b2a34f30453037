"""Plain nests get their order: what runs on threads, what in vectors, what is added up in parts.

    each i < 1000:                           parallel i < 1000:
      var s: f32 = 0.0                         var s: f32 = 0.0
      reduce j < 64: s += x[i*64 + j]   ->     vector j < 64: s += x[i*64 + j]
      y[i] = s                                 y[i] = s

Lowering says which iterations are independent (`each`) and which are so but for what they add up (`reduce`). The
outermost loop of a kernel runs on threads, the innermost in vectors; how reductions run is in `reductions.py`.

After this pass no loop is `reduce`; those that are `each` run in order.
"""

from __future__ import annotations

from collections.abc import Sequence

from anima.compiler.ir.loops import (
    Again,
    Buffer,
    Call,
    For,
    If,
    Kernel,
    Local,
    Program,
    Stmt,
    While,
    map_blocks,
)
from anima.compiler.machine.target import Target
from anima.compiler.scheduling.reductions import arranged
from anima.compiler.storage.buffers import buffers_of
from anima.util import replace


def schedule(program: Program, target: Target) -> Program:
    """Decides in what order the plain nests of a program run."""
    scheduler = _Scheduler(target)
    body = scheduler.block(program.body)
    return replace(program, body=body, buffers=(*program.buffers, *scheduler.buffers))


class _Scheduler:
    """Rewrites kernels; `buffers` are those that have to be added."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.buffers: list[Buffer] = []
        self.done: dict[int, list[Kernel]] = {}  # what kernels became, by id

    def block(self, stmts: Sequence[Stmt]) -> tuple[Stmt, ...]:
        """Statements outside of kernels."""
        out: list[Stmt] = []
        for stmt in stmts:
            if type(stmt) is Kernel:
                out += self.done.setdefault(id(stmt), self.kernels(stmt))
            elif type(stmt) is Again:
                for kernel in self.done[id(stmt.kernel)]:
                    used, same = buffers_of((kernel,)), ((b.name, b.name) for b in self.buffers)
                    out.append(Again(kernel, tuple(pair for pair in (*stmt.names, *same) if pair[0] in used)))
            else:
                out.append(map_blocks(self.block, stmt))
        return tuple(out)

    def kernels(self, kernel: Kernel) -> list[Kernel]:
        """What a plain kernel becomes."""
        return [Kernel(name, tuple(_ordered(s, True) for s in body), kernel.source)
                for name, body in arranged(kernel, self.target, self.temp)]

    def temp(self, dtype: str, size: int) -> str:
        """A new buffer for partial results."""
        self.buffers.append(Buffer(f"part{len(self.buffers)}", dtype, size, "temp"))
        return self.buffers[-1].name


_UNLIKE_LANES = {For, If, While, Local, Call}


def _ordered(stmt: Stmt, outermost: bool) -> Stmt:
    """A statement of a kernel with its loops on threads, in order, or in vectors."""
    if isinstance(stmt, For) and stmt.kind in ("each", "reduce"):
        if not any(type(s) in _UNLIKE_LANES for s in stmt.body):
            return For(stmt.index, stmt.extent, stmt.body, "vector")
        return For(stmt.index, stmt.extent, tuple(_ordered(s, False) for s in stmt.body),
                   "serial" if stmt.kind == "reduce" else "parallel" if outermost else "each")
    return map_blocks(lambda block: tuple(_ordered(s, False) for s in block), stmt)
