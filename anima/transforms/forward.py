"""Forward mode: a value and its tangent, pushed through a program together (JVP).

Each primitive's `jvp` rule computes its result and the result's tangent with ordinary primitives under
the parent trace, so forward mode nests in itself and in everything else.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from anima import errors
from anima.core.avals import tangent_aval
from anima.core.jaxpr import ClosedJaxpr
from anima.core.primitive import Primitive, Zero
from anima.core.stage import eval_jaxpr, trace_to_jaxpr
from anima.core.state import current
from anima.core.trace import Trace, Tracer, aval_of, check_leaks, under
from anima.ops.broadcast import instantiate
from anima.util import weak_cache


class JVPTracer(Tracer):
    """A primal value with its tangent."""

    __slots__ = ("primal", "tangent")

    def __init__(self, owner: Trace, primal: Any, tangent: Any):
        self.owner = owner
        self.aval = aval_of(primal)
        self.primal = primal
        self.tangent = tangent
        if owner.made is not None:
            owner.made.append(weakref.ref(self))

    def concrete(self) -> Any:
        return self.primal.concrete() if isinstance(self.primal, Tracer) else self.primal

    def _number(self, *args: Any) -> Any:
        raise errors.ConcretizationTypeError(
            self, "It is being differentiated, and a Python number would lose its derivative. If that is meant, take "
                  "the number of anima.lax.stop_gradient(x).")

    __float__ = __complex__ = tolist = item = _number

    def from_numbers(self) -> bool:
        """Whether the arguments that it comes from are single numbers."""
        return errors.from_numbers(self.primal)

    def origin_text(self) -> str:
        return self.primal.origin_text() if isinstance(self.primal, Tracer) else ""

    def made_text(self) -> str:
        if isinstance(self.primal, Tracer):
            return self.primal.made_text()
        return "It was made while a function was being differentiated (by grad, vjp, jvp or linearize)."


class JVPTrace(Trace):
    """Pairs values with tangents."""

    label = "JVPTrace"
    derives = True

    def moves(self, x: Any) -> bool:
        return isinstance(x, JVPTracer) and x.owner is self

    def split(self, x: Any) -> tuple[Any, Any]:
        if isinstance(x, JVPTracer) and x.owner is self:
            return x.primal, x.tangent
        return x, Zero(tangent_aval(aval_of(x)))

    def join(self, primal: Any, tangent: Any) -> Any:
        return primal if isinstance(tangent, Zero) else JVPTracer(self, primal, tangent)

    def process(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        primals, tangents = zip(*map(self.split, args), strict=True) if args else ((), ())
        if all(isinstance(t, Zero) for t in tangents):
            return under(self.parent, primitive.bind, *primals, **params)
        out, tangent = self.differentiate(primitive, primals, tangents, params)
        if primitive.multiple_results:
            return list(map(self.join, out, tangent))
        return self.join(out, tangent)

    def differentiate(self, primitive: Primitive, primals: Sequence[Any], tangents: Sequence[Any],
                      params: dict[str, Any]) -> tuple[Any, Any]:
        """(results, their tangents), where some operand has a tangent."""
        return under(self.parent, primitive.jvp, primals, tangents, **params)


def jvp_flat(fun: Callable[..., Sequence[Any]], primals: Sequence[Any],
             tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Results of `fun(*primals)` (a flat list) and their tangents, which may be `Zero`."""
    trace = JVPTrace(current.trace)
    try:
        pairs = [trace.split(x) for x in under(trace, fun, *map(trace.join, primals, tangents))]
    finally:
        trace.alive = False
    check_leaks(trace)
    return [p for p, _ in pairs], [t for _, t in pairs]


@weak_cache
def jvp_jaxpr(closed: ClosedJaxpr, nonzero: tuple[bool, ...],
              force: tuple[bool, ...] | None = None) -> tuple[ClosedJaxpr, list[bool]]:
    """The program (primals, nonzero tangents) -> (primal results, nonzero tangents of results).

    The second result tells which result tangents are nonzero; those that `force` marks are made so.
    """
    mask: list[bool] = []

    def fun(*args: Any) -> list[Any]:
        primals, given = args[: len(nonzero)], iter(args[len(nonzero):])
        tangents = [next(given) if nz else Zero(tangent_aval(a))
                    for nz, a in zip(nonzero, closed.in_avals, strict=True)]
        outs, out_tangents = jvp_flat(lambda *xs: eval_jaxpr(closed.jaxpr, closed.consts, *xs), primals, tangents)
        if force is not None:
            out_tangents = [instantiate(t) if f else t for f, t in zip(force, out_tangents, strict=True)]
        mask.extend(not isinstance(t, Zero) for t in out_tangents)
        return outs + [t for t in out_tangents if not isinstance(t, Zero)]

    avals = closed.in_avals + [tangent_aval(a) for nz, a in zip(nonzero, closed.in_avals, strict=True) if nz]
    jaxpr, consts = trace_to_jaxpr(fun, avals)
    return ClosedJaxpr(jaxpr, consts), mask
