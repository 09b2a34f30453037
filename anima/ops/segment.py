"""Sums, products and extremes of segments: rows of an array gathered by number, by one scatter.

    >>> segment_sum(jnp.array([5, 1, 7, 2]), jnp.array([0, 1, 0, 3]), num_segments=4)
    Array([12,  1,  0,  2], dtype=int32)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from anima import errors
from anima.core import dtypes
from anima.core.avals import max_dim
from anima.core.dims import Dim, index_of
from anima.core.trace import Tracer, aval_of
from anima.ops.broadcast import as_array, broadcast_to, full, iota
from anima.ops.elementwise import add, and_, div, ge, lt, mul, select
from anima.ops.index import (
    GatherScatterMode,
    ScatterDimensionNumbers,
    index_operand,
    narrow_index,
    scatter_add,
    scatter_max,
    scatter_min,
    scatter_mul,
)
from anima.ops.placing import as_asked
from anima.ops.reduce import largest, reduce_max, reduce_min, reduce_prod, reduce_sum, smallest
from anima.ops.shape import reshape

__all__ = ["segment_max", "segment_min", "segment_prod", "segment_sum"]


def _count(name: str, segment_ids: Any, num_segments: int | None) -> int:
    if num_segments is None:
        if isinstance(segment_ids, Tracer):
            raise errors.ConcretizationTypeError(segment_ids, f"{name}() needs `num_segments` while tracing.",
                                                 f"{name}(data, segment_ids, num_segments=n)")
        ids = np.asarray(segment_ids)
        count = int(ids.max()) + 1 if ids.size else 0
    elif isinstance(num_segments, Tracer):
        raise errors.ConcretizationTypeError(num_segments, f"{name}() `num_segments` argument.", errors.KNOWN_VALUE)
    else:
        count = index_of(num_segments)
    if count < 0:
        raise ValueError(f"{name}: num_segments must be non-negative, got {count}"
                         + ("." if num_segments is not None else ", one more than the largest segment number."))
    return count


def _segments(name: str, scatter: Callable[..., Any], reduce: Callable[..., Any], start: Callable[[Any], Any],
              doc: str) -> Callable[..., Any]:
    def segment(data: Any, segment_ids: Any, num_segments: int | None = None, indices_are_sorted: bool = False,
                unique_indices: bool = False, bucket_size: int | None = None, mode: Any = None,
                out_sharding: Any = None) -> Any:
        if out_sharding is not None:
            return as_asked(name, None, out_sharding, segment, data, segment_ids, num_segments, indices_are_sorted,
                            unique_indices, bucket_size, mode)
        for x in (data, segment_ids):
            aval_of(x)
        data, ids = as_array(data), as_array(index_operand(segment_ids))
        count = _count(name, segment_ids, num_segments)
        row = data.shape[1:]
        try:
            spread = broadcast_to(data, (*ids.shape, *row))
        except ValueError:
            raise ValueError(f"{name} needs one segment number for each row of data: shapes {ids.shape} and "
                             f"{data.shape}.") from None
        if bucket_size is not None and bucket_size <= 0:
            raise ValueError("bucket_size must be positive.")
        if not dtypes.issubdtype(ids.dtype, np.integer):
            raise TypeError(f"{name} needs integer segment numbers, got {dtypes.name(ids.dtype)}.")
        rows = ids.size
        data = reshape(spread, (rows, *row))
        ids = reshape(narrow_index(ids), (rows,))
        buckets = 1 if bucket_size is None else max_dim(1, -(-rows // bucket_size))
        several = isinstance(buckets, Dim) or buckets > 1
        if int(buckets) * int(count) > np.iinfo(np.int32).max:
            raise ValueError(f"{name}: num_segments={count} is more than an array has rows.")
        zero, top = np.int32(0), np.int32(count)
        if several:  # every bucket has segments of its own, those outside have none
            inside = and_(ge(ids, zero), lt(ids, top))
            own = mul(div(iota(ids.dtype, rows), ids.dtype.type(bucket_size)), ids.dtype.type(count))
            ids = select(inside, add(ids, own), full((rows,), ids.dtype.type(buckets * count), ids.dtype))
        out = full((buckets * count, *row), np.asarray(start(data.dtype), data.dtype), data.dtype)
        numbers = ScatterDimensionNumbers(tuple(range(1, data.ndim)), (0,), (0,))
        out = scatter(out, reshape(ids, (rows, 1)), data, numbers, unique_indices=unique_indices,
                      indices_are_sorted=indices_are_sorted, mode=mode or GatherScatterMode.FILL_OR_DROP)
        return out if not several else reduce(reshape(out, (buckets, count, *row)), (0,))

    segment.__name__ = segment.__qualname__ = name
    segment.__doc__ = f"""{doc}

    Args:
      data: an array; its first dimension runs over the rows. A single row or number stands for as many as are needed.
      segment_ids: integers, one for each row: the segment that it belongs to. Rows of segments that do not exist
        (negative numbers name none) are left out (`mode`: as for scatters).
      num_segments: how many segments there are; needed while tracing (default: the greatest number + 1).
      indices_are_sorted, unique_indices: promises about `segment_ids`, which may change how sums of floats are rounded.
      out_sharding: None, or the one device's.
      bucket_size: combine as many rows at a time, and then the results: less rounding error for long segments.

    Returns:
      An array with a row for each segment; {start.__doc__}.
    """
    return segment


def _zero(dtype: Any) -> Any:
    """0 where a segment has no rows"""
    return 0


def _one(dtype: Any) -> Any:
    """1 where a segment has no rows"""
    return 1


def _least(dtype: Any) -> Any:
    """the least value of the element type where a segment has no rows"""
    return smallest(dtype)


def _greatest(dtype: Any) -> Any:
    """the greatest value of the element type where a segment has no rows"""
    return largest(dtype)


segment_sum = _segments("segment_sum", scatter_add, reduce_sum, _zero, "The sum of the rows of each segment.")
segment_prod = _segments("segment_prod", scatter_mul, reduce_prod, _one, "The product of the rows of each segment.")
segment_max = _segments("segment_max", scatter_max, reduce_max, _least, "The greatest of the rows of each segment.")
segment_min = _segments("segment_min", scatter_min, reduce_min, _greatest, "The least of the rows of each segment.")
