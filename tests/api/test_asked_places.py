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
from anima.sharding import AxisType, Mesh, NamedSharding

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
