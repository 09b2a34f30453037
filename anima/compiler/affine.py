"""How an index expression depends on the indices of loops.

    coefficient(i*1024 + j + 3, "i") == 1024        coefficient(rem(i, 7), "i") is None
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anima.compiler.loops import Const, Expr, Op, Ref, walk


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
            for factor, other in ((a, b), (b, a)):
                if isinstance(factor, Const):
                    inner = coefficient(other, name, lets)
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
