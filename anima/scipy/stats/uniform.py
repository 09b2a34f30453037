"""The uniform distribution on [loc, loc + scale]."""

from __future__ import annotations

import numpy as np

from anima.core.array import Array
from anima.names import access
from anima.numpy.functions import exp, log
from anima.numpy.selection import where
from anima.scipy.stats.arguments import promoted, strongly, valid
from anima.typing import ArrayLike


@promoted
def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the density at `x`. NaN unless `scale` > 0."""
    return valid(x - loc, where((x >= loc) & (x <= loc + scale), -log(scale), -np.inf), scale > 0)


@promoted
def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The density at `x`."""
    return exp(logpdf(x, loc, scale))


@strongly
def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of values up to `x`."""
    z = (x - loc) / scale
    return valid(z, where(z >= 0, where(z <= 1, z, 1), 0), scale > 0)


@promoted
def ppf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The x whose `cdf` is `q`; NaN outside of [0, 1]."""
    return valid(q, loc + scale * q, scale > 0, (q >= 0) & (q <= 1))

globals().update(access(__name__, globals()))
