"""The Laplace distribution: density exp(-|x|) / 2, moved by `loc` and stretched by `scale`."""

from __future__ import annotations

from anima.core.array import Array
from anima.names import access
from anima.numpy.elementwise import abs
from anima.numpy.functions import exp, log
from anima.numpy.selection import where
from anima.scipy.stats.arguments import closely, valid
from anima.typing import ArrayLike


@closely
def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the density at `x`. NaN unless `scale` > 0."""
    return valid(x, -abs((x - loc) / scale) - log(2 * scale), scale > 0)


@closely
def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The density at `x`."""
    return exp(logpdf(x, loc, scale))


@closely
def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of values up to `x`."""
    z = (x - loc) / scale
    tail = 0.5 * exp(where(z > 0, -z, z))
    return valid(x, where(z > 0, 1 - tail, tail), scale > 0)

globals().update(access(__name__, globals()))
