"""External routines by address: BLAS and LAPACK from SciPy's capsules, callable from compiled code without Python.

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
    """The address of a routine of BLAS or LAPACK; NotImplementedError if SciPy does not have it."""
    # SciPy takes longer to import than NumPy: it is loaded with the first program that multiplies matrices.
    blas, lapack = (importlib.import_module(f"scipy.linalg.cython_{part}").__pyx_capi__ for part in ("blas", "lapack"))
    capsule = blas.get(name) or lapack.get(name)
    if capsule is None:
        raise NotImplementedError(f"there is no routine {name!r} in BLAS or LAPACK")
    return _api.PyCapsule_GetPointer(capsule, _api.PyCapsule_GetName(capsule))
