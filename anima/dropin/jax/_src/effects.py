"""`jax._src.effects`: what operations do beyond their results, and which classes of that may be where.

Effects of every class may be anywhere here, and stay in order: the classes that libraries enter are only told again.
"""

from anima.extend.core.types import (
    Effect as Effect,
    Effects as Effects,
    EffectTypeSet as EffectTypeSet,
    no_effects as no_effects,
)
from anima.interpreters.mlir import lowerable_effects as lowerable_effects

control_flow_allowed_effects = EffectTypeSet()
custom_derivatives_allowed_effects = EffectTypeSet()
ordered_effects = EffectTypeSet()
partial_eval_kept_effects = EffectTypeSet()
remat_allowed_effects = EffectTypeSet()
shardable_ordered_effects = EffectTypeSet()
