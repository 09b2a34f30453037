"""`jax.experimental.pjit`: an older name of `jit`."""

from anima import jit as pjit

__all__ = ["pjit"]
