"""The normal distribution of vectors, with mean `mean` and covariance `cov`."""

from __future__ import annotations

from anima.core.array import Array
from anima.names import access
from anima.numpy.diagonals import diagonal
from anima.numpy.functions import exp, log
from anima.numpy.linalg import cholesky
from anima.numpy.manipulation import broadcast_shapes, broadcast_to
from anima.numpy.promote import promote_dtypes_inexact
from anima.numpy.reductions import sum as _sum
from anima.scipy.linalg.solving import triangular
from anima.scipy.stats import functions as fn
from anima.typing import ArrayLike


def logpdf(x: ArrayLike, mean: ArrayLike, cov: ArrayLike, allow_singular: None = None) -> Array:
    """The logarithm of the density at x [..., n] for mean [..., n] and cov [..., n, n], or a number (a multiple of
    one).

    With a number as mean, that of numbers, not of vectors. NaN where `cov` is not positive definite. ValueError for
    shapes that do not fit, NotImplementedError for `allow_singular`.
    """
    if allow_singular is not None:
        raise NotImplementedError("allow_singular argument of multivariate_normal.logpdf")
    x, mean, cov = promote_dtypes_inexact("multivariate_normal.logpdf", x, mean, cov)
    if not mean.ndim:
        rest = x - mean
        return -0.5 * rest * rest / cov - 0.5 * (fn.LOG_2PI + log(cov))
    n = mean.shape[-1]
    if (cov.ndim and (cov.ndim < 2 or cov.shape[-2:] != (n, n))) or (x.ndim and x.shape[-1] not in (1, n)):
        raise ValueError("multivariate_normal.logpdf got incompatible shapes")
    shape = broadcast_shapes(x.shape, mean.shape)
    rest = broadcast_to(x, shape) - broadcast_to(mean, shape)
    if not cov.ndim:
        return -0.5 * _sum(rest * rest, axis=-1) / cov - 0.5 * n * (fn.LOG_2PI + log(cov))
    factor = cholesky(cov)
    y = triangular(factor, rest[..., None], lower=True)[..., 0]
    size = broadcast_to(_sum(log(diagonal(factor, 0, -2, -1)), axis=-1), y.shape[:-1])
    return -0.5 * _sum(y * y, axis=-1) - 0.5 * n * fn.LOG_2PI - size


def pdf(x: ArrayLike, mean: ArrayLike, cov: ArrayLike) -> Array:
    """The density at x [..., n] for mean [..., n] and cov [..., n, n], or a number."""
    return exp(logpdf(x, mean, cov))

globals().update(access(__name__, globals()))
