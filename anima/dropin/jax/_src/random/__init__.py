"""`jax._src.random`: where libraries import some of the public functions from."""
