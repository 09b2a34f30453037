"""Computations go where an operand has to stay: numbers and indices, too; gradients go back to where values were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import P, lax
from anima.sharding import Mesh, NamedSharding


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
