"""The exponential distribution: density exp(-x) for x >= 0, moved by `loc` and stretched by `scale`."""

from __future__ import annotations

import numpy as np

from anima.core.array import Array
from anima.names import access
from anima.nn.activations import log1mexp
from anima.numpy.functions import exp, expm1, log, log1p
from anima.numpy.selection import where
from anima.scipy.stats.arguments import on, promoted, valid
from anima.typing import ArrayLike


@promoted
def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the density at `x`. NaN unless `scale` > 0."""
    z = (x - loc) / scale
    return valid(z, where(z >= 0, -z - log(scale), -np.inf), scale > 0)


@promoted
def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The density at `x`."""
    return exp(logpdf(x, loc, scale))


@promoted
def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of values up to `x`."""
    z = (x - loc) / scale
    return valid(z, on(z >= 0, z, lambda z: -expm1(-z), 0), scale > 0)


@promoted
def logcdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of `cdf`, accurate where that vanishes or is close to 1."""
    z = (x - loc) / scale
    return valid(z, on(z > 0, z, log1mexp, -np.inf), scale > 0)


@promoted
def sf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of values above `x`."""
    z = (x - loc) / scale
    return valid(z, on(z >= 0, z, lambda z: exp(-z), 1), scale > 0)


@promoted
def logsf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of `sf`, accurate where that vanishes or is close to 1."""
    z = (x - loc) / scale
    return valid(z, where(z >= 0, -z, 0), scale > 0)


@promoted
def ppf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The x whose `cdf` is `q`; NaN outside of [0, 1]."""
    return valid(q, loc - scale * log1p(-q), scale > 0, q >= 0)

globals().update(access(__name__, globals()))
