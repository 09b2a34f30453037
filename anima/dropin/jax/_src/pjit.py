"""`jax._src.pjit`: the primitive of calls."""

from anima.extend.core.primitives import jit_p as jit_p
