"""Convolutions of BCOO arrays with dense filters.

    out[o] = sum over taps t of x[o * stride - low + t * dilation] * w[t]

Each stored element and each tap give one element of the result, outside of it perhaps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from anima import lax, numpy as jnp
from anima.core import dtypes
from anima.experimental.sparse.base import JAXSparse
from anima.experimental.sparse.bcoo import BCOO, parts_of
from anima.experimental.sparse.layout import bcoo_update_layout, inside, spread, where_inside


def bcoo_conv_general_dilated(lhs: BCOO, rhs: Any, *, window_strides: Sequence[int], padding: Any,
                              lhs_dilation: Sequence[int] | None = None, rhs_dilation: Sequence[int] | None = None,
                              dimension_numbers: Any = None, feature_group_count: int = 1, batch_group_count: int = 1,
                              precision: None = None, preferred_element_type: Any = None,
                              out_sharding: None = None) -> BCOO:
    """`lax.conv_general_dilated` of a BCOO array and a dense filter, in any number of spatial dimensions.

    Args:
      lhs: a BCOO array [batch, features, *spatial].
      rhs: an array [outputs, features, *window], each of whose elements counts as one that is stored.
      window_strides, padding, lhs_dilation, rhs_dilation, preferred_element_type: as of `lax.conv_general_dilated`.

    Returns:
      A BCOO array [batch, outputs, *places] with n_batch=2, and as many elements as `lhs` has, times features, times
      taps.

    Raises:
      NotImplementedError: for other dimension numbers, and for groups.
    """
    rhs = rhs.todense() if isinstance(rhs, JAXSparse) else jnp.asarray(rhs)
    numbers = lax.conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)
    plain = tuple(range(lhs.ndim))
    if any(tuple(spec) != plain for spec in numbers) or feature_group_count != 1 or batch_group_count != 1:
        raise NotImplementedError("bcoo_conv_general_dilated is for operands [batch, features, *spatial] and [outputs, "
                                  "features, *window], without groups.")
    spatial = lhs.ndim - 2
    strides = tuple(window_strides)
    grown, wide = (tuple(d) if d is not None else (1,) * spatial for d in (lhs_dilation, rhs_dilation))
    taps = rhs.shape[2:]
    sizes = [max(0, (n - 1) * g + 1) if n else 0 for n, g in zip(lhs.shape[2:], grown, strict=True)]
    windows = [(n - 1) * w + 1 for n, w in zip(taps, wide, strict=True)]
    pads = lax.padtype_to_pads(sizes, windows, strides, padding) if isinstance(padding, str) else padding
    places = [max(0, (n + a + b - k) // s + 1) for n, (a, b), k, s in zip(sizes, pads, windows, strides, strict=True)]
    mat = bcoo_update_layout(lhs, n_batch=2, n_dense=0, on_inefficient=None)
    dtype = jnp.result_type(mat.data, rhs) if preferred_element_type is None else \
        dtypes.canonicalize_dtype(preferred_element_type)
    data, indices = spread(mat)
    batch, features, nse = data.shape
    outputs, count = rhs.shape[0], math.prod(taps)
    grid = np.indices(taps).reshape(spatial, count).T * np.array(wide)
    low = np.array([a for a, _ in pads])
    start = indices[:, :, :, None, :] * np.array(grown, indices.dtype) + (low - grid).astype(indices.dtype)
    steps = np.array(strides, indices.dtype)
    there = inside(indices, parts_of(mat)[1])[..., None] & jnp.all(start % steps == 0, -1)
    found = start // steps
    there = there & inside(found, places)
    found = where_inside(there, found, places)
    terms = data.astype(dtype)[:, None, :, :, None] * rhs.astype(dtype).reshape(1, outputs, features, 1, count)
    terms = jnp.where(there[:, None], terms, jnp.zeros((), dtype))
    found = jnp.broadcast_to(found[:, None], (batch, outputs, features, nse, count, spatial))
    whole = features * nse * count
    return BCOO((terms.reshape(batch, outputs, whole), found.reshape(batch, outputs, whole, spatial)),
                shape=(batch, outputs, *places))
