"""The binomial distribution: the number of ones among `n` that are 1 with probability `p`, moved by `loc`."""

from __future__ import annotations

import numpy as np

from anima.core.array import Array
from anima.names import access
from anima.numpy.functions import exp
from anima.numpy.selection import where
from anima.scipy.stats import functions as fn
from anima.scipy.stats.arguments import promoted, valid, whole
from anima.typing import ArrayLike


@promoted
def logpmf(k: ArrayLike, n: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The logarithm of the probability of `k`. NaN unless `n` is whole, `n` >= 0 and 0 <= p <= 1."""
    x = k - loc
    inside = (x >= 0) & (x <= n) & whole(x)
    out = fn.binomial(n, where(inside, x, 0), p, 1 - p)
    return valid(x, where(inside, out, -np.inf), (p >= 0) & (p <= 1), (n >= 0) & whole(n))


@promoted
def pmf(k: ArrayLike, n: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The probability of `k`."""
    return exp(logpmf(k, n, p, loc))

globals().update(access(__name__, globals()))
