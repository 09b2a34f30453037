"""The negative binomial distribution: the number of zeros before the `n`-th one, of probability `p`, moved by `loc`."""

from __future__ import annotations

import numpy as np

from anima.core.array import Array
from anima.names import access
from anima.numpy.functions import exp, log
from anima.numpy.selection import where
from anima.scipy.stats import functions as fn
from anima.scipy.stats.arguments import closely, valid, whole
from anima.typing import ArrayLike


@closely
def logpmf(k: ArrayLike, n: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The logarithm of the probability of `k`. NaN unless `n` > 0 and 0 < p <= 1."""
    x = k - loc
    inside = (x >= 0) & whole(x)
    k = where(inside, x, 0)
    out = log(n / (n + k)) + fn.binomial(n + k, k, 1 - p, p)
    return valid(x, where(inside, out, -np.inf), (p > 0) & (p <= 1), n > 0)


@closely
def pmf(k: ArrayLike, n: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The probability of `k`."""
    return exp(logpmf(k, n, p, loc))

globals().update(access(__name__, globals()))
