"""Changing shapes: reshape, transpose, join, split, repeat, flip, roll, insert and delete.

    >>> jnp.concatenate([jnp.array([1, 2]), jnp.array([3])])
    Array([1, 2, 3], dtype=int32)
"""

from __future__ import annotations

import builtins
import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from anima.api.eager import of_numbers, repeated
from anima.core import dtypes
from anima.core.array import Array
from anima.core.avals import canonicalize_axis, max_dim, min_dim
from anima.core.dims import Dim, least_size
from anima.core.trace import Tracer
from anima.errors import InconclusiveDimensionOperation
from anima.lax import arranging
from anima.numpy.elementwise import broadcast_array, named
from anima.numpy.promote import (
    as_array,
    as_arrays,
    as_given,
    canonical_shape,
    convert_operand,
    no_out,
    normalize_axes,
    one_or_more,
    promote_dtypes,
    static_int,
    static_value,
)
from anima.ops import elementwise as ew, shape as sh
from anima.ops.index import dynamic_slice
from anima.ops.placing import as_asked

ArrayLike = Any


# ---------------------------------------------------------------- reshape

@repeated
def reshape(a: ArrayLike, shape: Any, order: str = "C", *, copy: bool | None = None,
            out_sharding: Any = None) -> Array:
    """The elements of `a` in another shape, of which one size may be -1: what is left over.

    `order` "C" reads and writes rows first, "F" columns first. TypeError if the sizes do not fit.
    """
    if out_sharding is not None:
        return as_asked("reshape", None, out_sharding, reshape, a, shape, order, copy=copy)
    x = as_array(a, "reshape")
    sizes = _known_sizes(x, canonical_shape(shape))
    if order == "C":
        result = sh.reshape(x, sizes)
    elif order == "F":
        result = _transposed(sh.reshape(_transposed(x), sizes[::-1]))
    else:
        kind = NotImplementedError if order in ("A", "K") else ValueError
        raise kind(f"anima.numpy.reshape order={order!r} is not implemented")
    return ew.copy(result) if copy and result is x else result


def _transposed(x: Array) -> Array:
    return sh.transpose(x, tuple(range(x.ndim))[::-1])


def _known_sizes(x: Array, shape: tuple[int, ...]) -> tuple[int, ...]:
    """`shape` with a -1 replaced by the size left over."""
    unknown = shape.count(-1)
    if unknown > 1:
        raise TypeError(f"can only specify one unknown axis size with a `-1` value, got {shape}")
    if unknown:
        known = math.prod(n for n in shape if n != -1)
        if known == 0 or (rest := x.size % known):
            kind = InconclusiveDimensionOperation if known and isinstance(rest, Dim) else TypeError
            raise kind(f"cannot reshape array of shape {x.shape} (size {x.size}) into shape {shape} because the "
                       f"product of specified axis sizes ({known}) does not evenly divide {x.size}")
        shape = tuple(x.size // known if n == -1 else n for n in shape)
    if any(n < 0 for n in shape) or math.prod(shape) != x.size:
        raise TypeError(f"cannot reshape array of shape {x.shape} (size {x.size}) into shape {shape} "
                        f"(size {math.prod(shape)})")
    return shape


@repeated
def ravel(a: ArrayLike, order: str = "C", *, out_sharding: Any = None) -> Array:
    """All elements along one axis."""
    if out_sharding is not None:
        return as_asked("ravel", None, out_sharding, ravel, a, order)
    if order == "K":
        raise NotImplementedError("ravel is not implemented for order='K'; use 'C'")
    x = as_array(a, "ravel")
    return reshape(x, (x.size,), order)


@repeated
def squeeze(a: ArrayLike, axis: Any = None) -> Array:
    """`a` without its axes of size 1, or without those of `axis`; ValueError if one has another size."""
    x = as_array(a, "squeeze")
    if axis is None and any(isinstance(n, Dim) and least_size(n) < 2 for n in x.shape):
        raise ValueError(f"squeeze without an axis: sizes of the shape {x.shape} that are not known may be 1, or more. "
                         "Fix: say which axes.")
    axes = [i for i, n in enumerate(x.shape) if n == 1] if axis is None else normalize_axes(axis, x.ndim)
    if any(x.shape[i] != 1 for i in axes):
        raise ValueError("cannot select an axis to squeeze out which has size not equal to one, got "
                         f"shape={x.shape} and dimensions={tuple(axes)}")
    return sh.squeeze(x, tuple(axes))


@repeated
def expand_dims(a: ArrayLike, axis: Any) -> Array:
    """`a` with new axes of size 1 at `axis`, positions in the result."""
    x = as_array(a, "expand_dims")
    axes = one_or_more(axis)
    positions = [canonicalize_axis(one, x.ndim + len(axes)) for one in axes]
    return sh.expand_dims(x, positions)


@repeated
def broadcast_to(array: ArrayLike, shape: Any, *, out_sharding: Any = None) -> Array:
    """`array` repeated to `shape`; ValueError if it cannot be."""
    if out_sharding is not None:
        return as_asked("broadcast_to", None, out_sharding, broadcast_to, array, shape)
    x, shape = as_array(array, "broadcast_to"), canonical_shape(shape)
    lead = len(shape) - x.ndim
    if lead < 0:
        raise ValueError(f"Cannot broadcast to shape with fewer dimensions: from {x.shape} to {shape}")
    if any(n not in (1, shape[lead + i]) for i, n in enumerate(x.shape)):
        given, wanted = (f"{dtypes.name(x.dtype)}[{','.join(map(str, s))}]" for s in (x.shape, shape))
        raise ValueError(f"Incompatible types for broadcasting: input type={given} and requested type={wanted}")
    return broadcast_array(x, shape)


@repeated
def broadcast_arrays(*args: ArrayLike) -> list[Array]:
    """The arguments repeated to their common shape; ValueError if there is none."""
    arrays = as_arrays("broadcast_arrays", *args)
    shape = broadcast_shapes(*[x.shape for x in arrays])
    return [broadcast_array(x, shape) for x in arrays]


broadcast_shapes = arranging.broadcast_shapes


def _atleast(name: str, rank: int, widen: Callable[[Array], Array], doc: str) -> Callable[..., Any]:
    def function(*arys: ArrayLike) -> Any:
        if len(arys) == 1:
            x = as_array(arys[0], name)
            return x if x.ndim >= rank else widen(x)
        return [x if x.ndim >= rank else widen(x) for x in as_arrays(name, *arys)]

    return named(repeated(function), name, doc)


def _to_3d(x: Array) -> Array:
    return sh.expand_dims(x, {0: (0, 1, 2), 1: (0, 2), 2: (2,)}[x.ndim])


atleast_1d = _atleast("atleast_1d", 1, lambda x: sh.expand_dims(x, (0,)), "Scalars as arrays of shape (1,).")
atleast_2d = _atleast("atleast_2d", 2, lambda x: sh.expand_dims(x, tuple(range(2 - x.ndim))),
                      "Arrays with at least two dimensions; new ones come first.")
atleast_3d = _atleast("atleast_3d", 3, _to_3d, "Arrays with at least three dimensions.")


# ---------------------------------------------------------------- permute axes

@repeated
def transpose(a: ArrayLike, axes: Any = None) -> Array:
    """`a` with its axes in the order `axes` (None: reversed).

    TypeError if that is no permutation, AxisError for an axis that `a` does not have.
    """
    x = as_array(a, "transpose")
    if axes is None:
        return _transposed(x)
    return permute_dims(x, tuple(canonicalize_axis(i, x.ndim) for i in axes))


@repeated
def permute_dims(a: ArrayLike, /, axes: Any) -> Array:
    """`a` with its axes in the order `axes`; TypeError if that is no permutation."""
    x, given = as_array(a, "permute_dims"), tuple(operator.index(i) for i in axes)
    order = tuple(i + x.ndim if -x.ndim <= i < 0 else i for i in given)
    if sorted(order) != list(range(x.ndim)):
        raise TypeError("transpose permutation isn't a permutation of operand dimensions, got permutation "
                        f"{given} for operand shape {x.shape}.")
    return sh.transpose(x, order)


@repeated
def matrix_transpose(x: ArrayLike, /) -> Array:
    """`x` with its last two axes exchanged; ValueError below two dimensions."""
    x = as_array(x, "matrix_transpose")
    if x.ndim < 2:
        raise ValueError(f"x must be at least two-dimensional for matrix_transpose; got ndim={x.ndim}")
    return swapaxes(x, -1, -2)


@repeated
def swapaxes(a: ArrayLike, axis1: int, axis2: int) -> Array:
    """`a` with two axes exchanged."""
    x = as_array(a, "swapaxes")
    first, second = canonicalize_axis(axis1, x.ndim), canonicalize_axis(axis2, x.ndim)
    order = list(range(x.ndim))
    order[first], order[second] = second, first
    return sh.transpose(x, order)


@repeated
def moveaxis(a: ArrayLike, source: Any, destination: Any) -> Array:
    """`a` with the axes `source` moved to the positions `destination`, the others in order."""
    x = as_array(a, "moveaxis")
    sources, destinations = normalize_axes(source, x.ndim), normalize_axes(destination, x.ndim)
    if len(sources) != len(destinations):
        raise ValueError(f"Inconsistent number of elements: {len(sources)} vs {len(destinations)}")
    order = [i for i in range(x.ndim) if i not in sources]
    for position, axis in sorted(zip(destinations, sources, strict=True)):
        order.insert(position, axis)
    return sh.transpose(x, order)


@repeated
def rollaxis(a: ArrayLike, axis: int, start: int = 0) -> Array:
    """`a` with `axis` moved to before the axis `start`."""
    x = as_array(a, "rollaxis")
    axis = canonicalize_axis(axis, x.ndim)
    if start != x.ndim:
        start = canonicalize_axis(start, x.ndim)
    return moveaxis(x, axis, start - 1 if axis < start else start)


@repeated
def flip(m: ArrayLike, axis: Any = None) -> Array:
    """`m` in reverse order along `axis` (None: all axes)."""
    x = as_array(m, "flip")
    return sh.rev(x, normalize_axes(axis, x.ndim))


@repeated
def fliplr(m: ArrayLike) -> Array:
    """`m` in reverse order along axis 1."""
    return flip(m, 1)


@repeated
def flipud(m: ArrayLike) -> Array:
    """`m` in reverse order along axis 0."""
    return flip(m, 0)


@repeated
def rot90(m: ArrayLike, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Array:
    """`m` rotated by k quarter turns in the plane of `axes`, from the first towards the second."""
    x = as_array(m, "rot90")
    if x.ndim < 2:
        raise ValueError(f"rot90 requires its first argument to have ndim at least two: a plane; got shape {x.shape}")
    if len(axes) != 2:
        raise ValueError("len(axes) must be 2.")
    first, second = (canonicalize_axis(i, x.ndim) for i in axes)
    if first == second:
        raise ValueError("Axes must be different")
    turns = k % 4
    if turns == 0:
        return x
    if turns == 2:
        return sh.rev(x, (first, second))
    if turns == 1:
        return swapaxes(sh.rev(x, (second,)), first, second)
    return sh.rev(swapaxes(x, first, second), (second,))


# ---------------------------------------------------------------- join

def _sequence(name: str, arrays: Any) -> list[Any]:
    """The arrays to join; an array stands for its parts along axis 0."""
    if isinstance(arrays, (Array, np.ndarray)):
        if not arrays.ndim:
            raise ValueError(f"{name} got a scalar; expected a sequence of arrays")
        return list(arrays)
    if not isinstance(arrays, (list, tuple)):
        raise TypeError(f"{name} requires a sequence of arrays, got {type(arrays)}.")
    return list(arrays)


def _joined(name: str, arrays: list[Any], dtype: Any) -> list[Array]:
    """Arrays of one dtype: that of their promotion, or the one given."""
    if dtype is None:
        return promote_dtypes(name, *arrays)
    wanted = dtypes.check_user_dtype(dtype, name)
    return [as_array(convert_operand(x, wanted, False)) for x in as_arrays(name, *arrays)]


@repeated
def concatenate(arrays: Any, axis: int | None = 0, dtype: Any = None) -> Array:
    """Arrays joined along `axis` (None: flattened first), in their promoted dtype.

    ValueError for no arrays, TypeError if ranks or other sizes differ.
    """
    if isinstance(arrays, (Array, np.ndarray)):
        (x,) = _joined("concatenate", [arrays], dtype)
        if x.ndim < (1 if axis is None else 2):
            raise ValueError("Zero-dimensional arrays cannot be concatenated.")
        if axis is None:
            return ravel(x)
        axis = canonicalize_axis(axis, x.ndim - 1)
        moved = moveaxis(x, 0, axis)
        return sh.reshape(moved, (*moved.shape[:axis], x.shape[0] * x.shape[axis + 1], *moved.shape[axis + 2:]))
    parts = _sequence("concatenate", arrays)
    if not parts:
        raise ValueError("Need at least one array to concatenate.")
    joined = _joined("concatenate", parts, dtype)
    if axis is None:
        return sh.concatenate([ravel(x) for x in joined], 0)
    if not joined[0].ndim:
        raise ValueError("Zero-dimensional arrays cannot be concatenated. Fix: anima.numpy.stack, or array, which make "
                         "an array of them.")
    axis = canonicalize_axis(axis, joined[0].ndim)
    return sh.concatenate(joined, axis)


def concat(arrays: Any, /, *, axis: int | None = 0) -> Array:
    """Arrays joined along `axis`; see `concatenate`."""
    return concatenate(arrays, axis)


@repeated
def stack(arrays: Any, axis: int = 0, out: None = None, dtype: Any = None) -> Array:
    """Arrays of one shape joined along a new axis; ValueError if shapes differ."""
    no_out("stack", out)
    parts = _sequence("stack", arrays)
    if not parts:
        raise ValueError("Need at least one array to stack.")
    joined = _joined("stack", parts, dtype)
    if len({x.shape for x in joined}) > 1:
        raise ValueError("All input arrays must have the same shape. Got "
                         + ", ".join(str(x.shape) for x in joined) + ".")
    axis = canonicalize_axis(axis, joined[0].ndim + 1)
    return arranging.stack(joined, axis)


@repeated
def vstack(tup: Any, dtype: Any = None) -> Array:
    """Arrays, made at least two-dimensional, joined along axis 0."""
    return concatenate([atleast_2d(x) for x in _sequence("vstack", tup)], 0, dtype)


@repeated
def hstack(tup: Any, dtype: Any = None) -> Array:
    """Arrays joined along axis 1; vectors along axis 0."""
    parts = [atleast_1d(x) for x in _sequence("hstack", tup)]
    return concatenate(parts, 0 if parts and parts[0].ndim == 1 else 1, dtype)


@repeated
def dstack(tup: Any, dtype: Any = None) -> Array:
    """Arrays, made at least three-dimensional, joined along axis 2."""
    return concatenate([atleast_3d(x) for x in _sequence("dstack", tup)], 2, dtype)


@repeated
def column_stack(tup: Any) -> Array:
    """Vectors as the columns of a matrix; matrices joined along axis 1."""
    parts = as_arrays("column_stack", *_sequence("column_stack", tup))
    return concatenate([atleast_2d(x).T if x.ndim < 2 else x for x in parts], 1)


@of_numbers
def append(arr: ArrayLike, values: ArrayLike, axis: int | None = None) -> Array:
    """`arr` followed by `values` along `axis` (None: both flattened)."""
    if axis is None:
        return concatenate([ravel(arr), ravel(values)], 0)
    return concatenate([arr, values], axis)


@repeated
def block(arrays: Any) -> Array:
    """Nested lists of blocks joined: the innermost along the last axis, and so on outwards."""
    depth = _depth(arrays)
    leaves: list[Array] = []
    _block_leaves(arrays, leaves)
    rank = builtins.max([depth, *(x.ndim for x in leaves)])
    return _block(arrays, rank, depth)


def _depth(arrays: Any) -> int:
    if isinstance(arrays, tuple):
        raise TypeError("block: use lists, not tuples, to nest arrays")
    if not isinstance(arrays, list):
        return 0
    if not arrays:
        raise ValueError("block: a list at this depth is empty")
    depths = {_depth(a) for a in arrays}
    if len(depths) > 1:
        raise ValueError(f"block: list depths are mismatched: {sorted(depths)}")
    return 1 + depths.pop()


def _block_leaves(arrays: Any, leaves: list[Array]) -> None:
    if isinstance(arrays, list):
        for a in arrays:
            _block_leaves(a, leaves)
    else:
        leaves.append(as_array(arrays, "block"))


def _block(arrays: Any, rank: int, depth: int) -> Array:
    if not isinstance(arrays, list):
        return sh.broadcast_to_rank(as_array(arrays), rank)
    return concatenate([_block(a, rank, depth - 1) for a in arrays], -depth)


# ---------------------------------------------------------------- split

@repeated
def split(ary: ArrayLike, indices_or_sections: Any, axis: int = 0) -> list[Array]:
    """`ary` cut along `axis` into equal parts, or before the given indices; ValueError if parts are unequal."""
    return _split("split", ary, indices_or_sections, axis)


@repeated
def array_split(ary: ArrayLike, indices_or_sections: Any, axis: int = 0) -> list[Array]:
    """As `split`; if the size does not divide evenly, the first parts are one longer."""
    return _split("array_split", ary, indices_or_sections, axis)


def _split(name: str, ary: Any, indices_or_sections: Any, axis: int) -> list[Array]:
    x = as_array(ary, name)
    axis = canonicalize_axis(axis, x.ndim)
    size, context = x.shape[axis], f"in anima.numpy.{name} argument 1"
    if isinstance(indices_or_sections, (tuple, list)) or np.ndim(_untraced(indices_or_sections)):
        cuts = [static_int(i, context) for i in indices_or_sections]
        cuts = [0, *(min_dim(max_dim(i + size if i < 0 else i, 0), size) for i in cuts), size]
    else:
        known = static_value(indices_or_sections, context)[()]
        sections = static_int(int(known) if isinstance(known, (float, np.floating)) and known == int(known) else known,
                              context)
        part, rest = builtins.divmod(size, sections)
        if rest and name == "split":
            raise ValueError(f"array split does not result in an equal division: rest is {rest}")
        cuts = [i * part + builtins.min(i, rest) for i in range(sections + 1)]
    if cuts == sorted(cuts):
        return list(arranging.split(x, [stop - start for start, stop in itertools.pairwise(cuts)], axis))
    return [sh.slice_in_dim(x, start, max_dim(start, stop), axis=axis)
            for start, stop in itertools.pairwise(cuts)]


def _untraced(x: Any) -> Any:
    return 0 if isinstance(x, Tracer) and not x.ndim else x if not isinstance(x, Array) else np.empty(x.shape)


@repeated
def hsplit(ary: ArrayLike, indices_or_sections: Any) -> list[Array]:
    """`ary` cut along axis 1; vectors along axis 0."""
    x = as_array(ary, "hsplit")
    return split(x, indices_or_sections, 0 if x.ndim == 1 else 1)


@repeated
def vsplit(ary: ArrayLike, indices_or_sections: Any) -> list[Array]:
    """`ary` cut along axis 0."""
    return split(ary, indices_or_sections, 0)


@repeated
def dsplit(ary: ArrayLike, indices_or_sections: Any) -> list[Array]:
    """`ary` cut along axis 2."""
    return split(ary, indices_or_sections, 2)


@repeated
def unstack(x: ArrayLike, /, *, axis: int = 0) -> tuple[Array, ...]:
    """The parts of `x` along `axis`, without that axis; ValueError for scalars."""
    x = as_array(x, "unstack")
    if not x.ndim:
        raise ValueError("Unstack requires arrays with rank > 0, however a scalar array was passed.")
    return arranging.unstack(x, canonicalize_axis(axis, x.ndim))


# ---------------------------------------------------------------- repeat and roll

@repeated
def tile(A: ArrayLike, reps: Any) -> Array:
    """`A` repeated `reps[i]` times along each axis i."""
    x = as_array(A, "tile")
    counts = canonical_shape(reps)
    rank = builtins.max(x.ndim, len(counts))
    return arranging.tile(sh.broadcast_to_rank(x, rank), (1,) * (rank - len(counts)) + counts)


@repeated
def resize(a: ArrayLike, new_shape: Any) -> Array:
    """The elements of `a`, repeated or cut to fill `new_shape`."""
    shape = canonical_shape(new_shape)
    x = ravel(a)
    if any(n < 0 for n in shape):
        raise ValueError("all elements of `new_shape` must be non-negative")
    size = math.prod(shape)
    if not size or not x.size:
        return sh.zeros(x.aval.update(shape=shape))
    repeated = sh.tile(x, (-(-size // x.size),))
    return sh.reshape(sh.slice_in_dim(repeated, 0, size), shape)


@repeated
def roll(a: ArrayLike, shift: ArrayLike, axis: Any = None) -> Array:
    """`a` shifted along `axis` (None: flattened), elements that leave one end coming in at the other.

    `shift` may be traced.
    """
    x, shift = as_array(a, "roll"), as_given(shift)
    if axis is None:
        return sh.reshape(roll(sh.reshape(x, (x.size,)), shift, 0), x.shape)
    axes = [canonicalize_axis(where, x.ndim) for where in one_or_more(axis)]
    shifts = list(shift) if isinstance(shift, (tuple, list)) or np.ndim(_untraced(shift)) else [shift]
    if len(shifts) == 1:
        shifts *= len(axes)
    elif len(axes) == 1:
        axes *= len(shifts)
    if len(shifts) != len(axes):
        raise ValueError("'shift' and 'axis' should be scalars or 1D sequences of one length")
    for one, where in zip(shifts, axes, strict=True):
        x = _roll(x, one, where)
    return x


def _roll(x: Array, shift: Any, axis: int) -> Array:
    size = x.shape[axis]
    if not size:
        return x
    if isinstance(shift, Tracer):
        if shift.dtype.itemsize < 4:
            shift = ew.convert(shift, np.dtype(np.int32), False)
        shift = ew.convert(ew.rem(shift, shift.dtype.type(size)), np.dtype(np.int32), False)
        start = ew.rem(ew.sub(np.int32(size), shift), np.int32(size))
        doubled = sh.concatenate([x, x], axis)
        starts = [np.int32(0)] * x.ndim
        starts[axis] = start
        return dynamic_slice(doubled, starts, x.shape)
    start = -int(static_value(shift, "")) % size
    if not start:
        return x
    return sh.concatenate([sh.slice_in_dim(x, start, size, axis=axis), sh.slice_in_dim(x, 0, start, axis=axis)], axis)


# ---------------------------------------------------------------- facts

def shape(a: Any) -> tuple[int, ...]:
    """The shape of an array, or of nested lists of numbers."""
    return np.shape(as_given(a))


def ndim(a: Any) -> int:
    """The number of dimensions."""
    return np.ndim(as_given(a))


def size(a: Any, axis: Any = None) -> int:
    """The number of elements, in all or along `axis`."""
    sizes = shape(a)
    return math.prod(sizes[i] for i in normalize_axes(axis, len(sizes)))


def iterable(y: Any) -> bool:
    """Whether `y` can be iterated over."""
    return y.ndim > 0 if isinstance(y, Array) else np.iterable(y)
