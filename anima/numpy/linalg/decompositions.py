"""Decompositions, as NumPy names them: Cholesky, QR, singular values, eigenvalues."""

from __future__ import annotations

from typing import Any, NamedTuple

from anima.api.eager import compiled
from anima.core.array import Array
from anima.numpy.elementwise import conj
from anima.numpy.manipulation import matrix_transpose
from anima.numpy.promote import promote_dtypes_inexact
from anima.numpy.selection import take_along_axis
from anima.numpy.sorting import argsort
from anima.ops import (
    elementwise as ew,
    linalg as la,
    linalg_factor as factor,
    linalg_reflect as reflect,
    linalg_spectral as spectral,
    shape as sh,
)

ArrayLike = Any


class EighResult(NamedTuple):
    """Results of `eigh`."""

    eigenvalues: Array
    eigenvectors: Array


class EigResult(NamedTuple):
    """Results of `eig`."""

    eigenvalues: Array
    eigenvectors: Array


class QRResult(NamedTuple):
    """Results of `qr`."""

    Q: Array
    R: Array


class SVDResult(NamedTuple):
    """Results of `svd`."""

    U: Array
    S: Array
    Vh: Array


@compiled
def cholesky(a: ArrayLike, *, upper: bool = False, symmetrize_input: bool = True) -> Array:
    """The lower triangular L with L L^H = a (or U = L^H with `upper`), for Hermitian positive definite a [..., n, n].

    NaN where `a` is not positive definite. With `symmetrize_input`, that of (a + a^H) / 2; without, only the lower
    triangle (the upper one with `upper`) is looked at. TypeError or ValueError if `a` is not square.

    >>> jnp.linalg.cholesky(jnp.array([[4.0, 2.0], [2.0, 5.0]]))
    Array([[2., 0.],
           [1., 2.]], dtype=float32)
    """
    (a,) = promote_dtypes_inexact("cholesky", a)
    if not upper:
        return la.cholesky(a, symmetrize_input=symmetrize_input)
    return conj(matrix_transpose(la.cholesky(conj(matrix_transpose(a)), symmetrize_input=symmetrize_input)))


@compiled
def qr(a: ArrayLike, mode: str = "reduced") -> Any:
    """(Q, R) with a = Q R for a [..., m, n]: Q with orthonormal columns, R upper triangular.

    `mode`: "reduced" (or "full"; k = min(m, n) columns of Q), "complete" (m), "r" (R alone), or "raw": LAPACK's
    reflections, transposed, and their factors. ValueError for another mode, TypeError below two dimensions.
    """
    (a,) = promote_dtypes_inexact("qr", a)
    mode = "reduced" if mode == "full" else mode  # as it was called before
    if mode == "raw":
        packed, taus = reflect.geqrf(a)
        return QRResult(matrix_transpose(packed), taus)
    if mode not in ("reduced", "r", "complete"):
        raise ValueError(f"Unsupported QR decomposition mode '{mode}'")
    q, r = factor.qr(a, full_matrices=mode == "complete")
    return r if mode == "r" else QRResult(q, r)


@compiled
def svd(a: ArrayLike, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False,
        subset_by_index: tuple[int, int] | None = None) -> Any:
    """(U, S, Vh) with a = U diag(S) Vh for a [..., m, n], S descending; only S without `compute_uv`.

    U is [..., m, m] and Vh [..., n, n], or [..., m, k] and [..., k, n] with k = min(m, n) without `full_matrices`.
    `hermitian` says that `a` is, which is faster. TypeError below two dimensions.
    """
    (a,) = promote_dtypes_inexact("svd", a)
    if not hermitian or subset_by_index is not None:
        out = spectral.svd(a, full_matrices=full_matrices, compute_uv=compute_uv, subset_by_index=subset_by_index)
        return SVDResult(*out) if compute_uv else out
    vectors, values = spectral.eigh(a)
    sizes = ew.abs(values)
    order = argsort(ew.neg(sizes), axis=-1)
    sizes = take_along_axis(sizes, order, axis=-1)
    if not compute_uv:
        return sizes
    signs = ew.convert(ew.sign(take_along_axis(values, order, axis=-1)), a.dtype)
    u = take_along_axis(vectors, sh.expand_dims(order, (order.ndim - 1,)), axis=-1)
    return SVDResult(u, sizes, conj(matrix_transpose(ew.mul(u, sh.expand_dims(signs, (signs.ndim - 1,))))))


@compiled
def svdvals(x: ArrayLike, /) -> Array:
    """The singular values of x [..., m, n], descending."""
    return svd(x, compute_uv=False)


@compiled
def eigh(a: ArrayLike, UPLO: str | None = None, symmetrize_input: bool = True) -> EighResult:
    """Real eigenvalues, ascending, and orthonormal eigenvectors (columns) of Hermitian a [..., n, n].

    Those of (a + a^H) / 2 with `symmetrize_input`; without, of the triangle that UPLO ("L", the default, or "U")
    names. ValueError for another UPLO, TypeError or ValueError if `a` is not square.

    >>> jnp.linalg.eigh(jnp.array([[2.0, 0.0], [0.0, 1.0]])).eigenvalues
    Array([1., 2.], dtype=float32)
    """
    if UPLO not in (None, "L", "U"):
        raise ValueError(f"UPLO must be one of None, 'L', or 'U', got {UPLO}")
    (a,) = promote_dtypes_inexact("eigh", a)
    v, w = spectral.eigh(a, lower=UPLO != "U", symmetrize_input=symmetrize_input)
    return EighResult(w, v)


@compiled
def eigvalsh(a: ArrayLike, UPLO: str | None = "L", *, symmetrize_input: bool = True) -> Array:
    """The eigenvalues of Hermitian a [..., n, n], ascending; see `eigh`."""
    return eigh(a, UPLO, symmetrize_input).eigenvalues


@compiled
def eig(a: ArrayLike) -> EigResult:
    """Complex eigenvalues, in no order, and eigenvectors (columns, of length 1) of a [..., n, n].

    Eigenvectors have no derivatives here: see `anima.lax.linalg.eig`. ValueError if `a` is not square.
    """
    (a,) = promote_dtypes_inexact("eig", a)
    w, v = spectral.eig(a, compute_left_eigenvectors=False)
    return EigResult(w, v)


@compiled
def eigvals(a: ArrayLike) -> Array:
    """The complex eigenvalues of a [..., n, n], in no order. ValueError if `a` is not square."""
    (a,) = promote_dtypes_inexact("eigvals", a)
    return spectral.eig(a, compute_left_eigenvectors=False, compute_right_eigenvectors=False)[0]
