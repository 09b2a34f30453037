"""Systems of equations: by factors that are known, for triangles, for positive definite matrices; Sylvester's."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from anima.control import similar
from anima.core.array import Array
from anima.numpy import linalg as jnp_linalg
from anima.numpy.creation import asarray
from anima.numpy.diagonals import diagonal
from anima.numpy.elementwise import abs
from anima.numpy.linear import matmul
from anima.numpy.manipulation import broadcast_shapes, broadcast_to, moveaxis, reshape
from anima.numpy.promote import as_array, is_complex, promote_dtypes, promote_dtypes_inexact
from anima.numpy.reductions import min as min_of
from anima.numpy.selection import where
from anima.ops import elementwise as ew, linalg as la, linalg_factor as factor, linalg_spectral as spectral, shape as sh
from anima.ops.linalg_systems import sylvester_p
from anima.scipy.linalg.decompositions import cho_factor
from anima.scipy.linalg.operands import of_matrices
from anima.transforms.custom import custom_jvp
from anima.typing import ArrayLike


@of_matrices
def det(a: ArrayLike, overwrite_a: bool = False, check_finite: bool = True) -> Array:
    """The determinants of a [..., n, n]. ValueError if `a` is not square; the other arguments make no difference."""
    return jnp_linalg.det(a)


@of_matrices
def inv(a: ArrayLike, overwrite_a: bool = False, check_finite: bool = True) -> Array:
    """The inverses of a [..., n, n]; infinities and NaN where there is none. ValueError if `a` is not square; the other
    arguments make no difference."""
    return jnp_linalg.inv(a)


def _columns(a: Array, b: Array, name: str) -> tuple[Array, bool]:
    """The right sides as columns, and whether they were vectors: of one dimension, or of one less than `a` has where
    their length fits."""
    vector = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape[-1] == a.shape[-1])
    if a.ndim < 2 or not b.ndim or b.shape[-1 if vector else -2] != a.shape[-1]:
        raise ValueError(f"{name}: inconsistent sizes of a matrix of shape {a.shape} and right sides of {b.shape}")
    return (sh.expand_dims(b, (b.ndim,)) if vector else b), vector


def triangular(a: Array, b: Array, **flags: bool) -> Array:
    """Solutions for triangular `a`, with broadcasting; one matrix is solved with for all right sides at once."""
    if a.ndim == 2 and b.ndim > 2:
        columns = moveaxis(b, -2, 0)
        flat = la.triangular_solve(a, reshape(columns, (columns.shape[0], -1)), left_side=True, **flags)
        return moveaxis(reshape(flat, columns.shape), 0, -2)
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b))
    return la.triangular_solve(a, b, left_side=True, **flags)


@of_matrices
def solve_triangular(a: ArrayLike, b: ArrayLike, trans: int | str = 0, lower: bool = False, unit_diagonal: bool = False,
                     overwrite_b: bool = False, debug: Any = None, check_finite: bool = True) -> Array:
    """x with op(a) x = b, for triangular a [..., n, n] and b [..., n] or [..., n, k]; leading axes broadcast.

    op is the identity (`trans` 0 or "N"), transposes (1 or "T") or also conjugates (2 or "C"). Only the triangle that
    `lower` says is looked at, with ones on the diagonal if `unit_diagonal`. ValueError for another `trans`, or if sizes
    do not fit; the other arguments make no difference.

    >>> solve_triangular(jnp.array([[2.0, 1.0], [0.0, 4.0]]), jnp.array([4.0, 8.0]))
    Array([1., 2.], dtype=float32)
    """
    if trans not in (0, 1, 2, "N", "T", "C"):
        raise ValueError(f"Invalid 'trans' value {trans}")
    a, b = promote_dtypes_inexact("solve_triangular", a, b)
    b, vector = _columns(a, b, "solve_triangular")
    x = triangular(a, b, lower=lower, transpose_a=trans not in (0, "N"), conjugate_a=trans in (2, "C"),
                    unit_diagonal=unit_diagonal)
    return x[..., 0] if vector else x


def cho_solve(c_and_lower: tuple[ArrayLike, bool], b: ArrayLike, overwrite_b: bool = False,
              check_finite: bool = True) -> Array:
    """x with a x = b, by the result of `cho_factor(a)`, for b [..., n] or [..., n, k]; leading axes broadcast.

    ValueError if sizes do not fit; the other arguments make no difference.
    """
    c, lower = c_and_lower
    return _cho_solve(asarray(c), lower, asarray(b))


@of_matrices
def _cho_solve(c: ArrayLike, lower: bool, b: ArrayLike) -> Array:
    c, b = promote_dtypes_inexact("cho_solve", c, b)
    la.check_square("cho_solve", c.aval)
    b, vector = _columns(c, b, "cho_solve")
    half = triangular(c, b, lower=lower, transpose_a=not lower, conjugate_a=not lower)
    x = triangular(c, half, lower=lower, transpose_a=bool(lower), conjugate_a=bool(lower))
    return x[..., 0] if vector else x


def lu_solve(lu_and_piv: tuple[ArrayLike, ArrayLike], b: ArrayLike, trans: int = 0, overwrite_b: bool = False,
             check_finite: bool = True) -> Array:
    """x with op(a) x = b, by the result of `lu_factor(a)`, for b [..., n] or [..., n, k]; leading axes broadcast.

    op is the identity (`trans` 0), transposes (1), or also conjugates (2). ValueError for another `trans`, or if sizes
    do not fit; the other arguments make no difference.
    """
    if trans not in (0, 1, 2):
        raise ValueError(f"'trans' value must be 0, 1, or 2, got {trans}")
    lu, pivots = lu_and_piv
    return _lu_solve(asarray(lu), asarray(pivots), asarray(b), trans)


@of_matrices
def _lu_solve(lu: ArrayLike, pivots: ArrayLike, b: ArrayLike, trans: int) -> Array:
    lu, b = promote_dtypes_inexact("lu_solve", lu, b)
    if lu.ndim < 2 or lu.shape[-1] != lu.shape[-2]:
        raise ValueError(f"lu_solve: the factors must be those of square matrices, got shape {lu.shape}")
    b, vector = _columns(lu, b, "lu_solve")
    if not b.size:
        return b[..., 0] if vector else b
    n = lu.shape[-1]
    order = factor.lu_pivots_to_permutation(as_array(pivots), n)
    batch = broadcast_shapes(order.shape[:-1], b.shape[:-2])
    order, b = broadcast_to(order, (*batch, n)), broadcast_to(b, (*batch, *b.shape[-2:]))
    if trans == 0:
        half = triangular(lu, la.take_rows(b, order), lower=True, unit_diagonal=True)
        x = triangular(lu, half, lower=False)
    else:
        flags = {"transpose_a": True, "conjugate_a": trans == 2}
        half = triangular(lu, b, lower=False, **flags)
        x = triangular(lu, half, lower=True, unit_diagonal=True, **flags)
        places = sh.broadcasted_iota(order.dtype, (*batch, n, n), len(batch))
        back = ew.convert(sh.expand_dims(order, (len(batch),)) == places, x.dtype)
        x = matmul(back, x)
    return x[..., 0] if vector else x


@of_matrices
def solve(a: ArrayLike, b: ArrayLike, lower: bool = False, overwrite_a: bool = False, overwrite_b: bool = False,
          debug: bool = False, check_finite: bool = True, assume_a: str = "gen") -> Array:
    """x with a x = b for a [..., n, n] and b [n] or [..., n, k]; infinities and NaN where `a` is singular.

    `assume_a` is "gen", "sym" or "her", which are all the same here, or "pos" for positive definite matrices, of which
    only the triangle that `lower` says is looked at; their derivatives are those of whole matrices, too. ValueError for
    another, or if sizes do not fit; the other arguments make no difference.
    """
    kinds = ["gen", "sym", "her", "pos"]
    if assume_a not in kinds:
        raise ValueError(f"Expected assume_a to be one of {kinds}; got {assume_a!r}")
    if assume_a != "pos":
        return jnp_linalg.solve(a, b)
    a, b = promote_dtypes_inexact("solve", a, b)
    la.check_square("solve", a.aval)
    b, vector = _columns(a, b, "solve")
    x = _positive(a, b, lower)
    return x[..., 0] if vector else x


@functools.partial(custom_jvp, nondiff_argnums=(2,))
def _positive(a: Array, b: Array, lower: bool) -> Array:
    return cho_solve(cho_factor(a, lower), b)


@_positive.defjvp
def _positive_jvp(lower: bool, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    (a, b), (da, db) = primals, tangents
    x = _positive(a, b, lower)
    return x, _positive(a, db - matmul(da, x), lower)


# ---------------------------------------------------------------- Sylvester's equation


@of_matrices
def solve_sylvester(A: ArrayLike, B: ArrayLike, C: ArrayLike, *, method: str = "schur", tol: float = 1e-8) -> Array:
    """X with A X + X B = C for A [..., m, m], B [..., n, n] and C [..., m, n]; leading axes broadcast.

    NaN where the sum of an eigenvalue of A and one of B is smaller than `tol`. `method` is "schur" (Bartels and
    Stewart, 1972), or "eigen", which is less accurate where eigenvectors are nearly parallel. ValueError for another,
    or if sizes do not fit.

    >>> solve_sylvester(2 * jnp.eye(2), jnp.eye(2), jnp.array([[3.0, 6.0], [0.0, 3.0]]))
    Array([[1., 2.],
           [0., 1.]], dtype=float32)
    """
    a, b, c = promote_dtypes_inexact("solve_sylvester", A, B, C)
    if min(a.ndim, b.ndim, c.ndim) < 2 or a.shape[-2:] != c.shape[-2:-1] * 2 or b.shape[-2:] != c.shape[-1:] * 2:
        raise ValueError(f"Incompatible shapes for Sylvester equation: A: {a.shape} B: {b.shape} C: {c.shape}")
    if method not in ("schur", "eigen"):
        raise ValueError(f'Unrecognized method {method}. The two valid methods are either "schur" or "eigen".')
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2], c.shape[:-2])
    a, b, c = (broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b, c))
    return _by_eigenvectors(a, b, c, tol) if method == "eigen" else _by_schur_forms(a, b, c, tol)


def _by_schur_forms(a: Array, b: Array, c: Array, tol: float) -> Array:
    (ta, u), (tb, v) = (similar.schur(ew.stop_gradient(x)) for x in (a, b))
    x = sylvester_p.bind(a, ta, u, b, tb, v, c, transposed=False)
    return _where_apart(_eigenvalues(ta), _eigenvalues(tb), tol, x)


def _eigenvalues(t: Array) -> Array:
    """Those of a Schur form; the imaginary parts of a pair from the elements beside the diagonal."""
    w = diagonal(t, axis1=-2, axis2=-1)
    if is_complex(t.dtype) or t.shape[-1] < 2:
        return w
    product = diagonal(t, 1, -2, -1) * similar.below(t)
    size = ew.sqrt(where(product < 0, -product, 0))
    ends = [(0, 0, 0)] * (size.ndim - 1)
    zero = sh.full((), 0, size.dtype)
    return ew.complex(w, sh.pad(size, zero, [*ends, (0, 1, 0)]) - sh.pad(size, zero, [*ends, (1, 0, 0)]))


def _where_apart(wa: Array, wb: Array, tol: float, x: Array) -> Array:
    """`x`, NaN where a sum of two eigenvalues is below `tol`."""
    if not x.size:
        return x
    wa, wb = promote_dtypes("solve_sylvester", wa, wb)
    sums = sh.expand_dims(wa, (wa.ndim,)) + sh.expand_dims(wb, (wb.ndim - 1,))
    near = min_of(abs(sums), axis=(-2, -1)) < tol
    return where(sh.expand_dims(near, (near.ndim, near.ndim + 1)), np.nan, x)


@functools.partial(custom_jvp, nondiff_argnums=(3,))
def _by_eigenvectors(a: Array, b: Array, c: Array, tol: float) -> Array:
    (wa, va), (wb, vb) = (spectral.eig(x, compute_left_eigenvectors=False) for x in (a, b))
    right = matmul(jnp_linalg.solve(va, ew.convert(c, va.dtype)), vb)
    y = right / (sh.expand_dims(wa, (wa.ndim,)) + sh.expand_dims(wb, (wb.ndim - 1,)))
    x = matmul(matmul(va, y), jnp_linalg.inv(vb))
    return _where_apart(wa, wb, tol, x if is_complex(c.dtype) else ew.real(x))


@_by_eigenvectors.defjvp
def _by_eigenvectors_jvp(tol: float, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    (a, b, c), (da, db, dc) = primals, tangents
    x = _by_eigenvectors(a, b, c, tol)
    return x, _by_schur_forms(a, b, dc - matmul(da, x) - matmul(x, db), tol)
