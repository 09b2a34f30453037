"""`jaxlib._jax`: what JAX has written in C++, as far as pickled objects refer to it."""
