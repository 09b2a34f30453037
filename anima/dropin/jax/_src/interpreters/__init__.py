"""`jax._src.interpreters`: what `jax.interpreters` has, and what libraries read beside it."""
