"""`jax._src.sharding_impls`: how a sharding is said not to be given, beside what `jax.sharding` has."""

__all__ = ["UNSPECIFIED", "UnspecifiedValue"]

UNSPECIFIED = None  # what `in_shardings` and `out_shardings` are by default
UnspecifiedValue = type(UNSPECIFIED)
