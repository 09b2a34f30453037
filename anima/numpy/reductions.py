"""Reductions over axes: sums, products, extrema, logic, means and variances, running sums.

Sums and products of bools and small integers are made in the default int; means in the default float.
float16 and bfloat16 are summed in float32 and rounded once. Sums, extrema, means and variances may also be over axes
that `vmap` has named, as `lax.psum` is.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from anima.api.eager import repeated
from anima.core import dtypes
from anima.core.array import Array
from anima.core.avals import canonicalize_axis
from anima.core.axes import size_of
from anima.core.primitive import Primitive
from anima.numpy.creation import astype
from anima.numpy.elementwise import broadcast_array, isnan, named, select_where, to_bool
from anima.numpy.promote import (
    as_array,
    convert_operand,
    is_complex,
    is_floating,
    is_inexact,
    no_out,
    normalize_axes,
    operand,
    reduction_axes,
)
from anima.ops import collective, elementwise as ew, reduce as rd, shape as sh

ArrayLike = Any
Axis = Any
_F32 = np.dtype(np.float32)


def _keep(result: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    return sh.expand_dims(result, axes) if keepdims and axes else result


def _across(primitive: collective.AxesReduce, x: Array, names: tuple[Any, ...]) -> Array:
    """`x` combined over mapped axes."""
    for name in names:
        size_of(name, primitive.name)
    return collective.reduce_named(primitive, x, names) if names else x


def mask_of(where: Any) -> Array:
    """The argument `where` of a reduction; ValueError unless it is of bools."""
    mask = as_array(where, "where")
    if mask.dtype != np.bool_:
        raise ValueError(f"where must be None or a boolean array, got one of dtype {mask.dtype}.")
    return mask


def _masked(x: Array, where: Any, identity: Any) -> Array:
    """`x` with `identity` where the mask does not hold."""
    if where is None:
        return x
    mask = mask_of(where)
    if mask.ndim > x.ndim:
        raise ValueError(f"where of shape {mask.shape} cannot be broadcast to {x.shape}")
    return select_where(broadcast_array(mask, x.shape), x, sh.full_like(x, identity))


def _accumulator(dtype: Any) -> Any:
    """The dtype that sums of this dtype are made in."""
    return _F32 if is_floating(dtype) and dtype.itemsize < 4 else dtype


def _sum_dtype(dtype: Any, promote_integers: bool) -> Any:
    """The dtype of a sum: narrow integers widen to the default int (or uint)."""
    if dtype == np.bool_:
        return dtypes.default_int()
    if promote_integers and dtype.kind in "iu":
        default = dtypes.default_uint() if dtype.kind == "u" else dtypes.default_int()
        return default if dtype.itemsize < default.itemsize else dtype
    return dtype


def _cast(x: Array, dtype: Any) -> Array:
    """`x` in the dtype of a result, with a warning if imaginary parts are lost."""
    if is_complex(x.dtype) and not is_complex(dtype):
        return astype(x, dtype)
    return as_array(convert_operand(x, dtype, False))


def _reduce(name: str, x: Array, axes: tuple[int, ...], reducer: Callable[..., Any], keepdims: bool) -> Array:
    """`reducer` over `axes`, computed in the accumulator's dtype."""
    wide = _accumulator(x.dtype)
    narrow = x.dtype
    if wide != narrow and name in ("sum", "prod"):
        return _keep(ew.convert_element_type(reducer(ew.convert(x, wide, False), axes), narrow), axes, keepdims)
    return _keep(reducer(x, axes) if axes else x, axes, keepdims)


def _sum_like(name: str, reducer: Callable[..., Any], combine: Any, identity: int,
              collect: Primitive | None = None) -> Callable[..., Any]:
    def function(a: ArrayLike, axis: Axis = None, dtype: Any = None, out: None = None, keepdims: bool = False,
                 initial: ArrayLike | None = None, where: ArrayLike | None = None,
                 promote_integers: bool = True) -> Array:
        no_out(name, out)
        x = as_array(a, name)
        axes, names = reduction_axes(axis, x.ndim) if collect else (normalize_axes(axis, x.ndim), ())
        wanted = _sum_dtype(x.dtype, promote_integers) if dtype is None else dtypes.check_user_dtype(dtype, name)
        if wanted == np.bool_ and not names:
            whether = any if identity == 0 else all
            result, join = whether(x, axis, keepdims=keepdims, where=where), ew.or_ if identity == 0 else ew.and_
            return result if initial is None else join(result, to_bool(operand(name, initial)))
        x = _cast(x, wanted)
        result = _reduce(name, _masked(x, where, identity), axes, reducer, keepdims)
        result = _across(collect, result, names) if collect else result
        if initial is not None:
            result = combine(result, convert_operand(operand(name, initial), wanted, False))
        return result

    return repeated(function)


sum = named(_sum_like("sum", rd.reduce_sum, ew.add, 0, collective.psum_p), "sum", """The sum over `axis` (None: all).

    `dtype` is that of the sum; `initial` is added; `where` says which elements count.
    ValueError for axes out of bounds or given twice.

    >>> int(jnp.sum(jnp.arange(5)))
    10
    """)
prod = named(_sum_like("prod", rd.reduce_prod, ew.mul, 1), "prod", "The product over `axis`; arguments as of `sum`.")


def _lowest(dtype: Any) -> Any:
    """The identity of `max`."""
    if dtype == np.bool_:
        return False
    return -_farthest(dtype) if is_inexact(dtype) else dtype.type(dtypes.iinfo(dtype).min)


def _highest(dtype: Any) -> Any:
    """The identity of `min`."""
    if dtype == np.bool_:
        return True
    return _farthest(dtype) if is_inexact(dtype) else dtype.type(dtypes.iinfo(dtype).max)


def _farthest(dtype: Any) -> float:
    """Infinity, or the largest number of types whose infinities are NaNs, as those of some floats of 8 bits."""
    return np.inf if np.isinf(np.asarray(np.inf).astype(dtype)) else float(dtypes.finfo(dtype).max)


def _extremum(name: str, reducer: Callable[..., Any], combine: Any, identity: Callable[[Any], Any],
              collect: Primitive) -> Callable[..., Any]:
    def function(a: ArrayLike, axis: Axis = None, out: None = None, keepdims: bool = False,
                 initial: ArrayLike | None = None, where: ArrayLike | None = None) -> Array:
        no_out(name, out)
        x = as_array(a, name)
        x = as_array(convert_operand(x, x.dtype, False))
        axes, names = reduction_axes(axis, x.ndim)
        if where is not None and initial is None:
            raise ValueError(f"reduction operation {name} does not have an identity, so to use a where mask one has "
                             "to specify 'initial'")
        if initial is None and builtins.any(x.shape[i] == 0 for i in axes):
            raise ValueError(f"zero-size array to reduction operation {name} which has no identity")
        if initial is None:
            return _across(collect, _keep(reducer(x, axes) if axes else x, axes, keepdims), names)
        start = convert_operand(operand(name, initial), x.dtype, False)
        masked = _masked(x, where, identity(x.dtype))
        if builtins.any(x.shape[i] == 0 for i in axes):
            shape = tuple(n for i, n in enumerate(x.shape) if i not in axes)
            return _keep(broadcast_array(start, shape), axes, keepdims)
        return _keep(combine(start, _across(collect, reducer(masked, axes) if axes else masked, names)), axes, keepdims)

    return repeated(function)


max = named(_extremum("max", rd.reduce_max, ew.max, _lowest, collective.pmax_p), "max", """
    The largest element over `axis`; NaN if any is.

    ValueError for no elements, unless `initial` is given; `where` needs `initial`.
    """)
min = named(_extremum("min", rd.reduce_min, ew.min, _highest, collective.pmin_p), "min",
            "The smallest element; arguments as of `max`.")
amax, amin = max, min


def _logical(name: str, reducer: Callable[..., Any], identity: bool, doc: str) -> Callable[..., Any]:
    def function(a: ArrayLike, axis: Axis = None, out: None = None, keepdims: bool = False, *,
                 where: ArrayLike | None = None) -> Array:
        no_out(name, out)
        x = as_array(to_bool(operand(name, a)))
        axes = normalize_axes(axis, x.ndim)
        x = _masked(x, where, identity)
        return _keep(reducer(x, axes) if axes else x, axes, keepdims)

    return named(repeated(function), name, doc)


all = _logical("all", rd.reduce_and, True, "Whether all elements over `axis` are nonzero; True of none.")
any = _logical("any", rd.reduce_or, False, "Whether any element over `axis` is nonzero; False of none.")


@repeated
def count_nonzero(a: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """The number of nonzero elements over `axis`."""
    return sum(to_bool(operand("count_nonzero", a)), axis=axis, dtype=dtypes.default_int(), keepdims=keepdims)


# ---------------------------------------------------------------- positions

def _arg_extremum(name: str, reducer: Callable[..., Any], doc: str) -> Callable[..., Any]:
    def function(a: ArrayLike, axis: int | None = None, out: None = None, keepdims: bool | None = None) -> Array:
        no_out(name, out)
        return _arg(name, reducer, as_array(a, name), axis, builtins.bool(keepdims))

    return named(repeated(function), name, doc)


def _arg(name: str, reducer: Callable[..., Any], x: Array, axis: int | None, keepdims: bool) -> Array:
    ndim = x.ndim
    if axis is None:
        x, axis = sh.reshape(x, (x.size,)), 0
        kept = tuple(range(ndim))
    else:
        axis = canonicalize_axis(axis, ndim)
        kept = (axis,)
    if x.shape[axis] == 0:
        raise ValueError(f"attempt to get {name} of an empty sequence")
    return _keep(reducer(x, axis, dtypes.default_int()), kept, keepdims)


argmax = _arg_extremum("argmax", rd.argmax, "The index of the (first) largest element over `axis`; of a NaN if any.")
argmin = _arg_extremum("argmin", rd.argmin, "The index of the (first) smallest element over `axis`; of a NaN if any.")


# ---------------------------------------------------------------- means and variances

def _count(x: Array, axes: tuple[int, ...], names: tuple[Any, ...], where: Any, keepdims: bool) -> Any:
    """The number of elements that a reduction takes."""
    if where is None:
        return math.prod(x.shape[i] for i in axes) * math.prod(size_of(n, "mean") for n in names)
    mask = broadcast_array(mask_of(where), x.shape)
    return sum(mask, axis=(*axes, *names), keepdims=keepdims)


@repeated
def mean(a: ArrayLike, axis: Axis = None, dtype: Any = None, out: None = None, keepdims: bool = False, *,
         where: ArrayLike | None = None) -> Array:
    """The mean over `axis`, as a float (or `dtype`); NaN of no elements.

    >>> float(jnp.mean(jnp.arange(4)))
    1.5
    """
    no_out("mean", out)
    x = as_array(a, "mean")
    axes, names = reduction_axes(axis, x.ndim)
    result_dtype = dtypes.to_inexact(x.dtype) if dtype is None else dtypes.check_user_dtype(dtype, "mean")
    if result_dtype == np.bool_:
        raise TypeError("anima.numpy.mean does not accept dtype bool.")
    compute = _accumulator(dtypes.to_inexact(result_dtype))
    x = _cast(x, compute)
    total = _across(collective.psum_p, _keep(rd.reduce_sum(_masked(x, where, 0), axes), axes, keepdims), names)
    result = _divide_by_count(total, _count(x, axes, names, where, keepdims))
    return result if compute == result_dtype else ew.convert_element_type(result, result_dtype)


def _divide_by_count(total: Array, count: Any) -> Array:
    if isinstance(count, Array):
        count = ew.convert_element_type(count, total.dtype)
        return ew.div(*_equal_shapes(total, count))
    return ew.div(total, total.dtype.type(count))


def _equal_shapes(x: Array, y: Array) -> tuple[Array, Array]:
    shape = np.broadcast_shapes(x.shape, y.shape)
    return broadcast_array(x, shape), broadcast_array(y, shape)


@repeated
def average(a: ArrayLike, axis: Axis = None, weights: ArrayLike | None = None, returned: bool = False,
            keepdims: bool = False) -> Any:
    """The weighted mean over `axis`; with `returned`, (average, sum of weights)."""
    if weights is None:
        x = as_array(a, "average")
        result = mean(x, axis=axis, keepdims=keepdims)
        if not returned:
            return result
        count = math.prod(x.shape[i] for i in normalize_axes(axis, x.ndim))
        return result, sh.full_like(result, count)
    x, w = as_array(a, "average", 0), as_array(weights, "average", 1)
    dtype = dtypes.to_inexact(dtypes.result_type(x, w))
    x, w = (as_array(convert_operand(v, dtype, False)) for v in (x, w))
    if w.shape != x.shape:
        w = _stretched_weights(x, w, axis)
    totals = sum(w, axis=axis, keepdims=keepdims)
    result = ew.div(sum(ew.mul(x, w), axis=axis, keepdims=keepdims), totals)
    return (result, totals) if returned else result


def _stretched_weights(x: Array, w: Array, axis: Any) -> Array:
    if axis is None:
        raise ValueError("Axis must be specified when shapes of a and weights differ.")
    axes = normalize_axes(axis, x.ndim)
    if w.shape != tuple(x.shape[i] for i in axes):
        raise ValueError("Shape of weights must be consistent with shape of a along specified axis.")
    order = tuple(int(i) for i in np.argsort(axes))
    w = sh.transpose(w, order)
    return sh.broadcast_in_dim(w, x.shape, tuple(sorted(axes)))


@repeated
def var(a: ArrayLike, axis: Axis = None, dtype: Any = None, out: None = None, ddof: int = 0, keepdims: bool = False,
        *, where: ArrayLike | None = None, mean: ArrayLike | None = None,
        correction: float | None = None) -> Array:
    """The variance over `axis`: the mean of abs(x - mean)**2, divided by N - ddof instead of N.

    With an integer `dtype` a whole number, cut, but still a float, as in JAX.
    """
    no_out("var", out)
    return _variance("var", a, axis, dtype, _degrees(ddof, correction), keepdims, where, mean)


@repeated
def std(a: ArrayLike, axis: Axis = None, dtype: Any = None, out: None = None, ddof: int = 0, keepdims: bool = False,
        *, where: ArrayLike | None = None, mean: ArrayLike | None = None,
        correction: float | None = None) -> Array:
    """The standard deviation over `axis`; see `var`."""
    no_out("std", out)
    wanted = None if dtype is None else dtypes.check_user_dtype(dtype, "std")
    if wanted is not None and not is_inexact(wanted):
        raise ValueError(f"dtype argument to std must be inexact; got {wanted}")
    return ew.sqrt(_variance("std", a, axis, wanted, _degrees(ddof, correction), keepdims, where, mean))


def _degrees(ddof: Any, correction: Any) -> Any:
    if correction is None:
        return ddof
    if ddof != 0:
        raise ValueError("ddof and correction can't be provided simultaneously.")
    return correction


def _variance(name: str, a: Any, axis: Any, dtype: Any, ddof: Any, keepdims: bool, where: Any,
              known_mean: Any) -> Array:
    x = as_array(a, name)
    axes, names = reduction_axes(axis, x.ndim)
    wanted = None if dtype is None else dtypes.check_user_dtype(dtype, name)
    if wanted is not None and is_complex(x.dtype) and not is_complex(wanted):
        raise ValueError(f"anima.numpy.{name} does not yet support real dtype parameters when computing the variance "
                         "of an array of complex values.")
    if wanted == np.bool_:
        raise TypeError(f"anima.numpy.{name} does not accept dtype bool.")
    result_dtype = dtypes.to_real(dtypes.to_inexact(x.dtype)) if wanted is None else wanted
    with dtypes.numpy_dtype_promotion("standard"):  # whoever gives a dtype has asked for it
        compute = _accumulator(dtypes.to_inexact(x.dtype if wanted is None else dtypes.promote_types(x.dtype, wanted)))
    x = as_array(convert_operand(x, compute, False))
    centre = mean(x, axis=(*axes, *names), keepdims=True, where=where) if known_mean is None else \
        as_array(convert_operand(operand(name, known_mean), compute, False))
    centered = ew.sub(x, centre if centre.ndim == x.ndim else broadcast_array(centre, x.shape))
    squares = ew.square(centered) if not is_complex(compute) else \
        ew.add(ew.square(ew.real(centered)), ew.square(ew.imag(centered)))
    total = _across(collective.psum_p, _keep(rd.reduce_sum(_masked(squares, where, 0), axes), axes, keepdims), names)
    count = _count(x, axes, names, where, keepdims)
    if isinstance(count, Array):
        count = ew.sub(ew.convert_element_type(count, total.dtype), total.dtype.type(ddof))
        count = select_where(ew.gt(count, 0), count, total.dtype.type(np.nan))
        result = ew.div(*_equal_shapes(total, count))
    else:  # no degrees of freedom: no variance
        result = ew.div(total, total.dtype.type(count - ddof if count > ddof else np.nan))
    result = result if result.dtype == result_dtype else ew.convert_element_type(result, result_dtype)
    return result if is_inexact(result_dtype) else ew.convert(result, dtypes.default_float(), True)


@repeated
def ptp(a: ArrayLike, axis: Axis = None, out: None = None, keepdims: bool = False) -> Array:
    """The range, max - min, over `axis`."""
    no_out("ptp", out)
    x = as_array(a, "ptp")
    return ew.sub(max(x, axis, keepdims=keepdims), min(x, axis, keepdims=keepdims))


# ---------------------------------------------------------------- running sums

def _cumulative(name: str, running: Callable[..., Any], nan_identity: int | None, doc: str) -> Callable[..., Any]:
    def function(a: ArrayLike, axis: int | None = None, dtype: Any = None, out: None = None) -> Array:
        no_out(name, out)
        return _run(name, running, as_array(a, name), axis, dtype, nan_identity)

    return named(repeated(function), name, doc)


def _run(name: str, running: Callable[..., Any], x: Array, axis: int | None, dtype: Any,
         nan_identity: int | None = None) -> Array:
    wanted = x.dtype if dtype is None else dtypes.check_user_dtype(dtype, name)
    if dtype is None and wanted == np.bool_:
        wanted = dtypes.default_int()
    if axis is None or not x.ndim:
        x, axis = sh.reshape(x, (x.size,)), 0 if axis is None else axis
    if nan_identity is not None and is_inexact(x.dtype):
        x = select_where(isnan(x), sh.full_like(x, nan_identity), x)
    axis = canonicalize_axis(axis, x.ndim)
    if wanted == np.bool_:  # sums of truth values are "any so far", products "all so far"
        running = rd.cummax if running is rd.cumsum else rd.cummin
        return to_bool(running(ew.convert_element_type(to_bool(x), np.uint8), axis, False))
    return running(_cast(x, wanted), axis, False)


cumsum = _cumulative("cumsum", rd.cumsum, None, "Running sums along `axis` (None: of the flattened array).")
cumprod = _cumulative("cumprod", rd.cumprod, None, "Running products along `axis` (None: of the flattened array).")
nancumsum = _cumulative("nancumsum", rd.cumsum, 0, "Running sums, NaN taken as 0.")
nancumprod = _cumulative("nancumprod", rd.cumprod, 1, "Running products, NaN taken as 1.")


def _cumulative_array_api(name: str, running: Callable[..., Any], x: Any, axis: int | None, dtype: Any,
                          include_initial: bool, first: int) -> Array:
    x = as_array(x, name)
    if x.ndim == 0:
        raise ValueError("The input must be non-scalar to take a cumulative reduction, however a scalar value or "
                         "scalar array was given.")
    if axis is None:
        if x.ndim > 1:
            raise ValueError(f"The input array has rank {x.ndim}, however axis was not set to an explicit value. The "
                             "axis argument is only optional for one-dimensional arrays.")
        axis = 0
    axis = canonicalize_axis(axis, x.ndim)
    wanted = _sum_dtype(x.dtype, True) if dtype is None else dtypes.check_user_dtype(dtype, name)
    result = _run(name, running, x, axis, wanted)
    if include_initial:
        shape = (*x.shape[:axis], 1, *x.shape[axis + 1:])
        result = sh.concatenate([sh.full(shape, first, result.dtype), result], axis)
    return result


@repeated
def cumulative_sum(x: ArrayLike, /, *, axis: int | None = None, dtype: Any = None,
                   include_initial: bool = False) -> Array:
    """Running sums along `axis`, after a 0 if `include_initial`."""
    return _cumulative_array_api("cumulative_sum", rd.cumsum, x, axis, dtype, include_initial, 0)


@repeated
def cumulative_prod(x: ArrayLike, /, *, axis: int | None = None, dtype: Any = None,
                    include_initial: bool = False) -> Array:
    """Running products along `axis`, after a 1 if `include_initial`.

    Differs from JAX: products of small integers are made in the default int, as the standard says.
    """
    return _cumulative_array_api("cumulative_prod", rd.cumprod, x, axis, dtype, include_initial, 1)


# ---------------------------------------------------------------- ignoring NaN

def _without_nan(x: Array, identity: Any) -> Array:
    return select_where(isnan(x), sh.full_like(x, identity), x) if is_inexact(x.dtype) else x


def _nan_sum_like(name: str, base: Callable[..., Any], identity: int, doc: str) -> Callable[..., Any]:
    def function(a: ArrayLike, axis: Axis = None, dtype: Any = None, out: None = None, keepdims: bool = False,
                 initial: ArrayLike | None = None, where: ArrayLike | None = None) -> Array:
        no_out(name, out)
        x = as_array(a, name)
        return base(_without_nan(x, identity), axis, dtype, None, keepdims, initial, where)

    return named(repeated(function), name, doc)


nansum = _nan_sum_like("nansum", sum, 0, "The sum over `axis` of the elements that are not NaN.")
nanprod = _nan_sum_like("nanprod", prod, 1, "The product over `axis` of the elements that are not NaN.")


def _nan_extremum(name: str, base: Callable[..., Any], identity: Callable[[Any], Any], doc: str) -> Callable[..., Any]:
    def function(a: ArrayLike, axis: Axis = None, out: None = None, keepdims: bool = False,
                 initial: ArrayLike | None = None, where: ArrayLike | None = None) -> Array:
        no_out(name, out)
        x = as_array(a, name)
        result = base(_without_nan(x, identity(x.dtype)), axis, None, keepdims, initial, where)
        if initial is not None or not is_inexact(x.dtype):
            return result
        return select_where(all(isnan(x), axis=axis, keepdims=keepdims), sh.full_like(result, np.nan), result)

    return named(repeated(function), name, doc)


nanmax = _nan_extremum("nanmax", max, _lowest, "The largest element over `axis` that is not NaN; NaN if all are.")
nanmin = _nan_extremum("nanmin", min, _highest, "The smallest element over `axis` that is not NaN; NaN if all are.")


def _nan_arg(name: str, reducer: Callable[..., Any], identity: Callable[[Any], Any], doc: str) -> Callable[..., Any]:
    def function(a: ArrayLike, axis: int | None = None, out: None = None, keepdims: bool | None = None) -> Array:
        no_out(name, out)
        x = as_array(a, name)
        kept = builtins.bool(keepdims)
        result = _arg(name, reducer, _without_nan(x, identity(x.dtype)), axis, kept)
        if not is_inexact(x.dtype):
            return result
        return select_where(all(isnan(x), axis=axis, keepdims=kept), sh.full_like(result, -1), result)

    return named(repeated(function), name, doc)


nanargmax = _nan_arg("nanargmax", rd.argmax, _lowest, "The index of the largest element but NaN; -1 if all are NaN.")
nanargmin = _nan_arg("nanargmin", rd.argmin, _highest, "The index of the smallest element but NaN; -1 if all are NaN.")


@repeated
def nanmean(a: ArrayLike, axis: Axis = None, dtype: Any = None, out: None = None, keepdims: bool = False,
            where: ArrayLike | None = None) -> Array:
    """The mean over `axis` of the elements that are not NaN."""
    no_out("nanmean", out)
    x = as_array(a, "nanmean")
    if not is_inexact(x.dtype):
        return mean(x, axis, dtype, None, keepdims, where=where)
    return mean(x, axis, dtype, None, keepdims, where=_not_nan(x, where))


def _not_nan(x: Array, where: Any) -> Array:
    present = ew.not_(isnan(x))
    if where is None:
        return present
    return ew.and_(present, broadcast_array(mask_of(where), x.shape))


@repeated
def nanvar(a: ArrayLike, axis: Axis = None, dtype: Any = None, out: None = None, ddof: int = 0,
           keepdims: bool = False, where: ArrayLike | None = None, mean: ArrayLike | None = None) -> Array:
    """The variance over `axis` of the elements that are not NaN, cut if `dtype` is an integer one."""
    no_out("nanvar", out)
    x = as_array(a, "nanvar")
    mask = _not_nan(x, where) if is_inexact(x.dtype) else where
    result = _variance("nanvar", _without_nan(x, 0), axis, dtype, ddof, keepdims, mask, mean)
    if mask is not None:
        enough = ew.gt(_count(x, *reduction_axes(axis, x.ndim), mask, keepdims), dtypes.default_int().type(ddof))
        result = select_where(enough, result, sh.full_like(result, np.nan))
    return result if dtype is None else ew.convert(result, dtypes.check_user_dtype(dtype, "nanvar"))


@repeated
def nanstd(a: ArrayLike, axis: Axis = None, dtype: Any = None, out: None = None, ddof: int = 0,
           keepdims: bool = False, where: ArrayLike | None = None, mean: ArrayLike | None = None) -> Array:
    """The standard deviation over `axis` of the elements that are not NaN."""
    no_out("nanstd", out)
    return ew.sqrt(nanvar(a, axis, dtype, None, ddof, keepdims, where, mean))
