"""`jax._src.lax.lax`: the public operations."""

from anima.lax import *  # noqa: F403
