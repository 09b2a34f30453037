"""Indexing of references: what `r[i]`, `r[i] = v`, `r.at[i]` and `r.addupdate(v, i)` mean.

An index is that of an array, its ellipsis written out and its masks taken as positions. A known integer out of bounds
is an error; of others, reads give the nearest element and writes are dropped, as with `x.at[i]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anima import errors
from anima.core import dtypes
from anima.core.array import Array, ConcreteArray, operator
from anima.core.avals import ShapedArray, broadcast_shapes
from anima.core.refs import OPERAND, Level, Levels, Ref, Span, check_alive, indexed_shape
from anima.core.trace import Tracer, aval_of
from anima.core.windows import Slice
from anima.numpy.indexing import as_tuple, known_mask
from anima.numpy.promote import is_integer
from anima.numpy.windows import first_window, positions
from anima.ops.broadcast import as_array, broadcast_in_dim
from anima.ops.elementwise import convert
from anima.transforms.refs import addupdate_p, get_p, swap_p


class TransformedRef:
    """A view of a reference: `r.at[2:]`. What is written to it is written to the reference."""

    __slots__ = ("levels", "operands", "ref", "shape")

    def __init__(self, ref: Ref, levels: Levels = (), operands: Sequence[Any] = ()):
        self.ref, self.levels, self.operands = ref, levels, tuple(operands)
        self.shape = indexed_shape(ref.shape, levels, [x.shape for x in self.operands])

    dtype = property(lambda self: self.ref.dtype)
    ndim = property(lambda self: len(self.shape))
    size = property(lambda self: int(np.prod(self.shape, dtype=np.int64)))

    def __repr__(self) -> str:
        return f"TransformedRef({self.ref!r}, shape={self.shape})"

    @property
    def at(self) -> _At:
        return _At(self)

    @errors.api_boundary
    def reshape(self, *shape: Any) -> Any:
        """The view in another shape."""
        return operator("ref_reshape")(self, *shape)

    @errors.api_boundary
    def bitcast(self, dtype: Any) -> Any:
        """The bits of the view as another type."""
        return operator("ref_bitcast")(self, dtype)

    def __getitem__(self, index: Any) -> Any:
        return get(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        set(self, index, value)

    def get(self, idx: Any = ()) -> Array:
        """The elements at `idx`."""
        return get(self, idx)

    def set(self, value: Any, idx: Any = ()) -> None:
        """Puts `value` at `idx`."""
        set(self, idx, value)

    def swap(self, value: Any, idx: Any = ()) -> Array:
        """Puts `value` at `idx`, and gives what was there."""
        return swap(self, idx, value)

    def addupdate(self, x: Any, idx: Any = ()) -> None:
        """Adds `x` to the elements at `idx`."""
        addupdate(self, idx, x)


class _At:
    """What `r.at` is: takes an index."""

    __slots__ = ("view",)

    def __init__(self, view: TransformedRef):
        self.view = view

    @errors.api_boundary
    def __getitem__(self, index: Any) -> TransformedRef:
        return _place(self.view, index, "ref_at")


def at(ref: Ref) -> _At:
    """Views of `ref`."""
    return _At(TransformedRef(ref))


def get(ref: Any, index: Any = None) -> Array:
    """The elements at `index` (all of them for None)."""
    place = _place(ref, ... if index is None else index, "ref_get")
    return get_p.bind(place.ref, *place.operands, levels=place.levels)


def set(ref: Any, index: Any, value: Any) -> None:
    """Puts `value` at `index`."""
    place = _place(ref, ... if index is None else index, "ref_set")
    swap_p.put(place.ref, _fitting(value, place, "swap"), *place.operands, levels=place.levels)


def swap(ref: Any, index: Any, value: Any, what: str = "ref_swap") -> Array:
    """Puts `value` at `index`, and gives what was there."""
    place = _place(ref, ... if index is None else index, what)
    return swap_p.bind(place.ref, _fitting(value, place, "swap"), *place.operands, levels=place.levels)


def addupdate(ref: Any, index: Any, value: Any) -> None:
    """Adds `value` to the elements at `index`; repeated indices add up."""
    place = _place(ref, ... if index is None else index, "ref_addupdate")
    addupdate_p.bind(place.ref, _fitting(value, place, "addupdate"), *place.operands, levels=place.levels)


def _fitting(value: Any, place: TransformedRef, what: str) -> Array:
    """The value in the shape and element type of a place; ValueError if it does not fit there."""
    try:
        value = as_array(value)
    except TypeError:
        value = as_array(np.asarray(value))
    expected = place.ref.aval.inner_aval.update(shape=place.shape)
    if value.dtype != expected.dtype and not (value.weak_type and _promotes(value.aval, expected)):
        raise ValueError(f"Invalid dtype for `{what}`. Ref dtype: {dtypes.name(expected.dtype)}. Value dtype: "
                         f"{dtypes.name(value.dtype)}. Convert it: value.astype(ref.dtype).")
    try:
        fits = broadcast_shapes(value.shape, expected.shape) == expected.shape
    except TypeError:
        fits = False
    if not fits:
        raise ValueError(f"Invalid shape for `{what}`. Ref shape: {place.ref.shape}. Expected shape: {expected.shape}. "
                         f"Value shape: {value.shape}.")
    value = convert(value, expected.dtype, expected.weak_type) if value.dtype != expected.dtype else value
    if value.shape == expected.shape:
        return value
    return broadcast_in_dim(value, expected.shape, range(expected.ndim - value.ndim, expected.ndim))


def _promotes(value: ShapedArray, expected: ShapedArray) -> bool:
    return dtypes.lattice_result_type((value.dtype, True), (expected.dtype, False))[0] == expected.dtype


def _place(ref: Any, index: Any, what: str) -> TransformedRef:
    """The view of a reference, or of a view, that an index gives."""
    if isinstance(index, TransformedRef):
        raise TypeError("A reference is no index: read it first, `r[...]`.")
    view = ref if isinstance(ref, TransformedRef) else None
    check_alive(ref if view is None else view.ref, what)
    view = TransformedRef(ref) if view is None else view
    level, operands = _level(view.shape, index)
    if all(isinstance(e, Span) and e.text(n) == ":" for e, n in zip(level, view.shape, strict=False)) and len(
            level) == len(view.shape):
        return view
    return TransformedRef(view.ref, (*view.levels, level), (*view.operands, *operands))


def _level(shape: Sequence[int], index: Any) -> tuple[Level, list[Any]]:
    """An index with an entry for each axis, and its operands."""
    entries = [_entry(e) for e in _without_windows(shape, as_tuple(index))]
    count = sum(e.ndim if _is_mask(e) else 1 for e in entries if e is not None and e is not Ellipsis)
    if sum(e is Ellipsis for e in entries) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    if count > len(shape):
        raise IndexError(f"Too many indices: the reference is to an array of {len(shape)} dimensions, but {count} were "
                         "indexed")
    where = next((k for k, e in enumerate(entries) if e is Ellipsis), len(entries))
    entries[where:where + 1] = [slice(None)] * (len(shape) - count)
    level: list[Any] = []
    operands: list[Any] = []
    axis = 0
    for entry in entries:
        if entry is None:
            level.append(None)
        elif _is_mask(entry):
            if entry.shape != tuple(shape[axis:axis + entry.ndim]):
                raise IndexError(f"boolean index of shape {entry.shape} does not match the axes "
                                 f"{tuple(shape[axis:axis + entry.ndim])}")
            for positions in np.nonzero(entry):
                level.append(OPERAND)
                operands.append(as_array(positions.astype(np.int32)))
            axis += entry.ndim
        else:
            level.append(_on_axis(entry, shape[axis], axis))
            if level[-1] is OPERAND:
                operands.append(as_array(entry))
            axis += 1
    return tuple(level), operands


def _without_windows(shape: Sequence[int], entries: tuple[Any, ...]) -> list[Any]:
    """An index in which windows with a known start are slices, and one with another start an array of integers.

    ValueError for a known one that does not fit; NotImplementedError for two others, or one beside integers.
    """
    out, moving = [*entries], 0
    while any(isinstance(e, Slice) for e in out):
        window, axis, out_after = first_window(np.broadcast_to(np.False_, tuple(shape)), tuple(out))
        place = next(k for k, e in enumerate(out) if isinstance(e, Slice))
        out = [*out_after]
        start = _entry(window.start)
        if isinstance(start, int):
            stop = start + window.size * window.stride
            if start < 0 or (window.size and stop - window.stride >= shape[axis]):
                raise ValueError(f"Out of bound slice: start={start}, size={window.size}, stride={window.stride}, "
                                 f"dim={shape[axis]}.")
            out[place] = slice(start, stop, window.stride)
            continue
        moving += 1
        if moving > 1 or not all(e is None or e is Ellipsis or isinstance(e, (slice, Slice)) for e in out):
            raise NotImplementedError("A window of a reference whose start is not known, beside another or beside "
                                      "integers. Fix: index in two steps, with ref.at[...].")
        out[place] = positions(window, shape[axis])
    return out


def _is_mask(entry: Any) -> bool:
    return isinstance(entry, np.ndarray) and entry.dtype == np.bool_


def _entry(entry: Any) -> Any:
    """An entry as None, Ellipsis, a slice, a mask, an int or an array of integers."""
    if entry is None or entry is Ellipsis or isinstance(entry, slice):
        return entry
    if isinstance(entry, Ref):
        raise TypeError("A reference is no index: read it first, `r[...]`.")
    if isinstance(entry, (list, tuple)):
        entry = np.asarray(entry) if len(entry) else np.zeros(0, np.int32)
    aval = aval_of(entry)
    if aval.dtype == np.bool_:
        return known_mask(entry)
    if not is_integer(aval.dtype):
        raise TypeError(f"Indexer must have integer or boolean type, got indexer with type {dtypes.name(aval.dtype)}")
    known = not isinstance(entry, Tracer) and not aval.shape
    return int(entry.elements() if isinstance(entry, ConcreteArray) else entry) if known else entry


def _on_axis(entry: Any, size: int, axis: int) -> Any:
    if isinstance(entry, int):
        if not -size <= entry < size:
            raise ValueError(f"Out of bound indexer: idx={entry}, dim={size}, axis {axis}.")
        return entry
    if not isinstance(entry, slice):
        return OPERAND
    for bound in (entry.start, entry.stop, entry.step):
        if isinstance(bound, Tracer):
            raise IndexError(f"Slice entries must be static integers. Got {entry} for axis {axis}. Fix: index with an "
                             "array of positions, `start + anima.numpy.arange(size)`.")
    start, stop, step = entry.indices(size)
    length = len(range(start, stop, step))
    return Span(start, length, step) if length else Span(0, 0, 1)
