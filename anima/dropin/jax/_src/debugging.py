"""`jax._src.debugging`: the functions of `jax.debug`, by longer names."""

from anima.debug import callback as debug_callback, print as debug_print

__all__ = ["debug_callback", "debug_print"]
