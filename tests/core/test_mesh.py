"""Meshes, partition specs, and the number of devices."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import anima
from anima import P
from anima.core import mesh as mesh_module
from anima.core.placement import completed, elsewhere, made_at
from anima.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, get_abstract_mesh, use_abstract_mesh

pytestmark = pytest.mark.usefixtures("eight_devices")


@pytest.mark.parametrize(("environment", "setting", "count"), [
    ({}, "", 1), ({"XLA_FLAGS": "--a=1 --xla_force_host_platform_device_count=5"}, "", 5),
    ({"ANIMA_NUM_CPU_DEVICES": "3"}, "", 3), ({"XLA_FLAGS": "--xla_force_host_platform_device_count=5"},
                                              "anima.config.update('jax_num_cpu_devices', 4)", 4)])
def test_the_number_of_devices(environment: dict[str, str], setting: str, count: int) -> None:
    env = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "ANIMA_NUM_CPU_DEVICES")} | environment
    code = f"import anima; {setting}\nassert anima.device_count() == {count} == len(anima.local_devices())\n" \
           f"assert [d.id for d in anima.devices()] == list(range({count}))\nanima.make_mesh(({count},), 'x')"
    subprocess.run([sys.executable, "-c", code], env=env, check=True)


def test_meshes_as_values(eight_devices: list[anima.Device]) -> None:
    mesh = Mesh(np.array(eight_devices).reshape(4, 2), ("x", "y"))
    assert (mesh.shape, mesh.size, mesh.axis_sizes) == ({"x": 4, "y": 2}, 8, (4, 2))
    assert repr(mesh) == "Mesh(axis_sizes=(4, 2), axis_names=('x', 'y'), axis_types=(Auto, Auto))"
    assert str(mesh) == "Mesh('x': 4, 'y': 2, axis_types=(Auto, Auto))"
    explicit = anima.make_mesh((4, 2), ("x", "y"))
    assert explicit.axis_types == (AxisType.Explicit,) * 2 and explicit != mesh and explicit.explicit_axes == ("x", "y")
    assert explicit.update(axis_types=mesh.axis_types) == mesh
    assert pickle.loads(pickle.dumps(mesh)) == mesh == copy.deepcopy(mesh) and hash(mesh) == hash(copy.copy(mesh))
    assert str(mesh.abstract_mesh) == ("AbstractMesh('x': 4, 'y': 2, axis_types=(Auto, Auto), device_kind=cpu, "
                                       "num_cores=None, platform=cpu)")
    assert mesh.device_ids.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]] and mesh.local_mesh == mesh
    assert mesh.local_devices == eight_devices and not mesh.is_multi_process
    abstract = AbstractMesh((4, 2), ("x", "y"))
    assert abstract != mesh.abstract_mesh and abstract.update(abstract_device=mesh.abstract_mesh.abstract_device) \
        == mesh.abstract_mesh
    assert abstract.update_axis_types({"x": AxisType.Manual}).manual_axes == ("x",)
    assert anima.make_mesh((2,), "x", devices=eight_devices[4:]).device_list == tuple(eight_devices[4:6])


@pytest.mark.parametrize(("make", "error", "text"), [
    (lambda d: Mesh(d, ("x", "y")), ValueError, "devices.ndim == 1 and len\\(axis_names\\) == 2"),
    (lambda d: Mesh([1, 2], "x"), TypeError, "A mesh is of devices"),
    (lambda d: Mesh(d, (None,)), ValueError, "names cannot be None"),
    (lambda d: Mesh(d, "x", 3), TypeError, "must be of type `anima.sharding.AxisType`"),
    (lambda d: Mesh(d, "x", (AxisType.Auto,) * 2), ValueError, "should match the number of axis_types"),
    (lambda d: anima.make_mesh((16,), "x"), ValueError, "Number of devices 8 must be >= .* mesh_shape \\(16,\\)"),
    (lambda d: AbstractMesh((4, 2), "x"), ValueError, "as many axis_sizes as axis_names"),
    (lambda d: AbstractMesh((4,), "x").devices, ValueError, "does not implement devices"),
    (lambda d: anima.set_mesh(3), ValueError, "Expected mesh of type"),
    (lambda d: use_abstract_mesh(3), ValueError, "Expected mesh of type")])
def test_no_meshes(make: Any, error: type[Exception], text: str, eight_devices: list[anima.Device]) -> None:
    with pytest.raises(error, match=text):
        make(eight_devices)


def test_the_current_mesh() -> None:
    mesh, other = anima.make_mesh((8,), "x"), AbstractMesh((2,), ("y",))
    assert get_abstract_mesh().empty
    with anima.set_mesh(mesh):
        assert get_abstract_mesh() == mesh.abstract_mesh
        with use_abstract_mesh(other) as entered:
            assert get_abstract_mesh() is entered is other
        assert get_abstract_mesh() == mesh.abstract_mesh
    assert get_abstract_mesh().empty
    with pytest.warns(DeprecationWarning, match="set_mesh"), mesh as entered:
        assert entered is mesh


def test_specs_as_values() -> None:
    assert repr(P("x", None, ("y", "z"))) == "P('x', None, ('y', 'z'))" and repr(P("x")) == "P('x',)"
    assert repr(P("x", unreduced={"y"})) == "P('x', unreduced={'y'})" and repr(P()) == "P()"
    assert repr(P(P.UNCONSTRAINED)) == "P(UNCONSTRAINED,)"
    assert P(("x",)) == P("x") == P(["x"]) != P("x", None) and P(()) == P(None) and P("x") != ("x",)
    assert hash(P(("x",))) == hash(P("x")) and len(P("x", None)) == 2 and P("x", "y")[1] == "y"
    assert P("x") + P("y") == P("x") + ("y",) == ("x",) + P("y") == P("x", "y")
    assert tuple(P("x", None)) == ("x", None)
    assert P(unreduced={"x"}).to_ct_spec() == P(reduced={"x"}) and P("x").update(partitions=("y",)) == P("y")
    assert pickle.loads(pickle.dumps(P("x", P.UNCONSTRAINED))) == P("x", P.UNCONSTRAINED)
    for make, error in ((lambda: P((("x",), "y")), ValueError), (lambda: P(unreduced=["x"]), TypeError),
                        (lambda: P("x", unreduced={"x"}), ValueError)):
        with pytest.raises(error):
            make()


def test_named_shardings(eight_devices: list[anima.Device]) -> None:
    mesh = Mesh(np.array(eight_devices).reshape(4, 2), ("x", "y"))
    rows = NamedSharding(mesh, P("x"))
    assert rows.shard_shape((8, 3)) == (2, 3) and rows.num_devices == 8 and rows.replicated_axes == {"y"}
    assert rows.devices_indices_map((8, 3))[eight_devices[5]] == (slice(4, 6), slice(None))
    crossed = NamedSharding(mesh, P(("y", "x")))
    assert [i[0].start for i in crossed.devices_indices_map((8,)).values()] == [0, 4, 1, 5, 2, 6, 3, 7]
    assert rows != NamedSharding(mesh, P("x", None)) and rows.is_equivalent_to(NamedSharding(mesh, P("x", None)), 2)
    assert not rows.is_equivalent_to(crossed, 1) and not rows.is_fully_replicated
    assert NamedSharding(mesh, P()).is_fully_replicated and rows.is_fully_addressable
    assert rows.with_memory_kind("pinned_host").memory_kind == "pinned_host" and rows.memory_kind == "device"
    assert pickle.loads(pickle.dumps(rows)) == rows and rows.update(spec=P("y")).spec == P("y")
    assert str(rows) == ("NamedSharding(mesh=Mesh('x': 4, 'y': 2, axis_types=(Auto, Auto)), spec=P('x',), "
                         "memory_kind=device)")
    abstract = NamedSharding(mesh.abstract_mesh, P("x"))
    assert abstract.shard_shape((8,)) == (2,) and abstract.memory_kind is None and abstract.num_devices == 8


@pytest.mark.parametrize(("use", "error", "text"), [
    (lambda m: NamedSharding(m, P("z")), ValueError, "Resource axis: z of P\\('z',\\) is not found in mesh"),
    (lambda m: NamedSharding(m, P("x", "x")), ValueError, "has duplicate entries for `x`"),
    (lambda m: NamedSharding(m, "x"), TypeError, "must be a PartitionSpec"),
    (lambda m: NamedSharding(3, P()), TypeError, "must be a Mesh"),
    (lambda m: NamedSharding(m, P(unreduced={"x"})), ValueError, "of type `Explicit`"),
    (lambda m: NamedSharding(m, P(unreduced={"z"})), ValueError, "not found in mesh.axis_names"),
    (lambda m: NamedSharding(m, P(), memory_kind="disk"), ValueError, "Got memory kind: disk"),
    (lambda m: NamedSharding(m, P("x")).shard_shape((6, 4)), ValueError, "array axis 0 is partitioned 4 times"),
    (lambda m: NamedSharding(m, P("x")).shard_shape(()), ValueError, "is only valid for values of rank at least 1"),
    (lambda m: NamedSharding(m.abstract_mesh, P("x")).device_set, ValueError, "device_set is not implemented")])
def test_no_named_shardings(use: Any, error: type[Exception], text: str, eight_devices: list[anima.Device]) -> None:
    with pytest.raises(error, match=text):
        use(Mesh(np.array(eight_devices).reshape(4, 2), ("x", "y")))


@pytest.mark.parametrize(("here", "part"), [
    ((0, 1), [[0, 1]]), ((1, 3, 5), [[1], [3], [5]]), ((4, 5, 6, 7), [[4, 5], [6, 7]]), ((0, 3), None),
    ((0, 1, 2), None), ((0, 6), None), ((), None)])
def test_the_local_part_of_a_mesh(eight_devices: list[anima.Device], here: tuple[int, ...], part: Any,
                                  monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = Mesh(np.array(eight_devices).reshape(4, 2), ("x", "y"))
    monkeypatch.setattr(mesh_module, "all_devices", lambda: [eight_devices[k] for k in here])
    if part is None:
        with pytest.raises(ValueError, match="are not a box of the mesh"):
            _ = mesh.local_mesh
    else:
        assert mesh.local_mesh.device_ids.tolist() == part and mesh.local_mesh.axis_names == ("x", "y")


@pytest.mark.parametrize(("typed", "found", "wanted"), [
    (("a", "b"), ("b", "a"), ("a", "b")), (("b", "a"), ("b", "a"), ("b", "a")), (("a",), ("c", "a"), ("c", "a")),
    (("a",), ("a", "c"), ("a", "c")), (("a",), ("b",), ("a",)), (("a",), ("a", "b"), ("a",)), (("a",), ("c",), ("a",)),
    ((), ("c",), ("c",)), ((), ("b", "c"), ())])
def test_results_are_cut_as_their_types_say_and_along_other_axes_as_found(
        typed: tuple[str, ...], found: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    mesh = anima.make_mesh((2, 2, 2), ("a", "b", "c"), axis_types=(AxisType.Explicit, AxisType.Explicit, AxisType.Auto))
    aval = anima.typeof(anima.device_put(np.zeros((8, 3)), NamedSharding(mesh, P(typed, None))))
    assert completed(mesh, aval, P(found, None)).spec == P(wanted, None)


def test_a_type_of_another_shape_is_not_cut() -> None:
    mesh = anima.make_mesh((4,), "a", axis_types=(AxisType.Explicit,))
    aval = anima.typeof(anima.device_put(np.zeros((8, 3)), NamedSharding(mesh, P("a"))))
    assert aval.update(dtype=np.dtype("int32")).sharding == aval.update(shape=(8, 3)).sharding == aval.sharding
    for shape in ((4, 3), (8,), (16, 3), (8, 3, 2), (9,)):
        assert "@" not in str(aval.update(shape=shape)) and "@" in str(aval)


def test_what_is_made_on_the_mesh_of_its_type(eight_devices: list[anima.Device]) -> None:
    """Among the meshes that are known, one of the same axes and sizes: the current one first."""
    mesh = anima.make_mesh((4,), "a")
    other = Mesh(np.array(eight_devices).reshape(2, 4), ("a", "b"), mesh.axis_types * 2)
    later = Mesh(eight_devices[4:], "a", mesh.axis_types)
    aval = anima.typeof(anima.device_put(np.zeros(8), NamedSharding(mesh, P("a"))))
    known = [None, NamedSharding(other, P("a")), NamedSharding(later, P("a")), NamedSharding(mesh, P("a"))]
    assert made_at(aval, known) == (NamedSharding(later, P("a")), True)
    with anima.set_mesh(mesh):
        assert made_at(aval, known) == (NamedSharding(mesh, P("a")), True)
    with anima.set_mesh(other):
        assert made_at(aval, known) == (NamedSharding(later, P("a")), True)
        assert made_at(aval, known[:2]) == elsewhere(1)


def test_what_cannot_be_changed(eight_devices: list[anima.Device]) -> None:
    mesh = Mesh(np.array(eight_devices[:4]).reshape(2, 2), ("x", "y"))
    for value, name in ((mesh, "mesh"), (P("x"), "spec"), (NamedSharding(mesh, P("x")), "sharding")):
        with pytest.raises(AttributeError, match=rf"cannot be changed. Fix: {name}\.update\(some=\.\.\.\)"):
            value.some = 3


def test_specs_as_sequences() -> None:
    spec = P(("x",), None, "x", ("y", "z"))
    assert (spec.count("x"), spec.count(None), spec.count(("y", "z")), spec.count("y")) == (2, 1, 1, 0)
    assert (spec.index("x"), spec.index(("y", "z"))) == (0, 3) and P(None, "x").index("x") == 1
    with pytest.raises(ValueError):
        spec.index("y")
    assert spec.to_tangent_spec() is spec and spec.to_lo() == [spec]
    turned = P("x", unreduced={"y"}, reduced={"z"}).to_ct_spec()
    assert turned == P("x", unreduced={"z"}, reduced={"y"})
    for given, text in (({"unreduced": {None}}, "unreduced cannot contain None"),
                        ({"reduced": {None}}, "reduced cannot contain None"),
                        ({"unreduced": {"y"}, "reduced": {"y", "z"}}, "axes of a PartitionSpec cannot overlap"),
                        ({"unreduced": {"x"}}, "partitions cannot overlap with unreduced"),
                        ({"reduced": {"x"}}, "partitions cannot overlap with reduced")):
        with pytest.raises(ValueError, match=text):
            P("x", **given)


def test_one_device_without_axes(eight_devices: list[anima.Device]) -> None:
    assert Mesh(np.array(eight_devices[0]), ()).is_scalar
    assert not Mesh(np.array(eight_devices[:1]), ("x",)).is_scalar


def test_parts_and_their_copies(eight_devices: list[anima.Device]) -> None:
    mesh = Mesh(np.array(eight_devices[:4]).reshape(2, 2), ("x", "y"))
    for spec, replicas in ((P("x"), [0, 1, 0, 1]), (P("y"), [0, 0, 1, 1]), (P(), [0, 1, 2, 3]), (P("x", "y"), [0] * 4)):
        shards = anima.device_put(np.arange(8.0).reshape(2, 4), NamedSharding(mesh, spec)).addressable_shards
        assert [s.replica_id for s in shards] == replicas
    assert repr(shards[1]) == ("Shard(device=CpuDevice(id=1), index=(slice(0, 1, None), slice(2, 4, None)), "
                               "replica_id=0, data=[[2. 3.]])")


def test_types_that_tell_how_they_are_cut(eight_devices: list[anima.Device]) -> None:
    mesh = Mesh(np.array(eight_devices[:2]), ("x",), (AxisType.Explicit,))
    aval = anima.typeof(anima.device_put(np.ones((2, 4), np.float32), NamedSharding(mesh, P("x"))))
    texts = [str(t.str_short()) for t in (aval.inc_rank(3, None), aval.inc_rank(3, 0), aval.inc_rank(3, 1),
                                          aval.dec_rank(2, None), aval.dec_rank(2, 0), aval.dec_rank(4, 1))]
    assert texts == ["float32[2@x,4]", "float32[3,2@x,4]", "float32[2@x,3,4]", "float32[2@x,4]", "float32[4]",
                     "float32[2@x]"]


@pytest.mark.parametrize("what", ["varying", "unreduced", "reduced"])
def test_a_type_with_any_manual_axis_is_not_empty(what: str) -> None:
    assert mesh_module.ManualAxisType().empty
    assert not mesh_module.ManualAxisType(**{what: frozenset("x")}).empty


@pytest.mark.parametrize("shape", [((4,), 2), (1, "a")])
def test_sizes_of_a_mesh_are_numbers(shape: Any) -> None:
    with pytest.raises(ValueError, match="should be a sequence of ints"):
        anima.make_mesh(shape, ("x", "y"))
