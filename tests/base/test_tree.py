"""Pytrees: structures as printed in the documents, every function of anima.tree, registration, prefixes."""
from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import flatten_util, tree, tree_util
from anima.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, Partial, SequenceKey, keystr

Point = collections.namedtuple("Point", "x y")


class Box:
    """Registered without keys; its label is data."""

    def __init__(self, *items, label="box"):
        self.items = items
        self.label = label


tree_util.register_pytree_node(Box, lambda box: (box.items, box.label),
                               lambda label, items: Box(*items, label=label))


@tree_util.register_pytree_with_keys_class
class Keyed:
    def __init__(self, left, right):
        self.left, self.right = left, right

    def tree_flatten_with_keys(self):
        return ((GetAttrKey("left"), self.left), (GetAttrKey("right"), self.right)), None

    @classmethod
    def tree_unflatten(cls, data, children):
        return cls(*children)


@tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    weights: object
    name: str = tree.static(default="dense")


@tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Setting:
    value: int


PRINTED = [
    ([{"W": 1, "b": 2}, {"W": 3, "b": 4}], "PyTreeDef([{'W': *, 'b': *}, {'W': *, 'b': *}])"),
    (1, "PyTreeDef(*)"),
    (None, "PyTreeDef(None)"),
    ((), "PyTreeDef(())"),
    ((1,), "PyTreeDef((*,))"),
    ([], "PyTreeDef([])"),
    ({}, "PyTreeDef({})"),
    ([1, (2, None), {"k": [3]}], "PyTreeDef([*, (*, None), {'k': [*]}])"),
    ({"b": 1, "a": 2}, "PyTreeDef({'a': *, 'b': *})"),
    (Point(1, [2]), "PyTreeDef(CustomNode(namedtuple[Point], [*, [*]]))"),
    (collections.OrderedDict(b=1, a=2), "PyTreeDef(CustomNode(OrderedDict[('b', 'a')], [*, *]))"),
    (collections.defaultdict(int, z=1), "PyTreeDef(CustomNode(defaultdict[(<class 'int'>, ('z',))], [*]))"),
    (Box(1, 2, label=("meta", 3)), "PyTreeDef(CustomNode(Box[('meta', 3)], [*, *]))"),
    (Layer(1, "d"), "PyTreeDef(CustomNode(Layer[('d',)], [*]))"),
    (Setting(3), "PyTreeDef(CustomNode(Setting[Setting(value=3)], []))"),
]


@pytest.mark.parametrize("value, printed", PRINTED)
def test_printed_structures(value, printed):
    assert repr(tree.structure(value)) == printed
    assert str(tree.structure(value)) == printed


@pytest.mark.parametrize("value", [value for value, _ in PRINTED])
def test_round_trip_equality_hash_and_pickle(value):
    leaves, treedef = tree.flatten(value)
    again = tree.structure(treedef.unflatten(leaves))
    assert treedef == again
    assert hash(treedef) == hash(again)
    assert (treedef != again) is False
    assert treedef.num_leaves == len(leaves)
    assert pickle.loads(pickle.dumps(treedef)) == copy.deepcopy(treedef) == treedef
    assert tree.leaves(treedef.unflatten(iter(leaves))) == leaves
    assert treedef != tree.structure([value, value])
    assert (treedef == 3) is False


def test_different_structures_differ():
    values = [value for value, _ in PRINTED] + [
        {"a": 1},
        collections.OrderedDict(a=1),
        (1, 2),
        [1, 2],
        Box(1, label="x"),
        Box(1, label="y"),
        Layer(1, "e"),
        Setting(4),
    ]
    treedefs = [tree.structure(value) for value in values]
    assert len(set(treedefs)) == len(values)


def test_leaves_of_dictionaries_come_by_sorted_key():
    assert tree.leaves({"b": 1, "a": 2}) == [2, 1]
    assert tree.leaves(collections.OrderedDict(b=1, a=2)) == [1, 2]
    assert tree.leaves(collections.defaultdict(int, b=1, a=2)) == [2, 1]
    assert tree.map(lambda x: x, {"b": 1, "a": 2}) == {"a": 2, "b": 1}
    assert len(tree.leaves({"a": 1, 2: 3})) == 2


def test_none_and_is_leaf():
    assert tree.leaves([None, 1, None]) == [1]
    assert tree.flatten(None, is_leaf=lambda x: x is None) == ([None], tree.structure(0))
    assert tree.leaves([1, (2, 3)], is_leaf=lambda x: isinstance(x, tuple)) == [1, (2, 3)]
    assert tree.map(lambda x, y: (x, y), (1, None), (2, None)) == ((1, 2), None)
    assert tree.map(lambda x, y: (x, y), (1, None), (2, None), is_leaf=lambda x: x is None) == (
        (1, 2),
        (None, None),
    )
    assert tree.map(lambda x: None if x == 1 else x, [1, 2]) == [None, 2]


def test_map_and_its_prefixes():
    assert tree.map(lambda x, y: (x, y), [1, 2], [[5], {"a": 1}]) == [(1, [5]), (2, {"a": 1})]
    assert tree.map(lambda x, y, z: x + y + z, Point(1, [2]), Point(10, [20]), Point(100, [200])) == Point(
        111, [222]
    )
    mapped = tree.map(lambda x: x + 1, Layer(1, "n"))
    assert (mapped.weights, mapped.name) == (2, "n")


@pytest.mark.parametrize(
    "first, second, message",
    [
        (
            {"a": 1, "b": 2},
            {"a": 1, "c": 2},
            r"different pytree metadata at key path\n    tree[ \n].*'a', 'b'.*'a', 'c'",
        ),
        ([1, 2], (1, 2), "different types at key path\n    tree .*<class 'list'>.*<class 'tuple'>"),
        ([1, 2], [1, 2, 3], "different lengths of list at key path\n    tree "),
        (
            {"p": [1, (2,)]},
            {"p": [1, 5]},
            r"different types at key path\n    tree\['p'\]\[1\].*tuple.*<class 'int'>",
        ),
        ({"a": 1, "b": 2}, {"a": 1}, r"different numbers of pytree children.*\['a', 'b'\] and \['a'\]"),
        ([None], [1], r"different types at key path\n    tree\[0\].*NoneType"),
        (Point(1, (2,)), Point(1, 2), r"tree\.y"),
        (Layer((1,)), Layer(1), r"tree\.weights"),
        (Box(1, (2,)), Box(1, 2), r"tree\[<flat index 1>\]"),
        (Box(1, label="a"), Box(1, label="b"), "metadata.* a .* b"),
    ],
)
def test_map_mismatch_names_the_place(first, second, message):
    with pytest.raises(ValueError, match=f"(?s)pytree structure error: .*{message}"):
        tree.map(lambda a, b: a, first, second)
    with pytest.raises(ValueError, match=r"(?s)pytree structure error: "):
        tree.structure(first).flatten_up_to(second)


def test_exceptions_of_the_mapped_function_pass():
    def fail(x, y):
        raise ValueError("mine")
    with pytest.raises(ValueError, match=r"^mine$"):
        tree.map(fail, [1], [2])


def test_unflatten_counts():
    treedef = tree.structure([1, 2])
    with pytest.raises(ValueError, match="Too many leaves for PyTreeDef; expected 2"):
        tree.unflatten(treedef, [1, 2, 3])
    with pytest.raises(ValueError, match="Too few leaves for PyTreeDef; expected 2, got 1"):
        tree.unflatten(treedef, iter([1]))


def test_folds():
    assert tree.reduce(lambda a, b: a + b, [1, 2, [3]]) == 6
    assert tree.reduce(lambda a, b: a + b, [1, 2], 10) == 13
    assert tree.reduce(lambda a, b: b, [1], None) == 1
    with pytest.raises(TypeError, match="empty"):
        tree.reduce(lambda a, b: a, [])
    assert tree.reduce_associative(lambda a, b: f"({a}{b})", list("abcde")) == "((ab)(c(de)))"
    assert tree.reduce_associative(max, [], identity=0) == 0
    with pytest.raises(TypeError, match="Must specify identity"):
        tree.reduce_associative(max, [])
    assert not tree.all([True, 1, 0])
    assert tree.all({"a": (True, [])})
    assert tree_util.all_leaves([1, 2])
    assert not tree_util.all_leaves([1, None])
    assert not tree_util.all_leaves([1, [2]])


def test_transpose():
    outer, inner = tree.structure([0, 0]), tree.structure({"a": 0, "b": 0})
    rows = [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    assert tree.transpose(outer, inner, rows) == {"a": [1, 3], "b": [2, 4]}
    assert tree.transpose(outer, None, rows) == {"a": [1, 3], "b": [2, 4]}
    assert tree.transpose(tree.structure([0, 0]), tree.structure(0), [1, 2]) == [1, 2]
    with pytest.raises(TypeError, match="Mismatch"):
        tree.transpose(outer, inner, [1, 2, 3])


def test_paths():
    value = {"a": [1, 2], "k": Keyed(3, 4), "l": Layer(5), "p": Point(6, 7), "q": Box(8)}
    with_paths, treedef = tree.flatten_with_path(value)
    assert treedef == tree.structure(value)
    assert [leaf for _, leaf in with_paths] == tree.leaves(value)
    assert [keystr(path) for path, _ in with_paths] == [
        "['a'][0]", "['a'][1]", "['k'].left", "['k'].right", "['l'].weights", "['p'].x", "['p'].y",
        "['q'][<flat index 0>]"]
    assert with_paths[0][0] == (DictKey("a"), SequenceKey(0))
    assert keystr((DictKey("a"), SequenceKey(1), GetAttrKey("x"), FlattenedIndexKey(3)), simple=True,
                  separator="/") == "a/1/x/3"
    assert repr(DictKey(key="a")) == "DictKey(key='a')"
    assert tree.map_with_path(lambda p, x, y: (keystr(p), x, y), {"a": [1]}, {"a": [2]}) == {
        "a": [("['a'][0]", 1, 2)]
    }
    assert tree.leaves_with_path(None) == []
    assert tree.leaves_with_path(3) == [((), 3)]


def test_paths_decide_what_is_a_leaf():
    found, treedef = tree.flatten_with_path([1, (2, 3)], is_leaf=lambda path, x: len(path) == 1,
                                            is_leaf_takes_path=True)
    assert [leaf for _, leaf in found] == [1, (2, 3)]
    assert treedef == tree.structure([0, 0])
    shared = (2, 3)     # the same object is a leaf at one place only
    found, treedef = tree.flatten_with_path([shared, shared], lambda path, x: keystr(path) == "[1]", True)
    assert [leaf for _, leaf in found] == [2, 3, shared]
    assert treedef == tree.structure([(0, 0), 0])


def test_paths_are_whole_wherever_a_leaf_is_asked_for():
    whole = {"a": [1, (2, {"b": 3})], "c": None, "d": collections.OrderedDict(e=[4])}
    for asked in ([], ["['a'][1]"], ["['a'][1][1]"], ["['a'][1][1]['b']"], ["['c']", "['d']['e']"], ["", "['a']"]):
        seen = []
        found, treedef = tree.flatten_with_path(
            whole, lambda path, x, seen=seen, asked=asked: seen.append(keystr(path)) or seen[-1] in asked, True)
        assert seen[0] == "" and len(set(seen)) == len(seen)  # each node is asked for once
        assert {keystr(path) for path, _ in found} >= set(asked[:1])
        assert treedef.unflatten([x for _, x in found]) == whole


def test_structure_methods():
    treedef = tree.structure({"a": [1, 2], "b": None})
    assert treedef.children() == [tree.structure([0, 0]), tree.structure(None)]
    assert treedef.node_data() == (dict, ["a", "b"])
    assert (treedef.num_leaves, treedef.num_nodes) == (2, 5)
    assert repr(treedef.compose(tree.structure((0, 0)))) == "PyTreeDef({'a': [(*, *), (*, *)], 'b': None})"
    assert treedef.flatten_up_to({"a": [(1, 2), 3], "b": None}) == [(1, 2), 3]
    assert tree.structure(1).node_data() is None
    assert tree.structure((1,)).node_data() == (tuple, None)
    assert tree.structure(Box(1, label="m")).node_data() == (Box, "m")
    assert tree.structure(Point(1, 2)).node_data() == (Point, None)
    nodes = []
    treedef.walk(lambda children, data: nodes.append((children, data)) or "n", lambda leaf: -leaf, [1, 2])
    assert nodes == [((-1, -2), None), ((), None), (("n", "n"), ["a", "b"])]
    assert tree_util.treedef_tuple([treedef, treedef]) == tree.structure(({"a": [1, 2], "b": None},) * 2)
    assert tree_util.treedef_is_leaf(tree.structure(1))
    assert not tree_util.treedef_is_leaf(tree.structure(None))
    assert tree_util.treedef_children(treedef) == treedef.children()


def test_one_level():
    assert tree_util.flatten_one_level([1, [2]]) == ([1, [2]], None)
    assert tree_util.flatten_one_level({"b": 1, "a": 2}) == ([2, 1], ("a", "b"))
    assert tree_util.flatten_one_level_with_keys(Layer(1)) == ([(GetAttrKey("weights"), 1)], ("dense",))
    with pytest.raises(ValueError, match="can't tree-flatten type: <class 'int'>"):
        tree_util.flatten_one_level(3)
    assert [
        tree_util.is_tree_node(t) for t in (list, int, Point, Layer, type(None), np.ndarray, Partial)
    ] == [True, False, True, True, True, False, True]
    assert tree_util.default_registry.flatten_one_level(3) is None


def test_broadcast():
    def none(x):
        return x is None
    assert tree.broadcast(1, {"a": [1, 2]}) == {"a": [1, 1]}
    assert tree.broadcast((1, 2), ((3, 4), [5])) == ((1, 1), [2])
    assert tree.broadcast_prefix((0, None), ({"a": 1, "b": 2}, [3]), none) == [0, 0, None]
    assert tree.broadcast_prefix(None, (1, [2]), none) == [None, None]
    assert tree.broadcast_prefix((0, 1), ([], 5)) == [1]
    assert tree.flatten_axes("vmap in_axes", tree.structure(({"a": 1}, 2)), ({"a": 0}, None)) == [0, None]
    assert tree.flatten_axes("vmap in_axes", tree.structure((1, None)), (0, None)) == [0]


@pytest.mark.parametrize("prefix, full, message", [
    (({"b": 0},), ({"a": 1},), r"different pytree metadata at key path\n    vmap in_axes\[0\]\n"),
    ((0, 0), 3, r"different types at key path\n    vmap in_axes\n.*<class 'tuple'>"),
    (({"a": 1, "b": 2},), ({"a": 1},), "different numbers of pytree children"),
    *(((kind(b=0),), (kind(a=1),), "different pytree metadata") for kind in (
        dict, collections.OrderedDict, functools.partial(collections.defaultdict, list))),
    ((collections.OrderedDict(a=0, b=0),), (collections.OrderedDict(b=1, a=1),), "different pytree metadata"),
    ((collections.defaultdict(list, a=0),), (collections.defaultdict(int, a=1),), "different pytree metadata"),
    ((0, (0,)), (1, [2]), r"vmap in_axes\[1\]\n.*tuple.*list")])
def test_prefix_errors(prefix, full, message):
    start = r"(?s)vmap in_axes specification must be a tree prefix of the corresponding value; "
    with pytest.raises(ValueError, match=start + "pytree structure error: .*" + message):
        tree.broadcast_prefix(prefix, full, lambda x: x is None, "vmap in_axes")
    with pytest.raises(ValueError, match=start):
        tree.flatten_axes("vmap in_axes", tree.structure(full), prefix)


def test_registration_errors():
    class Once:
        pass
    tree_util.register_pytree_node(Once, lambda x: ((), None), lambda data, children: Once())
    with pytest.raises(ValueError, match=r"Duplicate custom PyTreeDef type registration for <class .*Once"):
        tree_util.register_pytree_node(Once, lambda x: ((), None), lambda data, children: Once())
    with pytest.raises(ValueError, match="Duplicate"):
        tree_util.register_pytree_node(dict, lambda x: ((), None), lambda data, children: {})

    @dataclasses.dataclass
    class Pair:
        x: int
        y: int
    with pytest.raises(ValueError, match=r"must include all dataclass fields.*Missing fields: \{'y'\}"):
        tree_util.register_dataclass(Pair, data_fields=["x"], meta_fields=[])
    with pytest.raises(ValueError, match=r"Unexpected fields: \{'z'\}"):
        tree_util.register_dataclass(Pair, data_fields=["x", "y", "z"], meta_fields=[])
    with pytest.raises(TypeError, match="both be specified"):
        tree_util.register_dataclass(Pair, data_fields=["x"])
    with pytest.raises(TypeError, match="not a dataclass"):
        tree_util.register_dataclass(int)


def test_dataclass_fields():
    @functools.partial(
        tree_util.register_dataclass, data_fields=["x"], meta_fields=["n"], drop_fields=["cache"]
    )
    @dataclasses.dataclass
    class Model:
        x: int
        n: int
        cache: object = None
    model = tree.map(lambda v: v * 2, Model(3, 4, "c"))
    assert model == Model(6, 4, None)


def test_registered_namedtuple_and_node_class():
    Span = collections.namedtuple("Span", "lo hi")
    tree_util.register_pytree_with_keys(Span, lambda s: ([(GetAttrKey("lo"), s.lo)], s.hi),
                                        lambda hi, children: Span(*children, hi))
    assert tree.leaves(Span(1, 2)) == [1]

    @tree_util.register_pytree_node_class
    class Pair:
        def __init__(self, a, b):
            self.a, self.b = a, b

        def tree_flatten(self):
            return (self.a, self.b), None

        @classmethod
        def tree_unflatten(cls, data, children):
            return cls(*children)
    assert tree.map(lambda x: -x, Pair(1, 2)).b == -2
    assert keystr(tree.leaves_with_path(Pair(1, 2))[1][0]) == "[<flat index 1>]"


def test_partial():
    def f(*args, **kwargs):
        return args, kwargs
    partial = Partial(f, 1, k=2)
    assert tree.leaves(partial) == [1, 2]
    assert tree.map(lambda x: x + 1, partial)(5) == ((2, 5), {"k": 3})
    assert tree.structure(partial) == tree.structure(Partial(f, 0, k=0))
    assert tree.structure(partial) != tree.structure(Partial(print, 0, k=0))
    nested = Partial(functools.partial(f, 10), 1)
    assert tree.leaves(nested) == [1]
    assert nested(2) == ((10, 1, 2), {})
    assert tree.structure(nested) == tree.structure(Partial(functools.partial(f, 10), 7))
    for given, named in (((11,), {}), ((), {"k": 10}), ((10,), {"k": 1}), ((10,), {"k": 2}), ((10,), {"j": 1})):
        other = Partial(functools.partial(f, *given, **named), 7)
        assert tree.structure(nested) != tree.structure(other)
        assert tree.structure(other) == tree.structure(Partial(functools.partial(f, *given, **named), 8))
        assert len({tree.structure(Partial(functools.partial(f, **{key: value}), 1))
                    for key in "jk" for value in (1, 2)}) == 4


def test_partials_of_partials_are_equal_by_what_they_hold() -> None:
    def f(*args, **kwargs):
        return args, kwargs

    one, same, other = (Partial(functools.partial(f, *a, **k), 1) for a, k in (((2,), {"k": 3}), ((2,), {"k": 3}),
                                                                               ((3,), {"k": 3})))
    assert hash(tree.structure(one)) == hash(tree.structure(same)) and tree.structure(one) == tree.structure(same)
    assert tree.structure(one) != tree.structure(other) and one.func == same.func != other.func
    assert one.func != f and repr(one.func) == repr(functools.partial(f, 2, k=3))
    assert (one.func.func, one.func.args, one.func.keywords) == (f, (2,), {"k": 3})


@pytest.mark.parametrize("one, other", [
    (2, 2.0), (1, True), (0.0, -0.0), (2.0, np.float32(2.0)), (2.0, 2.0 + 0j), ("a", b"a"),
    (jnp.ones(3), 2 * jnp.ones(3)), (jnp.ones(1), jnp.ones((1, 1))), (np.ones(1), np.ones(1)),
    ([1], [1.0]), ((1,), (1.0,)), (2.0, None)], ids=repr)
def test_partials_of_partials_are_told_apart(one: Any, other: Any) -> None:
    """By what programs may depend on: a program of one is not that of the other."""
    def f(held: Any, x: Any) -> Any:
        return held, x

    structures = [tree.structure(Partial(functools.partial(f, *given, **named), 1))
                  for given, named in (((one,), {}), ((other,), {}), ((), {"held": one}), ((), {"held": other}))]
    assert len(set(structures)) == 4
    again = [tree.structure(Partial(functools.partial(f, held), 7)) for held in (one, other)]
    assert again == structures[:2]


def test_programs_of_partials_of_partials() -> None:
    apply = anima.jit(lambda f, x: f(x))
    held: list[float] = [1.0]
    partials = [Partial(functools.partial(lambda a, x: a * x, a)) for a in (2, 2.0, jnp.ones(3), jnp.ones((1, 3)))]
    got = [apply(f, jnp.arange(3)) for f in partials]
    assert [(str(x.dtype), x.shape) for x in got] == [("int32", (3,)), *[("float32", (3,))] * 2, ("float32", (1, 3))]
    kept = Partial(functools.partial(lambda a, x: a[0] * x, held))
    before = hash(tree.structure(kept))
    held[0] = 2.0
    assert hash(tree.structure(kept)) == before


def test_the_registry_as_an_object() -> None:
    registry = tree_util.default_registry
    assert registry.flatten({"b": (2, 3), "a": 1}) == tree.flatten({"b": (2, 3), "a": 1})
    assert registry.flatten([(1, 2), 3], lambda x: isinstance(x, tuple))[0] == [(1, 2), 3]

    class Own:
        def __init__(self, items):
            self.items = items

    registry.register_node(Own, lambda own: (own.items, "data"), lambda data, items: Own(list(items)))
    assert tree.leaves(Own([1, (2, 3)])) == [1, 2, 3]
    children, data = registry.flatten_one_level(Own([1, (2, 3)]))
    assert (list(children), data) == ([1, (2, 3)], "data") and registry.flatten_one_level(7) is None


def test_simple_texts_of_paths() -> None:
    path = (DictKey("a"), SequenceKey(0), GetAttrKey("x"), FlattenedIndexKey(2), "other")
    assert keystr(path, simple=True, separator="/") == "a/0/x/2/other"


def test_arrays_are_leaves():
    array = np.arange(3)
    leaves, treedef = tree.flatten({"x": array, "y": [array]})
    assert leaves[0] is array
    assert treedef.unflatten(leaves)["y"][0] is array


def test_trees_at_exit():
    code = ("import atexit, collections, anima\n"
            "leaves = lambda: print(anima.tree.leaves((1, {'a': P([2], 3)})))\n"
            "atexit.register(leaves)\n"
            "P = collections.namedtuple('P', 'x y'); leaves()\n"
            "atexit.register(leaves)\n")
    found = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True)
    assert (found.stdout, found.stderr) == ("[1, 2, 3]\n" * 3, "")


def test_unravel_of_equal_types() -> None:
    """Numbers are as arrays of their types: a state that holds the function stays what it is."""
    flat, unravel = flatten_util.ravel_pytree([1.0, jnp.ones(2)])
    other, same = flatten_util.ravel_pytree([jnp.float32(1), jnp.ones(2)])
    assert unravel == same and hash(unravel) == hash(same) and not flat.weak_type and not other.weak_type
    assert unravel != flatten_util.ravel_pytree([jnp.ones(1), jnp.ones(2)])[1]
    assert flatten_util.ravel_pytree([1.0, 2.0])[0].weak_type and not flatten_util.ravel_pytree([1, 2.0])[0].weak_type


def test_deep_structures_have_a_text():
    value = 1
    for _ in range(800):
        value = {"a": value}
    assert str(tree.structure(value)) == "PyTreeDef(" + "{'a': " * 800 + "*" + "}" * 800 + ")"
