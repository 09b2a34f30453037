"""Padding arrays, in all of NumPy's modes.

    >>> jnp.pad(jnp.arange(3), 2, mode="reflect")
    Array([2, 1, 0, 1, 2, 1, 0], dtype=int32)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from anima import tree
from anima.api.eager import repeated
from anima.core import dtypes
from anima.core.array import Array
from anima.core.avals import max_dim, min_dim
from anima.core.dims import Dim, index_of
from anima.numpy import reductions, stats
from anima.numpy.creation import array as make_array, astype
from anima.numpy.elementwise import broadcast_array, constant_like, remainder
from anima.numpy.functions import round
from anima.numpy.indexing import take_indexed
from anima.numpy.promote import as_array, is_integer, operand, static_value
from anima.numpy.spaces import whole_range
from anima.ops import elementwise as ew, shape as sh

ArrayLike = Any
Width = tuple[int, int]


@repeated
def pad(array: ArrayLike, pad_width: Any, mode: Any = "constant", **kwargs: Any) -> Array:
    """`array` with `pad_width` (before, after) elements added along each axis.

    Modes: "constant" (`constant_values`), "edge", "reflect" and "symmetric" (`reflect_type`), "wrap",
    "linear_ramp" (`end_values`), "maximum", "mean", "median", "minimum" (`stat_length`), "empty", or a
    function `f(row, (before, after), axis, kwargs)` that returns the padded row.
    """
    x = as_array(operand("pad", array))
    weak = x.weak_type
    widths = _widths(pad_width, x.ndim)
    if any(n < 0 for pair in widths for n in pair):
        raise ValueError("index can't contain negative values")
    if callable(mode):
        return _pad_function(x, widths, mode, kwargs)
    if mode not in _OPTIONS:
        raise NotImplementedError(f"Unimplemented padding mode '{mode}' for np.pad. There are {', '.join(_OPTIONS)}, "
                                  "and functions.")
    unknown = set(kwargs) - set(_OPTIONS[mode])
    if unknown:
        raise ValueError(f"unsupported keyword arguments for mode '{mode}': {sorted(unknown)}")
    if mode in ("constant", "empty"):
        return _pad_constant(x, widths, kwargs.get("constant_values", 0))
    for axis, width in enumerate(widths):
        if any(width):
            x = _pad_axis(x, axis, width, mode, kwargs, x.ndim)
    return ew.convert(x, x.dtype, weak)


_OPTIONS: dict[str, tuple[str, ...]] = {
    "constant": ("constant_values",), "empty": (), "edge": (), "wrap": (), "linear_ramp": ("end_values",),
    "reflect": ("reflect_type",), "symmetric": ("reflect_type",), "maximum": ("stat_length",),
    "mean": ("stat_length",), "median": ("stat_length",), "minimum": ("stat_length",)}


def _widths(pad_width: Any, ndim: int) -> list[Width]:
    if isinstance(pad_width, dict):
        found: list[Width] = [(0, 0)] * ndim
        for axis, width in pad_width.items():
            before, after = (width, width) if np.ndim(width) == 0 else width
            found[axis] = index_of(before), index_of(after)
        return found
    kind = object if any(isinstance(n, Dim) for n in tree.leaves(pad_width)) else None
    given = np.asarray(static_value(pad_width, "pad_width argument of anima.numpy.pad must be static")
                       if isinstance(pad_width, Array) else pad_width, kind)
    if given.dtype.kind not in "iuO"[:3 if kind else 2] and given.size:
        raise TypeError("`pad_width` must be of integral type.")
    if given.shape == (ndim, 1) and ndim > 1:
        given = np.repeat(given, 2, 1)
    return [(index_of(a), index_of(b)) for a, b in np.broadcast_to(given, (ndim, 2))]


def _pairs(values: Any, ndim: int) -> list[tuple[Any, Any]]:
    """Values given once, once for (before, after), or for each axis: as (before, after) for each axis."""
    if (isinstance(values, Array) and values.ndim == 0) or np.isscalar(values):
        return [(values, values)] * ndim
    rows = [list(v) if isinstance(v, (tuple, list, np.ndarray)) or getattr(v, "ndim", 0) else v for v in values]
    if all(isinstance(r, list) for r in rows):
        if len(rows) not in (1, ndim):
            raise ValueError(f"pad: {len(rows)} pairs of values for {ndim} axes")
        rows = [tuple(r) if len(r) == 2 else (r[0], r[0]) for r in rows]
        return rows * ndim if len(rows) == 1 else rows
    return [(rows[0], rows[-1])] * ndim


def _pad_constant(x: Array, widths: list[Width], values: Any) -> Array:
    pairs = _pairs(values, x.ndim)
    same = not any(isinstance(v, Array) for p in pairs for v in p) and len({repr(v) for p in pairs for v in p}) == 1
    if same:  # (0.0 and -0.0 are two)
        return sh.pad(x, _fill(pairs[0][0], x), [(b, a, 0) for b, a in widths])
    for axis, ((before, after), (low, high)) in enumerate(zip(widths, pairs, strict=True)):
        for value, width in ((low, (before, 0)), (high, (0, after))):
            config = [(0, 0, 0)] * x.ndim
            config[axis] = (*width, 0)
            x = sh.pad(x, _fill(value, x), config)
    return x


def _fill(value: Any, x: Array) -> Array:
    value = as_array(operand("pad", value))
    return ew.convert(value if value.dtype == x.dtype else astype(value, x.dtype), x.dtype, x.weak_type)


def _pad_axis(x: Array, axis: int, width: Width, mode: str, options: dict[str, Any], ndim: int) -> Array:
    n = x.shape[axis]
    if not n:
        raise ValueError(f"can't extend empty axis {axis} using modes other than 'constant' or 'empty'")
    if mode in ("edge", "wrap", "reflect", "symmetric"):
        if options.get("reflect_type", "even") == "odd" and mode in ("reflect", "symmetric"):
            return _pad_odd(x, axis, width, mode)
        if options.get("reflect_type", "even") not in ("even", "odd"):
            raise ValueError(f"unsupported reflect_type {options['reflect_type']!r}")
        if any(isinstance(size, Dim) for size in (n, *width)):
            return _pad_edge(x, axis, width) if mode == "edge" else _pad_around(x, axis, width, mode)
        return _take_runs(x, np.pad(np.arange(n), width, mode=mode), axis)  # type: ignore[call-overload]
    if mode == "linear_ramp":
        return _pad_ramp(x, axis, width, _pairs(options.get("end_values", 0), ndim)[axis])
    lengths = options.get("stat_length")
    return _pad_statistic(x, axis, width, mode, (n, n) if lengths is None else _pairs(lengths, ndim)[axis])


def _pad_edge(x: Array, axis: int, width: Width) -> Array:
    """The first and the last part repeated, as often as sizes say that need not be known."""
    n = x.shape[axis]
    first, last = (broadcast_array(sh.slice_in_dim(x, at, at + 1, axis=axis),
                                   (*x.shape[:axis], count, *x.shape[axis + 1:]))
                   for at, count in zip((0, n - 1), width, strict=True))
    return sh.concatenate([first, x, last], axis)


def _pad_around(x: Array, axis: int, width: Width, mode: str) -> Array:
    """The places of elements computed from those in the result, which repeat after a while: for sizes that need not be
    known."""
    n = x.shape[axis]
    last = {"wrap": n - 1, "reflect": 2 * (n - 1), "symmetric": 2 * n - 1}[mode]
    places = whole_range(-width[0], n + width[1])
    places = remainder(places, constant_like(places, max_dim(last, 1) if mode == "reflect" else last + 1))
    if mode != "wrap":
        places = ew.min(places, ew.sub(constant_like(places, last), places))
    return take_indexed(x, (slice(None),) * axis + (places,), mode="promise_in_bounds", wrap_negative_indices=False)


def _take_runs(x: Array, index: np.ndarray, axis: int) -> Array:
    """`x` at known indices along `axis`, as slices forwards, backwards and standing still."""
    parts, start = [], 0
    while start < len(index):
        stop = _run_end(index, start)
        if stop - start > 1 and _run_end(index, stop - 1) - (stop - 1) > stop - start:
            stop -= 1  # the next run is the longer one
        first, last = int(index[start]), int(index[stop - 1])
        part = sh.slice_in_dim(x, min(first, last), max(first, last) + 1, axis=axis)
        if first == last:
            part = broadcast_array(part, (*x.shape[:axis], stop - start, *x.shape[axis + 1:]))
        parts.append(sh.rev(part, (axis,)) if first > last else part)
        start = stop
    return sh.concatenate(parts, axis)


def _run_end(index: np.ndarray, start: int) -> int:
    """Where the run of indices ends that begins at `start` and goes on by 1, -1 or 0."""
    steps = np.diff(index[start:])
    if not len(steps) or abs(steps[0]) > 1:
        return start + 1
    changes = np.flatnonzero(steps != steps[0])
    return start + 1 + int(changes[0] if len(changes) else len(steps))


def _pad_odd(x: Array, axis: int, width: Width, mode: str) -> Array:
    """Reflection through the edge: 2 * edge - mirrored, as often as needed."""
    before, after = width
    skip = 1 if mode == "reflect" else 0
    while before > 0 or after > 0:
        n = x.shape[axis]
        reach = n - skip
        if reach < 1:
            return _take_runs(x, np.zeros(before + n + after, int), axis)
        left, right = min(before, reach), min(after, reach)
        parts = [x]
        if left:
            edge = sh.slice_in_dim(x, 0, 1, axis=axis)
            mirrored = sh.rev(sh.slice_in_dim(x, skip, skip + left, axis=axis), (axis,))
            parts.insert(0, ew.sub(ew.add(edge, edge), mirrored))
        if right:
            edge = sh.slice_in_dim(x, n - 1, n, axis=axis)
            mirrored = sh.rev(sh.slice_in_dim(x, n - skip - right, n - skip, axis=axis), (axis,))
            parts.append(ew.sub(ew.add(edge, edge), mirrored))
        x = sh.concatenate(parts, axis)
        before, after = before - left, after - right
    return x


def _pad_ramp(x: Array, axis: int, width: Width, ends: tuple[Any, Any]) -> Array:
    compute = dtypes.to_inexact(x.dtype)
    parts = [x]
    for side, count, end in (("before", width[0], ends[0]), ("after", width[1], ends[1])):
        if not count:
            continue
        at = 0 if side == "before" else x.shape[axis] - 1
        edge = sh.slice_in_dim(x, at, at + 1, axis=axis)
        shape = tuple(count if i == axis else 1 for i in range(x.ndim))
        steps = sh.broadcasted_iota(dtypes.to_real(compute), shape, axis)
        steps = ew.convert_element_type(steps, compute) if steps.dtype != compute else steps
        end = ew.convert_element_type(_fill(end, x), compute)
        slope = ew.div(ew.sub(ew.convert_element_type(edge, compute), end), compute.type(count))
        ramp = ew.add(end, ew.mul(broadcast_array(slope, tuple(
            count if i == axis else n for i, n in enumerate(edge.shape))), steps))
        if is_integer(x.dtype):
            ramp = ew.floor(ramp)
        ramp = ramp if ramp.dtype == x.dtype else ew.convert_element_type(ramp, x.dtype)
        parts.insert(0, ramp) if side == "before" else parts.append(sh.rev(ramp, (axis,)))
    return sh.concatenate(parts, axis)


def _pad_statistic(x: Array, axis: int, width: Width, mode: str, lengths: tuple[Any, Any]) -> Array:
    statistic: Callable[..., Any] = {"maximum": reductions.max, "minimum": reductions.min, "mean": reductions.mean,
                                     "median": stats.median}[mode]
    n, parts = x.shape[axis], [x]
    for side, count, length in (("before", width[0], lengths[0]), ("after", width[1], lengths[1])):
        if not count:
            continue
        length = min_dim(index_of(length) if isinstance(length, Dim) else int(length), n)
        if length < 1:
            raise ValueError("stat_length of 0 yields no value for padding")
        window = sh.slice_in_dim(x, 0, length, axis=axis) if side == "before" else \
            sh.slice_in_dim(x, n - length, n, axis=axis)
        value = statistic(window, axis=axis, keepdims=True)
        if is_integer(x.dtype) and not is_integer(value.dtype):
            value = round(value)
        value = value if value.dtype == x.dtype else ew.convert_element_type(value, x.dtype)
        filled = broadcast_array(value, (*x.shape[:axis], count, *x.shape[axis + 1:]))
        parts.insert(0, filled) if side == "before" else parts.append(filled)
    return sh.concatenate(parts, axis)


def _pad_function(x: Array, widths: list[Width], function: Callable[..., Any], kwargs: dict[str, Any]) -> Array:
    padded = _pad_constant(x, widths, 0)
    for axis in range(x.ndim):
        rows = np.ndindex(*(n for i, n in enumerate(padded.shape) if i != axis))
        for row in rows:
            index = (*row[:axis], slice(None), *row[axis:])
            padded = padded.at[index].set(make_array(function(padded[index], widths[axis], axis, kwargs)))
    return padded
