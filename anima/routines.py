"""BLAS and LAPACK as SciPy has them, without the package around them: loading that takes ten times as long.

    lapack("geqrf", numpy.dtype("float32"))      SciPy's wrapper of sgeqrf
    part("cython_blas").__pyx_capi__             addresses, in capsules
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Any

import numpy as np

from anima.util import once

_LETTERS = {"f": "s", "d": "d", "F": "c", "D": "z"}


@once
def part(name: str) -> Any:
    """A compiled module of `scipy.linalg`, alone."""
    full = f"scipy.linalg.{name}"
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
