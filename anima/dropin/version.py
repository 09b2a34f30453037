"""Which JAX Anima stands in for."""

JAX_VERSION = "0.10.2"
JAX_VERSION_INFO = tuple(map(int, JAX_VERSION.split(".")))
