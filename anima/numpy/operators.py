"""What operators and methods of arrays mean: fills the table in `core/array.py`.

An operator gives way (`NotImplemented`) to objects that are no array, though NumPy may make one of them, so that
their own reflected operator may answer; lists and tuples are refused, as functions refuse them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima import errors
from anima.api.devices import device_put
from anima.core import dtypes
from anima.core.array import Array, ConcreteArray, install_operators
from anima.core.state import current
from anima.numpy import (
    creation,
    diagonals,
    elementwise,
    functions,
    indexing,
    linear,
    manipulation,
    reductions,
    ref_forms,
    refs,
    selection,
    sorting,
    updates,
)
from anima.numpy.promote import static_value
from anima.ops import elementwise as ew, shape as sh
from anima.ops.placing import as_asked
from anima.runtime import several as several, single as single  # operations that come again, alone or in a row
from anima.util import lazy_module

generators = lazy_module("anima.random.implementation")

_SYMBOLS = {
    "add": "+", "subtract": "-", "multiply": "*", "true_divide": "/", "floor_divide": "//", "remainder": "%",
    "divmod": "divmod", "power": "**", "matmul": "@", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^",
    "left_shift": "<<", "right_shift": ">>", "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=",
    "equal": "==", "not_equal": "!="}


class _Operands(dict):
    """Types of operands: True if an operator takes them, False if it gives way, None if it refuses."""

    def __missing__(self, kind: type) -> bool | None:
        accepted = None if kind in (list, tuple, set, dict) else hasattr(kind, "__jax_array__") or issubclass(
            kind, (Array, np.ndarray, np.generic, bool, int, float, complex))
        self[kind] = accepted
        return accepted


_operands = _Operands()


def _operator(symbol: str, function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    accepts = _operands

    def apply(x: Any, y: Any) -> Any:
        try:  # as `errors.api_boundary`
            return general(x, y)
        except Exception as error:
            errors.filter_traceback(error)
            raise

    def general(x: Any, y: Any) -> Any:
        if accepts[type(x)] and accepts[type(y)]:
            return function(x, y)
        for other in (x, y):
            if accepts[type(other)] is None:
                raise TypeError(f"unsupported operand type(s) for {symbol}: {type(x).__name__!r} and "
                                f"{type(y).__name__!r}")
        return NotImplemented

    apply.__wrapped__ = function  # type: ignore[attr-defined]
    return apply


# ---------------------------------------------------------------- methods that differ from functions

def _reshape(x: Array, *shape: Any, order: str = "C", out_sharding: Any = None, **kwargs: Any) -> Array:
    if out_sharding is not None:
        return as_asked("reshape", None, out_sharding, _reshape, x, *shape, order=order, **kwargs)
    shape = kwargs.pop("shape", shape[0] if len(shape) == 1 else shape)
    return manipulation.reshape(x, shape, order)


def _transpose(x: Array, *axes: Any) -> Array:
    if not axes or axes[0] is None:
        return manipulation.transpose(x)
    return manipulation.transpose(x, axes[0] if len(axes) == 1 and np.ndim(axes[0]) else axes)


def _item(x: Array, *index: int) -> Any:
    value = static_value(x, "This occurred in the item() method of an array.",
                         "keep the value an array: x.reshape(()) for x.item()")
    if not index and value.size != 1:
        raise ValueError("can only convert an array of size 1 to a Python scalar")
    return value.item(*index)


def _astype(x: Array, dtype: Any, copy: bool = False, device: Any = None) -> Array:
    return creation.astype(x, dtype, copy=copy, device=device)


def _round(x: Array, ndigits: int | None = None) -> Array:
    """`round(x)`, as of Python's numbers: whole numbers are ints, unless there is a number of digits."""
    rounded = functions.round(x, ndigits or 0)
    if ndigits is not None:
        return rounded
    rounded = ew.real(rounded) if dtypes.issubdtype(x.dtype, np.complexfloating) else rounded
    return ew.convert_element_type(rounded, dtypes.default_int())


def _rows(x: Array) -> Sequence[Array]:
    """All there is to iterate over."""
    if type(x) is ConcreteArray and current.trace.is_ground:  # where one by one is quick
        return [x[i] for i in range(x.shape[0])]
    return sh.unstack(x)


def _flatten(x: Array, order: str = "C", *, out_sharding: Any = None) -> Array:
    if out_sharding is not None:
        return as_asked("flatten", None, out_sharding, _flatten, x, order)
    return manipulation.ravel(x, order)


_NOT_WHOLE = ("When changing to a larger dtype, its size must be a divisor of the total size in bytes of the last axis "
              "of the array.")


def _view(x: Array, dtype: Any = None, type: None = None) -> Array:
    """The bits of `x` read as another dtype; the last axis grows or shrinks with the element size."""
    if type is not None:
        raise NotImplementedError("`type` argument of array.view()")
    if dtype is None:
        return x
    dtype = dtypes.check_user_dtype(dtype, "view")
    if x.dtype == dtype:
        return x
    if x.dtype == np.bool_ or dtype == np.bool_:
        if dtype == np.bool_:
            return ew.ne(x.view(np.uint8), 0)
        return ew.convert_element_type(x, np.uint8).view(dtype)
    if dtypes.issubdtype(x.dtype, np.complexfloating) or dtypes.issubdtype(dtype, np.complexfloating):
        return _view_complex(x, dtype)
    before, after = dtypes.itemsize_bits(x.dtype), dtypes.itemsize_bits(dtype)
    if before == after:
        return ew.bitcast_convert_type(x, dtype)
    if not x.ndim:
        raise ValueError("view() of a 0d array is only supported if the itemsize is unchanged.")
    if after < before:
        parts = ew.bitcast_convert_type(x, dtype)
        return manipulation.reshape(parts, (*x.shape[:-1], x.shape[-1] * (before // after)))
    factor = after // before
    if x.shape[-1] % factor:
        raise ValueError(_NOT_WHOLE)
    return ew.bitcast_convert_type(manipulation.reshape(x, (*x.shape[:-1], x.shape[-1] // factor, factor)), dtype)


def _view_complex(x: Array, dtype: Any) -> Array:
    if dtypes.issubdtype(x.dtype, np.complexfloating):
        parts = manipulation.stack([ew.real(x), ew.imag(x)], -1)
        flat = manipulation.reshape(parts, (*x.shape[:-1], 2 * x.shape[-1]) if x.ndim else (2,))
        return flat.view(dtype)
    part = dtypes.to_real(dtype)
    halves = x.view(part)
    if halves.shape[-1] % 2:
        raise ValueError(_NOT_WHOLE)
    pairs = manipulation.reshape(halves, (*halves.shape[:-1], halves.shape[-1] // 2, 2))
    return ew.complex(pairs[..., 0], pairs[..., 1])


def _byteswap(x: Array, inplace: bool = False) -> Array:
    """The elements with the bytes of each, of each part of complex ones, in reverse order."""
    if inplace:
        raise NotImplementedError("byteswap(inplace=True): arrays are immutable.")
    part = dtypes.to_real(x.dtype) if dtypes.issubdtype(x.dtype, np.complexfloating) else x.dtype
    if part.itemsize == 1:
        return x
    word = np.dtype(f"uint{8 * part.itemsize}")
    bits = _view(manipulation.reshape(x, (*x.shape, 1)), word)
    swapped = ew.bitcast_convert_type(sh.rev(ew.bitcast_convert_type(bits, np.uint8), (x.ndim + 1,)), word)
    return manipulation.reshape(_view(swapped, x.dtype), x.shape)


def _compress(x: Array, condition: Any, axis: int | None = None, *, out: None = None, size: int | None = None,
              fill_value: Any = 0) -> Array:
    return selection.compress(condition, x, axis, size=size, fill_value=fill_value, out=out)


def _copy(x: Array) -> Array:
    return creation.copy(x)


def _array_namespace(api_version: str | None = None) -> Any:
    if api_version not in (None, "2021.12", "2022.12", "2023.12", "2024.12"):
        raise ValueError(f"anima.numpy does not provide array API version {api_version!r}")
    return sys.modules[namespace]


namespace = ""  # the module that `x.__array_namespace__()` returns


def install(name: str) -> None:
    """Fills the table; `name` is that of the module that arrays tell as theirs."""
    global namespace
    namespace = name
    binary: dict[str, Any] = {name: getattr(elementwise, name) for name in _SYMBOLS if name != "matmul"}
    binary["matmul"] = linear.matmul
    table = {name: _operator(symbol, binary[name]) for name, symbol in _SYMBOLS.items()}
    for module, names in _METHODS.items():
        table.update({name: getattr(module, name) for name in names})
    table.update({
        "getitem": indexing.getitem, "at": updates.at, "reshape_method": _reshape, "transpose_method": _transpose,
        "item": _item, "astype": _astype, "flatten": _flatten, "view": _view, "copy": _copy,
        "round_method": _round, "to_device": device_put,
        "ref_at": refs.at, "ref_get": refs.get, "ref_set": refs.set, "ref_swap": refs.swap,
        "ref_addupdate": refs.addupdate, "ref_reshape": ref_forms.reshape, "ref_bitcast": ref_forms.bitcast,
        "array_namespace": _array_namespace, "byteswap": _byteswap, "compress": _compress,
        "unstack": _rows, "pprint": _pprint})
    install_operators(table)


def _pprint(keys: Any) -> str:
    return generators.pprint(keys)


_METHODS: dict[Any, tuple[str, ...]] = {
    elementwise: ("negative", "positive", "abs", "invert", "conj", "real", "imag"),
    functions: ("clip", "round"),
    reductions: ("all", "any", "argmax", "argmin", "cumprod", "cumsum", "max", "mean", "min", "prod", "ptp", "std",
                 "sum", "var"),
    manipulation: ("transpose", "matrix_transpose", "ravel", "squeeze", "swapaxes"),
    selection: ("choose", "nonzero", "repeat", "take"),
    diagonals: ("diagonal", "trace"),
    linear: ("dot",),
    sorting: ("argpartition", "argsort", "searchsorted", "sort"),
}
