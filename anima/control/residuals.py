"""What the adjoint of a while loop needs of each step, and where it gets it from.

    s, i -> s + x * sin(a + i), i + 1        residual sin(a + i): computed again from a and the step's number
    s, i -> sin(s), i + 1                    residual cos(s): taped

A residual that depends on constants alone (or on carries that never change) is computed once, before the
loop; one that depends on counters as well is computed again for each step, so that loops that only
accumulate need no storage; all others go to tapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from anima.core import dtypes
from anima.core.avals import ShapedArray
from anima.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var, subjaxprs
from anima.core.stage import eval_jaxpr, trace_to_jaxpr
from anima.ops.elementwise import add, convert, mul
from anima.transforms.dce import dce_jaxpr
from anima.util import split_list, weak_cache

STEP = ShapedArray((), np.dtype(np.int32))


class Plan(NamedTuple):
    """The parts of a linearised loop."""

    body: ClosedJaxpr        # (consts, carry) -> (results, residuals to tape)
    outside: ClosedJaxpr     # (consts, carry) -> residuals that do not change
    again_reads: list[bool]  # which of consts and initial carry the tangent loop needs
    tangent: ClosedJaxpr     # (fixed, those, tangents of consts, of carry, taped residuals, step) -> tangents


@weak_cache
def plan_residuals(primal: ClosedJaxpr, tangent: ClosedJaxpr, n_out: int, num_consts: int, num_carry: int,
                   num_const_tangents: int) -> Plan:
    """The plan for a body `primal: (consts, carry) -> (results, residuals)`, whose first results are the next
    carry, and its linear part `tangent: (residuals, tangents of consts, of carry) -> tangents of results`."""
    jaxpr = primal.jaxpr
    carries = list(zip(jaxpr.invars[num_consts:], jaxpr.outvars, strict=False))
    unchanged = {v for v, out in carries if out is v}
    counters = _counters(jaxpr, carries)
    fixed_vars = _closure(jaxpr, {*jaxpr.constvars, *jaxpr.invars[:num_consts], *unchanged})
    again_vars = _closure(jaxpr, {*fixed_vars, *counters})
    residuals = jaxpr.outvars[n_out:]
    kinds = ["fixed" if isinstance(v, Literal) or v in fixed_vars else "again" if v in again_vars else "taped"
             for v in residuals]

    def of(kind: str) -> list[Atom]:
        return [v for v, k in zip(residuals, kinds, strict=True) if k == kind]

    body = ClosedJaxpr(jaxpr.replace(outvars=[*jaxpr.outvars[:n_out], *of("taped")]), primal.consts)
    outside = _part(primal, fixed_vars, of("fixed"))[0]
    again, reads = _part(primal, again_vars, of("again"))
    steps = {v: counters[v] for v, used in zip(jaxpr.invars, reads, strict=True) if used and v in counters}
    reads = reads if any(k == "again" for k in kinds) else [False] * len(reads)
    new = _with_recomputation(tangent, kinds, again, reads, [steps.get(v) for v in jaxpr.invars], num_const_tangents)
    return Plan(body, outside, reads, new)


def _closure(jaxpr: Jaxpr, known: set[Var]) -> set[Var]:
    """What can be computed from `known`, loops and effects aside."""
    found = set(known)
    for eqn in jaxpr.eqns:
        if not eqn.effects and next(subjaxprs(eqn.params), None) is None and all(
                isinstance(v, Literal) or v in found for v in eqn.invars):
            found.update(eqn.outvars)
    return found


def _counters(jaxpr: Jaxpr, carries: Sequence[tuple[Var, Atom]]) -> dict[Var, Any]:
    """Integer scalars of the carry that grow by a constant at each step, and by how much."""
    producers: dict[Any, Eqn] = {v: e for e in jaxpr.eqns for v in e.outvars}
    found: dict[Var, Any] = {}
    for var, out in carries:
        eqn = producers.get(out)
        if (eqn is None or eqn.primitive.name not in ("add", "sub") or var.aval.shape
                or not dtypes.issubdtype(var.aval.dtype, np.integer)):
            continue
        a, b = eqn.invars
        if a is var and isinstance(b, Literal):
            found[var] = int(b.val) if eqn.primitive.name == "add" else -int(b.val)
        elif b is var and isinstance(a, Literal) and eqn.primitive.name == "add":
            found[var] = int(a.val)
    return found


def _part(closed: ClosedJaxpr, known: set[Var], outs: Sequence[Atom]) -> tuple[ClosedJaxpr, list[bool]]:
    """The program of some of the values in `known`, with all arguments, and which of them it reads."""
    jaxpr = closed.jaxpr
    eqns = [e for e in jaxpr.eqns if not e.effects and all(v in known for v in e.outvars)]
    small, reads = dce_jaxpr(jaxpr.replace(eqns=eqns, outvars=list(outs)), [True] * len(outs))
    values = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    small = small.replace(invars=jaxpr.invars)
    return ClosedJaxpr(small, [values[v] for v in small.constvars]), reads


def _with_recomputation(tangent: ClosedJaxpr, kinds: Sequence[str], again: ClosedJaxpr, reads: Sequence[bool],
                        strides: Sequence[Any], num_const_tangents: int) -> ClosedJaxpr:
    """The tangent loop's body, with residuals in the order of their kinds and those of kind "again" computed."""
    in_avals = tangent.in_avals
    n_res = len(kinds)
    by_kind = {k: [a for a, other in zip(in_avals, kinds, strict=False) if other == k] for k in ("fixed", "taped")}
    read_avals = [a for a, used in zip(again.in_avals, reads, strict=True) if used]
    linear = in_avals[n_res:]

    def fun(*args: Any) -> list[Any]:
        fixed, given, tangents, rest = split_list(args, [len(by_kind["fixed"]), len(read_avals), len(linear)])
        *taped, step = rest
        operands = _at_step(again.in_avals, reads, strides, given, step)
        sources = {"fixed": iter(fixed), "taped": iter(taped), "again": iter(())}
        if any(k == "again" for k in kinds):
            sources["again"] = iter(eval_jaxpr(again.jaxpr, again.consts, *operands))
        return eval_jaxpr(tangent.jaxpr, tangent.consts, *(next(sources[k]) for k in kinds), *tangents)

    jaxpr, consts = trace_to_jaxpr(fun, [*by_kind["fixed"], *read_avals, *linear, *by_kind["taped"], STEP])
    return ClosedJaxpr(jaxpr, consts)


def _at_step(avals: Sequence[ShapedArray], reads: Sequence[bool], strides: Sequence[Any], given: Sequence[Any],
             step: Any) -> list[Any]:
    """Arguments of the recomputation at a step: counters advanced; None for those that it does not read."""
    values = iter(given)
    out: list[Any] = []
    for aval, used, stride in zip(avals, reads, strides, strict=True):
        value = next(values) if used else None
        if used and stride is not None:
            moved = mul(convert(step, aval.dtype), np.asarray(stride).astype(aval.dtype))
            value = convert(add(value, moved), aval.dtype, aval.weak_type)
        out.append(value)
    return out
