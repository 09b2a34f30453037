"""Values by their names: what is known of variables is read instead of them, and what nothing reads is dropped.

    t := a + b            r = a + b
    u = t         ->      c := r * 2.0
    c := u * 2.0

`forward` follows assignments through a block, into branches and loops as far as they assign nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from anima.compiler.loops import (
    Accumulate,
    Assign,
    Const,
    Expr,
    For,
    If,
    Kernel,
    Let,
    Ref,
    Stmt,
    Store,
    Var,
    While,
    Window,
    statements,
)
from anima.compiler.unroll import count_uses, substitute


def blocks_of(stmt: Stmt) -> tuple[tuple[Stmt, ...], ...]:
    """The blocks of a statement that is no kernel."""
    match stmt:
        case For(body=body):
            return (body,)
        case While(before=before, body=body):
            return before, body
        case If(then=then, orelse=orelse):
            return then, orelse
    return ()


def with_blocks(stmt: Stmt, blocks: Sequence[tuple[Stmt, ...]]) -> Stmt:
    """The statement with other blocks."""
    match stmt:
        case For():
            return replace(stmt, body=blocks[0])
        case While():
            return replace(stmt, before=blocks[0], body=blocks[1])
        case If():
            return replace(stmt, then=blocks[0], orelse=blocks[1])
    return stmt


def forward(stmts: Sequence[Stmt], known: dict[str, Expr], mutable: set[str]) -> tuple[Stmt, ...]:
    """Statements in which a variable whose value has a name, or is a number, is read by that; `known` has such."""
    out: list[Stmt] = []
    for stmt in stmts:
        for name in _assigned(stmt) if blocks_of(stmt) else ():
            if not isinstance(stmt, If):
                known.pop(name, None)
        stmt = _with_names(stmt, known)
        match stmt:
            case Let(name=name, value=Const() | Ref() as value):
                if isinstance(value, Ref) and value.name in mutable:
                    known[value.name] = Ref(name, value.dtype)
                    out.append(stmt)
                else:
                    known[name] = value
                continue
            case Assign(name=name, value=value) | Var(name=name, init=value):
                known.pop(name, None)
                if isinstance(value, Const) or (isinstance(value, Ref) and value.name not in mutable):
                    known[name] = value
            case Accumulate(name=name):
                known.pop(name, None)
            case While(before=before, body=body):
                inside = dict(known)
                before = forward(before, inside, mutable)
                cond = substitute(stmt.cond, inside)
                stmt = While(before, cond, forward(body, inside, mutable))
            case For() | If():
                stmt = with_blocks(stmt, [forward(b, dict(known), mutable) for b in blocks_of(stmt)])
        for name in _assigned(stmt) if isinstance(stmt, If) else ():
            known.pop(name, None)
        out.append(stmt)
    return tuple(out)


def _assigned(stmt: Stmt) -> set[str]:
    return {s.name for s in statements(stmt) if isinstance(s, (Assign, Accumulate))}


def _with_names(stmt: Stmt, names: dict[str, Expr]) -> Stmt:
    """A statement, without what is in its blocks (but with what is in a kernel), with names replaced."""
    match stmt:
        case Let(name=name, value=value):
            return Let(name, substitute(value, names))
        case Assign(name=name, value=value):
            return Assign(name, substitute(value, names))
        case Accumulate(value=value):
            return replace(stmt, value=substitute(value, names))
        case Var(init=init):
            return replace(stmt, init=substitute(init, names))
        case Store(buffer=buffer, index=index, value=value, op=op):
            return Store(buffer, substitute(index, names), substitute(value, names), op)
        case Window(address=address):
            return replace(stmt, address=substitute(address, names))
        case For(extent=extent):
            return replace(stmt, extent=substitute(extent, names))
        case If(cond=cond):
            return replace(stmt, cond=substitute(cond, names))
        case Kernel(body=body):
            return replace(stmt, body=_names_in_kernel(body, names))
    return stmt


def _names_in_kernel(stmts: Sequence[Stmt], names: dict[str, Expr]) -> tuple[Stmt, ...]:
    out = []
    for s in stmts:
        new = _with_names(with_blocks(s, [_names_in_kernel(b, names) for b in blocks_of(s)]), names)
        out.append(replace(new, cond=substitute(new.cond, names)) if isinstance(new, While) else new)
    return tuple(out)


def tidy(stmts: tuple[Stmt, ...], elements: set[str], outside: dict[str, int]) -> tuple[Stmt, ...]:
    """Statements without values that nothing mentions, nor variables (their own, or `elements`) that are only set.

    `outside` tells how often names are mentioned after these statements.
    """
    uses = count_uses(stmts)
    for name, count in outside.items():
        uses[name] = uses.get(name, 0) + count
    own = elements | {s.name for s in statements(*stmts) if isinstance(s, (Let, Var))}
    changed = True

    def keep(stmt: Stmt) -> bool:
        nonlocal changed
        if not isinstance(stmt, (Let, Var, Assign, Accumulate)) or stmt.name not in own or uses.get(stmt.name, 0):
            return True
        for name, count in count_uses((stmt,)).items():
            uses[name] -= count
            changed = True
        return False

    def block(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
        kept = []
        for s in reversed(body):
            if keep(s):
                blocks = blocks_of(s)
                kept.append(with_blocks(s, [block(b) for b in reversed(blocks)][::-1]) if blocks else s)
        return tuple(reversed(kept))

    while changed:
        changed = False
        stmts = block(stmts)
    return stmts


def without_unused(stmts: Sequence[Stmt], elements: set[str]) -> list[Stmt]:
    """Statements around a loop, without elements that nothing mentions or sets."""
    uses = count_uses(stmts)
    assigned = {s.name for s in statements(*stmts) if isinstance(s, (Assign, Accumulate))}
    return [s for s in stmts if not isinstance(s, Var) or s.name not in elements or s.name in uses
            or s.name in assigned]
