"""`jax._src.ad_util`: zeros and sums of tangents, and the primitive behind `stop_gradient`."""

from typing import Any

from anima.core.avals import tangent_aval
from anima.core.trace import aval_of
from anima.custom_derivatives import SymbolicZero as SymbolicZero
from anima.extend.core.primitives import add_jaxvals_p as add_jaxvals_p
from anima.interpreters.ad import (
    Zero as Zero,
    add_jaxvals as add_jaxvals,
    instantiate_zeros as instantiate_zeros,
    zeros_like_aval as zeros_like_aval,
)
from anima.lax import stop_gradient_p as stop_gradient_p

add_any_p = add_jaxvals_p
instantiate = instantiate_zeros


def p2tz(primal_value: Any) -> Zero:
    """The tangent of a value that nothing depends on."""
    return Zero(tangent_aval(aval_of(primal_value)))
