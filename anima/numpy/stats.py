"""Order statistics, histograms and covariances.

    >>> jnp.median(jnp.array([3., 1., 2.]))
    Array(2., dtype=float32)
"""

from __future__ import annotations

import builtins
import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from anima.api.eager import compiled, repeated
from anima.core import dtypes
from anima.core.array import Array
from anima.numpy.creation import array, asarray
from anima.numpy.elementwise import broadcast_array, isnan, named, select_where, true_divide
from anima.numpy.linear import matmul
from anima.numpy.manipulation import concatenate, moveaxis, ravel
from anima.numpy.promote import (
    as_array,
    as_index,
    convert_operand,
    inexact_array,
    is_complex,
    is_floating,
    is_for_numpy,
    is_inexact,
    is_integer,
    no_out,
    normalize_axes,
    operand,
    promote_dtypes,
    promote_dtypes_inexact,
    static_value,
)
from anima.numpy.reductions import any, average, cumsum, max, min, ptp, sum
from anima.numpy.selection import take_along_axis
from anima.numpy.sorting import searchsorted
from anima.numpy.spaces import linspace
from anima.ops import elementwise as ew, shape as sh, sort as st
from anima.ops.index import narrow_index
from anima.ops.placing import as_asked

ArrayLike = Any
Axis = Any
_METHODS = ("linear", "lower", "higher", "midpoint", "nearest", "inverted_cdf")


# ---------------------------------------------------------------- quantiles

def _quantile(name: str, a: Any, q: Any, axis: Any, method: str, keepdims: bool, ignore_nan: bool,
              percent: bool = False, weights: Any = None) -> Array:
    if method not in _METHODS:
        raise ValueError(f"method can only be one of {_METHODS}; got {method!r}")
    if weights is not None and method != "inverted_cdf":
        raise NotImplementedError(f"{name}: method {method!r} does not support weights, 'inverted_cdf' does.")
    x = as_array(a, name, 0)
    if is_complex(x.dtype):
        raise ValueError(f"{name} does not support complex input, as the operation is poorly defined.")
    fractions = as_array(asarray(q) if isinstance(q, (list, tuple)) else q, name, 1)
    x = inexact_array(name, x)
    result_dtype = x.dtype
    compute = np.dtype(np.float32) if is_floating(result_dtype) and result_dtype.itemsize < 4 else result_dtype
    fractions = as_array(convert_operand(fractions, compute, False))
    if percent:
        fractions = ew.div(fractions, compute.type(100))
    axes = normalize_axes(axis, x.ndim)
    rows = _axes_last(as_array(convert_operand(x, compute, False)), axes)
    if rows.shape[-1] == 0:
        raise ValueError(f"{name} of an empty axis is undefined")
    if method == "inverted_cdf":
        shares = sh.full_like(rows, 1) if weights is None else _axes_last(_weights(name, weights, x, axis, axes), axes)
        result = _inverted_cdf(rows, as_array(convert_operand(shares, compute, False)), ravel(fractions), ignore_nan)
    else:
        result = _interpolated(_sorted_rows(rows, ignore_nan), ravel(fractions), method, ignore_nan)
    rest = rows.shape[:-1]
    result = sh.reshape(result, (*fractions.shape, *rest))
    if keepdims:
        kept = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
        result = sh.reshape(result, (*fractions.shape, *kept))
    return result if compute == result_dtype else ew.convert_element_type(result, result_dtype)


def _weights(name: str, weights: Any, x: Array, axis: Any, axes: tuple[int, ...]) -> Array:
    """The weights, one for each element of `x`; ValueError where they are not of its shape, or of that of `axes`."""
    weights = as_array(weights, name)
    if weights.shape == x.shape:
        return weights
    if axis is None or weights.shape != tuple(x.shape[k] for k in axes):
        raise ValueError(f"{name}: weights of shape {weights.shape} are neither for each element of {x.shape} nor for "
                         "each place along `axis`.")
    return sh.broadcast_in_dim(sh.transpose(weights, [axes.index(k) for k in sorted(axes)]), x.shape, sorted(axes))


def _inverted_cdf(rows: Array, weights: Array, fractions: Array, ignore_nan: bool) -> Array:
    """The least elements up to which their rows' weights add up to the fractions: shape (fractions, *rest)."""
    axis, missing = rows.ndim - 1, isnan(rows)
    wrong = ew.lt(min(weights, axis=axis), weights.dtype.type(0))
    if ignore_nan:
        weights = select_where(missing, sh.full_like(weights, 0), weights)
    else:
        wrong = ew.or_(wrong, any(missing, axis=axis))
    rows, weights = st.sort((rows, weights), dimension=axis)
    total = cumsum(weights, axis)
    share = true_divide(total, sh.slice_in_dim(total, rows.shape[axis] - 1, rows.shape[axis], axis=axis))
    shape = (fractions.size, *rows.shape)
    below = ew.lt(sh.broadcast_in_dim(share, shape, tuple(range(1, len(shape)))),
                  sh.broadcast_in_dim(fractions, shape, (0,)))
    result = _rows_at(rows, sum(below, axis=-1))
    wrong = sh.broadcast_in_dim(wrong, result.shape, tuple(range(1, result.ndim)))
    return select_where(wrong, sh.full_like(result, np.nan), result)


def _axes_last(x: Array, axes: tuple[int, ...]) -> Array:
    """`x` with `axes` flattened into the last one."""
    rest = [i for i in range(x.ndim) if i not in axes]
    x = sh.transpose(x, (*rest, *axes))
    return sh.reshape(x, (*x.shape[:len(rest)], math.prod(x.shape[len(rest):])))


def _sorted_rows(rows: Array, ignore_nan: bool) -> Array:
    rows = st.sort(rows, dimension=rows.ndim - 1)
    if ignore_nan:
        return rows
    # NaN sorts last: one there makes the whole row NaN.
    last = sh.slice_in_dim(rows, rows.shape[-1] - 1, rows.shape[-1], axis=rows.ndim - 1)
    return select_where(isnan(last), sh.full_like(rows, np.nan), rows)


def _interpolated(rows: Array, fractions: Array, method: str, ignore_nan: bool) -> Array:
    """Values at the fractions of sorted rows: shape (fractions, *rest)."""
    dtype, rest = rows.dtype, rows.shape[:-1]
    shape = (fractions.size, *rest)
    q = sh.broadcast_in_dim(fractions, shape, (0,))
    if ignore_nan:
        present = sum(ew.not_(isnan(rows)), axis=-1)
        last = sh.broadcast_in_dim(ew.sub(ew.convert_element_type(present, dtype), dtype.type(1)), shape,
                                   tuple(range(1, len(shape))))
    else:
        last = sh.full(shape, rows.shape[-1] - 1, dtype)
    position = ew.mul(q, last)
    low, high = ew.floor(position), ew.ceil(position)
    zero = sh.full_like(low, 0)
    weight = ew.sub(position, low)
    low_value, high_value = (_rows_at(rows, ew.max(zero, ew.min(i, last))) for i in (low, high))
    if method == "lower":
        return low_value
    if method == "higher":
        return high_value
    if method == "midpoint":
        return ew.mul(ew.add(low_value, high_value), dtype.type(0.5))
    if method == "nearest":
        return select_where(ew.le(weight, dtype.type(0.5)), low_value, high_value)
    return ew.add(ew.mul(low_value, ew.sub(dtype.type(1), weight)), ew.mul(high_value, weight))


def _rows_at(rows: Array, positions: Array) -> Array:
    """`rows[..., positions]`, the positions' first axis in front."""
    index = moveaxis(ew.convert_element_type(positions, np.int32), 0, -1)
    return moveaxis(take_along_axis(rows, index, -1, mode="clip"), -1, 0)


_compiled = functools.partial(compiled, static=("axis",))


def _quantile_function(name: str, percent: bool, ignore_nan: bool, doc: str) -> Callable[..., Any]:
    def function(a: ArrayLike, q: ArrayLike, axis: Axis = None, out: None = None, overwrite_input: bool = False,
                 method: str = "linear", keepdims: bool = False, *, weights: Any = None,
                 out_sharding: Any = None) -> Array:
        if out_sharding is not None:
            return as_asked(name, None, out_sharding, function, a, q, axis, out, overwrite_input, method, keepdims,
                            weights=weights)
        no_out(name, out)
        if overwrite_input:
            raise ValueError(f"anima.numpy.{name} does not support overwrite_input=True: arrays are immutable")
        return _quantile(name, a, q, axis, method, keepdims, ignore_nan, percent, weights)

    return named((_compiled if ignore_nan else repeated)(function), name, doc)


quantile = _quantile_function("quantile", False, False, """The values below which the fractions `q` of elements lie.

    The result has the type of `a`, the default float's for integers.
    `method` says what is between two elements: "linear", "lower", "higher", "midpoint" or "nearest"; or "inverted_cdf":
    the least element up to which the `weights` (one for each element, or each place along `axis`; default: equal) add
    up to the fraction.
    """)
percentile = _quantile_function("percentile", True, False, "As `quantile`, with `q` in percent.")
nanquantile = _quantile_function("nanquantile", False, True, "As `quantile`, of the elements that are not NaN.")
nanpercentile = _quantile_function("nanpercentile", True, True, "As `percentile`, of the elements that are not NaN.")


def _median_function(name: str, ignore_nan: bool, doc: str) -> Callable[..., Any]:
    def function(a: ArrayLike, axis: Axis = None, out: None = None, overwrite_input: bool = False,
                 keepdims: bool = False) -> Array:
        no_out(name, out)
        if overwrite_input:
            raise ValueError(f"anima.numpy.{name} does not support overwrite_input=True: arrays are immutable")
        return _quantile(name, as_array(a, name), 0.5, axis, "midpoint", keepdims, ignore_nan)

    return named((_compiled if ignore_nan else repeated)(function), name, doc)


median = _median_function("median", False, "The middle element over `axis`, or the mean of the two middle ones.")
nanmedian = _median_function("nanmedian", True, "The median over `axis` of the elements that are not NaN.")


# ---------------------------------------------------------------- covariance

@repeated
def cov(m: ArrayLike, y: ArrayLike | None = None, rowvar: bool = True, bias: bool = False, ddof: int | None = None,
        fweights: ArrayLike | None = None, aweights: ArrayLike | None = None, dtype: Any = None) -> Array:
    """The covariance matrix of variables, one a row (a column if not `rowvar`), and of those of `y`.

    `fweights` counts each observation; `aweights` weighs it.
    """
    values = [as_array(m, "cov", 0)] + ([] if y is None else [as_array(y, "cov", 1)])
    if builtins.any(v.ndim > 2 for v in values):
        raise ValueError("m and y have more than 2 dimensions")
    values = promote_dtypes_inexact("cov", *values)
    if dtype is not None:
        wanted = dtypes.check_user_dtype(dtype, "cov")
        if not is_inexact(wanted):
            raise ValueError("cov: dtype must be a subclass of float or complex, as means of integers are no integers; "
                             f"got {dtypes.name(wanted)}")
        values = [as_array(convert_operand(v, wanted, False)) for v in values]
    values = [sh.broadcast_to_rank(v, 2) for v in values]
    if not rowvar:
        values = [v.T if v.shape[0] != 1 else v for v in values]
    x = sh.concatenate(values, 0)
    if not x.shape[0]:
        return sh.full((0, 0), 0, x.dtype)
    ddof = (0 if bias else 1) if ddof is None else ddof
    weights = _observation_weights(x, fweights, aweights)
    mean, factor = _mean_and_factor(x, weights, aweights, ddof)
    centered = ew.sub(x, sh.expand_dims(mean, (1,)))
    other = centered if weights is None else ew.mul(centered, sh.expand_dims(weights, (0,)))
    product = matmul(centered, (ew.conj(other) if is_complex(other.dtype) else other).T)
    return sh.squeeze(ew.div(product, factor), [i for i, n in enumerate(product.shape) if n == 1])


def _mean_and_factor(x: Array, weights: Array | None, aweights: Any, ddof: int) -> tuple[Array, Any]:
    """The mean of each row, and what products of rows are divided by."""
    if weights is None:  # known without an operation
        factor = x.dtype.type(x.shape[1]) - x.dtype.type(ddof)
        return average(x, axis=1), factor if is_complex(x.dtype) else builtins.max(factor, x.dtype.type(0))
    mean, total = average(x, axis=1, weights=weights, returned=True)
    total = total[0]
    if ddof == 0 or aweights is None:
        factor = ew.sub(total, total.dtype.type(ddof))
    else:
        weight_product = sum(ew.mul(weights, as_array(convert_operand(operand("cov", aweights), weights.dtype, False))))
        factor = ew.sub(total, ew.div(ew.mul(total.dtype.type(ddof), weight_product), total))
    if not is_complex(factor.dtype):
        factor = select_where(ew.le(factor, factor.dtype.type(0)), sh.full_like(factor, 0), factor)
    return mean, factor


def _observation_weights(x: Array, fweights: Any, aweights: Any) -> Array | None:
    weights: Array | None = None
    for name, given in (("fweights", fweights), ("aweights", aweights)):
        if given is None:
            continue
        w = as_array(given, "cov")
        if name == "fweights" and not is_integer(w.dtype):
            raise TypeError("fweights must be integer.")
        if w.ndim != 1:
            raise RuntimeError(f"cannot handle multidimensional {name}")
        if w.shape[0] != x.shape[1]:
            raise RuntimeError(f"incompatible numbers of samples and {name}")
        w = as_array(convert_operand(w, x.dtype, False))
        weights = w if weights is None else ew.mul(weights, w)
    return weights


@repeated
def corrcoef(x: ArrayLike, y: ArrayLike | None = None, rowvar: bool = True, dtype: Any = None) -> Array:
    """The matrix of correlations between variables; arguments as of `cov`."""
    c = cov(x, y, rowvar, dtype=dtype)
    if not c.ndim:
        return ew.div(c, c)
    d = _diagonal(c)
    deviations = ew.sqrt(ew.real(d) if is_complex(c.dtype) else d)
    deviations = ew.convert_element_type(deviations, c.dtype)
    c = ew.div(ew.div(c, sh.expand_dims(deviations, (1,))), sh.expand_dims(deviations, (0,)))
    if is_complex(c.dtype):
        one = dtypes.to_real(c.dtype).type(1)
        return ew.complex(ew.clamp(-one, ew.real(c), one), ew.clamp(-one, ew.imag(c), one))
    return ew.clamp(c.dtype.type(-1), c, c.dtype.type(1))


def _diagonal(x: Array) -> Array:
    n = x.shape[0]
    return sh.slice_in_dim(sh.reshape(x, (n * n,)), 0, n * n, n + 1)


# ---------------------------------------------------------------- histograms

@repeated
def bincount(x: ArrayLike, weights: ArrayLike | None = None, minlength: int = 0, *, length: int | None = None,
             out_sharding: Any = None) -> Array:
    """How often each of 0, 1, ... occurs in `x` (negative numbers count as 0), or the sums of its `weights`.

    The result's size is `length`, or one more than the largest number, which must then be known.
    """
    if out_sharding is not None:
        return as_asked("bincount", None, out_sharding, bincount, x, weights, minlength, length=length)
    values = as_index(x, "bincount")
    if not (is_integer(values.dtype) or values.dtype == np.bool_):
        raise TypeError(f"x argument to bincount must have an integer type; got {dtypes.name(values.dtype)}")
    if values.ndim != 1:
        raise ValueError("only 1-dimensional input supported.")
    if length is None:
        known = static_value(values, "The error occurred because of argument 'x' of anima.numpy.bincount. To avoid "
                                     "this error, pass a static `length` argument.",
                             "anima.numpy.bincount(x, length=n)")
        length = int(known.max()) + 1 if known.size else 0
        length = builtins.max(length, minlength, 0)
        if weights is None and is_for_numpy(values):
            counts = np.bincount(np.maximum(known, 0).astype(np.int64), minlength=length)
            return asarray(counts.astype(dtypes.default_int()))
    if weights is not None:
        weights = as_array(weights, "bincount", 1)
        if weights.shape != values.shape:
            raise ValueError("shape of weights must match shape of x.")
    return _counted(values, weights, length)


@repeated
def _counted(values: Array, weights: Array | None, length: int) -> Array:
    ones = sh.full(values.shape, 1, dtypes.default_int()) if weights is None else weights
    values = narrow_index(values) if is_integer(values.dtype) else ew.convert(values, np.dtype(np.int32), False)
    index = ew.clamp(np.int32(0), values, np.int32(length))  # the others are counted at the end, and left out
    return sh.slice_in_dim(sh.full((length + 1,), 0, ones.dtype).at[index].add(ones), 0, length)


def histogram_bin_edges(a: ArrayLike, bins: Any = 10, range: Any = None, weights: None = None) -> Array:
    """The edges of `bins` equal bins over `range` (default: from the least to the largest element)."""
    del weights
    if isinstance(bins, str):
        raise NotImplementedError("string values for `bins` not implemented.")
    x = ravel(as_array(a, "histogram_bin_edges"))
    dtype = dtypes.to_inexact(x.dtype)
    edges = as_array(asarray(bins) if isinstance(bins, (list, tuple)) else bins, "histogram_bin_edges", 1)
    if edges.ndim == 1:
        return as_array(convert_operand(edges, dtype, False))
    known = static_value(edges, "The error occurred in the `bins` argument of a histogram function.")
    count = operator.index(known[()])
    if range is None:
        if not x.size:
            range = (0.0, 1.0)
        else:
            range = (min(x), max(x))
    low, high = (as_array(convert_operand(operand("histogram_bin_edges", r), dtype, False)) for r in range)
    empty = ew.eq(ptp(sh.concatenate([sh.expand_dims(low, (0,)), sh.expand_dims(high, (0,))], 0)), dtype.type(0))
    half = dtype.type(0.5)
    low, high = (select_where(empty, ew.sub(low, half), low), select_where(empty, ew.add(high, half), high))
    return linspace(low, high, count + 1, dtype=dtype)


@repeated
def histogram(a: ArrayLike, bins: Any = 10, range: Any = None, weights: ArrayLike | None = None,
              density: bool | None = None) -> tuple[Array, Array]:
    """(how many elements are in each bin, edges of the bins); the last bin holds its upper edge too.

    With `weights`, their sums; with `density`, scaled to an integral of 1.
    """
    x = as_array(a, "histogram", 0)
    if weights is None:
        w, dtype = sh.full(x.shape, 1, np.int32), dtypes.to_inexact(x.dtype)
    else:
        w = as_array(weights, "histogram", 1)
        if x.shape != w.shape:
            raise ValueError("weights should have the same shape as a.")
        dtype = dtypes.to_inexact(dtypes.result_type(x, w))
        w = as_array(convert_operand(w, dtype, False))
    x, w = ravel(as_array(convert_operand(x, dtype, False))), ravel(w)
    edges = as_array(convert_operand(histogram_bin_edges(x, bins, range), dtype, False))
    counts = sh.full((edges.size + 1,), 0, w.dtype).at[_bin_index(edges, x)].add(w)
    counts = ew.convert(sh.slice_in_dim(counts, 1, edges.size), dtype, False)  # without what is outside
    if density:
        widths = ew.convert_element_type(_differences(edges), dtypes.to_inexact(counts.dtype))
        counts = as_array(convert_operand(counts, dtypes.to_inexact(counts.dtype), False))
        counts = ew.div(ew.div(counts, widths), sum(counts))
    return counts, edges


def _differences(x: Array) -> Array:
    return ew.sub(sh.slice_in_dim(x, 1, x.size), sh.slice_in_dim(x, 0, x.size - 1))


def _bin_index(edges: Array, x: Array) -> Array:
    """1 for the first bin, and so on; 0 or `edges.size`, which are left out, outside."""
    index = searchsorted(edges, x, side="right")
    last = ew.eq(*promote_dtypes("histogram", x, broadcast_array(edges[-1], x.shape)))
    return select_where(last, sh.full_like(index, edges.size - 1), index)


def _are_many(bins: Any) -> bool:
    """Whether there is an entry for each axis: numbers of bins, or edges, or both."""
    return isinstance(bins, (list, tuple)) or np.ndim(bins) > 0


def histogramdd(sample: Any, bins: Any = 10, range: Any = None, weights: ArrayLike | None = None,
                density: bool | None = None) -> tuple[Array, list[Array]]:
    """(how many of the points, rows of `sample`, are in each bin, edges of the bins along each axis)."""
    points = array(sample).T if isinstance(sample, (list, tuple)) else as_array(sample, "histogramdd")
    if points.ndim != 2:
        raise ValueError("sample should be a 2D array of shape (N, D)")
    count, rank = points.shape
    per_axis = list(bins) if _are_many(bins) else [bins] * rank
    if len(per_axis) != rank:
        raise ValueError("should be a bin for each dimension.")
    if range is not None and len(range) != rank:
        raise ValueError(f"For sample.shape={points.shape}, range must be a sequence of length {rank}")
    edges, index = [], []
    for axis, one in enumerate(per_axis):
        column = sh.index_in_dim(points, axis, 1, keepdims=False)
        found = histogram_bin_edges(column, one, None if range is None else range[axis])
        edges.append(found)
        index.append(_bin_index(found, column))
    sizes = [e.size for e in edges]
    w = sh.full((count,), 1, dtypes.default_int()) if weights is None else as_array(weights, "histogramdd")
    counts = sh.full([n + 1 for n in sizes], 0, w.dtype).at[tuple(index)].add(w)
    counts = sh.slice(counts, [1] * rank, sizes)
    if density:
        counts = as_array(convert_operand(counts, dtypes.to_inexact(counts.dtype), False))
        total = sum(counts)
        for axis, e in enumerate(edges):
            widths = ew.convert_element_type(_differences(e), counts.dtype)
            counts = ew.div(counts, sh.broadcast_in_dim(widths, counts.shape, (axis,)))
        counts = ew.div(counts, total)
    return counts, edges


def histogram2d(x: ArrayLike, y: ArrayLike, bins: Any = 10, range: Any = None, weights: ArrayLike | None = None,
                density: bool | None = None) -> tuple[Array, Array, Array]:
    """(how many of the points (x, y) are in each bin, edges along x, edges along y)."""
    x, y = promote_dtypes("histogram2d", x, y)
    if _are_many(bins) and len(bins) not in (1, 2):
        bins = [asarray(bins), asarray(bins)]
    counts, (x_edges, y_edges) = histogramdd(concatenate([sh.expand_dims(x, (1,)), sh.expand_dims(y, (1,))], 1), bins,
                                             range, weights, density)
    return counts, x_edges, y_edges
