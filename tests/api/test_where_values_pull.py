"""Computations go where an operand has to stay: numbers and indices, too; gradients go back to where values were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import P, lax
from anima.sharding import AxisType, Mesh, NamedSharding, SingleDeviceSharding


@pytest.mark.parametrize("code", [
    "x + w", "w * np.ones(3)", "jnp.maximum(x, w)", "jnp.clip(x, w)", "w.astype(float)", "jnp.float32(w)",
    "jnp.array(w)", "jnp.array([w, w])", "jnp.full_like(x, w)", "lax.full_like(x, w)", "x[w]", "x[v]", "m[:, w]",
    "m[v, w]", "x.at[w].set(2.0)", "x.at[w].get()", "jnp.take(x, w)", "lax.dynamic_slice(x, (w,), (1,))",
    "jnp.zeros_like(v, shape=(2, 2))", "lax.full_like(v, 1, shape=())", "anima.grad(lambda a: (a * w).sum())(x)",
    "anima.vjp(lambda a: a * w, x)[1](x)[0]", "anima.linearize(lambda a: a * w, x)[1](x)"])
def test_numbers_and_indices_that_stay_where_they_are(code: str, eight_devices: list[anima.Device]) -> None:
    place = eight_devices[1]
    names: dict[str, Any] = {"anima": anima, "jnp": jnp, "lax": lax, "np": np, "x": jnp.arange(3.0) + 1,
                             "m": jnp.ones((3, 3))}
    here = eval(code, {**names, "w": jnp.asarray(1), "v": jnp.array([0, 1])})
    there = eval(code, {**names, "w": anima.device_put(1, place), "v": anima.device_put(np.array([0, 1]), place)})
    assert there.devices() == {place} and there.committed and there.dtype == here.dtype
    np.testing.assert_array_equal(there, here)


def test_numbers_on_several_devices_do_not_go_together(eight_devices: list[anima.Device]) -> None:
    one, other = (anima.device_put(1.0, d) for d in eight_devices[1:3])
    with pytest.raises(ValueError, match="incompatible devices"):
        one + other


def test_gradients_go_back_to_where_values_were(eight_devices: list[anima.Device]) -> None:
    first, second = (NamedSharding(Mesh(d, "x"), P()) for d in (eight_devices[:4], eight_devices[4:]))

    def staged(x: Any) -> Any:
        y = anima.device_put(anima.jit(lambda x: x * 2)(x), second)
        return anima.device_put(anima.jit(lambda y: y * 3)(y), eight_devices[1])

    slope = anima.grad(staged)(anima.device_put(2.0, first))
    assert slope == 6 and slope.sharding.device_set == first.device_set
    free = anima.grad(lambda x: (anima.device_put(x, eight_devices[1]) * x).sum())(jnp.ones(3))
    assert free.devices() == {eight_devices[1]}
    free = anima.grad(lambda x: anima.device_put(x * 2, eight_devices[1]).sum())(jnp.ones(3))
    assert free.devices() == {eight_devices[0]} and not free.committed
    told = anima.grad(lambda x: anima.device_put(x, second, src=eight_devices[3]))(1.0)
    assert told.devices() == {eight_devices[3]}


@pytest.mark.parametrize("option", ["device", "out_shardings"])
def test_transformed_calls_are_on_the_device_that_jit_was_given(option: str, eight_devices: list[anima.Device]) -> None:
    place = eight_devices[3]
    f = anima.jit(lambda x: x * 3, **{option: place if option == "device" else SingleDeviceSharding(place)})
    x = jnp.ones(2)
    for found in (anima.vmap(f)(x), anima.jvp(f, (x,), (x,))[1], anima.grad(lambda x: f(x).sum())(x),
                  anima.linearize(f, x)[0]):
        assert found.devices() == {place} and found.committed
        np.testing.assert_array_equal(found, [3, 3])


def test_what_is_told_of_results_before_they_are_computed(eight_devices: list[anima.Device]) -> None:
    mesh = Mesh(eight_devices[:2], "x")
    rows, x = NamedSharding(mesh, P("x")), jnp.arange(8.0)
    asked = anima.jit(lambda x: x * 2, out_shardings=rows)
    told = [asked.lower(x).compile().out_info, asked.lower(x).out_info, asked.trace(x).out_info, asked.eval_shape(x)]
    assert [s.sharding for s in told] == [rows] * 4
    plain = anima.jit(lambda x: x * 2)
    assert plain.lower(anima.device_put(x, rows)).compile().out_info.sharding == rows


def test_shardings_that_cannot_be_asked_for(eight_devices: list[anima.Device]) -> None:
    mesh = Mesh(eight_devices[:2], "x")
    free = NamedSharding(mesh, P(P.UNCONSTRAINED, None))
    for name in ("in_shardings", "out_shardings"):
        with pytest.raises(ValueError, match=f"Unconstrained dims are not allowed when passed to {name}"):
            anima.jit(lambda x: x, **{name: free})  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="the context mesh cannot be empty"):
        anima.ShapeDtypeStruct((16,), "float32", sharding=P("x"))
    with pytest.raises(ValueError, match="sharding should be an instance of"):
        anima.ShapeDtypeStruct((16,), "float32", sharding=3)
    with pytest.raises(ValueError, match="only valid for values of rank at least 1"):
        anima.ShapeDtypeStruct((), "float32", sharding=NamedSharding(mesh, P("x")))
    with anima.set_mesh(mesh):
        assert anima.ShapeDtypeStruct((16,), "float32", sharding=P("x")).sharding == NamedSharding(mesh, P("x"))


@pytest.mark.parametrize("around", [
    anima.checkpoint, lambda f: lambda x: lax.cond(True, f, lambda x: x, x), lambda f: f],
                         ids=["checkpoint", "cond", ""])
def test_programs_that_say_where_their_values_are(around: Any, eight_devices: list[anima.Device]) -> None:
    mesh = Mesh(eight_devices[:2], "x")
    f = around(anima.shard_map(jnp.sin, mesh=mesh, in_specs=P("x"), out_specs=P("x")))
    x = jnp.arange(8.0)
    for found in (f(x), anima.grad(lambda x: f(x).sum())(x), anima.jvp(f, (x,), (x,))[1]):
        assert found.sharding == NamedSharding(mesh, P("x"))
    np.testing.assert_allclose(anima.grad(lambda x: f(x).sum())(x), np.cos(np.arange(8.0)), rtol=1e-6)


def test_arrays_like_a_description_lie_where_that_says(eight_devices: list[anima.Device]) -> None:
    auto = Mesh(np.array(eight_devices).reshape(4, 2), ("x", "y"))
    explicit = Mesh(auto.devices, auto.axis_names, axis_types=(AxisType.Explicit,) * 2)
    make = (jnp.zeros_like, jnp.ones_like, jnp.empty_like, lambda s: jnp.full_like(s, 2), lambda s: lax.full_like(s, 2),
            lambda s: jnp.zeros_like(s, dtype="int32"), lambda s: jnp.zeros_like(s, shape=(8, 16)))
    rows = NamedSharding(auto, P("x", None))
    struct = anima.ShapeDtypeStruct((8, 16), "float32", sharding=rows)
    assert all(f(struct).sharding == rows for f in make)
    assert not isinstance(jnp.zeros_like(struct, shape=(4, 4)).sharding, NamedSharding)
    assert jnp.zeros_like(jnp.zeros_like(struct), shape=(8, 16)).sharding == rows
    abstract = anima.ShapeDtypeStruct((8, 16), "float32", sharding=NamedSharding(explicit.abstract_mesh, P("x", None)))
    assert not isinstance(jnp.zeros_like(abstract).sharding, NamedSharding)  # of no devices
    with anima.set_mesh(explicit):
        assert all(f(abstract).sharding == NamedSharding(explicit, P("x", None)) for f in make)
        assert anima.jit(lambda: jnp.zeros_like(abstract))().sharding.spec == P("x", None)
        assert anima.typeof(abstract).sharding.spec == P("x", None)
        for f in (lambda a: a * 2, jnp.zeros_like):
            assert anima.eval_shape(f, abstract).sharding.spec == P("x", None)
