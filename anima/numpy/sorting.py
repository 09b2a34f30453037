"""Sorting and searching: sort, argsort, partition, searchsorted, digitize; NaN sorts last."""

from __future__ import annotations

from typing import Any

import numpy as np

from anima.api.eager import of_numbers, repeated
from anima.core import dtypes
from anima.core.array import Array
from anima.core.avals import canonicalize_axis
from anima.numpy.elementwise import broadcast_array, isnan, less, less_equal, select_where
from anima.numpy.manipulation import flip, ravel
from anima.numpy.promote import as_array, as_arrays, is_inexact, promote_dtypes, static_int
from anima.numpy.selection import take
from anima.ops import elementwise as ew, shape as sh, sort as st
from anima.ops.broadcast import reduce_sum

ArrayLike = Any
_I32 = np.dtype(np.int32)
# Up to as many sorted numbers, it is quicker to compare with all of them than to search: a search waits for reads.
COUNTED = 128


def _no_order(name: str, kind: Any, order: Any) -> None:
    if kind is not None:
        raise TypeError(f"'kind' argument to {name} is not supported: use stable=True or stable=False.")
    if order is not None:
        raise TypeError(f"'order' argument to {name} is not supported.")


def _axis_of(x: Array, axis: int | None) -> tuple[Array, int]:
    if axis is None:
        return ravel(x), 0
    return x, canonicalize_axis(axis, x.ndim)


@repeated
def sort(a: ArrayLike, axis: int | None = -1, *, kind: None = None, order: None = None, stable: bool = True,
         descending: bool = False) -> Array:
    """`a` in ascending (or descending) order along `axis` (None: flattened).

    >>> jnp.sort(jnp.array([3, 1, 2]))
    Array([1, 2, 3], dtype=int32)
    """
    _no_order("sort", kind, order)
    x, axis = _axis_of(as_array(a, "sort"), axis)
    result = st.sort(x, dimension=axis, is_stable=stable)
    return flip(result, axis) if descending else result


@repeated
def argsort(a: ArrayLike, axis: int | None = -1, *, kind: None = None, order: None = None, stable: bool = True,
            descending: bool = False, dtype: Any = None) -> Array:
    """The indices that sort `a` along `axis`; equal elements keep their order if `stable`."""
    _no_order("argsort", kind, order)
    x, axis = _axis_of(as_array(a, "argsort"), axis)
    index_dtype = dtypes.default_int() if dtype is None else dtypes.check_user_dtype(dtype, "argsort")
    if descending:
        x = flip(x, axis)
    places = sh.broadcasted_iota(index_dtype, x.shape, axis)
    _, result = st.sort((x, places), dimension=axis, is_stable=stable, num_keys=1)
    if descending:      # reversed twice, so that equal elements keep their order
        result = flip(ew.sub(index_dtype.type(x.shape[axis] - 1), result), axis)
    return result


@repeated
def lexsort(keys: Any, axis: int = -1) -> Array:
    """The indices that sort by the last of `keys`, ties by the one before it, and so on."""
    keys = as_arrays("lexsort", *tuple(keys))
    if not keys:
        raise TypeError("need sequence of keys with len > 0 in lexsort")
    if len({k.shape for k in keys}) > 1:
        raise ValueError("all keys need to be the same shape")
    if not keys[0].ndim:
        return sh.full((), 0, dtypes.default_int())
    axis = canonicalize_axis(axis, keys[0].ndim)
    places = sh.broadcasted_iota(dtypes.default_int(), keys[0].shape, axis)
    return st.sort((*keys[::-1], places), dimension=axis, num_keys=len(keys))[-1]


@repeated
def partition(a: ArrayLike, kth: int, axis: int = -1) -> Array:
    """`a` with element `kth` in its sorted place along `axis`, smaller ones before it, larger ones after.

    The order within the two sides is that of a sort.
    """
    x = as_array(a, "partition")
    _check_kth("partition", x, kth, axis)
    return sort(x, axis)


@repeated
def argpartition(a: ArrayLike, kth: int, axis: int = -1) -> Array:
    """The indices, int32, that `partition` would take."""
    x = as_array(a, "argpartition")
    _check_kth("argpartition", x, kth, axis)
    return ew.convert_element_type(argsort(x, axis), np.int32)


def _check_kth(name: str, x: Array, kth: int, axis: int) -> None:
    kth = static_int(kth, f"'kth' argument of anima.numpy.{name}")
    if x.dtype.kind == "c":
        raise NotImplementedError(f"anima.numpy.{name} for complex dtype is not implemented.")
    canonicalize_axis(kth, x.shape[canonicalize_axis(axis, x.ndim)])


@repeated
def sort_complex(a: ArrayLike) -> Array:
    """`a` sorted along its last axis as complex numbers: by real part, then by imaginary part."""
    x = sort(a)
    return x if x.dtype.kind == "c" else ew.convert_element_type(x, dtypes.to_complex(x.dtype))


# ---------------------------------------------------------------- searching

@of_numbers
def searchsorted(a: ArrayLike, v: ArrayLike, side: str = "left", sorter: ArrayLike | None = None, *,
                 method: str = "scan") -> Array:
    """Where in the sorted vector `a` each of `v` would be inserted: before ("left") or after equal elements.

    `method` is accepted for compatibility: few elements are compared with each of `v`, among many a binary search
    goes on for all of `v` at once.
    """
    if side not in ("left", "right"):
        raise ValueError(f"{side!r} is an invalid value for keyword 'side'. Expected one of ['left', 'right'].")
    if method not in ("scan", "scan_unrolled", "sort", "compare_all"):
        raise ValueError(f"{method!r} is an invalid value for keyword 'method'.")
    if sorter is not None:
        a = take(a, as_array(sorter, "searchsorted", 2), mode="clip")
    sorted_, wanted = promote_dtypes("searchsorted", a, v)
    if sorted_.ndim != 1:
        raise ValueError("a should be 1-dimensional")
    if not sorted_.size:
        return sh.full_like(wanted, 0, dtype=dtypes.default_int())
    if sorted_.size <= COUNTED:
        return _count_before(sorted_, wanted, side)
    if not wanted.ndim:  # a vector of one is looked for without a look at its value
        return sh.squeeze(_binary_search(sorted_, sh.expand_dims(wanted, (0,)), side), (0,))
    return _binary_search(sorted_, wanted, side)


def _count_before(sorted_: Array, wanted: Array, side: str) -> Array:
    """How many elements come before: more of them than a search looks at, but without a read at a place that varies."""
    elements = sh.expand_dims(sorted_, tuple(range(1, wanted.ndim + 1)))
    values = sh.expand_dims(wanted, (0,))
    count = _how_many(less(elements, values) if side == "left" else less_equal(elements, values))
    if is_inexact(sorted_.dtype):  # NaN is the largest number
        at_nan = _how_many(ew.not_(isnan(sorted_))) if side == "left" else _I32.type(sorted_.size)
        count = select_where(isnan(wanted), at_nan, count)
    return ew.convert(count, dtypes.default_int(), False)


def _how_many(condition: Array) -> Array:
    """Where, along the first axis, it holds."""
    return reduce_sum(ew.convert_element_type(condition, _I32), (0,))


def _before(element: Array, wanted: Array, side: str) -> Array:
    """Whether `element` comes before the insertion point; NaN is the largest number."""
    below = less(element, wanted) if side == "left" else less_equal(element, wanted)
    if not is_inexact(element.dtype):
        return below
    if side == "right":
        return ew.or_(below, isnan(wanted))
    return ew.or_(below, ew.and_(isnan(wanted), ew.not_(isnan(element))))


def _binary_search(sorted_: Array, wanted: Array, side: str) -> Array:
    """The largest place that elements come before, in steps of powers of two.

    The first step leaves a power of two of places on either side (they may overlap): no later one looks past the end.
    """
    n, dtype = sorted_.size, _I32 if sorted_.size < 2**31 else np.dtype(np.int64)
    step = 1 << (n.bit_length() - 1)
    middle = broadcast_array(sorted_[step - 1], wanted.shape)
    low = select_where(_before(middle, wanted, side), dtype.type(n - step + 1), dtype.type(0))
    while step > 1:
        step //= 2
        element = take(sorted_, ew.add(low, dtype.type(step - 1)), mode="clip")
        low = ew.add(low, select_where(_before(element, wanted, side), dtype.type(step), dtype.type(0)))
    return ew.convert(low, dtypes.default_int(), False)


@of_numbers
def digitize(x: ArrayLike, bins: ArrayLike, right: bool = False, *, method: str | None = None) -> Array:
    """The number of the bin that each of `x` is in; `bins` are its edges, in increasing or decreasing order."""
    edges, values = as_array(bins, "digitize", 1), as_array(x, "digitize", 0)
    if edges.ndim != 1:
        raise ValueError(f"digitize: bins must be a 1-dimensional array; got {edges.shape}")
    if not edges.size:
        return sh.full_like(values, 0, dtype=dtypes.default_int())
    side = "left" if right else "right"
    upwards = ew.ge(edges[-1], edges[0])
    found = searchsorted(select_where(upwards, edges, flip(edges)), values, side)
    return select_where(upwards, found, ew.sub(dtypes.default_int().type(edges.size), found))
