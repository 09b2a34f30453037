"""`jax._src.ad_util`: zeros of tangents, and the primitive behind `stop_gradient`."""

from anima.interpreters.ad import Zero as Zero, instantiate_zeros as instantiate_zeros
from anima.lax import stop_gradient_p as stop_gradient_p
