"""Student's t distribution with `df` degrees of freedom, moved by `loc` and stretched by `scale`."""

from __future__ import annotations

import numpy as np

from anima.core.array import Array
from anima.names import access
from anima.numpy.elementwise import abs
from anima.numpy.functions import exp, log, log1p, sqrt
from anima.numpy.selection import where
from anima.scipy.stats import functions as fn
from anima.scipy.stats.arguments import closely, valid
from anima.typing import ArrayLike


@closely
def logpdf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the density at `x`. NaN unless `scale` > 0 and `df` > 0."""
    z = (x - loc) / scale
    endless = df == np.inf
    nu = where(endless, 1, df)
    z = abs(z)
    large = z > 1e4 * sqrt(nu)
    near, far = where(large, 0, z), where(large, z, 1)
    size = where(large, 2 * log(far) - log(nu), log1p(near * near / nu))
    out = -fn.log_beta(nu / 2, 0.5 + 0 * nu) - 0.5 * log(nu) - (nu + 1) / 2 * size
    out = where(endless, -0.5 * z * z - 0.5 * fn.LOG_2PI, out)
    return valid(x, out - log(scale), scale > 0, df > 0)


@closely
def pdf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The density at `x`."""
    return exp(logpdf(x, df, loc, scale))

globals().update(access(__name__, globals()))
