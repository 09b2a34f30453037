"""External routines by address: BLAS from SciPy's capsules, callable from compiled code without Python.

    address("sgemm")  ->  the address of Fortran's sgemm, with all arguments by reference
"""

from __future__ import annotations

import ctypes
import importlib
from functools import cache
from typing import Any

_api: Any = ctypes.pythonapi
_api.PyCapsule_GetName.restype = ctypes.c_char_p
_api.PyCapsule_GetName.argtypes = [ctypes.py_object]
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


@cache
def address(name: str) -> int:
    """The address of a BLAS routine; NotImplementedError if SciPy does not have it."""
    # SciPy takes longer to import than NumPy: it is loaded with the first program that multiplies matrices.
    capsule = importlib.import_module("scipy.linalg.cython_blas").__pyx_capi__.get(name)
    if capsule is None:
        raise NotImplementedError(f"there is no BLAS routine {name!r}")
    return _api.PyCapsule_GetPointer(capsule, _api.PyCapsule_GetName(capsule))
