"""The one table of what runs best in terms of other operations, entered where the mathematics of it stands.

    @rewrite("top_k", where=lambda eqn, target: eqn.params["k"] > 64)
    def _top_k(eqn, target, x): ...                     results, made of other operations

What an operation *is* made of, for all who read programs, its primitive says (`body`), and `inline` puts that in its
place. What it is *computed by* is a matter of types, sizes and machines, and of the compiler alone: a rewrite, done by
`expand` after all passes that know operations by what they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anima.compiler.machine.target import Target
from anima.core.jaxpr import Eqn
from anima.util import record

Rewriter = Callable[..., Any]  # (equation, target, *operands) -> results
Where = Callable[[Eqn, Target], bool]


@record
class Rewrite:
    """Equations for which `where(equation, target)` holds become `program(equation, target, *operands)`, `again`:
    rewritten in its turn."""

    program: Rewriter
    where: Where
    again: bool


_rewrites: dict[str, list[Rewrite]] = {}  # of an operation, for one kind of equations and machines each


def rewrite(name: str, where: Where = lambda eqn, target: True,
            again: bool = False) -> Callable[[Rewriter], Rewriter]:
    """Enters what an operation is computed by."""
    def enter(program: Rewriter) -> Rewriter:
        _rewrites.setdefault(name, []).append(Rewrite(program, where, again))
        return program
    return enter


def is_rewritten(name: str) -> bool:
    """Whether some equations of an operation are computed by others."""
    return name in _rewrites


def rewrite_of(eqn: Eqn, target: Target) -> Rewrite | None:
    """What an equation is computed by, if by others."""
    return next((r for r in _rewrites.get(eqn.primitive.name, ()) if r.where(eqn, target)), None)
