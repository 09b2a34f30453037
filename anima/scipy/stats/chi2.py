"""The chi-squared distribution: the sum of the squares of `df` standard normal numbers."""

from __future__ import annotations

from anima.core.array import Array
from anima.names import access
from anima.scipy.stats import gamma
from anima.scipy.stats.arguments import closely
from anima.typing import ArrayLike


@closely
def logpdf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the density at `x`. NaN unless `scale` > 0 and `df` > 0."""
    return gamma.logpdf(x, df / 2, loc, 2 * scale)


@closely
def pdf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The density at `x`."""
    return gamma.pdf(x, df / 2, loc, 2 * scale)


@closely
def cdf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of values up to `x`."""
    return gamma.cdf(x, df / 2, loc, 2 * scale)


@closely
def logcdf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of `cdf`, accurate where that vanishes or is close to 1."""
    return gamma.logcdf(x, df / 2, loc, 2 * scale)


@closely
def sf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of values above `x`."""
    return gamma.sf(x, df / 2, loc, 2 * scale)


@closely
def logsf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of `sf`, accurate where that vanishes or is close to 1."""
    return gamma.logsf(x, df / 2, loc, 2 * scale)

globals().update(access(__name__, globals()))
