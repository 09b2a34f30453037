"""Cutting a part of an array in another way: which collectives that takes, and what they move.

    (("x",), ()) to ((), ("x",))     all_to_all over x
    (("x",), ()) to ((), ())         all_gather over x
    ((), ()) to (("x",), ())         each device takes its own part: nothing moves
    a sum over x, to (("x",), ())    reduce_scatter over x

A `Cut` says along which axes of the mesh each dimension is cut, the major ones first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from anima.core.primitive import Primitive
from anima.core.trace import aval_of
from anima.ops.collective import pmax_p, pmin_p, psum_p
from anima.ops.elementwise import mul
from anima.ops.exchange import all_gather_p, all_to_all_p, flat_index, reduce_scatter_p
from anima.ops.index import dynamic_slice_p

Axes = tuple[Any, ...]
Cut = tuple[Axes, ...]
COMBINING: dict[str, Primitive] = {"add": psum_p, "max": pmax_p, "min": pmin_p}


class Step(NamedTuple):
    """A collective over axes, or (without primitive) taking one's own part. `at` is the dimension that it is about,
    `to` that along which an `all_to_all` puts parts end to end."""

    primitive: Primitive | None
    axes: Axes
    at: int = 0
    to: int = 0


def steps(have: Cut, want: Cut, over: Axes = (), combines: str | None = None) -> list[Step]:
    """From one cut to another, where the values of devices along `over` are first to be combined."""
    now, found = list(have), []
    if combines == "add":
        for d, axes in enumerate(want):
            added = _added(now, want, d)
            if added and set(added) <= set(over) and not set(added) & {n for c in now for n in c}:
                found.append(Step(reduce_scatter_p, added, d))
                now[d] = axes
                over = tuple(n for n in over if n not in added)
    if over:
        found.append(Step(COMBINING[combines or "add"], over))
    found += _own_parts(now, want)
    for d, axes in enumerate(now):
        kept = _common(axes, want[d])
        leaving = axes[kept:]
        if not leaving:
            continue
        to = next((e for e in range(len(now)) if e != d and _added(now, want, e)[:len(leaving)] == leaving), None)
        if to is None:
            found.append(Step(all_gather_p, leaving, d))
        else:
            found.append(Step(all_to_all_p, leaving, to, d))
            now[to] += leaving
        now[d] = axes[:kept]
    return found + _own_parts(now, want)


def _common(a: Axes, b: Axes) -> int:
    """How many axes at the front of both are the same."""
    return next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _added(now: Sequence[Axes], want: Cut, d: int) -> Axes:
    """The axes along which a dimension is still to be cut, if it is only to be cut more."""
    return want[d][len(now[d]):] if want[d][:len(now[d])] == now[d] else ()


def _own_parts(now: list[Axes], want: Cut) -> list[Step]:
    """Cuts dimensions more, along axes that cut none."""
    found = []
    for d in range(len(now)):
        added = _added(now, want, d)
        used = {n for axes in now for n in axes}
        free = added[:next((k for k, n in enumerate(added) if n in used), len(added))]
        if free:
            found.append(Step(None, free, d))
            now[d] += free
    return found


def bytes_sent(size: float, plan: Sequence[Step], sizes: Mapping[Any, int]) -> float:
    """How many bytes each device sends, where its part has so many bytes before."""
    total = 0.0
    for step in plan:
        count = math.prod(sizes[n] for n in step.axes)
        if step.primitive is not None:
            total += step.primitive.sent(size, count)
        if step.primitive is all_gather_p:
            size *= count
        elif step.primitive in (None, reduce_scatter_p):
            size /= count
    return total


def _own_part(x: Any, at: int, axes: Axes, count: int) -> Any:
    shape = list(aval_of(x).shape)
    shape[at] //= count
    starts: list[Any] = [np.int32(0)] * len(shape)
    starts[at] = mul(flat_index(axes), np.int32(shape[at]))
    return dynamic_slice_p.bind(x, *starts, slice_sizes=tuple(shape))


def apply(x: Any, plan: Sequence[Step], sizes: Mapping[Any, int]) -> Any:
    """The value after these steps, on each device."""
    for primitive, axes, at, to in plan:
        count = math.prod(sizes[n] for n in axes)
        if primitive is None:
            x = _own_part(x, at, axes, count)
        elif primitive is all_gather_p:
            x = primitive.bind(x, all_gather_dimension=at, axis_index_groups=None, axis_name=axes, axis_size=count,
                               tiled=True)
        elif primitive is all_to_all_p:
            x = primitive.bind(x, axis_name=axes, split_axis=at, concat_axis=to, axis_index_groups=None, tiled=True)
        elif primitive is reduce_scatter_p:
            x = primitive.bind(x, scatter_dimension=at, axis_index_groups=None, axis_name=axes, axis_size=count,
                               tiled=True)
        else:
            x = primitive.bind(x, axes=axes, axis_index_groups=None)
    return x
