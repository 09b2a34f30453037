"""The normal distribution between `a` and `b` standard deviations, moved by `loc` and stretched by `scale`."""

from __future__ import annotations

import numpy as np

from anima.core.array import Array
from anima.names import access
from anima.numpy.functions import exp, log
from anima.numpy.selection import where
from anima.scipy.stats import functions as fn
from anima.scipy.stats.arguments import on, strongly, valid
from anima.typing import ArrayLike


@strongly
def logpdf(x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the density at `x`. NaN unless `scale` > 0 and a < b."""
    z = (x - loc) / scale
    out = -0.5 * z * z - 0.5 * fn.LOG_2PI - fn.log_ndtr_between(a, b) - log(scale)
    return valid(z, where((z >= a) & (z <= b), out, -np.inf), scale > 0, a < b)


@strongly
def pdf(x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The density at `x`."""
    return exp(logpdf(x, a, b, loc, scale))


@strongly
def logcdf(x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of `cdf`, accurate where that vanishes or is close to 1."""
    z = (x - loc) / scale
    inside = (z > a) & (z < b)
    mass = on(inside, z, lambda z: fn.log_ndtr_between(where(inside, a, z - 1), z) - fn.log_ndtr_between(a, b), 0)
    return valid(z, where(z <= a, -np.inf, where(z >= b, 0, mass)), scale > 0, a < b)


@strongly
def cdf(x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of values up to `x`."""
    return exp(logcdf(x, a, b, loc, scale))


@strongly
def logsf(x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of `sf`, accurate where that vanishes or is close to 1."""
    z = (x - loc) / scale
    inside = (z > a) & (z < b)
    mass = on(inside, z, lambda z: fn.log_ndtr_between(z, where(inside, b, z + 1)) - fn.log_ndtr_between(a, b), 0)
    return valid(z, where(z <= a, 0, where(z >= b, -np.inf, mass)), scale > 0, a < b)


@strongly
def sf(x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of values above `x`."""
    return exp(logsf(x, a, b, loc, scale))

globals().update(access(__name__, globals()))
