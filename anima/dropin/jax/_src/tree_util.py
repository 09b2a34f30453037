"""What libraries read of `jax._src.tree_util`: the public functions, and which types are registered, with how."""

from collections import ChainMap, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

from anima import tree
from anima.tree import (
    _Record as _RegistryEntry,
    broadcast_prefix as broadcast_prefix,
    flatten_one_level as flatten_one_level,
    leaves_with_path as generate_key_paths,
)
from anima.tree_util import *  # noqa: F403

_FROM_CHILDREN: dict[type, Callable[[Any, Any], Any]] = {
    tuple: lambda _, children: tuple(children),
    list: lambda _, children: list(children),
    type(None): lambda _, __: None,
    deque: lambda _, children: deque(children),
    dict: lambda keys, children: dict(zip(keys, children, strict=True)),
    OrderedDict: lambda keys, children: OrderedDict(zip(keys, children, strict=True)),
    defaultdict: lambda data, children: defaultdict(data[0], zip(data[1], children, strict=True)),
}
_registry: ChainMap[type, _RegistryEntry] = ChainMap(tree._registered, {
    kind: _RegistryEntry(flatten_one_level, build) for kind, build in _FROM_CHILDREN.items()})
__all__ = ["_registry", "broadcast_prefix", "flatten_one_level", "generate_key_paths", "prefix_errors"]


def prefix_errors(prefix_tree: Any, full_tree: Any, is_leaf: Callable[[Any], bool] | None = None,
                  ) -> list[Callable[[str], ValueError]]:
    """What gives the error, of the prefix's name, for the first place where the prefix is no outer part of the tree."""
    prefix, (leaves, full) = tree.structure(prefix_tree, is_leaf).spec, tree.flatten(full_tree, is_leaf)
    found = tree._mismatch(prefix, full.spec, leaves, "") is not None
    return [lambda name: ValueError(tree._mismatch(prefix, full.spec, leaves, name))] if found else []
