"""Long loops outside of kernels look for signals now and then, so that Ctrl-C stops them.

    for k < 1000000000:              var ticks: i64 = 50000000
      ...                            for k < 1000000000:
                              ->       ...
                                       ticks := ticks - 3
                                       if ticks < 0:
                                         call poll()
                                         ticks := 50000000

`ticks` counts down estimated nanoseconds, through all loops together. A loop that is over before a user could
notice stays as it is. The cost is a subtraction and a branch an iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from anima.compiler.costs import cost
from anima.compiler.loops import Assign, Call, Const, For, If, Op, Program, Ref, Stmt, Var, While

_PERIOD = 50_000_000  # nanoseconds, as estimated, from one look to the next
_SHORT = 5_000_000.0  # a loop that is estimated to take less need not look
_TICKS = Ref("ticks", "i64")


def interrupt(program: Program) -> Program:
    """Puts the looks into a program. After this pass loops outside of kernels may be left by an exception."""
    counted, body = _block(program.body)
    if not counted:
        return program
    return replace(program, body=(Var(_TICKS.name, "i64", Const(_PERIOD, "i64")), *body))


def _block(stmts: Sequence[Stmt]) -> tuple[bool, tuple[Stmt, ...]]:
    """The statements with looks in them, and whether there are any."""
    pairs = [_stmt(s) for s in stmts]
    return any(counted for counted, _ in pairs), tuple(s for _, s in pairs)


def _stmt(stmt: Stmt) -> tuple[bool, Stmt]:
    match stmt:
        case For(body=body):
            inside, new = _block(body)
            if not inside and isinstance(stmt.extent, Const) and cost(stmt) < _SHORT:
                return False, stmt
            return True, replace(stmt, body=(*new, *_look(new)))
        case While(before=before, body=body):
            (_, new_before), (_, new) = _block(before), _block(body)
            return True, replace(stmt, before=new_before, body=(*new, *_look((*new_before, *new))))
        case If(then=then, orelse=orelse):
            (in_then, new_then), (in_else, new_else) = _block(then), _block(orelse)
            return in_then or in_else, replace(stmt, then=new_then, orelse=new_else)
    return False, stmt


def _look(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """The count of an iteration, and the look when it is time for one."""
    each = max(1, round(sum(map(_own_cost, body))))
    return (Assign(_TICKS.name, Op("sub", (_TICKS, Const(each, "i64")), "i64")),
            If(Op("lt", (_TICKS, Const(0, "i64")), "bool"),
               (Call("poll", ()), Assign(_TICKS.name, Const(_PERIOD, "i64")))))


def _own_cost(stmt: Stmt) -> float:
    """The estimated cost of a statement; a loop inside that counts does so for itself."""
    match stmt:
        case For(body=body) | While(body=body) if any(isinstance(s, Assign) and s.name == _TICKS.name for s in body):
            return 0.0
        case If(then=then, orelse=orelse):
            return max(sum(map(_own_cost, then)), sum(map(_own_cost, orelse)))
    return cost(stmt)
