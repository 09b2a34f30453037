"""The logistic distribution: its `cdf` is 1 / (1 + exp(-x)), moved by `loc` and stretched by `scale`."""

from __future__ import annotations

from anima.core.array import Array
from anima.names import access
from anima.numpy.elementwise import abs
from anima.numpy.functions import exp, log, log1p
from anima.ops import elementwise as ew
from anima.scipy.stats.arguments import closely, promoted, valid
from anima.typing import ArrayLike


@closely
def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the density at `x`. NaN unless `scale` > 0."""
    z = abs((x - loc) / scale)
    return valid(x, -z - 2 * log1p(exp(-z)) - log(scale), scale > 0)


@closely
def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The density at `x`."""
    return exp(logpdf(x, loc, scale))


@promoted
def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of values up to `x`."""
    return valid(x, ew.logistic((x - loc) / scale), scale > 0)


@promoted
def sf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of values above `x`."""
    return valid(x, ew.logistic((loc - x) / scale), scale > 0)


@closely
def ppf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The value whose `cdf` is `x`; NaN outside of [0, 1]."""
    return valid(x, loc + scale * (log(x) - log1p(-x)), scale > 0)


@closely
def isf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The value whose `sf` is `x`; NaN outside of [0, 1]."""
    return valid(x, loc - scale * (log(x) - log1p(-x)), scale > 0)

globals().update(access(__name__, globals()))
