"""Exported functions of several devices: how their arguments and results are cut is in the file."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import NamedSharding, P, export as ex, tree
from anima.core.format import FormatError, sealed, version_of
from anima.export.exported import MAGIC
from anima.sharding import Mesh
from tests.export.test_damage import HEAD, flip

pytestmark = pytest.mark.usefixtures("eight_devices")
X = np.arange(64, dtype=np.float32).reshape(8, 8)


def mesh_of(*axes: tuple[str, int], backwards: bool = False) -> Mesh:
    devices = anima.devices()[:int(np.prod([n for _, n in axes]))]
    return Mesh(np.array(devices[::-1] if backwards else devices).reshape([n for _, n in axes]),
                      tuple(name for name, _ in axes))


def product(mesh: Mesh) -> ex.Exported:
    cut = anima.jit(lambda x, y: {"xy": x @ y, "sum": x.sum()}, in_shardings=(NamedSharding(mesh, P("a", "b")), None),
                    out_shardings={"xy": NamedSharding(mesh, P(None, "a")), "sum": None})
    return ex.export(cut)(X, X)


def lies(x: Any, sharding: NamedSharding) -> bool:
    return x.sharding.is_equivalent_to(sharding, x.ndim)


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("backwards", [False, True])
def test_results_lie_on_the_devices_of_the_arguments(in_file: bool, backwards: bool) -> None:
    mesh, other = mesh_of(("a", 4), ("b", 2)), mesh_of(("a", 4), ("b", 2), backwards=backwards)
    exported = product(mesh)
    if in_file:
        exported = ex.deserialize(exported.serialize())
    assert exported.nr_devices == 8 and exported.in_shardings_hlo == (None, None)
    assert exported.in_shardings_jax(other) == (NamedSharding(other, P("a", "b")), None)
    assert exported.out_shardings_jax(other) == (None, NamedSharding(other, P(None, "a")))
    x = anima.device_put(X, exported.in_shardings_jax(other)[0])
    out = exported.call(x, X)
    assert lies(out["xy"], NamedSharding(other, P(None, "a")))
    assert out["sum"].sharding.device_set == set(anima.devices())
    np.testing.assert_allclose(out["xy"], X @ X)
    tree.map(np.testing.assert_array_equal, anima.jit(exported.call)(x, X), out)
    tree.map(np.testing.assert_array_equal, anima.jit(exported.call)(X, X), out)


def test_arguments_on_another_mesh_of_as_many_devices() -> None:
    exported, line = product(mesh_of(("a", 4), ("b", 2))), mesh_of(("c", 8))
    out = exported.call(anima.device_put(X, NamedSharding(line, P("c"))), X)
    assert lies(out["xy"], NamedSharding(mesh_of(("a", 4), ("b", 2)), P(None, "a")))
    with pytest.raises(ValueError, match="does not match the mesh that the function was exported for"):
        exported.in_shardings_jax(line)


@pytest.mark.parametrize("count", [1, 4])
def test_other_numbers_of_devices(count: int) -> None:
    exported = product(mesh_of(("a", 4), ("b", 2)))
    x = X if count == 1 else anima.device_put(X, NamedSharding(mesh_of(("c", count)), P("c")))
    with pytest.raises(ValueError, match=rf"was exported for 8 devices and is called in a context with {count} dev"):
        exported.call(x, X)
    alone = ex.export(anima.jit(lambda x: x + 1))(X)
    assert alone.nr_devices == 1 and version_of(alone.serialize()) == 1
    assert alone.in_shardings_jax(mesh_of(("c", 4))) == (None,)
    np.testing.assert_array_equal(alone.call(x), X + 1)


@pytest.mark.parametrize("said", ["argument", "described", "within", "set"])
def test_what_says_how_many_devices_there_are(said: str) -> None:
    mesh = mesh_of(("a", 8))
    rows = NamedSharding(mesh, P("a"))
    x: Any = {"argument": anima.device_put(X, rows), "described": anima.ShapeDtypeStruct((8, 8), "float32",
                                                                                        sharding=rows)}.get(said, X)
    fun = anima.jit(lambda x: anima.lax.with_sharding_constraint(2 * x, rows) if said == "within" else 2 * x)
    with anima.set_mesh(mesh) if said == "set" else anima.disable_jit(False):
        exported = ex.export(fun)(x)
    assert exported.nr_devices == 8
    assert exported.in_shardings_jax(mesh) == ((rows,) if said in ("argument", "described") else (None,))
    np.testing.assert_array_equal(exported.call(anima.device_put(X, rows)), 2 * X)


def test_derivatives_are_cut_as_the_arguments() -> None:
    mesh = mesh_of(("a", 4), ("b", 2))
    exported = ex.deserialize(product(mesh).serialize(vjp_order=1))
    pulled = exported.vjp()
    cut = NamedSharding(mesh, P("a", "b"))
    assert pulled.nr_devices == 8 and pulled.out_shardings_jax(mesh) == (cut, None)
    assert pulled.in_shardings_jax(mesh) == (cut, None, None, NamedSharding(mesh, P(None, "a")))
    slope = anima.grad(lambda x: exported.call(x, X)["xy"].sum())(anima.device_put(X, cut))
    assert lies(slope, cut)
    np.testing.assert_allclose(slope, np.broadcast_to(X.sum(1), (8, 8)))


def test_sizes_that_are_not_known() -> None:
    mesh = mesh_of(("a", 8))
    rows = NamedSharding(mesh, P("a"))
    fun = anima.jit(lambda x: jnp.sin(x), in_shardings=rows, out_shardings=rows)
    exported = ex.export(fun)(anima.ShapeDtypeStruct(ex.symbolic_shape("8*n"), "float32"))
    exported = ex.deserialize(exported.serialize())
    assert exported.nr_devices == 8 and exported.in_shardings_jax(mesh) == (rows,)
    out = exported.call(anima.device_put(X.ravel(), rows))
    assert lies(out, rows)
    np.testing.assert_allclose(out, np.sin(X.ravel()), rtol=1e-5, atol=1e-6)


def test_damaged_files() -> None:
    """Whatever the file says of axes and specs, it is read, or refused as damaged."""
    blob = product(mesh_of(("a", 4), ("b", 2))).serialize()
    assert version_of(blob) == 2
    rng = random.Random(7)
    for _ in range(400):
        end = bytearray(blob[-60:])
        flip(rng, end)
        with contextlib.suppress(FormatError):
            ex.deserialize(sealed(MAGIC, 2, blob[HEAD:-60] + end))


def test_axes_that_have_no_texts_for_names() -> None:
    mesh = Mesh(np.array(anima.devices()), (7,))
    exported = ex.export(anima.jit(lambda x: x, in_shardings=NamedSharding(mesh, P(7))))(X)
    with pytest.raises(NotImplementedError, match="names are texts"):
        exported.serialize()


@pytest.mark.parametrize("backwards", [False, True])
def test_axes_of_which_types_tell(backwards: bool) -> None:
    """Types say how results are cut, and those of a call are of the types of its arguments' mesh."""
    kinds = (anima.sharding.AxisType.Explicit,)
    mesh, other = (Mesh(mesh_of(("a", 8), backwards=turned).devices, ("a",), kinds) for turned in (False, backwards))
    rows = anima.device_put(X, NamedSharding(mesh, P("a")))
    exported = ex.export(anima.jit(lambda x: 2 * x))(rows)
    exported = ex.deserialize(exported.serialize(vjp_order=1))
    assert exported.out_shardings_jax(other) == (NamedSharding(other, P("a", None)),)
    x = anima.device_put(X, NamedSharding(other, P("a", None)))
    for call in (exported.call, anima.jit(exported.call)):
        assert call(x).aval == x.aval
        np.testing.assert_array_equal(call(x) + x, 3 * X)
    slope = anima.grad(lambda x: exported.call(x).sum())(x)
    assert slope.sharding == x.sharding
    np.testing.assert_array_equal(slope, np.full((8, 8), 2.0))
    columns = anima.jit(lambda x: x + 1, in_shardings=NamedSharding(mesh, P("a")),
                        out_shardings=NamedSharding(mesh, P(None, "a")))
    assert ex.export(columns)(X).call(x).sharding == NamedSharding(other, P(None, "a"))
