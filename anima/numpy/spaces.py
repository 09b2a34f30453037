"""Values at equal distances, or in equal proportions.

    >>> jnp.linspace(0, 1, 3), jnp.geomspace(1, 4, 3)
    (Array([0. , 0.5, 1. ], dtype=float32), Array([1., 2., 4.], dtype=float32))
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from anima.api.eager import repeated
from anima.core import dtypes
from anima.core.array import Array
from anima.core.avals import broadcast_shapes, canonicalize_axis, slice_length
from anima.core.dims import Dim, index_of
from anima.core.trace import aval_of
from anima.numpy.creation import astype, cast, user_dtype
from anima.numpy.elementwise import broadcast_array
from anima.numpy.promote import (
    as_array,
    convert_operand,
    is_complex,
    is_inexact,
    is_integer,
    operand,
    static_int,
    static_value,
)
from anima.ops import elementwise as ew, shape as sh
from anima.ops.placing import as_asked

ArrayLike = Any
steps_in_type = False  # whether numbers of a range of floats are computed in its own type, as in JAX


def arange(start: Any, stop: Any = None, step: Any = None, dtype: Any = None, *, device: Any = None,
           out_sharding: Any = None) -> Array:
    """Evenly spaced values from `start` (0 if only one bound is given) up to but without `stop`.

    The bounds must be known when the program is made: ConcretizationTypeError otherwise.

    >>> jnp.arange(1, 2, 0.25)
    Array([1.  , 1.25, 1.5 , 1.75], dtype=float32)
    """
    if device is not None or out_sharding is not None:
        return as_asked("arange", device, out_sharding, arange, start, stop, step, dtype)
    wanted = user_dtype(dtype, "arange")
    given = [(n, v) for n, v in (("start", start), ("stop", stop), ("step", step)) if v is not None]
    if stop is None:
        given[0] = ("stop", start)
    if wanted is not None and dtypes.issubdtype(wanted, np.integer):
        given = [(name, dtypes.number_of(value, wanted)) for name, value in given]
    known = []
    for name, value in given:
        operand("arange", value)
        if is_complex(aval_of(value).dtype):
            raise ValueError(f"arange: complex numbers have no order, so '{name}' must be real (dtype need not be)")
        if np.shape(value if not isinstance(value, Array) else 0) or (isinstance(value, Array) and value.ndim):
            raise ValueError(f"arange: '{name}' must be a scalar, got an array of shape {np.shape(value)}")
        known.append(static_value(value, f"It arose in the arange argument '{name}'."))
    if wanted is None:
        wanted = dtypes.result_type(*[v for _, v in given])
    bounds = {name: value if isinstance(value, Dim) else np.asarray(v)[()]
              for (name, value), v in zip(given, known, strict=True)}
    if any(isinstance(v, Dim) for v in bounds.values()):
        return ew.convert(whole_range(bounds.get("start", 0), bounds["stop"], bounds.get("step", 1)), wanted, False)
    if len(given) == 1 and is_integer(wanted):
        size = max(0, math.ceil(bounds["stop"]))
        if wanted.itemsize >= 4:
            dtypes.check_python_int(int(size), wanted)
        return sh.iota(wanted, size)
    if steps_in_type and is_inexact(wanted):
        return cast(_range_in_type(wanted, **bounds), wanted)
    return cast(_numpy_range(**bounds), wanted)


def whole_range(start: Any, stop: Any, step: Any = 1) -> Array:
    """The integers from `start` up to but without `stop`, all of which may be sizes that are not known."""
    if any(not isinstance(x, Dim) and np.asarray(x).dtype.kind not in "iu" for x in (start, stop, step)):
        raise ValueError("arange: where one of start, stop and step is a size that is not known, all must be integers, "
                         f"got {start}, {stop}, {step}")
    start, stop, step = map(index_of, (start, stop, step))
    if step == 0:
        raise ValueError("arange: step must not be zero")
    dtype = dtypes.default_int()
    places = sh.iota(dtype, slice_length(start, stop, step))
    if isinstance(step, Dim) or step != 1:
        places = ew.mul(places, dtype.type(step))
    return ew.add(dtype.type(start), places) if start else places


def _numpy_range(stop: Any, start: Any = 0, step: Any = 1) -> np.ndarray:
    if any(getattr(v, "dtype", np.dtype(int)).kind == "V" for v in (start, stop, step)):
        start, stop, step = float(start), float(stop), float(step)
    if step == 0:
        raise ZeroDivisionError("arange: step must not be zero")
    return np.arange(start, stop, step)


def _range_in_type(dtype: np.dtype, stop: Any, start: Any = 0, step: Any = None) -> np.ndarray:
    """The start and whole numbers, or their products with a step, each rounded: these to float32 at least."""
    real = np.dtype(dtypes.to_real(dtype))
    if step is None:
        return np.arange(len(_numpy_range(stop, start))).astype(real) + real.type(start)
    real = np.promote_types(real, np.float32)
    places = np.arange(len(_numpy_range(stop, start, step)), dtype=real)
    return places * real.type(step) + real.type(start)


@repeated
def linspace(start: ArrayLike, stop: ArrayLike, num: int = 50, endpoint: bool = True, retstep: bool = False,
             dtype: Any = None, axis: int = 0, *, device: Any = None) -> Any:
    """`num` evenly spaced values from `start` to `stop`, along `axis`; with `retstep`, (values, step).

    ValueError if `num` is negative; it must be known when the program is made.
    """
    if device is not None:
        return as_asked("linspace", device, None, linspace, start, stop, num, endpoint, retstep, dtype, axis)
    num = static_int(num, "'num' argument of anima.numpy.linspace.")
    if num < 0:
        raise ValueError(f"Number of samples, {num}, must be non-negative.")
    start, stop = as_array(start, "linspace", 0), as_array(stop, "linspace", 1)
    wanted = user_dtype(dtype, "linspace")
    compute = dtypes.to_inexact(dtypes.result_type(start, stop))
    result_dtype = compute if wanted is None else wanted
    if wanted is not None and is_inexact(wanted):
        with dtypes.numpy_dtype_promotion("standard"):  # whoever gives a dtype has asked for it
            compute = dtypes.promote_types(compute, wanted)
    shape = broadcast_shapes(start.shape, stop.shape, name="linspace")
    start, stop = (broadcast_array(convert_operand(x, compute, False), shape) for x in (start, stop))
    axis = canonicalize_axis(axis, len(shape) + 1)
    intervals = num - 1 if endpoint else num
    values = _spaced(start, stop, num, endpoint, compute, axis)
    if is_integer(result_dtype) and not is_integer(compute):
        values = ew.floor(values)
    values = values if values.dtype == result_dtype else astype(values, result_dtype)
    if not retstep:
        return values
    step = ew.div(ew.sub(stop, start), compute.type(intervals)) if intervals > 0 else sh.full_like(start, np.nan)
    return values, step


def _spaced(start: Array, stop: Array, num: int, endpoint: bool, dtype: Any, axis: int) -> Array:
    """(start * (n - i) + stop * i) / n for i up to n: rounded once where start and stop are integers. The first is
    `start` to the last bit, as the last is `stop`: nothing between the least and the greatest number lies outside."""
    first, last = sh.expand_dims(start, (axis,)), sh.expand_dims(stop, (axis,))
    if num == 0:
        return sh.full((*start.shape[:axis], 0, *start.shape[axis:]), 0, dtype)
    if num == 1:
        return first
    intervals = num - 1 if endpoint else num
    sizes = [1] * first.ndim
    sizes[axis] = intervals
    exact = dtype if dtypes.finfo(dtype).bits >= 32 else np.dtype(np.float32)  # smaller types cannot count to `num`
    i = ew.convert_element_type(sh.broadcasted_iota(dtypes.to_real(exact), sizes, axis), exact)
    low, high = (ew.convert_element_type(x, exact) for x in (first, last))
    # Next to the largest numbers, the division comes first.
    limit = float(dtypes.finfo(exact).max) / (4 * intervals)
    large = ew.gt(ew.max(ew.abs(low), ew.abs(high)), sh.scalar(limit, dtypes.to_real(exact)))
    one, whole = (sh.full(large.shape, v, exact) for v in (1, intervals))
    before, after = ew.select_n(large, one, whole), ew.select_n(large, whole, one)
    sums = ew.add(ew.mul(ew.div(low, before), ew.sub(sh.scalar(intervals, exact), i)), ew.mul(ew.div(high, before), i))
    begins = broadcast_array(ew.eq(i, sh.full(i.shape, 0, exact)), sums.shape)
    inner = ew.select_n(begins, ew.div(sums, after), broadcast_array(low, sums.shape))
    inner = ew.convert_element_type(inner, dtype)
    return sh.concatenate([inner, last], axis) if endpoint else inner


@repeated
def logspace(start: ArrayLike, stop: ArrayLike, num: int = 50, endpoint: bool = True, base: ArrayLike = 10.0,
             dtype: Any = None, axis: int = 0) -> Array:
    """base ** linspace(start, stop, num) along `axis`; `base` may be an array, broadcast with `start` and `stop`."""
    wanted = user_dtype(dtype, "logspace")
    start, stop, base = (as_array(x, "logspace", i) for i, x in enumerate((start, stop, base)))
    compute = dtypes.to_inexact(dtypes.result_type(start, stop) if wanted is None else wanted)
    shape = broadcast_shapes(start.shape, stop.shape, base.shape, name="logspace")
    exponents = linspace(broadcast_array(start, shape), stop, num, endpoint, dtype=compute, axis=axis)
    base = as_array(convert_operand(base, compute, False))
    if base.ndim:
        base = sh.expand_dims(broadcast_array(base, shape), (canonicalize_axis(axis, len(shape) + 1),))
    powers = ew.pow(*(broadcast_array(x, exponents.shape) for x in (base, exponents)))
    return powers if wanted is None or wanted == compute else astype(powers, wanted)


@repeated
def geomspace(start: ArrayLike, stop: ArrayLike, num: int = 50, endpoint: bool = True, dtype: Any = None,
              axis: int = 0) -> Array:
    """`num` values from `start` to `stop` with a constant ratio; both of one sign."""
    wanted = user_dtype(dtype, "geomspace")
    start, stop = as_array(start, "geomspace", 0), as_array(stop, "geomspace", 1)
    compute = dtypes.to_inexact(dtypes.result_type(start, stop))
    start, stop = (as_array(convert_operand(x, compute, False)) for x in (start, stop))
    sign = ew.sign(start)
    shape = broadcast_shapes(start.shape, stop.shape, name="geomspace")
    start, stop, sign = (broadcast_array(x, shape) for x in (start, stop, sign))
    back = ew.conj(sign) if is_complex(compute) else sign  # the start on the positive axis
    logs = linspace(ew.log(ew.mul(start, back)), ew.log(ew.mul(stop, back)), num, endpoint, axis=axis)
    axis = canonicalize_axis(axis, len(shape) + 1)
    result = ew.mul(ew.exp(logs), sh.expand_dims(sign, (axis,)))
    result = _with_exact_ends(result, start, stop, num, endpoint, axis)
    return result if wanted is None or wanted == compute else astype(result, wanted)


def _with_exact_ends(values: Array, start: Array, stop: Array, num: int, endpoint: bool, axis: int) -> Array:
    if num < 2:
        return values
    first, last = sh.expand_dims(start, (axis,)), sh.expand_dims(stop, (axis,))
    inner = sh.slice_in_dim(values, 1, num - 1 if endpoint else num, axis=axis)
    return sh.concatenate([first, inner, last] if endpoint else [first, inner], axis)
