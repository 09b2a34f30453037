"""Eigenvectors and systems of equations of sparse matrices.

    >>> from anima.experimental.sparse import linalg
    >>> linalg.spsolve(jnp.array([2., 4.]), jnp.array([0, 1]), jnp.array([0, 1, 2]), jnp.ones(2))
    Array([0.5 , 0.25], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from anima import errors, lax, numpy as jnp
from anima.api.effects import pure_callback
from anima.api.stages import ShapeDtypeStruct
from anima.core import dtypes
from anima.core.array import Array
from anima.experimental.sparse.csr import CSR, csr_matvec
from anima.names import access
from anima.transforms.composed import Composed


@errors.api_boundary
def lobpcg_standard(A: Any, X: Any, m: int = 100, tol: float | None = None) -> tuple[Array, Array, Array]:
    """The largest eigenvalues of a symmetric matrix, with eigenvectors, from products with it alone.

    Args:
      A: a symmetric positive semidefinite matrix [n, n], dense or sparse, or a function of matrices [n, j] that
        multiplies it with them.
      X: [n, k], of full rank, 5 k < n: where the search begins.
      m: the most steps.
      tol: a pair has converged when the norm of its residual is at most `tol` times 10 n (norm of A x + eigenvalue);
        by default, the precision of the dtype.

    Returns:
      (eigenvalues [k], the largest first; eigenvectors [n, k]; the number of steps).

    Raises:
      ValueError, TypeError: for shapes and dtypes that do not fit.

    Source: Knyazev, "Toward the optimal preconditioned eigensolver: locally optimal block preconditioned conjugate
    gradient method" (2001), without a preconditioner; the basis of each step is made orthonormal by QR, as in
    Duersch et al., "A robust and efficient implementation of LOBPCG" (2018).
    """
    X = jnp.asarray(X)
    if X.ndim != 2:
        raise ValueError(f"lobpcg_standard: X must be a matrix, got shape {X.shape}.")
    n, k = X.shape
    if not dtypes.issubdtype(X.dtype, np.floating) or X.dtype.itemsize < 4:
        raise TypeError(f"lobpcg_standard: X must be of float32 or float64, got {dtypes.name(X.dtype)}.")
    if not 0 < 5 * k < n:
        raise ValueError(f"lobpcg_standard: 5 k must be less than n, and k positive; X has the shape {X.shape}.")
    if not callable(A) and A.shape != (n, n):
        raise ValueError(f"lobpcg_standard: A must have the shape {(n, n)}, got {A.shape}.")
    multiply: Callable[[Any], Any] = A if callable(A) else lambda x: A @ x
    small = float(dtypes.finfo(X.dtype).eps) if tol is None else tol

    def best(basis: Any) -> tuple[Any, Any, Any]:
        """Of orthonormal vectors: the largest eigenvalues in their span, and their coordinates; their images."""
        image = multiply(basis)
        inner = basis.T @ image
        values, vectors = jnp.linalg.eigh((inner + inner.T) / 2)
        return values[::-1][:k], vectors[:, ::-1][:, :k], image

    def advance(state: Any) -> Any:
        step, x, direction, residual, _, _ = state
        basis, _ = jnp.linalg.qr(jnp.concatenate([x, residual, direction], 1))
        values, coordinates, image = best(basis)
        new = basis @ coordinates
        residual = image @ coordinates - new * values
        done = _done(values, image @ coordinates, residual)
        return step + 1, new, basis[:, k:] @ coordinates[k:], residual, values, done

    def _done(values: Any, image: Any, residual: Any) -> Any:
        scale = jnp.linalg.norm(image, axis=0) + jnp.abs(values)
        return jnp.all(jnp.linalg.norm(residual, axis=0) <= small * 10 * n * scale)

    basis, _ = jnp.linalg.qr(X)
    values, coordinates, image = best(basis)
    x, image = basis @ coordinates, image @ coordinates
    residual = image - x * values
    state = (jnp.zeros((), np.int32), x, jnp.zeros_like(x), residual, values, jnp.zeros((), bool))
    step, x, _, _, values, _ = lax.while_loop(lambda s: (s[0] < m) & ~s[5], advance, state)
    return values, x, step


@errors.api_boundary
def spsolve(data: Any, indices: Any, indptr: Any, b: Any, tol: float = 1e-6, reorder: int = 1) -> Array:
    """The solution of a sparse system of equations, by SciPy's direct solver (SuperLU), also within compiled programs.

    Derivatives by `data` and `b` are those of what the system says.

    Args:
      data, indices, indptr: a square matrix by rows, as of `CSR`.
      b: the right-hand side, a vector.
      tol: a matrix is singular if a pivot is as small; SuperLU decides that itself, so that this changes nothing.
      reorder: 0 for no reordering; 1, 2 and 3: by column approximate minimum degree.

    Raises:
      TypeError, ValueError: for dtypes other than float32, float64, complex64 and complex128, shapes that do not fit,
      another `reorder`.
    """
    data, indices, indptr, b = map(jnp.asarray, (data, indices, indptr, b))
    data, b = _promoted(data, b)
    n = b.shape[0] if b.ndim == 1 else -1
    if data.ndim != 1 or indices.shape != data.shape or indptr.shape != (n + 1,):
        raise ValueError(f"spsolve: data {data.shape}, indices {indices.shape}, indptr {indptr.shape} and b {b.shape} "
                         "do not make a system of equations.")
    if reorder not in (0, 1, 2, 3):
        raise ValueError(f"spsolve: reorder must be 0, 1, 2 or 3, got {reorder!r}.")
    kept = [lax.stop_gradient(x) for x in (data, indices, indptr)]

    def solve(rhs: Any, transposed: bool) -> Any:
        def call(*arrays: Any) -> np.ndarray:
            return _superlu(*arrays, transposed=transposed, natural=reorder == 0)

        return pure_callback(call, ShapeDtypeStruct(rhs.shape, rhs.dtype), *kept, rhs, vmap_method="sequential")

    mat = CSR((data, indices, indptr), shape=(n, n))
    return lax.custom_linear_solve(
        lambda x: csr_matvec(mat, x), b, lambda _, rhs: solve(rhs, False), lambda _, rhs: solve(rhs, True))


spsolve_p = Composed("spsolve", spsolve)


def _promoted(data: Any, b: Any) -> tuple[Any, Any]:
    dtype = jnp.result_type(data, b)
    if dtypes.name(dtype) not in ("float32", "float64", "complex64", "complex128"):
        raise TypeError(f"spsolve is for float32, float64, complex64 and complex128, got {dtypes.name(dtype)}.")
    return data.astype(dtype), b.astype(dtype)


def _superlu(data: Any, indices: Any, indptr: Any, b: Any, *, transposed: bool, natural: bool) -> np.ndarray:
    """The solution for one right-hand side, by SciPy."""
    from scipy.sparse import csr_array
    from scipy.sparse.linalg import spsolve as solve
    values, right = np.asarray(data), np.asarray(b)
    mat = csr_array((values, np.asarray(indices), np.asarray(indptr)), shape=(len(right), len(right)))
    if transposed:
        mat = mat.T.tocsr()
    return np.asarray(solve(mat, right, permc_spec="NATURAL" if natural else "COLAMD")).astype(right.dtype)

globals().update(access(__name__, globals()))
