"""Compiled programs on the disk: `compilation_cache.compilation_cache`, as in JAX."""

from anima.experimental.compilation_cache import compilation_cache as compilation_cache
from anima.names import access

globals().update(access(__name__, globals(), ("compilation_cache",)))
