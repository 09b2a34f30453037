"""`jax._src.image`: resizing."""
