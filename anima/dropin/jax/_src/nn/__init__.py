"""`jax._src.nn`: the files of `jax.nn`."""
