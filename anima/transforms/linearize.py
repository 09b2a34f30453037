"""Linearisation: one run of a function that leaves behind the program of its tangents.

    linearize(sin)(x)  ->  sin(x)   and   { lambda c ; t. let u = mul t c in (u,) }   with c = cos(x)

Each primitive's `jvp` rule runs under a `PartialTrace`, which does at once what does not depend on a
tangent and records the rest. What is recorded is linear; its constants are the residuals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any

from anima.core.avals import ShapedArray, tangent_aval
from anima.core.jaxpr import ClosedJaxpr, Jaxpr, Var, asks_for_zeros
from anima.core.primitive import Primitive, Zero
from anima.core.stage import StageTrace, StageTracer, eval_jaxpr, hoisted, trace_to_jaxpr
from anima.core.state import current, is_tracing
from anima.core.trace import Trace, aval_of, check_leaks, under
from anima.ops.broadcast import instantiate
from anima.transforms.forward import JVPTrace
from anima.util import weak_cache


class PartialTrace(Trace):
    """Applies a primitive under the parent unless some operand is a variable of `recorder`.

    What is recorded is linear in those. Loops and calls on both are split, as some of their results may be known.
    """

    label = "PartialTrace"
    derives = True

    def __init__(self, parent: Trace, recorder: StageTrace):
        super().__init__(parent)
        self.recorder = recorder

    def moves(self, x: Any) -> bool:
        return isinstance(x, StageTracer) and x.owner is self.recorder

    def process(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        linear = list(map(self.moves, args))
        if not any(linear):
            return under(self.parent, primitive.bind, *args, **params)
        if (primitive.linearize is None or all(linear) or not all(map(_has_tangent, compress(args, linear)))
                or asks_for_zeros(params)):  # what has a transpose alone is of a linear program already
            return under(self.recorder, primitive.bind, *args, **params)
        closed = None if primitive.in_tangents is None else primitive.in_tangents(params)
        if closed is not None:
            outs = under(self, eval_jaxpr, closed.jaxpr, closed.consts, *args)
            return outs if primitive.multiple_results else outs[0]
        avals = [tangent_aval(aval_of(x)) for x in args]
        tangents = [x if is_linear else Zero(a) for x, a, is_linear in zip(args, avals, linear, strict=True)]
        primals = [under(self.parent, instantiate, Zero(a)) if is_linear else x  # the derivative is the same anywhere
                   for x, a, is_linear in zip(args, avals, linear, strict=True)]
        outs, moved = primitive.linearize(self.parent, self.recorder, primals, tangents, **params)
        if primitive.multiple_results:
            return [out if isinstance(t, Zero) else t for out, t in zip(outs, moved, strict=True)]
        return outs if isinstance(moved, Zero) else moved


def _has_tangent(x: Any) -> bool:
    return tangent_aval(aval_of(x)).dtype == aval_of(x).dtype


def _recorder(parent: Any) -> StageTrace:
    recorder = StageTrace(parent)
    recorder.keeps_places = not is_tracing()
    return recorder


def linear_flat(fun: Callable[..., Sequence[Any]], avals: Sequence[ShapedArray]) -> tuple[Jaxpr, list[Any]]:
    """The program of a linear `fun`, which returns a flat list, without what does not depend on its arguments.

    That is done at once; what is needed of it are the values of the program's constvars, which come last.
    """
    parent = current.trace
    recorder = _recorder(parent)
    trace = PartialTrace(parent, recorder)
    try:
        return recorder.finish(under(trace, fun, *map(recorder.new_arg, avals)))
    finally:
        trace.alive = recorder.alive = False


class LinearizeTrace(JVPTrace):
    """Forward mode whose tangents are variables of a program being recorded."""

    label = "LinearizeTrace"

    def __init__(self, parent: Trace, recorder: StageTrace):
        super().__init__(parent)
        self.recorder = recorder
        self.partial = PartialTrace(parent, recorder)

    def differentiate(self, primitive: Primitive, primals: Sequence[Any], tangents: Sequence[Any],
                      params: dict[str, Any]) -> tuple[Any, Any]:
        if primitive.linearize is None:
            return under(self.partial, primitive.jvp, primals, tangents, **params)
        return primitive.linearize(self.parent, self.recorder, primals, tangents, **params)


def linearize_flat(fun: Callable[..., Sequence[Any]], primals: Sequence[Any], nonzero: Sequence[bool],
                   ) -> tuple[list[Any], list[bool], Jaxpr, list[Any]]:
    """Runs `fun(*primals)`, which returns a flat list.

    Returns the results, which of them have a tangent, the linear program from the nonzero tangents of
    the arguments to those, and the values of its constvars (the residuals).
    """
    parent = current.trace
    recorder = _recorder(parent)
    trace = LinearizeTrace(parent, recorder)
    try:
        args = [trace.join(p, recorder.new_arg(tangent_aval(aval_of(p)))) if nz else p
                for p, nz in zip(primals, nonzero, strict=True)]
        outs = [trace.split(x) for x in under(trace, fun, *args)]
        mask = [not isinstance(t, Zero) for _, t in outs]
        jaxpr, consts = recorder.finish([t for _, t in outs if not isinstance(t, Zero)])
    finally:
        trace.alive = trace.partial.alive = recorder.alive = False
    del args
    check_leaks(trace)
    return [p for p, _ in outs], mask, jaxpr, consts


def fill(mask: Sequence[bool], tangents: Sequence[Any], outs: Sequence[Any]) -> list[Any]:
    """Tangents of all results, `Zero` where `mask` says that there is none."""
    given = iter(tangents)
    return [next(given) if m else Zero(tangent_aval(aval_of(o))) for m, o in zip(mask, outs, strict=False)]


@weak_cache
def linearize_jaxpr(closed: ClosedJaxpr, nonzero: tuple[bool, ...], force: tuple[bool, ...] | None = None,
                    ) -> tuple[ClosedJaxpr, ClosedJaxpr, list[bool]]:
    """Splits a program into `primals -> (results, residuals)` and `(residuals, tangents) -> tangents`.

    `nonzero` tells which arguments have tangents; the mask returned, which results do (those that `force`
    marks are made so).
    """
    found: dict[str, Any] = {}

    def forward(*primals: Any) -> list[Any]:
        def fun(*xs: Any) -> list[Any]:
            return eval_jaxpr(closed.jaxpr, closed.consts, *xs)

        outs, mask, linear, residuals = linearize_flat(fun, primals, nonzero)
        found.update(mask=mask, linear=linear)
        return outs + residuals

    jaxpr, consts = trace_to_jaxpr(forward, closed.in_avals)
    linear: Jaxpr = found["linear"]
    mask: list[bool] = found["mask"]
    tangent = hoisted(linear)
    if force is not None and any(f and not m for f, m in zip(force, mask, strict=True)):
        tangent, mask = _with_zeros(tangent, mask, force, closed)
    return ClosedJaxpr(jaxpr, consts), tangent, mask


@weak_cache
def linearize_apart(closed: ClosedJaxpr, nonzero: tuple[bool, ...], force: tuple[bool, ...] | None = None,
                    ) -> tuple[ClosedJaxpr, ClosedJaxpr, list[bool], list[int | None]]:
    """`linearize_jaxpr`, whose first program does not give residuals that are its own arguments: a loop around it
    would keep them again for each step. Last, for each residual, which argument it is, or None."""
    primal, tangent, mask = linearize_jaxpr(closed, nonzero, force)
    outs, residuals = primal.jaxpr.outvars[: len(mask)], primal.jaxpr.outvars[len(mask):]
    place = {v: k for k, v in enumerate(primal.jaxpr.invars)}
    handed_on = [place.pop(v, None) if isinstance(v, Var) else None for v in residuals]
    made = [v for v, k in zip(residuals, handed_on, strict=True) if k is None]
    return ClosedJaxpr(primal.jaxpr.replace(outvars=[*outs, *made]), primal.consts), tangent, mask, handed_on


def _with_zeros(tangent: ClosedJaxpr, mask: list[bool], force: Sequence[bool],
                closed: ClosedJaxpr) -> tuple[ClosedJaxpr, list[bool]]:
    def fun(*args: Any) -> list[Any]:
        outs = iter(eval_jaxpr(tangent.jaxpr, tangent.consts, *args))
        full = [next(outs) if m else Zero(tangent_aval(a))
                for m, a in zip(mask, closed.out_avals, strict=True)]
        return [instantiate(t) for t, m, f in zip(full, mask, force, strict=True) if m or f]

    jaxpr, consts = trace_to_jaxpr(fun, tangent.in_avals)
    return ClosedJaxpr(jaxpr, consts), [m or f for m, f in zip(mask, force, strict=True)]
