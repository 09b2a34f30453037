"""`jax._src.third_party`: where JAX has what it took from others."""
