"""What statements cost, roughly: nanoseconds of one core at one scalar element a step.

Only orders of magnitude matter: they decide whether a loop is worth handing to threads, whether a body
may be written twice, and how many accumulators a reduction gets.
"""

from __future__ import annotations

from collections.abc import Sequence

from anima.compiler.ir.affine import largest
from anima.compiler.ir.loops import (
    INDEX,
    Accumulate,
    Affine,
    Call,
    Const,
    Expr,
    For,
    If,
    Kernel,
    Let,
    Load,
    Local,
    NamedValue,
    Op,
    Stmt,
    Store,
    While,
    children,
)
from anima.compiler.ir.routines import GEMM_ARGUMENTS
from anima.ops.family import ELEMENTWISE

# Operations of loops that are not primitives; others of these are instructions.
_OPS = {"cast": 0.5, "bitcast": 0.0, "foreign": 50.0}
UNKNOWN_TRIPS = 16  # iterations of a loop whose extent is not a constant
_CALL = 100.0  # nanoseconds of a call of a product
_TERM = 0.02   # nanoseconds of a multiplication and addition in it
_SHORT = 12.0  # nanoseconds of an iteration, up to which it is written out several times
_UNKNOWN_STEPS = 64  # iterations of a loop that ends when a condition fails


def extent_of(extent: Expr) -> int:
    """The number of iterations, or a guess."""
    known = largest(extent)
    return UNKNOWN_TRIPS if known is None else known


def operation_cost(name: str) -> float:
    """The cost of an elementwise operation, in nanoseconds."""
    primitive = ELEMENTWISE.get(name)
    return _OPS.get(name, 1.0) if primitive is None else primitive.cost


def is_short(body: Sequence[Stmt]) -> bool:
    """Whether a loop's body may be written out for each of several rows."""
    return sum(map(cost, body)) <= _SHORT


def cost(node: Stmt | Expr) -> float:
    """The cost of a statement or expression, in nanoseconds."""
    of = type(node)
    if of is NamedValue or of is Const or of is Local:
        return 0.0
    if of is Let:
        return cost(node.value)  # type: ignore[union-attr]
    match node:
        case Op(name=name, args=args, dtype=dtype):
            own = 0.2 if dtype == INDEX else operation_cost(name)
            return own + sum([cost(a) for a in args if type(a) is not NamedValue])
        case Load(index=index):
            return 0.7 + 0.3 * cost(index)
        case Affine(values=values, coefficients=coefficients, const=const):
            total = 0.0
            for n, value in enumerate(values):
                total = total + (cost(value) + (0.2 if coefficients[n] != 1 else 0.0)) + (0.2 if n else 0.0)
            return total + 0.2 if const else total
        case Store(index=index, value=value):
            return 1.0 + 0.3 * cost(index) + cost(value)
        case Accumulate(value=value):
            return 1.0 + cost(value)
        case For(extent=extent, body=body, kind=kind, width=width):
            each = sum(cost(s) for s in body)
            lanes = max(width * 0.6, 1.0) if kind in ("vector", "whole") else 1.0
            return 2.0 + extent_of(extent) * (each / lanes + (0.5 if kind != "vector" else 0.0))
        case While(before=before, cond=cond, body=body, steps=steps):
            return (_UNKNOWN_STEPS if steps is None else steps) * (cost(cond) + sum(cost(s) for s in (*before, *body)))
        case If(cond=cond, then=then, orelse=orelse):
            return cost(cond) + max(sum(cost(s) for s in then), sum(cost(s) for s in orelse))
        case Kernel(body=body):
            return sum(cost(s) for s in body)
        case Call(routine="look" | "stamp"):  # for Ctrl-C: once in many milliseconds; under a profile
            return 0.0
        case Call(routine="gemm", args=args):
            m, n, k, batch = (int(args[GEMM_ARGUMENTS.index(name)]) for name in ("m", "n", "k", "batch"))
            return _CALL + _TERM * m * n * k * batch
        case Call():
            return 10_000.0
    return sum(cost(c) for c in children(node))
