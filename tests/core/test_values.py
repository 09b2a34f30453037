"""Values that users and caches compare: equal if all of their fields are, and only then.

A value is made of fields; each of them has several choices. Whatever is made of the same choices is one value; what
differs in one field is another, by whichever way it was made.
"""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import anima
from anima import P
from anima.core.avals import ShapedArray
from anima.core.device import devices
from anima.core.mesh import ManualAxisType
from anima.core.windows import Slice
from anima.experimental.layout import Format, Layout
from anima.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, SingleDeviceSharding

pytestmark = pytest.mark.usefixtures("eight_devices")

AUTO, EXPLICIT, MANUAL = AxisType.Auto, AxisType.Explicit, AxisType.Manual
Fields = dict[str, list[Any]]


def spec(partitions: Any, **sets: Any) -> P:
    return P(*partitions, **sets)


def meshes() -> list[Mesh]:
    return [Mesh(np.array(devices()).reshape(shape), ("x", "y")) for shape in ((4, 2), (2, 4))]


# By name: what makes the value, and the choices for each field; all combinations are there.
VALUES: dict[str, tuple[Callable[..., Any], Callable[[], Fields]]] = {
    "P": (spec, lambda: {"partitions": [(), (None,), ("x",), ("x", None), (None, "x"), ("x", "y"), (("x", "y"),),
                                        (("y", "x"),), (P.UNCONSTRAINED,)],
                         "unreduced": [frozenset(), {"u"}, {"u", "v"}], "reduced": [frozenset(), {"r"}, {"w"}]}),
    "AbstractMesh": (AbstractMesh, lambda: {
        "axis_sizes": [(4, 2), (2, 4), (1, 2)], "axis_names": [("x", "y"), ("y", "x"), ("x", "z")],
        "axis_types": [(AUTO, AUTO), (AUTO, EXPLICIT), (EXPLICIT, AUTO), (MANUAL, MANUAL)],
        "abstract_device": [None, meshes()[0].abstract_mesh.abstract_device]}),
    "Mesh": (Mesh, lambda: {
        "devices": [m.devices for m in meshes()] + [meshes()[0].devices[::-1], meshes()[0].devices[:, :1]],
        "axis_names": [("x", "y"), ("y", "x")],
        "axis_types": [(AUTO, AUTO), (AUTO, EXPLICIT), (EXPLICIT, AUTO)]}),
    "NamedSharding": (NamedSharding, lambda: {
        "mesh": [*meshes(), meshes()[0].abstract_mesh], "spec": [P(), P(None), P("x"), P("y"), P(("x", "y"))],
        "memory_kind": ["device", "pinned_host"]}),
    "SingleDeviceSharding": (SingleDeviceSharding, lambda: {
        "device": devices()[:3], "memory_kind": ["device", "pinned_host"]}),
    "ManualAxisType": (ManualAxisType, lambda: {
        name: [frozenset(), frozenset("x"), frozenset("y")] for name in ("varying", "unreduced", "reduced")}),
    "Layout": (Layout, lambda: {"major_to_minor": [(0, 1), (1, 0), (0,)], "tiling": [None, ((8, 128),)],
                                "sub_byte_element_size_in_bits": [0, 4]}),
    "Format": (Format, lambda: {"layout": [None, Layout((0, 1)), Layout((1, 0))],
                                "sharding": [None, *(NamedSharding(m, P("x")) for m in meshes())]}),
    "ShapedArray": (ShapedArray, lambda: {"shape": [(), (0,), (1,), (2, 3), (3, 2)], "weak_type": [False, True],
                                          "dtype": [np.dtype(d) for d in ("float32", "int32", "uint32", "bool")],
                                          "vma": [frozenset(), frozenset("x")]}),
    "ShapeDtypeStruct": (anima.ShapeDtypeStruct, lambda: {
        "shape": [(), (0,), (2, 3), (3, 2)], "dtype": [np.dtype("float32"), np.dtype("int32")],
        "sharding": [None, *(NamedSharding(m, P()) for m in meshes())], "weak_type": [False, True],
        "is_ref": [False, True]}),
}


def made(name: str) -> Iterator[tuple[dict[str, Any], Any]]:
    """All values of a kind, with the fields that they are made of."""
    make, choices = VALUES[name]
    fields = choices()
    for chosen in itertools.product(*fields.values()):
        given = dict(zip(fields, chosen, strict=True))
        yield given, make(**given)


def test_traced_values_are_not_pickled() -> None:
    for transform in (anima.jit, anima.grad):
        with pytest.raises(anima.errors.ConcretizationTypeError):
            transform(lambda x: pickle.dumps(x))(1.0)
    assert anima.jit(copy.copy)(1.0) == anima.jit(copy.deepcopy)(1.0) == 1


@pytest.mark.parametrize("name", VALUES)
def test_equal_if_all_fields_are(name: str) -> None:
    """Every two of them; equal ones have one hash, and a set has each once."""
    first, again = [v for _, v in made(name)], [v for _, v in made(name)]
    for (k, a), (n, b) in itertools.product(enumerate(first), enumerate(again)):
        assert (a == b) is (k == n) and (a != b) is (k != n), (a, b)
    assert [hash(a) for a in first] == [hash(b) for b in again]
    assert len({*first, *again}) == len(first) and len(set(map(hash, first))) > len(first) // 2
    assert not any(a == other or other == a for a in first[:3] for other in (None, (), "x", object()))


@pytest.mark.parametrize("name", VALUES)
def test_copies_are_equal(name: str) -> None:
    for _, value in made(name):
        for same in (pickle.loads(pickle.dumps(value)), copy.copy(value), copy.deepcopy(value)):
            assert same == value and hash(same) == hash(value) and repr(same) == repr(value)
            assert type(same) is type(value)


@pytest.mark.parametrize("name", [name for name in VALUES if name not in ("SingleDeviceSharding", "Format")])
def test_updates_change_what_they_name(name: str) -> None:
    everything = list(made(name))
    for given, value in (everything[0], everything[len(everything) // 2], everything[-1]):
        assert value.update() == value
        for field in given:
            for other, wanted in everything:
                if all(other[key] is given[key] or key == field for key in given):
                    assert value.update(**{field: other[field]}) == wanted, (value, field)


@pytest.mark.parametrize("part", [slice(None), slice(1, 8, 3), slice(-3, None), slice(2, -1, 2), slice(5, 2), slice(9)])
def test_windows_of_slices(part: slice) -> None:
    window = Slice.from_slice(part, 6)
    assert list(range(6))[part] == [window.start + k * window.stride for k in range(window.size)]
