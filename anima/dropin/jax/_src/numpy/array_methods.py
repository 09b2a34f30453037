"""`jax._src.numpy.array_methods`: the classes of `x.at` and `x.at[index]`, of which libraries make their own."""

from anima.numpy.updates import _IndexUpdateHelper as _IndexUpdateHelper, _IndexUpdateRef as _IndexUpdateRef
