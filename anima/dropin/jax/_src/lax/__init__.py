"""`jax._src.lax`: the files that libraries import some of the functions of `jax.lax` from."""
