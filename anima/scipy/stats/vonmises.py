"""The von Mises distribution on the circle: density proportional to exp(kappa cos(x))."""

from __future__ import annotations

from anima.core.array import Array
from anima.names import access
from anima.numpy.functions import exp, log, sin
from anima.ops import special
from anima.scipy.stats import functions as fn
from anima.scipy.stats.arguments import promoted, valid
from anima.typing import ArrayLike


@promoted
def logpdf(x: ArrayLike, kappa: ArrayLike) -> Array:
    """The logarithm of the density at `x`. NaN unless `kappa` >= 0."""
    half = sin(x / 2)
    return valid(x, -2 * kappa * half * half - fn.LOG_2PI - log(special.bessel_i0e(kappa)), kappa >= 0)


@promoted
def pdf(x: ArrayLike, kappa: ArrayLike) -> Array:
    """The density at `x`."""
    return exp(logpdf(x, kappa))

globals().update(access(__name__, globals()))
