"""`jax._src.scipy`: the files of `jax.scipy`."""
