"""What libraries read of `jax._src.tree_util`: the public functions, and which types are registered."""

from collections import ChainMap
from typing import Any

from anima import tree
from anima.tree import flatten_one_level as flatten_one_level
from anima.tree_util import *  # noqa: F403

_registry: ChainMap[type, Any] = ChainMap(tree._registered, dict.fromkeys(tree._BUILTIN))
__all__ = ["_registry", "flatten_one_level"]
