"""Abstract values: what is known of an array while a program is traced.

A `ShapedArray` is a shape, an element type and whether that type is weak (it came from a Python
scalar and gives way in promotion). All arithmetic on shapes goes through the helpers below, so that
a dimension may one day be something else than an int.

    >>> ShapedArray((2, 3), np.dtype("float32")).str_short()
    'f32[2,3]'
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from anima.core import dtypes
from anima.util import record

Shape = tuple[int, ...]


@record
class ShapedArray:
    """The type of an array: `shape` (ints), `dtype` (canonical), `weak_type`."""

    shape: Shape
    dtype: Any
    weak_type: bool = False

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def update(self, **changes: Any) -> ShapedArray:
        """A copy with some of the fields changed."""
        return ShapedArray(changes.get("shape", self.shape), changes.get("dtype", self.dtype),
                           changes.get("weak_type", self.weak_type))

    def strip_weak_type(self) -> ShapedArray:
        return ShapedArray(self.shape, self.dtype) if self.weak_type else self

    def str_short(self) -> str:
        return f"{dtypes.short_name(self.dtype)}[{','.join(map(str, self.shape))}]"

    def __str__(self) -> str:
        return f"{'~' if self.weak_type else ''}{dtypes.name(self.dtype)}[{','.join(map(str, self.shape))}]"

    def __repr__(self) -> str:
        dims = ",".join(map(str, self.shape))
        return f"ShapedArray({dtypes.name(self.dtype)}[{dims}]{', weak_type=True' if self.weak_type else ''})"


def tangent_aval(aval: ShapedArray) -> ShapedArray:
    """The type of the tangent of a value: itself if it is an inexact array, `float0` otherwise."""
    if dtypes.issubdtype(aval.dtype, np.inexact) and isinstance(aval, ShapedArray):
        return aval
    return ShapedArray(aval.shape, dtypes.float0)


def size_of(shape: Shape) -> int:
    return math.prod(shape)


def canonicalize_axis(axis: Any, ndim: int) -> int:
    """`axis` in `range(ndim)`; ValueError if it is out of bounds."""
    index = operator.index(axis)
    if not -ndim <= index < ndim:
        raise ValueError(f"axis {index} is out of bounds for array of dimension {ndim}")
    return index + ndim if index < 0 else index


def canonicalize_axes(axes: int | Iterable[int] | None, ndim: int) -> tuple[int, ...]:
    """A tuple of distinct axes in `range(ndim)`; `None` is all of them."""
    if axes is None:
        return tuple(range(ndim))
    given = tuple(axes) if isinstance(axes, (tuple, list)) or not hasattr(axes, "__index__") else (axes,)
    out = tuple(canonicalize_axis(a, ndim) for a in given)
    if len(set(out)) != len(out):
        raise ValueError(f"duplicate value in 'axis': {given}")
    return out


def broadcast_shapes(*shapes: Sequence[int], name: str = "broadcast") -> Shape:
    """NumPy's broadcasting of shapes; TypeError naming `name` where they are incompatible."""
    if len(shapes) == 1 or all(s == shapes[0] for s in shapes[1:]):
        return tuple(shapes[0])
    ndim = max(map(len, shapes))
    out = []
    for axis in range(-ndim, 0):
        sizes = {s[axis] for s in shapes if -axis <= len(s)} - {1}
        if len(sizes) > 1:
            raise TypeError(f"{name} got incompatible shapes for broadcasting: {', '.join(map(str, shapes))}.")
        out.append(sizes.pop() if sizes else 1)
    return tuple(out)
