"""Gather and scatter on NumPy arrays: windows of an operand by where their elements lie in memory.

What windows span whole of the operand's last axes is a row; rows are counted from the operand's first one. A window is
the row where it starts and, if it is of more than one, what each is further on.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from anima.core.avals import Shape, inverse_order
from anima.ops.reference import Extreme
from anima.util import record

Numbers = tuple[Shape, Shape, Shape, Shape, Shape]  # as of GatherDimensionNumbers


@record(eq=False)
class WindowPlaces:
    """Windows of one size in an operand of one shape; its axes are those it has in the order in which they lie."""

    row: int                                # elements
    strides: np.ndarray                     # rows from one place to the next, for each part of an index
    last: np.ndarray                        # the last start inside, for each part of an index
    batching: tuple[tuple[int, int], ...]   # axes of the indices that the operand runs in step with, and its strides
    spans: tuple[tuple[int, int], ...]      # lengths of a window in rows, and their strides
    shape: Shape                            # of all windows' elements: the axes of the indices, those of a window
    axes: Shape                             # where these axes are in a gather's result,
    turned: Shape                           # and which of these its own are
    lies: Shape                             # which of the operand's axes, in the order in which they lie, its own are

    def starts(self, indices: np.ndarray, clips: bool) -> tuple[np.ndarray, np.ndarray | None]:
        """The row where each window starts, moved inside; and, unless `clips` or all are inside, which are."""
        rows = indices.reshape(math.prod(indices.shape[:-1]), indices.shape[-1])
        if rows.dtype == np.uint64:  # beyond any array, and still there when read as signed
            rows = np.minimum(rows, np.uint64(2**62))
        rows = rows.astype(np.int64)
        inside = np.minimum(np.maximum(rows, 0), self.last)
        valid = None if clips or (inside == rows).all() else (inside == rows).all(1)
        starts = inside @ self.strides
        for axis, stride in self.batching:
            along = np.arange(indices.shape[axis]) * stride
            starts += np.broadcast_to(along.reshape([-1 if d == axis else 1 for d in range(indices.ndim - 1)]),
                                      indices.shape[:-1]).reshape(-1)
        return starts, valid

    def rows(self, starts: np.ndarray) -> np.ndarray:
        """The rows of the windows that start there, in turn."""
        return (starts[:, None] + _distances(self.spans)).reshape(-1) if self.spans else starts


def _distances(spans: tuple[tuple[int, int], ...]) -> np.ndarray:
    found = np.zeros(1, np.int64)
    for size, stride in spans:
        found = (found[:, None] + np.arange(size) * stride).reshape(-1)
    return found


@lru_cache(4096)
def _windows(shape: Shape, order: Shape, batch: Shape, sizes: Shape, numbers: Numbers) -> WindowPlaces:
    offset_dims, collapsed, index_map, batching, indices_batching = numbers
    single = {*collapsed, *batching}
    count = len(order)
    while count and sizes[d := order[count - 1]] == shape[d] and d not in single:
        count -= 1
    row = math.prod([shape[d] for d in order[count:]])
    strides = {d: math.prod([shape[e] for e in order[k + 1:count]]) for k, d in enumerate(order)}
    strides |= dict.fromkeys(order[count:], 0)  # windows start where these axes do
    kept = [d for d in order if d not in single]
    places = dict(zip(sorted(kept), offset_dims, strict=True))
    axes = [i for i in range(len(batch) + len(kept)) if i not in offset_dims] + [places[d] for d in kept]
    return WindowPlaces(
        row, np.array([strides[d] for d in index_map], np.int64),
        np.array([shape[d] - sizes[d] for d in index_map], np.int64),
        tuple((b, strides[d]) for d, b in zip(batching, indices_batching, strict=True)),
        tuple((sizes[d], strides[d]) for d in order[:count] if d not in single and sizes[d] != 1),
        (*batch, *[sizes[d] for d in kept]), tuple(axes), inverse_order(axes), inverse_order(order))


def _in_turn(x: np.ndarray) -> tuple[np.ndarray, Shape]:
    """An array whose elements lie in turn, and which of `x`'s axes its own are: `x` itself, turned, or a copy."""
    order = tuple(range(x.ndim))
    if not x.flags.c_contiguous:
        order = tuple(sorted(order, key=lambda d: -x.strides[d]))
        x = np.ascontiguousarray(x.transpose(order))
    return x, order


def gather(x: np.ndarray, indices: np.ndarray, numbers: Numbers, sizes: Shape, clips: bool, fill: Any) -> np.ndarray:
    """The windows of `x` of the given sizes that start at `indices`; `fill` for one not inside, unless `clips`."""
    lying, order = _in_turn(x)
    windows = _windows(x.shape, order, indices.shape[:-1], sizes, numbers)
    if not math.prod(windows.shape):
        out = np.empty(windows.shape, x.dtype)
    else:
        starts, valid = windows.starts(indices, clips)
        out = lying.reshape(-1, windows.row).take(windows.rows(starts), 0)
        if valid is not None:
            out.reshape(len(valid), -1)[~valid] = np.array(fill).astype(x.dtype)
        out = out.reshape(windows.shape)
    return out.transpose(windows.turned)


def scatter(x: np.ndarray, indices: np.ndarray, updates: np.ndarray, numbers: Numbers, sizes: Shape, clips: bool,
            combine: np.ufunc | Extreme | None, wide: np.dtype) -> np.ndarray:
    """`x` with the windows that start at `indices` combined with `updates`, one after the other, or replaced by them;
    those not inside are left out, unless `clips`. Computed in the dtype `wide`."""
    lying, order = _in_turn(x)
    windows = _windows(x.shape, order, indices.shape[:-1], sizes, numbers)
    starts, valid = windows.starts(indices, clips)
    updates = updates.transpose(windows.axes).reshape(len(starts), -1)
    if valid is not None:
        starts, updates = starts[valid], updates[valid]
    rows, row = windows.rows(starts), windows.row
    out = lying.astype(wide)
    if combine is None:
        out.reshape(-1, row)[rows] = updates.reshape(-1, row)
    else:  # with one place for each element, as ufunc.at is many times faster with these
        places = rows if row == 1 else (rows[:, None] * row + np.arange(row)).reshape(-1)
        combine.at(out.reshape(-1), places, updates.reshape(-1).astype(wide, copy=False))
    return out.transpose(windows.lies).astype(x.dtype, copy=False)
