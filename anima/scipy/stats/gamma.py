"""The gamma distribution: density x^(a-1) exp(-x) / Gamma(a) for x > 0, moved by `loc` and stretched by `scale`."""

from __future__ import annotations

import numpy as np

from anima.core.array import Array
from anima.names import access
from anima.numpy.functions import exp, log
from anima.numpy.selection import where
from anima.scipy.stats import functions as fn, tails
from anima.scipy.stats.arguments import closely, on, promoted, valid
from anima.typing import ArrayLike


@closely
def logpdf(x: ArrayLike, a: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the density at `x`. NaN unless `scale` > 0 and `a` > 0."""
    z = (x - loc) / scale
    at_end = where(a == 1, 0, where(a < 1, np.inf, -np.inf))
    out = on((z > 0) & (z < np.inf), z, lambda z: fn.gamma_density(z, a), where(z == 0, at_end, -np.inf))
    return valid(z, out - log(scale), scale > 0, a > 0)


@closely
def pdf(x: ArrayLike, a: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The density at `x`."""
    return exp(logpdf(x, a, loc, scale))


@closely
def cdf(x: ArrayLike, a: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of values up to `x`."""
    z = (x - loc) / scale
    return valid(z, on(z > 0, z, lambda z: fn.igamma(a, z), 0), scale > 0, a > 0)


@closely
def logcdf(x: ArrayLike, a: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of `cdf`, accurate where that vanishes or is close to 1."""
    z = (x - loc) / scale
    return valid(z, on(z > 0, z, lambda z: tails.log_igamma(a, z), -np.inf), scale > 0, a > 0)


@promoted
def sf(x: ArrayLike, a: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of values above `x`."""
    z = (x - loc) / scale
    return valid(z, on(z > 0, z, lambda z: fn.igammac(a, z), 1), scale > 0, a > 0)


@promoted
def logsf(x: ArrayLike, a: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of `sf`, accurate where that vanishes or is close to 1."""
    z = (x - loc) / scale
    return valid(z, on(z > 0, z, lambda z: tails.log_igammac(a, z), 0), scale > 0, a > 0)

globals().update(access(__name__, globals()))
