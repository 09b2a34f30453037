"""Dead code: the part of a program that its wanted results, and its effects, depend on."""

from __future__ import annotations

from collections.abc import Sequence

from anima.core.jaxpr import ClosedJaxpr, Eqn, Jaxpr, Literal, Var
from anima.util import deeper, weak_cache


def dce_jaxpr(jaxpr: Jaxpr, used_outputs: Sequence[bool]) -> tuple[Jaxpr, list[bool]]:
    """The program of the used results alone, with the arguments it needs, and which those are.

    A primitive with a `dce` method shrinks itself: `dce(eqn, used_outvars) -> Eqn | None`.
    """
    outvars = [v for v, used in zip(jaxpr.outvars, used_outputs, strict=True) if used]
    live: set[Var] = {v for v in outvars if isinstance(v, Var)}
    kept: list[Eqn] = []
    for eqn in reversed(jaxpr.eqns):
        used = [v in live for v in eqn.outvars]
        if not any(used) and not eqn.effects:
            continue
        shrink = eqn.primitive.dce
        if shrink is not None and not all(used):
            with deeper():
                eqn = shrink(eqn, used)
        if eqn is None:
            continue
        kept.append(eqn)
        live.update(v for v in eqn.invars if not isinstance(v, Literal))
    used_inputs = [v in live for v in jaxpr.invars]
    new = Jaxpr([v for v in jaxpr.constvars if v in live],
                [v for v, used in zip(jaxpr.invars, used_inputs, strict=True) if used],
                outvars, kept[::-1], jaxpr.effects)
    return new, used_inputs


@weak_cache
def live_part(jaxpr: Jaxpr) -> Jaxpr:
    """The program with those of its equations that results and effects need; all of its arguments and constants."""
    return jaxpr.replace(eqns=dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0].eqns)


def without_dead_code(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program with those of its equations that results and effects need; all of its arguments."""
    return closed.replace(jaxpr=live_part(closed.jaxpr))
