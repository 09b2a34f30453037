"""Where results lie for which somebody asked: whatever mesh is set, in whatever way a function runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import P, lax
from anima.core.device import devices
from anima.core.partition import axes_of
from anima.sharding import AxisType, Mesh, NamedSharding, SingleDeviceSharding

pytestmark = pytest.mark.usefixtures("eight_devices")

SIZES = {"small": (2,), "large": (4,), "square": (2, 2), "long": (4, 2)}


def mesh_of(name: str, kind: AxisType) -> Mesh:
    sizes = SIZES[name]
    count = int(np.prod(sizes))
    return Mesh(np.array(devices()[:count]).reshape(sizes), ("x", "y")[:len(sizes)], (kind,) * len(sizes))


@pytest.mark.parametrize("way", [lambda f: f, anima.jit, lambda f: anima.jit(lambda: anima.jit(f)())],
                         ids=["eager", "jit", "jit in jit"])
@pytest.mark.parametrize("asked", SIZES)
@pytest.mark.parametrize("current", [None, *SIZES])
def test_what_is_made_lies_on_the_mesh_that_was_asked_for(current: str | None, asked: str,
                                                          way: Callable[..., Any]) -> None:
    mesh = mesh_of(asked, AxisType.Explicit)
    specs = [P("x", None), P(None, "x"), P(None, None)] + [P("y", "x"), P(("y", "x"), None)] * (len(SIZES[asked]) > 1)
    for spec in specs:
        where = NamedSharding(mesh, spec)
        made = way(lambda where=where: jnp.ones((8, 8), out_sharding=where))
        if current is None:
            found = made()
        else:
            with anima.set_mesh(mesh_of(current, AxisType.Explicit)):
                found = made()
        assert found.sharding == where
        np.testing.assert_array_equal(found, np.ones((8, 8)))


def divided(spec: P, shape: tuple[int, ...], mesh: Mesh) -> list[tuple[Any, ...]]:
    """For each dimension the longest beginning of its axes into whose number of parts it divides."""
    found = []
    for size, axes in zip(shape, (*map(axes_of, spec), (), ()), strict=False):
        counts = list(itertools.accumulate([mesh.shape[a] for a in axes], lambda a, b: a * b, initial=1))
        keep = next(k for k in reversed(range(len(counts))) if size % counts[k] == 0)
        found.append(tuple(axes[:keep]))
    return found


@pytest.mark.parametrize("shape", [(8, 4), (2, 3), (3, 8), (4, 1), (0, 2), (6, 6)])
@pytest.mark.parametrize("spec", [P("x"), P("y"), P(None, "x"), P("x", "y"), P("y", "x"), P(("x", "y")), P(("y", "x")),
                                  P(None, ("y", "x"))], ids=str)
def test_constraints_are_obeyed_as_far_as_dimensions_divide(spec: P, shape: tuple[int, ...]) -> None:
    """In programs; at once, those that do not divide are refused."""
    mesh = mesh_of("long", AxisType.Auto)
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    placed = anima.device_put(x, NamedSharding(mesh, P()))

    def constrained(x: Any) -> Any:
        return lax.with_sharding_constraint(x, NamedSharding(mesh, spec))

    wanted = divided(spec, shape, mesh)
    if wanted == list(map(axes_of, spec.padded(2))):
        assert constrained(placed).sharding == NamedSharding(mesh, spec)
    else:
        with pytest.raises(ValueError, match="should evenly divide the shape"):
            constrained(placed)
    found = anima.jit(constrained)(placed)
    assert list(map(axes_of, found.sharding.spec.padded(2))) == wanted
    np.testing.assert_array_equal(found, x)


@pytest.mark.parametrize("sizes", [(4, 2, 1), (1, 2, 2), (2, 2, 2)])
def test_which_axes_hold_the_same(sizes: tuple[int, ...]) -> None:
    """Those that cut nothing, and along which nothing is left to be summed; an axis of one device cuts nothing."""
    count = int(np.prod(sizes))
    mesh = Mesh(np.array(devices()[:count]).reshape(sizes), ("x", "y", "z"), (AxisType.Explicit,) * 3)
    for cut, unreduced in itertools.product(((), ("x",), ("y",), ("z",), ("z", "x"), ("x", "y", "z")),
                                            ((), ("x",), ("y",), ("y", "z"))):
        if set(cut) & set(unreduced):
            continue
        where = NamedSharding(mesh, P(None, cut, unreduced=set(unreduced)))
        assert where.replicated_axes == {"x", "y", "z"} - {*cut} - {*unreduced}
        indices = where.indices((8, 8))
        assert where.is_fully_replicated == all(i == indices[0] for i in indices)
        parts = int(np.prod([mesh.shape[a] for a in cut]))
        assert all(i[0] == slice(None) and (i[1] == slice(None)) == (parts == 1) for i in indices)
        assert where.shard_shape((8, 8)) == (8, 8 // parts)


X = np.arange(16, dtype=np.float32)
WHOLE = np.arange(16).reshape(8, 2)
IMAGES, KERNELS = X.reshape(8, 1, 2, 1), np.full((2, 1, 1, 1), 3, np.float32)
ASKED: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "reshape": (lambda w: jnp.reshape(X, (8, 2), out_sharding=w), X.reshape(8, 2)),
    "reshape by columns": (lambda w: jnp.reshape(X, (8, 2), "F", out_sharding=w), X.reshape((8, 2), order="F")),
    "broadcast_to": (lambda w: jnp.broadcast_to(X[:2], (8, 2), out_sharding=w), np.stack([X[:2]] * 8)),
    "repeat": (lambda w: jnp.repeat(X.reshape(2, 8), 4, 0, out_sharding=w), np.repeat(X.reshape(2, 8), 4, 0)),
    "repeat to a size": (lambda w: jnp.repeat(X[:4], 3, total_repeat_length=8, out_sharding=w),
                         [0, 0, 0, 1, 1, 1, 2, 2]),
    "bincount": (lambda w: jnp.bincount(np.array([0, 3, 3]), X[1:4], 8, out_sharding=w), [1, 0, 0, 5, 0, 0, 0, 0]),
    "bincount to a size": (lambda w: jnp.bincount(np.array([0, 9]), length=8, out_sharding=w), [1] + [0] * 7),
    "matmul": (lambda w: jnp.matmul(X.reshape(8, 2), X.reshape(2, 8), out_sharding=w),
               X.reshape(8, 2) @ X.reshape(2, 8)),
    "matmul in integers": (lambda w: jnp.matmul(WHOLE.astype("int8"), WHOLE[:2].astype("int8"),
                                                preferred_element_type="int32", out_sharding=w), WHOLE @ WHOLE[:2]),
    "tensordot": (lambda w: jnp.tensordot(X.reshape(2, 8), X.reshape(2, 8), ((0,), (0,)), out_sharding=w),
                  X.reshape(2, 8).T @ X.reshape(2, 8)),
    "ones_like": (lambda w: jnp.ones_like(X, "int32", (8,), out_sharding=w), np.ones(8)),
    "lax.broadcast_in_dim": (lambda w: lax.broadcast_in_dim(X[:8], (8, 2), (0,), out_sharding=w),
                             np.stack([X[:8]] * 2, 1)),
    "lax.broadcast": (lambda w: lax.broadcast(X[:2], (8,), out_sharding=w), np.stack([X[:2]] * 8)),
    "lax.reduce_sum": (lambda w: lax.reduce_sum(X.reshape(8, 2), (1,), out_sharding=w), X.reshape(8, 2).sum(1)),
    "lax.full": (lambda w: lax.full((8,), 3, "float32", sharding=w), np.full(8, 3)),
    "lax.full_like": (lambda w: lax.full_like(X, 3, "int32", (8, 1), sharding=w), np.full((8, 1), 3)),
    "lax.empty": (lambda w: lax.empty((8, 3), "int32", out_sharding=w), np.zeros((8, 3))),
    "lax.conv_general_dilated": (
        lambda w: lax.conv_general_dilated(IMAGES, KERNELS, (1, 1), "VALID", out_sharding=w),
        np.concatenate([IMAGES * 3, IMAGES * 3], 1)),
}


@pytest.mark.parametrize("name", ASKED)
def test_functions_that_can_be_asked_for_a_place(name: str) -> None:
    """All other arguments still mean what they mean."""
    call, want = ASKED[name]
    where = NamedSharding(mesh_of("large", AxisType.Explicit), P("x"))
    got, plain = call(where), call(None)
    assert got.sharding.is_equivalent_to(where, got.ndim) and not plain.sharding.is_equivalent_to(where, got.ndim)
    assert got.dtype == plain.dtype
    for found in (got, plain):
        np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("dtype", [None, "float16"])
@pytest.mark.parametrize("make", [jnp.full_like, lax.full_like])
def test_what_is_like_an_array_lies_beside_it(make: Callable[..., Any], dtype: str | None) -> None:
    x = anima.device_put(X, NamedSharding(mesh_of("large", AxisType.Auto), P("x")))
    got = make(x, 3.5, dtype)
    assert got.sharding == x.sharding and got.dtype == (dtype or "float32")
    np.testing.assert_array_equal(got, np.full(16, 3.5))


def test_functions_that_can_be_asked_for_a_device() -> None:
    for make in (jnp.empty_like, jnp.ones_like):
        got = make(X, "int32", (3,), device=devices()[2])
        assert got.devices() == {devices()[2]} and got.shape == (3,) and got.dtype == np.int32


@pytest.mark.parametrize("before, spec, after, want", [
    ((6, 4), P("x"), (4, 6), "4@x,6"), ((12, 3), P("x"), (6, 6), "6@x,6"),
    ((64,), P(("x", "y")), (2, 2, 16), "2@x,2@y,16"),
    ((64,), P(("x", "y")), (4, 16), "4@(x,y),16"), ((64,), P(("x", "y")), (2, 32), "2@x,32@y"),
    ((4, 4), P("x", "y"), (16,), None), ((4, 3), P(("x", "y")), (12,), "12@(x,y)"), ((3, 4), P(None, "x"), (12,), None),
    ((12, 3), P(("x", "y")), (6, 6), None), ((48,), P(("x", "y")), (6, 8), None),
    ((2, 1, 3), P("x"), (2, 3), "2@x,3"), ((2, 3), P("x"), (1, 2, 3, 1), "1,2@x,3,1")])
def test_reshapes_of_what_is_cut(before: tuple[int, ...], spec: P, after: tuple[int, ...], want: str | None) -> None:
    """The axes go where their factors of the dimensions go; where there is no one answer, the function asks."""
    mesh = mesh_of("square", AxisType.Explicit)
    x = np.arange(np.prod(before), dtype=np.float32).reshape(before)
    placed = anima.device_put(x, NamedSharding(mesh, spec))
    for reshape in (jnp.reshape, anima.jit(jnp.reshape, static_argnums=1)):
        try:
            got = reshape(placed, after)
        except Exception as error:
            assert want is None and "This reshape is not supported. Please specify the sharding" in str(error)
            continue
        np.testing.assert_array_equal(got, x.reshape(after))
        assert want is None or anima.typeof(got).str_short() == f"float32[{want}]"


def test_places_of_mapped_and_derived_functions() -> None:
    x = X.reshape(2, 8)
    where = [devices()[1], anima.sharding.SingleDeviceSharding(devices()[2])]
    for place, device in zip(where, devices()[1:3], strict=True):
        got = anima.vmap(lambda v, p=place: anima.device_put(v, p) * 2)(x)
        np.testing.assert_array_equal(got, x * 2)
        assert anima.vmap(lambda v, p=place: anima.device_put(v, p))(x).devices() == {device}
        np.testing.assert_array_equal(anima.grad(lambda v, p=place: (anima.device_put(v, p) * v).sum())(x), 2 * x)
    for axis, spec in ((0, P("x")), (1, P("x"))):
        named = NamedSharding(mesh_of("large", AxisType.Auto), spec)
        got = anima.vmap(lambda v, n=named: anima.device_put(v, n), in_axes=axis, out_axes=axis)(X.reshape(4, 4))
        np.testing.assert_array_equal(got, X.reshape(4, 4))
        assert list(map(axes_of, got.sharding.spec.padded(2))) == [() if k == axis else ("x",) for k in range(2)]


def test_the_sharding_of_a_type_that_says_nothing_asks_for_nothing() -> None:
    x = jnp.ones((1, 3))
    nothing = anima.typeof(x).sharding
    for made in (anima.random.normal(anima.random.key(0), (1, 3), out_sharding=nothing),
                 jnp.zeros(3, out_sharding=nothing), jnp.arange(3.0, device=nothing),
                 x.reshape(3, out_sharding=nothing), jnp.einsum("ij,j->i", x, x[0], out_sharding=nothing)):
        assert not made.committed and isinstance(made.sharding, anima.sharding.SingleDeviceSharding)
        np.testing.assert_array_equal(made + made, 2 * np.asarray(made))
    for put in (anima.device_put, lax.with_sharding_constraint):
        with pytest.raises(ValueError, match="which devices these are is not known"):
            put(x, nothing)


def test_a_device_within_a_program_is_a_wish() -> None:
    """As in JAX: the program runs where its arguments are (as PyMC counts on); a sharding is not."""
    one, other = devices()[:2]
    mesh = Mesh(np.array([one, other]), "x")
    cut = anima.device_put(np.arange(4.0, dtype=np.float32), NamedSharding(mesh, P("x")))
    put = anima.jit(lambda x: anima.device_put(x, one) * 2)
    assert put(cut).tolist() == [0, 2, 4, 6] and put(cut).devices() == {one, other}
    assert put(anima.device_put(np.ones(2, np.float32), other)).devices() == {other}
    kept = anima.jit(lambda x: anima.device_put(x, SingleDeviceSharding(other)) * 2)
    assert kept(np.ones(2, np.float32)).devices() == {other}
    with pytest.raises(ValueError, match="incompatible devices"):
        kept(cut)
