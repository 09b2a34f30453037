"""Operands: what a function may be given, and how operands come to one dtype and one rank.

    promote("add", f32[3], 1)          -> f32[3], float32(1)       (a Python number gives way)
    promote("add", i32[2,3], f32[3])   -> f32[2,3], f32[1,3]       (converted, broadcast to equal rank)

Numbers whose value is known are converted on the spot; everything else is converted by an equation.
Sizes of 1 are left alone: elementwise primitives stretch them.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Iterable
from typing import Any, TypeGuard

import numpy as np

from anima import errors
from anima.config import config, numpy_rank_promotion
from anima.core import dtypes, transfers
from anima.core.array import Array, ConcreteArray
from anima.core.avals import ShapedArray, broadcast_shapes, canonicalize_axes, canonicalize_axis, scalar_type
from anima.core.dims import index_of
from anima.core.placement import pulls
from anima.core.state import current, warn
from anima.core.trace import EVAL, Tracer, aval_of, is_array_like, wrap
from anima.ops import elementwise as ew, reference, shape as sh
from anima.ops.index import index_operand

_PYTHON = (bool, int, float, complex)
_CHECKED = (Array, np.ndarray, np.generic, int, float, complex)
INEXACT = frozenset((*dtypes.FLOATS, *dtypes.COMPLEX))
_FLOATING = frozenset(dtypes.FLOATS)
_INTEGER = frozenset((*dtypes.SIGNED, *dtypes.UNSIGNED, *dtypes.SMALL_SIGNED, *dtypes.SMALL_UNSIGNED))


# ---------------------------------------------------------------- checks

def operand(name: str, x: Any, position: int = 0) -> Any:
    """`x` if it can be an operand of `name` (through `__jax_array__` if it has one), else TypeError."""
    if isinstance(x, _CHECKED):
        if isinstance(x, np.ndarray) and type(x) is not np.ndarray:
            aval_of(x)  # ValueError for masked arrays
        return x
    convert = getattr(x, "__jax_array__", None)
    if convert is not None:
        return convert()
    if is_array_like(x):
        return np.asarray(x)
    raise TypeError(f"{name} requires ndarray or scalar arguments, got {type(x)} at position {position}.")


def as_given(x: Any) -> Any:
    """What an object stands for, through `__jax_array__` if it has that; anything else as it is."""
    convert = None if isinstance(x, Array) else getattr(x, "__jax_array__", None)
    return x if convert is None else convert()


def operands(name: str, *args: Any) -> list[Any]:
    """Each argument checked by `operand`."""
    return [operand(name, x, i) for i, x in enumerate(args)]


def no_out(name: str, out: Any) -> None:
    """NotImplementedError if NumPy's `out` argument was given: arrays are immutable."""
    if out is not None:
        raise NotImplementedError(f"The 'out' argument to anima.numpy.{name} is not supported.")


def as_array(x: Any, name: str = "asarray", position: int = 0) -> Array:
    """`x`, checked, as an `Array`: Python numbers stay weakly typed, NumPy values are copied."""
    if isinstance(x, Array):
        return x
    x = operand(name, x, position)
    if isinstance(x, Array):
        return x
    aval = aval_of(x)
    transfers.implicit(x)
    return ConcreteArray(np.array(x, dtype=aval.dtype), aval)


def without_copy(value: Any, dtype: Any) -> Array:
    """An array over the memory of a NumPy value; ValueError if it would have to be copied to be one of `dtype`."""
    value = np.asarray(operand("asarray", value)).view()  # which is made read-only, unlike what is given
    aval = aval_of(value)
    fits = aval.dtype == value.dtype == (dtype or value.dtype) and value.flags.c_contiguous and value.flags.aligned
    if not fits:
        raise ValueError("asarray cannot make an array from this value without a copy (copy=False).")
    return ConcreteArray(value, aval)


def as_index(x: Any, name: str, position: int = 0) -> Array:
    """`as_array` of indices: NumPy integers that are too large for the dtypes in use stay out of range."""
    return as_array(index_operand(x), name, position)


def as_arrays(name: str, *args: Any) -> list[Array]:
    """Each argument as an `Array`."""
    return [as_array(x, name, i) for i, x in enumerate(args)]


def numpy_dtype_of(x: Any) -> Any:
    """The dtype of an operand."""
    return x.aval.dtype if isinstance(x, Array) else aval_of(x).dtype


def is_inexact(dtype: Any) -> bool:
    return dtype in INEXACT


def is_floating(dtype: Any) -> bool:
    return dtype in _FLOATING


def is_integer(dtype: Any) -> bool:
    return dtype in _INTEGER


def is_complex(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) and dtype.kind == "c"


# ---------------------------------------------------------------- values that must be known

def static_value(x: Any, context: str, fix: str = errors.KNOWN_VALUE) -> np.ndarray:
    """The value of an operand as a NumPy array; ConcretizationTypeError with `context`, and `fix`, if it is traced."""
    if isinstance(x, Tracer):
        known = x.concrete()
        if known is None:
            raise errors.ConcretizationTypeError(x, context, fix)
        x = known
    return np.asarray(x)


def is_for_numpy(x: Any) -> TypeGuard[ConcreteArray]:
    """Whether NumPy may do what comes next with an array: its elements are known, and no keys, and nobody
    wants to see, or take part in, what is done."""
    return (type(x) is ConcreteArray and isinstance(x.dtype, np.dtype) and current.trace is EVAL
            and EVAL.learns(config.call_key()))


def static_int(x: Any, context: str) -> int:
    """A Python int; ConcretizationTypeError with `context` for a tracer, TypeError for what is no int."""
    if isinstance(x, Tracer):
        return operator.index(static_value(x, context)[()])
    return index_of(x)


def canonical_shape(shape: Any) -> tuple[int, ...]:
    """A shape as a tuple of ints; an int is a shape of one dimension.

    TypeError, in the words of the documents, if a size is traced or not an integer.
    """
    if type(shape) is tuple:
        for size in shape:
            if type(size) is not int:
                break
        else:
            return shape
    if isinstance(shape, Array) and shape.ndim == 1 and not isinstance(shape, Tracer):
        shape = tuple(np.asarray(shape).tolist())
    elif isinstance(shape, np.ndarray):
        shape = tuple(shape.tolist()) if shape.ndim else (shape.item(),)
    sizes = one_or_more(shape)
    try:
        return tuple(map(index_of, sizes))
    except TypeError:
        tracers = [size for size in sizes if isinstance(size, Tracer)]
        raise TypeError(errors.shape_message(sizes, tracers)) from None


def one_or_more(given: Any) -> tuple[Any, ...]:
    """Sizes, or axes, as a tuple: they may come as any iterable, or as one alone."""
    alone = isinstance(given, str) or not isinstance(given, Iterable) or getattr(given, "ndim", 1) == 0
    return (given,) if alone else tuple(given)


def reduction_axes(axis: Any, ndim: int) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """The axes of a reduction that are the operand's own, and the names of those that `vmap` maps over."""
    if axis is None or isinstance(axis, (int, float, complex, Tracer)):  # the last three are errors, not names
        return normalize_axes(axis, ndim), ()
    given = one_or_more(axis)
    names = tuple(a for a in given if not (hasattr(type(a), "__index__") or isinstance(a, (float, complex))))
    return normalize_axes(tuple(a for a in given if a not in names), ndim), names


def normalize_axes(axis: Any, ndim: int) -> tuple[int, ...]:
    """The axes of a reduction: None is all of them; errors as NumPy's."""
    if axis is None:
        return tuple(range(ndim))
    if type(axis) is int:
        return (canonicalize_axis(axis, ndim),)
    if isinstance(axis, Tracer):
        axis = static_int(axis, "It arose in the axis argument.")
    one = hasattr(type(axis), "__index__") and not np.ndim(axis)
    return canonicalize_axes(axis if one else tuple(axis), ndim)


# ---------------------------------------------------------------- conversion

_KIND_TO_PYTHON = {"b": bool, "i": int, "u": int, "f": float, "c": complex}
_WRAPPED = np.dtype(np.int64)


def scalar_of(x: Any, dtype: Any) -> Any:
    """A Python number as a NumPy scalar; ints wrap around in small dtypes, floats overflow to infinity."""
    if type(x) is int and dtype in _INTEGER:
        if dtype.itemsize < 4 or (x < 0 and dtype.kind == "u"):  # as the default int first, which wraps around
            dtypes.check_python_int(x)
            return np.asarray(x, _WRAPPED).astype(dtype)[()]
        dtypes.check_python_int(x, dtype)
        return dtype.type(x)
    if isinstance(x, (int, float)) and -6e4 < x < 6e4 and dtype.kind != "c":
        return dtype.type(x)
    return _as_type(np.asarray(x), dtype)[()]


def _as_type(value: np.ndarray, dtype: Any) -> np.ndarray:
    """As arrays are converted: floats that integers do not reach are the nearest of these."""
    with np.errstate(all="ignore"):
        return np.asarray(reference.convert(value, dtype)) if dtype.kind in "iu" else value.astype(dtype)


def convert_operand(x: Any, dtype: Any, weak: bool) -> Any:
    """An operand with this dtype and weakness: numbers at once, arrays by an equation."""
    if isinstance(x, Array):
        aval = x.aval
        if aval.dtype == dtype and aval.weak_type == weak:
            return x
        if not aval.shape and isinstance(x, ConcreteArray) and current.recording is None and not pulls(x):
            return wrap(_as_type(x.value, dtype), scalar_type(dtype, weak))
        return ew.convert(x, dtype, weak)
    if weak and isinstance(x, (np.ndarray, np.generic)):  # the common type of others is weak, though theirs are not
        return wrap(_as_type(np.asarray(x), dtype), ShapedArray(x.shape, dtype, True))
    if isinstance(x, np.ndarray):
        return x if x.dtype == dtype else _as_type(x, dtype)
    if isinstance(x, np.generic):
        return x if x.dtype == dtype else _as_type(np.asarray(x), dtype)[()]
    if weak:
        return _KIND_TO_PYTHON[dtype.kind](x)
    return scalar_of(x, dtype)


def equal_ranks(name: str, args: list[Any]) -> list[Any]:
    """The operands with equal ranks; scalars stay scalars."""
    shapes = tuple([np.shape(x) if not isinstance(x, Array) else x.aval.shape for x in args])
    rank = _common_rank(name, shapes)
    if rank is None:
        return args
    if numpy_rank_promotion.value != "allow":
        raising = numpy_rank_promotion.value == "raise"
        message = errors.rank_promotion_message(name, shapes, raising)
        if raising:
            raise ValueError(message)
        warn(message)
    return [x if len(s) in (0, rank) else to_rank(x, rank) for x, s in zip(args, shapes, strict=True)]


@functools.lru_cache(4096)
def _common_rank(name: str, shapes: tuple[tuple[int, ...], ...]) -> int | None:
    """The rank of operands of these shapes, None if that of all is the same; ValueError if they do not fit."""
    ranks = {len(s) for s in shapes if s}
    if len(ranks) < 2:
        return None
    try:
        broadcast_shapes(*shapes)
    except TypeError:
        raise ValueError(f"Incompatible shapes for broadcasting: shapes={[*shapes]} of {name}") from None
    return max(ranks)


def to_rank(x: Any, rank: int) -> Array:
    """`x` with leading dimensions of size 1, by one `broadcast_in_dim`."""
    shape = np.shape(x) if not isinstance(x, Array) else x.aval.shape
    extra = rank - len(shape)
    return sh.broadcast_in_dim_p.bind(x, shape=(1,) * extra + shape, broadcast_dimensions=(*range(extra, rank),))


def promote(name: str, *args: Any) -> list[Any]:
    """The operands checked, converted to their common dtype and broadcast to equal ranks."""
    if len(args) == 2:
        fast = _promote_fast(name, *args)
        if fast is not None:
            return fast
    args = operands(name, *args)
    dtype, weak = dtypes.result_type(*args, return_weak_type_flag=True)
    return equal_ranks(name, [convert_operand(x, dtype, weak) for x in args])


def _promote_fast(name: str, x: Any, y: Any) -> Any:
    """The two commonest cases: equal dtypes, and an inexact array with a Python int or float."""
    if isinstance(x, Array):
        a = x.aval
        if isinstance(y, Array):
            b = y.aval
            if a.dtype is not b.dtype or a.weak_type != b.weak_type:
                return None
            return (x, y) if a.shape == b.shape or not a.shape or not b.shape else equal_ranks(name, [x, y])
        if type(y) in (int, float):
            number = _number_beside(a, y)
            return None if number is None else (x, number)
    elif isinstance(y, Array) and type(x) in (int, float):
        number = _number_beside(y.aval, x)
        return None if number is None else (number, y)
    return None


def _number_beside(aval: ShapedArray, number: Any) -> Any:
    """A Python int or float converted to go with an array of this type; None to take the long way."""
    kind = aval.dtype.kind
    if (aval.dtype.itemsize == 8 or aval.weak_type) and (aval.dtype.itemsize == 8) != config.enable_x64:
        return None  # it was made under the other option
    if kind == "f" or (kind == "V" and aval.dtype in _FLOATING):
        if aval.weak_type:
            return float(number)
        if -6e4 < number < 6e4:
            return aval.dtype.type(number)
    elif kind == "i" and type(number) is int and -0x80000000 <= number <= 0x7fffffff:
        if aval.weak_type:
            return number
        if aval.dtype.itemsize >= 4:
            return aval.dtype.type(number)
    return None


def promote_inexact(name: str, *args: Any) -> list[Any]:
    """As `promote`; integers and bools become the default float."""
    if len(args) == 2:
        fast = _promote_fast(name, *args)
        if fast is not None and numpy_dtype_of(fast[0]) in INEXACT:
            return fast
    args = operands(name, *args)
    dtype, weak = dtypes.result_type(*args, return_weak_type_flag=True)
    dtype = dtypes.to_inexact(dtype)
    return equal_ranks(name, [convert_operand(x, dtype, weak) for x in args])


def promote_numeric(name: str, *args: Any) -> list[Any]:
    """As `promote`; bools become int32."""
    out = promote(name, *args)
    if numpy_dtype_of(out[0]) == np.bool_:
        out = [convert_operand(x, np.dtype(np.int32), False) for x in out]
    return out


def promote_dtypes(name: str, *args: Any) -> list[Array]:
    """The operands as arrays of their common dtype; shapes as they are."""
    if len(args) == 2 and isinstance(args[0], Array) and isinstance(args[1], Array):
        a, b = args[0].aval, args[1].aval
        if a.dtype is b.dtype and a.weak_type == b.weak_type:
            return [*args]
    args = operands(name, *args)
    dtype, weak = dtypes.result_type(*args, return_weak_type_flag=True)
    return [as_array(convert_operand(x, dtype, weak)) for x in args]


def promote_factors(name: str, wanted: Any, *args: Any) -> list[Array]:
    """The operands of a product in one dtype; under strict promotion they may differ if a dtype is `wanted`."""
    with dtypes.numpy_dtype_promotion("standard") if wanted is not None else contextlib.nullcontext():
        return promote_dtypes(name, *args)


def promote_dtypes_inexact(name: str, *args: Any) -> list[Array]:
    """The operands as arrays of their common floating or complex dtype; shapes as they are."""
    args = operands(name, *args)
    dtype, weak = dtypes.result_type(*args, return_weak_type_flag=True)
    dtype = dtypes.to_inexact(dtype)
    return [as_array(convert_operand(x, dtype, weak)) for x in args]


def inexact(name: str, x: Any) -> Any:
    """One operand, integers and bools as the default float; weak types stay weak."""
    x = operand(name, x)
    aval = aval_of(x)
    return convert_operand(x, dtypes.to_inexact(aval.dtype), aval.weak_type)


def inexact_array(name: str, x: Any) -> Array:
    """As `inexact`, as an array."""
    return as_array(inexact(name, x))
