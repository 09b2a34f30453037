"""Cheap branches become choices, so that lanes that would take different ones can run at once.

    if x < 1:  s := x + 1.0                     c = x < 1;       v = x + 1.0;  s := select(c, s, v)
    else:      s := x * x              ->       d = not c;       w = x * x;    s := select(d, s, w)

Both blocks run, and what they assign counts where their condition holds. What a block loads must be there whatever the
condition is: at indices of loops alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from anima.compiler.ir.costs import cost
from anima.compiler.ir.loops import (
    Assign,
    Expr,
    For,
    If,
    Let,
    Load,
    Local,
    Mutable,
    NamedValue,
    Op,
    Stmt,
    Store,
    While,
    names_in,
    statements,
    walk,
)
from anima.util import replace

_BOTH = 60.0  # nanoseconds, of one lane, that all blocks may take together


def without_branches(loop: For) -> For | None:
    """A loop with choices for its branches; None if some block does more than compute, or takes long."""
    branches = [s for s in statements(*loop.body) if isinstance(s, If)]
    if sum(cost(s) for b in branches for s in (*b.then, *b.orelse)) > _BOTH:
        return None
    indices = {loop.index, *(s.index for s in statements(*loop.body) if isinstance(s, For))}
    if not all(_plain(s, indices) for b in branches for s in (*b.then, *b.orelse)):
        return None
    return replace(loop, body=_Choices().block(loop.body, None))


def _plain(stmt: Stmt, indices: set[str]) -> bool:
    """Whether a statement can run though its branch is not taken."""
    if isinstance(stmt, For):
        return stmt.kind == "unrolled" and all(_plain(s, indices) for s in stmt.body)
    if isinstance(stmt, If):
        return True  # its blocks are asked themselves
    if not isinstance(stmt, (Let, Mutable, Assign, Local, Store)) or (isinstance(stmt, Store) and stmt.op is not None):
        return False
    places = [node.index for node in walk(stmt) if isinstance(node, (Load, Store))]
    return all(names_in(place) <= indices for place in places)


class _Choices:
    """Writes blocks for the lanes in which a condition (None: always) holds."""

    def __init__(self) -> None:
        self.count = 0

    def name(self, value: Expr, out: list[Stmt]) -> Expr:
        self.count += 1
        out.append(Let(f"chosen{self.count}", value))
        return NamedValue(f"chosen{self.count}", value.dtype)

    def block(self, stmts: Sequence[Stmt], where: Expr | None) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for stmt in stmts:
            match stmt:
                case If(cond, then, orelse):
                    chosen = self.name(cond, out)
                    for block, here in ((then, chosen), (orelse, Op("not", (chosen,), "bool"))):
                        if block:
                            both = here if where is None else Op("and", (where, here), "bool")
                            out += self.block(block, self.name(both, out))
                case For(body=body):
                    out.append(replace(stmt, body=self.block(body, where)))
                case While(before, _, body):
                    out.append(replace(stmt, before=self.block(before, where), body=self.block(body, where)))
                case Assign(name, value) if where is not None:
                    kept: tuple[Expr, ...] = (where, NamedValue(name, value.dtype), value)
                    out.append(Assign(name, Op("select_n", kept, value.dtype)))
                case Store(buffer, index, value) if where is not None:
                    kept = (where, Load(buffer, index, value.dtype), value)
                    out.append(Store(buffer, index, Op("select_n", kept, value.dtype)))
                case _:
                    out.append(stmt)
        return tuple(out)
