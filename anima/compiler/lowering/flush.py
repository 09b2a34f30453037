"""Programs in which values decay make 0 of results below the least normal number.

    for k < 1000: x = 0.9 * x        1.2e-38, then 0, not 1e-38, 9e-39, ...
    exp(-x * x)                      likewise, for x from 9.35 to 10.1

An operation on such a subnormal number takes a hundred times as long as on others, on most x86: what decays in a loop,
as pulses, filters and fronts do, would go on at that pace, and so would the tails of exponentials, which most programs
have some elements in. Elsewhere functions have all the results that IEEE 754 has. Operands may be subnormal everywhere.
"""

from __future__ import annotations

from anima.config import flush_subnormals
from anima.core.jaxpr import ClosedJaxpr, Jaxpr, subjaxprs

_TAILS = frozenset(("exp", "logistic", "erfc"))  # what decays to 0


def flushes(jaxpr: Jaxpr) -> bool:
    """Whether a program has exponentials, or a loop that carries values from step to step, and the user did not say
    otherwise."""
    return flush_subnormals.value and _decays(jaxpr)


def _decays(jaxpr: Jaxpr) -> bool:
    return any(e.primitive.name in _TAILS or e.primitive.name.endswith("while") or bool(e.params.get("num_carry"))
               or any(_decays(p.jaxpr if isinstance(p, ClosedJaxpr) else p) for p in subjaxprs(e.params))
               for e in jaxpr.eqns)
