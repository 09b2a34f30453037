"""`jax.experimental.pallas`: Anima's, and the kernels that JAX has written with it."""
