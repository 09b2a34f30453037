"""`jax.extend`: what only libraries for XLA's run time ask for."""
