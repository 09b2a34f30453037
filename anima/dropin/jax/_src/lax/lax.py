"""`jax._src.lax.lax`: types of parts of complex numbers; else the public functions."""

from typing import Any

import numpy as np

__all__ = ["_complex_basetype"]


def _complex_basetype(dtype: Any) -> np.dtype:
    """The type of the parts of numbers of a type: of real ones, their own."""
    return np.finfo(dtype).dtype
