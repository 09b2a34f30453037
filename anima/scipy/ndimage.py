"""Arrays as images, as `scipy.ndimage`: their values between the places of elements.

    >>> anima.scipy.ndimage.map_coordinates(jnp.array([0., 10., 20.]), [jnp.array([0.5, 1.25])], order=1)
    Array([ 5. , 12.5], dtype=float32)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import anima.numpy as jnp
from anima import errors as _errors
from anima.api.eager import repeated
from anima.core import dtypes
from anima.ops import elementwise as ew


def _mirrored(i: Any, size: int) -> Any:
    """Reflected at the centres of the first and last element."""
    if size == 1:
        return jnp.zeros_like(i)
    period = 2 * (size - 1)
    return jnp.abs((i + size - 1) % period - (size - 1))


# Where elements outside of the array are found inside.
_MODES: dict[str, Callable[[Any, int], Any]] = {
    "constant": lambda i, size: i,
    "nearest": lambda i, size: jnp.clip(i, 0, size - 1),
    "wrap": lambda i, size: i % size,
    "mirror": _mirrored,
    "reflect": lambda i, size: jnp.floor_divide(_mirrored(2 * i + 1, 2 * size + 1), 2),  # at their outer edges
}


def _nodes(coordinate: Any, order: int) -> list[tuple[Any, Any]]:
    """(indices, weights) of the elements that a value at `coordinate` consists of; weight None is 1."""
    if order == 0:
        whole = coordinate if dtypes.issubdtype(coordinate.dtype, np.integer) else ew.round(coordinate)
        return [(whole.astype(np.int32), None)]
    coordinate = jnp.asarray(coordinate, dtypes.to_inexact(coordinate.dtype))
    floor = jnp.floor(coordinate)
    upper = coordinate - floor
    index = floor.astype(np.int32)
    return [(index, 1 - upper), (index + 1, upper)]


def _wider(dtype: Any, weights: Any) -> Any:
    """The type to compute in with values of a dtype and floats as weights."""
    if dtypes.issubdtype(dtype, np.complexfloating):
        return dtype
    return dtype if dtypes.issubdtype(dtype, np.floating) and dtype.itemsize >= weights.itemsize else weights


def map_coordinates(input: Any, coordinates: Sequence[Any], order: int, mode: str = "constant",
                    cval: Any = 0.0) -> Any:
    """The values of `input` at `coordinates`, an array for each of its axes, by interpolation of `order` 0 or 1.

    Outside, `mode` says what follows the last element: "constant" (`cval`), "nearest", "wrap", "mirror" or "reflect".
    Integers are rounded. NotImplementedError for another order or mode, ValueError unless there are as many
    coordinates as axes.
    """
    return _interpolated(input, order, mode, cval, *coordinates)


@repeated
def _interpolated(input: Any, order: int, mode: str, cval: Any, *coordinates: Any) -> Any:
    x = jnp.asarray(input)
    points = [jnp.asarray(c) for c in coordinates]
    cval = jnp.asarray(cval, x.dtype)
    if len(points) != x.ndim:
        raise ValueError("coordinates must be a sequence of length input.ndim, but "
                         f"{len(points)} != {x.ndim}")
    if mode not in _MODES:
        raise NotImplementedError(f"anima.scipy.ndimage.map_coordinates does not yet support mode {mode}. Currently "
                                  f"supported modes are {set(_MODES)}.")
    if order not in (0, 1):
        raise NotImplementedError("anima.scipy.ndimage.map_coordinates currently requires order<=1")
    total = None
    for corner in itertools.product(*(_nodes(c, order) for c in points)):
        places = tuple(_MODES[mode](i, n) for (i, _), n in zip(corner, x.shape, strict=True))
        if mode == "constant":
            inside = jnp.array(True)
            for i, n in zip(places, x.shape, strict=True):
                inside = inside & (i >= 0) & (i < n)
            value = jnp.where(inside, x[tuple(jnp.clip(i, 0, n - 1) for i, n in zip(places, x.shape, strict=True))],
                              cval)
        else:
            value = x[places]
        for _, weight in corner:
            if weight is not None:
                value = value.astype(_wider(value.dtype, weight.dtype))
                value = weight.astype(value.dtype) * value
        total = value if total is None else total + value
    if dtypes.issubdtype(x.dtype, np.integer) and not dtypes.issubdtype(total.dtype, np.integer):
        total = jnp.where(total < 0, jnp.ceil(total - 0.5), jnp.floor(total + 0.5))  # halves away from 0
    return total.astype(x.dtype)


globals().update(_errors.public_face(__name__, globals()))  # errors show the user's frames only

__all__ = ["map_coordinates"]
