"""Sets of numbers: unique elements, membership, unions and differences.

Everything sorts, marks the first of equal elements, and keeps what is marked. How many that are must be
known, or fixed by `size=`: then results are cut, or padded with `fill_value` (default: the least element).

    >>> jnp.unique(jnp.array([3, 1, 3]))
    Array([1, 3], dtype=int32)
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeGuard

import numpy as np

from anima.api.eager import repeated
from anima.core import dtypes
from anima.core.array import Array, ConcreteArray
from anima.core.avals import ShapedArray, canonicalize_axis
from anima.core.trace import wrap
from anima.numpy.creation import of_sequences
from anima.numpy.elementwise import isnan, select_where
from anima.numpy.manipulation import concatenate, moveaxis, ravel
from anima.numpy.promote import (
    as_array,
    convert_operand,
    is_for_numpy,
    is_inexact,
    operand,
    promote_dtypes,
    static_int,
    static_value,
)
from anima.numpy.reductions import all as all_, any as any_, cumsum, sum
from anima.numpy.selection import nonzero, take
from anima.numpy.sorting import argsort, lexsort, searchsorted, sort
from anima.ops import elementwise as ew, shape as sh

ArrayLike = Any
_I32 = np.dtype(np.int32)


class _UniqueAllResult(NamedTuple):
    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class _UniqueCountsResult(NamedTuple):
    values: Array
    counts: Array


class _UniqueInverseResult(NamedTuple):
    values: Array
    inverse_indices: Array


def _needs_values(x: Array, name: str, position: str = "first") -> None:
    """ConcretizationTypeError, with advice, if the size of a result would depend on traced values."""
    static_value(x, f"The error arose for the {position} argument of anima.numpy.{name}(). To make "
                    f"anima.numpy.{name}() compatible with JIT and other transforms, you can specify a concrete value "
                    "for the size argument, which will determine the output size.", f"anima.numpy.{name}(..., size=n)")


def _is_known(x: Array) -> TypeGuard[ConcreteArray]:
    """Whether NumPy can tell what is equal, and in which order."""
    return is_for_numpy(x) and x.dtype.kind in "biuf"


def _numbers(x: np.ndarray, shape: tuple[int, ...] | None = None) -> Array:
    """Positions or counts that NumPy has found."""
    kind = dtypes.default_int()
    return wrap(x.astype(kind), ShapedArray(x.shape if shape is None else shape, kind))


def _count(mask: Array) -> int:
    return int(static_value(sum(mask), ""))


def _kept(mask: Array, size: int | None) -> tuple[Array, int, Array]:
    """(positions where the mask holds, cut or padded with 0; how many positions; which of them are real)."""
    wanted = _count(mask) if size is None else static_int(size, "the size argument must be static.")
    (index,) = nonzero(mask, size=wanted)
    total = sum(mask, dtype=_I32)
    return index, wanted, ew.lt(sh.iota(_I32, wanted), total)


def _different(x: Array, equal_nan: bool) -> Array:
    """Which rows of sorted rows differ from the row before; the first does."""
    if not x.shape[0]:
        return sh.full((0,), True, np.bool_)
    after, before = sh.slice_in_dim(x, 1, x.shape[0]), sh.slice_in_dim(x, 0, x.shape[0] - 1)
    differ = ew.ne(after, before)
    if equal_nan and is_inexact(x.dtype):
        differ = ew.and_(differ, ew.not_(ew.and_(isnan(after), isnan(before))))
    differ = any_(differ, axis=1) if x.ndim == 2 else differ
    return sh.concatenate([sh.full((1,), True, np.bool_), differ], 0)


def unique(ar: ArrayLike, return_index: bool = False, return_inverse: bool = False, return_counts: bool = False,
           axis: int | None = None, *, equal_nan: bool = True, size: int | None = None, fill_value: Any = None,
           sorted: bool = True) -> Any:
    """The distinct elements, in order (with `axis`, the distinct parts along it).

    With the flags also: the first index of each, the number of each element's value among the distinct ones,
    how often each occurs.
    """
    del sorted
    x = as_array(operand("unique", ar))
    if axis is not None:
        axis = canonicalize_axis(axis, x.ndim)
    if size is None:
        _needs_values(x, "unique")
        if _is_known(x) and x.size and (axis is None or x.ndim == 1):
            return _unique_of_known(x, return_index, return_inverse, return_counts, equal_nan)
    if axis is None:
        moved, inverse_shape = ravel(x), x.shape
        axis_out = 0
    else:
        axis_out = axis
        moved = moveaxis(x, axis_out, 0)
        inverse_shape = (x.shape[axis_out],)
    count = moved.shape[0]
    rows = moved if moved.ndim == 1 else sh.reshape(moved, (count, moved.size // count if count else 0))
    order = _row_order(rows)
    ranked = take(rows, order, 0, mode="clip")
    mask = _different(ranked, equal_nan)
    index, wanted, real = _kept(mask, size)
    values = take(moved, take(order, index, mode="clip"), 0, mode="clip") if count else \
        sh.zeros(moved.aval.update(shape=(wanted, *moved.shape[1:])))
    if not count and wanted and fill_value is None:
        raise ValueError("unique: of no elements there is none to fill up with: `fill_value` must be given.")
    if wanted and fill_value is not None:
        fill = as_array(convert_operand(operand("unique", fill_value), x.dtype, False))
        values = select_where(sh.broadcast_in_dim(real, values.shape, (0,)), values, fill)
    out = [moveaxis(values, 0, axis_out)]
    if return_index:
        out.append(take(order, index, mode="clip") if count else index)
    if return_inverse:
        number = ew.sub(cumsum(ew.convert_element_type(mask, dtypes.default_int())), dtypes.default_int().type(1))
        inverse = sh.full((count,), 0, dtypes.default_int()).at[order].set(number)
        out.append(sh.reshape(inverse, inverse_shape))
    if return_counts:
        (ends,) = nonzero(mask, size=wanted + 1, fill_value=count) if count else (
            sh.full((wanted + 1,), 0, dtypes.default_int()),)
        counts = ew.sub(sh.slice_in_dim(ends, 1, wanted + 1), sh.slice_in_dim(ends, 0, wanted))
        out.append(counts)
    return out[0] if len(out) == 1 else tuple(out)


def _unique_of_known(x: ConcreteArray, return_index: bool, return_inverse: bool, return_counts: bool, equal_nan: bool
                     ) -> Any:
    """The same by NumPy; with the indices, of equal elements the first one is taken."""
    found = np.unique(x.elements(), True, return_inverse, return_counts, equal_nan=equal_nan)
    values = wrap(found[0], x.aval.update(shape=found[0].shape))
    shapes = [None, *([x.shape] if return_inverse else []), None]
    numbers = [_numbers(n, shape) for n, shape in zip(found[1:], shapes, strict=False)]
    out = [values, *numbers[0 if return_index else 1:]]
    return values if len(out) == 1 else tuple(out)


def _row_order(rows: Array) -> Array:
    """The indices that sort rows (numbers, or vectors by their first element, ties by the next, ...)."""
    if rows.ndim == 1:
        return argsort(rows)
    columns = [sh.index_in_dim(rows, i, 1, keepdims=False) for i in range(rows.shape[1])]
    return lexsort(columns[::-1]) if columns else sh.iota(dtypes.default_int(), rows.shape[0])


def unique_values(x: ArrayLike, /, *, size: int | None = None, fill_value: Any = None) -> Array:
    """The distinct elements; each NaN is distinct."""
    return unique(x, equal_nan=False, size=size, fill_value=fill_value)


def unique_counts(x: ArrayLike, /, *, size: int | None = None, fill_value: Any = None) -> _UniqueCountsResult:
    """The distinct elements and how often each occurs."""
    return _UniqueCountsResult(*unique(x, return_counts=True, equal_nan=False, size=size, fill_value=fill_value))


def unique_inverse(x: ArrayLike, /, *, size: int | None = None, fill_value: Any = None) -> _UniqueInverseResult:
    """The distinct elements and each element's number among them."""
    return _UniqueInverseResult(*unique(x, return_inverse=True, equal_nan=False, size=size, fill_value=fill_value))


def unique_all(x: ArrayLike, /, *, size: int | None = None, fill_value: Any = None) -> _UniqueAllResult:
    """The distinct elements, their first indices, each element's number among them, and how often each occurs."""
    return _UniqueAllResult(*unique(x, True, True, True, equal_nan=False, size=size, fill_value=fill_value))


# ---------------------------------------------------------------- membership

@repeated
def isin(element: ArrayLike, test_elements: ArrayLike, assume_unique: bool = False, invert: bool = False, *,
         method: str = "auto") -> Array:
    """Whether each of `element` is among `test_elements` (is not, if `invert`); NaN never is.

    `method` is accepted for compatibility: one binary search in the sorted test elements serves all sizes.
    """
    del assume_unique
    if method not in ("auto", "compare_all", "binary_search", "sort"):
        raise ValueError(f"isin: method must be 'compare_all', 'binary_search', 'sort' or 'auto'; got {method=}")
    x, tests = promote_dtypes("isin", element, test_elements)
    x = as_array(convert_operand(x, x.dtype, False))
    if not tests.size or not x.size:
        found = sh.full_like(x, False, dtype=np.bool_)
    elif x.dtype == np.bool_:
        x, tests = (ew.convert_element_type(v, np.uint8) for v in (x, tests))
        found = _among(x, ravel(tests))
    else:
        found = _among(x, ravel(tests))
    return ew.not_(found) if invert else found


def _among(x: Array, tests: Array) -> Array:
    ranked = sort(tests)
    found = searchsorted(ranked, x)
    place = ew.min(sh.full_like(found, ranked.size - 1), found)
    return ew.eq(take(ranked, place, mode="clip"), x)


def _padded(values: Array, mask: Array, size: int | None, fill_value: Any, default: Any = None) -> Array:
    """The values where the mask holds, cut or padded to `size`."""
    index, wanted, real = _kept(mask, size)
    if not values.size:
        return sh.full((wanted,), 0 if fill_value is None else fill_value, values.dtype)
    picked = take(values, index, mode="clip")
    if size is None:
        return picked
    if fill_value is None and default is None:
        fill = take(picked, np.zeros(picked.shape, _I32), mode="clip") if wanted else picked
    else:
        fill = as_array(convert_operand(operand("fill_value", default if fill_value is None else fill_value),
                                        values.dtype, False))
    return select_where(real, picked, fill)


def _two(name: str, ar1: Any, ar2: Any, size: int | None) -> tuple[Array, Array]:
    a, b = promote_dtypes(name, ar1, ar2)
    if size is None:
        _needs_values(a, name)
        _needs_values(b, name, "second")
    return ravel(a), ravel(b)


def union1d(ar1: ArrayLike, ar2: ArrayLike, *, size: int | None = None, fill_value: Any = None) -> Array:
    """The distinct elements of both, in order."""
    a, b = _two("union1d", ar1, ar2, size)
    return unique(concatenate([a, b]), size=size, fill_value=fill_value)


def setdiff1d(ar1: ArrayLike, ar2: ArrayLike, assume_unique: bool = False, *, size: int | None = None,
              fill_value: Any = None) -> Array:
    """The distinct elements of `ar1`, of its type, that are not in `ar2`; padding is 0 by default."""
    dtype = as_array(ar1, "setdiff1d").dtype
    a, b = _two("setdiff1d", ar1, ar2, size)
    if size is None and _is_known(a) and _is_known(b):
        left = np.setdiff1d(a.elements(), b.elements(), assume_unique)
        return wrap(left, a.aval.update(shape=left.shape)).astype(dtype)
    if not assume_unique:
        a = sort(a)
        mask = ew.and_(_different(a, True), isin(a, b, invert=True))
    else:
        mask = isin(a, b, invert=True)
    return _padded(a.astype(dtype), mask, size, fill_value, 0)


def setxor1d(ar1: ArrayLike, ar2: ArrayLike, assume_unique: bool = False, *, size: int | None = None,
             fill_value: Any = None) -> Array:
    """The distinct elements that are in one of the two only, in order; NaN once for each that has some."""
    del assume_unique
    a, b = map(sort, _two("setxor1d", ar1, ar2, size))
    joined = concatenate([a, b])
    if not joined.size:
        return _padded(joined, _different(joined, True), size, fill_value)
    alone = concatenate([ew.and_(_different(x, True), isin(x, other, invert=True)) for x, other in ((a, b), (b, a))])
    order = argsort(joined)
    ranked, kept = (take(x, order, mode="clip") for x in (joined, alone))
    return _padded(_filling(ranked, kept, size), kept, size, fill_value)


def _filling(values: Array, mask: Array, size: int | None) -> Array:
    """The values; zeros where the mask holds for none, as what fills a fixed size is the first for which it holds."""
    return values if size is None else select_where(any_(mask), values, sh.full_like(values, 0))


def intersect1d(ar1: ArrayLike, ar2: ArrayLike, assume_unique: bool = False, return_indices: bool = False, *,
                size: int | None = None, fill_value: Any = None) -> Any:
    """The distinct elements that are in both, in order; with `return_indices`, also their first indices in each."""
    del assume_unique
    a, b = _two("intersect1d", ar1, ar2, size)
    if size is None and _is_known(a) and _is_known(b):
        shared, *places = np.intersect1d(a.elements(), b.elements(), return_indices=True)
        common = wrap(shared, a.aval.update(shape=shared.shape))
        return (common, *map(_numbers, places)) if return_indices else common
    order = argsort(a)
    ranked = take(a, order, mode="clip") if a.size else a
    mask = ew.and_(_different(ranked, False), isin(ranked, b))
    common = _padded(_filling(ranked, mask, size), mask, size, fill_value)
    if not return_indices:
        return common
    index, _, real = _kept(mask, size)
    if not a.size or not b.size:  # nothing is common: all there is is padding
        return common, sh.full_like(index, a.size), sh.full_like(index, b.size)
    first = take(order, index, mode="clip")
    other_order = argsort(b)
    place = searchsorted(take(b, other_order, mode="clip"), take(ranked, index, mode="clip"))
    second = take(other_order, place, mode="clip")
    if size is not None:
        first = select_where(real, first, sh.full_like(first, a.size))
        second = select_where(real, second, sh.full_like(second, b.size))
    return common, first, second


@of_sequences
@repeated
def array_equal(a1: ArrayLike, a2: ArrayLike, equal_nan: bool = False) -> Array:
    """Whether shapes and all elements are equal (NaN to NaN only if `equal_nan`)."""
    a, b = as_array(a1, "array_equal", 0), as_array(a2, "array_equal", 1)
    if a.shape != b.shape:
        return as_array(np.bool_(False))
    a, b = (as_array(convert_operand(v, v.dtype, False)) for v in promote_dtypes("array_equal", a, b))
    same = ew.eq(a, b)
    if equal_nan and is_inexact(a.dtype):
        same = ew.or_(same, ew.and_(isnan(a), isnan(b)))
    return all_(same)


@of_sequences
@repeated
def array_equiv(a1: ArrayLike, a2: ArrayLike) -> Array:
    """Whether all elements are equal after broadcasting; False if the shapes do not broadcast."""
    a, b = as_array(a1, "array_equiv", 0), as_array(a2, "array_equiv", 1)
    try:
        shape = np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        return as_array(np.bool_(False))
    a, b = (as_array(convert_operand(v, v.dtype, False)) for v in promote_dtypes("array_equiv", a, b))
    return all_(ew.eq(*(sh.broadcast_to(v, shape) for v in (a, b))))


def iscomplexobj(x: Any) -> bool:
    """Whether the dtype of `x` is complex: of an array, or of what tells of one (a `ShapeDtypeStruct`, a dtype)."""
    if x is None:
        return False
    dtype = getattr(x, "dtype", None)
    if dtype is None:
        dtype = (x.__jax_array__() if hasattr(x, "__jax_array__") else np.asarray(x)).dtype
    return dtypes.issubdtype(dtype, np.complexfloating)


def isrealobj(x: Any) -> bool:
    """Whether the dtype of `x` is not complex."""
    return not iscomplexobj(x)


@repeated
def iscomplex(x: ArrayLike) -> Array:
    """Whether elements have an imaginary part."""
    x = as_array(x, "iscomplex")
    return ew.ne(ew.imag(x), 0) if iscomplexobj(x) else sh.full_like(x, False, dtype=np.bool_)


@repeated
def isreal(x: ArrayLike) -> Array:
    """Whether elements have no imaginary part."""
    return ew.not_(iscomplex(x))
