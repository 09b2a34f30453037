"""Routines of BLAS and LAPACK by address, from SciPy's capsules: callable from compiled code without Python.

    address("sgemm")  ->  the address of Fortran's sgemm, with all arguments by reference
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from anima.routines import part

_api: Any = ctypes.pythonapi
_api.PyCapsule_GetName.restype = ctypes.c_char_p
_api.PyCapsule_GetName.argtypes = [ctypes.py_object]
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


@cache
def address(name: str) -> int:
    """The address of a routine of BLAS or LAPACK; NotImplementedError if SciPy does not have it."""
    for library in ("blas", "lapack"):
        capsule = part(f"cython_{library}").__pyx_capi__.get(name)
        if capsule is not None:
            return _api.PyCapsule_GetPointer(capsule, _api.PyCapsule_GetName(capsule))
    raise NotImplementedError(f"there is no routine {name!r} in BLAS or LAPACK")


class _Symbol(ctypes.Structure):
    """What dladdr tells of an address: the file that it is of comes first."""

    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p),
                ("start", ctypes.c_void_p)]


@cache
def threads_routine(name: str) -> int:
    """The address of OpenBLAS's `int get_num_threads(void)` or `void set_num_threads(int)`, where SciPy's library is an
    OpenBLAS, as that of its wheels is; elsewhere that of the C library's `abs`, which changes nothing."""
    process: Any = ctypes.cdll.msvcrt if sys.platform == "win32" else ctypes.CDLL(None)
    symbol = _Symbol()
    if hasattr(process, "dladdr") and process.dladdr(ctypes.c_void_p(address("dpotrf")), ctypes.byref(symbol)):
        library = ctypes.CDLL(symbol.file.decode())
        for prefix in ("scipy_openblas_", "openblas_"):
            if hasattr(library, prefix + name):
                return _pointer(getattr(library, prefix + name))
    return _pointer(process.abs)


def _pointer(function: Any) -> int:
    found = ctypes.cast(function, ctypes.c_void_p).value
    assert found is not None
    return found


def call(name: str, args: Sequence[np.ndarray]) -> None:
    """Calls a routine with the addresses of these arrays."""
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(args))(address(name))
    function(*(a.ctypes.data for a in args))
