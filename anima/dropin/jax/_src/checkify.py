"""`jax._src.checkify`: the public module."""

from anima.experimental.checkify import *  # noqa: F403
