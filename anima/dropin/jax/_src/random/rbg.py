"""`jax._src.random.rbg`: functions that pickled keys name, and that stand for those of the generator."""

from anima.random.implementation import named

_impl = named("rbg")
_rbg_seed, _rbg_split = _impl.seed, _impl.split
_rbg_random_bits, _rbg_fold_in = _impl.random_bits, _impl.fold_in
