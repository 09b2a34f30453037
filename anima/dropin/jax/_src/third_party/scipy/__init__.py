"""`jax._src.third_party.scipy`: files of public functions."""
