"""Indices of every integer type, so wide that no number becomes another one on the way.

    >>> narrow_index(np.array([2**32 + 1, -5]))
    array([2147483647,         -5], dtype=int32)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anima.core import dtypes
from anima.core.trace import aval_of
from anima.ops import elementwise as el

_I32 = np.dtype(np.int32)
_I32_INFO = np.iinfo(_I32)


def index_operand(index: Any) -> Any:
    """Indices given by users: NumPy integers that would lose their upper half here stay out of range instead."""
    if isinstance(index, (np.ndarray, np.generic)) and index.dtype.kind in "iu":
        dtype = dtypes.canonicalize_dtype(index.dtype)
        if dtype != index.dtype:
            aval_of(index)  # ValueError for masked arrays
            return _saturated(np.asarray(index), dtype)
    return index


def _saturated(index: np.ndarray, dtype: np.dtype) -> np.ndarray:
    info = np.iinfo(dtype)
    if index.dtype.kind == "V":  # of less than a byte
        return index.astype(dtype)
    return np.clip(index, max(info.min, int(dtypes.iinfo(index.dtype).min)), info.max).astype(dtype)


def narrow_index(index: Any) -> Any:
    """Indices as int32: those that it cannot hold become its extremes, which are beyond any array, too."""
    if isinstance(index, np.ndarray):
        return _saturated(index, _I32)
    dtype = aval_of(index).dtype
    if dtypes.iinfo(dtype).max > _I32_INFO.max:
        low = dtype.type(max(int(dtypes.iinfo(dtype).min), _I32_INFO.min))
        index = el.clamp(low, index, dtype.type(_I32_INFO.max))
    return el.convert(index, _I32, False)
