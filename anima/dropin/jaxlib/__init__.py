"""`jaxlib`: its version."""

from anima.dropin.version import JAX_VERSION as __version__

__all__ = ["__version__"]
