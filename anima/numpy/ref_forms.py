"""References read in another form: in another shape, or as bits of another type.

    r.reshape(4, 16)[1] = row            r.bitcast(jnp.int32)[...]

Such a view is a chain of steps from the whole of the reference. A step gives a part of what is before it, and what is
before it with another part in the place of that: so the last one is written by reading all and going back.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from anima import errors
from anima.api.stages import ShapeDtypeStruct
from anima.api.tracing import eval_shape
from anima.core import dtypes
from anima.core.array import Array
from anima.numpy.manipulation import reshape as reshaped
from anima.numpy.promote import canonical_shape
from anima.ops.elementwise import bitcast_convert_type
from anima.ops.shape import moveaxis


class RefStep(NamedTuple):
    """A part of a value, and the value with another such part."""

    part: Callable[[Any], Any]
    put: Callable[[Any, Any], Any]


class FormedRef:
    """A view of a reference, or of a part of one, in another form. What is written to it is written to the reference,
    all of which is read and written."""

    __slots__ = ("dtype", "shape", "steps", "view")

    def __init__(self, view: Any, *steps: RefStep) -> None:
        if isinstance(view, FormedRef):
            view, steps = view.view, (*view.steps, *steps)
        self.view, self.steps = view, steps
        seen = eval_shape(lambda x: self._parts(x)[-1], ShapeDtypeStruct(view.shape, view.dtype))
        self.shape, self.dtype = seen.shape, seen.dtype

    ndim = property(lambda self: len(self.shape))
    size = property(lambda self: math.prod(self.shape))

    def __repr__(self) -> str:
        return f"FormedRef({self.view!r}, shape={self.shape}, dtype={dtypes.name(self.dtype)})"

    def _parts(self, whole: Any) -> list[Any]:
        parts = [whole]
        for step in self.steps:
            parts.append(step.part(parts[-1]))
        return parts

    def _change(self, idx: Any, method: str, value: Any) -> Array:
        """What was at `idx`, where `method` of updates is done with the value."""
        *before, last = self._parts(self.view[...])
        old, new = last[idx], getattr(last.at[idx], method)(value)
        for step, part in zip(reversed(self.steps), reversed(before), strict=True):
            new = step.put(part, new)
        self.view[...] = new
        return old

    @errors.api_boundary
    def __getitem__(self, index: Any) -> Array:
        return self._parts(self.view[...])[-1][index]

    @errors.api_boundary
    def __setitem__(self, index: Any, value: Any) -> None:
        self._change(index, "set", value)

    @property
    def at(self) -> FormedRef.At:
        return FormedRef.At(self)

    def get(self, idx: Any = ...) -> Array:
        """The elements at `idx`."""
        return self[idx]

    def set(self, value: Any, idx: Any = ...) -> None:
        """Puts `value` at `idx`."""
        self[idx] = value

    @errors.api_boundary
    def swap(self, value: Any, idx: Any = ...) -> Array:
        """Puts `value` at `idx`, and gives what was there."""
        return self._change(idx, "set", value)

    @errors.api_boundary
    def addupdate(self, x: Any, idx: Any = ...) -> None:
        """Adds `x` to the elements at `idx`."""
        self._change(idx, "add", x)

    def reshape(self, *shape: Any) -> FormedRef:
        """The view in another shape."""
        return reshape(self, *shape)

    def bitcast(self, dtype: Any) -> FormedRef:
        """The bits of the view as another type."""
        return bitcast(self, dtype)

    class At:
        """What `at` of such a view is: takes an index."""

        __slots__ = ("formed",)

        def __init__(self, formed: FormedRef):
            self.formed = formed

        @errors.api_boundary
        def __getitem__(self, index: Any) -> FormedRef:
            return FormedRef(self.formed, RefStep(lambda x: x[index], lambda x, new: x.at[index].set(new)))


def reshape(ref: Any, *shape: Any) -> FormedRef:
    """A view of a reference, or of a part, in another shape: `r.reshape(4, -1)`. ValueError if sizes do not fit."""
    sizes = canonical_shape(shape[0] if len(shape) == 1 else shape)
    try:
        return FormedRef(ref, RefStep(lambda x: reshaped(x, sizes), lambda x, new: reshaped(new, x.shape)))
    except TypeError as error:
        raise ValueError(str(error)) from None


def bitcast(ref: Any, dtype: Any) -> FormedRef:
    """A view of the bits of a reference, or of a part, as another type. Of types of another width, there are more or
    fewer rows (the last axis but one): the parts of an element are below each other, the lowest first.

    NotImplementedError for other widths of vectors; ValueError if the rows do not fit.
    """
    new = dtypes.canonicalize_dtype(dtype)
    wide, narrow = ref.dtype.itemsize, new.itemsize
    if wide == narrow:
        return FormedRef(ref, RefStep(lambda x: bitcast_convert_type(x, new),
                                      lambda x, part: bitcast_convert_type(part, x.dtype)))
    if ref.ndim < 2:
        raise NotImplementedError("A reference of one dimension cannot be read as a type of another width.")
    if wide < narrow and ref.shape[-2] % (narrow // wide):
        raise ValueError(f"{ref.shape[-2]} rows of {dtypes.name(ref.dtype)} are no whole number of rows of "
                         f"{dtypes.name(new)}.")
    return FormedRef(ref, RefStep(lambda x: _rows_as(x, new), lambda x, part: _rows_as(part, x.dtype)))


def _rows_as(x: Any, dtype: Any) -> Any:
    *rest, rows, columns = x.shape
    if x.dtype.itemsize > dtype.itemsize:
        parts = moveaxis(bitcast_convert_type(x, dtype), x.ndim, x.ndim - 1)
        return reshaped(parts, (*rest, -1, columns))
    count = dtype.itemsize // x.dtype.itemsize
    parts = moveaxis(reshaped(x, (*rest, rows // count, count, columns)), x.ndim - 1, x.ndim)
    return bitcast_convert_type(parts, dtype)
