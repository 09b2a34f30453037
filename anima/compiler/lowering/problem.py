"""Convolutions as sizes and distances in memory, whatever their layout.

With gaps between the elements of `x`, the output is cut into phases: every phase is a convolution without gaps, by the
part of the kernel whose places meet elements. So nothing is multiplied by what is only inserted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from anima.core.avals import Shape, row_major_strides
from anima.util import record, replace


@record
class SpatialDim:
    """One dimension of space: the output has `places`, `step` elements of x apart, the kernel `taps`, `gap` apart, and
    the first of both is at `start` in x, which has `size`; x, w and out are distances in memory."""

    places: int
    taps: int
    step: int
    gap: int
    start: int
    size: int
    x: int
    w: int
    out: int


@record
class Problem:
    """A convolution without gaps: sizes, and distances in memory by dimension."""

    groups: int
    batch: int
    features: int
    outputs: int
    x: tuple[int, int, int]      # of groups, batch, features
    w: tuple[int, int, int]      # of groups, features, outputs
    out: tuple[int, int, int]    # of groups, batch, outputs
    space: tuple[SpatialDim, ...]
    w_offset: int = 0
    out_offset: int = 0

    @property
    def terms(self) -> int:
        return self.features * math.prod(s.taps for s in self.space)

    @property
    def positions(self) -> int:
        return self.batch * math.prod(s.places for s in self.space)


def problems(x: Shape, w: Shape, out: Shape, p: dict[str, Any]) -> Iterator[Problem]:
    """The convolutions, without gaps, that one with parameters `p` is made of: one for each phase of the output."""
    lhs, rhs, res = p["dimension_numbers"]
    xs, ws, os = map(row_major_strides, (x, w, out))
    features, batches = p["feature_group_count"], p["batch_group_count"]
    groups = features * batches
    batch, outputs = x[lhs[0]] // batches, w[rhs[0]] // groups
    x_group = xs[lhs[0]] * batch if batches > 1 else xs[lhs[1]] * w[rhs[1]]
    dims = []
    for d in range(len(x) - 2):
        a, b, c = lhs[2 + d], rhs[2 + d], res[2 + d]
        space = SpatialDim(out[c], w[b], p["window_strides"][d], p["rhs_dilation"][d], -p["padding"][d][0], x[a],
                           xs[a], ws[b], os[c])
        dims.append(list(_phases(space, p["lhs_dilation"][d])))
    for phase in itertools.product(*dims):
        yield Problem(groups, batch, w[rhs[1]], outputs, (x_group, xs[lhs[0]], xs[lhs[1]]),
                      (ws[rhs[0]] * outputs, ws[rhs[1]], ws[rhs[0]]), (os[res[1]] * outputs, os[res[0]], os[res[1]]),
                      tuple(s for s, _, _ in phase), sum(n for _, n, _ in phase), sum(n for _, _, n in phase))


def _phases(space: SpatialDim, apart: int) -> Iterator[tuple[SpatialDim, int, int]]:
    """The phases along one dimension, with where their kernel and their output begin."""
    every, some = apart // math.gcd(space.step, apart), apart // math.gcd(space.gap, apart)
    for phase in range(min(every, space.places)):
        base = phase * space.step + space.start
        first = next((k for k in range(min(some, space.taps)) if (base + k * space.gap) % apart == 0), space.taps)
        yield replace(
            space, places=-(-(space.places - phase) // every), taps=max(-(-(space.taps - first) // some), 0),
            step=every * space.step // apart, gap=some * space.gap // apart,
            start=(base + first * space.gap) // apart, w=space.w * some,
            out=space.out * every), first * space.w, phase * space.out
