"""The geometric distribution: how many draws of probability `p` it takes to the first one, moved by `loc`."""

from __future__ import annotations

import numpy as np

from anima.core.array import Array
from anima.names import access
from anima.numpy.functions import exp, log
from anima.scipy.stats import functions as fn
from anima.scipy.stats.arguments import closely, on, valid, whole
from anima.typing import ArrayLike


@closely
def logpmf(k: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The logarithm of the probability of `k`. NaN unless 0 < p <= 1."""
    x = k - loc
    inside = (x >= 1) & whole(x)
    return valid(x, on(inside, x, lambda k: fn.xlog1py(k - 1, -p) + log(p), -np.inf), (p > 0) & (p <= 1))


@closely
def pmf(k: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The probability of `k`."""
    return exp(logpmf(k, p, loc))

globals().update(access(__name__, globals()))
