"""`jax._src.lax`: where libraries import some of the public operations from."""
