"""Densities estimated from samples, by a normal distribution around each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima import random, tree_util
from anima.core import dtypes
from anima.core.array import Array
from anima.nn.normalize import logsumexp
from anima.numpy.creation import full
from anima.numpy.diagonals import diagonal
from anima.numpy.functions import exp, log, sqrt
from anima.numpy.linalg import cholesky, inv
from anima.numpy.linear import matmul
from anima.numpy.manipulation import atleast_1d, atleast_2d, reshape
from anima.numpy.promote import as_array, promote_dtypes_inexact
from anima.numpy.reductions import sum as sum_of
from anima.numpy.stats import cov
from anima.ops import formula
from anima.scipy.linalg.solving import triangular
from anima.scipy.stats import functions as fn
from anima.typing import ArrayLike


@tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True, init=False, slots=True)
class gaussian_kde:
    """The density that samples [n], or vectors [d, n], come from: normal ones around each, of `covariance`.

    `bw_method` chooses the factor of the standard deviations: "scott" (the default), "silverman", a number, or a
    function of the object. `weights` [n] are those of the samples. TypeError or ValueError for what does not fit,
    NotImplementedError for complex samples.

    >>> kde = anima.scipy.stats.gaussian_kde(jnp.array([0.0, 1.0, 2.0]))
    >>> kde.integrate_box_1d(-jnp.inf, 1.0).round(3)
    Array(0.5, dtype=float32)
    """

    neff: Any
    dataset: Any
    weights: Any
    covariance: Any
    inv_cov: Any

    def __init__(self, dataset: ArrayLike, bw_method: str | Array | Callable[[Any], Array] | None = None,
                 weights: ArrayLike | None = None) -> None:
        data = atleast_2d(as_array(dataset, "gaussian_kde"))
        if dtypes.issubdtype(data.dtype, np.complexfloating):
            raise NotImplementedError("gaussian_kde does not support complex data")
        if not data.size > 1:
            raise ValueError("`dataset` input should have multiple elements.")
        d, n = data.shape
        if weights is not None:
            data, given = promote_dtypes_inexact("gaussian_kde", data, weights)
            given = atleast_1d(given)
            if given.ndim != 1:
                raise ValueError("`weights` input should be one-dimensional.")
            if given.shape[0] != n:
                raise ValueError("`weights` input should be of length n")
            given = given / sum_of(given)
        else:
            (data,) = promote_dtypes_inexact("gaussian_kde", data)
            given = full((n,), 1.0 / n, data.dtype)
        self._set("dataset", data)
        self._set("weights", given)
        self._set("neff", 1 / sum_of(given * given))
        factor = self._factor(bw_method, d)
        covariance = atleast_2d(cov(data, rowvar=True, bias=False, aweights=given)) * factor**2
        self._set("covariance", covariance)
        self._set("inv_cov", inv(covariance))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _factor(self, method: Any, d: int) -> Any:
        if method is None or method == "scott":
            return self.neff ** (-1.0 / (d + 4))
        if isinstance(method, str) and method == "silverman":
            return (self.neff * (d + 2) / 4.0) ** (-1.0 / (d + 4))
        if callable(method):
            return method(self)
        if not isinstance(method, str) and np.ndim(method) == 0:
            return method
        raise ValueError("`bw_method` should be 'scott', 'silverman', a scalar, or a callable.")

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        """The fields, as leaves."""
        return (self.neff, self.dataset, self.weights, self.covariance, self.inv_cov), None

    @classmethod
    def tree_unflatten(cls, aux_data: Any, children: Sequence[Any]) -> gaussian_kde:
        """The object with these fields."""
        kde = cls.__new__(cls)
        for field, value in zip(dataclasses.fields(cls), children, strict=True):
            kde._set(field.name, value)
        return kde

    @property
    def d(self) -> int:
        """How many components a sample has."""
        return self.dataset.shape[0]

    @property
    def n(self) -> int:
        """How many samples there are."""
        return self.dataset.shape[1]

    def _points(self, points: ArrayLike) -> Array:
        x = atleast_2d(as_array(points, "gaussian_kde"))
        if x.ndim > 2:
            raise ValueError("`points` must have at most two dimensions")
        if x.shape[0] != self.d:
            if x.shape != (1, self.d):
                raise ValueError(f"points have dimension {x.shape[0]}, dataset has dimension {self.d}")
            x = reshape(x, (self.d, 1))
        return promote_dtypes_inexact("gaussian_kde", x, self.dataset)[0]

    def logpdf(self, x: ArrayLike) -> Array:
        """The logarithms of the density at points [d, m], or at one [d]: [m]."""
        return _log_density(self._points(x), self.dataset, self.covariance, self.weights)

    def evaluate(self, points: ArrayLike) -> Array:
        """The density at points [d, m], or at one [d]: [m]."""
        return exp(self.logpdf(points))

    def __call__(self, points: ArrayLike) -> Array:
        """The density at points [d, m], or at one [d]: [m]."""
        return self.evaluate(points)

    def pdf(self, x: ArrayLike) -> Array:
        """The density at points [d, m], or at one [d]: [m]."""
        return self.evaluate(x)

    def integrate_gaussian(self, mean: ArrayLike, cov: ArrayLike) -> Array:
        """The integral of the density times that of a normal distribution."""
        mean, covariance = atleast_1d(as_array(mean, "mean")), atleast_2d(as_array(cov, "cov"))
        if mean.shape != (self.d,):
            raise ValueError(f"mean does not have dimension {self.d}")
        if covariance.shape != (self.d, self.d):
            raise ValueError(f"covariance does not have dimension {self.d}")
        points = self._points(mean[:, None])
        return exp(_log_density(points, self.dataset, self.covariance + covariance, self.weights))[0]

    def integrate_box_1d(self, low: ArrayLike, high: ArrayLike) -> Array:
        """The probability between two numbers, of samples that are numbers; else ValueError."""
        if self.d != 1:
            raise ValueError("integrate_box_1d() only handles 1D pdfs")
        if np.ndim(low) or np.ndim(high):
            raise ValueError("the limits of integration in integrate_box_1d must be scalars")
        sigma = sqrt(self.covariance[0, 0])
        low, high = (formula.ndtr((x - self.dataset[0]) / sigma) for x in (low, high))
        return sum_of(self.weights * (high - low))

    def integrate_kde(self, other: gaussian_kde) -> Array:
        """The integral of the product with another density."""
        if other.d != self.d:
            raise ValueError("KDEs are not the same dimensionality")
        each = _log_density(other.dataset, self.dataset, self.covariance + other.covariance, self.weights)
        return sum_of(exp(each) * other.weights)

    def resample(self, key: Any, shape: Sequence[int] = ()) -> Array:
        """Samples [d, *shape] of the density."""
        which_key, noise_key = random.split(key)
        which = random.choice(which_key, self.n, shape, p=self.weights)
        noise = random.normal(noise_key, (self.d, *which.shape), self.dataset.dtype)
        spread = matmul(cholesky(self.covariance), reshape(noise, (self.d, -1)))
        return self.dataset[:, which] + reshape(spread, noise.shape)

    def integrate_box(self, low_bounds: Any, high_bounds: Any, maxpts: Any = None) -> Any:
        """Not there: NotImplementedError; see `integrate_box_1d`."""
        raise NotImplementedError("only 1D box integrations are supported; use `integrate_box_1d`")

    def set_bandwidth(self, bw_method: Any = None) -> Any:
        """Not there: NotImplementedError; make a new object."""
        raise NotImplementedError("dynamically changing the bandwidth method is not supported")


def _log_density(points: Array, centres: Array, covariance: Array, weights: Array) -> Array:
    """log of the sum of weighted normal densities around `centres` [d, n], at points [d, m]."""
    points, centres, covariance, weights = promote_dtypes_inexact("gaussian_kde", points, centres, covariance, weights)
    factor = cholesky(covariance)
    x, y = (triangular(factor, v, lower=True) for v in (points, centres))
    rest = x[:, None, :] - y[:, :, None]
    constant = 0.5 * len(x) * fn.LOG_2PI + sum_of(log(diagonal(factor)))
    return logsumexp(-0.5 * sum_of(rest * rest, axis=0), axis=0, b=weights[:, None]) - constant
