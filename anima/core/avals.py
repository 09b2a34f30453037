"""Abstract values: what is known of an array while a program is traced.

A `ShapedArray` is a shape, an element type and whether that type is weak (it came from a Python
scalar and gives way in promotion). All arithmetic on shapes goes through the helpers below, so that
a dimension may one day be something else than an int.

    >>> ShapedArray((2, 3), np.dtype("float32")).str_short(short_dtypes=True)
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


class AbstractValue:
    """What is known of a value while a program is traced: the base of types.

    A type may be made of others (`is_high`), and have parts that change while a program runs (`has_qdd`): those of
    arrays and references do not, and are their own representation.
    """

    __slots__ = ()
    is_high = False
    has_qdd = False

    def normalize(self) -> Any:
        """The type as programs have it."""
        return self

    def lo_ty(self) -> list[Any]:
        """The types of the arrays that such a value consists of."""
        return [self]

    def lower_val(self, val: Any) -> list[Any]:
        """The arrays that a value of this type consists of."""
        return [val]

    def raise_val(self, val: Any) -> Any:
        """The value that consists of these arrays."""
        return val


@record
class ShapedArray(AbstractValue):
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

    def update(self, shape: Shape | None = None, dtype: Any = None, weak_type: bool | None = None,
               **kwargs: Any) -> ShapedArray:
        """A copy with some of the fields changed; of where it lies (`sharding`, `memory_space`, `manual_axis_type`)
        types say nothing."""
        if kwargs and (unknown := kwargs.keys() - {"sharding", "memory_space", "manual_axis_type"}):
            raise TypeError(f"ShapedArray.update has no argument {', '.join(map(repr, sorted(unknown)))}")
        return ShapedArray(self.shape if shape is None else shape, self.dtype if dtype is None else dtype,
                           self.weak_type if weak_type is None else weak_type)

    def update_weak_type(self, weak_type: bool) -> ShapedArray:
        return ShapedArray(self.shape, self.dtype, weak_type)

    def strip_weak_type(self) -> ShapedArray:
        return ShapedArray(self.shape, self.dtype) if self.weak_type else self

    def inc_rank(self, size: int, spec: int | None) -> ShapedArray:
        """The type of `size` such arrays stacked along the axis `spec` of the result; None: not stacked."""
        if spec is None:
            return self
        axis = canonicalize_axis(spec, self.ndim + 1)
        return self.update(shape=(*self.shape[:axis], size, *self.shape[axis:]))

    def dec_rank(self, size: int, spec: int | None) -> ShapedArray:
        """The type of one of `size` arrays that are stacked along the axis `spec`; None: not stacked."""
        if spec is None:
            return self
        axis = canonicalize_axis(spec, self.ndim)
        return self.update(shape=(*self.shape[:axis], *self.shape[axis + 1:]))

    def leading_axis_spec(self) -> int:
        """The `spec` of `inc_rank` and `dec_rank` for the leading axis."""
        return 0

    def vspace_add(self, x: Any, y: Any) -> Any:
        """The sum of two values of this type."""
        return x + y

    def to_tangent_aval(self) -> ShapedArray:
        """The type of tangents: itself if it is inexact, `float0` otherwise."""
        return self if dtypes.issubdtype(self.dtype, np.inexact) else ShapedArray(self.shape, dtypes.float0)

    to_ct_aval = at_least_vspace = to_tangent_aval  # cotangents are as tangents

    def str_short(self, short_dtypes: bool = False, mesh_axis_types: bool = False) -> str:
        """The type as text, "float32[3]", or "f32[3]" with `short_dtypes`. There are no axes of a mesh to show."""
        kind = dtypes.short_name(self.dtype) if short_dtypes else dtypes.name(self.dtype)
        return f"{kind}[{','.join(map(str, self.shape))}]"

    def __str__(self) -> str:
        return f"{'~' if self.weak_type else ''}{self.str_short()}"

    def __repr__(self) -> str:
        return f"ShapedArray({self.str_short()}{', weak_type=True' if self.weak_type else ''})"


def tangent_aval(aval: ShapedArray) -> ShapedArray:
    """The type of the tangent of a value."""
    return aval.to_tangent_aval()


def size_of(shape: Shape) -> int:
    return math.prod(shape)


def max_dim(d1: int, d2: int) -> int:
    """The larger of two sizes of an axis."""
    return max(d1, d2)


def min_dim(d1: int, d2: int) -> int:
    """The smaller of two sizes of an axis."""
    return min(d1, d2)


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


def reduced_shape(x: ShapedArray, axes: Sequence[int]) -> Shape:
    """What is left of the shape of `x` without distinct `axes` of it; ValueError if they are not that."""
    if len(set(axes)) != len(axes):
        raise ValueError(f"duplicate value in 'axes' of reduction: {axes}")
    if not all(0 <= a < x.ndim for a in axes):
        raise ValueError(f"reduction axes {axes} contains out-of-bounds indices for {x.str_short()}.")
    return tuple(n for i, n in enumerate(x.shape) if i not in axes)


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
