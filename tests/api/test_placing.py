"""Arrays made of the parts that devices hold, where these are, and drawings of it."""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.core.layout import Format, Layout
from anima.flatten_util import ravel_pytree

HERE = jnp.ones(()).sharding
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_parts_by_callback(eight_devices: list[anima.Device]) -> None:
    asked: list[Any] = []

    def part(index: Any) -> np.ndarray:
        asked.append(index)
        return X[index]

    for place in (HERE, jnp.ones((2, 3)).format):
        np.testing.assert_array_equal(anima.make_array_from_callback((2, 3), place, part), X)
    assert asked == [(slice(None), slice(None))] * 2
    made = anima.make_array_from_callback((), HERE, lambda index: 3)
    assert made.dtype == np.int32 and not made.weak_type
    asked.clear()
    mesh = anima.make_mesh((2, 4), ("x", "y"), devices=eight_devices)
    for spec, calls in ((anima.P(), 1), (anima.P("x"), 8)):
        made = anima.make_array_from_callback((2, 3), anima.NamedSharding(mesh, spec), part)
        np.testing.assert_array_equal(made, X)
        assert (len(asked), made.sharding.spec) == (calls, spec)
        asked.clear()
    own = X.copy()
    array = anima.make_array_from_callback((2, 3), HERE, lambda index: own)
    own[:] = 0
    np.testing.assert_array_equal(array, X)
    assert own.flags.writeable


@pytest.mark.parametrize("arguments,error,words", [
    (((2, 3), HERE, lambda i: X[:1]), ValueError, r"Expected shard shape \(2, 3\)"),
    (((2, 3), HERE, lambda i: X, "int8"), ValueError, "dtype is int8"),
    (((2, 3), None, lambda i: X), TypeError, "must be a sharding")])
def test_parts_that_do_not_fit(arguments: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        anima.make_array_from_callback(*arguments)


def test_traced_parts() -> None:
    with pytest.raises(anima.errors.UnexpectedTracerError):
        anima.jit(lambda x: anima.make_array_from_callback((3,), HERE, lambda i: x))(jnp.ones(3))
    with pytest.raises(ValueError, match="traced"):
        anima.jit(lambda x: anima.make_array_from_single_device_arrays((3,), HERE, [x]))(jnp.ones(3))


def test_data_of_this_process() -> None:
    made = anima.make_array_from_process_local_data(HERE, {"a": X, "b": [X[0], 1.0]}, {"a": (2, 3), "b": None})
    anima.tree.map(np.testing.assert_array_equal, made, {"a": X, "b": [X[0], 1.0]})
    assert anima.make_array_from_process_local_data(HERE, X, (2, None)).shape == (2, 3)
    with pytest.raises(ValueError, match=r"or of global_shape, \(4, 3\); got \(2, 3\)"):
        anima.make_array_from_process_local_data(HERE, X, (4, 3))


def test_arrays_of_devices() -> None:
    make, x = anima.make_array_from_single_device_arrays, jnp.array(X)
    for arrays in ([x], (x,)):
        np.testing.assert_array_equal(make((2, 3), HERE, arrays), X)
    for wrong, error in (([x, x], ValueError), ([], ValueError), (x, TypeError), ([X], TypeError)):
        with pytest.raises(error):
            make((2, 3), HERE, wrong)
    with pytest.raises(ValueError, match="Expected shard shape"):
        make((3, 2), HERE, [x])
    with pytest.raises(ValueError, match="dtype is float16"):
        make((2, 3), HERE, [x], dtype="float16")


def test_copies_to_the_host() -> None:
    x = jnp.array(X)
    assert [a is b for a, b in zip(anima.copy_to_host_async([x, "a"]), [x, "a"], strict=True)] == [True, True]


def test_memories() -> None:
    device = anima.devices()[0]
    kinds = [m.kind for m in device.addressable_memories()]
    assert kinds == ["device", "pinned_host", "unpinned_host"]
    assert device.memory("device") == device.default_memory() and device.default_memory().kind == kinds[0]
    assert device.default_memory().addressable_by_devices() == [device]
    assert repr(device.default_memory()) == "CpuDeviceMemory(id=0, process_index=0, client=cpu)"
    with pytest.raises(ValueError, match="Could not find memory 'foo'"):
        device.memory("foo")
    assert device.client.devices() == [device] and device.client.platform == "cpu"
    x = jnp.array(X)
    assert anima.device_put(x, anima.memory.Space.Device) is x
    assert x.format.layout == anima.new_ref(x).format.layout == Layout((0, 1))
    assert anima.new_ref(x).sharding == x.sharding


def test_effects_of_printing() -> None:
    def effects(ordered: bool) -> Any:
        return anima.jit(lambda x: anima.debug.print("{}", x, ordered=ordered)).lower(1.0).jaxpr.effects

    for ordered, kind in ((False, anima.debug.DebugEffect), (True, anima.debug.OrderedDebugEffect)):
        (effect,) = effects(ordered)
        assert type(effect) is kind and pickle.loads(pickle.dumps(effect)) == effect == kind()


def test_shardings_are_told_and_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[Any] = []
    anima.jit(lambda x: anima.debug.inspect_array_sharding([x, x + 1], callback=told.append))(1.0)
    anima.debug.inspect_array_sharding(jnp.ones(3), callback=told.append)
    assert told == [HERE] * 3
    anima.debug.visualize_array_sharding(jnp.ones(3), max_width=9)
    assert capsys.readouterr().out == "┌───────┐\n│ CPU 0 │\n└───────┘\n"
    anima.debug.visualize_sharding((8, 8), HERE)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10 and {len(line) for line in lines} == {20}
    with pytest.raises(ValueError, match="1 and 2 dimensions"):
        anima.debug.visualize_array_sharding(jnp.ones((1, 1, 1)))


def test_gradients_that_are_not_wanted() -> None:
    _, pull = anima.vjp(lambda x, y: x * y, 2.0, 3.0)
    total = anima.new_ref(jnp.float32(1))
    assert str(pull.with_refs(total, anima.ad.DontWant())(1.0)) == "(GradRef(), DidntWant())"
    assert total[...] == 4
    x, y = pull.with_refs(anima.ad.DontWant(), anima.ad.GradValue())(2.0)
    assert isinstance(x, anima.ad.DidntWant) and y == 4
    x, y = anima.jit(lambda ct: pull.with_refs(anima.ad.DontWant(), anima.ad.GradValue())(ct))(2.0)
    assert isinstance(x, anima.ad.DidntWant) and y == 4


def test_references_have_no_cotangents() -> None:
    ref = anima.new_ref(jnp.float32(2))
    _, pull = anima.vjp(lambda r: jnp.sin(r[...]), ref)
    for call in (lambda: pull(1.0), lambda: pull.with_refs(None)(1.0)):
        with pytest.raises(ValueError, match="only arrays have cotangents"):
            call()
    assert str(pull.with_refs(anima.ad.DontWant())(1.0)) == "(DidntWant(),)"


def test_formats_are_places_where_their_order_is_that_of_arrays() -> None:
    x, here = jnp.ones((2, 3)), anima.sharding.SingleDeviceSharding(anima.devices()[0])
    for form in (Format(Layout.AUTO), Format(Layout.AUTO, here), Format(Layout((0, 1)), here), x.format):
        for name in ("in_shardings", "out_shardings"):
            np.testing.assert_array_equal(anima.jit(lambda x: x * 2, **{name: form})(x), np.full((2, 3), 2.0))
    with pytest.raises(NotImplementedError, match="arrays are row-major"):
        anima.jit(jnp.sin, out_shardings=Format(Layout((1, 0)), here))
    with pytest.raises(ValueError, match="a layout that is known"):
        anima.device_put(x, Format(Layout.AUTO))


def test_traced_values_stay_where_they_are_got() -> None:
    assert anima.grad(lambda x: (anima.device_get(x) * 2).sum())(1.0) == 2
    assert anima.jit(lambda x: anima.device_get({"a": x})["a"] * 2)(3.0) == 6


def test_formats_of_texts_are_for_single_numbers() -> None:
    assert f"{jnp.float32(3):.2f}" == "3.00" and f"{jnp.arange(2)}" == "[0 1]"
    assert f"{jnp.float32(0.1)}" == f"{np.float32(0.1)}"
    with pytest.raises(TypeError, match="unsupported format string"):
        format(jnp.arange(3.0), ".3f")


def test_functions_that_take_vectors_apart_are_equal_for_equal_trees() -> None:
    traced = []

    @partial(anima.jit, static_argnums=1)
    def f(x: Any, unravel: Any) -> Any:
        traced.append(1)
        return unravel(x)["a"].sum()

    for value in (1.0, 2.0):
        flat, unravel = ravel_pytree({"a": jnp.full(2, value), "b": jnp.ones(3, int)})
        assert f(flat, unravel) == 2 * value
    assert len(traced) == 1 and unravel != ravel_pytree({"a": jnp.ones(3), "b": jnp.ones(3, int)})[1]
    assert ravel_pytree(())[1](jnp.ones(0)) == () and ravel_pytree(())[1] == ravel_pytree(())[1]
