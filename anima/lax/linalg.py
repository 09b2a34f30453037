"""Decompositions and solvers under the names of `jax.lax.linalg`: no promotion, matrices in the last two axes."""

from __future__ import annotations

from anima import errors as _errors
from anima.api.eager import compiled as _compiled
from anima.control.elimination import (
    cholesky_update as cholesky_update,
    cholesky_update_p as cholesky_update_p,
    tridiagonal_solve as tridiagonal_solve,
    tridiagonal_solve_p as tridiagonal_solve_p,
)
from anima.control.polar import qdwh as qdwh
from anima.control.similar import (
    hessenberg as hessenberg,
    hessenberg_p as hessenberg_p,
    schur as schur,
    schur_p as schur_p,
    tridiagonal as tridiagonal,
    tridiagonal_p as tridiagonal_p,
)
from anima.ops.linalg import (
    cholesky as cholesky,
    cholesky_p as cholesky_p,
    symmetric_product as symmetric_product,
    symmetric_product_p as symmetric_product_p,
    triangular_solve as triangular_solve,
    triangular_solve_p as triangular_solve_p,
)
from anima.ops.linalg_factor import (
    lu as lu,
    lu_p as lu_p,
    lu_pivots_to_permutation as lu_pivots_to_permutation,
    lu_pivots_to_permutation_p as lu_pivots_to_permutation_p,
    qr as qr,
    qr_p as qr_p,
)
from anima.ops.linalg_reflect import (
    geqrf_p as geqrf_p,
    householder_product as householder_product,
    householder_product_p as householder_product_p,
    ormqr as ormqr,
    ormqr_p as ormqr_p,
)
from anima.ops.linalg_spectral import (
    EighImplementation as EighImplementation,
    EigImplementation as EigImplementation,
    SvdAlgorithm as SvdAlgorithm,
    eig as eig,
    eig_p as eig_p,
    eigh as eigh,
    eigh_p as eigh_p,
    svd as svd,
    svd_p as svd_p,
)

for _name in ("cholesky", "eig", "eigh", "hessenberg", "householder_product", "lu", "ormqr", "qr", "schur", "svd",
              "triangular_solve", "tridiagonal"):
    globals()[_name] = _compiled(globals()[_name])  # with the bits that they have inside of `jit`
qdwh = _compiled(qdwh, ("max_iterations", "eps"))
globals().update(_errors.public_face(__name__, globals()))  # errors show the user's frames only
