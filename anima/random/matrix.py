"""Random vectors and matrices that need a matrix decomposition."""

from __future__ import annotations

from typing import Any

import anima.numpy as jnp
from anima.core.avals import Shape
from anima.numpy.promote import promote_dtypes_inexact
from anima.ops.broadcast import as_shape
from anima.ops.family import WIDER
from anima.random.draws import common_shape, draw_normal, float_dtype, normal_dtype, sampler


@sampler()
def multivariate_normal(key: Any, mean: Any, cov: Any, shape: Any = None, dtype: Any = None,
                        method: str = "cholesky") -> Any:
    """Normal vectors of mean `mean` [..., n] and covariance `cov` [..., n, n].

    `shape` is that of the batch of vectors, by default the one that `mean` and `cov` have together. `method`
    is the factorization of `cov`: "cholesky" (the fastest), "eigh", or "svd" (for nearly singular ones).
    What `mean`, `cov` and normal numbers of `dtype` promote to is the dtype of the result.
    """
    dtype = float_dtype("multivariate_normal", dtype)
    if method not in ("svd", "eigh", "cholesky"):
        raise ValueError("method must be one of {'svd', 'eigh', 'cholesky'}")
    mean, cov = promote_dtypes_inexact("multivariate_normal", jnp.asarray(mean), jnp.asarray(cov))
    if mean.ndim < 1:
        raise ValueError(f"multivariate_normal requires mean.ndim >= 1, got mean.ndim == {mean.ndim}")
    n = mean.shape[-1]
    if cov.ndim < 2 or cov.shape[-2:] != (n, n):
        raise ValueError(f"multivariate_normal requires cov.shape == (..., n, n) for n={n}, got {cov.shape}")
    batch = common_shape("multivariate_normal", shape, jnp.zeros(mean.shape[:-1]), jnp.zeros(cov.shape[:-2]))
    standard = draw_normal(key, (*batch, n), dtype)
    return mean + jnp.einsum("...ij,...j->...i", _root(cov, method), standard)


def _root(cov: Any, method: str) -> Any:
    """A matrix A with A A^T = cov; LAPACK has no floats of 16 bits."""
    dtype = cov.dtype
    cov = cov.astype(WIDER.get(dtype, dtype))
    if method == "cholesky":
        return jnp.linalg.cholesky(cov).astype(dtype)
    if method == "eigh":
        values, vectors = jnp.linalg.eigh(cov)
    else:
        vectors, values, _ = jnp.linalg.svd(cov)
    return (vectors * jnp.sqrt(values[..., None, :])).astype(dtype)


@sampler("n", "m")
def orthogonal(key: Any, n: int, shape: Any = (), dtype: Any = None, m: int | None = None) -> Any:
    """Matrices [*shape, n, m] with orthonormal rows or columns, whichever are fewer; `m` is `n` by default.

    Uniformly distributed (Mezzadri, "How to generate random matrices from the classical compact groups", 2007).
    """
    dtype = normal_dtype("orthogonal", dtype)
    m = n if m is None else m
    tall = draw_orthonormal(key, as_shape(shape), max(n, m), min(n, m), dtype)
    return tall if n >= m else jnp.swapaxes(tall, -1, -2)


def draw_orthonormal(key: Any, shape: Shape, rows: int, columns: int, dtype: Any) -> Any:
    """Matrices with orthonormal columns: Q of the QR decomposition of normal ones, with the signs of R's diagonal."""
    q, r = jnp.linalg.qr(draw_normal(key, (*shape, rows, columns), dtype))
    return q * jnp.sign(jnp.diagonal(r, axis1=-2, axis2=-1))[..., None, :]
