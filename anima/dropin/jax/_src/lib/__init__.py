"""`jax._src.lib`: what is below, as libraries import it."""
