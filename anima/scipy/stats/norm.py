"""The normal distribution: density exp(-x^2 / 2) / sqrt(2 pi), moved by `loc` and stretched by `scale`.

    >>> anima.scipy.stats.norm.logsf(40.0).round()
    Array(-805., dtype=float32)
"""

from __future__ import annotations

from anima.core.array import Array
from anima.names import access
from anima.numpy.functions import exp, log
from anima.ops import formula
from anima.scipy.stats import functions as fn
from anima.scipy.stats.arguments import closely, strongly, valid
from anima.typing import ArrayLike


@closely
def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the density at `x`; NaN unless `scale` > 0."""
    z = (x - loc) / scale
    return valid(x, -0.5 * z * z - (log(scale) + 0.5 * fn.LOG_2PI), scale > 0)


@closely
def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The density at `x`."""
    return exp(logpdf(x, loc, scale))


@strongly
def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of values up to `x`."""
    return valid(x, formula.ndtr((x - loc) / scale), scale > 0)


@strongly
def logcdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of `cdf`, accurate where that vanishes."""
    return valid(x, formula.log_ndtr((x - loc) / scale), scale > 0)


@strongly
def sf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of values above `x`."""
    return valid(x, formula.ndtr((loc - x) / scale), scale > 0)


@strongly
def logsf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of `sf`, accurate where that vanishes."""
    return valid(x, formula.log_ndtr((loc - x) / scale), scale > 0)


@strongly
def ppf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The x whose `cdf` is `q`; NaN outside of [0, 1]."""
    return valid(q, loc + scale * formula.ndtri(q), scale > 0)


@strongly
def isf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The x whose `sf` is `q`; NaN outside of [0, 1]."""
    return valid(q, loc - scale * formula.ndtri(q), scale > 0)

globals().update(access(__name__, globals()))
