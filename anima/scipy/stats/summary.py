"""Statistics of samples: ranks, the most common value, the error of the mean."""

from __future__ import annotations

import functools
import operator
from typing import NamedTuple

import numpy as np

from anima.api.eager import compiled, repeated
from anima.core import dtypes
from anima.core.array import Array
from anima.core.avals import canonicalize_axis
from anima.numpy.functions import sqrt
from anima.numpy.manipulation import concatenate, expand_dims, moveaxis, ravel
from anima.numpy.promote import as_array, inexact_array
from anima.numpy.reductions import any as any_of, cumsum, nanstd, std, sum as sum_of
from anima.numpy.selection import take_along_axis, where
from anima.numpy.sorting import argsort, sort
from anima.ops import elementwise as ew, shape as sh
from anima.ops.reduce import argmax, cummax, cummin
from anima.typing import ArrayLike

_POLICIES = "{'propagate', 'omit', 'raise'}"


class ModeResult(NamedTuple):
    """Results of `mode`."""

    mode: Array
    count: Array


def _only_propagate(name: str, policy: str) -> None:
    if policy not in ("propagate", "omit", "raise"):
        raise ValueError(f"Illegal nan_policy value {policy!r}; expected one of {_POLICIES}")
    if policy != "propagate":
        raise NotImplementedError(f"{name}: nan_policy {policy!r} is not implemented: whether there are NaNs is not "
                                  "known while a program is traced.")


def _starts(ordered: Array) -> Array:
    """Where the runs of equal values begin along the last axis; NaNs are equal to each other."""
    before, after = ordered[..., :-1], ordered[..., 1:]
    changed = (before != after) & ((before == before) | (after == after))
    return concatenate([sh.full((*ordered.shape[:-1], min(ordered.shape[-1], 1)), True), changed], -1)


@functools.partial(compiled, static=("axis",))
def mode(a: ArrayLike, axis: int | None = 0, nan_policy: str = "propagate", keepdims: bool = False) -> ModeResult:
    """(the most common value, how often it is there) along `axis` (None: of all); of several the smallest.

    NaNs count as one value, the largest. The result has no `axis` unless `keepdims`. NotImplementedError for another
    `nan_policy` than "propagate", ValueError for one that does not exist.

    >>> anima.scipy.stats.mode(jnp.array([2, 3, 3, 1])).mode
    Array(3, dtype=int32)
    """
    _only_propagate("mode", nan_policy)
    x = as_array(a, "mode")
    rank = x.ndim
    where_to = None if axis is None else canonicalize_axis(operator.index(axis), max(rank, 1))
    x = ravel(x) if axis is None or not rank else moveaxis(x, where_to, -1)
    if not x.shape[-1]:
        kind = dtypes.canonicalize_dtype(float)
        found, count = (sh.full(x.shape[:-1], value, kind) for value in (np.nan, 0))
    else:
        ordered = sort(x, axis=-1)
        places = sh.broadcasted_iota(dtypes.canonicalize_dtype(int), ordered.shape, ordered.ndim - 1)
        lengths = places - cummax(where(_starts(ordered), places, 0), axis=ordered.ndim - 1) + 1
        best = expand_dims(argmax(lengths, lengths.ndim - 1, np.dtype(np.int32)), -1)
        found, count = (take_along_axis(v, best, axis=-1)[..., 0] for v in (ordered, lengths))
    if keepdims:
        axes = tuple(range(rank)) if where_to is None else (where_to,) if rank else ()
        found, count = expand_dims(found, axes), expand_dims(count, axes)
    return ModeResult(found, count)


@functools.partial(compiled, static=("axis",))
def rankdata(a: ArrayLike, method: str = "average", *, axis: int | None = None, nan_policy: str = "propagate") -> Array:
    """The ranks of values along `axis` (None: of all, flattened), from 1 for the smallest.

    Equal values get, by `method`, the "average", "min" or "max" of their ranks, ranks as if there was one of them
    ("dense"), or ranks in their order ("ordinal"). All are NaN where there is a NaN. ValueError for another method,
    NotImplementedError for another `nan_policy` than "propagate".

    >>> anima.scipy.stats.rankdata(jnp.array([20, 10, 20]))
    Array([2.5, 1. , 2.5], dtype=float32)
    """
    _only_propagate("rankdata", nan_policy)
    x = as_array(a, "rankdata")
    if method not in ("average", "min", "max", "dense", "ordinal"):
        raise ValueError(f"unknown method '{method}'")
    x = ravel(x) if axis is None else moveaxis(x, axis, -1)
    kind = dtypes.canonicalize_dtype(float)
    if not x.size:
        out = sh.full(x.shape, 0, kind)
    else:
        order = argsort(x, axis=-1, stable=True)
        own = argsort(order, axis=-1)
        if method == "ordinal":
            ranks = (own + 1).astype(kind)
        else:
            ranks = take_along_axis(_tied(take_along_axis(x, order, axis=-1), method).astype(kind), own, axis=-1)
        missing = any_of(x != x, axis=-1, keepdims=True)
        out = where(missing, np.nan, ranks)
    return out if axis is None else moveaxis(out, -1, axis)


def _tied(ordered: Array, method: str) -> Array:
    """Ranks of values in ascending order."""
    n, last = ordered.shape[-1], ordered.ndim - 1
    first = _starts(ordered)
    if method == "dense":
        return cumsum(first, axis=-1)
    places = sh.broadcasted_iota(np.dtype(np.int32), ordered.shape, last)
    low = cummax(where(first, places, 0), axis=last) + 1
    ends = concatenate([first[..., 1:], sh.full((*ordered.shape[:-1], 1), True)], -1)
    high = cummin(where(ends, places, n), axis=last, reverse=True) + 1
    return {"min": low, "max": high}.get(method, (low + high) / 2)


@repeated
def sem(a: ArrayLike, axis: int | None = 0, ddof: int = 1, nan_policy: str = "propagate", *,
        keepdims: bool = False) -> Array:
    """The standard error of the mean along `axis` (None: of all): the standard deviation by the root of the number.

    `ddof` is subtracted from the number for the standard deviation. `nan_policy` is "propagate", or "omit", which
    leaves NaNs out. ValueError for another.

    >>> anima.scipy.stats.sem(jnp.array([1.0, 3.0]))
    Array(1., dtype=float32)
    """
    if nan_policy not in ("propagate", "omit"):
        raise ValueError(f"{nan_policy} is not supported")
    x = inexact_array("sem", a)
    axis = axis if axis is None else operator.index(axis)
    if nan_policy == "propagate":
        count = x.size if axis is None else x.shape[axis]
        deviation = std(x, axis=axis, dtype=x.dtype, ddof=ddof, keepdims=keepdims)
        return deviation / sqrt(ew.convert(count, dtypes.to_real(x.dtype)))
    present = sum_of(x == x, axis=axis, keepdims=keepdims)
    return nanstd(x, axis=axis, ddof=ddof, keepdims=keepdims) / sqrt(present.astype(dtypes.to_real(x.dtype)))
