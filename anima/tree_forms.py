"""Structures of pytrees made of their parts, and written as bytes.

The bytes are a protocol buffer: nodes in postorder (arity, kind, keys by number), then the keys. Kinds are leaves,
lists, None, tuples and dicts with keys that are strings.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import Any

from anima import tree_engine as engine

_KINDS: dict[Any, int] = {"leaf": 1, list: 2, type(None): 3, tuple: 4, dict: 5}
_OF_JAX: dict[int, Any] = {1: type(None), 2: tuple, 4: list, 5: dict}
_TYPES = {number: kind for kind, number in _KINDS.items()}


class Forms:
    """What structures have beside `children`, `node_data` and `unflatten`, which are all that is used of them."""

    __slots__ = ()

    def in_order(self: Any) -> Any:
        """The structure itself, as it puts leaves back from now on: dicts have the order of keys that is asked for."""
        self.spec = engine.in_order(self.spec)
        return self

    @classmethod
    def from_node_data_and_children(cls, registry: Any, node_data: tuple[type, Any] | None,
                                    children: Iterable[Any]) -> Any:
        """The structure whose `node_data()` and `children()` these are. There is one registry, whatever is given.

        ValueError for children of a leaf, or for a type that is no node.
        """
        parts = [child.unflatten([0] * child.num_leaves) for child in children]
        if node_data is None and parts:
            raise ValueError("A leaf has no children.")
        node = 0 if node_data is None else _made(*node_data, parts)
        return cls(engine.flatten(node, None, False, engine.NAMESPACE)[1])  # type: ignore[call-arg]

    def __setstate__(self: Any, state: Any) -> None:
        """Of a structure that JAX has pickled: a registry, and nodes in postorder, which are each a kind, how many
        children, data, and the type where the kind does not say it."""
        stack: list[Any] = []
        for kind, arity, data, own, *_ in state[1]:
            children = stack[len(stack) - arity:]
            del stack[len(stack) - arity:]
            made = None if kind == 0 else (data, None) if kind == 3 else (own or _OF_JAX[kind], data)
            stack.append(self.from_node_data_and_children(state[0], made, children))
        (whole,) = stack
        self.spec = whole.spec

    def from_iterable_tree(self: Any, arg: Any, /) -> Any:
        """A tree of this structure from one in which each node is some iterable of its children.

        ValueError where there are more or fewer children.
        """
        data = self.node_data()
        if data is None:
            return arg
        children, parts = self.children(), list(arg)
        if len(parts) != len(children):
            raise ValueError("Arity mismatch between trees")
        return _made(*data, [c.from_iterable_tree(x) for c, x in zip(children, parts, strict=True)])

    def serialize_using_proto(self: Any) -> bytes:
        """The structure as bytes; ValueError for types other than list, tuple, None and dict with keys of text."""
        keys: dict[str, int] = {}
        nodes = b"".join(_field(1, _node_bytes(kind, data, arity, keys)) for kind, data, arity in _postorder(self))
        return nodes + b"".join(_field(2, key.encode()) for key in keys)

    @classmethod
    def deserialize_using_proto(cls, registry: Any, data: bytes, /) -> Any:
        """The structure that bytes stand for; ValueError for those of something else."""
        stack: list[Any] = []
        try:
            fields = list(_fields(data))
            keys = [value.decode() for number, value in fields if number == 2]
            for node in [value for number, value in fields if number == 1]:
                arity, kind, names = _read_node(node)
                children = stack[len(stack) - arity:]
                if len(children) != arity:
                    raise ValueError("a node has too few children")
                del stack[len(stack) - arity:]
                made = None if kind == 1 else (_TYPES[kind], [keys[n] for n in names] if kind == 5 else None)
                stack.append(cls.from_node_data_and_children(registry, made, children))
            (found,) = stack
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise ValueError(f"Could not deserialize a PyTreeDef: {error}") from None
        return found


def _made(kind: type, data: Any, children: list[Any]) -> Any:
    """A node of a type."""
    if kind in (list, tuple):
        return kind(children)
    if kind is type(None):
        return None
    if kind in (dict, OrderedDict):
        return kind(zip(data, children, strict=True))
    if kind is defaultdict:
        return defaultdict(data[0], zip(data[1], children, strict=True))
    if kind is deque:
        return deque(children, data)
    if issubclass(kind, tuple) and hasattr(kind, "_fields") and data is None:
        return kind(*children)
    entry = engine.optree.register_pytree_node.get(kind, namespace=engine.NAMESPACE)
    if entry is None:
        raise ValueError(f"{kind} is no type of nodes.")
    return entry.unflatten_func(data, children)


# ---------------------------------------------------------------- bytes

def _postorder(treedef: Any) -> Iterator[tuple[Any, Any, int]]:
    data = treedef.node_data()
    if data is None:
        yield "leaf", None, 0
        return
    children = treedef.children()
    for child in children:
        yield from _postorder(child)
    yield data[0], data[1], len(children)


def _node_bytes(kind: Any, data: Any, arity: int, keys: dict[str, int]) -> bytes:
    if kind not in _KINDS:
        raise ValueError(f"A structure with nodes of type {kind.__name__} cannot be serialized as a protocol buffer: "
                         "convert them, or use pickle.")
    out = (b"\x08" + _varint(arity) if arity else b"") + b"\x10" + _varint(_KINDS[kind])
    if kind is dict and data:
        if not all(isinstance(key, str) for key in data):
            raise ValueError("Only string keys are supported in proto pytree serialization.")
        numbers = b"".join(_varint(keys.setdefault(key, len(keys))) for key in data)
        out += _field(3, _field(1, numbers))
    return out


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if place >= len(data) or shift > 63:
            raise ValueError("the bytes end too early")
        byte = data[place]
        value, place, shift = value | (byte & 127) << shift, place + 1, shift + 7
        if byte < 128:
            return value, place


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Fields by number: integers, or bytes."""
    place = 0
    while place < len(data):
        tag, place = _read_varint(data, place)
        if tag & 7 not in (0, 2):
            raise ValueError("these are other bytes")
        value, place = _read_varint(data, place)
        if tag & 7 == 2:
            if place + value > len(data):
                raise ValueError("the bytes end too early")
            yield tag >> 3, data[place:place + value]
            place += value
        else:
            yield tag >> 3, value


def _read_node(node: Any) -> tuple[int, int, list[int]]:
    """(arity, kind, numbers of keys)."""
    if not isinstance(node, bytes):
        raise ValueError("a node is no message")
    found: dict[int, Any] = {1: 0, 2: 0, 3: b""}
    found.update(_fields(node))
    packed = dict(_fields(found[3])).get(1, b"")
    numbers, place = [], 0
    while place < len(packed):
        number, place = _read_varint(packed, place)
        numbers.append(number)
    return found[1], found[2], numbers
