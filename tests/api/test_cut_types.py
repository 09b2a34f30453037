"""How results and gradients are cut, found by random programs on meshes: types along Explicit axes, and propagation."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import P, lax
from anima.sharding import AxisType, Mesh, NamedSharding

pytestmark = pytest.mark.usefixtures("eight_devices")
X = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)


def explicit(*sizes: int) -> Mesh:
    return anima.make_mesh(sizes, ("x", "y", "z")[:len(sizes)])


def auto(*sizes: int) -> Mesh:
    return anima.make_mesh(sizes, ("x", "y", "z")[:len(sizes)], axis_types=(AxisType.Auto,) * len(sizes))


@pytest.mark.parametrize(("before", "spec", "after", "expected"), [
    ((4, 4, 4), P("x", "y", "z"), (64,), "64@(x,y,z)"), ((4, 4, 4), P("x", "y"), (64,), "64@(x,y)"),
    ((4, 4, 4), P("x", "y", "z"), (16, 4), "16@(x,y),4@z"), ((4, 4, 4), P(None, "x", "y"), (4, 16), "4,16@(x,y)"),
    ((4, 4, 4), P("x", ("y", "z")), (16, 4), "16@(x,y,z),4"), ((4, 4, 4), P("x", None, "y"), (64,), None),
    ((4, 4, 4), P(None, "x"), (64,), None), ((4, 4, 4), P(None, "x"), (16, 4), None),
    ((64,), P(("x", "y", "z")), (2, 32), "2@x,32@(y,z)"), ((64,), P(("x", "y", "z")), (2, 2, 16), "2@x,2@y,16@z"),
    ((64,), P(("x", "y", "z")), (4, 16), "4@(x,y),16@z"), ((64,), P(("x", "y", "z")), (8, 8), "8@(x,y,z),8"),
    ((64,), P(("y", "x")), (2, 1, 32), "2@y,1,32@x"), ((12,), P(("x", "y")), (2, 6), "2@x,6@y"),
    ((12,), P(("x", "y")), (6, 2), None), ((12,), P("x"), (3, 4), None)])
def test_reshapes_of_cut_dimensions(before: tuple[int, ...], spec: P, after: tuple[int, ...],
                                    expected: str | None) -> None:
    """The first axes cut the first factors, and what is cut before what is not goes together."""
    mesh, values = explicit(2, 2, 2), np.arange(np.prod(before), dtype=np.float32).reshape(before)
    x = anima.device_put(values, NamedSharding(mesh, spec))
    if expected is None:
        with pytest.raises(anima.errors.ShardingTypeError, match=r"This reshape is not supported.*out_sharding"):
            x.reshape(after)
        return
    y = x.reshape(after)
    assert str(anima.typeof(y)) == f"float32[{expected}]"
    np.testing.assert_array_equal(y, values.reshape(after))
    program = anima.jit(lambda x: x.reshape(after)).lower(x).partitioned
    np.testing.assert_array_equal(program(x), values.reshape(after))


@pytest.mark.parametrize("spec", [P("x"), P(None, "x"), P("x", "y"), P(("x", "y"))])
@pytest.mark.parametrize("jit", [anima.jit, lambda f: f])
def test_gradients_of_products_are_cut_as_operands(spec: P, jit: Callable[..., Any]) -> None:
    """Also where both factors of the adjoint's product are cut along what it sums over, as a batch is."""
    mesh = explicit(4, 2)

    def loss(x: Any, w: Any) -> Any:
        return jnp.sum(jnp.tanh(x @ w))

    expected = anima.grad(loss, (0, 1))(X, X[:, :3])
    with anima.set_mesh(mesh):
        x, w = anima.device_put(X, NamedSharding(mesh, spec)), anima.device_put(X[:, :3], NamedSharding(mesh, P()))
        found = jit(anima.grad(loss, (0, 1)))(x, w)
        assert [g.sharding for g in found] == [t.sharding.update(spec=t.aval.sharding.spec) for t in (x, w)]
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6)
        program = anima.jit(anima.grad(loss, 1)).lower(x, w).partitioned
        np.testing.assert_allclose(program(x, w), expected[1], rtol=2e-6, atol=2e-6)


def test_gradients_of_ambiguous_squares() -> None:
    """Adjoints that types alone would refuse: 8,8@x times 8,8@x."""
    mesh = explicit(2)
    with anima.set_mesh(mesh):
        x = anima.device_put(X, NamedSharding(mesh, P("x")))
        found = anima.jit(anima.grad(lambda x: jnp.sum(jnp.sin(x.T @ x.T))))(x)
    assert found.sharding.spec == P("x", None)
    np.testing.assert_allclose(found, anima.grad(lambda x: jnp.sum(jnp.sin(x.T @ x.T)))(X), rtol=1e-5, atol=1e-5)


def test_parameters_that_are_named_tuples_stay_so_in_mapped_programs() -> None:
    """The gradient of a sort scatters: its dimension numbers have names."""
    mesh = auto(2, 2)

    def f(x: Any, y: Any) -> Any:
        return jnp.sort(x), lax.ppermute(y, "y", [(0, 1), (1, 0)])

    mapped = anima.shard_map(f, mesh=mesh, in_specs=(P(), P("y")), out_specs=(P(), P("y")))
    found = anima.jit(anima.grad(lambda x, y: sum(jnp.sum(jnp.sin(t)) for t in mapped(x, y))))(X[0], X[1])
    np.testing.assert_allclose(found, np.cos(X[0]), rtol=1e-6)


def test_operands_of_mapped_functions_are_cut_as_they_are_taken() -> None:
    mesh = auto(4, 2)
    mapped = anima.shard_map(lambda a: a + 1, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    ignored = anima.shard_map(lambda a, b: b, mesh=mesh, in_specs=(P("x"), P("y")), out_specs=P("y"))
    specs = [y.sharding.spec for y in anima.jit(lambda x: (mapped(x * 2), x * 2, x))(X)]
    assert specs == [P("x")] * 3
    assert [y.sharding.spec for y in anima.jit(lambda x: (ignored(x, jnp.ones(4)), x))(X)] == [P("y"), P()]
    carried = anima.jit(lambda x: lax.scan(lambda c, _: (c * 0.5, mapped(c)), x, None, length=2))(X)
    assert [y.sharding.spec for y in carried] == [P("x"), P(None, "x")]


def test_what_nothing_needs_says_nothing_of_places() -> None:
    mesh = auto(4, 2)

    def f(x: Any) -> Any:
        lax.with_sharding_constraint(x * 2, NamedSharding(mesh, P("x")))
        return x + 1

    assert isinstance(anima.jit(f)(X).sharding, anima.sharding.SingleDeviceSharding)
    x = anima.device_put(X, NamedSharding(mesh, P()))
    assert isinstance(anima.jit(anima.grad(lambda x: jnp.sum(lax.stop_gradient(x))))(x).sharding,
                      anima.sharding.SingleDeviceSharding)


@pytest.mark.parametrize(("shape", "spec", "found"), [
    ((17,), P("x"), P()), ((6,), P(("y", "x")), P("y")), ((7, 8), P("y", "x"), P(None, "x")),
    ((8, 3), P("y"), P("y"))])
def test_results_are_cut_as_far_as_they_divide(shape: tuple[int, ...], spec: P, found: P) -> None:
    mesh, x = auto(4, 2), np.arange(np.prod(shape), dtype=np.float32).reshape(shape)

    def f(x: Any) -> Any:
        return lax.with_sharding_constraint(x, NamedSharding(mesh, spec))

    for g in (f, lambda x: f(x) * 2, anima.grad(lambda x: jnp.sum(f(x) ** 2))):
        y = anima.jit(g)(x)
        assert y.sharding == NamedSharding(mesh, found)
        assert len(y.addressable_shards) == 8


def test_shapes_are_plain_numbers() -> None:
    x = jnp.ones((2, 4, 4))
    inner = anima.vmap(lambda x, y: y + y, in_axes=(0, None), out_axes=-1, axis_name="i")
    found = [anima.vmap(inner, axis_name="j")(jnp.ones((2, 3)), x),
             anima.vmap(lambda x, y: y, (0, None), axis_name="i")(jnp.ones(3), x),
             anima.vmap(lambda x: x.reshape(-1), axis_name="i")(x), anima.vmap(lambda x: x[1:], axis_name="i")(x),
             anima.vmap(lambda i: x[i], axis_name="i")(jnp.arange(2)),
             anima.vmap(lambda x: lax.all_gather(x, "i", tiled=True), axis_name="i")(x),
             anima.vmap(anima.vmap(lambda x, y: lax.pshuffle(y, "i", [2, 0, 1]), (0, None), -1, axis_name="i"))(
                 jnp.ones((2, 3)), jnp.ones((2, 4)))]
    for y in found:
        assert [type(n) for n in y.shape] == [int] * y.ndim
        assert pickle.loads(pickle.dumps(y.shape)) == y.shape


@pytest.mark.parametrize("transform", [lambda f: f, anima.jit])
def test_gradients_that_are_summed_once_for_all(transform: Callable[..., Any]) -> None:
    """Of weights that are `reduced` along an axis, gradients are unreduced: their sum over it is taken later."""
    mesh = explicit(2, 4)

    def loss(w: Any, x: Any) -> Any:
        return (jnp.dot(x, w, out_sharding=P("x", None)) ** 2).sum()

    def summed(w: Any, batches: Any) -> Any:
        w = anima.reshard(w, P(None, None, reduced={"x"}))
        first = anima.reshard(jnp.zeros((8, 8)), P(None, None, unreduced={"x"}))
        total = lax.scan(lambda c, x: (c + anima.grad(loss)(w, x), None), first, batches)[0]
        return anima.reshard(total, P(None, None))

    with anima.set_mesh(mesh):
        x = anima.device_put(X, P("x", "y"))
        w = anima.reshard(anima.device_put(X.T, P("y", None)), P("y", None, reduced={"x"}))
        found = transform(anima.grad(loss))(w, x)
        assert found.sharding.spec == P("y", None, unreduced={"x"})
        np.testing.assert_allclose(found, 2 * X.T @ X @ X.T, rtol=1e-4, atol=1e-4)
        batches = jnp.stack([anima.device_put(X, P("x", None))] * 2)
        total = transform(summed)(anima.device_put(X.T, P()), batches)
        assert total.sharding.spec == P(None, None)
        np.testing.assert_allclose(total, 4 * X.T @ X @ X.T, rtol=1e-4, atol=1e-4)
