"""Running reductions along an axis: cumsum and its like.

For each of the other indices a serial loop along the axis, with a running total. `cumsum` of f32 adds in f64, as
NumPy's reference does here, halves in f32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

from anima.compiler.ir.index_math import Index
from anima.compiler.ir.loops import PARTS, Const, Expr
from anima.compiler.ir.neutral import neutral
from anima.compiler.lowering.array import Scope, constant, scalar_type
from anima.compiler.lowering.calls import ProgramBuilder, call
from anima.compiler.lowering.reduce import combine
from anima.compiler.scalars.small import HALVES
from anima.core.avals import ShapedArray
from anima.core.jaxpr import Eqn

_WIDER = {"f32": "f64", "c64": "c128", **dict.fromkeys(HALVES, "f64")}
_HALVES = dict.fromkeys(HALVES, "f32")


def _log_add(scope: Scope, a: Expr, b: Expr) -> Expr:
    """log(e^a + e^b) = max + log1p(e^-|a - b|), where the difference of equal infinities is 0."""
    dtype = a.dtype

    def op(name: str, *args: Expr, to: str = dtype) -> Expr:
        return scope.op(name, args, to)

    if dtype in PARTS:
        return _complex_log_sum(op, PARTS[dtype], a, b)
    same = op("eq", a, b, to="bool")
    distance = op("select_n", same, op("neg", op("abs", op("sub", a, b))), Const(0.0, dtype))
    return op("add", op("max", a, b), op("log1p", op("exp", distance)))


def _complex_log_sum(op: Callable[..., Expr], part: str, *terms: Expr) -> Expr:
    """top + log(the sum of e^(x - top)), where top is the largest real part, or 0 if that is infinite."""
    top = reduce(lambda a, b: op("max", a, b, to=part), (op("real", x, to=part) for x in terms))
    zero = Const(0.0, part)
    top = op("complex", op("select_n", op("is_finite", top, to="bool"), zero, top, to=part), zero)
    total = reduce(lambda a, b: op("add", a, b), (op("exp", op("sub", x, top)) for x in terms))
    return op("add", op("log", total), top)


# The operation with whose neutral element a total begins.
_OPERATIONS = {"cumsum": "add", "cumprod": "mul", "cummax": "max", "cummin": "min", "cumlogsumexp": "max"}


def _total_type(name: str, aval: ShapedArray) -> str:
    dtype = scalar_type(aval)
    return (_WIDER if name == "cumsum" else _HALVES).get(dtype, dtype)


@call(*_OPERATIONS, inline="all")
def _cumulative(builder: ProgramBuilder, eqn: Eqn) -> None:
    operand, out = eqn.invars[0], eqn.outvars[0]
    shape, axis = out.aval.shape, eqn.params["axis"]
    if out.aval.size == 0:
        return
    name, reverse, n = eqn.primitive.name, eqn.params["reverse"], shape[axis]
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1:])
    total_type, operation = _total_type(name, out.aval), _OPERATIONS[name]
    scope, target = builder.scope(), builder.result(out)
    ix = scope.ix

    def element(i: Index, k: Index, j: Index) -> tuple[Expr, Index]:
        """The operand's element, and its place in the result."""
        along = ix.offset(ix.scale(k, -1), n - 1) if reverse else k
        flat = ix.add(ix.scale(ix.add(ix.scale(i, n), along), inner), j)
        x = scope.cast(scope.at(operand, ix.unflatten(flat, shape)), total_type)
        if name == "cumlogsumexp" and total_type in PARTS:  # the first result is a logarithm, too: the principal one
            x = _complex_log_sum(lambda name, *args, to=total_type: scope.op(name, args, to), PARTS[total_type], x)
        return x, flat

    def store(flat: Index, total: Expr) -> None:
        scope.store(target, flat, scope.cast(total, scalar_type(out.aval)))

    def step(total: Expr, x: Expr) -> Expr:
        if name == "cumlogsumexp":
            return _log_add(scope, total, x)
        return scope.op(combine(operation, total_type), (total, x), total_type)

    with scope.loop(outer, "each") as i, scope.loop(inner, "each") as j:
        first = total_type in PARTS or n == 1  # of complex numbers, 1 * x is not x if that is infinite
        if first:
            x, flat = element(i, ix.zero, j)
            store(flat, x)
        total = scope.var(x if first else constant(neutral(operation, total_type), total_type))
        if n > first:
            with scope.serial(n - first) as k:
                x, flat = element(i, ix.offset(ix.opaque(k, 0, n - 1 - first, scope.depth), int(first)), j)
                value = step(scope.read(total), x)
                scope.assign(total, value)
                store(flat, value)
    builder.kernel(name, scope, eqn.source, (shape, (axis,)))
