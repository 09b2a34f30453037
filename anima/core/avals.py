"""Abstract values: what is known of an array while a program is traced.

A `ShapedArray` is a shape, an element type and whether that type is weak (it came from a Python
scalar and gives way in promotion). All arithmetic on shapes goes through the helpers below, so that
a dimension may one day be something else than an int.

    >>> ShapedArray((2, 3), np.dtype("float32")).str_short(short_dtypes=True)
    'f32[2,3]'
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from anima.core import dtypes
from anima.core.dims import Dim, index_of, max_size, min_size
from anima.core.mesh import AxisType, ManualAxisType, get_abstract_mesh
from anima.core.partition import UNCONSTRAINED, PartitionSpec, axes_of
from anima.core.shardings import NamedSharding, Sharding
from anima.util import cleared, record

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
    """The type of an array: `shape` (ints), `dtype` (canonical), `weak_type`, and the manual axes of a mesh along which
    it may vary (`vma`)."""

    shape: Shape
    dtype: Any
    weak_type: bool = False
    vma: frozenset[Any] = frozenset()

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def sharding(self) -> NamedSharding:
        """How the array is cut along the axes of type Explicit of a mesh: not at all."""
        return NamedSharding(get_abstract_mesh(), PartitionSpec(*[None] * len(self.shape)))

    @property
    def manual_axis_type(self) -> ManualAxisType:
        """What the type says along the manual axes of a mesh."""
        return ManualAxisType(self.vma)

    mat = manual_axis_type

    def update(self, shape: Shape | None = None, dtype: Any = None, weak_type: bool | None = None,
               sharding: NamedSharding | None = None, vma: frozenset[Any] | None = None, **kwargs: Any) -> ShapedArray:
        """A copy with some of the fields changed; of `memory_space` types say nothing."""
        if kwargs:
            if unknown := kwargs.keys() - {"memory_space", "manual_axis_type"}:
                raise TypeError(f"ShapedArray.update has no argument {', '.join(map(repr, sorted(unknown)))}")
            vma = kwargs["manual_axis_type"].varying if kwargs.get("manual_axis_type") is not None else vma
        return sharded(ShapedArray(self.shape if shape is None else shape, self.dtype if dtype is None else dtype,
                                   self.weak_type if weak_type is None else weak_type,
                                   self.vma if vma is None else vma), sharding)

    def update_weak_type(self, weak_type: bool) -> ShapedArray:
        return self.update(weak_type=weak_type)

    def strip_weak_type(self) -> ShapedArray:
        return self.update(weak_type=False) if self.weak_type else self

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
        return self if dtypes.issubdtype(self.dtype, np.inexact) else self.update(dtype=dtypes.float0, weak_type=False)

    to_ct_aval = at_least_vspace = to_tangent_aval  # cotangents are as tangents

    def str_short(self, short_dtypes: bool = False, mesh_axis_types: bool = False) -> str:
        """The type as text, "float32[3]", or "f32[3]" with `short_dtypes`; "float32[8@x,2]" is cut along the axis x,
        "float32[3]{V:x}" varies along it."""
        kind = dtypes.short_name(self.dtype) if short_dtypes else dtypes.name(self.dtype)
        names = sorted(map(str, self.vma))
        varies = f"{{V:{names[0] if len(names) == 1 else '(' + ','.join(names) + ')'}}}" if names else ""
        return f"{kind}[{','.join(self.dimensions())}]{varies}"

    def dimensions(self) -> list[str]:
        return [str(n) for n in self.shape]

    def __str__(self) -> str:
        return f"{'~' if self.weak_type else ''}{self.str_short()}"

    def __repr__(self) -> str:
        return f"ShapedArray({self.str_short()}{', weak_type=True' if self.weak_type else ''})"


_MOST_STANDING = 8192
_PLAIN = {int}
_standing: dict[ShapedArray, ShapedArray] = {}
cleared(_standing.clear)


def standing(aval: ShapedArray) -> ShapedArray:
    """The type that stands for its equals, so that it can be told by identity; itself, if its sizes are more than
    numbers (`core.dims.Dim`)."""
    if not {*map(type, aval.shape)} <= _PLAIN:
        return aval
    if len(_standing) >= _MOST_STANDING:
        _standing.clear()
    return _standing.setdefault(aval, aval)



@functools.cache
def scalar_type(dtype: Any, weak_type: bool = False) -> ShapedArray:
    """The type of an array of no dimensions; always the same object."""
    return ShapedArray((), dtype, weak_type)


@record
class ShardedArray(ShapedArray):
    """The type of an array that is cut along axes of type Explicit: `sharding` is about an abstract mesh."""

    sharding: NamedSharding = None  # type: ignore[assignment]

    def update(self, shape: Shape | None = None, dtype: Any = None, weak_type: bool | None = None,
               sharding: NamedSharding | None = None, **kwargs: Any) -> ShapedArray:
        """As of a `ShapedArray`; of another shape it is not cut, unless `sharding` says so."""
        if sharding is None and (shape is None or shape == self.shape):
            sharding = self.sharding
        return ShapedArray.update(self, shape, dtype, weak_type, sharding, **kwargs)

    def inc_rank(self, size: int, spec: int | None) -> ShapedArray:
        if spec is None:
            return self
        axis = canonicalize_axis(spec, self.ndim + 1)
        return ShapedArray.inc_rank(self, size, axis).update(sharding=self._recut(axis, axis, (None,)))

    def dec_rank(self, size: int, spec: int | None) -> ShapedArray:
        if spec is None:
            return self
        axis = canonicalize_axis(spec, self.ndim)
        return ShapedArray.dec_rank(self, size, axis).update(sharding=self._recut(axis, axis + 1, ()))

    def to_ct_aval(self) -> ShapedArray:
        """The type of cotangents: what is unreduced of a value is reduced of them, and the other way round."""
        out = self.to_tangent_aval()
        return out.update(sharding=self.sharding.update(spec=self.sharding.spec.to_ct_spec()))

    def _recut(self, start: int, stop: int, new: tuple[Any, ...]) -> NamedSharding:
        """The sharding with other partitions for the dimensions from `start` to `stop`."""
        spec = self.sharding.spec
        return self.sharding.update(spec=spec.update((*spec[:start], *new, *spec[stop:])))

    def dimensions(self) -> list[str]:
        found = []
        for n, partition in zip(self.shape, self.sharding.spec, strict=True):
            axes = axes_of(partition)
            text = "(" + ",".join(map(str, axes)) + ")" if len(axes) > 1 else "".join(map(str, axes))
            found.append(f"{n}@{text}" if axes else str(n))
        return found

    def __str__(self) -> str:
        return ShapedArray.__str__(self)

    def __repr__(self) -> str:
        return ShapedArray.__repr__(self)


ShardedArray.__name__ = ShardedArray.__qualname__ = "ShapedArray"  # to users there is one kind


def sharded(aval: ShapedArray, sharding: Sharding | None) -> ShapedArray:
    """The type of an array of this one under a sharding: that says how it is cut along the mesh's Explicit axes."""
    if not isinstance(sharding, NamedSharding) or AxisType.Explicit not in sharding.mesh.axis_types:
        return ShapedArray(aval.shape, aval.dtype, aval.weak_type, aval.vma) if type(aval) is ShardedArray else aval
    mesh = sharding.mesh
    kept = [explicit_part(mesh, p) for p in sharding.spec.padded(len(aval.shape))]
    spec = sharding.spec.update(partitions=kept)
    return ShardedArray(aval.shape, aval.dtype, aval.weak_type, aval.vma, NamedSharding(mesh.abstract_mesh, spec))


def explicit_part(mesh: Any, partition: Any) -> Any:
    """What types say of how one dimension is cut: along which axes of type Explicit."""
    if partition is UNCONSTRAINED:
        return None
    return tuple(name for name in axes_of(partition) if mesh.type_of(name) is AxisType.Explicit)


def tangent_aval(aval: ShapedArray) -> ShapedArray:
    """The type of the tangent of a value."""
    return aval.to_tangent_aval()


def size_of(shape: Shape) -> int:
    return math.prod(shape)


def max_dim(d1: Any, d2: Any) -> Any:
    """The larger of two sizes of an axis, which need not be known (`export.symbolic_shape`)."""
    return max(d1, d2) if type(d1) is int is type(d2) else max_size(d1, d2)


def min_dim(d1: Any, d2: Any) -> Any:
    """The smaller of two sizes of an axis, which need not be known (`export.symbolic_shape`)."""
    return min(d1, d2) if type(d1) is int is type(d2) else min_size(d1, d2)


def slice_ends(entry: slice, size: int) -> tuple[int, int, int]:
    """`entry.indices(size)`, where ends and the step may be sizes that are more than numbers."""
    if type(size) is int and not any(isinstance(given, Dim) for given in (entry.start, entry.stop, entry.step)):
        return entry.indices(size)
    step = 1 if entry.step is None else index_of(entry.step)
    if step == 0:
        raise ValueError("slice step cannot be zero")
    low, high = (0, size) if step > 0 else (-1, size - 1)

    def end(given: Any, default: int) -> int:
        if given is None:
            return default
        given = index_of(given)
        return max_dim(given + size, low) if given < 0 else min_dim(given, high)

    return (*((end(entry.start, low), end(entry.stop, high)) if step > 0 else
              (end(entry.start, high), end(entry.stop, low))), step)


def slice_length(start: int, stop: int, step: int) -> int:
    """How many numbers there are in such a range."""
    if type(start) is int is type(stop) is type(step):
        return len(range(start, stop, step))
    if step < 0:
        start, stop, step = -start, -stop, -step
    return max_dim((stop - start + step - 1) // step, 0)


def check_countable(name: str, size: Any, dtype: Any = np.int32) -> None:
    """NotImplementedError for a dimension with more elements than there are integers of 32 bits."""
    if isinstance(size, int) and int(size) > 1 << 31 and np.dtype(dtype) in (np.int32, np.uint32):
        raise NotImplementedError(
            f"{name}: {np.dtype(dtype).name} has no numbers for all of the {size:,} elements of a dimension. "
            "Fix: make two dimensions of it by reshape, or take a part of it by a slice.")


def inverse_order(order: Sequence[int]) -> Shape:
    """The permutation that undoes one: where each axis went."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def canonicalize_axis(axis: Any, ndim: int) -> int:
    """`axis` in `range(ndim)`; NumPy's AxisError, a ValueError and an IndexError, if it is out of bounds."""
    index = operator.index(axis)
    if not -ndim <= index < ndim:
        raise np.exceptions.AxisError(f"axis {index} is out of bounds for array of dimension {ndim}")
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


def row_major_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Elements between neighbours along each dimension of an array in row-major order."""
    return tuple([math.prod(shape[d + 1:]) for d in range(len(shape))])


def broadcast_shapes(*shapes: Sequence[int], name: str = "broadcast") -> Shape:
    """NumPy's broadcasting of shapes; TypeError naming `name` where they are incompatible."""
    first = shapes[0]
    for other in shapes:
        if other != first:
            break
    else:
        return tuple(first)
    ndim = max(map(len, shapes))
    out = []
    for axis in range(-ndim, 0):
        sizes = {n for s in shapes if -axis <= len(s) and ((n := s[axis]) != 1 or isinstance(n, Dim))}
        if len(sizes) > 1:
            raise TypeError(f"{name} got incompatible shapes for broadcasting: {', '.join(map(str, shapes))}.")
        out.append(sizes.pop() if sizes else 1)
    return tuple(out)
