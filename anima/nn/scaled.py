"""Products of numbers in blocks with a scale for each (microscaling formats)."""

from __future__ import annotations

from typing import Any

import numpy as np

from anima.core import dtypes
from anima.core.array import Array
from anima.core.trace import aval_of
from anima.lax.ragged import scaled_dot


def scaled_matmul(lhs: Any, rhs: Any, lhs_scales: Any, rhs_scales: Any,
                  preferred_element_type: Any = np.float32) -> Array:
    """For each batch, (lhs * lhs_scales) @ (rhs * rhs_scales).T, where each scale is that of a block of the last axis.

    Args:
      lhs, rhs: [batch, rows, k] and [batch, columns, k], as a rule of 8- or 4-bit floats.
      lhs_scales, rhs_scales: [batch, rows, k / block] and [batch, columns, k / block].
      preferred_element_type: of the result [batch, rows, columns], summed in float32 at least.

    Raises:
      TypeError: for shapes that do not fit.

    >>> x = jnp.ones((1, 2, 32), jnp.float8_e4m3fn)
    >>> anima.nn.scaled_matmul(x, x, jnp.full((1, 2, 1), 2.0), jnp.ones((1, 2, 1)))
    Array([[[64., 64.],
            [64., 64.]]], dtype=float32)
    """
    if any(aval_of(x).ndim != 3 for x in (lhs, rhs, lhs_scales, rhs_scales)):
        raise TypeError("scaled_matmul takes arrays of three dimensions, got " + ", ".join(
            aval_of(x).str_short() for x in (lhs, rhs, lhs_scales, rhs_scales)) + ".")
    return scaled_dot(lhs, rhs, lhs_scale=lhs_scales, rhs_scale=rhs_scales,
                      dimension_numbers=(((2,), (2,)), ((0,), (0,))),
                      preferred_element_type=dtypes.canonicalize_dtype(preferred_element_type))
