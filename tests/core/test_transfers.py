"""Guards of transfers: what is one, at every level, inside and outside of compiled calls."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import config, lax, random
from anima.sharding import NamedSharding, PartitionSpec as P, SingleDeviceSharding

X, N = jnp.arange(3.0), np.arange(3, dtype=np.float32)
KEY = random.key(0)
double = anima.jit(lambda x: 2 * x)
add = anima.jit(lambda x, y: x + y)
compiled = double.lower(X).compile()
ref = anima.new_ref(X)


def _set(value: Any) -> None:
    ref[0] = value


IMPLICIT: dict[str, Callable[[], Any]] = {
    "jit of an array": lambda: double(N), "jit of a number": lambda: add(X, 1.0), "compiled": lambda: compiled(N),
    "x + 1": lambda: X + 1, "1.5 * x": lambda: 1.5 * X, "x @ n": lambda: X @ N, "n < x": lambda: N < X,
    "sin": lambda: jnp.sin(N), "lax.sin": lambda: lax.sin(N), "lax.add": lambda: lax.add(X, 1.0),
    "where": lambda: jnp.where(X > X, X, 0.5), "clip": lambda: jnp.clip(X, 0.25, 1), "array": lambda: jnp.array(N),
    "asarray": lambda: jnp.asarray([1.5, 2.5]), "nested": lambda: jnp.array([[1, 2], [3, 4]]),
    "full": lambda: jnp.full(3, 2.5), "stack": lambda: jnp.stack([X, N]), "key": lambda: random.key(7),
    "indices": lambda: X[np.array([0, 2])], "update": lambda: X.at[0].set(1.5), "reference": lambda: _set(1.5),
    "vmap": lambda: anima.vmap(jnp.sin)(N), "grad": lambda: anima.grad(jnp.sum)(N),
    "jit under grad": lambda: anima.grad(lambda x: jnp.sum(add(x, N)))(X),
    "scan": lambda: lax.scan(lambda c, x: (c + x, x), X[0], N), "checkpoint": lambda: anima.checkpoint(jnp.sin)(N)}
NONE: dict[str, Callable[[], Any]] = {
    "jit": lambda: double(X), "compiled": lambda: compiled(X), "x + x": lambda: X + X, "zeros": lambda: jnp.zeros(3),
    "arange": lambda: jnp.arange(4), "x[0]": lambda: X[0], "x[1:]": lambda: X[1:], "reshape": lambda: X.reshape(3, 1),
    "sum": lambda: jnp.sum(X, axis=0), "var": lambda: jnp.var(X), "softmax": lambda: anima.nn.softmax(X),
    "traced": lambda: anima.jit(lambda x: x + N + 1.5)(X), "make_jaxpr": lambda: anima.make_jaxpr(jnp.sin)(N),
    "eval_shape": lambda: anima.eval_shape(jnp.sin, N), "float": lambda: float(X[0]), "asarray": lambda: np.asarray(X),
    "tolist": lambda: X.tolist(), "normal": lambda: random.normal(KEY, (3,)), "split": lambda: random.split(KEY),
    "grad": lambda: anima.grad(jnp.sum)(X), "device_get": lambda: anima.device_get(X),
    "stack": lambda: jnp.array([X, X]),
    "scan": lambda: lax.scan(lambda c, x: (c + x, x), X[0], X), "solve": lambda: jnp.linalg.norm(X)}
EXPLICIT: dict[str, Callable[[], Any]] = {
    "device_put": lambda: anima.device_put(N), "a number": lambda: anima.device_put(1.5),
    "a tree": lambda: anima.device_put({"a": [N, 1]}, anima.devices()[0])}


@pytest.mark.parametrize("level", ["disallow", "disallow_explicit"])
@pytest.mark.parametrize("name", IMPLICIT)
def test_implicit_ones(name: str, level: str) -> None:
    for _ in range(2):  # before anything is compiled, and after
        for guard in (anima.transfer_guard, anima.transfer_guard_host_to_device):
            with guard(level), pytest.raises(RuntimeError, match=r"^Disallowed host-to-device transfer: a ") as caught:
                IMPLICIT[name]()
            assert "at test_transfers.py" in str(caught.value) and "device_put" in str(caught.value)
        with anima.transfer_guard_device_to_host(level), anima.transfer_guard_device_to_device(level):
            IMPLICIT[name]()


@pytest.mark.parametrize("name", NONE)
def test_what_is_no_transfer(name: str) -> None:
    for _ in range(2):
        with anima.transfer_guard("disallow_explicit"):
            NONE[name]()


@pytest.mark.parametrize("name", EXPLICIT)
def test_explicit_ones(name: str) -> None:
    with anima.transfer_guard("disallow"):
        EXPLICIT[name]()
        with anima.transfer_guard("disallow_explicit"), pytest.raises(RuntimeError, match="Disallowed host-to-device"):
            EXPLICIT[name]()


def test_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "anima"):
        with anima.transfer_guard("log"):
            np.testing.assert_array_equal(double(N), 2 * N)
            anima.device_put(N)
        assert [r.getMessage().partition(", at ")[0] for r in caplog.records] == [
            "host-to-device transfer: a numpy.ndarray of dtype float32 and shape (3,)"]
        with anima.transfer_guard("log_explicit"):
            anima.device_put(1.5), double(1.5)
        assert [r.getMessage().partition(", at ")[0] for r in caplog.records[1:]] == [
            "host-to-device transfer: a Python float"] * 2


def test_a_guard_is_of_its_thread_and_of_no_trace() -> None:
    traced, seen = [], []
    f = anima.jit(lambda x: traced.append(x) or 2 * x)
    f(X)
    with anima.transfer_guard("disallow"):
        thread = threading.Thread(target=lambda: seen.append(f(N)))
        thread.start(), thread.join()
        with pytest.raises(RuntimeError, match="Disallowed"):
            f(N)
        with anima.transfer_guard("allow"):
            np.testing.assert_array_equal(f(N), seen[0])
        np.testing.assert_array_equal(f(X), seen[0])
    assert len(traced) == 1


def test_for_all_threads() -> None:
    config.update("anima_transfer_guard", "disallow")
    try:
        with pytest.raises(RuntimeError, match="Disallowed"):
            double(N)
        double(X)
    finally:
        config.update("anima_transfer_guard", None)
    double(N)


def test_between_devices(eight_devices: list[anima.Device]) -> None:
    one, two = eight_devices[:2]
    mesh = anima.make_mesh((2,), ("a",), (anima.sharding.AxisType.Auto,), devices=[one, two])
    x = jnp.arange(4.0)
    cut = anima.device_put(x, NamedSharding(mesh, P("a")))
    there = anima.jit(lambda x: x + 1, in_shardings=NamedSharding(mesh, P("a")))
    elsewhere = anima.jit(lambda x: x, out_shardings=SingleDeviceSharding(two))
    for implicit in (lambda: cut + x, lambda: there(x), lambda: elsewhere(x)):
        implicit()
        with anima.transfer_guard_device_to_device("disallow"), \
                pytest.raises(RuntimeError, match="Disallowed device-to-device transfer: float32"):
            implicit()
    with anima.transfer_guard("disallow"):
        there(cut), cut + cut, anima.device_put(x, two)
    with anima.transfer_guard("disallow_explicit"):
        anima.device_put(x, one)
        for place in (two, NamedSharding(mesh, P())):
            with pytest.raises(RuntimeError, match="Disallowed device-to-device"):
                anima.device_put(x, place)
