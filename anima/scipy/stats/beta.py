"""The beta distribution: density x^(a-1) (1-x)^(b-1) / B(a, b) on [0, 1], moved by `loc` and stretched by `scale`."""

from __future__ import annotations

import numpy as np

from anima.core.array import Array
from anima.names import access
from anima.numpy.functions import exp, log
from anima.numpy.selection import where
from anima.scipy.stats import functions as fn, tails
from anima.scipy.stats.arguments import closely, on, valid
from anima.typing import ArrayLike


@closely
def logpdf(x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the density at `x`. NaN unless `scale`, `a` and `b` > 0."""
    z = (x - loc) / scale
    at_end = where(z == 0, _at_end(a, b), where(z == 1, _at_end(b, a), -np.inf))
    out = on((z > 0) & (z < 1), z, lambda z: fn.beta_density(z, 1 - z, a, b), at_end, 0.5)
    return valid(z, out - log(scale), scale > 0, a > 0, b > 0)


@closely
def pdf(x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The density at `x`."""
    return exp(logpdf(x, a, b, loc, scale))


@closely
def cdf(x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of values up to `x`."""
    z = (x - loc) / scale
    out = on((z > 0) & (z < 1), z, lambda z: fn.betainc(a, b, z), where(z > 0, 1, 0), 0.5)
    return valid(z, out, scale > 0, a > 0, b > 0)


@closely
def logcdf(x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of `cdf`, accurate where that vanishes or is close to 1."""
    z = (x - loc) / scale
    out = on((z > 0) & (z < 1), z, lambda z: tails.log_betainc(a, b, z, 1 - z), where(z > 0, 0, -np.inf), 0.5)
    return valid(z, out, scale > 0, a > 0, b > 0)


@closely
def sf(x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of values above `x`."""
    z = (x - loc) / scale
    out = on((z > 0) & (z < 1), z, lambda z: fn.betainc(b, a, 1 - z), where(z > 0, 0, 1), 0.5)
    return valid(z, out, scale > 0, a > 0, b > 0)


@closely
def logsf(x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of `sf`, accurate where that vanishes or is close to 1."""
    z = (x - loc) / scale
    out = on((z > 0) & (z < 1), z, lambda z: tails.log_betainc(b, a, 1 - z, z), where(z > 0, -np.inf, 0), 0.5)
    return valid(z, out, scale > 0, a > 0, b > 0)


def _at_end(a: Array, b: Array) -> Array:
    """The logarithm of the density at the end where the exponent is a - 1."""
    return where(a == 1, log(b), where(a < 1, np.inf, -np.inf))

globals().update(access(__name__, globals()))
