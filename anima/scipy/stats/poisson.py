"""The Poisson distribution: the number of events where `mu` are expected, moved by `loc`.

    >>> anima.scipy.stats.poisson.pmf(jnp.array([0, 1]), jnp.float32(0.5)).round(3)
    Array([0.607, 0.303], dtype=float32)
"""

from __future__ import annotations

import numpy as np

from anima.core.array import Array
from anima.names import access
from anima.numpy.functions import exp, floor, log
from anima.numpy.reductions import sum as _sum
from anima.numpy.selection import where
from anima.ops.shape import expand_dims
from anima.scipy.stats import functions as fn
from anima.scipy.stats.arguments import closely, on, promoted, strongly, valid, whole
from anima.typing import ArrayLike

_SUMMED = 200  # the mean up to which the entropy is a sum; above it, an asymptotic series


@promoted
def logpmf(k: ArrayLike, mu: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The logarithm of the probability of `k`. NaN unless `mu` >= 0."""
    x = k - loc
    inside = (x >= 0) & whole(x) & (x < np.inf)
    return valid(x, on(inside, x, lambda k: fn.poisson(k, mu), -np.inf), mu >= 0)


@promoted
def pmf(k: ArrayLike, mu: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The probability of `k`."""
    return exp(logpmf(k, mu, loc))


@closely
def cdf(k: ArrayLike, mu: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The probability of values up to `k`. NaN unless `mu` >= 0."""
    x = k - loc
    return valid(x, on(x >= 0, x, lambda k: fn.igammac(floor(k) + 1, mu), 0), mu >= 0)


@strongly
def entropy(mu: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The entropy, in nats: -sum of p log p. NaN unless `mu` >= 0."""
    large = mu > _SUMMED
    few = expand_dims(where(large, 1, mu), (mu.ndim,))
    k = np.arange(2 * _SUMMED).astype(mu.dtype).reshape((1,) * mu.ndim + (-1,))
    logs = -fn.excess(k) - fn.deviance(k, few)
    summed = _sum(where(logs > -700, -exp(logs) * where(logs > -700, logs, 0), 0), axis=-1)
    many = where(large, mu, _SUMMED)
    inverse = 1 / many
    series = ((-19 / 360 * inverse - 1 / 24) * inverse - 1 / 12) * inverse
    return valid(mu + 0 * loc, where(large, 0.5 * (fn.LOG_2PI + 1 + log(many)) + series, summed), mu >= 0)

globals().update(access(__name__, globals()))
