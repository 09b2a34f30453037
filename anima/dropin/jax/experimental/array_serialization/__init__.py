"""`jax.experimental.array_serialization`: the class that asynchronous writers of arrays derive from."""
