"""The training step of the example on 8 devices, each with a part of the batch: the weights are those of one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import train_digits as example

import anima
from anima import P, lax

SIZES, STEPS, BATCH, RATE = [64, 32, 10], 30, 64, 1e-2


@pytest.fixture(scope="module")
def batches() -> list[tuple[Any, Any]]:
    train, _ = example.load_digits(0.2, anima.random.key(0))
    return [(train.images[k * BATCH:(k + 1) * BATCH], train.labels[k * BATCH:(k + 1) * BATCH]) for k in range(10)]


def trained(step: Callable[..., Any], batches: list[tuple[Any, Any]]) -> tuple[list[np.ndarray], float]:
    """The weights after some steps, and the last loss."""
    params = example.init_mlp(anima.random.key(1), SIZES)
    state, value = example.Adam.init(params), 0.0
    for k in range(STEPS):
        params, state, value = step(params, state, *batches[k % len(batches)])
    return [np.asarray(x) for x in anima.tree.leaves(params)], float(value)


def whole_update(params: Any, state: Any, value: Any, grads: Any) -> Any:
    """What each device does with the mean of the losses and of the gradients."""
    return (*state.update(grads, params, RATE), value)


def test_same_weights(eight_devices: list[anima.Device], batches: list[tuple[Any, Any]]) -> None:
    expected, value = trained(anima.jit(example.make_step(RATE)), batches)
    mesh = anima.sharding.Mesh(np.array(eight_devices), ("x",))

    def by_types(params: Any, state: Any, images: Any, labels: Any) -> Any:
        total = anima.value_and_grad(lambda p: lax.pmean(example.loss(p, images, labels), "x"))
        return whole_update(params, state, *total(params))

    def by_hand(params: Any, state: Any, images: Any, labels: Any) -> Any:
        return whole_update(params, state, *lax.pmean(anima.value_and_grad(example.loss)(params, images, labels), "x"))

    specs = (P(), P(), P("x"), P("x"))
    mapped = anima.pmap(by_hand, "x", in_axes=(None, None, 0, 0), out_axes=None)
    steps = {
        "types": anima.jit(anima.shard_map(by_types, mesh=mesh, in_specs=specs, out_specs=P())),
        "unchecked": anima.jit(anima.shard_map(by_hand, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)),
        "pmap": lambda p, s, x, y: mapped(p, s, x.reshape(8, -1, 64), y.reshape(8, -1))}
    for way, step in steps.items():
        weights, last = trained(step, batches)
        np.testing.assert_allclose(last, value, rtol=1e-4, err_msg=way)
        for mine, theirs in zip(weights, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, atol=2e-4, err_msg=way)
        again, _ = trained(step, batches)
        for a, b in zip(weights, again, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=way)
