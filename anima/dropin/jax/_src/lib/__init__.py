"""`jax._src.lib`: what is below, as libraries import it."""

cuda_versions = None  # of CUDA's libraries that jaxlib is built with: none
