"""What is left of `jax.lib`: the version of the library below."""

from anima.dropin.version import JAX_VERSION as __version__

__all__ = ["__version__"]
