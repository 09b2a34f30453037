"""`jax._src.ad_util`: zeros of tangents, and the primitive behind `stop_gradient`."""

from typing import Any

from anima.core.avals import tangent_aval
from anima.core.trace import aval_of
from anima.interpreters.ad import Zero as Zero, instantiate_zeros as instantiate_zeros
from anima.lax import stop_gradient_p as stop_gradient_p


def p2tz(primal_value: Any) -> Zero:
    """The tangent of a value that nothing depends on."""
    return Zero(tangent_aval(aval_of(primal_value)))
