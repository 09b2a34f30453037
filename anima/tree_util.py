"""Pytrees under JAX's longer names (`tree_map` is `tree.map`), and the registration of node types.

    @tree_util.register_dataclass
    @dataclasses.dataclass
    class Layer:
        W: Array
        name: str = anima.tree.static()
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from anima import names as _names, tree
from anima.tree import (
    Partial,
    PyTreeDef,
    all_leaves,
    flatten_one_level,
    flatten_one_level_with_keys,
    is_tree_node,
    register_dataclass,
    register_pytree_node,
    register_pytree_node_class,
    register_pytree_with_keys,
    register_pytree_with_keys_class,
    register_static,
    treedef_children,
    treedef_is_leaf,
    treedef_tuple,
)
from anima.tree_keys import DictKey, FlattenedIndexKey, GetAttrKey, KeyEntry, KeyPath, SequenceKey, keystr

globals().update(_names.access(__name__, globals()))

__all__ = [
    "DictKey", "FlattenedIndexKey", "GetAttrKey", "KeyEntry", "KeyPath", "Partial", "PyTreeDef",
    "PyTreeRegistry", "SequenceKey", "all_leaves", "default_registry", "flatten_one_level",
    "flatten_one_level_with_keys", "is_tree_node", "keystr", "register_dataclass", "register_pytree_node",
    "register_pytree_node_class", "register_pytree_with_keys", "register_pytree_with_keys_class",
    "register_static", "tree_all", "tree_broadcast", "tree_flatten", "tree_flatten_with_path",
    "tree_leaves", "tree_leaves_with_path", "tree_map", "tree_map_with_path", "tree_reduce",
    "tree_reduce_associative", "tree_structure", "tree_transpose", "tree_unflatten", "treedef_children",
    "treedef_is_leaf", "treedef_tuple",
]

tree_all = tree.all
tree_broadcast = tree.broadcast
tree_flatten = tree.flatten
tree_flatten_with_path = tree.flatten_with_path
tree_leaves = tree.leaves
tree_leaves_with_path = tree.leaves_with_path
tree_map = tree.map
tree_map_with_path = tree.map_with_path
tree_reduce = tree.reduce
tree_reduce_associative = tree.reduce_associative
tree_structure = tree.structure
tree_transpose = tree.transpose
tree_unflatten = tree.unflatten


class PyTreeRegistry:
    """The node types, as an object: there is one, `default_registry`."""

    def flatten(self, node: Any, leaf_predicate: Callable[..., bool] | None = None) -> tuple[list[Any], PyTreeDef]:
        """The leaves and the structure of a tree."""
        return tree.flatten(node, leaf_predicate)

    def flatten_one_level(self, node: Any) -> tuple[Iterable[Any], Any] | None:
        """The children of the root and its data; None for a leaf."""
        return tree.flatten_one_level(node) if is_tree_node(type(node)) else None

    def register_node(self, nodetype: type, to_iterable: Callable[[Any], tuple[Iterable[Any], Any]],
                      from_iterable: Callable[[Any, Any], Any]) -> None:
        """As `register_pytree_node`."""
        tree.register_pytree_node(nodetype, to_iterable, from_iterable)


default_registry = PyTreeRegistry()
