"""How an index expression depends on the indices of loops.

    coefficient(i*1024 + j + 3, "i") == 1024        coefficient(rem(i, 7), "i") is None
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anima.compiler.ir.loops import Const, Expr, For, Let, Op, Ref, Stmt, Store, walk


def coefficient(expr: Expr, name: str, lets: Mapping[str, Expr]) -> int | None:
    """What `name` is multiplied by in a linear expression (0: it does not occur); None if it is not linear in it.
    `lets` has the values of names that stand for expressions."""
    match expr:
        case Const():
            return 0
        case Ref(name=other):
            if other == name:
                return 1
            return coefficient(lets[other], name, lets) if other in lets else 0
        case Op(name="add" | "sub", args=(a, b)):
            left, right = coefficient(a, name, lets), coefficient(b, name, lets)
            if left is None or right is None:
                return None
            return left + right if expr.name == "add" else left - right
        case Op(name="mul", args=(a, b)):
            for factor, scaled in ((a, b), (b, a)):
                if isinstance(factor, Const):
                    inner = coefficient(scaled, name, lets)
                    return None if inner is None else inner * int(factor.value)
    return None if mentions(expr, name, lets) else 0


def mentions(expr: Expr, name: str, lets: Mapping[str, Expr]) -> bool:
    """Whether the value of an expression may depend on `name`."""
    pending, seen = [expr], set()
    while pending:
        for node in walk(pending.pop()):
            if isinstance(node, Ref) and node.name not in seen:
                if node.name == name:
                    return True
                seen.add(node.name)
                if node.name in lets:
                    pending.append(lets[node.name])
    return False


def injective(expr: Expr, extents: Sequence[tuple[str, int]], lets: Mapping[str, Expr]) -> bool:
    """Whether different iterations of the loops (index and extent of each) surely give different indices."""
    steps = []
    for name, extent in extents:
        step = coefficient(expr, name, lets)
        if step is None:
            return False
        if extent > 1:
            steps.append((abs(step), extent))
    reach = 0
    for step, extent in sorted(steps):
        if step <= reach:
            return False
        reach += step * (extent - 1)
    return True


@dataclass(slots=True)
class Nest:
    """Loops inside of each other, outside in; the lets between them; the innermost body."""

    loops: list[For]
    between: list[Let]
    body: tuple[Stmt, ...]

    @property
    def lets(self) -> dict[str, Expr]:
        return {s.name: s.value for s in (*self.between, *self.body) if isinstance(s, Let)}

    @property
    def extents(self) -> list[tuple[str, int]]:
        return [(loop.index, int(loop.extent.value)) for loop in self.loops if isinstance(loop.extent, Const)]


def nest_of(loop: For) -> Nest | None:
    """The nest that starts at a loop, if nothing but lets stands between its loops and nothing else inside."""
    loops: list[For] = [loop]
    between: list[Let] = []
    while True:
        *lets, last = loops[-1].body or (None,)  # the elements of an empty array
        if not isinstance(last, For):
            break
        if not all(isinstance(s, Let) for s in lets):
            return None
        between += lets  # type: ignore[arg-type]
        loops.append(last)
    body = loops[-1].body
    simple = all(isinstance(s, Let) or (isinstance(s, Store) and s.op is None) for s in body)
    constant = all(isinstance(one.extent, Const) for one in loops)
    if len(loops) < 2 or not simple or not constant:
        return None
    return Nest(loops, between, body)
