"""Functions wrapped step by step, and functions of pytrees as functions of flat lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
from anima import api_util
from anima.core import ShapedArray
from anima.extend import linear_util as lu


def f(x: Any, y: Any) -> Any:
    return x + y, x * y


@lu.transformation2
def scaled(f: Any, factor: float, *args: Any) -> Any:
    return [factor * x for x in f(*args)]


@lu.transformation_with_aux2
def counted(f: Any, store: Any, *args: Any) -> Any:
    store.store(len(args))
    return f(*args)


@lu.transformation
def shifted(shift: float, *args: Any) -> Any:
    outs = yield [x + shift for x in args], {}
    yield [x - shift for x in outs]


@lu.transformation_with_aux
def noted(note: str, *args: Any) -> Any:
    outs = yield args, {}
    yield outs, note


def test_steps_nest_the_last_outermost() -> None:
    fun, count = counted(scaled(lu.wrap_init(f), 10.0))
    with pytest.raises(lu.StoreException, match="empty"):
        count()
    assert (fun.call_wrapped(1.0, 2.0), count()) == ([30.0, 20.0], 2)
    with pytest.raises(lu.StoreException, match="occupied"):
        fun.call_wrapped(1.0, 2.0)
    assert shifted(lu.wrap_init(f), 1.0).call_wrapped(1.0, 2.0) == [4.0, 5.0]
    assert scaled(shifted(lu.wrap_init(f), 1.0), 2.0).call_wrapped(1.0, 2.0) == [8.0, 10.0]
    fun, note = noted(lu.wrap_init(f), "seen")
    assert (fun.call_wrapped(1.0, 2.0), note()) == ((3.0, 2.0), "seen")
    assert lu.wrap_init(f, {"y": 5.0}).call_wrapped(1.0) == (6.0, 5.0)
    assert "scaled" in repr(scaled(lu.wrap_init(f), 2.0))


def test_equal_functions_are_computed_once() -> None:
    calls: list[Any] = []

    @lu.cache
    def run(fun: Any, *args: Any) -> Any:
        calls.append(args)
        return fun.call_wrapped(*args)

    for _ in range(2):
        fun, count = counted(scaled(lu.wrap_init(f), 10.0))
        assert (run(fun, 1.0, 2.0), count()) == ([30.0, 20.0], 2)
    run(scaled(lu.wrap_init(f), 11.0), 1.0, 2.0)
    run(scaled(lu.wrap_init(f), 10.0), 1.0, 3.0)
    assert len(calls) == 3
    run.evict_function(f)
    run(scaled(lu.wrap_init(f), 11.0), 1.0, 2.0)
    anima.clear_caches()
    run(scaled(lu.wrap_init(f), 11.0), 1.0, 2.0)
    assert len(calls) == 5
    assert scaled(lu.wrap_init(f), 1.0) == scaled(lu.wrap_init(f), 1.0) != scaled(lu.wrap_init(f), 2.0)


def test_which_of_two_stores_was_written() -> None:
    one, two = counted(lu.wrap_init(f)), counted(lu.wrap_init(f))
    two[0].call_wrapped(1.0, 2.0)
    assert lu.merge_linear_aux(one[1], two[1]) == (False, 2)
    assert lu.merge_linear_aux(two[1], one[1]) == (True, 2)
    one[0].call_wrapped(1.0, 2.0)
    with pytest.raises(lu.StoreException, match="both"):
        lu.merge_linear_aux(one[1], two[1])


def test_flat_functions() -> None:
    def g(x: Any, *, k: Any) -> Any:
        return {"sum": x[0] + x[1], "k": (k,)}

    leaves, in_tree = anima.tree.flatten((([1.0, 2.0],), {"k": 3.0}))
    flat, out_tree = api_util.flatten_fun(lu.wrap_init(g), in_tree)
    outs = flat.call_wrapped(*leaves)
    assert anima.tree.unflatten(out_tree(), outs) == {"sum": 3.0, "k": (3.0,)}
    leaves, in_tree = anima.tree.flatten(((1.0,), 2.0))
    flat, out_tree = api_util.flatten_fun_nokwargs(lu.wrap_init(lambda a, b: (a[0] - b, [b])), in_tree)
    outs = flat.call_wrapped(*leaves)
    assert anima.tree.unflatten(out_tree(), outs) == (-1.0, [2.0])


def test_some_arguments_fixed() -> None:
    turned, dynamic = api_util.argnums_partial(lu.wrap_init(lambda *xs: xs), (2, 0), ("a", "b", "c"))
    assert dynamic == ("c", "a") and turned.call_wrapped(1, 2) == (2, "b", 1)
    fun, dynamic = api_util.argnums_partial(lu.wrap_init(lambda *xs: xs), (0, -1), ("a", "b", "c"))
    assert (fun.call_wrapped("x", "y"), dynamic) == (("x", "b", "y"), ("a", "c"))
    again, _ = api_util.argnums_partial(lu.wrap_init(fun.f), (0, 2), ("z", "b", "c"))
    other, _ = api_util.argnums_partial(lu.wrap_init(fun.f), (0, 2), ("z", "d", "c"))
    assert again == fun != other
    with pytest.raises(ValueError, match="Non-hashable"):
        api_util.argnums_partial(lu.wrap_init(f), 0, (1.0, [2.0]))
    fun, _ = api_util.argnums_partial(lu.wrap_init(lambda *xs: xs), 0, (1.0, [2.0]), False)
    assert fun.call_wrapped(3.0) == (3.0, [2.0])


@pytest.mark.parametrize(("x", "aval"), [
    (1.0, ShapedArray((), np.dtype(np.float32), True)), (np.ones(2, np.int8), ShapedArray((2,), np.dtype(np.int8))),
    (anima.ShapeDtypeStruct((3,), "float32"), ShapedArray((3,), np.dtype(np.float32)))])
def test_types_of_arguments(x: Any, aval: ShapedArray) -> None:
    assert api_util.shaped_abstractify(x) == aval


def test_what_is_said_of_arguments() -> None:
    with pytest.raises(TypeError, match="Argument 'a'"):
        api_util.shaped_abstractify("a")
    info = api_util.debug_info("jit", f, (1.0, {"k": 2.0}), {})
    assert (info.traced_for, info.func_name, info.arg_names) == ("jit", "f", ("x", "y['k']"))
    assert __file__ in info.func_src_info
    assert api_util.debug_info("jit", f, (1.0, 2.0), {}, static_argnums=(-1,)).arg_names == ("x",)
    assert api_util.debug_info("jit", f, (), {}).safe_arg_names(2) == ("", "")
    in_tree = anima.tree.structure(((1, (2, 3)), {"k": 4}))
    assert api_util.donation_vector((1,), ("k",), in_tree) == (False, True, True, True)
    assert api_util.donation_vector((0,), (), anima.tree.structure((1, 2)), kws=False) == (True, False)
    assert api_util.flatten_axes("axes", in_tree, ((0, None), 1)) == [0, None, None, 1]
    assert api_util.flatten_axes("axes", in_tree, (0, None), kws=True) == [0, None, None, None]
    with pytest.raises(ValueError, match="axes specification must be a tree prefix"):
        api_util.flatten_axes("axes", in_tree, (0,))
    assert api_util.rebase_donate_argnums((0, 2), (1,)) == (0, 1)
    with pytest.raises(ValueError, match="intersect"):
        api_util.rebase_donate_argnums((1,), (1,))
    assert api_util.safe_map(lambda x, y: x + y, [1, 2], (3, 4)) == [4, 6]
    for short in ([3], [3, 4, 5]):
        with pytest.raises(ValueError, match="argument 2 is"):
            api_util.safe_map(lambda x, y: x, [1, 2], short)


def test_what_is_replaced_changes_nothing_else() -> None:
    """Every part of a wrapped function, before and after: only what it is called in errors is another."""
    wrapped, _ = counted(scaled(lu.wrap_init(f, {"a": 1}, debug_info=api_util.debug_info("test", f, (1, 2), {})), 2.0))
    typed = lu.WrappedFun(f, f, (), (), (("a", 1),), ((ShapedArray((), np.dtype("f4")), True),) * 2, None)
    for one in (wrapped, typed):
        for other in (one.replace_debug_info(None), one.with_unknown_names()):
            for name in ("f", "f_transformed", "transforms", "stores", "params", "in_type"):
                assert getattr(other, name) == getattr(one, name), name
            assert other == one and hash(other) == hash(one)
        assert one.replace_debug_info(None).debug_info is None


def test_stores() -> None:
    store = lu.Store()
    assert not store
    store.store(0)
    assert store and store.val == 0
    store.reset()
    assert not store
    store.store(None)
    assert store and store.val is None
    equal = lu.EqualStore()
    for _ in range(2):
        equal.store((1, 2))
    with pytest.raises(lu.StoreException, match=r"occupied with \(1, 2\), which is not \(1, 3\)"):
        equal.store((1, 3))
    assert equal.val == (1, 2)


def test_steps_that_take_another_step_are_refused() -> None:
    @lu.transformation
    def restless(*args: Any) -> Any:
        yield args, {}
        yield 1
        yield 2

    with pytest.raises(RuntimeError, match="the transformation restless yields more than twice"):
        restless(lu.wrap_init(f)).call_wrapped(1.0, 2.0)
    assert lu.wrap_init(f).__name__ == "f"


def test_what_is_new_to_a_cache_is_explained() -> None:
    told: list[Any] = []
    run = lu.cache(lambda fun, *args: fun.call_wrapped(*args), explain=lambda *given: told.append(given[1]))
    for x in (1.0, 1.0, 2.0):
        run(lu.wrap_init(f), x, 2.0)
    assert told == [True, False]
