"""Making arrays: from values, filled, matrices of a simple pattern.

    >>> jnp.array([0, 1]), jnp.full((2,), 7.0)
    (Array([0, 1], dtype=int32), Array([7., 7.], dtype=float32, weak_type=True))
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from anima import tree
from anima.api.eager import repeated
from anima.config import transfer_guard_host_to_device
from anima.core import dtypes, memory, transfers
from anima.core.array import Array, ConcreteArray
from anima.core.avals import ShapedArray, broadcast_shapes
from anima.core.axes import varying
from anima.core.placement import elsewhere, moved, place, pulls
from anima.core.stage import staged
from anima.core.state import warn
from anima.core.trace import EVAL, Tracer, aval_of, is_array_like, is_tracing, under, wrap
from anima.numpy.elementwise import broadcast_array
from anima.numpy.promote import (
    as_array,
    canonical_shape,
    is_complex,
    is_inexact,
    is_integer,
    operand,
    static_int,
    without_copy,
)
from anima.ops import elementwise as ew, shape as sh
from anima.ops.broadcast import described_aval
from anima.ops.placing import as_asked, lies_somewhere, put_like
from anima.util import lazy_module

remotes = lazy_module("anima.api.remotes")
F = TypeVar("F", bound=Callable[..., Any])
ArrayLike = Any
stages_numbers = False  # whether arrays made of numbers are values of the program being recorded, as in JAX


def user_dtype(dtype: Any, name: str) -> Any:
    return None if dtype is None else dtypes.check_user_dtype(dtype, name)


# ---------------------------------------------------------------- from values

def array(object: Any, dtype: Any = None, *args: Any, copy: bool | None = True, order: str | None = "K", ndmin: int = 0,
          device: Any = None, out_sharding: Any = None) -> Array:
    """An array of the values in `object`: numbers, arrays or nested lists of them.

    `dtype` defaults to the promotion of all values; a single Python number stays weakly typed.
    TypeError for what is no number, OverflowError for ints that do not fit, ValueError for ragged lists.

    >>> jnp.array([[1, 2], [3, 4]])
    Array([[1, 2],
           [3, 4]], dtype=int32)
    """
    if device is not None or out_sharding is not None:
        return as_asked("array", device, out_sharding, array, object, dtype, *args, copy=copy, order=order, ndmin=ndmin)
    if args:
        warn("Passing the copy, order and ndmin arguments of array by position is deprecated: name them.",
             DeprecationWarning)
        given = dict(zip(("copy", "order", "ndmin"), args, strict=False))
        copy, order, ndmin = given["copy"], given.get("order", order), given.get("ndmin", ndmin)
    if order not in ("K", "C", None):
        raise NotImplementedError(f"array supports only order='C' and order='K', got {order!r}")
    wanted = user_dtype(dtype, "array")
    if not isinstance(object, (Array, np.ndarray)) and hasattr(object, "__jax_array__"):
        object = object.__jax_array__()
    if transfer_guard_host_to_device.value is not None:
        for x in tree.leaves(object):
            transfers.implicit(x)
    if copy and isinstance(object, np.ndarray) and type(object) is not np.ndarray:
        object = np.array(object)  # of a masked array, without the mask, as NumPy's `array` of it
    if isinstance(object, Array):
        result = object if wanted is None else _converted(object, wanted)
        if copy and result is object:
            result = _copied(result)
    else:
        make = _from_sequence if isinstance(object, (list, tuple)) else _from_value
        try:
            result = make(object, wanted)
        except TypeError:
            if wanted is None or not _has_text(object):
                raise
            result = cast(np.array(object, np.float64 if wanted.kind == "V" else wanted), wanted)  # which NumPy reads
    missing = ndmin - result.ndim
    result = sh.expand_dims(result, range(missing)) if missing > 0 else result
    if type(result) is ConcreteArray and not isinstance(object, Array):
        if moved() and not is_tracing():
            return place(result.elements(), result.aval, *elsewhere(0))
        return _number_made(result)
    return result


def _number_made(result: Array) -> Array:
    return staged(result) if stages_numbers and type(result) is ConcreteArray else result


def _has_text(value: Any) -> bool:
    return any(map(_has_text, value)) if isinstance(value, (list, tuple)) else (
        isinstance(value, (str, bytes)) or getattr(getattr(value, "dtype", None), "kind", "") in ("S", "U"))


def _copied(x: Array) -> Array:
    return ew.copy(x) if isinstance(x, Tracer) or x.ndim or pulls(x) else ConcreteArray(np.array(x.value), x.aval)


def _converted(x: Array, dtype: Any) -> Array:
    """A conversion to a dtype that the user asked for: strongly typed, out-of-range floats saturate."""
    return x if x.aval.dtype == dtype and not x.aval.weak_type else ew.convert(x, dtype, False)


def _from_value(value: Any, dtype: Any) -> Array:
    """A number or NumPy array (or anything NumPy reads as one) as an array."""
    if not is_array_like(value):
        if hasattr(value, "__cuda_array_interface__"):
            return _converted(remotes.borrowed(value), dtype) if dtype is not None else remotes.borrowed(value)
        value = _through_numpy(value)
    if isinstance(value, (bool, int, float, complex)) and not isinstance(value, np.generic):
        return _from_number(value, dtype)
    aval = aval_of(value)
    if dtype is None or dtype == aval.dtype:
        with np.errstate(all="ignore"):
            return wrap(memory.copied(value, aval.dtype), aval)
    return cast(np.asarray(value), dtype)


def cast(value: np.ndarray, dtype: Any) -> Array:
    """A NumPy array converted as arrays are: exact where NumPy's conversion is defined, saturating elsewhere."""
    if value.dtype.kind in "fcV" and not is_inexact(dtype):
        return ew.convert(wrap(np.array(value), aval_of(value)), dtype, False)
    with np.errstate(all="ignore"):
        return wrap(value.astype(dtype), ShapedArray(value.shape, dtype))


def _no_real_part(dtype: Any) -> str:
    return f"a complex number cannot be converted to {dtypes.name(dtype)}; take its real part first"


def _from_number(value: Any, dtype: Any) -> Array:
    if dtype is None:
        aval = aval_of(value)
        with np.errstate(all="ignore"):
            return ConcreteArray(np.asarray(value, aval.dtype), aval)
    if type(value) is int and is_integer(dtype):
        dtypes.check_python_int(value, dtype)
    if isinstance(value, complex) and not is_complex(dtype) and dtype != np.bool_:
        raise TypeError(_no_real_part(dtype))
    if isinstance(value, float) and is_integer(dtype):
        return ew.convert(ConcreteArray(np.asarray(value), ShapedArray((), np.dtype(np.float64))), dtype, False)
    with np.errstate(all="ignore"):
        return wrap(np.asarray(value).astype(dtype), ShapedArray((), dtype))


def _through_numpy(value: Any) -> np.ndarray:
    """Buffers, DLPack exporters, objects with `__array__`; ValueError for None, TypeError for everything else."""
    if value is None:
        raise ValueError("None is not a valid value for anima.numpy.array")
    if isinstance(value, (str, bytes, dict, set)):
        found = np.asarray(value)
        raise TypeError(f"Value {value!r} with dtype {found.dtype} is not a valid Anima array type. "
                        "Only arrays of numeric types are supported.")
    if hasattr(value, "__array__") or isinstance(value, (memoryview, bytearray, range)):
        return np.asarray(value)
    if hasattr(value, "__dlpack__"):
        return np.from_dlpack(value)
    found = np.asarray(value)
    if found.dtype == np.object_:
        raise TypeError(f"Value {value!r} with dtype object is not a valid Anima array type. "
                        "Only arrays of numeric types are supported.")
    return found


def _number_kinds(values: Sequence[Any]) -> set[type]:
    """The types in nested lists, without looking at each element in Python."""
    kinds = set(map(type, values))
    for kind in (list, tuple):
        if kind in kinds:
            kinds.remove(kind)
            kinds.update(*(_number_kinds(v) for v in values if type(v) is kind))
    return kinds


_PYTHON_NUMBERS = (bool, int, float, complex)


def _from_sequence(values: Sequence[Any], dtype: Any) -> Array:
    kinds = _number_kinds(values)
    if kinds and kinds.issubset(_PYTHON_NUMBERS):
        widest = max(kinds, key=_PYTHON_NUMBERS.index)
        wanted = dtypes.canonicalize_dtype(widest) if dtype is None else dtype
        if widest is complex and not is_complex(wanted) and wanted != np.bool_:
            raise TypeError(_no_real_part(wanted))
        found = np.array(values)
        if found.dtype != np.object_ and not (is_integer(wanted) and found.dtype.kind in "iu" and found.size):
            return cast(found, wanted)
        if found.dtype.kind in "iu":
            for extreme in (found.min(), found.max()):
                dtypes.check_python_int(int(extreme), wanted)
            return cast(found, wanted)
    leaves: list[Any] = []
    _collect(values, leaves)
    if any(isinstance(x, Tracer) or pulls(x) or (isinstance(x, Array) and isinstance(x.dtype, dtypes.ExtendedDType))
           for x in leaves):
        return _stacked(values, leaves, dtype)
    plain = _to_plain(values) if any(isinstance(x, Array) for x in leaves) else values
    found = np.array(plain, dtype=np.object_ if _only_large_ints(leaves) else None) if leaves else np.array(plain)
    if dtype is None:
        dtype = dtypes.result_type(*_distinct(leaves)) if leaves else dtypes.default_float()
    if found.dtype == np.object_ or found.dtype.kind in "SUMm":
        for leaf in leaves:
            kind = getattr(leaf, "dtype", None)
            if kind is not None and kind.kind in "OSUMm":
                raise TypeError(f"Value {leaf!r} with dtype {kind} is not a valid Anima array type. "
                                "Only arrays of numeric types are supported.")
    if is_integer(dtype):
        for leaf in leaves:
            if type(leaf) is int:
                dtypes.check_python_int(leaf, dtype)
    if found.dtype == np.object_:
        found = np.array(plain, dtype=dtype)
    return cast(found, dtype)


def _only_large_ints(leaves: list[Any]) -> bool:
    return any(type(x) is int and not -2 ** 63 <= x < 2 ** 63 for x in leaves)


def _collect(value: Any, leaves: list[Any]) -> None:
    for item in value:
        if isinstance(item, (list, tuple)):
            _collect(item, leaves)
        elif hasattr(item, "__jax_array__"):
            leaves.append(item.__jax_array__())
        elif is_array_like(item):
            leaves.append(item)
        else:
            leaves.append(_through_numpy(item))


def _distinct(leaves: list[Any]) -> list[Any]:
    """One value for each type of value: promotion looks at nothing else."""
    seen: dict[Any, Any] = {}
    for x in leaves:
        kind = type(x)
        key = (x.dtype, dtypes.is_weakly_typed(x)) if hasattr(x, "dtype") else kind
        # Within a list, Python numbers count as their default dtypes once arrays are among them.
        seen.setdefault(key, x)
    return list(seen.values())


def _to_plain(value: Any) -> Any:
    """Nested lists with arrays replaced by their NumPy values."""
    if isinstance(value, (list, tuple)):
        return [_to_plain(v) for v in value]
    if hasattr(value, "__jax_array__"):
        value = value.__jax_array__()
    return value.value if isinstance(value, ConcreteArray) else value


def _stacked(values: Sequence[Any], leaves: list[Any], dtype: Any) -> Array:
    """Lists that hold traced values: each converted, given an axis, and concatenated."""
    if dtype is None:
        dtype = dtypes.result_type(*_distinct(leaves))
    parts = [_stacked(v, leaves, dtype) if isinstance(v, (list, tuple)) and v else
             _converted(as_array(v), dtype) for v in values]
    shapes = {p.shape for p in parts}
    if len(shapes) > 1:
        raise ValueError("setting an array element with a sequence. The requested array has an inhomogeneous shape "
                         f"after 1 dimensions. The detected shape was ({len(parts)},) + inhomogeneous part.")
    return sh.concatenate([sh.expand_dims(p, (0,)) for p in parts], 0)


def asarray(a: Any, dtype: Any = None, order: str | None = None, *, copy: bool | None = None, device: Any = None,
            out_sharding: Any = None) -> Array:
    """`a` as an array, itself if it is one of this dtype already; see `array`."""
    if copy is False and not isinstance(a, (Array, list, tuple, bool, int, float, complex)):
        a = without_copy(a if is_array_like(a) else _through_numpy(a), user_dtype(dtype, "asarray"))
    return array(a, dtype=dtype, copy=bool(copy), order=order, device=device, out_sharding=out_sharding)


def of_sequences(fun: F) -> F:
    """`fun`, which may be given nested lists and tuples of numbers for its arrays, too."""
    @functools.wraps(fun)
    def given(*args: Any, **kwargs: Any) -> Any:
        return fun(*[asarray(x) if isinstance(x, (list, tuple)) else x for x in args], **kwargs)

    return given  # type: ignore[return-value]


def copy(a: ArrayLike, order: str | None = None) -> Array:
    """A copy of `a`: where a program is recorded, an equation `copy`."""
    if order not in ("K", "C", None):
        raise NotImplementedError(f"copy supports only order='C' and order='K', got {order!r}")
    return ew.copy(as_array(a, "copy"))


@repeated
def astype(x: ArrayLike, dtype: Any, /, *, copy: bool = False, device: Any = None) -> Array:
    """`x` converted to `dtype` (None: the default float); floats saturate at the limits of integers, NaN is 0.

    >>> jnp.astype(jnp.arange(254.0, 258.0), "uint8")
    Array([254, 255, 255, 255], dtype=uint8)
    """
    if device is not None:
        return as_asked("astype", device, None, astype, x, dtype, copy=copy)
    x = as_array(x, "astype")
    dtype = dtypes.check_user_dtype(dtype, "astype")
    if is_complex(x.dtype) and not is_complex(dtype) and dtype != np.bool_:
        warn("Casting complex values to real discards the imaginary part", np.exceptions.ComplexWarning)
        x = ew.real(x)
    if dtype == np.bool_ and x.dtype != np.bool_:
        return ew.ne(x, 0)
    result = _converted(x, dtype)
    return _copied(result) if copy and result is x else result


# ---------------------------------------------------------------- filled

@repeated
def full(shape: Any, fill_value: ArrayLike, dtype: Any = None, *, device: Any = None,
         out_sharding: Any = None) -> Array:
    """An array of `shape` with every element `fill_value`, which may itself be broadcast.

    A Python number as `fill_value` gives a weakly typed array unless `dtype` is given.
    """
    if device is not None or out_sharding is not None:
        return as_asked("full", device, out_sharding, full, shape, fill_value, dtype)
    dtype = user_dtype(dtype, "full")
    fill = as_array(operand("full", fill_value if dtype is None else dtypes.number_of(fill_value, dtype)))
    shape = canonical_shape(shape)
    if dtype is not None:
        fill = _scalar_or_converted(_real(fill, fill_value, dtype), dtype)
    return _number_made(broadcast_array(fill, _at_least(shape, fill)))


def _real(fill: Array, given: Any, dtype: Any) -> Array:
    """`fill`; of Python's complex numbers, whether it is nonzero for bools, and a TypeError for other real dtypes."""
    if type(given) is not complex or is_complex(dtype):
        return fill
    if dtype != np.bool_:
        raise TypeError(_no_real_part(dtype))
    return as_array(given != 0)


def _at_least(shape: tuple[int, ...], fill: Array) -> tuple[int, ...]:
    if fill.ndim:
        try:
            if broadcast_shapes(fill.shape, shape) != shape:
                raise TypeError
        except TypeError:
            raise ValueError(f"Incompatible shapes for broadcasting: {fill.shape} and requested {shape}") from None
    return shape


def _scalar_or_converted(fill: Array, dtype: Any) -> Array:
    if isinstance(fill, ConcreteArray) and not fill.ndim and not pulls(fill):
        return cast(fill.value, dtype) if fill.dtype != dtype or fill.weak_type else fill
    return _converted(fill, dtype)


@repeated
def zeros(shape: Any, dtype: Any = None, *, device: Any = None, out_sharding: Any = None) -> Array:
    """An array of zeros; the default dtype is the default float.

    TypeError if the shape is not known when the program is made, or negative.
    """
    if device is not None or out_sharding is not None:
        return as_asked("zeros", device, out_sharding, zeros, shape, dtype)
    dtype = dtypes.check_user_dtype(dtype, "zeros")
    return _number_made(sh.full(canonical_shape(shape), 0, dtype))


@repeated
def ones(shape: Any, dtype: Any = None, *, device: Any = None, out_sharding: Any = None) -> Array:
    """An array of ones; the default dtype is the default float."""
    if device is not None or out_sharding is not None:
        return as_asked("ones", device, out_sharding, ones, shape, dtype)
    dtype = dtypes.check_user_dtype(dtype, "ones")
    return _number_made(sh.full(canonical_shape(shape), 1, dtype))


@repeated
def empty(shape: Any, dtype: Any = None, *, device: Any = None, out_sharding: Any = None) -> Array:
    """An array whose values nobody relies on: zeros."""
    if device is not None or out_sharding is not None:
        return as_asked("empty", device, out_sharding, empty, shape, dtype)
    dtype = dtypes.check_user_dtype(dtype, "empty")
    return _number_made(sh.full(canonical_shape(shape), 0, dtype))


@repeated
def full_like(a: Any, fill_value: ArrayLike, dtype: Any = None, shape: Any = None, *, device: Any = None,
              out_sharding: Any = None) -> Array:
    """As `full`, with the shape and dtype of `a` (an array, or anything with a shape and a dtype)."""
    if device is not None or out_sharding is not None:
        return as_asked("full_like", device, out_sharding, full_like, a, fill_value, dtype, shape)
    if lies_somewhere(a, shape):
        return put_like(a, full_like(_like(a, "full_like"), fill_value, dtype, a.shape if shape is None else shape))
    aval = _like(a, "full_like")
    dtype = user_dtype(dtype, "full_like")
    shape = aval.shape if shape is None else canonical_shape(shape)
    weak = dtype is None and aval.weak_type
    dtype = aval.dtype if dtype is None else dtype
    fill = as_array(operand("full_like", dtypes.number_of(fill_value, dtype)))
    fill = _real(fill, fill_value, dtype)
    if isinstance(fill, ConcreteArray) and not fill.ndim and not pulls(fill):
        value = fill.value if fill.dtype == dtype else under(EVAL, cast, fill.value, dtype).value
        return varying(sh.broadcast(ConcreteArray(value, ShapedArray((), dtype, weak)), shape), aval.vma)
    return varying(broadcast_array(ew.convert(fill, dtype, weak), _at_least(shape, fill)), aval.vma)


def _like(a: Any, name: str) -> ShapedArray:
    if not is_array_like(a) and hasattr(a, "shape") and hasattr(a, "dtype"):
        return described_aval(a)
    return aval_of(operand(name, a))


@repeated
def zeros_like(a: Any, dtype: Any = None, shape: Any = None, *, device: Any = None, out_sharding: Any = None) -> Array:
    """Zeros of the shape and dtype of `a`."""
    if device is not None or out_sharding is not None:
        return as_asked("zeros_like", device, out_sharding, zeros_like, a, dtype, shape)
    return _filled_like("zeros_like", a, 0, dtype, shape)


@repeated
def ones_like(a: Any, dtype: Any = None, shape: Any = None, *, device: Any = None, out_sharding: Any = None) -> Array:
    """Ones of the shape and dtype of `a`."""
    if device is not None or out_sharding is not None:
        return as_asked("ones_like", device, out_sharding, ones_like, a, dtype, shape)
    return _filled_like("ones_like", a, 1, dtype, shape)


@repeated
def empty_like(prototype: Any, dtype: Any = None, shape: Any = None, *, device: Any = None) -> Array:
    """An array of the shape and dtype of `prototype` whose values nobody relies on: zeros."""
    if device is not None:
        return as_asked("empty_like", device, None, empty_like, prototype, dtype, shape)
    return _filled_like("empty_like", prototype, 0, dtype, shape)


def _filled_like(name: str, a: Any, value: int, dtype: Any, shape: Any) -> Array:
    if lies_somewhere(a, shape):
        return put_like(a, _filled_like(name, _like(a, name), value, dtype, a.shape if shape is None else shape))
    aval = _like(a, name)
    wanted = user_dtype(dtype, name)
    shape = aval.shape if shape is None else canonical_shape(shape)
    if wanted is None and isinstance(aval.dtype, dtypes.ExtendedDType):
        words = np.full(shape + aval.dtype.element_shape, value, aval.dtype.base)
        return ConcreteArray(words, ShapedArray(shape, aval.dtype))
    weak = wanted is None and aval.weak_type
    return varying(sh.broadcast(sh.scalar(value, aval.dtype if wanted is None else wanted, weak), shape), aval.vma)


# ---------------------------------------------------------------- matrices

@repeated
def eye(N: int, M: int | None = None, k: int = 0, dtype: Any = None, *, device: Any = None) -> Array:
    """An N by M matrix with ones on the k-th diagonal and zeros elsewhere; `k` may be traced."""
    if device is not None:
        return as_asked("eye", device, None, eye, N, M, k, dtype)
    dtype = dtypes.check_user_dtype(dtype, "eye")
    rows, columns = canonical_shape((N, N if M is None else M))
    if rows < 0 or columns < 0:
        raise ValueError(f"negative dimensions are not allowed, got {rows} and {columns}")
    row, column = _indices(rows, columns)
    offset = k if isinstance(k, Tracer) else max(-rows, min(static_int(k, ""), columns))  # no diagonal is further out
    return ew.convert_element_type(ew.eq(_shifted(row, offset), column), dtype)


def _shifted(row: Array, k: Any) -> Array:
    """Row numbers plus the number of a diagonal."""
    k = ew.convert(k, np.dtype(np.int32), False) if isinstance(k, Tracer) else np.int32(k)
    return ew.add(row, k)


def _indices(rows: int, columns: int) -> tuple[Array, Array]:
    return tuple(sh.broadcasted_iota(np.int32, (rows, columns), d) for d in (0, 1))  # type: ignore[return-value]


@repeated
def identity(n: int, dtype: Any = None) -> Array:
    """The n by n identity matrix."""
    return eye(n, dtype=dtypes.check_user_dtype(dtype, "identity"))


@repeated
def tri(N: int, M: int | None = None, k: int = 0, dtype: Any = None) -> Array:
    """An N by M matrix (float32) of ones on and below the k-th diagonal, which may be traced, and zeros above."""
    dtype = np.dtype(np.float32) if dtype is None else dtypes.check_user_dtype(dtype, "tri")
    return ew.convert_element_type(_lower(N, N if M is None else M, k), dtype)


def _lower(rows: int, columns: int, k: int) -> Array:
    row, column = _indices(*canonical_shape((rows, columns)))
    return ew.ge(_shifted(row, k), column)


def _triangle(m: Array, k: int, lower: bool) -> Array:
    rows, columns = m.shape[-2:]
    mask = broadcast_array(_lower(rows, columns, k if lower else k - 1), m.shape)
    zero = sh.zeros(m.aval)
    return ew.select_n(mask, zero, m) if lower else ew.select_n(mask, m, zero)


@repeated
def tril(m: ArrayLike, k: int = 0) -> Array:
    """`m` with zeros above the k-th diagonal of its last two axes; ValueError below two dimensions."""
    m = as_array(m, "tril")
    if m.ndim < 2:
        raise ValueError("Argument to anima.numpy.tril must be at least 2D")
    return _triangle(m, k, True)


@repeated
def triu(m: ArrayLike, k: int = 0) -> Array:
    """`m` with zeros below the k-th diagonal of its last two axes; ValueError below two dimensions."""
    m = as_array(m, "triu")
    if m.ndim < 2:
        raise ValueError("Argument to anima.numpy.triu must be at least 2D")
    return _triangle(m, k, False)


# ---------------------------------------------------------------- from files and buffers

def frombuffer(buffer: Any, dtype: Any = float, count: int = -1, offset: int = 0) -> Array:
    """An array of a copy of the bytes of `buffer`, read as `dtype`."""
    return asarray(np.frombuffer(buffer, dtype=dtypes.np_dtype(dtype), count=count, offset=offset))


def fromstring(string: str, dtype: Any = float, count: int = -1, *, sep: str) -> Array:
    """An array of the numbers in a text, separated by `sep`."""
    return asarray(np.fromstring(string, dtype=dtypes.np_dtype(dtype), count=count, sep=sep))
