"""Norms of vectors and matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from anima.api.eager import repeated
from anima.core.array import Array
from anima.core.avals import canonicalize_axis
from anima.numpy.elementwise import abs
from anima.numpy.functions import sqrt
from anima.numpy.linalg.decompositions import svdvals
from anima.numpy.manipulation import expand_dims, moveaxis
from anima.numpy.promote import as_array, is_complex, normalize_axes, promote_dtypes_inexact
from anima.numpy.reductions import max, min, sum
from anima.ops import elementwise as ew

ArrayLike = Any


def _squares(x: Array) -> Array:
    return ew.add(ew.mul(x.real, x.real), ew.mul(x.imag, x.imag)) if is_complex(x.dtype) else ew.mul(x, x)


@repeated
def norm(x: ArrayLike, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Array:
    """The norm of vectors (`axis` is one axis, or `x` has one) or of matrices (two).

    `ord`: for vectors any number p, (sum |x|^p)^(1/p), with inf, -inf (the largest, the least) and 0 (how many are not
    0); for matrices "fro" (the default), "nuc", 1, -1, inf, -inf (largest and least sums of columns, of rows), 2, -2
    (largest and least singular value). Without `ord` and `axis`, the root of the sum of all squares. ValueError for
    anything else.

    >>> jnp.linalg.norm(jnp.array([3.0, 4.0]))
    Array(5., dtype=float32)
    """
    (x,) = promote_dtypes_inexact("norm", x)
    if axis is None and ord is None:
        return sqrt(sum(_squares(x), keepdims=keepdims))
    axes = normalize_axes(axis, x.ndim)
    if len(axes) == 1:
        return _vector_norm(x, 2 if ord is None else ord, axes, keepdims)
    if len(axes) == 2:
        return _matrix_norm(x, "fro" if ord is None else ord, axes, keepdims)
    raise ValueError(f"Improper number of axes for norm: axis={axes}. Pass one axis to compute a vector-norm, or two "
                     "axes to compute a matrix-norm.")


def _largest(sizes: Array, axes: Any, keepdims: bool = False) -> Array:
    """Of nothing, 0."""
    return max(sizes, axis=axes, keepdims=keepdims, initial=0 if 0 in sizes.shape else None)


def _vector_norm(x: Array, ord: Any, axes: tuple[int, ...], keepdims: bool) -> Array:
    if isinstance(ord, str):
        raise ValueError(f"Invalid order '{ord}' for vector norm.")
    if isinstance(ord, (int, float)):
        if ord == 2:
            return sqrt(sum(_squares(x), axis=axes, keepdims=keepdims))
        if ord == np.inf:
            return _largest(abs(x), axes, keepdims)
        if ord == -np.inf:
            return min(abs(x), axis=axes, keepdims=keepdims)
        if ord == 0:
            return sum(x != 0, axis=axes, keepdims=keepdims, dtype=abs(x).dtype)
        if ord == 1:
            return sum(abs(x), axis=axes, keepdims=keepdims)
    sizes = abs(x)
    p = ew.convert(as_array(ord, "norm", 1), sizes.dtype)
    return sum(sizes**p, axis=axes, keepdims=keepdims) ** (1 / p)


def _matrix_norm(x: Array, ord: Any, axes: tuple[int, ...], keepdims: bool) -> Array:
    row, column = axes
    if ord == "fro":
        return sqrt(sum(_squares(x), axis=axes, keepdims=keepdims))
    if ord in (1, -1, np.inf, -np.inf) and not isinstance(ord, str):
        inner, outer = (row, column) if ord in (1, -1) else (column, row)
        sums = sum(abs(x), axis=inner, keepdims=True)
        out = _largest(sums, outer, True) if ord > 0 else min(sums, axis=outer, keepdims=True)
    elif ord in ("nuc", 2, -2):
        s = svdvals(moveaxis(x, axes, (-2, -1)))
        out = sum(s, axis=-1) if ord == "nuc" else _largest(s, -1) if ord == 2 else min(s, axis=-1)
        return expand_dims(out, axes) if keepdims else out
    else:
        raise ValueError(f"Invalid order '{ord}' for matrix norm.")
    return out if keepdims else out.reshape([n for d, n in enumerate(out.shape) if d not in axes])


def matrix_norm(x: ArrayLike, /, *, keepdims: bool = False, ord: Any = "fro") -> Array:
    """The norms of the matrices in the last two axes; see `norm`. ValueError below two dimensions."""
    (x,) = promote_dtypes_inexact("matrix_norm", x)
    axes = (canonicalize_axis(-2, x.ndim), canonicalize_axis(-1, x.ndim))
    return _matrix_norm(x, "fro" if ord is None else ord, axes, keepdims)


def vector_norm(x: ArrayLike, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Array:
    """The norms of the vectors along `axis` (all elements of several axes, or of all, are one vector); see `norm`."""
    (x,) = promote_dtypes_inexact("vector_norm", x)
    return _vector_norm(x, 2 if ord is None else ord, normalize_axes(axis, x.ndim), keepdims)
