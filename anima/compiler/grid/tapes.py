"""Loops that record values on tapes, and read them, on a grid: the host makes the tapes, and they are always whole.

    call tape_check(tapes, table, 3, 77)
    if full: call callback(2, ...)           ->
    call callback(0, 1, w3, w5)                        kernel copy: t[i] = w3[i]
                                                       call callback(0, 1, t, u)
                                                       kernel copy: w5[i] = u[i]

There is no budget of tapes, so that no loop goes on with states in their place, and no reader looks for elements that
are not there. What the host is to read and to write lies in buffers, as only kernels find windows.
"""

from __future__ import annotations

from collections.abc import Sequence

from anima.compiler.grid.teams import around
from anima.compiler.ir.loops import INDEX, Buffer, Call, If, Kernel, Load, NamedValue, Program, Stmt, Store, map_blocks
from anima.compiler.ir.routines import buffers_read, buffers_written, renamed
from anima.compiler.lowering.tape import TAPES, Refill, TapedLoop
from anima.util import replace


def tapes(program: Program) -> Program:
    """The program with tapes of the host's."""
    if not any(b.name == TAPES for b in program.buffers):
        return program
    worker = _Tapes(program)
    body = worker.block(program.body)
    buffers = [replace(b, role="temp") if b.name == TAPES else b for b in program.buffers]  # nobody gives it, or looks
    return replace(program, body=body, buffers=(*buffers, *worker.copies))


class _Tapes:
    def __init__(self, program: Program) -> None:
        self.windows = {b.name: b for b in program.with_role("window")}
        self.partial = {n for n, c in enumerate(program.callbacks) if isinstance(c, (TapedLoop, Refill))}
        self.copies: list[Buffer] = []

    def block(self, stmts: Sequence[Stmt]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for stmt in stmts:
            if isinstance(stmt, Kernel):
                out.append(stmt)
            elif isinstance(stmt, Call) and stmt.routine == "callback":
                out += self.callback(stmt)
            elif not self.is_about_parts(stmt):
                out.append(map_blocks(self.block, stmt))
        return tuple(out)

    def is_about_parts(self, stmt: Stmt) -> bool:
        """Whether a statement is about tapes that are full, or kept in part."""
        if isinstance(stmt, If):
            return any(isinstance(s, Call) and s.routine == "callback" and s.args[0] in self.partial for s in stmt.then)
        return isinstance(stmt, Call) and stmt.routine == "tape_check"

    def callback(self, call: Call) -> list[Stmt]:
        """A callback on copies of the windows among its buffers."""
        read, written = (dict.fromkeys(n for n in find(call.routine, call.args) if n in self.windows)
                         for find in (buffers_read, buffers_written))
        names = {n: f"window{len(self.copies) + k}" for k, n in enumerate(read | written)}
        self.copies += [replace(self.windows[n], name=new, role="temp") for n, new in names.items()]
        return [*(self.copy(n, names[n], n) for n in read),
                replace(call, args=renamed(call.routine, call.args, names)),  # type: ignore[arg-type]
                *(self.copy(names[n], n, n) for n in written)]

    def copy(self, source: str, target: str, window: str) -> Kernel:
        b, i = self.windows[window], NamedValue("i", INDEX)
        return Kernel("copy", around([("i", b.size)], (Store(target, i, Load(source, i, b.dtype)),), "each"))
