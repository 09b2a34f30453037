"""Functions along an axis: softmax and its logarithm, logsumexp, standardization, one-hot vectors.

Exponentials are taken of differences to the maximum, so that none overflows. `where` leaves elements out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

import anima.numpy as jnp
from anima.api.eager import repeated
from anima.config import config
from anima.core import dtypes
from anima.core.axes import size_of
from anima.core.state import warn
from anima.core.trace import is_array_like
from anima.numpy.promote import reduction_axes, static_int
from anima.ops.elementwise import rsqrt, stop_gradient
from anima.ops.exchange import axis_index_p
from anima.ops.index import index_operand, narrow_index
from anima.transforms.custom import custom_jvp

Axes = int | Sequence[int] | None


def _inexact(name: str, *xs: Any) -> list[Any]:
    """The arguments as arrays of their common inexact type; TypeError for lists and such."""
    for i, x in enumerate(xs):
        if not is_array_like(x):
            raise TypeError(f"{name} requires ndarray or scalar arguments, got {type(x)} at position {i}.")
    dtype = dtypes.to_inexact(dtypes.result_type(*xs))
    arrays = [jnp.asarray(x) for x in xs]
    return [x if x.dtype == dtype else x.astype(dtype) for x in arrays]


def _kept(name: str, x: Any, where: Any) -> Any:
    """`x` as an array of an inexact type, -inf at elements left out: beside these, integers are floats by default."""
    if where is not None:
        x = jnp.where(jnp.broadcast_to(where, np.shape(x)), x, -np.inf)
    return _inexact(name, x)[0]


def largest(x: Any, axis: Axes, where: Any = None) -> Any:
    """The maximum along `axis`, kept as a dimension of size 1; a constant for derivatives."""
    return stop_gradient(jnp.max(x, axis, keepdims=True, where=where, initial=-np.inf))


@repeated
def softmax(x: Any, axis: Axes = -1, where: Any = None) -> Any:
    """exp(x) / sum(exp(x)) along `axis`: positive numbers whose sum is 1. Elements left out are 0.

    >>> anima.nn.softmax(jnp.array([0., 0.]))
    Array([0.5, 0.5], dtype=float32)
    """
    x = _kept("softmax", x, where)
    return _softmax_by_result(x, axis, where) if config.softmax_custom_jvp else _softmax(x, axis, where)


def _softmax(x: Any, axis: Axes, where: Any) -> Any:
    unnormalized = jnp.exp(x - largest(x, axis, where))
    out = unnormalized / jnp.sum(unnormalized, axis, where=where, keepdims=True)
    return out if where is None else jnp.where(where, out, 0)


@partial(custom_jvp, nondiff_argnums=(1,))
def _softmax_by_result(x: Any, axis: Axes, where: Any) -> Any:
    """Softmax of which derivatives need nothing but the result: dy = y (dx - sum(y dx))."""
    return _softmax(x, axis, where)


@_softmax_by_result.defjvp
def _softmax_jvp(axis: Axes, primals: Any, tangents: Any) -> Any:
    y = _softmax_by_result(primals[0], axis, primals[1])
    dx = tangents[0]
    return y, y * (dx - jnp.sum(y * dx, axis, where=primals[1], keepdims=True))


@repeated
def log_softmax(x: Any, axis: Axes = -1, where: Any = None) -> Any:
    """log(softmax(x)) along `axis`, precise where the softmax is tiny. Elements left out are -inf."""
    x = _kept("log_softmax", x, where)
    shifted = x - largest(x, axis, where)
    out = shifted - jnp.log(jnp.sum(jnp.exp(shifted), axis, where=where, keepdims=True))
    return out if where is None else jnp.where(where, out, -np.inf)


@repeated
def logsumexp(a: Any, axis: Axes = None, b: Any = None, keepdims: bool = False, return_sign: bool = False,
              where: Any = None) -> Any:
    """log(sum(b * exp(a))) along `axis`, without overflow; b is 1 by default.

    With return_sign=True the pair (log of the absolute value of the sum, its sign); without it, NaN where
    the sum is negative.

    >>> anima.nn.logsumexp(jnp.array([1000., 1000.]))
    Array(1000.6932, dtype=float32)
    """
    if b is None:
        (a,) = _inexact("logsumexp", a)
    else:
        a, b = _inexact("logsumexp", a, b)
        a = jnp.where(b != 0, a, -np.inf)
    a = _kept("logsumexp", a, where)
    own, mapped = reduction_axes(axis, a.ndim)
    axes = (*own, *mapped)
    top = largest(jnp.real(a), axes, where)
    top = jnp.where(jnp.isfinite(top), top, 0)
    terms = jnp.exp(a - top.astype(a.dtype))
    total = jnp.sum(terms if b is None else b * terms, axes, where=where, keepdims=True)
    sign = jnp.sign(total)
    is_complex = dtypes.issubdtype(a.dtype, np.complexfloating)
    if return_sign or not is_complex:
        total = jnp.abs(total)
    out = jnp.log(total) + top.astype(total.dtype)
    if not keepdims:
        out, sign = jnp.squeeze(out, own), jnp.squeeze(sign, own)
    if return_sign:
        return out, sign
    return out if b is None or is_complex else jnp.where(sign < 0, np.nan, out)


@repeated
def logmeanexp(x: Any, axis: Axes = None, where: Any = None, keepdims: bool = False) -> Any:
    """log(mean(exp(x))) along `axis`, without overflow."""
    (x,) = _inexact("logmeanexp", x)
    total = logsumexp(x, axis, where=where, keepdims=keepdims)
    counted = jnp.ones_like(x) if where is None else jnp.broadcast_to(where, x.shape).astype(x.dtype)
    return total - jnp.log(jnp.sum(counted, axis, keepdims=keepdims))


@repeated
def standardize(x: Any, axis: Axes = -1, mean: Any = None, variance: Any = None, epsilon: Any = 1e-5,
                where: Any = None, *, algorithm: str = "fast") -> Any:
    """(x - mean) / sqrt(variance + epsilon) along `axis`.

    Mean and variance are those of `x` unless given. The variance is mean(x**2) - mean(x)**2 with algorithm
    "fast", mean((x - mean)**2), which does not cancel, with "stable".
    """
    (x,) = _inexact("standardize", x)
    if algorithm not in ("fast", "stable"):
        raise ValueError(f"standardize: algorithm must be 'fast' or 'stable', got {algorithm!r}")
    if mean is None:
        mean = jnp.mean(x, axis, keepdims=True, where=where)
    if variance is None:
        if algorithm == "stable":
            variance = jnp.mean(jnp.square(x - mean), axis, keepdims=True, where=where)
        else:
            square = jnp.mean(jnp.square(x), axis, keepdims=True, where=where)
            variance = jnp.maximum(square - jnp.square(mean), 0)  # rounding may take it below 0
    return (x - mean) * rsqrt(*_inexact("standardize", variance + epsilon))


@repeated
def one_hot(x: Any, num_classes: int, *, dtype: Any = None, axis: Any = -1) -> Any:
    """Vectors that are 1 at place `x` and 0 elsewhere, along a new dimension `axis` of size num_classes.

    Places outside of the vector give zeros. `axis` may be the name of a mapped axis of that size.

    >>> anima.nn.one_hot(jnp.array([0, 2]), 3)
    Array([[1., 0., 0.],
           [0., 0., 1.]], dtype=float32)
    """
    count = static_int(num_classes, "It arose in the num_classes argument of anima.nn.one_hot.")
    if count < 0:
        raise TypeError(f"one_hot: num_classes must not be negative, got {count}")
    dtype = dtypes.check_user_dtype(dtype, "one_hot")
    x = jnp.asarray(index_operand(x))
    x = x.astype(np.int32) if x.dtype == np.bool_ else x
    if not dtypes.issubdtype(x.dtype, np.integer):
        warn(f"one_hot input should be integer-typed, as places are; it is {dtypes.name(x.dtype)}.",
             DeprecationWarning)
    if dtypes.issubdtype(x.dtype, np.integer):
        x = narrow_index(x)
    if not hasattr(type(axis), "__index__"):
        if size_of(axis, "one_hot") != count:
            raise ValueError(f"Expected num_classes to match the size of axis {axis}, but {count} != "
                             f"{size_of(axis, 'one_hot')}")
        return (x == axis_index_p.bind(axis_name=axis)).astype(dtype)
    rank = x.ndim + 1
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} is out of bounds for array of dimension {rank}")
    axis %= rank
    places = jnp.arange(count, dtype=x.dtype).reshape([count if d == axis else 1 for d in range(rank)])
    return (jnp.expand_dims(x, axis) == places).astype(dtype)
