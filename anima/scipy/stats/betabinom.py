"""The beta-binomial distribution: binomial, with a probability that is beta distributed, moved by `loc`."""

from __future__ import annotations

import numpy as np

from anima.core.array import Array
from anima.names import access
from anima.numpy.functions import exp
from anima.numpy.selection import where
from anima.scipy.stats import functions as fn
from anima.scipy.stats.arguments import closely, valid, whole
from anima.typing import ArrayLike


@closely
def logpmf(k: ArrayLike, n: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The logarithm of the probability of `k`. NaN unless `n` is whole, `n` >= 0 and `a`, `b` > 0."""
    x = k - loc
    inside = (x >= 0) & (x <= n) & whole(x)
    k = where(inside, x, 0)
    out = fn.log_choose(n, k) + fn.log_beta(k + a, n - k + b) - fn.log_beta(a, b)
    return valid(x, where(inside, out, -np.inf), (n >= 0) & whole(n), a > 0, b > 0)


@closely
def pmf(k: ArrayLike, n: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The probability of `k`."""
    return exp(logpmf(k, n, a, b, loc))

globals().update(access(__name__, globals()))
