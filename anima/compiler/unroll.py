"""Short loops written out, and what becomes constant by that computed.

    vector i < 2: t[i] = x[i + 1] * 2.0      ->      t[0] = x[1] * 2.0
                                                     t[1] = x[2] * 2.0

Names are made new in every copy, so that copies can stand beside each other.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from anima.compiler.loops import (
    INDEX,
    Accumulate,
    Assign,
    Const,
    Expr,
    For,
    If,
    Kernel,
    Let,
    Load,
    Local,
    Op,
    Ref,
    Stmt,
    Store,
    Var,
    While,
    children,
)

_FOLD: dict[str, Callable[[int, int], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.floordiv, "rem": operator.mod,
    "max": max, "min": min, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "eq": operator.eq, "ne": operator.ne}
_COMPARISONS = frozenset(("lt", "le", "gt", "ge", "eq", "ne"))


def unrolled_size(stmts: Sequence[Stmt], longest: int) -> int | None:
    """How many statements there are when all loops are written out; None if one is longer than `longest` or of a
    length that is not known."""
    total = 0
    for stmt in stmts:
        match stmt:
            case For(extent=Const(value=count), body=body) if count <= longest:
                inside = unrolled_size(body, longest)
                if inside is None:
                    return None
                total += inside * int(count)
            case If(then=then, orelse=orelse):
                first, second = unrolled_size(then, longest), unrolled_size(orelse, longest)
                if first is None or second is None:
                    return None
                total += 1 + first + second
            case For() | While() | Kernel():
                return None
            case _:
                total += 1
    return total


class Unroller:
    """Writes loops of constant extent out, with names of its own."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.count = 0

    def block(self, stmts: Sequence[Stmt], names: Mapping[str, Expr]) -> tuple[Stmt, ...]:
        """Statements without loops; `names` stand for expressions."""
        scope = dict(names)
        return tuple(new for stmt in stmts for new in self._stmt(stmt, scope))

    def _bind(self, name: str, scope: dict[str, Any], dtype: str) -> str:
        self.count += 1
        new = f"{self.prefix}{self.count}"
        scope[name] = Ref(new, dtype)
        return new

    def _stmt(self, stmt: Stmt, scope: dict[str, Any]) -> Iterator[Stmt]:
        match stmt:
            case For(index=index, extent=Const(value=count), body=body):
                for i in range(int(count)):
                    scope[index] = Const(i, INDEX)
                    yield from self.block(body, scope)
            case If(cond=cond, then=then, orelse=orelse):
                test = substitute(cond, scope)
                if isinstance(test, Const):
                    yield from self.block(then if test.value else orelse, scope)
                else:
                    yield If(test, self.block(then, scope), self.block(orelse, scope))
            case Let(name=name, value=value):
                value = substitute(value, scope)
                if isinstance(value, Const) or (isinstance(value, Op) and _is_constant_index(value)):
                    scope[name] = value
                else:
                    yield Let(self._bind(name, scope, value.dtype), value)
            case Var(name=name, dtype=dtype, init=init):
                init = substitute(init, scope)
                yield Var(self._bind(name, scope, dtype), dtype, init)
            case Assign(name=name, value=value):
                yield Assign(_renamed(name, scope), substitute(value, scope))
            case Accumulate(name=name, op=op, value=value):
                yield Accumulate(_renamed(name, scope), op, substitute(value, scope))
            case Store(buffer=buffer, index=index, value=value, op=op):
                yield Store(_renamed(buffer, scope), substitute(index, scope), substitute(value, scope), op)
            case Local(buffer=buffer, dtype=dtype, size=size):
                yield Local(self._bind(buffer, scope, dtype), dtype, size)
            case _:
                raise TypeError(f"{type(stmt).__name__} cannot be written out")


def _is_constant_index(value: Op) -> bool:
    return value.name == "cast" and isinstance(value.args[0], Const)


def _renamed(name: str, scope: Mapping[str, Any]) -> str:
    found = scope.get(name)
    return found.name if isinstance(found, Ref) else name


def substitute(expr: Expr, names: Mapping[str, Any]) -> Expr:
    """An expression with names (of values and of buffers) replaced, and arithmetic on constant indices done."""
    match expr:
        case Ref(name=name):
            return names.get(name, expr)
        case Load(buffer=buffer, index=index, dtype=dtype):
            return Load(_renamed(buffer, names), substitute(index, names), dtype)
        case Op(args=args):
            new = tuple([names.get(a.name, a) if type(a) is Ref else a if type(a) is Const else substitute(a, names)
                         for a in args])
            return fold(Op(expr.name, new, expr.dtype, expr.params))
    return expr


def fold(op: Op) -> Expr:
    """An operation on indices, done if they are numbers; a choice, made if it is known."""
    first = op.args[0]
    if not isinstance(first, Const):
        if op.dtype == INDEX and len(op.args) == 2 and isinstance(op.args[1], Const) and op.args[1].value == 0 \
                and op.name in ("add", "sub"):
            return first
        return op
    if op.name == "select_n" and first.dtype == "bool":
        return op.args[1 + bool(first.value)]
    if op.name == "cast" and first.dtype == INDEX and op.dtype[0] in "iu":
        if op.dtype == INDEX or 0 <= first.value < 128:
            return Const(first.value, op.dtype)
        return op
    if op.name == "and" and op.dtype == "bool":
        return op.args[1] if first.value else first
    if first.dtype == INDEX and len(op.args) == 2 and isinstance(op.args[1], Const) and op.name in _FOLD:
        value = _FOLD[op.name](first.value, op.args[1].value)
        return Const(value, "bool" if op.name in _COMPARISONS else INDEX)
    if first.dtype == INDEX and first.value == 0 and op.name == "add" and op.dtype == INDEX:
        return op.args[1]
    return op


def count_uses(stmts: Sequence[Stmt]) -> dict[str, int]:
    """How often each name of a value is mentioned."""
    uses: dict[str, int] = {}
    stack: list[Any] = list(stmts)
    while stack:
        node = stack.pop()
        kind = type(node)
        if kind is Ref:
            uses[node.name] = uses.get(node.name, 0) + 1
        elif kind is Op:
            stack += node.args
        elif kind is Let:
            stack.append(node.value)
        elif kind is not Const:
            stack.extend(children(node))
    return uses


def loaded(stmts: Sequence[Stmt | Expr]) -> set[str]:
    """The buffers that statements or expressions load from."""
    found: set[str] = set()
    stack: list[Any] = list(stmts)
    while stack:
        node = stack.pop()
        kind = type(node)
        if kind is Op:
            stack += node.args
        elif kind is Load:
            found.add(node.buffer)
            stack.append(node.index)
        elif kind is Let:
            stack.append(node.value)
        elif kind is not Const and kind is not Ref:
            stack.extend(children(node))
    return found
