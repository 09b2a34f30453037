"""Grids of coordinates and windows: meshgrid, mgrid, r_, indices, hanning and its kin.

    >>> jnp.mgrid[0:2, 0:3].shape, jnp.r_[1:3, 5]
    ((2, 2, 3), Array([1, 2, 5], dtype=int32))
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from anima import errors
from anima.api.eager import compiled, repeated
from anima.core import dtypes
from anima.core.array import Array
from anima.core.dims import Dim
from anima.numpy.creation import array
from anima.numpy.elementwise import broadcast_array, to_bool
from anima.numpy.functions import i0
from anima.numpy.manipulation import atleast_1d, concatenate, stack, swapaxes
from anima.numpy.promote import as_array, as_arrays, canonical_shape, promote_dtypes, static_value
from anima.numpy.selection import nonzero
from anima.numpy.spaces import arange, linspace
from anima.ops import elementwise as ew, shape as sh

ArrayLike = Any

s_ = np.s_
index_exp = np.index_exp


@repeated
def meshgrid(*xi: ArrayLike, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> list[Array]:
    """The coordinates of a grid whose axes are the vectors `xi`; "xy" puts the second one first, "ij" not.

    With `sparse`, axes of size 1 are left to broadcast.
    """
    if not copy:
        raise ValueError("anima.numpy.meshgrid only supports copy=True")
    if indexing not in ("xy", "ij"):
        raise ValueError(f"Valid values for indexing are 'xy' and 'ij', got {indexing}")
    axes = as_arrays("meshgrid", *xi)
    if any(x.ndim > 1 for x in axes):
        raise ValueError("Arguments to anima.numpy.meshgrid must be 0D or 1D, got shapes: "
                         + ", ".join(str(x.shape) for x in axes))
    axes = [sh.reshape(x, (x.size,)) for x in axes]
    if indexing == "xy" and len(axes) >= 2:
        axes[0], axes[1] = axes[1], axes[0]
    shape = tuple(x.size for x in axes)
    out = []
    for i, x in enumerate(axes):
        sizes = tuple(n if sparse is False or j == i else 1 for j, n in enumerate(shape))
        out.append(sh.broadcast_in_dim(x, sizes, (i,)))
    if indexing == "xy" and len(out) >= 2:
        out[0], out[1] = out[1], out[0]
    return out


def indices(dimensions: Any, dtype: Any = None, sparse: bool = False) -> Any:
    """The index arrays of an array of shape `dimensions`, stacked (a tuple of broadcastable ones if `sparse`)."""
    sizes = canonical_shape(dimensions)
    dtype = dtypes.default_int() if dtype is None else dtypes.check_user_dtype(dtype, "indices")
    parts = []
    for axis, n in enumerate(sizes):
        shape = tuple(n if i == axis else 1 for i in range(len(sizes))) if sparse else sizes
        parts.append(sh.broadcasted_iota(dtype, shape, axis))
    if sparse:
        return tuple(parts)
    return stack(parts) if parts else sh.full((0,), 0, dtype)


def ix_(*args: ArrayLike) -> tuple[Array, ...]:
    """Vectors shaped so that together they index a grid; masks as their nonzero indices."""
    out = []
    for i, x in enumerate(as_arrays("ix_", *args)):
        if x.ndim != 1:
            raise ValueError(f"Arguments to anima.numpy.ix_ must be 1-dimensional, got shape {x.shape}")
        if x.dtype == np.bool_:
            (x,) = nonzero(x)
        if not x.size:
            x = ew.convert(x, dtypes.default_int(), False)
        out.append(sh.broadcast_in_dim(x, tuple(x.size if j == i else 1 for j in range(len(args))), (i,)))
    return tuple(out)


def _from_slice(part: slice, name: str) -> Array:
    """start:stop:step as arange; an imaginary step is a number of points."""
    context = f"slice of anima.numpy.{name}"
    start, stop, step = (v if v is None or isinstance(v, Dim) else static_value(v, context).item()
                         for v in (part.start, part.stop, part.step))
    start = 0 if start is None else start
    if isinstance(step, complex):
        return linspace(start, stop, int(abs(step)))
    return arange(start, stop, 1 if step is None else step)


class _Grid:
    """What mgrid and ogrid are: indexed by slices, they make grids."""

    def __init__(self, name: str, sparse: bool, doc: str):
        self.name, self.sparse = name, sparse
        self.__doc__ = doc

    @errors.api_boundary
    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return _from_slice(key, self.name)
        axes = promote_dtypes(self.name, *(_from_slice(k, self.name) for k in key)) if key else []
        grid = meshgrid(*axes, indexing="ij", sparse=self.sparse)
        if self.sparse:
            return grid
        return stack(grid) if grid else sh.full((0,), 0, dtypes.default_int())

    def __repr__(self) -> str:
        return f"anima.numpy.{self.name}"


mgrid = _Grid("mgrid", False, "`mgrid[a:b, c:d]`: a dense grid of coordinates, stacked; `a:b:5j` is 5 points.")
ogrid = _Grid("ogrid", True, "`ogrid[a:b, c:d]`: an open grid: one array per axis, to be broadcast.")


class _Concatenator:
    """What is indexed joins slices, numbers and arrays."""

    name: str
    axis: int
    ndmin: int
    trans1d: int

    @errors.api_boundary
    def __getitem__(self, key: Any) -> Array:
        parts = list(key) if isinstance(key, tuple) else [key]
        axis, ndmin, trans1d = self.axis, self.ndmin, self.trans1d
        as_matrix = None
        if parts and isinstance(parts[0], str):
            text = parts.pop(0)
            if text in ("r", "c"):
                as_matrix = text
            else:
                try:
                    numbers = [int(n) for n in text.split(",")]
                except ValueError:
                    raise ValueError(f"could not understand directive {text!r}: neither 'r' nor 'c' nor numbers "
                                     "between commas") from None
                axis, ndmin, trans1d = (numbers + [self.axis, self.ndmin, self.trans1d][len(numbers):])[:3]
        if not parts:
            raise ValueError("need at least one array to concatenate")
        arrays = [self._part(p, ndmin, trans1d) for p in parts]
        if as_matrix is not None:
            joined = concatenate(arrays, axis)
            return joined if joined.ndim > 1 else sh.expand_dims(joined, (0,) if as_matrix == "r" else (1,))
        return concatenate(arrays, axis)

    def _part(self, part: Any, ndmin: int, trans1d: int) -> Array:
        if isinstance(part, str):
            raise ValueError("string directives must be the first entry")
        x = _from_slice(part, self.name) if isinstance(part, slice) else array(part, copy=False)
        x = atleast_1d(x) if ndmin <= 1 or x.ndim else x
        if x.ndim < ndmin:
            given = x.ndim
            x = sh.broadcast_to_rank(x, ndmin)
            if trans1d >= 0 or trans1d < -1:
                order = list(range(ndmin - given))
                start = trans1d if trans1d >= 0 else trans1d + ndmin - given + 1
                moved = list(range(ndmin - given, ndmin))
                order[start:start] = moved
                x = sh.transpose(x, order)
        return x

    def __len__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return f"anima.numpy.{self.name}"


class RClass(_Concatenator):
    """`r_[1:4, 0, x]`: slices, numbers and arrays joined along axis 0."""

    name, axis, ndmin, trans1d = "r_", 0, 1, -1


class CClass(_Concatenator):
    """`c_[x, y]`: arrays joined as columns."""

    name, axis, ndmin, trans1d = "c_", -1, 2, 0


r_, c_ = RClass(), CClass()


# ---------------------------------------------------------------- windows

def _positions(name: str, M: int) -> tuple[int, Any, Array]:
    count = int(static_value(M, f"M argument of anima.numpy.{name}"))
    dtype = dtypes.default_float()
    return count, dtype, sh.iota(dtype, max(count, 0))


def _cosines(name: str, M: int, weights: tuple[float, ...]) -> Array:
    count, dtype, n = _positions(name, M)
    if count <= 1:
        return sh.full((max(count, 0),), 1, dtype)
    result = sh.full((count,), weights[0], dtype)
    for k, w in enumerate(weights[1:], 1):
        angle = ew.mul(n, dtype.type(2 * np.pi * k / (count - 1)))
        result = ew.add(result, ew.mul(ew.cos(angle), dtype.type(w)))
    return result


@repeated
def bartlett(M: int) -> Array:
    """The triangular window of M points."""
    count, dtype, n = _positions("bartlett", M)
    if count <= 1:
        return sh.full((max(count, 0),), 1, dtype)
    return ew.sub(dtype.type(1), ew.abs(ew.sub(ew.mul(n, dtype.type(2 / (count - 1))), dtype.type(1))))


@repeated
def blackman(M: int) -> Array:
    """The Blackman window of M points."""
    return _cosines("blackman", M, (0.42, -0.5, 0.08))


@repeated
def hamming(M: int) -> Array:
    """The Hamming window of M points."""
    return _cosines("hamming", M, (0.54, -0.46))


@repeated
def hanning(M: int) -> Array:
    """The Hann window of M points."""
    return _cosines("hanning", M, (0.5, -0.5))


@repeated
def kaiser(M: int, beta: ArrayLike) -> Array:
    """The Kaiser window of M points with shape parameter `beta`."""
    count, dtype, n = _positions("kaiser", M)
    if count <= 1:
        return sh.full((max(count, 0),), 1, dtype)
    beta = ew.convert_element_type(as_array(beta, "kaiser", 1), dtype)
    alpha = dtype.type(0.5 * (count - 1))
    inside = ew.sub(dtype.type(1), ew.square(ew.div(ew.sub(n, alpha), alpha)))
    argument = ew.mul(beta, ew.sqrt(ew.max(inside, dtype.type(0))))
    return ew.div(i0(argument), i0(beta))


# ---------------------------------------------------------------- bits in bytes

@functools.partial(compiled, static=("axis", "count"))
def packbits(a: ArrayLike, axis: int | None = None, bitorder: str = "big") -> Array:
    """Eight elements along `axis` (None: flattened), nonzero or zero, as the bits of one uint8.

    TypeError for what is neither integers nor bools.
    """
    x, axis = _bit_axis("packbits", a, axis, bitorder)
    if not dtypes.issubdtype(x.dtype, np.integer) and x.dtype != np.bool_:
        raise TypeError(f"packbits: expected an array of integers or bools, got {dtypes.name(x.dtype)}.")
    bits = ew.convert_element_type(as_array(to_bool(x)), np.uint8)
    bits = swapaxes(bits, axis, -1)
    missing = -bits.shape[-1] % 8
    bits = sh.pad(bits, np.uint8(0), [(0, 0, 0)] * (bits.ndim - 1) + [(0, missing, 0)])
    groups = sh.reshape(bits, (*bits.shape[:-1], bits.shape[-1] // 8, 8))
    places = np.arange(8, dtype=np.uint8)
    shifts = as_array(places[::-1].copy() if bitorder == "big" else places)
    values = ew.shift_left(groups, broadcast_array(shifts, groups.shape))
    packed = sh.reduce_sum(values, (values.ndim - 1,))
    return swapaxes(packed, axis, -1)


@functools.partial(compiled, static=("axis", "count"))
def unpackbits(a: ArrayLike, axis: int | None = None, count: int | None = None, bitorder: str = "big") -> Array:
    """The bits of uint8 elements, eight along `axis` for each; `count` of them (negative: less that many)."""
    x, axis = _bit_axis("unpackbits", a, axis, bitorder)
    if x.dtype != np.uint8:
        raise TypeError("Expected an input array of unsigned byte data type")
    x = swapaxes(x, axis, -1)
    places = np.arange(8, dtype=np.uint8)
    shifts = as_array(places[::-1].copy() if bitorder == "big" else places)
    shape = (*x.shape, 8)
    bits = ew.and_(ew.shift_right_logical(sh.broadcast_in_dim(x, shape, tuple(range(x.ndim))),
                                          broadcast_array(shifts, shape)), np.uint8(1))
    bits = sh.reshape(bits, (*x.shape[:-1], x.shape[-1] * 8))
    if count is not None:
        total = bits.shape[-1]
        wanted = count if count >= 0 else max(total + count, 0)
        bits = sh.slice_in_dim(bits, 0, min(wanted, total), axis=bits.ndim - 1)
        if wanted > total:
            bits = sh.pad(bits, np.uint8(0), [(0, 0, 0)] * (bits.ndim - 1) + [(0, wanted - total, 0)])
    return swapaxes(bits, axis, -1)


def _bit_axis(name: str, a: Any, axis: int | None, bitorder: str) -> tuple[Array, int]:
    if bitorder not in ("little", "big"):
        raise ValueError("'order' must be either 'little' or 'big'")
    x = as_array(a, name)
    if axis is None:
        return sh.reshape(x, (x.size,)), 0
    return x, axis
