"""`jax._src.lax.control_flow`: the public operations."""

from anima.lax import *  # noqa: F403
