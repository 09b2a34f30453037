"""The wrapped Cauchy distribution on [0, 2 pi]: density (1 - c^2) / (2 pi (1 + c^2 - 2 c cos(x)))."""

from __future__ import annotations

import numpy as np

from anima.core.array import Array
from anima.names import access
from anima.numpy.functions import exp, log, log1p, sin
from anima.numpy.selection import where
from anima.scipy.stats import functions as fn
from anima.scipy.stats.arguments import promoted, valid
from anima.typing import ArrayLike


@promoted
def logpdf(x: ArrayLike, c: ArrayLike) -> Array:
    """The logarithm of the density at `x`. NaN unless 0 < `c` < 1."""
    half = sin(x / 2)
    out = log1p(-c * c) - fn.LOG_2PI - log((1 - c) ** 2 + 4 * c * half * half)
    return valid(x, where((x >= 0) & (x <= 2 * np.pi), out, -np.inf), (c > 0) & (c < 1))


@promoted
def pdf(x: ArrayLike, c: ArrayLike) -> Array:
    """The density at `x`."""
    return exp(logpdf(x, c))

globals().update(access(__name__, globals()))
