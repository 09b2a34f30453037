"""Under a profile, programs note the time at which they, their kernels and their loops begin and end.

    kernel exp_reduce_sum:             call stamp(0)
      ...                    ->        call stamp(2)
                                       kernel exp_reduce_sum:
                                         ...
                                       call stamp(3)
                                       call stamp(1)

What stands in a loop, or takes less time than it takes to note it a hundred times over, is part of what is around it.
"""

from __future__ import annotations

from anima.compiler.ir.costs import cost
from anima.compiler.ir.loops import Again, Call, For, If, Kernel, Program, Stmt, While, statements
from anima.config import profiling
from anima.core.source import Source
from anima.util import replace

_LEAST = 2000.0  # nanoseconds, as estimated


def stamp(program: Program) -> Program:
    """Puts the notes into a program, if a profile is being taken. Number 2k begins what 2k + 1 ends."""
    if not profiling.value:
        return program
    body: list[Stmt] = [Call("stamp", (0,))]
    for stmt in program.body:
        if isinstance(stmt, (Kernel, Again, Call, For, While, If)) and cost(stmt) >= _LEAST:
            number = len(body)  # as good as any other that is even and not taken
            number += number % 2
            body += [Call("stamp", (number,)), stmt, Call("stamp", (number + 1,))]
        else:
            body.append(stmt)
    return replace(program, body=(*body, Call("stamp", (1,))))


def stamped(program: Program) -> dict[int, tuple[str, Source | None]]:
    """What the even numbers in a program stand for: a name, and where the user asked for it. Empty without notes."""
    found: dict[int, tuple[str, Source | None]] = {}
    for note, stmt in zip(program.body, program.body[1:], strict=False):
        if isinstance(note, Call) and note.routine == "stamp" and not int(note.args[0]) % 2:
            inside = [s.kernel if isinstance(s, Again) else s for s in statements(stmt)]
            parts = [s for s in inside if isinstance(s, (Kernel, Call)) and (s is stmt or s.source is not None)]
            source = next((s.source for s in parts if s.source is not None), None)
            found[int(note.args[0])] = _name(stmt, len(parts)), source
    if found:
        found[0] = program.name, None
    return found


def _name(stmt: Stmt, parts: int) -> str:
    if isinstance(stmt, Call):
        return stmt.routine
    if isinstance(stmt, (Kernel, Again)):
        return stmt.name if isinstance(stmt, Kernel) else stmt.kernel.name
    return f"{'branch' if isinstance(stmt, If) else 'loop'} of {parts} kernels"
