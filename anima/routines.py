"""BLAS and LAPACK as SciPy has them, without the package around them: loading that takes ten times as long.

    lapack("geqrf", numpy.dtype("float32"))      SciPy's wrapper of sgeqrf
    address("sgemm")                             the address of Fortran's sgemm, with all arguments by reference
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Any

import numpy as np

from anima import granted
from anima.util import once

# OpenBLAS's threads save a fifth where matrices are not very large, and cost up to 70 times the whole where anything
# else wants the same cores, another program say: for so many elements, times the smaller of the sizes, or less, one
# does it all.
ALONE = 2048**3
_SMALL = 16**3  # for such, OpenBLAS uses one anyway
_api: Any = ctypes.pythonapi
_api.PyCapsule_GetName.restype = ctypes.c_char_p
_api.PyCapsule_GetName.argtypes = [ctypes.py_object]
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_LIBRARY = 160 << 20  # bytes that OpenBLAS takes when it is loaded and first used
_LETTERS = {"f": "s", "d": "d", "F": "c", "D": "z"}


@once
def part(name: str) -> Any:
    """A compiled module of `scipy.linalg`, alone."""
    full = f"scipy.linalg.{name}"
    if full not in sys.modules:
        granted.require(_LIBRARY, "OpenBLAS, which solves systems of equations,")  # it would wait for more for ever
    scipy = importlib.import_module("scipy")  # finds the libraries; slow to load: with the first that needs it
    spec = PathFinder.find_spec(full, [os.path.join(folder, "linalg") for folder in scipy.__path__])
    if "scipy.linalg" in sys.modules or spec is None or spec.loader is None:
        return importlib.import_module(full)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    if "scipy.linalg" not in sys.modules:
        sys.modules.pop(full, None)  # the package is to find nothing of itself, and to load its parts in its own way
    return module


def lapack(name: str, dtype: Any) -> Any:
    """SciPy's wrapper of a LAPACK routine, for matrices of a type."""
    return getattr(part("_flapack"), _LETTERS[np.dtype(dtype).char] + name)


def blas(name: str, dtype: Any) -> Any:
    """As `lapack`, of BLAS."""
    return getattr(part("_fblas"), _LETTERS[np.dtype(dtype).char] + name)


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


@cache
def _threads() -> tuple[Callable[[], int], Callable[[int], None]]:
    get = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(threads_routine("get_num_threads"))
    return partial(get, 1), ctypes.CFUNCTYPE(None, ctypes.c_int)(threads_routine("set_num_threads"))


@contextmanager
def one_thread(product: int) -> Iterator[None]:
    """Has LAPACK use one thread for what is `alone`, and afterwards as many as before."""
    get, put = _threads()
    threads = get() if _SMALL < product <= ALONE else 1
    if threads == 1:
        yield
        return
    put(1)
    try:
        yield
    finally:
        put(threads)
