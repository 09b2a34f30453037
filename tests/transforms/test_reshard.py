"""From one cut of an array to any other: the parts that devices have after the planned steps, by a plain model of
devices; the programs that do it; and what shardings say of parts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import anima
from anima import P, lax
from anima.core.partition import axes_of
from anima.core.placement import dividing
from anima.sharding import AxisType, Mesh, NamedSharding
from anima.transforms.reshard import Axes, Cut, bytes_sent, steps

SIZES: dict[Any, int] = {"x": 2, "y": 3, "z": 1, "w": 2}
WHOLE = np.random.default_rng(0).integers(0, 99, (12, 24)).astype(np.float64)
PLACES = [dict(zip(SIZES, place, strict=True)) for place in itertools.product(*map(range, SIZES.values()))]
Held = list[np.ndarray]


def part(whole: np.ndarray, cut: Cut, place: dict[Any, int], sizes: dict[Any, int] = SIZES) -> np.ndarray:
    """What the device at a place has of an array: cut along one axis after the other, the major ones first."""
    for d, axes in enumerate(cut):
        for name in axes:
            whole = np.split(whole, sizes[name], d)[place[name]]
    return whole


def cuts(rank: int = 2, names: Sequence[Any] = tuple(SIZES)) -> Iterator[Cut]:
    """All ways to cut an array along some of the axes."""
    for count in range(len(names) + 1):
        for chosen in itertools.permutations(names, count):
            for dims in itertools.product(range(rank), repeat=count):
                yield tuple(tuple(n for n, e in zip(chosen, dims, strict=True) if e == d) for d in range(rank))


CUTS = sorted(set(cuts()))


def peers(place: dict[Any, int], axes: Axes) -> list[int]:
    """The numbers of the devices that differ from one along these axes alone, in their order."""
    return [PLACES.index({**place, **dict(zip(axes, there, strict=True))})
            for there in itertools.product(*[range(SIZES[n]) for n in axes])]


def after(held: Held, step: Any) -> Held:
    """What each device has after a step."""
    out = []
    for number, place in enumerate(PLACES):
        group = peers(place, step.axes)
        have, mine = [held[k] for k in group], group.index(number)
        count, name = len(group), step.primitive.name if step.primitive else ""
        if not name:
            out.append(np.split(held[number], count, step.at)[mine])
        elif name == "all_gather":
            out.append(np.concatenate(have, step.at))
        elif name == "all_to_all":
            out.append(np.concatenate([np.split(h, count, step.at)[mine] for h in have], step.to))
        elif name == "reduce_scatter":
            out.append(np.split(sum(have), count, step.at)[mine])
        else:
            out.append({"psum": np.sum, "pmax": np.max, "pmin": np.min}[name](have, 0))
    return out


def moved(plan: Sequence[Any], nbytes: float) -> float:
    """The bytes that each device sends."""
    total = 0.0
    for step in plan:
        count, name = math.prod(SIZES[n] for n in step.axes), step.primitive.name if step.primitive else ""
        share = {"": 0, "all_gather": count - 1, "psum": 2 * (count - 1) / count, "pmax": 2 * (count - 1) / count,
                 "pmin": 2 * (count - 1) / count}.get(name, (count - 1) / count)
        total += share * nbytes
        nbytes *= count if name == "all_gather" else 1 / count if name in ("", "reduce_scatter") else 1
    return total


@pytest.mark.parametrize("seed", range(4))
def test_every_plan_ends_where_it_is_to(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(150):
        have, want = (CUTS[k] for k in rng.integers(len(CUTS), size=2))
        held = [part(WHOLE, have, place) for place in PLACES]
        plan = steps(have, want)
        assert bytes_sent(held[0].nbytes, plan, SIZES) == pytest.approx(moved(plan, held[0].nbytes))
        for step in plan:
            held = after(held, step)
        for x, place in zip(held, PLACES, strict=True):
            np.testing.assert_array_equal(x, part(WHOLE, want, place), f"{have} to {want}: {plan}")
        assert plan or have == want
        if all(a == b[:len(a)] for a, b in zip(have, want, strict=True)):
            assert not any(step.primitive for step in plan), plan  # what is cut more is not sent


@pytest.mark.parametrize("combines", ["add", "max", "min"])
def test_every_sum_ends_where_it_is_to(combines: str) -> None:
    rng = np.random.default_rng(1)
    for _ in range(150):
        have, want = (CUTS[k] for k in rng.integers(len(CUTS), size=2))
        free = {*SIZES} - {n for axes in have for n in axes}
        over = tuple(n for n in rng.permutation([*SIZES]) if n in free and rng.random() < 0.6)
        wholes = {there: rng.integers(0, 99, WHOLE.shape).astype(float)
                  for there in itertools.product(*[range(SIZES[n]) for n in over])}
        held = [part(wholes[tuple(place[n] for n in over)], have, place) for place in PLACES]
        for step in steps(have, want, over, combines):
            held = after(held, step)
        total = {"add": np.sum, "max": np.max, "min": np.min}[combines]([*wholes.values()], 0)
        for x, place in zip(held, PLACES, strict=True):
            np.testing.assert_array_equal(x, part(total, want, place), f"{have} to {want} over {over}")


def mesh_of(devices: Sequence[anima.Device], sizes: dict[Any, int]) -> Mesh:
    count = math.prod(sizes.values())
    return Mesh(np.array(devices[:count]).reshape(*sizes.values()), tuple(sizes),
                axis_types=(AxisType.Auto,) * len(sizes))


SMALL: dict[Any, int] = {"x": 2, "z": 1, "y": 4}
SHAPES = [(8, 16), (16, 0), (0, 8), (8, 8, 1)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_programs_that_cut_otherwise(shape: tuple[int, ...], eight_devices: list[anima.Device]) -> None:
    """A constraint, and a sum along a dimension that is cut, as programs of one device."""
    mesh, rng = mesh_of(eight_devices, SMALL), np.random.default_rng(3)
    every = sorted(set(cuts(2, tuple(SMALL))))
    x = rng.normal(size=shape).astype(np.float32)
    for _ in range(6):
        have, want = (NamedSharding(mesh, P(*every[k])) for k in rng.integers(len(every), size=2))
        given = anima.device_put(x, have)
        fun = anima.jit(lambda a, want=want: (lax.with_sharding_constraint(a, want), a.sum(0), a.max(1, initial=0)))
        for outs in (fun(given), fun.lower(given).partitioned(given)):
            np.testing.assert_array_equal(outs[0], x)
            np.testing.assert_allclose(outs[1], x.sum(0), rtol=1e-5, atol=1e-5)
            np.testing.assert_array_equal(outs[2], x.max(1, initial=0))
            assert outs[0].sharding.is_equivalent_to(want, len(shape))


@pytest.mark.parametrize("shape", [*SHAPES, (8,), (16, 24)], ids=str)
def test_parts_are_where_a_sharding_says(shape: tuple[int, ...], eight_devices: list[anima.Device]) -> None:
    mesh, rank = mesh_of(eight_devices, SMALL), min(len(shape), 2)
    places = [dict(zip(SMALL, p, strict=True)) for p in itertools.product(*map(range, SMALL.values()))]
    x = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    lie: list[tuple[NamedSharding, list[bytes]]] = []
    for cut in sorted(set(cuts(rank, tuple(SMALL)))):
        sharding = NamedSharding(mesh, P(*cut))
        wanted = [part(x, cut, place, SMALL) for place in places]
        put = anima.device_put(x, sharding)
        assert sharding.shard_shape(shape) == wanted[0].shape
        assert sharding.is_fully_replicated == all(SMALL[n] == 1 for axes in cut for n in axes)
        assert sharding.replicated_axes == {*SMALL} - {n for axes in cut for n in axes}
        seen: list[bytes] = []
        for shard, want, device in zip(put.addressable_shards, wanted, mesh.device_list, strict=True):
            assert shard.device == device and (shard.replica_id == seen.count(want.tobytes()) or not x.size)
            np.testing.assert_array_equal(shard.data, want, strict=True)
            np.testing.assert_array_equal(x[shard.index], want, strict=True)
            seen.append(want.tobytes())
        lie.append((sharding, seen))
    if x.size:
        for (one, mine), (other, others) in itertools.islice(itertools.product(lie, lie), 0, None, 7):
            assert one.is_equivalent_to(other, len(shape)) == (mine == others), (one, other)


def test_specs_are_obeyed_as_far_as_they_divide(eight_devices: list[anima.Device]) -> None:
    mesh = mesh_of(eight_devices, SMALL)
    for cut in sorted(set(cuts(2, tuple(SMALL)))):
        for shape in itertools.product((0, 1, 2, 3, 4, 6, 8), (1, 12)):
            found = [axes_of(p) for p in dividing(P(*cut), shape, mesh).padded(2)]
            for n, mine, asked in zip(shape, found, cut, strict=True):
                fits = [k for k in range(len(asked) + 1) if n % math.prod(SMALL[a] for a in asked[:k]) == 0]
                assert mine == asked[:max(fits)]
