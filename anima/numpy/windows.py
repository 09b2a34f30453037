"""Indices that hold windows (`ds(i, n)`): reading takes these first, writing puts what was updated back in their place.

    x[ds(i, 2), 0]      dynamic_slice(x, (i, 0), (2, n))[:, 0]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from anima.core.array import Array
from anima.core.windows import Slice
from anima.numpy.promote import as_array
from anima.ops import elementwise as ew, index as ix, shape as sh

_I32 = np.dtype(np.int32)


def holds_window(index: Any) -> bool:
    """Whether an index has an entry `ds(i, n)`."""
    return isinstance(index, Slice) or (isinstance(index, tuple) and any(isinstance(e, Slice) for e in index))


def first_window(x: Array, index: Any) -> tuple[Slice, int, tuple[Any, ...]]:
    """The first window of an index, its axis, and the index of what it takes."""
    entries = index if isinstance(index, tuple) else (index,)
    place = next(k for k, e in enumerate(entries) if isinstance(e, Slice))

    def axes(part: tuple[Any, ...]) -> int:
        return sum(0 if e is None or e is Ellipsis else np.ndim(e) if _is_mask(e) else 1 for e in part)

    before = entries[:place]
    axis = x.ndim - axes(entries[place:]) if any(e is Ellipsis for e in before) else axes(before)
    if not 0 <= axis < x.ndim:
        raise IndexError(f"Too many indices: array is {x.ndim}-dimensional, but {axes(entries)} were indexed")
    window = entries[place]
    if not isinstance(window.size, int):
        raise TypeError(f"The size of a window must be a known integer, as in ds(start, 3); got {window.size!r}.")
    if not window.size >= 0 or (window.stride == 1 and window.size > x.shape[axis]):
        raise TypeError(f"A window of {window.size} elements does not fit into axis {axis} of size {x.shape[axis]}.")
    return window, axis, (*before, slice(None), *entries[place + 1:])


def _is_mask(entry: Any) -> bool:
    return isinstance(entry, (bool, np.bool_)) or getattr(entry, "dtype", None) == np.bool_


def _starts(window: Slice, size: int) -> Array:
    """Where a window starts, counted from the front."""
    start = ew.convert(as_array(window.start), _I32, False)
    return ew.select(ew.lt(start, np.int32(0)), ew.add(start, np.int32(size)), start)


def positions(window: Slice, size: int) -> Array:
    """The places of the elements of a window; some may be out of bounds."""
    steps = np.arange(window.size, dtype=_I32) * np.int32(window.stride)
    return ew.add(sh.broadcast(_starts(window, size), (window.size,)), as_array(steps))


def read(x: Array, index: Any, get: Callable[[Array, Any], Array]) -> Array:
    """`get` of what the first window takes of `x`, which is the nearest that there is."""
    window, axis, rest = first_window(x, index)
    return get(_taken(x, window, axis), rest)


def _taken(x: Array, window: Slice, axis: int) -> Array:
    if window.stride == 1:
        return ix.dynamic_slice_in_dim(x, window.start, window.size, axis)
    return x[(*(slice(None),) * axis, positions(window, x.shape[axis]))]


def updated(x: Array, index: Any, update: Callable[[Array, Any], Array]) -> Array:
    """`x` with the first window replaced by `update` of it; elements of windows that do not fit stay as they are."""
    window, axis, rest = first_window(x, index)
    new = update(_taken(x, window, axis), rest)
    if window.stride != 1:
        return x.at[(*(slice(None),) * axis, positions(window, x.shape[axis]))].set(new)
    start = ew.convert(as_array(window.start), _I32, False)   # of which negative ones do not fit
    starts = [start if k == axis else np.int32(0) for k in range(x.ndim)]
    put = ix.dynamic_update_slice(x, new, starts, allow_negative_indices=False)
    fits = ew.and_(ew.ge(start, np.int32(0)), ew.le(start, np.int32(x.shape[axis] - window.size)))
    return ew.select(sh.broadcast(fits, x.shape), put, x)
