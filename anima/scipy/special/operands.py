"""Operands of special functions: promoted as in `anima.numpy`, real where the function is."""

from __future__ import annotations

from typing import Any

import numpy as np

from anima.core import dtypes
from anima.core.array import Array
from anima.numpy.promote import as_array, is_complex, promote_inexact
from anima.ops.elementwise import convert


def inexact(name: str, *args: Any, weak: bool = True) -> list[Array]:
    """The operands as arrays of their common inexact type and rank; not weakly typed unless `weak`."""
    found = [as_array(x) for x in promote_inexact(name, *args)]
    return found if weak else [convert(x, x.dtype, False) for x in found]


def real(name: str, *args: Any, weak: bool = False) -> list[Array]:
    """As `inexact`; ValueError for complex numbers."""
    found = inexact(name, *args, weak=weak)
    if is_complex(found[0].dtype):
        raise ValueError(f"{name} does not support complex-valued inputs.")
    return found


def single_or_double(x: Any) -> Array:
    """An array of float32 or float64; TypeError for other types."""
    x = as_array(x)
    if x.dtype not in (np.float32, np.float64):
        raise TypeError(f"x.dtype={dtypes.name(x.dtype)} is not supported, see docstring for supported types.")
    return convert(x, x.dtype, False)
