"""`jax.experimental`: what libraries for many hosts ask for."""
