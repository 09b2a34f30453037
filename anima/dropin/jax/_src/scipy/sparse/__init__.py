"""`jax._src.scipy.sparse`: solvers."""
