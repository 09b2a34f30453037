"""Calls of compiled functions take short ways; each must notice whatever makes a call another one."""

from __future__ import annotations

import collections
import copy
import gc
import pickle
import sys
import threading
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import random, tree
from anima.api.jit import Signature
from anima.api.reading import reader
from anima.config import config
from anima.core.array import ConcreteArray
from anima.runtime import calling

F32 = np.float32


def counted(fun: Any, **options: Any) -> tuple[Any, list[Any]]:
    """`fun` jitted, and a list that grows by one with each trace."""
    traces: list[Any] = []

    def traced(*args: Any, **kwargs: Any) -> Any:
        traces.append(args)
        return fun(*args, **kwargs)

    return anima.jit(traced, **options), traces


def quick(f: Any) -> int:
    """How many signatures have a short way now."""
    return sum(map(len, (*f.simple.values(), *f.recent.values())))


def same(got: Any, expected: np.ndarray, weak: bool = False) -> None:
    assert type(got) is ConcreteArray and got.weak_type == weak and got.dtype == expected.dtype
    np.testing.assert_array_equal(np.asarray(got), expected)


# ---------------------------------------------------------------- arguments

KINDS = {
    "f32": (np.arange(3, dtype=F32), False), "i32": (np.arange(3, dtype=np.int32), False),
    "f16": (np.arange(3, dtype=np.float16), False), "bool": (np.array([True, False, True]), False),
    "bf16": (np.arange(3).astype(ml_dtypes.bfloat16), False), "c64": (np.arange(3).astype(np.complex64), False),
    "longer": (np.arange(4, dtype=F32), False), "matrix": (np.ones((3, 1), F32), False),
    "row": (np.ones((1, 3), F32), False), "scalar": (np.float32(2.5), False), "int scalar": (np.int32(7), False),
    "bool scalar": (np.bool_(True), False), "bf16 scalar": (ml_dtypes.bfloat16(1.5), False),
    "empty": (np.ones((0, 3), F32), False), "float": (1.5, True), "int": (3, True), "python bool": (True, False),
    "complex": (1 + 2j, True),
}


@pytest.mark.parametrize("wrap", [lambda x: x, jnp.asarray], ids=["as it is", "array"])
def test_every_kind_of_argument_has_its_own_program(wrap):
    f, traces = counted(lambda x: (x, jnp.ones(2)))
    for _ in range(3):
        for value, weak in KINDS.values():
            given = wrap(value)
            got, _ = f(given)
            same(got, np.asarray(value, getattr(given, "dtype", None) or got.dtype), weak and got.weak_type)
            assert got.weak_type == jnp.asarray(given).weak_type
    assert len(traces) == len({(jnp.asarray(wrap(v)).aval) for v, _ in KINDS.values()})


def test_the_same_type_takes_the_same_way_whatever_it_comes_as():
    f, traces = counted(lambda x: x + 1)
    for x in (np.ones((), F32), np.float32(1), jnp.float32(1), jnp.ones((), F32)):
        for _ in range(2):
            same(f(x), np.float32(2))
    assert len(traces) == 1 and quick(f) == 1


def test_weak_and_strong_types_are_told_apart():
    f, traces = counted(lambda x: x * jnp.ones(2, jnp.bfloat16))
    weak, strong = jnp.asarray(2.0), jnp.float32(2.0)
    for _ in range(3):
        assert f(weak).dtype == jnp.bfloat16 and f(2.0).dtype == jnp.bfloat16
        assert f(strong).dtype == f(np.float32(2)).dtype == np.float32
    assert len(traces) == 2


def test_keys_and_their_numbers_are_told_apart():
    f, traces = counted(lambda k: (k, 1))
    key = random.key(3)
    data = random.key_data(key)
    for _ in range(3):
        assert f(key)[0].dtype == key.dtype and f(data)[0].dtype == np.uint32
        assert (random.key_data(f(key)[0]) == data).all() and f(np.asarray(data))[0].shape == (2,)
    assert len(traces) == 2


def test_python_numbers_out_of_range():
    f, _ = counted(lambda x: x)
    assert int(f(5)) == 5 and int(f(-(2**31))) == -(2**31)
    for n in (2**31, -(2**31) - 1, 2**100):
        with pytest.raises(OverflowError):
            f(n)
    assert float(f(0.5)) == 0.5
    with np.errstate(all="ignore"):
        assert np.isinf(f(1e300)) and np.isinf(f(float("-inf"))) and np.isnan(f(float("nan")))
    assert np.signbit(np.asarray(f(-0.0))) and not np.signbit(np.asarray(f(0.0)))


def test_layouts_byte_orders_and_subclasses():
    f, _ = counted(lambda x: x * 2)
    x = np.arange(12, dtype=F32).reshape(3, 4)
    f(x)
    for other in (np.asfortranarray(x), x[::-1], x.astype(">f4"), x.astype(np.float64), x.view(np.matrix),
                  pickle.loads(pickle.dumps(x)), jnp.asarray(pickle.loads(pickle.dumps(x)))):
        np.testing.assert_array_equal(f(other), np.asarray(other) * 2)
    raw = np.zeros(4 * 12 + 1, np.uint8)[1:].view(F32).reshape(3, 4)
    raw[:] = x
    np.testing.assert_array_equal(f(raw), x * 2)


def test_results_are_immutable_and_share_nothing():
    f = anima.jit(lambda x: (x, x))
    x = np.ones(3, F32)
    for _ in range(3):
        a, b = f(x)
        assert not a.value.flags.writeable and not np.shares_memory(a.value, x)
        assert not np.shares_memory(a.value, b.value)


@pytest.mark.parametrize("bad", ["text", object(), [object()], np.array(["a"]), np.array([None])])
def test_errors_name_the_argument(bad):
    f = anima.jit(lambda x, y: x)
    f(1.0, 2.0)
    with pytest.raises(TypeError, match="at path y"):
        f(1.0, bad)
    with pytest.raises(TypeError):
        f(1.0)
    with pytest.raises(TypeError):
        f(1.0, 2.0, 3.0)
    assert float(f(1.0, 2.0)) == 1.0


# ---------------------------------------------------------------- trees, static arguments

Pair = collections.namedtuple("Pair", "a b")

TREES = [
    ((1.0, 2.0), {}), (([1.0, 2.0],), {}), (((1.0, 2.0),), {}), (({"a": 1.0, "b": 2.0},), {}),
    (({"b": 1.0, "a": 2.0},), {}), (({"a": 1.0, "c": 2.0},), {}), ((Pair(1.0, 2.0),), {}), ((1.0, None, 2.0), {}),
    ((1.0,), {"y": 2.0}), ((1.0,), {"z": 2.0}), ((), {"a": 1.0, "b": 2.0}), ((), {}), (([],), {}), (({},), {}),
    (({1: 1.0, (2, 3): [2.0, None]},), {}), ((collections.OrderedDict(b=1.0, a=2.0),), {}),
    ((tree.Partial(max, 1.0, y=2.0),), {}), (([[[1.0]], {"q": ()}], 2.0), {"k": {"v": (Pair(3.0, [4.0]),)}}),
]


def test_trees_come_back_as_they_are():
    f, traces = counted(lambda *args, **kwargs: (args, kwargs))
    for _ in range(3):
        for args, kwargs in TREES:
            got_args, got_kwargs = f(*args, **kwargs)
            assert tree.structure((got_args, got_kwargs)) == tree.structure((args, kwargs))
            assert list(map(float, tree.leaves((got_args, got_kwargs)))) == tree.leaves((args, kwargs))
    # Dictionaries that differ in order alone are one structure.
    assert len(traces) == len(TREES) - 1


@pytest.mark.parametrize("args,kwargs", TREES, ids=range(len(TREES)))
def test_reader_takes_its_structure_only(args, kwargs):
    leaves, in_tree = tree.flatten((args, kwargs))
    read = reader(in_tree, None)
    for other_args, other_kwargs in TREES:
        equal = tree.structure((other_args, other_kwargs)) == in_tree
        found = read(other_args, other_kwargs)
        # What is in the place of a leaf is not looked at.
        if equal:
            assert list(found) == tree.leaves((other_args, other_kwargs))
        else:
            assert found is None or any(not tree.all_leaves([x]) for x in found)
    assert list(read(args, kwargs)) == leaves


class Tagged:
    """A node whose children come from a generator; `seen` are the objects that were taken apart."""

    seen: list[Any] = []

    def __init__(self, x: Any, y: Any, tag: Any):
        self.x, self.y, self.tag = x, y, tag


def _apart(node: Tagged) -> tuple[Any, Any]:
    Tagged.seen.append(node)
    return (x for x in (node.x, node.y)), node.tag


class OtherTagged(Tagged):
    """Another type, though a subclass."""


tree.register_pytree_node(Tagged, _apart, lambda tag, xs: Tagged(*xs, tag))
tree.register_pytree_node(OtherTagged, _apart, lambda tag, xs: OtherTagged(*xs, tag))


def test_readers_of_registered_types():
    in_tree = tree.structure(((Tagged(1.0, {"a": 2.0, "b": (None, 3.0)}, "t"), 4.0), {}))
    read = reader(in_tree, None)
    again = Tagged(5.0, {"b": (None, 7.0), "a": 6.0}, "t")
    Tagged.seen.clear()
    assert read((again, 8.0), {}) == (5.0, 6.0, 7.0, 8.0) and Tagged.seen == [again]
    for other in (Tagged(1.0, again.y, "u"), OtherTagged(1.0, again.y, "t"), Tagged(1.0, {"a": 2.0}, "t"), 1.0, None):
        assert read((other, 8.0), {}) is None
    assert reader(tree.structure(((Tagged(None, (), 0),), {})), None)((Tagged(None, (), 0),), {}) == ()


def test_registered_types_are_traced_once_for_equal_data():
    f, traces = counted(lambda node: node.x * 2 if node.tag == "t" else node.x)
    for _ in range(3):
        assert [float(f(Tagged(jnp.ones(()), 1.0, tag))) for tag in "tu"] == [2.0, 1.0]
    assert len(traces) == 2


def test_dictionaries_by_key_not_by_order():
    f, traces = counted(lambda d: d["a"] - d["b"])
    for _ in range(3):
        assert float(f({"a": 3.0, "b": 1.0})) == float(f({"b": 1.0, "a": 3.0})) == 2.0
    assert len(traces) == 1


def test_static_arguments_by_type_and_value():
    f, traces = counted(lambda x, n: x * n, static_argnums=1)
    for _ in range(3):
        for n in (1, True, 1.0, 2, np.float64(2.0)):
            assert float(f(3.0, n)) == 3.0 * n
    assert len(traces) == 5

    g, traces = counted(lambda x, *, mode="a", n=1: x + (n if mode == "a" else 10 * n), static_argnames=("mode", "n"))
    for _ in range(3):
        assert [float(g(0.0)), float(g(0.0, n=2)), float(g(0.0, mode="b")), float(g(0.0, n=2, mode="b"))] == [
            1.0, 2.0, 10.0, 20.0]
    assert len(traces) == 4


class Rough(int):
    """Numbers whose hash says little."""

    def __hash__(self) -> int:
        return 7


@pytest.mark.parametrize("pair", [(-1, -2), (0, 2**61 - 1), (-1.0, -2.0), (Rough(1), Rough(2)), ((-1, "a"), (-2, "a"))])
def test_static_arguments_with_one_hash_are_told_apart(pair):
    def weight(n):
        return float(n[0] if isinstance(n, tuple) else n)

    for options in ({"static_argnums": 1}, {"static_argnames": "n"}):
        f = anima.jit(lambda x, n: x + weight(n), **options)
        for _ in range(3):
            for n in (*pair, *pair[::-1]):
                assert float(f(0.0, n)) == np.float32(weight(n)) == float(f(0.0, n=n))


class Elementwise:
    """Hashable, with a comparison that is no truth value."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __hash__(self) -> int:
        return self.n

    def __eq__(self, other: Any) -> Any:
        return np.array([self.n == other.n, True])


def test_static_arguments_that_compare_badly_or_not_at_all():
    f = anima.jit(lambda x, n: x, static_argnums=1)
    kept = Elementwise(1)
    for _ in range(3):
        assert float(f(1.0, kept)) == 1.0
        assert float(f(1.0, Elementwise(2 + _))) == 1.0
    f(1.0, 7)
    with pytest.raises(ValueError, match=r"argument \(index 1\) of type <class 'list'> is not hashable"):
        f(1.0, [1])
    with pytest.raises(anima.errors.ConcretizationTypeError, match="Static argument 1"):
        anima.jit(lambda y: f(1.0, y))(2.0)


def test_a_method_and_a_callable_that_is_jitted():
    class Model:
        def __init__(self, w: float) -> None:
            self.w = w

        @partial(anima.jit, static_argnums=0)
        def __call__(self, x: Any) -> Any:
            return self.w * x

    one, two = Model(2.0), Model(3.0)
    for _ in range(3):
        assert (float(one(1.0)), float(two(1.0))) == (2.0, 3.0)


# ---------------------------------------------------------------- context

@pytest.mark.parametrize("given", [2.0, np.float64(2.0), np.ones(2), [1, 2.0]], ids=str)
def test_x64_is_part_of_the_signature(given):
    f, _ = counted(lambda x: tree.map(lambda y: y / 3, x))
    for _ in range(3):
        assert tree.leaves(f(given))[-1].dtype == np.float32
        with anima.enable_x64(True):
            assert tree.leaves(f(given))[-1].dtype == np.float64


def test_other_options_are_part_of_the_signature():
    f, traces = counted(lambda x: x @ x)
    x = jnp.ones((2, 2))
    for _ in range(3):
        f(x)
        with anima.default_matmul_precision("bfloat16"):
            f(x)
        with anima.disable_jit():
            f(x)
    assert len(traces) == 2 + 3


def test_debug_nans_after_a_quick_call():
    f, _ = counted(lambda x: jnp.log(x))
    for _ in range(3):
        assert np.isnan(f(-1.0))
    with anima.debug_nans(True):
        for _ in range(2):
            with pytest.raises(FloatingPointError):
                f(-1.0)
        assert float(f(1.0)) == 0.0
    assert np.isnan(f(-1.0))


def test_a_change_of_options_inside_of_a_call():
    def change(x: np.ndarray) -> np.ndarray:
        config.update("enable_x64", True)
        return x

    f, traces = counted(lambda x: anima.pure_callback(change, x, x) * 1.5)
    try:
        assert f(jnp.float32(1)).dtype == np.float32
        assert f(2.0).dtype == np.float64
        config.update("enable_x64", False)
        assert f(2.0).dtype == np.float32
    finally:
        config.update("enable_x64", False)
    assert len(traces) == 3


def test_under_transformations_and_inside_of_other_functions():
    f, _ = counted(lambda x: x * x)
    x = jnp.float32(3)
    for _ in range(2):
        assert float(f(x)) == 9.0
        assert float(anima.grad(f)(x)) == 6.0
        assert float(anima.jit(lambda y: f(y) + f(x))(x)) == 18.0
        assert anima.vmap(f)(jnp.arange(3.0)).tolist() == [0.0, 1.0, 4.0]
    assert "pjit" in str(anima.make_jaxpr(f)(x))


def test_clear_cache_forgets_the_short_ways():
    f, traces = counted(lambda x: x + 1)
    for _ in range(2):
        f(1.0)
        f(x=1.0)
    assert quick(f) == len(traces) == 2
    f.clear_cache()
    assert quick(f) == 0
    f(1.0)
    f(x=1.0)
    assert len(traces) == 4


@pytest.mark.parametrize("args, kwargs", [
    ((1.0,), {}), ((1.0, None), {}), ((None, 1.0), {}), (((), 1.0, {}), {}), (((1.0,),), {}), (({"a": 1.0}, 2), {}),
    ((), {"a": 1.0}), ((1.0,), {"b": None}), ((), {"b": 1.0, "a": [2.0]})])
def test_the_second_call_is_a_short_one(monkeypatch, args, kwargs):
    """However the leaves come: only the first call is looked at in general."""
    f, _ = counted(lambda *args, **kwargs: sum(tree.leaves((args, kwargs))))
    expected = f(*args, **kwargs)
    monkeypatch.setattr(type(f), "_call", lambda self, args, kwargs: pytest.fail("the long way"))
    assert float(f(*args, **kwargs)) == float(expected)


def test_more_signatures_than_are_remembered():
    f, traces = counted(lambda x: x + 1)
    for _ in range(3):
        for n in range(20):
            assert f(np.zeros(n, F32)).tolist() == [1.0] * n
    assert len(traces) == 20 and quick(f) <= 8


# ---------------------------------------------------------------- donation, deletion, failures

def test_donation_on_the_short_way():
    f = anima.jit(lambda x: x + 1, donate_argnums=0)
    x = jnp.zeros(3)
    for n in range(5):
        old, x = x, f(x)
        assert old.is_deleted() and x.tolist() == [n + 1.0] * 3
    with pytest.raises(RuntimeError, match="has been deleted"):
        f(old)
    assert f(np.ones(3, F32)).tolist() == [2.0] * 3

    @partial(anima.jit, donate_argnames=("state",), static_argnames=("n",))
    def step(x: Any, state: Any, n: int = 1) -> Any:
        return tree.map(lambda s: s + x * n, state)

    state = {"a": jnp.zeros(2), "b": (jnp.ones(2),)}
    x = jnp.ones(2)
    for _ in range(4):
        old, state = state, step(x, state=state, n=2)
        assert all(leaf.is_deleted() for leaf in tree.leaves(old)) and not x.is_deleted()
    assert state["a"].tolist() == [8.0, 8.0]
    with pytest.raises(ValueError, match="twice"):
        step(state["a"], state=state, n=2)
    assert not state["a"].is_deleted()


def test_what_fails_deletes_nothing_and_can_be_called_again():
    fail = [False]

    def check(x: np.ndarray) -> np.ndarray:
        if fail[0]:
            raise RuntimeError("not now")
        return x

    f = anima.jit(lambda x: anima.pure_callback(check, x, x), donate_argnums=0)
    x = f(f(jnp.ones(3)))
    fail[0] = True
    with pytest.raises(RuntimeError, match="not now"):
        f(x)
    fail[0] = False
    assert not x.is_deleted() and f(x).tolist() == [1.0] * 3


def test_deleted_and_half_made_arrays():
    f = anima.jit(lambda x: x + 1)
    x = jnp.ones(3)
    f(x)
    x.delete()
    with pytest.raises(RuntimeError, match="has been deleted"):
        f(x)
    with pytest.raises(AttributeError):
        f(ConcreteArray.__new__(ConcreteArray))


def test_references_are_neither_lost_nor_kept():
    f = anima.jit(lambda x, y: (x + 1, y * 2))
    x, n = jnp.ones(3), np.ones(3, F32)
    f(x, n)
    gc.collect()
    before = [sys.getrefcount(o) for o in (x, x.value, x.aval, n, None, NotImplemented, True)]
    for k in range(1000):
        f(x, n)
        f(x, 1.5 if k % 2 else n)
        if k % 10 == 0:
            with pytest.raises(TypeError):
                f(x, None)
    gc.collect()  # errors, with their tracebacks
    after = [sys.getrefcount(o) for o in (x, x.value, x.aval, n, None, NotImplemented, True)]
    assert all(abs(a - b) < 200 for a, b in zip(after, before, strict=True)), (before, after)


def test_calls_from_many_threads_and_from_inside_of_calls():
    f = anima.jit(lambda x: (x * 2, jnp.sort(x)[::-1].cumsum()))
    inner = anima.jit(lambda x: x + 1)
    outer = anima.jit(lambda x: anima.pure_callback(lambda v: np.asarray(inner(v)), x, x) * 2)
    wrong: list[Any] = []

    def work(number: int) -> None:
        x = jnp.full(64, float(number))
        for _ in range(300):
            a, b = f(x)
            if a.tolist() != [2.0 * number] * 64 or float(b[-1]) != 64.0 * number or float(outer(x)[0]) != 2.0 * (
                    number + 1):
                wrong.append(number)

    workers = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not wrong


def test_an_array_deleted_by_another_thread_meanwhile():
    def free(v: np.ndarray) -> np.ndarray:
        x.delete()
        return v

    f = anima.jit(lambda x: anima.pure_callback(free, x, x) + x)
    for _ in range(3):
        x = jnp.full(1 << 16, 3.0)
        assert np.asarray(f(x)).tolist()[::5000] == [6.0] * 14


def test_without_the_native_way_in(monkeypatch):
    monkeypatch.setattr(calling, "caller", lambda *args: None)
    f = anima.jit(lambda d, n: {"r": d["a"] * n, "s": (d["a"],)}, static_argnums=1, donate_argnums=0)
    for _ in range(3):
        d = {"a": jnp.arange(3.0)}
        got = f(d, 2)
        assert got["r"].tolist() == [0.0, 2.0, 4.0] and got["s"][0].tolist() == [0.0, 1.0, 2.0]
        assert d["a"].is_deleted() and quick(f) == 0


def test_64_bits_are_narrowed_on_the_way_in():
    f, traces = counted(lambda x, y: x + y)
    for _ in range(3):
        for wide, narrow in ((np.float64, F32), (np.int64, np.int32), (np.uint64, np.uint32),
                             (np.complex128, np.complex64)):
            for x in (np.arange(3, dtype=wide), wide(2)):
                same(f(x, np.ones((), narrow)), np.asarray(x, narrow) + narrow(1))
                same(f(np.asarray(x, narrow), narrow(1)), np.asarray(x, narrow) + narrow(1))
                with anima.enable_x64(True):
                    same(f(x, np.ones((), wide)), np.asarray(x) + wide(1))
    assert len(traces) == 2 * 4 * 2
    g, traces = counted(lambda x, n: x * n, static_argnums=1)
    g(1.0, np.float64(2.0))
    assert type(traces[0][1]) is np.float64


def test_a_call_while_another_makes_the_short_way(monkeypatch):
    f = anima.jit(lambda d: d["a"] + 1)
    inner: list[Any] = []

    def meanwhile(*args: Any) -> Any:
        if not inner:
            inner.append(None)
            inner.extend([f({"a": 1.0}), f({"a": 1.0})])
        return reader(*args)

    monkeypatch.setattr("anima.api.jit.reader", meanwhile)
    for _ in range(3):
        assert float(f({"a": 1.0})) == 2.0
    assert float(inner[1]) == float(inner[2]) == 2.0 and quick(f) == 1


def test_static_arguments_that_are_equal_but_not_the_same():
    f, traces = counted(lambda x, n: x * n, static_argnums=1)
    for _ in range(3):
        assert [bool(np.signbit(f(1.0, z))) for z in (0.0, -0.0)] == [False, True]
    assert len(traces) == 2
    g, traces = counted(lambda x, *, n: x * n[0] + n[1][0], static_argnames="n")
    for _ in range(3):
        kinds = [g(jnp.int32(3), n=n).dtype for n in ((1, (2,)), (1.0, (2,)), (1, (2.0,)), Pair(1, (2,)))]
        assert kinds == [np.int32, np.float32, np.float32, np.int32]
    assert len(traces) == 4


def test_jitted_functions_are_pickled_and_copied_without_their_programs():
    f = anima.jit(np_sign)
    f(1.0), f({"a": 2.0}["a"])
    for other in (pickle.loads(pickle.dumps(f)), copy.deepcopy(f), copy.copy(f)):
        assert other._cache_size() == 0 and float(other(-2.0)) == -1.0


def np_sign(x: Any) -> Any:
    return jnp.sign(x)


def test_what_becomes_of_numpy_does_not_reach_native_code(monkeypatch):
    f = anima.jit(lambda x: x + 1)
    monkeypatch.setattr(np, "empty", lambda *args, **kwargs: [1, 2, 3])
    for _ in range(3):
        assert f(np.ones(3, F32)).tolist() == [2.0] * 3


def test_masked_arrays_are_refused():
    x = np.ma.masked_array([1.0, 2.0], [True, False])
    f = anima.jit(lambda x: x)
    f(np.ones(2, F32))
    for call in (f, jnp.asarray, jnp.sin, anima.vmap(f)):
        with pytest.raises(ValueError, match="mask would be lost"):
            call(x)


@pytest.mark.parametrize("kwargs", [{}, {"s": 1}, {"t": 1.0}, {"s": 1, "t": 1.0}, {"r": "x", "s": 1, "t": 1.0}])
@pytest.mark.parametrize("nums", [(), (0,), (1,), (-1,), (0, 2)], ids=str)
def test_readers_of_static_arguments(nums, kwargs):
    """A reader takes its own calls, and those alone: others in number, names, values and types of what is static."""
    signature = Signature(lambda a, b, c, r="", s=0, t=0.0: None, nums, ("r", "s"))
    args = (1.0, 2.0, 3.0)
    positional, named, static = signature.split(args, kwargs)
    leaves, in_tree = tree.flatten((positional, named))
    read = reader(in_tree, static)
    assert list(read(args, kwargs)) == leaves
    assert read(args[:2], kwargs) is None and read((*args, 4.0), kwargs) is None
    assert read(args, {**kwargs, "u": 5}) is None
    for k in range(3):
        fixed = k in {n % 3 for n in nums}
        for other in (9.0, np.float64(args[k]), int(args[k])):
            found = read((*args[:k], other, *args[k + 1:]), kwargs)
            assert (found is None) == fixed
    for name, value in kwargs.items():
        assert read(args, {k: v for k, v in kwargs.items() if k != name}) is None
        assert (read(args, {**kwargs, name: f"{value}!"}) is None) == (name in ("r", "s"))


@pytest.mark.parametrize("keys", [("a", "b"), (0, 1), (-1, "z"), (True, 2), (1.5, 2.5), (("x", 1), ("x", 2)),
                                  (None, "n"), (b"k", b"l")], ids=str)
def test_readers_of_dictionaries_with_any_keys(keys):
    d = {keys[0]: 1.0, "between": {keys[1]: 2.0}}
    leaves, in_tree = tree.flatten(((d,), {}))
    read = reader(in_tree, None)
    assert list(read((dict(reversed(d.items())),), {})) == leaves
    assert read(({**d, "more": 1.0},), {}) is None
    assert read(({"between": d["between"], "other": 1.0},), {}) is None
