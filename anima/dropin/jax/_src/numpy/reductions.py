"""`jax._src.numpy.reductions`: axes that are reduced; else the public functions."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from anima.numpy.promote import reduction_axes

Axis = None | int | Sequence[int]
__all__ = ["Axis", "_reduction_dims"]


def _reduction_dims(a: Any, axis: Any) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """The axes of an array that are reduced, which count from 0, and these with the names of mapped ones."""
    places, names = reduction_axes(axis, np.ndim(a))
    return places, (*places, *names)
