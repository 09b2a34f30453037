"""Factors of matrices, as SciPy names them: Cholesky, LU, QR, eigenvalues, Schur, polar."""

from __future__ import annotations

from typing import Any

from anima.api.mapping import vmap
from anima.control import polar as polar_iteration, similar
from anima.core import dtypes
from anima.core.array import Array
from anima.numpy.elementwise import conj
from anima.numpy.linear import matmul
from anima.numpy.manipulation import broadcast_shapes, broadcast_to, concatenate, matrix_transpose, reshape
from anima.numpy.promote import as_array, is_complex, promote_dtypes_inexact
from anima.numpy.reductions import cumprod
from anima.numpy.selection import where
from anima.ops import (
    elementwise as ew,
    linalg as la,
    linalg_factor as factor,
    linalg_reflect as reflect,
    linalg_spectral as spectral,
    shape as sh,
)
from anima.scipy.linalg.operands import of_matrices
from anima.typing import ArrayLike


def adjoint(x: Array) -> Array:
    return conj(matrix_transpose(x))


# ---------------------------------------------------------------- Cholesky and LU


@of_matrices
def cholesky(a: ArrayLike, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Array:
    """The upper triangular U with U^H U = a (or L with L L^H = a if `lower`) for positive definite a [..., n, n].

    Only that triangle of `a` is looked at. NaN where `a` is not positive definite. `overwrite_a` and `check_finite`
    make no difference.

    >>> cholesky(jnp.array([[4.0, 2.0], [2.0, 5.0]]))
    Array([[2., 1.],
           [0., 2.]], dtype=float32)
    """
    (a,) = promote_dtypes_inexact("cholesky", a)
    out = la.cholesky(a if lower else adjoint(a), symmetrize_input=False)
    return out if lower else adjoint(out)


def cho_factor(a: ArrayLike, lower: bool = False, overwrite_a: bool = False,
               check_finite: bool = True) -> tuple[Array, bool]:
    """(`cholesky(a, lower)`, lower), for `cho_solve`."""
    return cholesky(a, lower=lower), lower


@of_matrices
def lu(a: ArrayLike, permute_l: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """(P, L, U) with a = P L U for a [..., m, n]: a permutation, a lower triangle with ones, an upper triangle.

    (P L, U) if `permute_l`. L is [..., m, k] and U [..., k, n] with k = min(m, n). `overwrite_a` and `check_finite`
    make no difference.
    """
    (a,) = promote_dtypes_inexact("lu", a)
    packed, _, order = factor.lu(a)
    m, n = a.shape[-2:]
    k = min(m, n)
    low = la.strictly_lower(packed)[..., :k] + la.identity((*a.shape[:-1], k), a.dtype)
    up = la.upper_part(packed)[..., :k, :]
    places = sh.broadcasted_iota(order.dtype, (*order.shape, m), order.ndim - 1)
    p = ew.convert(places == sh.expand_dims(order, (order.ndim - 1,)), dtypes.to_real(a.dtype))
    return (matmul(ew.convert(p, a.dtype), low), up) if permute_l else (p, low, up)


@of_matrices
def lu_factor(a: ArrayLike, overwrite_a: bool = False, check_finite: bool = True) -> tuple[Array, Array]:
    """(L and U in one matrix [..., m, n], the row exchanged with each row), for `lu_solve`."""
    (a,) = promote_dtypes_inexact("lu_factor", a)
    packed, pivots, _ = factor.lu(a)
    return packed, pivots


# ---------------------------------------------------------------- QR


@of_matrices
def qr(a: ArrayLike, overwrite_a: bool = False, lwork: Any = None, mode: str = "full", pivoting: bool = False,
       check_finite: bool = True) -> tuple[Array, ...]:
    """(Q, R) with a = Q R for a [..., m, n], or (Q, R, order) with a[..., order] = Q R if `pivoting`.

    `mode`: "full" (Q is square), "economic" (Q has min(m, n) columns), or "r", without Q. `overwrite_a`, `lwork` and
    `check_finite` make no difference. ValueError for another mode.
    """
    if mode not in ("full", "economic", "r"):
        raise ValueError(f"Unsupported QR decomposition mode '{mode}'")
    (a,) = promote_dtypes_inexact("qr", a)
    out = factor.qr(a, pivoting=pivoting, full_matrices=mode != "economic")
    return out[1:] if mode == "r" else out


@of_matrices
def qr_multiply(a: ArrayLike, c: ArrayLike, mode: str = "right", pivoting: bool = False, conjugate: bool = False,
                overwrite_a: bool = False, overwrite_c: bool = False) -> tuple[Array, ...]:
    """(c Q, R), or (Q c, R) if `mode` is "left", for the thin QR decomposition of a [..., m, n].

    With k = min(m, n), `c` is [..., p, m] ("right") or [..., k, p] ("left"), or one vector. `pivoting` gives the order
    of columns, too; `conjugate` takes conj(Q). `overwrite_a` and `overwrite_c` make no difference. ValueError for
    another mode, or if sizes do not fit.
    """
    if mode not in ("right", "left"):
        raise ValueError(f"mode must be 'right' or 'left', got {mode!r}")
    a, c = promote_dtypes_inexact("qr_multiply", a, c)
    left, vector = mode == "left", c.ndim == 1
    m, k = a.shape[-2], min(a.shape[-2:])
    if vector:
        c = sh.expand_dims(c, (1 if left else 0,))
    if c.shape[-2 if left else -1] != (k if left else m):
        what = ("Q @ c", "columns", k, "rows") if left else ("c @ Q", "rows", m, "columns")
        raise ValueError(f"Array shapes are not compatible for {what[0]} operation: a has shape {a.shape} so Q has "
                         f"{what[2]} {what[1]}, but c has {c.shape[-2 if left else -1]} {what[3]}.")
    batch = broadcast_shapes(a.shape[:-2], c.shape[:-2])
    c = broadcast_to(conj(c) if conjugate else c, (*batch, *c.shape[-2:]))
    if pivoting:
        q, r, *order = factor.qr(a, pivoting=True, full_matrices=False)
        out = matmul(q, c) if left else matmul(c, q)
    else:
        packed, taus = reflect.geqrf(a)
        r, order = la.upper_part(packed)[..., :k, :], []
        packed, taus = broadcast_to(packed, (*batch, *a.shape[-2:])), broadcast_to(taus, (*batch, k))
        if left:
            c = concatenate([c, sh.full((*batch, m - k, c.shape[-1]), 0, c.dtype)], -2)
        out = reflect.ormqr(packed, taus, c, left=left)
        out = out if left else out[..., :k]
    out = conj(out) if conjugate else out
    return (reshape(out, (-1,)) if vector else out, r, *order)


# ---------------------------------------------------------------- spectra


@of_matrices
def svd(a: ArrayLike, full_matrices: bool = True, compute_uv: bool = True, overwrite_a: bool = False,
        check_finite: bool = True, lapack_driver: str = "gesdd") -> Any:
    """(U, s, Vh) with a = U diag(s) Vh for a [..., m, n], s descending; only s without `compute_uv`.

    Without `full_matrices`, U has min(m, n) columns and Vh as many rows. `lapack_driver` is "gesdd" or "gesvd",
    ValueError for another; `overwrite_a` and `check_finite` make no difference.
    """
    if lapack_driver not in ("gesdd", "gesvd"):
        raise ValueError(f"lapack_driver must be 'gesdd' or 'gesvd', got {lapack_driver!r}")
    (a,) = promote_dtypes_inexact("svd", a)
    algorithm = spectral.SvdAlgorithm.QR if lapack_driver == "gesvd" else None
    return spectral.svd(a, full_matrices=full_matrices, compute_uv=compute_uv, algorithm=algorithm)


@of_matrices
def eigh(a: ArrayLike, b: ArrayLike | None = None, lower: bool = True, eigvals_only: bool = False,
         overwrite_a: bool = False, overwrite_b: bool = False, turbo: bool = True, eigvals: None = None, type: int = 1,
         check_finite: bool = True) -> Any:
    """(eigenvalues, ascending, eigenvectors) of Hermitian a [..., n, n]; only eigenvalues if `eigvals_only`.

    Those of (a + a^H) / 2 where `a` is not Hermitian. NotImplementedError for `b`, `eigvals` and types other than 1;
    the other arguments make no difference.
    """
    for name, usual in (("b=None", b is None), ("type=1", type == 1), ("eigvals=None", eigvals is None)):
        if not usual:
            raise NotImplementedError(f"Only the {name} case of eigh is implemented.")
    (a,) = promote_dtypes_inexact("eigh", a)
    v, w = spectral.eigh(a, lower=lower)
    return w if eigvals_only else (w, v)


@of_matrices
def eigh_tridiagonal(d: ArrayLike, e: ArrayLike, *, eigvals_only: bool = False, select: str = "a",
                     select_range: tuple[float, float] | None = None, tol: float | None = None,
                     key: Any = None) -> Any:
    """(eigenvalues, ascending, eigenvectors) of Hermitian matrices with diagonals d [..., n] and e [..., n - 1].

    `e` is above the diagonal, its conjugate below. Only eigenvalues if `eigvals_only`; `select="i"` gives those with
    indices from select_range[0] to select_range[1] (both included). All are computed to the dtype's accuracy, whatever
    `tol` (an absolute error) and `key` are. TypeError for dtypes that are not equal and inexact, or shapes that do not
    fit, ValueError for another `select` or an empty range, NotImplementedError for `select="v"`.

    >>> eigh_tridiagonal(jnp.array([2.0, 2.0]), jnp.array([1.0]), eigvals_only=True)
    Array([1., 3.], dtype=float32)
    """
    d, e = as_array(d, "eigh_tridiagonal"), as_array(e, "eigh_tridiagonal", 1)
    for x in (d, e):
        if x.dtype not in la.LAPACK_TYPES:
            raise TypeError("Only float32, float64, complex64 and complex128 inputs are supported by eigh_tridiagonal, "
                            f"got {dtypes.name(d.dtype)} and {dtypes.name(e.dtype)}")
    if d.dtype != e.dtype:
        raise TypeError("diagonal and off-diagonal values must have same dtype, "
                        f"got {dtypes.name(d.dtype)} and {dtypes.name(e.dtype)}")
    n = d.shape[-1] if d.ndim else 0
    if e.shape != (*d.shape[:-1], max(n - 1, 0)) or not n:
        raise TypeError(f"eigh_tridiagonal requires shapes [..., n] and [..., n - 1], got {d.shape} and {e.shape}")
    first, last = _selected(select, select_range, n)
    sizes = ew.abs(e) if is_complex(e.dtype) else e
    outs = spectral.eigh_tridiagonal_p.bind(ew.real(d) if is_complex(d.dtype) else d, sizes, vectors=not eigvals_only)
    w = outs[0][..., first:last]
    if eigvals_only:
        return w
    v = outs[1][..., first:last]
    if is_complex(e.dtype):  # a diagonal of phases makes the elements beside the diagonal real
        phase = where(sizes == 0, 1, e / ew.convert(where(sizes == 0, 1, sizes), e.dtype))
        turns = cumprod(concatenate([sh.full((*d.shape[:-1], 1), 1, e.dtype), conj(phase)], -1), axis=-1)
        v = sh.expand_dims(turns, (turns.ndim,)) * ew.convert(v, e.dtype)
    return w, v


def _selected(select: str, select_range: Any, n: int) -> tuple[int, int]:
    """The range of eigenvalues' indices, from the first to one after the last."""
    if select not in ("a", "i", "v"):
        raise ValueError("'select must have a value in {'a', 'i', 'v'}.")
    if select == "v":
        raise NotImplementedError("eigh_tridiagonal(..., select='v') is not implemented")
    if select == "a":
        return 0, n
    if select_range is None:
        raise ValueError("for select='i', select_range must be specified.")
    first, last = int(select_range[0]), int(select_range[1])
    if first > last:
        raise ValueError("Got empty index range in select_range.")
    return max(first, 0), min(last + 1, n)


# ---------------------------------------------------------------- similar matrices


@of_matrices
def hessenberg(a: ArrayLike, *, calc_q: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """H, zero below the first subdiagonal, with a = Q H Q^H for unitary Q and a [..., n, n]; (H, Q) if `calc_q`.

    `overwrite_a` and `check_finite` make no difference. ValueError if `a` is not square.
    """
    a = as_array(a, "hessenberg")
    packed, taus = similar.hessenberg(a)
    h = la.masked(packed, lambda i, j: ew.ge(ew.add(j, 1), i))
    return (h, similar.similarity(packed, taus)) if calc_q else h


@of_matrices
def schur(a: ArrayLike, output: str = "real") -> tuple[Array, Array]:
    """(T, Z) with a = Z T Z^H for unitary Z and upper triangular T, a [..., n, n].

    Of real matrices T has a block of 2 rows for each pair of complex eigenvalues; with `output="complex"` it is complex
    and triangular. ValueError for another output, or if `a` is not square.
    """
    if output not in ("real", "complex"):
        raise ValueError(f"Expected 'output' to be either 'real' or 'complex', got {output=}.")
    (a,) = promote_dtypes_inexact("schur", a)
    if output == "complex" and a.dtype in la.LAPACK_TYPES:
        a = ew.convert(a, spectral.complex_type(a.dtype))
    t, z = similar.schur(a)
    return t, z


@of_matrices
def rsf2csf(T: ArrayLike, Z: ArrayLike, check_finite: bool = True) -> tuple[Array, Array]:
    """The complex Schur form (T, Z) of a matrix, from the real one; both [..., n, n].

    `check_finite` makes no difference. ValueError if sizes do not fit.
    """
    t, z = promote_dtypes_inexact("rsf2csf", T, Z)
    for name, x in (("Z", z), ("T", t)):
        if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
            raise ValueError(f"Input '{name}' must be square.")
    if t.shape[-1] != z.shape[-1]:
        raise ValueError(f"Input array shapes must match: Z: {z.shape} vs. T: {t.shape}")
    if is_complex(t.dtype):
        return la.upper_part(t), z
    to = spectral.complex_type(t.dtype)
    wide_t, wide_z = ew.convert(t, to), ew.convert(z, to)
    if t.shape[-1] < 2:
        return wide_t, wide_z
    u = similar.block_rotations(t)
    return la.upper_part(matmul(matmul(adjoint(u), wide_t), u)), matmul(wide_z, u)


@of_matrices
def polar(a: ArrayLike, side: str = "right", *, method: str = "qdwh", eps: float | None = None,
          max_iterations: int | None = None) -> tuple[Array, Array]:
    """(u, p) with a = u p (`side="right"`) or a = p u ("left") for a [..., m, n].

    u has orthonormal columns, or rows if m < n; p is Hermitian and positive semidefinite. `method` is "svd" or "qdwh",
    the iteration of `anima.lax.linalg.qdwh`, which `eps` and `max_iterations` belong to and which needs m >= n (or n >=
    m for "left"; else NotImplementedError). ValueError for another side or method.
    """
    (a,) = promote_dtypes_inexact("polar", a)
    if a.ndim < 2:
        raise ValueError("The input `a` must be a 2-D array.")
    if side not in ("right", "left"):
        raise ValueError("The argument `side` must be either 'right' or 'left'.")
    if method not in ("qdwh", "svd"):
        raise ValueError(f"Unknown polar decomposition method {method}.")
    if side == "left":
        u, p = polar(adjoint(a), method=method, eps=eps, max_iterations=max_iterations)
        return adjoint(u), p
    if method == "svd":
        u, s, vh = spectral.svd(a, full_matrices=False)
        return matmul(u, vh), matmul(adjoint(vh) * ew.convert(sh.expand_dims(s, (s.ndim - 1,)), vh.dtype), vh)
    if a.shape[-2] < a.shape[-1]:
        raise NotImplementedError("method='qdwh' only supports matrices with m >= n for side='right', and n >= m for "
                                  f"side='left', got {a.shape} (of the adjoint, for side='left')")

    def one(x: Array) -> tuple[Array, Array]:
        return polar_iteration.qdwh(x, max_iterations=max_iterations, eps=eps)[:2]

    for _ in range(a.ndim - 2):
        one = vmap(one)
    return one(a)
