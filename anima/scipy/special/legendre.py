"""Associated Legendre functions of the first kind, with the Condon-Shortley phase."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

import anima.numpy as jnp
from anima.core import dtypes
from anima.numpy.promote import as_array, operand


def lpmn_values(m: int, n: int, z: Any, is_normalized: bool) -> Any:
    """P_l^k of the numbers `z`, for all orders k up to `m` and degrees l up to `n`.

    Args:
      m, n: the largest order and degree, which have to be the same.
      z: floats, of shape (N,).
      is_normalized: multiply by sqrt((2 l + 1) / 4 pi (l - k)! / (l + k)!), as spherical harmonics are.

    Returns:
      An array of shape (m + 1, n + 1, N), 0 where the order is above the degree. By the recurrences in the degree
      (NIST's Digital Library of Mathematical Functions, 14.10.3).

    Raises:
      NotImplementedError: if `m` and `n` differ; TypeError: for numbers that are no floats; ValueError: for other
      shapes and negative degrees.

    >>> anima.scipy.special.lpmn_values(1, 1, jnp.array([0.6]), is_normalized=False)[..., 0]
    Array([[ 1. ,  0.6],
           [ 0. , -0.8]], dtype=float32)
    """
    return _values(*_checked("lpmn_values", m, n, z), _normal if is_normalized else _plain)


def lpmn(m: int, n: int, z: Any) -> tuple[Any, Any]:
    """P_l^k of the numbers `z`, as `lpmn_values` without its factor, and their derivatives.

    Args:
      m, n: the largest order k and degree l, which have to be the same.
      z: floats, of shape (N,).

    Returns:
      Two arrays of shape (m + 1, n + 1, N). At -1 and 1, derivatives of order 1 are infinite.
    """
    degrees, z = _checked("lpmn", m, n, z)
    p = _values(degrees, z, _plain)
    l, k = np.arange(degrees + 1.0)[:, None], np.arange(degrees + 1.0)[:, None, None]
    below = jnp.pad(p[:, :-1], ((0, 0), (1, 0), (0, 0)))
    inside = jnp.abs(z) < 1
    slopes = (_like(z, l) * z * p - _like(z, l + k) * below) / jnp.where(inside, z * z - 1, 1)
    edge = np.where(k == 0, l * (l + 1) / 2, np.where(k == 1, np.inf, -(l + 2) * (l + 1) * l * (l - 1) / 4))
    edge = np.where((k > 2) | (k > l), 0, edge)
    signs = jnp.where(z < 0, _like(z, np.where((l + (k != 1)) % 2 == 0, 1, -1)), 1)
    return p, jnp.where(inside, slopes, jnp.where(jnp.abs(z) == 1, signs * _like(z, edge), np.nan))


def _checked(name: str, m: int, n: int, z: Any) -> tuple[int, Any]:
    z = as_array(operand(name, z))
    if not dtypes.issubdtype(z.dtype, np.floating):
        raise TypeError(f"{name} needs numbers of type float, got {dtypes.name(z.dtype)}.")
    if z.ndim != 1:
        raise ValueError(f"{name}: z must be of one dimension, got shape {z.shape}.")
    if operator.index(m) != operator.index(n):
        raise NotImplementedError(f"{name} of orders and degrees up to different numbers, got {m=}, {n=}. Fix: the "
                                  "larger for both.")
    if m < 0:
        raise ValueError(f"{name}: degrees are 0 and up, got {n=}.")
    return operator.index(n), z


def _plain(l: int, k: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    return (2 * l - 1) / (l - k), (l + k - 1) / (l - k), -(2 * l - 1)


def _normal(l: int, k: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    scale = np.sqrt((4 * l * l - 1) / (l * l - k * k))
    before = scale * np.sqrt(np.maximum((l - 1) ** 2 - k * k, 0) / max(4 * (l - 1) ** 2 - 1, 1))
    return scale, before, -math.sqrt((2 * l + 1) / (2 * l))


def _values(degrees: int, z: Any, factors: Callable[[int, np.ndarray], Any]) -> Any:
    """Degree by degree: P_l^k = a z P_(l-1)^k - b P_(l-2)^k for k < l, and P_l^l = c sqrt(1 - z^2) P_(l-1)^(l-1)."""
    first = math.sqrt(0.25 / math.pi) if factors is _normal else 1.0
    sine = jnp.sqrt(1 - z * z)
    found = [jnp.full((1, *z.shape), first, z.dtype)]
    for l in range(1, degrees + 1):
        a, b, c = factors(l, np.arange(l)[:, None])
        last = found[-1]
        below = _like(z, a) * z * last
        if l > 1:
            below = below - jnp.pad(_like(z, b[:-1]) * found[-2], ((0, 1), (0, 0)))
        found.append(jnp.concatenate([below, _like(z, c) * sine * last[-1:]]))
    return jnp.stack([jnp.pad(p, ((0, degrees + 1 - len(p)), (0, 0))) for p in found], axis=1)


def _like(z: Any, numbers: Any) -> np.ndarray:
    return np.asarray(numbers, z.dtype)
