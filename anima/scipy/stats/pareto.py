"""The Pareto distribution: density b / x^(b+1) for x >= 1, moved by `loc` and stretched by `scale`."""

from __future__ import annotations

import numpy as np

from anima.core.array import Array
from anima.names import access
from anima.nn.activations import log1mexp
from anima.numpy.functions import exp, expm1, log, log1p
from anima.scipy.stats.arguments import closely, on, promoted, valid
from anima.typing import ArrayLike


@closely
def logpdf(x: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the density at `x`. NaN unless `scale` > 0 and `b` > 0."""
    z = (x - loc) / scale
    return valid(z, on(z >= 1, z, lambda z: log(b) - (b + 1) * log(z), -np.inf) - log(scale), scale > 0, b > 0)


@closely
def pdf(x: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The density at `x`."""
    return exp(logpdf(x, b, loc, scale))


@closely
def cdf(x: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of values up to `x`."""
    z = (x - loc) / scale
    return valid(z, on(z >= 1, z, lambda z: -expm1(-b * log(z)), 0), scale > 0, b > 0)


@promoted
def logcdf(x: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of `cdf`, accurate where that vanishes or is close to 1."""
    z = (x - loc) / scale
    return valid(z, on(z > 1, z, lambda z: log1mexp(b * log(z)), -np.inf, 2.0), scale > 0, b > 0)


@closely
def sf(x: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of values above `x`."""
    z = (x - loc) / scale
    return valid(z, on(z >= 1, z, lambda z: exp(-b * log(z)), 1), scale > 0, b > 0)


@closely
def logsf(x: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of `sf`, accurate where that vanishes or is close to 1."""
    z = (x - loc) / scale
    return valid(z, on(z >= 1, z, lambda z: -b * log(z), 0), scale > 0, b > 0)


@closely
def ppf(q: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The x whose `cdf` is `q`; NaN outside of [0, 1]."""
    return valid(q, loc + scale * exp(-log1p(-q) / b), scale > 0, b > 0, q >= 0)

globals().update(access(__name__, globals()))
