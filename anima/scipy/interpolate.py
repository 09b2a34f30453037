"""Functions given by their values on a grid, as `scipy.interpolate`.

    >>> grid = (jnp.array([0., 1., 2.]), jnp.array([0., 2.]))
    >>> f = anima.scipy.interpolate.RegularGridInterpolator(grid, jnp.array([[0., 2.], [1., 3.], [2., 4.]]))
    >>> f(jnp.array([[0.5, 1.], [1.5, 0.5]]))
    Array([1.5, 2. ], dtype=float32)
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

import anima.numpy as jnp
from anima import errors as _errors, tree_util


@tree_util.register_pytree_node_class
class RegularGridInterpolator:
    """A function of points, from its `values` on the grid of the increasing coordinates `points`, one for each axis.

    `method` is "linear" or "nearest"; outside of the grid the function is `fill_value`, or goes on (None).
    NotImplementedError for bounds_error=True, ValueError for sizes that do not fit and unknown methods. Axes of
    `values` after those of the grid belong to the results.
    """

    def __init__(self, points: Any, values: Any, method: str = "linear", bounds_error: bool = False,
                 fill_value: Any = np.nan):
        _check_method(method)
        if bounds_error:
            raise NotImplementedError("`bounds_error` takes no effect under jit")
        self.method, self.bounds_error, self.fill_value = method, bounds_error, fill_value
        values = jnp.asarray(values)
        if not jnp.issubdtype(values.dtype, np.inexact):
            values = values.astype(float)
        if len(points) > values.ndim:
            raise ValueError(f"there are {len(points)} point arrays, but values has {values.ndim} dimensions")
        for i, p in enumerate(points):
            if np.ndim(p) != 1:
                raise ValueError(f"the points in dimension {i} must be 1-dimensional")
            if np.shape(p)[0] != values.shape[i]:
                raise ValueError(f"there are {np.shape(p)[0]} points and {values.shape[i]} values in dimension {i}")
        self.grid = tuple(jnp.asarray(p) for p in points)
        if fill_value is not None and not np.can_cast(jnp.result_type(fill_value), values.dtype, "same_kind"):
            raise ValueError("fill_value must be either 'None' or of a type compatible with values")
        self.values = values

    def tree_flatten(self) -> Any:
        return (self.grid, self.values, self.fill_value), (self.method, self.bounds_error)

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Any) -> RegularGridInterpolator:
        self = object.__new__(cls)
        self.grid, self.values, self.fill_value = children
        self.method, self.bounds_error = aux
        return self

    def __call__(self, xi: Any, method: str | None = None) -> Any:
        """Values at `xi`, of shape [..., number of axes] or a tuple of coordinates that broadcast."""
        method = method or self.method
        _check_method(method)
        count = len(self.grid)
        if isinstance(xi, tuple):
            xi = jnp.stack(jnp.broadcast_arrays(*map(jnp.asarray, xi)), -1)
        xi = jnp.asarray(xi)
        xi = xi if jnp.issubdtype(xi.dtype, np.inexact) else xi.astype(float)
        if xi.ndim == 1 and count == 1:
            xi = xi[:, None]
        if xi.shape[-1] != count:
            raise ValueError("the requested sample points xi have dimension "
                             f"{xi.shape[-1]} but this RegularGridInterpolator has dimension {count}")
        shape = xi.shape[:-1]
        columns = list(jnp.moveaxis(xi.reshape(-1, count), -1, 0))
        places, distances, outside = [], [], jnp.zeros(columns[0].shape, bool)
        for x, grid in zip(columns, self.grid, strict=True):
            place = jnp.clip(jnp.searchsorted(grid, x, "right") - 1, 0, max(grid.size - 2, 0))
            width = grid[jnp.minimum(place + 1, grid.size - 1)] - grid[place]
            places.append(place)
            distances.append((x - grid[place]) / jnp.where(width == 0, 1, width))
            outside = outside | (x < grid[0]) | (x > grid[-1])
        result = (self._linear if method == "linear" else self._nearest)(places, distances)
        if self.fill_value is not None:
            fill = jnp.asarray(self.fill_value, result.dtype)
            result = jnp.where(outside.reshape(outside.shape + (1,) * (result.ndim - 1)), fill, result)
        return result.reshape(shape + self.values.shape[count:])

    def _at(self, places: list[Any]) -> Any:
        return self.values[tuple(jnp.minimum(i, g.size - 1) for i, g in zip(places, self.grid, strict=True))]

    def _linear(self, places: list[Any], distances: list[Any]) -> Any:
        total = None
        for corner in itertools.product((0, 1), repeat=len(places)):
            weight = 1
            for side, d in zip(corner, distances, strict=True):
                weight = weight * (d if side else 1 - d)
            value = self._at([i + side for i, side in zip(places, corner, strict=True)])
            term = value * weight.reshape(weight.shape + (1,) * (value.ndim - 1))
            total = term if total is None else total + term
        return total

    def _nearest(self, places: list[Any], distances: list[Any]) -> Any:
        return self._at([jnp.where(d <= 0.5, i, i + 1) for i, d in zip(places, distances, strict=True)])


def _check_method(method: str) -> None:
    if method not in ("linear", "nearest"):
        raise ValueError(f"method {method!r} is not defined")


globals().update(_errors.public_face(__name__, globals()))  # errors show the user's frames only

__all__ = ["RegularGridInterpolator"]
