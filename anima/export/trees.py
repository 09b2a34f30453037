"""Structures of pytrees as bytes; the names by which users' own nodes are known in files.

A node of a registered type is written as its name and the bytes that the user's function makes of its data; reading
calls the user's function for that name, and nothing else.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from anima import tree
from anima.core.format import DEPTH, FormatError, Reader, Writer
from anima.tree_engine import NAMESPACE, optree

_LEAF, _NONE, _TUPLE, _LIST, _DICT, _ORDERED, _CUSTOM = range(7)
_BUILTIN: dict[type, int] = {type(None): _NONE, tuple: _TUPLE, list: _LIST, dict: _DICT,
                             collections.OrderedDict: _ORDERED}
_MADE: dict[int, Callable[[list[Any]], Any]] = {_NONE: lambda _: None, _TUPLE: tuple, _LIST: list}
_KEYS: dict[type, str] = {str: "text", int: "integer", bool: "flag"}  # of dicts


class _Node(NamedTuple):
    """How nodes of a type are written and read."""

    nodetype: type
    name: str
    to_bytes: Callable[[Any], bytes]
    from_bytes: Callable[[bytes], Any]
    make: Callable[[Any, list[Any]], Any]


_by_type: dict[type, _Node] = {}
_by_name: dict[str, _Node] = {}


def register_pytree_node_serialization(
        nodetype: type, *, serialized_name: str, serialize_auxdata: Callable[[Any], bytes],
        deserialize_auxdata: Callable[[bytes], Any],
        from_children: Callable[[Any, Iterable[Any]], Any] | None = None) -> type:
    """Gives a type of pytree nodes a name in exported programs.

    Args:
      nodetype: a type that is registered as a pytree node (`tree_util.register_pytree_node`).
      serialized_name: the name; readers register their own type under it.
      serialize_auxdata: bytes for the data that a node has beside its children.
      deserialize_auxdata: the inverse. It is called for what a file says: it must not run what is in it.
      from_children: a node of its data and its children; that of the registration as a pytree node, if None.

    Returns:
      `nodetype`.

    Raises:
      ValueError: where the type or the name is taken, or the type is no pytree node.
    """
    if not tree.is_tree_node(nodetype):
        raise ValueError(f"`{nodetype}` is no type of pytree nodes: call anima.tree_util.register_pytree_node first.")

    def make(data: Any, children: list[Any]) -> Any:
        return from_children(data, children) if from_children is not None else _unflatten(nodetype, data, children)

    return _register(_Node(nodetype, serialized_name, serialize_auxdata, deserialize_auxdata, make))


def register_namedtuple_serialization(nodetype: type, *, serialized_name: str) -> type:
    """Gives a type of named tuples a name in exported programs; ValueError where the type or the name is taken.

    >>> Point = collections.namedtuple("Point", "x y")
    >>> register_namedtuple_serialization(Point, serialized_name="geometry.Point").__name__
    'Point'
    """
    if not optree.is_namedtuple_class(nodetype):
        raise ValueError("Use `anima.export.register_pytree_node_serialization` for types other than "
                         "`collections.namedtuple`.")
    return _register(_Node(nodetype, serialized_name, lambda data: b"", lambda data: None,
                           lambda data, children: nodetype(*children)))


def _register(node: _Node) -> type:
    if node.nodetype in _by_type:
        raise ValueError(f"Duplicate serialization registration for type `{node.nodetype}`. Previous registration was "
                         f"with serialized_name `{_by_type[node.nodetype].name}`.")
    if node.name in _by_name:
        raise ValueError(f"Duplicate serialization registration for serialized_name `{node.name}`. Previous "
                         f"registration was for type `{_by_name[node.name].nodetype}`.")
    _by_type[node.nodetype] = _by_name[node.name] = node
    return node.nodetype


def _unflatten(nodetype: type, data: Any, children: list[Any]) -> Any:
    tree.leaves(0)  # registrations wait for the first tree
    node: Any = optree.register_pytree_node.get(nodetype, namespace=NAMESPACE)  # type: ignore[attr-defined]
    return node.unflatten_func(data, children)


def write_tree(w: Writer, treedef: tree.PyTreeDef, depth: int = 0) -> None:
    """Appends a structure; ValueError for nodes that have no name, and for what readers refuse."""
    if depth > DEPTH:
        raise ValueError(f"Cannot serialize a PyTreeDef that is more than {DEPTH} nodes deep.")
    node = treedef.node_data()
    if node is None:
        w.natural(_LEAF)
        return
    kind, data = node
    w.natural(_BUILTIN.get(kind, _CUSTOM))
    if kind in (dict, collections.OrderedDict):
        for key in data:
            if type(key) not in _KEYS:
                raise ValueError(f"Cannot serialize a dict with the key {key!r}: keys are texts, integers or bools.")
        w.natural(len(data))
        for key in data:
            w.natural(list(_KEYS).index(type(key)))
            getattr(w, _KEYS[type(key)])(key)
    elif kind not in _BUILTIN:
        known = _by_type.get(kind)
        if known is None:
            raise ValueError(f"Cannot serialize PyTreeDef containing an unregistered type `{kind}`. Use "
                             "`export.register_pytree_node_serialization` or "
                             "`export.register_namedtuple_serialization`.")
        w.text(known.name)
        w.data(bytes(known.to_bytes(data)))
    children = treedef.children()
    w.natural(len(children))
    for child in children:
        write_tree(w, child, depth + 1)


def read_tree(r: Reader) -> tree.PyTreeDef:
    """The structure that follows."""
    return tree.structure(_node(r))


def _node(r: Reader) -> Any:
    """A tree of the structure that follows, whose leaves are zeros."""
    kind = r.below(_CUSTOM + 1, "kind of node")
    if kind == _LEAF:
        return 0
    keys = r.many(lambda: _key(r)) if kind in (_DICT, _ORDERED) else []
    name, data = (r.text(), bytes(r.data())) if kind == _CUSTOM else ("", b"")
    children = r.many(lambda: r.inside(lambda: _node(r)))
    if kind in (_DICT, _ORDERED):
        if len(set(keys)) < len(keys) or len(keys) != len(children):
            r.fail("a dict does not have a child for each key")
        made = dict(zip(keys, children, strict=True))
        return made if kind == _DICT else collections.OrderedDict(made)
    if kind == _NONE and children:
        r.fail("None has children")
    if kind != _CUSTOM:
        return _MADE[kind](children)
    known = _by_name.get(name)
    if known is None:
        raise FormatError(f"Cannot deserialize a PyTreeDef containing an unregistered type `{name}`. Use "
                          "`export.register_pytree_node_serialization` or "
                          "`export.register_namedtuple_serialization`.")
    try:
        return known.make(known.from_bytes(data), children)
    except Exception as error:
        raise FormatError(f"A node of type `{name}` cannot be made of its data and {len(children)} children: "
                          f"{type(error).__name__}: {error}") from error


def _key(r: Reader) -> Any:
    return getattr(r, list(_KEYS.values())[r.below(len(_KEYS), "kind of key")])()
