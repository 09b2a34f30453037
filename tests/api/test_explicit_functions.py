"""Functions on arrays whose types say how they are cut: asked results, gradients, and axes seen in another way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import P, lax, random
from anima.sharding import (
    AbstractMesh,
    AxisType,
    Mesh,
    NamedSharding,
    auto_axes,
    explicit_axes,
    reshard,
    use_abstract_mesh,
)

pytestmark = pytest.mark.usefixtures("eight_devices")
X = np.arange(16, dtype=np.float32).reshape(8, 2)


def mesh_of(*types: AxisType) -> Mesh:
    names = ("x", "y")[:len(types)]
    return anima.make_mesh((2,) * len(types), names, axis_types=types)


EXPLICIT, AUTO = AxisType.Explicit, AxisType.Auto


@pytest.mark.parametrize("jit", [lambda f: f, anima.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("fun", [
    lambda x: jnp.einsum("ab,cb->ac", x, x, out_sharding=P(None, "x")),
    lambda x: jnp.matmul(x.T, x, out_sharding=P()),
    lambda x: jnp.reshape(x, (2, 4, 2), out_sharding=P(None, None, "x")),
    lambda x: jnp.reshape(x, (1, 8, 2), out_sharding=P(None, None, "x")),
    lambda x: x.at[jnp.array([0, 3])].get(out_sharding=P())])
def test_gradients_of_results_that_were_asked_for(fun: Any, jit: Any) -> None:
    mesh = mesh_of(EXPLICIT)
    wanted = anima.grad(lambda x: jnp.sin(fun(x)).sum())
    with anima.set_mesh(mesh):
        x = anima.device_put(X, P("x", None))
        found = jit(wanted)(x)
        assert str(anima.typeof(found)) == "float32[8@x,2]" and found.sharding.spec == P("x", None)
        assert str(anima.typeof(jit(fun)(x))) == str(anima.typeof(anima.jit(fun)(x)))
        whole = jit(wanted)(anima.device_put(X, P()))
    np.testing.assert_allclose(found, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("draw", [
    lambda key: random.randint(key, (8, 2), 0, 10, out_sharding=P("x", "y")),
    lambda key: random.permutation(key, 8, out_sharding=P("x")),
    lambda key: anima.nn.initializers.uniform()(key, (8, 2), jnp.float32, out_sharding=P("x")),
    lambda key: anima.nn.initializers.variance_scaling(1.0, "fan_in", "uniform")(key, (8, 2), out_sharding=P("x"))])
def test_numbers_that_are_drawn_onto_a_mesh(draw: Any) -> None:
    with anima.set_mesh(mesh_of(EXPLICIT, EXPLICIT)):
        key = random.key(0)
        eager, compiled = draw(key), anima.jit(draw)(key)
        assert eager.sharding.spec == compiled.sharding.spec and eager.sharding.spec[0] == "x"
    np.testing.assert_array_equal(eager, compiled)


@pytest.mark.parametrize("jit", [lambda f: f, anima.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("types,axes,spec", [
    ((AUTO, AUTO), None, P("x", "y")), ((AUTO, AUTO), "y", P(None, "y")), ((EXPLICIT, AUTO), "y", P(None, "y"))])
def test_axes_that_types_tell_of_within(types: Any, axes: Any, spec: P, jit: Any) -> None:
    told: list[str] = []

    def product(y: Any) -> Any:
        out = jnp.einsum("ab,bc->ac", y, y.T, out_sharding=spec)
        told.append(str(anima.typeof(out)))
        return out

    with anima.set_mesh(mesh_of(*types)):
        x = anima.device_put(X, P("x", "y"))
        inside = explicit_axes(product, in_sharding=spec, axes=axes)
        found = jit(lambda x: inside(x * 2))(x)
        slope = jit(anima.grad(lambda x: inside(x * 2).sum()))(x)
        outer = "float32[8@x,2]" if EXPLICIT in types else "float32[8,2]"
        assert str(anima.typeof(slope)) == outer and "float32[8@x" not in str(anima.typeof(found))
    assert told[0] == ("float32[8@x,8@y]" if axes is None else "float32[8,8@y]")
    np.testing.assert_allclose(found, 4 * X @ X.T)
    np.testing.assert_allclose(slope, 8 * X.sum(0) + np.zeros_like(X))


def test_places_that_are_told_at_the_call() -> None:
    with anima.set_mesh(mesh_of(EXPLICIT)):
        assert str(anima.typeof(auto_axes(jnp.sin)(jnp.ones(8), out_sharding=P("x")))) == "float32[8@x]"
        with pytest.raises(TypeError, match="Missing required keyword argument: 'out_sharding'"):
            auto_axes(jnp.sin)(jnp.ones(8))
    with anima.set_mesh(mesh_of(AUTO)):
        assert explicit_axes(anima.typeof)(jnp.ones(8), in_sharding=P("x")).sharding.spec == P("x")
        for jit in (lambda f: f, anima.jit):  # axes that are of type Auto stay so
            np.testing.assert_allclose(jit(auto_axes(jnp.sin, out_sharding=P("x")))(X), np.sin(X), rtol=1e-6)


def test_a_mesh_seen_in_another_way() -> None:
    mesh = mesh_of(EXPLICIT, EXPLICIT)
    with anima.set_mesh(mesh):
        with use_abstract_mesh(AbstractMesh((4,), ("z",))):
            made = jnp.arange(8)
            assert made.sharding == NamedSharding(Mesh(mesh.devices.reshape(4), "z"), P())
        with use_abstract_mesh(AbstractMesh((4,), ("z",), (EXPLICIT,))):
            moved = reshard(anima.device_put(X, NamedSharding(mesh, P("x", "y"))), P("z"))
            assert str(anima.typeof(moved)) == "float32[8@z,2]"
        with pytest.raises(ValueError, match="cannot change the size"), use_abstract_mesh(AbstractMesh((2,), ("x",))):
            jnp.arange(8)
    with pytest.raises(ValueError, match="contains manual axes"):
        anima.set_mesh(mesh_of(AxisType.Manual))


@pytest.mark.parametrize("jit", [lambda f: f, anima.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(("fun", "found"), [
    (lambda x: reshard(x, P(None)), "float32[8@x,2]"),
    (lambda x: jnp.reshape(x, (1, 2), out_sharding=P(None, "y")), "float32[8@x,1,2@y]"),
    (lambda x: jnp.einsum("a,b->ab", x, x, out_sharding=P("y", None)), "float32[8@x,2@y,2]"),
    (lambda x: jnp.zeros(4), "float32[8@x,4]"), (lambda x: jnp.where(x > 0, x, 0), "float32[8@x,2@y]"),
    (lambda x: lax.switch(1, [lambda x: x, lambda x: x * 2], x), "float32[8@x,2@y]"),
    (lambda x: lax.scan(lambda c, _: (c * 2, c), x, None, length=3)[1], "float32[8@x,3,2@y]"),
    (lambda x: lax.while_loop(lambda c: c.sum() < 30, lambda c: c * 2 + 1, x), "float32[8@x,2@y]"),
    (lambda x: jnp.linalg.det(reshard(x, P(None)) * jnp.eye(2)), "float32[8@x]"),
    (lambda x: anima.shard_map(lambda z: z * 2, in_specs=P("y"), out_specs=P("y"))(x), "float32[8@x,2@y]")],
    ids=range(10))
def test_mapped_dimensions_that_are_cut_stay_so(fun: Any, found: str, jit: Any) -> None:
    with anima.set_mesh(mesh_of(EXPLICIT, EXPLICIT)):
        x = anima.device_put(X, P("x", "y"))
        out = jit(anima.vmap(fun))(x)
        assert str(anima.typeof(out)) == found
        with pytest.raises(ValueError, match="Only one of spmd_axis_name"):
            anima.vmap(fun, spmd_axis_name="y")(x)
        assert str(anima.typeof(jit(anima.vmap(fun, spmd_axis_name="x"))(x))) == found
        alone = jnp.stack([fun(reshard(row, P("y"))) for row in X])
    np.testing.assert_allclose(out, alone, rtol=1e-6)


@pytest.mark.parametrize("batch_size", [None, 2, 5, 10])
def test_parts_of_what_is_cut_one_after_the_other(batch_size: int | None) -> None:
    x = np.arange(40, dtype=np.float32).reshape(5, 2, 4)
    with anima.set_mesh(mesh_of(EXPLICIT)):
        cut = anima.device_put(x, P(None, "x"))
        for jit in (lambda f: f, anima.jit):
            found = jit(lambda x: lax.map(lambda a: a * 2, x, batch_size=batch_size))(cut)
            assert str(anima.typeof(found)) == "float32[5,2@x,4]"
            np.testing.assert_array_equal(found, x * 2)


def test_constraints_of_stacks_that_are_spread() -> None:
    mesh = anima.make_mesh((2, 2, 2), ("a", "b", "c"), axis_types=(AUTO,) * 3)

    def constrained(x: Any) -> Any:
        return lax.with_sharding_constraint(x, NamedSharding(mesh, P("b")))

    for fun in (anima.vmap(constrained, spmd_axis_name="c"), anima.jit(anima.vmap(constrained, spmd_axis_name="c"))):
        assert fun(X).sharding.spec == P("c", "b")
    both = anima.vmap(anima.vmap(constrained, spmd_axis_name="a"), spmd_axis_name="c")
    assert anima.jit(both)(X.reshape(2, 4, 2)).sharding.spec == P("c", "a", "b")
    with pytest.raises(ValueError, match=r"vmap spmd_axis_name .* cannot appear in with_sharding_constraint spec"):
        anima.vmap(constrained, spmd_axis_name="b")(X)
    single = anima.sharding.SingleDeviceSharding(anima.devices()[0])
    with pytest.raises(ValueError, match="If you are using spmd_axis_name"):
        anima.vmap(lambda x: lax.with_sharding_constraint(x, single), spmd_axis_name="a")(X)


@pytest.mark.parametrize("jit", [lambda f: f, anima.jit], ids=["eager", "jit"])
def test_bits_are_cut_and_the_next_key_is_not(jit: Any) -> None:
    key = jnp.arange(4, dtype=jnp.uint32)
    with anima.set_mesh(mesh_of(EXPLICIT)):
        following, bits = jit(lambda k: lax.rng_bit_generator(k, (4, 8), out_sharding=P("x")))(key)
        assert bits.sharding.spec == P("x", None) and following.sharding.is_fully_replicated


@pytest.mark.parametrize("jit", [lambda f: f, anima.jit], ids=["eager", "jit"])
def test_callbacks_get_the_whole(jit: Any) -> None:
    shapes = []

    def double(x: Any) -> Any:
        shapes.append(x.shape)
        return np.asarray(x) * 2

    with anima.set_mesh(mesh_of(EXPLICIT)):
        x = anima.device_put(X, P("x"))
        got = jit(lambda x: anima.pure_callback(double, anima.ShapeDtypeStruct(x.shape, x.dtype), x))(x)
    np.testing.assert_array_equal(got, 2 * X)
    assert shapes == [X.shape] and got.sharding.spec == P()
