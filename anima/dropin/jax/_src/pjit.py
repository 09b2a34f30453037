"""`jax._src.pjit`: primitives, and functions within which types do not say how values are cut."""

from anima.dropin.jax._src.sharding_impls import UNSPECIFIED as UNSPECIFIED, UnspecifiedValue as UnspecifiedValue
from anima.dropin.jax.experimental.pjit import pjit as pjit
from anima.extend.core.primitives import jit_p as jit_p, sharding_constraint_p as sharding_constraint_p
from anima.lax import with_sharding_constraint as with_sharding_constraint
from anima.sharding import auto_axes as auto_axes, explicit_axes as explicit_axes
