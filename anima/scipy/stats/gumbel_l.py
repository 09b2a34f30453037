"""The left Gumbel distribution, of minima: its `sf` is exp(-exp(x)), moved by `loc` and stretched by `scale`."""

from __future__ import annotations

from anima.core.array import Array
from anima.names import access
from anima.numpy.functions import exp, expm1, log, log1p
from anima.scipy.stats import functions as fn
from anima.scipy.stats.arguments import promoted, valid
from anima.typing import ArrayLike


@promoted
def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the density at `x`. NaN unless `scale` > 0."""
    z = (x - loc) / scale
    return valid(x, fn.gumbel_density(-z) - log(scale), scale > 0)


@promoted
def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The density at `x`."""
    return exp(logpdf(x, loc, scale))


@promoted
def logcdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of `cdf`, accurate where that vanishes or is close to 1."""
    return valid(x, fn.gumbel_tail((loc - x) / scale), scale > 0)


@promoted
def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of values up to `x`."""
    return valid(x, -expm1(-exp((x - loc) / scale)), scale > 0)


@promoted
def sf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of values above `x`."""
    return valid(x, exp(-exp((x - loc) / scale)), scale > 0)


@promoted
def logsf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of `sf`, accurate where that vanishes or is close to 1."""
    return valid(x, -exp((x - loc) / scale), scale > 0)


@promoted
def ppf(p: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The x whose `cdf` is `p`; NaN outside of [0, 1]."""
    return valid(p, loc + scale * log(-log1p(-p)), scale > 0, (p >= 0) & (p <= 1))

globals().update(access(__name__, globals()))
