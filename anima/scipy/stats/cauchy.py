"""The Cauchy distribution: density 1 / (pi (1 + x^2)), moved by `loc` and stretched by `scale`."""

from __future__ import annotations

import math

import numpy as np

from anima.core.array import Array
from anima.names import access
from anima.numpy.elementwise import abs, arctan2
from anima.numpy.functions import exp, log, log1p, tan
from anima.numpy.selection import where
from anima.scipy.stats.arguments import closely, valid
from anima.typing import ArrayLike


@closely
def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the density at `x`. NaN unless `scale` > 0."""
    z = abs((x - loc) / scale)
    large = z > 1e4
    near, far = where(large, 1, z), where(large, z, 1)
    size = where(large, 2 * log(far), log1p(near * near))
    return valid(x, -size - log(math.pi * scale), scale > 0)


@closely
def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The density at `x`."""
    return exp(logpdf(x, loc, scale))


@closely
def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of values up to `x`."""
    return valid(x, arctan2(1, (loc - x) / scale) / math.pi, scale > 0)


@closely
def sf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of values above `x`."""
    return valid(x, arctan2(1, (x - loc) / scale) / math.pi, scale > 0)


@closely
def logcdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of `cdf`, accurate where that vanishes or is close to 1."""
    return valid(x, _log_below((x - loc) / scale), scale > 0)


@closely
def logsf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of `sf`, accurate where that vanishes or is close to 1."""
    return valid(x, _log_below((loc - x) / scale), scale > 0)


@closely
def ppf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The x whose `cdf` is `q`; NaN outside of [0, 1]."""
    return valid(q, loc + scale * _quantile(q), scale > 0, (q >= 0) & (q <= 1))


@closely
def isf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The x whose `sf` is `q`; NaN outside of [0, 1]."""
    return valid(q, loc - scale * _quantile(q), scale > 0, (q >= 0) & (q <= 1))


def _log_below(z: Array) -> Array:
    right = z > 0
    return where(right, log1p(-arctan2(1, where(right, z, 1)) / math.pi),
                 log(arctan2(1, -where(right, -1, z)) / math.pi))


def _quantile(q: Array) -> Array:
    """tan(pi (q - 1/2)), by the distance from the nearer end."""
    upper = q > 0.5
    tail = where(upper, 1 - q, q)
    end, near = tail == 0, tail < 0.25
    size = where(near, 1 / tan(math.pi * where(end | ~near, 0.1, tail)), tan(math.pi * (0.5 - where(near, 0.5, tail))))
    size = where(end, np.inf, size)
    return where(upper, size, -size)

globals().update(access(__name__, globals()))
