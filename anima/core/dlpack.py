"""DLPack: arrays handed to other libraries, and taken from them, without copying.

NumPy does the work; what it does not know, bfloat16, travels as unsigned 16-bit integers whose type is written into the
capsule, or read from it. The layout of a capsule is that of dlpack.h, of versions 0 and 1.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from anima.core import dtypes

_UNSIGNED, _BFLOAT = 1, 4  # DLDataTypeCode
CPU_DEVICE = (1, 0)        # (kDLCPU, its number)


class _Tensor(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                ("byte_offset", ctypes.c_uint64))


class _Versioned(ctypes.Structure):
    _fields_ = (("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _Tensor))


def _tensor(capsule: Any) -> _Tensor:
    """What a capsule that nobody has consumed holds."""
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    name = api.PyCapsule_GetName(capsule)
    pointer = api.PyCapsule_GetPointer(capsule, name)
    if name == b"dltensor_versioned":
        return _Versioned.from_address(pointer).tensor
    return _Tensor.from_address(pointer)


def exported(value: np.ndarray, **kwargs: Any) -> Any:
    """A capsule over the elements of a read-only array; arguments as of `__dlpack__`; BufferError if it cannot be."""
    is_bfloat = value.dtype == dtypes.bfloat16
    if not is_supported_dtype(value.dtype):
        raise BufferError(f"DLPack cannot express arrays of dtype {value.dtype}")
    if is_bfloat:
        value = value.view(np.uint16)
    try:
        capsule = value.__dlpack__(**kwargs)
    except BufferError:  # before DLPack 1.0 nothing says that memory is not to be written to
        if kwargs.get("copy") is False or kwargs.get("dl_device") not in (None, CPU_DEVICE):
            raise
        capsule = value.copy().__dlpack__(**kwargs)
    if is_bfloat:
        _tensor(capsule).code = _BFLOAT
    return capsule


class _Given:
    """What hands a capsule to NumPy."""

    def __init__(self, capsule: Any, device: tuple[int, int]):
        self.capsule, self.device = capsule, device

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


def imported(x: Any, copy: bool | None = None) -> np.ndarray:
    """The elements of an array of another library, as a view of its memory; a copy where `copy` is True.

    TypeError for what has no `__dlpack__` and `__dlpack_device__`, BufferError for memory of another device.
    """
    if not (hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__")):
        raise TypeError("The array passed to from_dlpack must have __dlpack__ and __dlpack_device__ methods.")
    device = tuple(map(int, x.__dlpack_device__()))
    if device[0] != CPU_DEVICE[0]:
        raise BufferError(f"from_dlpack: the array is in the memory of another device, {device}.")
    try:
        capsule = x.__dlpack__(max_version=(1, 0))
    except TypeError:  # a library that knows version 0 only
        capsule = x.__dlpack__()
    tensor = _tensor(capsule)
    is_bfloat = tensor.code == _BFLOAT and tensor.bits == 16
    if is_bfloat:
        tensor.code = _UNSIGNED
    value = np.from_dlpack(_Given(capsule, device))  # type: ignore[arg-type]
    value = value.view(dtypes.bfloat16) if is_bfloat else value
    return value.copy() if copy else value


def is_supported_dtype(dtype: Any) -> bool:
    """Whether arrays of this dtype can be exchanged: bools, integers of 8 bits and more, floats of 16 and more."""
    dtype = np.dtype(dtype)
    return dtype == dtypes.bfloat16 or (dtype.kind in "biufc" and dtype.type.__module__ == "numpy")
