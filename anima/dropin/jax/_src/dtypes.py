"""What libraries read of `jax._src.dtypes`: extended types, as those of keys are, and the types of values."""

from typing import Any

import numpy as np

from anima.core.dtypes import (
    ExtendedDType as ExtendedDType,
    TypePromotionError as TypePromotionError,
    canonicalize_dtype as canonicalize_dtype,
    default_float as default_float_dtype,
    default_int as default_int_dtype,
    extended as extended,
    is_weakly_typed as is_weakly_typed,
    issubdtype as issubdtype,
    promote_types as promote_types,
    result_type as result_type,
    short_name as short_dtype_name,
    to_inexact as to_inexact_dtype,
)
from anima.core.trace import aval_of
from anima.numpy import finfo as finfo

DType = np.dtype
__all__ = ["DType", "ExtendedDType", "TypePromotionError", "canonicalize_dtype", "default_float_dtype",
           "default_int_dtype", "dtype", "extended", "finfo",
           "is_weakly_typed", "issubdtype", "promote_types", "result_type", "short_dtype_name", "supports_inf",
           "to_complex_dtype", "to_inexact_dtype"]


def dtype(x: Any) -> Any:
    """The element type of a value, or the one that a type or a name stands for; ValueError for None."""
    if x is None:
        raise ValueError("None has no dtype.")
    if isinstance(x, (type, str)):
        return canonicalize_dtype(x)
    return canonicalize_dtype(x.dtype if hasattr(x, "dtype") else x if isinstance(x, np.dtype) else aval_of(x).dtype)


def supports_inf(dtype: Any) -> bool:
    """Whether a type of floating-point numbers has infinities."""
    return bool(np.isinf(np.array(np.inf, dtype).astype(np.float32)))


def to_complex_dtype(dtype: Any) -> np.dtype:
    """The type of complex numbers whose parts can hold what a type does."""
    return np.dtype(np.complex128 if np.dtype(dtype) in (np.float64, np.complex128) else np.complex64)
