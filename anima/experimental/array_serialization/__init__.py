"""Checkpoints: trees of arrays in files, written and read by all processes at once."""

from anima import names as _names

globals().update(_names.access(__name__, globals(), ("pytree_serialization",)))
