"""Reading by index, exactly as NumPy does: ints, slices, None, Ellipsis, integer arrays, boolean masks.

What is known when the program is made becomes slices; one traced int, a `dynamic_slice`; arrays, a
`gather` with negative indices wrapped around:

    x[0, ::2]  ->  slice[...] x; squeeze[dimensions=(0,)]          x[i]  ->  lt, add, select_n, gather

An index out of bounds reads the nearest element. A mask must be known: the result's size depends on it.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any

import numpy as np

from anima import errors, tree
from anima.api.eager import repeated
from anima.config import config
from anima.core import transfers
from anima.core.array import Array, ConcreteArray
from anima.core.avals import (
    ShapedArray,
    broadcast_shapes,
    check_countable,
    max_dim,
    min_dim,
    scalar_type,
    slice_ends,
    slice_length,
)
from anima.core.dims import Dim, least_size
from anima.core.placement import pulls
from anima.core.state import current
from anima.core.trace import EVAL, Tracer, is_tracing, wrap
from anima.numpy import windows
from anima.numpy.creation import array
from anima.numpy.elementwise import broadcast_array
from anima.numpy.promote import as_array, is_for_numpy, is_integer, operand
from anima.ops import elementwise as ew, shape as sh
from anima.ops.index import GatherDimensionNumbers, GatherScatterMode, dynamic_slice, gather, narrow_index
from anima.util import record, replace

_I32 = np.dtype(np.int32)


@record
class StaticSlice:
    """A slice of an axis with known bounds: `size` elements from `start`, in steps of `step`."""

    start: int
    step: int
    size: int

    @property
    def low(self) -> int:
        """The smallest index of the span."""
        if self.step > 0 or not self.size:
            return self.start
        return min_dim(self.start + (self.size - 1) * self.step, self.start + 1)  # of a size that may be 0, too

    @property
    def high(self) -> int:
        """One more than the largest index of the span."""
        return self.low + max_dim((self.size - 1) * abs(self.step) + 1, 0) if self.size else self.low

    @property
    def turned(self) -> bool:
        """Whether there are elements in reverse order, for all that is known of its size."""
        return self.step < 0 and (isinstance(self.size, Dim) or self.size > 1)

    @property
    def contiguous(self) -> bool:
        """Whether its elements are known to be next to each other."""
        if isinstance(self.size, Dim) or isinstance(self.step, Dim):
            return type(self.step) is int and self.step in (1, -1)
        return self.step in (1, -1) or self.size <= 1


@dataclass(slots=True)
class Subscript:
    """An index taken apart. `axes[i]` says what is done to axis i of the operand; `layout` what the result's
    dimensions are: an axis, None (a new one), or BATCH (the place of the common shape of the index arrays)."""

    operand: Array
    axes: list[StaticSlice | int | Array | np.ndarray] = field(default_factory=list)
    layout: list[int | None] = field(default_factory=list)
    batch_shape: tuple[int, ...] | None = None     # None: no index arrays

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        out: list[int] = []
        for item in self.layout:
            if item == BATCH:
                out.extend(self.batch_shape or ())
            else:
                out.append(1 if item is None else self.axes[item].size)  # type: ignore[union-attr]
        return tuple(out)

    def without_new(self) -> Subscript:
        """The index without its new axes."""
        return replace(self, layout=[item for item in self.layout if item is not None])


BATCH = -1


# ---------------------------------------------------------------- analysis

def as_tuple(index: Any) -> tuple[Any, ...]:
    """The index of each axis; TypeError for lists, which NumPy reads in two ways."""
    if isinstance(index, tuple):
        return index
    if isinstance(index, str):
        raise TypeError(f"Anima does not support string indexing; got idx={index!r}")
    if isinstance(index, list):
        several = any(item is None or item is Ellipsis or isinstance(item, (slice, list, tuple)) for item in index)
        raise TypeError("Using a non-tuple sequence for multidimensional indexing is not allowed; use "
                        f"`arr[{'tuple' if several else 'array'}(seq)]` instead of `arr[seq]`.")
    return (index,)


def analyse(x: Array, index: Any, clamp_ints: bool = True, wrap: bool = True) -> Subscript:
    """The parts of `index`, checked against the shape of `x`.

    With `clamp_ints`, known ints are brought into bounds; with `wrap`, negative ones count from the end.
    """
    entries = [_entry(e, i) for i, e in enumerate(as_tuple(index))]
    entries = _with_ellipsis(x, entries)
    out = Subscript(x)
    advanced: list[int] = []        # positions among the entries of index arrays and, with them, ints
    first = 0                       # and how many dimensions of the result come before the first of them
    consumed = 0
    for position, entry in enumerate(entries):
        if entry is Ellipsis:
            continue
        if entry is None:
            out.layout.append(None)
        elif isinstance(entry, _Mask):
            arrays, out.operand = _mask_arrays(entry, out.operand, consumed, position)
            out.axes.extend(arrays)
            first = first if advanced else len(out.layout)
            advanced.append(position)
            consumed += len(arrays)
        elif isinstance(entry, slice):
            out.axes.append(_span(entry, out.operand.shape[consumed], position))
            out.layout.append(consumed)
            consumed += 1
        else:
            out.axes.append(_known(entry, out.operand.shape[consumed], consumed, clamp_ints, wrap))
            first = first if advanced else len(out.layout)
            advanced.append(position)
            consumed += 1
    out.axes.extend(StaticSlice(0, 1, n) for n in out.operand.shape[consumed:])
    out.layout.extend(range(consumed, out.operand.ndim))
    _place_batch(out, advanced, first)
    return out


class _Mask:
    """A boolean index with a known value."""

    def __init__(self, value: np.ndarray):
        self.value = value


def _entry(entry: Any, position: int) -> Any:
    """One entry checked: None, Ellipsis, a slice, an int, an integer array or a mask."""
    if entry is None or entry is Ellipsis or type(entry) is int:
        return entry
    if isinstance(entry, slice):
        for bound in (entry.start, entry.stop, entry.step):
            if isinstance(bound, Tracer) and bound.concrete() is None:
                raise IndexError(
                    f"Slice entries must be static integers. Got {entry} at position {position}. "
                    "Array slice indices must have static start/stop/step to be used with NumPy indexing syntax. "
                    "Fix: anima.lax.dynamic_slice (its size must be known, its start need not), or "
                    "anima.numpy.where with a mask.")
        return entry
    if isinstance(entry, str):
        raise TypeError(f"Anima does not support string indexing; got idx={entry!r}")
    if hasattr(entry, "__jax_array__"):
        entry = entry.__jax_array__()
    if isinstance(entry, (list, tuple)):
        traced = any(isinstance(x, Array) for x in tree.leaves(entry))
        entry = array(entry) if traced else np.asarray(entry) if len(entry) else np.zeros(0, _I32)
    if isinstance(entry, (bool, np.bool_)):
        return _Mask(np.asarray(entry))
    if isinstance(entry, (np.integer, np.ndarray)) and entry.ndim == 0 and entry.dtype.kind in "iu":
        return int(entry)
    if isinstance(entry, np.ndarray):
        operand("indexing", entry)  # ValueError for masked arrays
    dtype = entry.dtype if isinstance(entry, (Array, np.ndarray, np.generic)) else None
    if dtype is None:
        if isinstance(entry, (float, complex)):
            dtype = np.asarray(entry).dtype
        elif hasattr(entry, "__index__"):
            return operator.index(entry)
        else:
            raise IndexError("only integers, slices (`:`), ellipsis (`...`), newaxis (`None`) and integer or boolean "
                             f"arrays are valid indices. Got {entry}")
    if dtype == np.bool_:
        return _Mask(known_mask(entry))
    if not is_integer(dtype):
        raise TypeError(f"Indexer must have integer or boolean type, got indexer with type {dtype.name}")
    known = isinstance(entry, ConcreteArray) and not pulls(entry)
    if known and current.recording is None:  # else it may be another array the next time
        return int(entry.value) if not entry.ndim else entry.value
    transfers.implicit(entry)
    return entry


def _masked(x: Array, mask: Any) -> Array | None:
    """The elements where a mask holds, if NumPy may pick them."""
    if not mask.ndim or mask.shape != x.shape[:mask.ndim] or not is_for_numpy(x):
        return None
    picked = x.elements()[mask.elements() if type(mask) is ConcreteArray else mask]
    return wrap(picked, x.aval.update(shape=picked.shape))


def known_mask(mask: Any) -> np.ndarray:
    if isinstance(mask, Tracer):
        value = mask.concrete()
        if value is None:
            raise errors.NonConcreteBooleanIndexError(mask)
        mask = value
    return np.asarray(mask)


def _with_ellipsis(x: Array, entries: list[Any]) -> list[Any]:
    """The entries with the Ellipsis replaced by full slices (if there are none to put, it stays: it parts the
    index arrays around it); IndexError for too many."""
    count = sum(e is Ellipsis for e in entries)
    if count > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    consumed = sum(e.value.ndim if isinstance(e, _Mask) else 1 for e in entries if e is not None and e is not Ellipsis)
    if consumed > x.ndim:
        raise IndexError(f"Too many indices: array is {x.ndim}-dimensional, but {consumed} were indexed")
    if not count:
        return entries
    at = next(i for i, e in enumerate(entries) if e is Ellipsis)
    return entries[:at] + ([slice(None)] * (x.ndim - consumed) or [Ellipsis]) + entries[at + 1:]


def _mask_arrays(mask: _Mask, x: Array, axis: int, position: int) -> tuple[tuple[np.ndarray, ...], Array]:
    """The integer arrays that a mask stands for, and the operand (with a new axis for a scalar mask)."""
    value = mask.value
    if not value.ndim:
        return (np.zeros(int(value), _I32),), sh.expand_dims(x, (axis,))
    expected = x.shape[axis:axis + value.ndim]
    if any(n != m for n, m in zip(value.shape, expected, strict=True)):
        raise IndexError(f"boolean index did not match shape of indexed array in index {position}: got {value.shape}, "
                         f"expected {list(expected)}")
    return tuple(a.astype(_I32) for a in np.nonzero(value)), x


def _span(entry: slice, size: int, position: int) -> StaticSlice:
    try:
        start, stop, step = slice_ends(entry, size)
    except TypeError:
        bad = next(b for b in (entry.start, entry.stop, entry.step) if b is not None and not hasattr(b, "__index__"))
        raise TypeError(f"'{type(bad).__name__}' object cannot be interpreted as an integer: slice entries must be "
                        f"static integers, got {entry} at position {position}") from None
    count = slice_length(start, stop, step)
    return StaticSlice(start, step, count) if count or isinstance(count, Dim) else StaticSlice(0, 1, 0)


def _known(entry: Any, size: int, axis: int, clamp: bool, wrap: bool) -> Any:
    """A known int, to `wrap` counted from the end if negative; index arrays as they are.

    To `clamp`, one that is out of bounds is an index like those that are not known, so that programs show it.
    """
    if not isinstance(entry, int):
        return entry
    if size == 0:
        raise IndexError(f"index is out of bounds for axis {axis} with size 0")
    least = least_size(size)
    if clamp and not (-least if wrap else 0) <= entry < least:
        if not isinstance(size, Dim):
            _check_static(entry, axis, size)
        return as_array(_narrow_int(entry))
    return entry + size if wrap and entry < 0 else entry


def _check_static(entry: int, axis: int, size: int) -> None:
    """IndexError for a known index out of bounds, under the option `check_static_indices`."""
    if config.check_static_indices:
        raise IndexError(f"index {entry} out of bounds for axis {axis} with size {size}")


def _reads_empty(plan: Subscript) -> int | None:
    """The first axis of size 0 that an index array reads along."""
    return next((axis for axis, (entry, size) in enumerate(zip(plan.axes, plan.operand.shape, strict=True))
                 if not (size or isinstance(entry, StaticSlice))), None)


def _check_not_empty(plan: Subscript) -> None:
    axis = _reads_empty(plan)
    if axis is not None:
        raise IndexError(f"index is out of bounds for axis {axis} with size 0")


def _place_batch(out: Subscript, advanced: Sequence[int], first: int) -> None:
    """Puts the index arrays' common shape where NumPy puts it: in the place of the arrays if they are
    together, else in front."""
    shapes = [a.shape for a in out.axes if isinstance(a, (Array, np.ndarray))]
    if not shapes:
        return
    out.batch_shape = _common(shapes)
    together = advanced[-1] - advanced[0] == len(advanced) - 1
    out.layout.insert(first if together else 0, BATCH)


def _common(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    try:
        return broadcast_shapes(*shapes)
    except TypeError:
        raise ValueError("shape mismatch: indexing arrays could not be broadcast together with shapes "
                         + " ".join(map(str, shapes))) from None


# ---------------------------------------------------------------- reading

def _element(x: Array, index: Any) -> Array | None:
    """The one element of an array that ints say the place of, outside of all transformations; None for what else may be
    asked for. A loop over elements asks each time for what it has not asked for before."""
    if x.__class__ is not ConcreteArray or (index.__class__ is not int and index.__class__ is not tuple):
        return None
    aval, places = x.aval, index if index.__class__ is tuple else (index,)
    if aval.__class__ is not ShapedArray or len(places) != len(aval.shape) or not isinstance(aval.dtype, np.dtype):
        return None
    for i, n in zip(places, aval.shape, strict=True):
        if i.__class__ is not int or not -n <= i < n:
            return None
    value = x._value
    if value.__class__ is str or current.recording is not None or current.trace is not EVAL or not EVAL.learns(
            config.call_key()):
        return None
    return wrap(value[places], scalar_type(aval.dtype, aval.weak_type))


@partial(repeated, moves=True)
def _read(x: Array, index: Any) -> Array:
    """`x[index]`."""
    if type(index) is int and x.ndim:
        return _row(x, index)
    if windows.holds_window(index):
        return windows.read(x, index, getitem)
    if type(index) in (ConcreteArray, np.ndarray) and index.dtype == np.bool_:
        picked = _masked(x, index)
        if picked is not None:
            return picked
    plan = analyse(x, index)
    traced = [a for a in plan.axes if isinstance(a, (Array, np.ndarray))]
    if not traced:
        picked = _static(plan)
    elif plan.batch_shape == ():
        picked = _dynamic(plan)
    else:
        return _insert_new(plan, _gathered(plan, None, None, False, False, True))
    return _insert_new(plan, picked)


@wraps(_read)
def getitem(x: Array, index: Any) -> Array:
    element = _element(x, index)
    return _read(x, index) if element is None else element


def _row(x: Array, index: int) -> Array:
    """`x[index]` for a known int: what loops over rows do most."""
    shape = x.shape
    n = shape[0]
    if not n:
        raise IndexError("index is out of bounds for axis 0 with size 0")
    least = least_size(n)
    if not -least <= index < least:
        return _dynamic(analyse(x, index))
    index = index + n if index < 0 else index
    if n > 1:
        rest = shape[1:]
        x = sh.slice_p.bind(x, start_indices=(index, *(0,) * len(rest)), limit_indices=(index + 1, *rest), strides=None)
    return sh.squeeze_p.bind(x, dimensions=(0,))


def _insert_new(plan: Subscript, picked: Array) -> Array:
    """The new axes (None) of the index."""
    new, position = [], 0
    for item in plan.layout:
        if item is None:
            new.append(position)
        position += len(plan.batch_shape or ()) if item == BATCH else 1
    return sh.expand_dims(picked, new) if new else picked


def _static(plan: Subscript) -> Array:
    """Known ints and slices: slice, rev, squeeze."""
    x = plan.operand
    spans = [StaticSlice(a, 1, 1) if isinstance(a, int) else a for a in plan.axes]
    x = sh.slice(x, [s.low for s in spans], [s.high for s in spans], [abs(s.step) if s.size else 1 for s in spans])
    backwards = [i for i, s in enumerate(spans) if s.turned]
    x = sh.rev(x, backwards) if backwards else x
    ints = [i for i, a in enumerate(plan.axes) if isinstance(a, int)]
    return sh.squeeze(x, ints) if ints else x


def _dynamic(plan: Subscript) -> Array:
    """Traced ints, all scalars: one dynamic_slice, which also takes the contiguous slices."""
    _check_not_empty(plan)
    starts: list[Any] = []
    sizes, rest, removed = [], [], []
    for i, (a, n) in enumerate(zip(plan.axes, plan.operand.shape, strict=True)):
        if isinstance(a, StaticSlice):
            whole = isinstance(a.step, Dim) or a.step != 1
            starts.append(0 if whole else a.start)
            sizes.append(n if whole else a.size)
            rest.append(a if whole else StaticSlice(0, 1, a.size))
        else:
            starts.append(a if isinstance(a, int) else wrapped(a, n))
            sizes.append(1)
            rest.append(StaticSlice(0, 1, 1))
            removed.append(i)
    x = dynamic_slice(plan.operand, [_as_i32(s) for s in starts], sizes, allow_negative_indices=False)
    return sh.squeeze(_static(Subscript(x, rest)), removed)


def _as_i32(index: Any) -> Any:
    return np.int32(index) if isinstance(index, int) else index


def _narrow_int(index: int) -> np.ndarray:
    """A known index of any size as `narrow_index` has it."""
    return narrow_index(np.asarray(min(max(index, -2**62), 2**62)))


def wrapped(index: Any, size: int) -> Any:
    """An index array with negative indices counted from the end; known ones at once, if the end is known."""
    check_countable("indexing", size)
    if isinstance(index, np.ndarray) and isinstance(size, Dim):
        index = as_array(narrow_index(index))
    if isinstance(index, np.ndarray):
        index = narrow_index(index)
        return np.where(index < 0, index + _I32.type(size), index)
    unsigned = index.dtype.kind == "u"
    if index.dtype != _I32 or index.weak_type:
        index = narrow_index(index)
    if unsigned:
        return index
    negative = ew.lt(index, np.int32(0))
    return ew.select_n(negative, index, ew.add(index, np.int32(size)))


def _gathered(plan: Subscript, mode: Any, fill_value: Any, is_sorted: bool, unique: bool, wrap: bool,
              clamp_ints: bool = True) -> Array:
    """Index arrays: slices first, then one gather over the indexed axes."""
    if 0 in (plan.batch_shape or ()) or (_reads_empty(plan) is not None and 0 in plan.shape):  # nothing is read
        return sh.zeros(plan.operand.aval.update(shape=plan.without_new().shape))
    _check_not_empty(plan)
    x, axes = plan.operand, list(plan.axes)
    by_array = [i for i, a in enumerate(axes) if isinstance(a, (Array, np.ndarray))]
    if clamp_ints:
        spans = [StaticSlice(a, 1, 1) if isinstance(a, int) else a if isinstance(a, StaticSlice)
                 else StaticSlice(0, 1, n) for a, n in zip(axes, x.shape, strict=True)]
        x = _static(Subscript(x, spans))
        ints = [i for i, a in enumerate(axes) if isinstance(a, int)]
    else:
        by_array = [i for i, a in enumerate(axes) if not isinstance(a, StaticSlice)]
        spans = [a if isinstance(a, StaticSlice) else StaticSlice(0, 1, n) for a, n in zip(axes, x.shape, strict=True)]
        x = _static(Subscript(x, spans))
        ints = []
    if ints:
        x = sh.squeeze(x, ints)
    kept = [i for i in range(len(axes)) if i not in ints]
    at = [kept.index(i) for i in by_array]
    batch = plan.batch_shape or ()
    indices = stacked([axes[i] for i in by_array], [x.shape[k] for k in at], batch, wrap)
    offset_start = _batch_position(plan)
    window = x.ndim - len(at)
    offset_dims = tuple(range(offset_start)) + tuple(range(offset_start + len(batch), len(batch) + window))
    numbers = GatherDimensionNumbers(offset_dims=offset_dims, collapsed_slice_dims=tuple(at), start_index_map=tuple(at))
    sizes = tuple(1 if k in at else n for k, n in enumerate(x.shape))
    mode = GatherScatterMode.PROMISE_IN_BOUNDS if mode is None else mode
    return gather(x, indices, numbers, sizes, unique_indices=unique, indices_are_sorted=is_sorted, mode=mode,
                  fill_value=fill_value)


def _batch_position(plan: Subscript) -> int:
    """How many of the operand's own dimensions come before the index arrays' shape in the result."""
    if BATCH not in plan.layout:
        return 0
    return sum(item is not None for item in plan.layout[:plan.layout.index(BATCH)])


def stacked(indices: Sequence[Any], sizes: Sequence[int], batch: tuple[int, ...], wrap: bool) -> Array:
    """Index arrays (and ints), broadcast to `batch` and side by side along a last axis, as int32."""
    columns: list[Any] = []
    for a, n in zip(indices, sizes, strict=True):
        if isinstance(a, int):
            columns.append(as_array(_narrow_int(a)) if isinstance(a, Dim) else _narrow_int(a))
        else:
            columns.append(wrapped(a, n) if wrap else narrow_index(a))
    if all(isinstance(c, np.ndarray) for c in columns) and (any(c.ndim for c in columns) or not is_tracing()):
        return as_array(np.stack([np.broadcast_to(c, batch) for c in columns], axis=-1))
    parts = [_column(c, batch) for c in columns]
    return sh.concatenate(parts, len(batch))


def _column(index: Any, batch: tuple[int, ...]) -> Array:
    """One index array of shape `batch + (1,)`."""
    index = as_array(index)
    if index.ndim == 0 or index.shape == batch:
        return sh.broadcast_in_dim(index, (*batch, 1), tuple(range(index.ndim)))
    return sh.expand_dims(broadcast_array(index, batch), (len(batch),))


def take_indexed(x: Array, index: Any, *, mode: Any = None, fill_value: Any = None, indices_are_sorted: bool = False,
                 unique_indices: bool = False, wrap_negative_indices: bool = True) -> Array:
    """`x[index]` with an out-of-bounds mode (None: the nearest element): what `x.at[index].get` does."""
    if windows.holds_window(index):
        return windows.read(x, index, partial(
            take_indexed, mode=mode, fill_value=fill_value, indices_are_sorted=indices_are_sorted,
            unique_indices=unique_indices, wrap_negative_indices=wrap_negative_indices))
    mode = None if mode is None else GatherScatterMode.from_any(mode)
    clamp = mode != GatherScatterMode.FILL_OR_DROP
    plan = analyse(x, index, clamp_ints=clamp, wrap=wrap_negative_indices)
    known = all(isinstance(a, StaticSlice) or (clamp and isinstance(a, int)) for a in plan.axes)
    if known or (clamp and wrap_negative_indices and plan.batch_shape == ()):
        return getitem(x, index)
    if plan.batch_shape is None:
        plan.batch_shape = ()
    picked = _gathered(plan, mode, fill_value, indices_are_sorted, unique_indices, wrap_negative_indices,
                       clamp_ints=clamp)
    return _insert_new(plan, picked)
