"""Kinds of memory, which are names of one memory on a CPU: shardings of results keep them, as in JAX 0.10.2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import P
from anima.core.shardings import WHOLE
from anima.sharding import AxisType, Mesh, NamedSharding

pytestmark = pytest.mark.usefixtures("eight_devices")
HOST, DEVICE = anima.memory.Space.Host, anima.memory.Space.Device
X = np.arange(8, dtype=np.float32)
Function = Callable[..., Any]


def to(space: Any) -> Function:
    return lambda x: anima.device_put(x, space)


def on_host(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, P("x"), memory_kind="pinned_host")


@pytest.fixture(params=[AxisType.Auto, AxisType.Explicit])
def mesh(request: pytest.FixtureRequest) -> Mesh:
    return anima.make_mesh((8,), ("x",), axis_types=(request.param,))


CASES: list[tuple[Function, str]] = [
    (lambda h: h, "pinned_host"), (lambda h: h * 2, "pinned_host"), (lambda h: h + h, "pinned_host"),
    (jnp.sin, "pinned_host"), (lambda h: h.astype(np.int32), "pinned_host"),
    (to(DEVICE), "device"), (lambda h: to(DEVICE)(h) * 2, "device"),
    (lambda h: to(HOST)(to(DEVICE)(h) * 2), "pinned_host"),
    (lambda h: anima.jit(lambda a: a * 2)(h), "pinned_host"), (lambda h: anima.jit(to(DEVICE))(h), "device"),
    (lambda h: anima.vmap(lambda a: a * 2)(h), "pinned_host"), (to(anima.memory.Space.Any), "pinned_host"),
]


@pytest.mark.parametrize("transform", [lambda f: f, anima.jit])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_results_of_operands_on_the_host(case: int, transform: Function, mesh: Mesh) -> None:
    f, kind = CASES[case]
    h = anima.device_put(X, on_host(mesh))
    out = transform(f)(h)
    assert out.sharding == on_host(mesh).with_memory_kind(kind)
    np.testing.assert_allclose(out, f(X), rtol=1e-6)
    assert {s.data.sharding.memory_kind for s in out.addressable_shards} == {kind}


@pytest.mark.parametrize("transform", [lambda f: f, anima.jit])
def test_arrays_that_nobody_placed(transform: Function) -> None:
    h, d = transform(lambda x: (to(HOST)(x), to(DEVICE)(to(HOST)(x) * 2)))(X)
    assert h.sharding == WHOLE.with_memory_kind("pinned_host") and h.committed
    assert d.sharding == WHOLE
    np.testing.assert_array_equal(h, X)
    np.testing.assert_array_equal(d, 2 * X)
    again = transform(lambda x, y: x + y)(h, jnp.ones(8))  # the other operand is on the device
    assert again.sharding == WHOLE


def test_gradients_go_back_to_where_their_primals_are(mesh: Mesh) -> None:
    for sharding in (on_host(mesh), on_host(mesh).with_memory_kind("device")):
        x = anima.device_put(X, sharding)
        assert anima.grad(lambda a: (to(DEVICE)(a) ** 2).sum())(x).sharding == sharding
        assert anima.grad(lambda a: (to(HOST)(a) ** 2).sum())(x).sharding == sharding


def test_programs_say_in_which_memory() -> None:
    program = anima.make_jaxpr(lambda x: to(HOST)(x * 2))(X)
    assert program.eqns[-1].params["devices"] == (HOST,) and "devices=(MemorySpace.Host,)" in str(program)
    mesh = anima.make_mesh((8,), ("x",))
    x = anima.device_put(X, NamedSharding(mesh, P("x")))
    inner = anima.jit(to(HOST))
    assert anima.jit(lambda a: (inner(a), a))(x)[0].sharding == on_host(mesh)
    assert anima.jit(lambda a: anima.device_put(a, on_host(mesh)))(x).sharding == on_host(mesh)
