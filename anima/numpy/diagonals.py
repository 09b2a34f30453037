"""Diagonals, traces and triangles: reading them, making matrices of them, and their indices."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from anima.api.eager import compiled, repeated
from anima.core import dtypes
from anima.core.array import Array
from anima.core.avals import canonicalize_axis, max_dim, min_dim
from anima.core.dims import Dim, index_of
from anima.core.trace import Tracer
from anima.errors import InconclusiveDimensionOperation
from anima.numpy.creation import asarray, eye
from anima.numpy.manipulation import broadcast_to, moveaxis, ravel
from anima.numpy.promote import as_array, as_given, convert_operand, no_out, static_int
from anima.numpy.reductions import sum
from anima.numpy.selection import _not_in_place as not_in_place, nonzero
from anima.ops import elementwise as ew, shape as sh

ArrayLike = Any
_I32 = np.dtype(np.int32)


@repeated
def diagonal(a: ArrayLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """The diagonals of the matrices in the axes (axis1, axis2), along a new last axis.

    ValueError below two dimensions.
    """
    x = as_array(a, "diagonal")
    if x.ndim < 2:
        raise ValueError("diagonal requires an array of at least two dimensions.")
    offset = static_int(offset, "'offset' argument of anima.numpy.diagonal()")
    first, second = canonicalize_axis(axis1, x.ndim), canonicalize_axis(axis2, x.ndim)
    if first == second:
        raise ValueError(f"axis1 and axis2 can not be same: both are {axis1}" if axis1 == axis2 else
                         f"axis1 and axis2 can not be same: {axis1} and {axis2} are one axis")
    x = moveaxis(x, (first, second), (-2, -1))
    rows, columns = x.shape[-2:]
    down, right = max(-offset, 0), max(offset, 0)
    length = max_dim(0, min_dim(rows - down, columns - right))
    if not length:
        return sh.zeros(x.aval.update(shape=(*x.shape[:-2], 0)))
    # On the flattened matrix a diagonal is a slice with step columns + 1.
    flat = sh.reshape(x, (*x.shape[:-2], rows * columns))
    start = down * columns + right
    return sh.slice_in_dim(flat, start, start + (length - 1) * (columns + 1) + 1, columns + 1, axis=flat.ndim - 1)


@repeated
def diag(v: ArrayLike, k: int = 0) -> Array:
    """The k-th diagonal of a matrix; of a vector, the matrix with it as its k-th diagonal."""
    x = as_array(v, "diag")
    k = static_int(k, "'k' argument of anima.numpy.diag()")
    if x.ndim == 1:
        return _matrix_of(x, k)
    if x.ndim == 2:
        return diagonal(x, k)
    raise ValueError("diag input must be 1d or 2d")


def _matrix_of(x: Array, k: int) -> Array:
    """Rows of [element, zeros...], read with a row length that is shorter by one; what is beside the diagonal."""
    n, down, right = x.size, max(-k, 0), max(k, 0)
    zero = ew.convert(x.dtype.type(0), x.dtype, x.weak_type)
    if not n:
        return sh.zeros(x.aval.update(shape=(abs(k), abs(k))))
    square = sh.reshape(sh.pad(x, zero, [(0, 0, n)]), (n, n))
    return sh.pad(square, zero, [(down, right, 0), (right, down, 0)]) if k else square


@repeated
def diagflat(v: ArrayLike, k: int = 0) -> Array:
    """The matrix with the flattened `v` as its k-th diagonal."""
    flat = ravel(v)
    return _matrix_of(ew.convert(flat, flat.dtype), static_int(k, "'k' argument of anima.numpy.diagflat()"))


@repeated
def trace(a: ArrayLike, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: None = None) -> Array:
    """The sum along a diagonal, whose number may be traced; see `diagonal` and `sum`."""
    no_out("trace", out)
    wanted = None if dtype is None else dtypes.check_user_dtype(dtype, "trace")
    if isinstance(offset, Tracer):
        x = moveaxis(as_array(a, "trace"), (axis1, axis2), (-2, -1))
        chosen = broadcast_to(eye(*x.shape[-2:], k=offset, dtype=bool), x.shape)
        return sum(x, axis=(-2, -1), dtype=wanted, where=chosen)
    return sum(diagonal(a, offset, axis1, axis2), axis=-1, dtype=wanted)


@repeated
def fill_diagonal(a: ArrayLike, val: ArrayLike, wrap: bool = False, *, inplace: bool = True) -> Array:
    """A copy of `a` with `val` (repeated) on its main diagonal; `inplace=False` must be passed."""
    not_in_place("fill_diagonal", inplace, NotImplementedError)
    if wrap:
        raise NotImplementedError("wrap=True is not implemented")
    x, new = as_array(a, "fill_diagonal", 0), as_array(val, "fill_diagonal", 1)
    if x.ndim < 2:
        raise ValueError("array must be at least 2-d")
    if x.ndim > 2 and len(set(x.shape)) > 1:
        raise ValueError(f"fill_diagonal: all dimensions of an array of more than two must be of equal length, got the "
                         f"shape {x.shape}")
    length = functools.reduce(min_dim, x.shape)
    index = (sh.iota(_I32, length),) * x.ndim
    if not new.size and length:
        raise ValueError(f"fill_diagonal: there are no values to fill {length} places with, got the shape {new.shape}")
    if new.size and new.ndim:
        new = ravel(new)
        new = sh.slice_in_dim(sh.tile(new, (-(-length // new.size),)), 0, length)
    return x.at[index].set(new)


def diag_indices(n: int, ndim: int = 2) -> tuple[Array, ...]:
    """The indices of the main diagonal of an array of `ndim` axes of size n."""
    n, ndim = static_int(n, "'n' argument of diag_indices()"), static_int(ndim, "'ndim' argument of diag_indices()")
    if n < 0 or ndim < 0:
        raise ValueError(f"n and ndim of diag_indices must be nonnegative, got {n} and {ndim}")
    return (sh.iota(dtypes.default_int(), n),) * ndim


def diag_indices_from(arr: ArrayLike) -> tuple[Array, ...]:
    """The indices of the main diagonal of `arr`."""
    x = as_array(arr, "diag_indices_from")
    if x.ndim < 2:
        raise ValueError("diag_indices_from: the array must be at least 2-d")
    if len(set(x.shape)) != 1:
        raise ValueError("All dimensions of input must be of equal length")
    return diag_indices(x.shape[0], x.ndim)


def _indices(mask: np.ndarray) -> tuple[Array, Array]:
    return tuple(asarray(i.astype(dtypes.default_int())) for i in np.nonzero(mask))  # type: ignore[return-value]


def _triangle(rows: int, columns: int, k: int) -> np.ndarray:
    rows, columns, k = map(index_of, (rows, columns, k))
    if any(isinstance(given, Dim) for given in (rows, columns, k)):
        raise InconclusiveDimensionOperation(
            f"The number of elements in a triangle of a {rows} by {columns} matrix is no size that there is a program "
            "for. Fix: anima.numpy.tri, a mask.")
    return np.tri(rows, columns, k, dtype=bool)


@repeated
def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, Array]:
    """The indices of the lower triangle of an n by m matrix, up to the k-th diagonal."""
    return _indices(_triangle(n, n if m is None else m, k))


@repeated
def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, Array]:
    """The indices of the upper triangle of an n by m matrix, from the k-th diagonal."""
    return _indices(~_triangle(n, n if m is None else m, k - 1))


def tril_indices_from(arr: ArrayLike, k: int = 0) -> tuple[Array, Array]:
    """The indices of the lower triangle of the matrix `arr`."""
    return tril_indices(*_rows_k_columns(arr, k))


def triu_indices_from(arr: ArrayLike, k: int = 0) -> tuple[Array, Array]:
    """The indices of the upper triangle of the matrix `arr`."""
    return triu_indices(*_rows_k_columns(arr, k))


def _rows_k_columns(arr: Any, k: int) -> tuple[int, int, int]:
    shape = np.shape(as_given(arr))
    if len(shape) != 2:
        raise ValueError("Only 2-D inputs are accepted")
    return shape[0], k, shape[1]


def mask_indices(n: int, mask_func: Callable[..., Any], k: Any = 0, *, size: int | None = None) -> tuple[Array, ...]:
    """The indices of an n by n matrix where `mask_func(ones, k)` is nonzero, for example `triu`."""
    return nonzero(mask_func(sh.full((n, n), 1, _I32), k), size=size)


@functools.partial(compiled, static=("N",))
def vander(x: ArrayLike, N: int | None = None, increasing: bool = False) -> Array:
    """The matrix whose columns are powers of the vector `x`, highest first unless `increasing`."""
    x = as_array(x, "vander")
    if x.ndim != 1:
        raise ValueError("x must be a one-dimensional array")
    count = x.size if N is None else static_int(N, "'N' argument of anima.numpy.vander()")
    if count < 0:
        raise ValueError("N must be nonnegative")
    x = as_array(convert_operand(x, x.dtype, False))
    powers = [sh.full_like(x, 1)]
    while len(powers) < count:
        powers.append(ew.mul(powers[-1], x))
    powers = powers[:count] if increasing else powers[:count][::-1]
    return sh.concatenate([sh.expand_dims(p, (1,)) for p in powers], 1) if count else sh.full((x.size, 0), 0, x.dtype)
