"""`jax._src.numpy`: where libraries import some of the public functions from."""
