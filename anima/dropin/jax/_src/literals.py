"""`jax._src.literals`: there are no typed literals."""
