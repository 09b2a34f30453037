"""The version of the interface."""

from anima.dropin.version import JAX_VERSION as __version__, JAX_VERSION_INFO as __version_info__

__all__ = ["__version__", "__version_info__"]
