"""Data types, as `jax.dtypes` names them: promotion, canonical types, extended types.

    dtypes.result_type(anima.numpy.int8, 1.0)           -> dtype('float32')
    dtypes.issubdtype(key.dtype, dtypes.prng_key)       -> True
"""
from __future__ import annotations

from typing import Any

from anima import names as _names
from anima.core import dtypes as _core
from anima.core.dtypes import (
    TypePromotionError,
    extended,
    finfo,
    float0,
    iinfo,
    itemsize_bits,
    prng_key,
    result_type,
    scalar_type_of,
)

globals().update(_names.access(__name__, globals()))

__all__ = [
    "TypePromotionError", "bfloat16", "canonicalize_dtype", "extended", "finfo", "float0", "iinfo",
    "issubdtype", "itemsize_bits", "prng_key", "result_type", "scalar_type_of",
]

bfloat16: type = _core.bfloat16.type


def issubdtype(a: Any, b: Any) -> bool:
    """Whether `a` is a dtype of the kind `b`, as `anima.numpy.issubdtype`: it knows small dtypes and random keys."""
    return _core.issubdtype(a, b)


def canonicalize_dtype(dtype: Any, allow_extended_dtype: bool = False) -> _core.DType:
    """`dtype` as it exists now: 64-bit types become their 32-bit ones while `enable_x64` is off.

    ValueError for an extended dtype (a PRNG key's), unless `allow_extended_dtype`.
    """
    return _core.canonicalize_dtype(dtype, allow_extended_dtype)
