"""Pytrees: nested containers seen as a list of leaves and a structure.

    leaves, treedef = tree.flatten([{"W": 1, "b": 2}, None, (3,)])
    leaves  == [1, 2, 3]
    treedef == PyTreeDef([{'W': *, 'b': *}, None, (*,)])
    tree.map(lambda x: x + 1, {"a": 1, "b": (2, None)}) == {"a": 2, "b": (3, None)}

Nodes are tuples, lists, dicts (leaves in the order of the sorted keys), named tuples, OrderedDicts,
defaultdicts, deques, None (which has no leaves) and registered types; all else is a leaf.
Differs from JAX: a dict comes back with its keys in their own order, and keys need not be comparable.
"""
from __future__ import annotations

import builtins
import collections
import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from anima import tree_engine as engine
from anima.errors import api_boundary
from anima.names import access
from anima.tree_engine import NAMESPACE, optree
from anima.tree_forms import Forms
from anima.tree_keys import DictKey, FlattenedIndexKey, GetAttrKey, KeyEntry, KeyPath, SequenceKey, keystr
from anima.tree_partial import Partial

_Leaves = list[Any]
_IsLeaf = Callable[..., bool] | None
_UNGIVEN = object()

if TYPE_CHECKING:
    Spec = optree.PyTreeSpec
else:
    Spec = Any


# ---------------------------------------------------------------- structures

class PyTreeDef(Forms):
    """The structure of a pytree: hashable, comparable, and able to put leaves back (`unflatten`)."""

    __slots__ = ("spec",)

    def __init__(self, spec: Spec) -> None:
        self.spec = spec

    def __eq__(self, other: object) -> bool:
        try:
            return isinstance(other, PyTreeDef) and self.spec == other.spec
        except ValueError as error:  # of arrays
            raise ValueError("Comparing the metadata fields of a pytree failed: what a node has beside its children "
                             f"needs a hash, and `==` gives one truth value. Fix: arrays are children. ({error})"
                             ) from None

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.spec)

    def __repr__(self) -> str:
        return f"PyTreeDef({_show(self.spec)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return PyTreeDef, (self.spec,)

    @property
    def num_leaves(self) -> int:
        """How many leaves the tree has."""
        return self.spec.num_leaves

    @property
    def num_nodes(self) -> int:
        """How many nodes the tree has, leaves among them."""
        return self.spec.num_nodes

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        """The tree of this structure with the given leaves; ValueError if their number is another."""
        if not isinstance(leaves, (list, tuple)):
            leaves = list(leaves)
        if len(leaves) != self.spec.num_leaves:
            few = len(leaves) < self.spec.num_leaves
            raise ValueError(f"Too {'few' if few else 'many'} leaves for PyTreeDef; expected "
                             f"{self.num_leaves}, got {len(leaves)}.")
        return (self.in_order() if engine.sort_keys else self).spec.unflatten(leaves)

    def flatten_up_to(self, tree: Any) -> _Leaves:
        """The subtrees of `tree` at this structure's leaves; ValueError if this is not its outer part."""
        try:
            return self.spec.flatten_up_to(tree)
        except ValueError as error:
            leaves, spec = engine.flatten(tree, None, False, NAMESPACE)
            raise ValueError(_mismatch(self.spec, spec, leaves, "tree") or str(error)) from None

    def children(self) -> list[PyTreeDef]:
        """The structures of the children of the root."""
        return [PyTreeDef(child) for child in self.spec.children()]

    def node_data(self) -> tuple[type, Any] | None:
        """The root's type and what it holds beside children (a dict's keys); None for a leaf."""
        if self.spec.is_leaf(strict=True):
            return None
        kind, data = _node(self.spec)
        return kind, list(data) if kind is dict else data

    def compose(self, inner: PyTreeDef) -> PyTreeDef:
        """This structure with `inner` in place of each leaf."""
        return PyTreeDef(self.spec.compose(inner.spec))

    def walk(self, f_node: Callable[[Any, Any], Any], f_leaf: Callable[[Any], Any] | None,
             leaves: Iterable[Any]) -> Any:
        """Fold bottom up: `f_node(children, node_data)` at each node, `f_leaf(leaf)` at each leaf."""
        return self.spec.walk(list(leaves), lambda kind, data, children: f_node(children, data), f_leaf)


def _one(spec: Any) -> Spec:
    """The root of a structure that is not a leaf, with leaves for children."""
    return spec.one_level()


def _node(spec: Spec) -> tuple[type, Any]:
    """A node's type and data; named tuples have none beside their type, and dicts their keys."""
    kind: Any = spec.type
    if kind in (dict, collections.OrderedDict):
        return kind, tuple(spec.entries())
    if kind is collections.defaultdict:
        return kind, (_one(spec).unflatten([None] * spec.num_children).default_factory, tuple(spec.entries()))
    if kind in _registered or kind is collections.deque:
        return kind, _one(spec).walk([None] * spec.num_children, lambda _, data, children: data, None)
    return kind, None


def _show(spec: Spec) -> str:
    """A structure as text, however deep it is: children are shown before what holds them."""
    shown: list[str] = []
    todo = [(spec, False)]
    while todo:
        spec, ready = todo.pop()
        if spec.is_leaf(strict=True):
            shown.append("*")
        elif ready:
            first = len(shown) - spec.num_children
            shown[first:] = [_show_node(spec, shown[first:])]
        else:
            todo += [(spec, True), *[(child, False) for child in reversed(spec.children())]]
    return shown[0]


def _show_node(spec: Spec, parts: list[str]) -> str:
    kind, data = _node(spec)
    if kind is type(None):
        return "None"
    if kind is tuple:
        return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
    if kind is dict:
        return "{" + ", ".join([f"{key!r}: {part}" for key, part in zip(data, parts, strict=True)]) + "}"
    listed = f"[{', '.join(parts)}]"
    if kind is list:
        return listed
    if spec.kind == optree.PyTreeKind.NAMEDTUPLE:
        return f"CustomNode(namedtuple[{kind.__name__}], {listed})"
    return f"CustomNode({kind.__name__}[{data}], {listed})"


def treedef_tuple(treedefs: Iterable[PyTreeDef]) -> PyTreeDef:
    """The structure of a tuple of trees of the given structures."""
    specs = [treedef.spec for treedef in treedefs]
    return PyTreeDef(optree.treespec_tuple(specs, namespace=NAMESPACE))


def treedef_children(treedef: PyTreeDef) -> list[PyTreeDef]:
    """The structures of the children of the root."""
    return treedef.children()


def treedef_is_leaf(treedef: PyTreeDef) -> bool:
    """Whether the structure is one leaf."""
    return treedef.spec.is_leaf(strict=True)


# ---------------------------------------------------------------- the functions of anima.tree

def flatten(tree: Any, is_leaf: _IsLeaf = None) -> tuple[_Leaves, PyTreeDef]:
    """The leaves and the structure of a tree. Where `is_leaf(node)` is true, the node counts as a leaf.

    >>> flatten({"b": (1, None), "a": 2})
    ([2, 1], PyTreeDef({'a': *, 'b': (*, None)}))
    """
    leaves, spec = engine.flatten(tree, is_leaf, False, NAMESPACE)
    return leaves, PyTreeDef(spec)


@api_boundary
def unflatten(treedef: PyTreeDef, leaves: Iterable[Any]) -> Any:
    """The tree of a structure with the given leaves; ValueError if their number is another."""
    return treedef.unflatten(leaves)


def leaves(tree: Any, is_leaf: _IsLeaf = None) -> _Leaves:
    """The leaves of a tree."""
    return engine.flatten(tree, is_leaf, False, NAMESPACE)[0]


def structure(tree: Any, is_leaf: _IsLeaf = None) -> PyTreeDef:
    """The structure of a tree."""
    return PyTreeDef(engine.flatten(tree, is_leaf, False, NAMESPACE)[1])


@api_boundary
def map(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: _IsLeaf = None) -> Any:
    """`f` of each leaf, and of what stands at its place in each of `rest`, in a tree of the same structure.

    ValueError, naming the place, if one of `rest` does not have the structure of `tree` as its outer part.

    >>> map(lambda x, y: x + y, {"a": 1, "b": [2]}, {"a": 10, "b": [20]})
    {'a': 11, 'b': [22]}
    """
    found, spec = engine.flatten(tree, is_leaf, False, NAMESPACE)
    return engine.in_order(spec).unflatten(builtins.map(f, found, *(_aligned(spec, rest) if rest else ())))


def _aligned(spec: Spec, trees: Iterable[Any]) -> list[_Leaves]:
    columns = []
    for number, tree in enumerate(trees, start=2):
        try:
            columns.append(spec.flatten_up_to(tree))
        except ValueError as error:
            found, full = engine.flatten(tree, None, False, NAMESPACE)
            message = _mismatch(spec, full, found, "tree", f"the first tree of map and tree number {number}")
            raise ValueError(message or str(error)) from None
    return columns


def all(tree: Any, *, is_leaf: _IsLeaf = None) -> bool:
    """Whether all leaves are true."""
    return builtins.all(leaves(tree, is_leaf))


@api_boundary
def reduce(function: Callable[[Any, Any], Any], tree: Any, initializer: Any = _UNGIVEN,
           is_leaf: _IsLeaf = None) -> Any:
    """`functools.reduce` over the leaves."""
    found = leaves(tree, is_leaf)
    return functools.reduce(function, found, *(() if initializer is _UNGIVEN else (initializer,)))


@api_boundary
def reduce_associative(operation: Callable[[Any, Any], Any], tree: Any, *, identity: Any = _UNGIVEN,
                       is_leaf: _IsLeaf = None) -> Any:
    """The leaves combined by an associative operation, as a balanced tree of depth log2(n)."""
    found = leaves(tree, is_leaf)
    if not found:
        if identity is _UNGIVEN:
            raise TypeError("Must specify identity for parallel reduction of empty sequence.")
        return identity

    def combine(items: _Leaves) -> Any:
        middle = len(items) // 2
        return operation(combine(items[:middle]), combine(items[middle:])) if middle else items[0]
    return combine(found)


@api_boundary
def transpose(outer_treedef: PyTreeDef, inner_treedef: PyTreeDef | None, pytree_to_transpose: Any) -> Any:
    """A tree of trees turned inside out: `[{'a': 1}, {'a': 2}]` into `{'a': [1, 2]}`."""
    found, treedef = flatten(pytree_to_transpose)
    if inner_treedef is None:
        rows = outer_treedef.flatten_up_to(pytree_to_transpose)
        inner_treedef = structure(rows[0]) if rows else outer_treedef
    outer_size, inner_size = outer_treedef.num_leaves, inner_treedef.num_leaves
    if treedef.num_leaves != outer_size * inner_size or treedef != outer_treedef.compose(inner_treedef):
        expected = outer_treedef.compose(inner_treedef)
        raise TypeError(f"Mismatch\n{treedef}\n != \n{expected}")
    columns = [outer_treedef.unflatten(found[place::inner_size]) for place in range(inner_size)]
    return inner_treedef.unflatten(columns)


@api_boundary
def broadcast(prefix_tree: Any, full_tree: Any, is_leaf: _IsLeaf = None) -> Any:
    """A tree like `full_tree` with the leaves of `prefix_tree`, each repeated over the subtree below it."""
    return structure(full_tree, is_leaf).unflatten(broadcast_prefix(prefix_tree, full_tree, is_leaf))


def static(**kwargs: Any) -> Any:
    """A `dataclasses.field` that `register_dataclass` takes as part of the structure, not as a child."""
    return dataclasses.field(metadata={**kwargs.pop("metadata", {}), "static": True}, **kwargs)


def flatten_with_path(tree: Any, is_leaf: _IsLeaf = None,
                      is_leaf_takes_path: bool = False) -> tuple[list[tuple[KeyPath, Any]], PyTreeDef]:
    """The leaves, each with the keys that lead to it, and the structure."""
    found: list[tuple[KeyPath, Any]] = []
    decisions: list[bool] = []      # of is_leaf, in the order in which nodes are met

    def visit(node: Any, path: KeyPath) -> None:
        if is_leaf is not None:
            decisions.append(bool(is_leaf(path, node) if is_leaf_takes_path else is_leaf(node)))
            if decisions[-1]:
                found.append((path, node))
                return
        level = _one_level(node)
        if level is None:
            found.append((path, node))
        else:
            for key, child in level[0]:
                visit(child, (*path, key))

    visit(tree, ())
    replay = iter(decisions)
    return found, structure(tree, None if is_leaf is None else lambda node: next(replay))


def leaves_with_path(tree: Any, is_leaf: _IsLeaf = None,
                     is_leaf_takes_path: bool = False) -> list[tuple[KeyPath, Any]]:
    """The leaves, each with the keys that lead to it."""
    return flatten_with_path(tree, is_leaf, is_leaf_takes_path)[0]


@api_boundary
def map_with_path(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: _IsLeaf = None,
                  is_leaf_takes_path: bool = False) -> Any:
    """As `map`, with the key path of the leaf as the first argument of `f`."""
    found, treedef = flatten_with_path(tree, is_leaf, is_leaf_takes_path)
    paths, values = [path for path, _ in found], [leaf for _, leaf in found]
    return treedef.unflatten(list(builtins.map(f, paths, values, *_aligned(treedef.spec, rest))))


def all_leaves(iterable: Iterable[Any], is_leaf: _IsLeaf = None) -> bool:
    """Whether each item is a leaf."""
    return builtins.all(structure(item, is_leaf).spec.is_leaf(strict=True) for item in iterable)


def is_tree_node(typ: type) -> bool:
    """Whether values of this type are nodes rather than leaves."""
    return typ in _BUILTIN or typ in _registered or optree.is_namedtuple_class(typ)


def flatten_one_level(tree: Any) -> tuple[Iterable[Any], Any]:
    """The children of the root and its data; ValueError for a leaf."""
    children, data = flatten_one_level_with_keys(tree)
    return [child for _, child in children], data


def flatten_one_level_with_keys(tree: Any) -> tuple[list[tuple[KeyEntry, Any]], Any]:
    """The children of the root, each with its key, and the root's data; ValueError for a leaf."""
    level = _one_level(tree)
    if level is None:
        raise ValueError(f"can't tree-flatten type: {type(tree)}")
    return level


def _one_level(tree: Any) -> tuple[list[tuple[KeyEntry, Any]], Any] | None:
    kind = type(tree)
    record = _registered.get(kind)
    if record is not None:
        if record.flatten_with_keys is not None:
            pairs, data = record.flatten_with_keys(tree)
            return list(pairs), data
        children, data = record.to_iter(tree)
        return [(FlattenedIndexKey(place), child) for place, child in enumerate(children)], data
    if tree is None:
        return [], None
    if kind in _DICTS:
        keys = tuple(tree if kind is collections.OrderedDict else optree.utils.total_order_sorted(tree))
        data = (tree.default_factory, keys) if kind is collections.defaultdict else keys
        return [(DictKey(key), tree[key]) for key in keys], data
    if kind is tuple or kind is list or kind is collections.deque or optree.is_structseq_class(kind):
        return [(SequenceKey(place), child) for place, child in enumerate(tree)], None
    if optree.is_namedtuple_class(kind):
        return [(GetAttrKey(name), child) for name, child in zip(kind._fields, tree, strict=True)], None
    return None


# ---------------------------------------------------------------- prefixes

def broadcast_prefix(prefix_tree: Any, full_tree: Any, is_leaf: _IsLeaf = None,
                     what: str = "prefix") -> _Leaves:
    """The leaf of `prefix_tree` that stands at or above each leaf of `full_tree`, one entry a leaf.

    `is_leaf` says what counts as a leaf of the prefix (None, say, of in_axes). ValueError, naming the place
    after the word `what`, if the one is not the outer part of the other.

    >>> broadcast_prefix((0, None), ({"a": 1, "b": 2}, [3]), lambda x: x is None)
    [0, 0, None]
    """
    found, full = engine.flatten(full_tree, None, False, NAMESPACE)
    return _broadcast_prefix(prefix_tree, full, found, is_leaf, what)


def flatten_axes(what: str, treedef: PyTreeDef, axis_tree: Any) -> _Leaves:
    """One axis (int or None) for each leaf of `treedef`, from a tree prefix of axes such as `in_axes`."""
    return _broadcast_prefix(axis_tree, treedef.spec, None, lambda axis: axis is None, what)


def _broadcast_prefix(prefix_tree: Any, full: Spec, full_leaves: _Leaves | None, is_leaf: _IsLeaf,
                      what: str) -> _Leaves:
    entries, prefix = engine.flatten(prefix_tree, is_leaf, False, NAMESPACE)
    if prefix.is_leaf(strict=True):
        return entries * full.num_leaves
    counts: list[int] = []
    message = _mismatch(prefix, full, full_leaves, what, counts=counts)
    if message is not None:
        raise ValueError(f"{what} specification must be a tree prefix of the corresponding value; {message}")
    return [entry for entry, count in zip(entries, counts, strict=True) for _ in range(count)]


def _keys(spec: Spec) -> Sequence[KeyEntry]:
    kind: Any = spec.type
    size = spec.num_children
    record = _registered.get(kind)
    if record is not None:
        names = record.field_names
        return [GetAttrKey(name) for name in names] if names is not None else \
            [FlattenedIndexKey(place) for place in range(size)]
    if optree.is_namedtuple_class(kind):
        return [GetAttrKey(name) for name in kind._fields]
    if kind in _DICTS:
        return [DictKey(key) for key in spec.entries()]
    return [SequenceKey(place) for place in range(size)]


def _mismatch(prefix: Spec, full: Spec, full_leaves: _Leaves | None, root: str,
              between: str | None = None, counts: list[int] | None = None) -> str | None:
    """Where and how `prefix` is not the outer part of `full`; None if it is.

    `counts` receives, for each leaf of the prefix, how many leaves of `full` lie below it.
    """
    found = _first_difference(prefix, full, full_leaves, [] if counts is None else counts)
    if found is None:
        return None
    heading, explanation, path = found
    names = f" (of {between})" if between else ""
    return f"pytree structure error: {heading} at key path\n    {root}{keystr(path)}{names}\n{explanation}"


def _first_difference(one: Spec, other: Spec, leaves: _Leaves | None, counts: list[int], start: int = 0,
                      ) -> tuple[str, str, KeyPath] | None:
    """Heading, explanation and path of where they differ; the leaves of `other` are those from `start` on."""
    if one.is_leaf(strict=True):
        counts.append(other.num_leaves)
        return None
    problem = _difference(one, other, None if leaves is None else leaves[start:start + 1])
    if problem is not None:
        return *problem, ()
    for place, (mine, theirs) in enumerate(zip(one.children(), other.children(), strict=True)):
        if (found := _first_difference(mine, theirs, leaves, counts, start)) is not None:
            return found[0], found[1], (_keys(one)[place], *found[2])
        start += theirs.num_leaves
    return None


def _difference(one: Spec, other: Spec, leaf: _Leaves | None) -> tuple[str, str] | None:
    """How the roots of two structures differ: a heading and an explanation; None if they do not."""
    if other.is_leaf(strict=True):
        found = f"a leaf of type {type(leaf[0])}" if leaf else "a leaf"
        return "different types", f"The prefix tree has a {one.type} there, but the full tree has {found}."
    if one.type is not other.type:
        return "different types", f"The prefix tree has a {one.type} there, but the full tree a {other.type}."
    if one.num_children != other.num_children:
        sizes = f"The prefix tree has {one.num_children} children there, the full tree {other.num_children}."
        if one.type in (list, tuple):
            return f"different lengths of {one.type.__name__}", sizes
        keys = f" Their keys are {list(one.entries())} and {list(other.entries())}."
        return "different numbers of pytree children", sizes + keys
    if one.type not in (tuple, list) and _one(one) != _one(other):
        return "different pytree metadata", (f"The prefix tree has {_node(one)[1]} there, but the full tree "
                                             f"{_node(other)[1]}.")
    return None


# ---------------------------------------------------------------- registered types

class _Record(NamedTuple):
    """How nodes of a type are taken apart and made; the keys of their children, if there are names for them."""

    to_iter: Callable[[Any], tuple[Iterable[Any], Any]]
    from_iter: Callable[[Any, Any], Any]
    flatten_with_keys: Callable[[Any], tuple[Iterable[tuple[KeyEntry, Any]], Any]] | None = None
    field_names: tuple[str, ...] | None = None


_DICTS = (dict, collections.OrderedDict, collections.defaultdict)
_BUILTIN = (tuple, list, type(None), collections.deque, *_DICTS)
_registered: dict[type, _Record] = {}


def _register(nodetype: type, flatten_func: Callable[[Any], Any], unflatten_func: Callable[[Any, Any], Any],
              flatten_with_keys: Callable[[Any], Any] | None,
              field_names: tuple[str, ...] | None = None) -> None:
    if nodetype in _registered or nodetype in _BUILTIN:
        raise ValueError(f"Duplicate custom PyTreeDef type registration for {nodetype!r}.")
    engine.register(nodetype, flatten_func, unflatten_func)
    _registered[nodetype] = _Record(flatten_func, unflatten_func, flatten_with_keys, field_names)


def register_pytree_node(nodetype: type, flatten_func: Callable[[Any], tuple[Iterable[Any], Any]],
                         unflatten_func: Callable[[Any, Any], Any],
                         flatten_with_keys_func: Callable[[Any], Any] | None = None) -> None:
    """Make a class a node: `flatten_func(x) -> (children, data)`, `unflatten_func(data, children) -> x`.

    `data` must be hashable and comparable. ValueError if the class is a node already.
    """
    _register(nodetype, flatten_func, unflatten_func, flatten_with_keys_func)


def register_pytree_with_keys(nodetype: type, flatten_with_keys: Callable[[Any], tuple[Iterable[Any], Any]],
                              unflatten_func: Callable[[Any, Any], Any],
                              flatten_func: Callable[[Any], tuple[Iterable[Any], Any]] | None = None) -> None:
    """As `register_pytree_node`, for a function that gives each child as a pair (key, child)."""
    def drop_keys(node: Any) -> tuple[list[Any], Any]:
        keyed, data = flatten_with_keys(node)
        return [child for _, child in keyed], data
    _register(nodetype, flatten_func or drop_keys, unflatten_func, flatten_with_keys)


def register_pytree_node_class(cls: type) -> type:
    """Decorate a class that has `tree_flatten(self)` and a classmethod `tree_unflatten(data, children)`."""
    unflatten_func = cls.tree_unflatten     # type: ignore[attr-defined]
    register_pytree_node(cls, lambda node: node.tree_flatten(), unflatten_func)
    return cls


def register_pytree_with_keys_class(cls: type) -> type:
    """Decorate a class with `tree_flatten_with_keys()` and classmethod `tree_unflatten(data, children)`."""
    plain = (lambda node: node.tree_flatten()) if hasattr(cls, "tree_flatten") else None
    unflatten_func = cls.tree_unflatten     # type: ignore[attr-defined]
    register_pytree_with_keys(cls, lambda node: node.tree_flatten_with_keys(), unflatten_func, plain)
    return cls


def register_dataclass(nodetype: type, data_fields: Sequence[str] | None = None,
                       meta_fields: Sequence[str] | None = None, drop_fields: Sequence[str] = ()) -> type:
    """Make a dataclass a node: `data_fields` are children, `meta_fields` part of the structure.

    Without them, fields made by `static()` (or with metadata `static=True`) are meta fields, the others data.
    ValueError if the two do not cover the fields that `__init__` takes.
    """
    if (data_fields is None) != (meta_fields is None):
        raise TypeError("register_dataclass: data_fields and meta_fields must both be specified, or neither.")
    if data_fields is None or meta_fields is None:
        if not dataclasses.is_dataclass(nodetype):
            raise TypeError("register_dataclass: data_fields and meta_fields are required when nodetype is "
                            f"not a dataclass. Got {nodetype}.")
        own = [field for field in dataclasses.fields(nodetype) if field.init]
        data_fields = [field.name for field in own if not field.metadata.get("static", False)]
        meta_fields = [field.name for field in own if field.metadata.get("static", False)]
    data, meta = tuple(data_fields), tuple(meta_fields)
    if dataclasses.is_dataclass(nodetype):
        needed = {field.name for field in dataclasses.fields(nodetype) if field.init} - set(drop_fields)
        if needed != {*data, *meta}:
            missing, unknown = needed - {*data, *meta}, {*data, *meta} - needed
            lacks = f" Missing fields: {missing}. Add them to drop_fields to suppress this error."
            raise ValueError("data_fields and meta_fields must include all dataclass fields with "
                             "``init=True`` and only them." + (lacks if missing else "")
                             + (f" Unexpected fields: {unknown}." if unknown else ""))

    def flatten_node(node: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return tuple([getattr(node, name) for name in data]), tuple([getattr(node, name) for name in meta])

    def flatten_keyed(node: Any) -> tuple[list[tuple[KeyEntry, Any]], tuple[Any, ...]]:
        keyed = [(GetAttrKey(name), getattr(node, name)) for name in data]
        return keyed, tuple([getattr(node, name) for name in meta])

    def unflatten_node(values: tuple[Any, ...], children: Iterable[Any]) -> Any:
        return nodetype(**dict(zip(data, children, strict=True)),
                        **dict(zip(meta, values, strict=True)))

    _register(nodetype, flatten_node, unflatten_node, flatten_keyed, data)
    return nodetype


def register_static(cls: type) -> type:
    """Make a class a node without children: its values, which must be hashable, are part of the structure."""
    _register(cls, lambda node: ((), node), lambda node, _: node, None)
    return cls


_register(Partial, lambda node: ((node.args, node.keywords), node.func),
          lambda func, children: Partial(func, *children[0], **children[1]), None)

globals().update(access(__name__, globals()))
