"""Arrays in files, as text, and from other libraries; what cannot be pure is refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np

from anima.core import dlpack, dtypes
from anima.core.array import Array, ConcreteArray
from anima.core.avals import ShapedArray
from anima.numpy.creation import asarray
from anima.ops.placing import as_asked
from anima.util import lazy_module

remotes = lazy_module("anima.api.remotes")

save, savez = np.save, np.savez
get_printoptions, printoptions = np.get_printoptions, np.printoptions


def set_printoptions(*args: Any, **kwargs: Any) -> None:
    """NumPy's: how arrays are written, for NumPy and Anima alike."""
    np.set_printoptions(*args, **kwargs)


def load(file: Any, *args: Any, **kwargs: Any) -> Any:
    """The array in a .npy file (of a .npz file, NumPy's mapping of names to arrays; of objects, NumPy's array).

    NumPy's files do not name bfloat16: elements of two bytes without a type are taken for it.
    """
    out = np.load(file, *args, **kwargs)
    if not isinstance(out, np.ndarray) or out.dtype == np.object_:
        return out
    return asarray(out.view(dtypes.bfloat16) if out.dtype == "V2" else out)


def array_repr(arr: Any, max_line_width: int | None = None, precision: int | None = None,
               suppress_small: bool | None = None) -> str:
    """The text of an array with its type."""
    if isinstance(arr, Array):
        return repr(arr)
    return np.array_repr(np.asarray(arr), max_line_width, precision, suppress_small)


def array_str(a: Any, max_line_width: int | None = None, precision: int | None = None,
              suppress_small: bool | None = None) -> str:
    """The text of an array's elements."""
    return np.array_str(np.asarray(a), max_line_width, precision, suppress_small)


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Array:
    """An array over the memory of any object that exports DLPack, which must not change while the array is in use.

    Args:
      device: where the array is to be; None: where it is.
      copy: True for memory of its own, False to never copy; by default only what is not in row-major order is copied.

    Raises:
      TypeError: for an object that does not export DLPack (nor `__cuda_array_interface__`, of a GPU's memory).
      RuntimeError: for another device, or memory of a GPU that programs cannot use.
      BufferError: for memory of devices of other kinds; where `copy` is False and a copy would be needed.

    >>> jnp.from_dlpack(np.array([1, 2], np.int32))
    Array([1, 2], dtype=int32)
    """
    if device is not None:
        return as_asked("from_dlpack", device, None, from_dlpack, x, copy=copy)
    if dlpack.is_on_gpu(x):
        return remotes.borrowed(x, copy)
    value = dlpack.imported(x, copy)
    dtype = dtypes.canonicalize_dtype(value.dtype)
    if dtype == value.dtype and value.flags.c_contiguous and value.flags.aligned:
        return ConcreteArray(value, ShapedArray(value.shape, dtype))
    if copy is False:
        raise BufferError(f"from_dlpack: cannot avoid a copy of an array with strides {value.strides} and dtype "
                          f"{value.dtype}.")
    return asarray(value)


def _refused(name: str) -> Any:
    def function(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"anima.numpy.{name}() is not implemented because it may be non-pure and thus unsafe "
                                  "for use with transformations. Consider using "
                                  f"anima.numpy.asarray(numpy.{name}(...)) instead.")

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Not implemented, as it may be impure: use anima.numpy.asarray(numpy.{name}(...))."
    return function


fromfile, fromiter = _refused("fromfile"), _refused("fromiter")
