"""Structures of pytrees made of their parts, and written as bytes."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest

import anima
from anima.tree_util import PyTreeDef, tree_structure

Pair = collections.namedtuple("Pair", "a b")


@anima.tree_util.register_pytree_node_class
class Node:
    def __init__(self, x: Any, name: str) -> None:
        self.x, self.name = x, name

    def tree_flatten(self) -> Any:
        return (self.x,), self.name

    @classmethod
    def tree_unflatten(cls, name: str, children: Any) -> Node:
        return cls(*children, name)


TREES = [1, None, (), (1,), [1, [2]], {}, {"b": 1, "a": (2, None)}, [{"k": 1}, {"j": 2, "k": [3]}],
         {f"key {k}": k for k in range(300)}]
OTHERS = [Pair(1, [2]), Node((1, 2), "n"), collections.OrderedDict(b=1, a=2), collections.defaultdict(list, {1: [2]}),
          collections.deque([1, 2], 5), {1: 2}]


@pytest.mark.parametrize("tree", [*TREES, *OTHERS], ids=lambda t: repr(t)[:30])
def test_from_parts(tree: Any) -> None:
    treedef = tree_structure(tree)
    assert PyTreeDef.from_node_data_and_children(None, treedef.node_data(), treedef.children()) == treedef


@pytest.mark.parametrize("tree", TREES, ids=lambda t: repr(t)[:30])
def test_bytes(tree: Any) -> None:
    treedef = tree_structure(tree)
    assert PyTreeDef.deserialize_using_proto(None, treedef.serialize_using_proto()) == treedef


def test_the_bytes_of_a_tree() -> None:
    written = tree_structure({"b": [1, None]}).serialize_using_proto()
    assert written == (b"\n\x02\x10\x01\n\x02\x10\x03\n\x04\x08\x02\x10\x02\n\t\x08\x01\x10\x05\x1a\x03\n\x01\x00"
                       b"\x12\x01b")


@pytest.mark.parametrize("tree", OTHERS, ids=lambda t: repr(t)[:30])
def test_types_that_bytes_do_not_know(tree: Any) -> None:
    with pytest.raises(ValueError, match=r"cannot be serialized|Only string keys"):
        tree_structure(tree).serialize_using_proto()


def test_damaged_bytes() -> None:
    whole = tree_structure([{"k": 1}, {"j": 2, "k": (3, None)}]).serialize_using_proto()
    rng = np.random.default_rng(0)
    changed = [bytearray(whole) for _ in range(300)]
    for damaged in changed:
        damaged[rng.integers(len(whole))] = rng.integers(256)
    refused = 0
    for damaged in [*map(bytes, changed), *(whole[:cut] for cut in range(len(whole)))]:
        try:
            found = PyTreeDef.deserialize_using_proto(None, damaged)
        except ValueError as error:
            assert str(error).startswith("Could not deserialize a PyTreeDef")
            refused += 1
        else:
            assert isinstance(found, PyTreeDef)
    assert refused > 200


def test_trees_of_iterables() -> None:
    treedef = tree_structure({"a": 1, "b": (2, [3, None]), "c": Pair(4, 5)})
    made = treedef.from_iterable_tree([1, ({"x": 0}, [2, ()]), iter([3, 4])])
    assert made == {"a": 1, "b": ({"x": 0}, [2, None]), "c": Pair(3, 4)}
    for wrong in ([1, 2], [1, (2, [3, ()], 4), (5, 6)], [1, (2, [3, [4]]), (5, 6)]):
        with pytest.raises(ValueError, match="Arity mismatch"):
            treedef.from_iterable_tree(wrong)


def test_parts_that_do_not_fit() -> None:
    leaf = tree_structure(1)
    with pytest.raises(ValueError, match="no children"):
        PyTreeDef.from_node_data_and_children(None, None, [leaf])
    with pytest.raises(ValueError, match="no type of nodes"):
        PyTreeDef.from_node_data_and_children(None, (set, None), [leaf])


@pytest.mark.parametrize("tree", [(1, 2), [1, (2, 3)], {"a": 1, "b": (2, None)}, [[], [1, 2], {}]], ids=str)
def test_bytes_that_lack_a_node_are_refused(tree: Any) -> None:
    """Whichever, but for one with one child: a field of the message is one node."""
    whole, fields, place = tree_structure(tree).serialize_using_proto(), [], 0
    while place < len(whole):
        end = place + 2 + whole[place + 1]
        fields.append(whole[place:end])
        place = end
    for k, gone in enumerate(fields):
        if gone[0] >> 3 == 1:
            with pytest.raises(ValueError, match="Could not deserialize"):
                PyTreeDef.deserialize_using_proto(None, b"".join(fields[:k] + fields[k + 1:]))
