"""`from jax.config import config`, as programs wrote for long: `jax.config` itself stays the options."""

from anima.config import config

__all__ = ["config"]
