"""`jax._src.ad_checkpoint`: the primitive of `checkpoint`; else the public functions."""

from anima.extend.core.primitives import name_p as name_p, remat_p as remat_p
