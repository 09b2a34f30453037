"""Vector quantization, as `scipy.cluster.vq`."""

from __future__ import annotations

from typing import Any

import anima.numpy as jnp
from anima import errors as _errors
from anima.api.eager import repeated
from anima.numpy.promote import promote_dtypes_inexact


@repeated
def vq(obs: Any, code_book: Any, check_finite: bool = True) -> tuple[Any, Any]:
    """For each observation (row of `obs`) the number of the nearest code in `code_book`, and its distance.

    The first of several that are equally near. ValueError for ranks or sizes that do not fit. Values are not looked
    at, whatever `check_finite` says.

    >>> anima.scipy.cluster.vq.vq(jnp.array([[0.], [4.]]), jnp.array([[1.], [3.]]))
    (Array([0, 1], dtype=int32), Array([1., 1.], dtype=float32))
    """
    obs, codes = promote_dtypes_inexact("vq", obs, code_book)
    if obs.ndim != codes.ndim:
        raise ValueError("Observation and code_book should have the same rank")
    if obs.ndim == 1:
        obs, codes = obs[:, None], codes[:, None]
    if obs.ndim != 2:
        raise ValueError("ndim different than 1 or 2 are not supported")
    if obs.shape[1] != codes.shape[1]:
        raise ValueError("Observation and code_book should have the same number of features")
    squares = jnp.sum(jnp.square(obs[:, None, :] - codes[None]), -1)
    best = jnp.argmin(squares, -1)
    least = jnp.take_along_axis(squares, best[:, None], -1)[:, 0]
    positive = least > 0
    return best, jnp.where(positive, jnp.sqrt(jnp.where(positive, least, 1)), 0).astype(obs.dtype)


globals().update(_errors.public_face(__name__, globals()))  # errors show the user's frames only

__all__ = ["vq"]
