"""What libraries read of `jax._src.dtypes`: extended types, as those of keys are."""

from typing import Any

import numpy as np

from anima.core.dtypes import (
    ExtendedDType as ExtendedDType,
    TypePromotionError as TypePromotionError,
    canonicalize_dtype as canonicalize_dtype,
    extended as extended,
)
from anima.numpy import finfo as finfo

DType = np.dtype
__all__ = ["DType", "ExtendedDType", "TypePromotionError", "canonicalize_dtype", "extended", "finfo", "supports_inf",
           "to_complex_dtype"]


def supports_inf(dtype: Any) -> bool:
    """Whether a type of floating-point numbers has infinities."""
    return bool(np.isinf(np.array(np.inf, dtype).astype(np.float32)))


def to_complex_dtype(dtype: Any) -> np.dtype:
    """The type of complex numbers whose parts can hold what a type does."""
    return np.dtype(np.complex128 if np.dtype(dtype) in (np.float64, np.complex128) else np.complex64)
