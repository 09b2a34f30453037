"""Programs with loops make 0 of results below the least normal number.

    for k < 1000: x = 0.9 * x        1.2e-38, then 0, not 1e-38, 9e-39, ...

An operation on such a subnormal number takes a hundred times as long as on others, on most x86: what decays in a loop,
as pulses, filters and fronts do, would go on at that pace. Elsewhere functions have all the results that IEEE 754 has.
Operands may be subnormal everywhere.
"""

from __future__ import annotations

from anima.config import flush_subnormals
from anima.core.jaxpr import ClosedJaxpr, Jaxpr, subjaxprs


def flushes(jaxpr: Jaxpr) -> bool:
    """Whether a program has a loop that carries values from step to step, and the user did not say otherwise."""
    return flush_subnormals.value and _carries(jaxpr)


def _carries(jaxpr: Jaxpr) -> bool:
    return any((e.primitive.name.endswith("while") or bool(e.params.get("num_carry"))
                or any(_carries(p.jaxpr if isinstance(p, ClosedJaxpr) else p) for p in subjaxprs(e.params)))
               for e in jaxpr.eqns if e.params)
