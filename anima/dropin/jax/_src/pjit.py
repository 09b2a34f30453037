"""`jax._src.pjit`: the primitive of calls, and functions within which types do not say how values are cut."""

from anima.dropin.jax._src.sharding_impls import UNSPECIFIED as UNSPECIFIED, UnspecifiedValue as UnspecifiedValue
from anima.extend.core.primitives import jit_p as jit_p
from anima.sharding import auto_axes as auto_axes, explicit_axes as explicit_axes
