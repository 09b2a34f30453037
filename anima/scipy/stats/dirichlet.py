"""The Dirichlet distribution of points of a simplex: density proportional to the product of x_i^(alpha_i - 1)."""

from __future__ import annotations

import numpy as np

from anima.core.array import Array
from anima.names import access
from anima.numpy.elementwise import abs
from anima.numpy.functions import exp
from anima.numpy.manipulation import concatenate, reshape
from anima.numpy.promote import promote_dtypes_inexact
from anima.numpy.reductions import all as _all, sum as _sum
from anima.numpy.selection import where
from anima.ops import special
from anima.scipy.stats import functions as fn
from anima.typing import ArrayLike


def logpdf(x: ArrayLike, alpha: ArrayLike) -> Array:
    """The logarithm of the density at x [k, ...] for alpha [k]; -inf outside of the simplex.

    `x` may lack its last component, which is then what misses to 1. NaN unless all `alpha` > 0. ValueError for shapes
    that do not fit.
    """
    x, alpha = promote_dtypes_inexact("dirichlet.logpdf", x, alpha)
    if alpha.ndim != 1:
        raise ValueError(f"`alpha` must be one-dimensional; got alpha.shape={alpha.shape}")
    if not x.ndim or x.shape[0] not in (alpha.shape[0], alpha.shape[0] - 1):
        raise ValueError("`x` must have either the same number of entries as `alpha` or one entry fewer; got "
                         f"x.shape={x.shape}, alpha.shape={alpha.shape}")
    if x.shape[0] != alpha.shape[0]:
        x = concatenate([x, 1 - _sum(x, axis=0, keepdims=True)], 0)
    constant = _sum(special.lgamma(alpha)) - special.lgamma(_sum(alpha))
    powers = reshape(alpha - 1, (-1,) + (1,) * (x.ndim - 1))
    inside = _all(x >= 0, axis=0) & (abs(_sum(x, axis=0) - 1) < 1e-6)
    out = where(inside, _sum(fn.xlogy(powers, where(inside, x, 0.5)), axis=0) - constant, -np.inf)
    return where(_all(x == x, axis=0) & _all(alpha > 0), out, np.nan)


def pdf(x: ArrayLike, alpha: ArrayLike) -> Array:
    """The density at x [k, ...] for alpha [k]."""
    return exp(logpdf(x, alpha))

globals().update(access(__name__, globals()))
