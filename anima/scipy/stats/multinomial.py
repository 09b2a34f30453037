"""The multinomial distribution: how many of `n` draws fall into each of k classes with probabilities `p`."""

from __future__ import annotations

import numpy as np

from anima.api.eager import repeated
from anima.core import dtypes
from anima.core.array import Array
from anima.names import access
from anima.numpy.functions import exp
from anima.numpy.promote import as_array, promote_dtypes_inexact
from anima.numpy.reductions import all as _all, sum as _sum
from anima.numpy.selection import where
from anima.scipy.stats import functions as fn
from anima.typing import ArrayLike


@repeated
def logpmf(x: ArrayLike, n: ArrayLike, p: ArrayLike) -> Array:
    """The logarithm of the probability of counts x [..., k] among `n` draws, for p [..., k]; -inf unless they sum to
    `n`.

    NaN unless all 0 <= p <= 1. ValueError unless `x` and `n` are integers.
    """
    counts, total, p = as_array(x, "logpmf"), as_array(n, "logpmf", 1), as_array(p, "logpmf", 2)
    if not all(dtypes.issubdtype(v.dtype, np.integer) for v in (counts, total)):
        raise ValueError(f"x and n must be of integer type; got x.dtype={dtypes.name(counts.dtype)}, "
                         f"n.dtype={dtypes.name(total.dtype)}")
    possible = (_sum(counts, axis=-1) == total) & _all(counts >= 0, axis=-1)
    (p,) = promote_dtypes_inexact("multinomial.logpmf", p)
    k, m = where(counts >= 0, counts, 0).astype(p.dtype), total.astype(p.dtype)
    expected = m[..., None] * p
    parts = _sum(fn.excess(k) + fn.deviance(k, expected), axis=-1)
    out = where(possible, fn.excess(where(m >= 0, m, 0)) - parts + (_sum(expected, axis=-1) - m), -np.inf)
    return where(_all((p >= 0) & (p <= 1), axis=-1), out, np.nan)


@repeated
def pmf(x: ArrayLike, n: ArrayLike, p: ArrayLike) -> Array:
    """The probability of counts x [..., k] among `n` draws, for p [..., k]."""
    return exp(logpmf(x, n, p))

globals().update(access(__name__, globals()))
