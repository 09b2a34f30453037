"""Decompositions and solvers under the names of `jax.lax.linalg`: no promotion, matrices in the last two axes."""

from __future__ import annotations

from typing import Any

from anima import errors as _errors
from anima.core.array import Array
from anima.ops.broadcast import shape_of
from anima.ops.contract import batch_matmul
from anima.ops.elementwise import add, mul
from anima.ops.linalg import (
    cholesky as cholesky,
    cholesky_p as cholesky_p,
    lower_part,
    matrix_transpose,
    strictly_lower,
    triangular_solve as triangular_solve,
    triangular_solve_p as triangular_solve_p,
)
from anima.ops.linalg_factor import (
    geqrf_p as geqrf_p,
    householder_product as householder_product,
    householder_product_p as householder_product_p,
    lu as lu,
    lu_p as lu_p,
    lu_pivots_to_permutation as lu_pivots_to_permutation,
    lu_pivots_to_permutation_p as lu_pivots_to_permutation_p,
    qr as qr,
    qr_p as qr_p,
)
from anima.ops.linalg_spectral import (
    eig as eig,
    eig_p as eig_p,
    eigh as eigh,
    eigh_p as eigh_p,
    svd as svd,
    svd_p as svd_p,
)


def symmetric_product(a_matrix: Any, c_matrix: Any, *, alpha: float = 1.0, beta: float = 0.0,
                      symmetrize_output: bool = False) -> Array:
    """alpha A A^T + beta C for A [..., n, k] and symmetric C [..., n, n].

    With `symmetrize_output` exactly symmetric: the lower triangle is copied to the upper one.
    """
    shape = shape_of(a_matrix)
    if len(shape) < 2 or shape_of(c_matrix) != (*shape[:-1], shape[-2]):
        raise ValueError("symmetric_product requires shapes [..., n, k] and [..., n, n], "
                         f"got {shape} and {shape_of(c_matrix)}")
    out = add(mul(batch_matmul(a_matrix, matrix_transpose(a_matrix)), alpha), mul(c_matrix, beta))
    return add(lower_part(out), matrix_transpose(strictly_lower(out))) if symmetrize_output else out


globals().update(_errors.public_face(__name__, globals()))  # errors show the user's frames only
