"""`jax._src.random.threefry2x32`: functions that pickled keys name, and that stand for those of the generator."""

from anima.random.implementation import named

_impl = named("threefry2x32")
threefry_seed, threefry_split = _impl.seed, _impl.split
threefry_random_bits, threefry_fold_in = _impl.random_bits, _impl.fold_in
