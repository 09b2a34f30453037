"""Linear algebra, as `numpy.linalg`: batches of matrices in the last two axes, differentiated and compiled.

    >>> jnp.linalg.solve(jnp.eye(2) * 2, jnp.ones(2))
    Array([0.5, 0.5], dtype=float32)

Nothing raises for values: a matrix that is not positive definite has a Cholesky factor of NaN.
"""

from __future__ import annotations

from typing import Any

from anima import errors as _errors
from anima.api.eager import repeated
from anima.core.array import Array
from anima.numpy import diagonals as _diagonals, linear as _linear
from anima.numpy.linalg.decompositions import (
    cholesky,
    eig,
    eigh,
    eigvals,
    eigvalsh,
    qr,
    svd,
    svdvals,
)
from anima.numpy.linalg.norms import matrix_norm, norm, vector_norm
from anima.numpy.linalg.solving import (
    cond,
    det,
    inv,
    lstsq,
    matrix_power,
    matrix_rank,
    multi_dot,
    pinv,
    slogdet,
    solve,
    tensorinv,
    tensorsolve,
)
from anima.numpy.linear import matmul, tensordot, vecdot
from anima.numpy.manipulation import matrix_transpose
from anima.numpy.promote import as_arrays as _as_arrays


@repeated
def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Array:
    """The cross product of vectors of 3 components along `axis`; ValueError for other sizes."""
    x1, x2 = _as_arrays("cross", x1, x2)
    if x1.shape[axis] != 3 or x2.shape[axis] != 3:
        raise ValueError("Both input arrays must be (arrays of) 3-dimensional vectors, but they have "
                         f"{x1.shape[axis]=} and {x2.shape[axis]=}")
    return _linear.cross(x1, x2, axis=axis)


@repeated
def outer(x1: Any, x2: Any, /) -> Array:
    """The matrix of products of the elements of two vectors; ValueError if they are not one-dimensional."""
    x1, x2 = _as_arrays("outer", x1, x2)
    if x1.ndim != 1 or x2.ndim != 1:
        raise ValueError(f"Input arrays must be one-dimensional, but they are {x1.ndim=} {x2.ndim=}")
    return _linear.outer(x1, x2)


def diagonal(x: Any, /, *, offset: int = 0) -> Array:
    """The diagonals of the matrices in the last two axes."""
    return _diagonals.diagonal(x, offset, -2, -1)


@repeated
def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Array:
    """The sums along the diagonals of the matrices in the last two axes."""
    return _diagonals.trace(x, offset, -2, -1, dtype)


globals().update(_errors.public_face(__name__, globals()))  # errors show the user's frames only

__all__ = [
    "cholesky", "cond", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "inv", "lstsq", "matmul",
    "matrix_norm", "matrix_power", "matrix_rank", "matrix_transpose", "multi_dot", "norm", "outer", "pinv", "qr",
    "slogdet", "solve", "svd", "svdvals", "tensordot", "tensorinv", "tensorsolve", "trace", "vecdot", "vector_norm"]
