"""DLPack: arrays handed to other libraries, and taken from them, without copying.

NumPy does the work; what it does not know, bfloat16, travels as unsigned 16-bit integers whose type is written into the
capsule, or read from it. The layout of a capsule is that of dlpack.h, of versions 0 and 1.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from anima.core import dtypes
from anima.util import record

_UNSIGNED, _BFLOAT, _BOOL = 1, 4, 6  # DLDataTypeCode
_KINDS = {0: "i", 1: "u", 2: "f", 5: "c"}
CPU_DEVICE = (1, 0)                # (kDLCPU, its number)
CUDA, _MANAGED = 2, 13             # kDLCUDA; kDLCUDAManaged, which GPUs find at the same address
_OLD, _VERSIONED = b"used_dltensor", b"used_dltensor_versioned"  # capsules that somebody has consumed are called so


class _Tensor(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                ("byte_offset", ctypes.c_uint64))


class _Unversioned(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    _fields_ = (("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _Tensor))


def _tensor(capsule: Any) -> _Tensor:
    """What a capsule that nobody has consumed holds."""
    return _managed(capsule)[0].tensor


def _managed(capsule: Any) -> tuple[Any, int]:
    """What a capsule that nobody has consumed holds, with who frees it; and where that is."""
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    name = api.PyCapsule_GetName(capsule)
    pointer = api.PyCapsule_GetPointer(capsule, name)
    kind = _Versioned if name == b"dltensor_versioned" else _Unversioned
    return kind.from_address(pointer), pointer


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


# ---------------------------------------------------------------- memory of a GPU


class _Elsewhere:
    """An address as NumPy takes arrays from others: it looks at no elements, and keeps the memory alive."""

    def __init__(self, memory: Any, address: int, shape: tuple[int, ...], dtype: np.dtype, sealed: bool) -> None:
        self.memory = memory
        self.__array_interface__ = {"shape": shape, "typestr": dtype.str, "data": (address, sealed), "version": 3}


def lent(memory: Any, shape: tuple[int, ...], dtype: Any, *, stream: Any = None,
         max_version: tuple[int, int] | None = None, dl_device: tuple[int, int] | None = None,
         copy: bool | None = None) -> Any:
    """A capsule over memory (`Remote`) of a GPU; arguments as of `__dlpack__`. BufferError if it cannot be.

    As on a CPU, versions of DLPack that cannot say that memory is not to be written to get a copy.
    """
    device = memory.dlpack_device
    if not isinstance(dtype, np.dtype) or not is_supported_dtype(dtype):
        raise BufferError(f"DLPack cannot express arrays of dtype {dtype}")
    if dl_device not in (None, device):
        raise BufferError(f"An array on the device {device} cannot be given away on the device {dl_device}.")
    versioned = max_version is not None and max_version[0] >= 1
    if copy is False and not versioned:
        raise BufferError("DLPack before version 1 cannot say that memory is not to be written to. Fix: allow a copy.")
    if copy or not versioned:
        memory = memory.copy()
    is_bfloat = dtype == dtypes.bfloat16
    address = memory.lend(wait=stream != -1)
    known = np.dtype(np.uint16) if is_bfloat else dtype
    carrier = np.asarray(_Elsewhere(memory, address, shape, known, versioned and not copy))
    capsule = carrier.__dlpack__(max_version=max_version) if versioned else carrier.__dlpack__()
    tensor = _tensor(capsule)
    tensor.device_type, tensor.device_id = device
    if is_bfloat:
        tensor.code = _BFLOAT
    return capsule


def cuda_interface(memory: Any, shape: tuple[int, ...], dtype: Any) -> dict[str, Any]:
    """`__cuda_array_interface__` of memory (`Remote`), whose elements are computed. AttributeError for types that it
    cannot express."""
    if not isinstance(dtype, np.dtype) or dtype == dtypes.bfloat16 or not is_supported_dtype(dtype):
        raise AttributeError(f"__cuda_array_interface__ cannot express arrays of dtype {dtype}.")
    return {"shape": shape, "typestr": dtype.str, "data": (memory.lend(), False), "strides": None, "version": 3,
            "stream": None}


@record
class Lent:
    """Memory of another library on a GPU: where it is, what lies there, steps in elements (None: row-major), and what
    to call when nobody needs it."""

    address: int
    device: int
    shape: tuple[int, ...]
    dtype: np.dtype
    strides: tuple[int, ...] | None
    give_back: Callable[[], None]


def is_on_gpu(x: Any) -> bool:
    """Whether an object of another library says that its elements are in the memory of a GPU."""
    if hasattr(x, "__dlpack_device__"):
        return int(x.__dlpack_device__()[0]) in (CUDA, _MANAGED)
    return hasattr(x, "__cuda_array_interface__")


def borrowed(x: Any) -> Lent:
    """The memory of an object for which `is_on_gpu` holds; who takes it waits for all streams."""
    if not hasattr(x, "__dlpack__"):
        return _by_interface(x)
    try:
        capsule = x.__dlpack__(stream=-1, max_version=(1, 0))
    except TypeError:  # a library that knows version 0 only
        capsule = x.__dlpack__(stream=-1)
    managed, pointer = _managed(capsule)
    tensor, deleter = managed.tensor, managed.deleter
    if tensor.lanes != 1 or not (tensor.code in (_BFLOAT, _BOOL) or tensor.code in _KINDS):
        raise BufferError(f"from_dlpack: the type of code {tensor.code}, {tensor.bits} bits and {tensor.lanes} lanes "
                          "is not known.")
    if tensor.code == _BFLOAT:
        dtype = np.dtype(dtypes.bfloat16)
    else:
        dtype = np.dtype(np.bool_ if tensor.code == _BOOL else f"{_KINDS[tensor.code]}{tensor.bits // 8}")
    rename = ctypes.pythonapi.PyCapsule_SetName
    rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
    rename(capsule, _VERSIONED if isinstance(managed, _Versioned) else _OLD)
    release = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleter) if deleter else lambda pointer: None
    return Lent((tensor.data or 0) + tensor.byte_offset, tensor.device_id, _integers(tensor.shape, tensor.ndim), dtype,
                _integers(tensor.strides, tensor.ndim) if tensor.strides else None, partial(release, pointer))


def _integers(address: int | None, count: int) -> tuple[int, ...]:
    return tuple((ctypes.c_int64 * count).from_address(address)) if count and address else ()


def _by_interface(x: Any) -> Lent:
    """By `__cuda_array_interface__`: the object is kept."""
    said = x.__cuda_array_interface__
    dtype = np.dtype(said["typestr"])
    if said.get("mask") is not None or not is_supported_dtype(dtype) or not dtype.isnative:
        raise BufferError(f"__cuda_array_interface__: arrays with masks, and those of {dtype.str}, cannot be taken.")
    steps = said.get("strides")
    kept = [x]
    return Lent(said["data"][0] or 0, 0, tuple(said["shape"]), dtype,
                None if steps is None else tuple(s // dtype.itemsize for s in steps), kept.clear)
