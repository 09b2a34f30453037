"""The generalized normal distribution: density proportional to exp(-|x|^beta)."""

from __future__ import annotations

from anima.core.array import Array
from anima.names import access
from anima.numpy.elementwise import abs
from anima.numpy.functions import exp, log
from anima.numpy.selection import where
from anima.ops import special
from anima.scipy.stats import functions as fn
from anima.scipy.stats.arguments import promoted, valid
from anima.typing import ArrayLike


@promoted
def logpdf(x: ArrayLike, beta: ArrayLike) -> Array:
    """The logarithm of the density at `x`. NaN unless `beta` > 0."""
    return valid(x, log(0.5 * beta) - special.lgamma(1 / beta) - fn.power(abs(x), beta), beta > 0)


@promoted
def pdf(x: ArrayLike, beta: ArrayLike) -> Array:
    """The density at `x`."""
    return exp(logpdf(x, beta))


@promoted
def cdf(x: ArrayLike, beta: ArrayLike) -> Array:
    """The probability of values up to `x`."""
    size = fn.power(abs(x), beta)
    right = x > 0
    inner = 0.5 + 0.5 * fn.igamma(1 / beta, where(right, size, 1))
    return valid(x, where(right, inner, 0.5 * fn.igammac(1 / beta, where(right, 1, size))), beta > 0)

globals().update(access(__name__, globals()))
