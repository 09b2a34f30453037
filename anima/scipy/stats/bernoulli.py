"""The Bernoulli distribution: 1 with probability `p`, else 0, moved by `loc`."""

from __future__ import annotations

import numpy as np

from anima.core.array import Array
from anima.names import access
from anima.numpy.functions import exp
from anima.numpy.selection import where
from anima.scipy.stats import functions as fn
from anima.scipy.stats.arguments import closely, valid
from anima.typing import ArrayLike


@closely
def logpmf(k: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The logarithm of the probability of `k`. NaN unless 0 <= p <= 1."""
    x = k - loc
    out = where((x == 0) | (x == 1), fn.xlogy(x, p) + fn.xlog1py(1 - x, -p), -np.inf)
    return valid(x, out, (p >= 0) & (p <= 1))


@closely
def pmf(k: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The probability of `k`."""
    return exp(logpmf(k, p, loc))


@closely
def cdf(k: ArrayLike, p: ArrayLike) -> Array:
    """The probability of values up to `k`."""
    return valid(k, where(k < 0, 0, where(k < 1, 1 - p, 1)), (p >= 0) & (p <= 1))


@closely
def ppf(q: ArrayLike, p: ArrayLike) -> Array:
    """0 or 1, the smaller of those whose `cdf` is at least `q`; NaN outside of [0, 1]."""
    return valid(q, where(q <= 1 - p, 0, 1), (p >= 0) & (p <= 1), (q >= 0) & (q <= 1))

globals().update(access(__name__, globals()))
