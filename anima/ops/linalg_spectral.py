"""Spectra of matrices: eigenvalues and eigenvectors, singular values and vectors.

    V, w = eigh(A)            A = V diag(w) V^H, A Hermitian
    U, s, Vh = svd(A)         A = U diag(s) V^H
    w, V = eig(A)             A V = V diag(w)

Derivatives (Giles, 2008): those of values are in any case right; those of vectors divide by differences of
values, and are infinite or NaN where values coincide, for there vectors are not functions of the matrix.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import numpy as np

from anima.core import dtypes
from anima.core.avals import Shape, ShapedArray
from anima.core.primitive import Work
from anima.ops.broadcast import broadcast_to, broadcasted_iota, expand_dims, full_like, instantiate, reduce_sum
from anima.ops.contract import batch_matmul
from anima.ops.elementwise import (
    abs,
    add,
    complex as make_complex,
    conj,
    convert,
    div,
    eq,
    imag,
    mul,
    ne,
    neg,
    real,
    select,
    sub,
)
from anima.ops.linalg import (
    Factorization,
    adjoint,
    check_dtype,
    compare,
    diagonal_part,
    hermitian,
    is_complex,
    lu_solve_p,
    masked,
    symmetrized,
)
from anima.ops.linalg_factor import identities, last, lu_p, room_to_work
from anima.ops.reduce import argmax
from anima.ops.shape import concatenate, slice_in_dim
from anima.ops.stacked import Stacked
from anima.routines import lapack


class EighImplementation(enum.Enum):
    """Algorithms for Hermitian matrices: QR is what a CPU has."""

    QR = "qr"
    JACOBI = "jacobi"
    QDWH = "qdwh"


class SvdAlgorithm(enum.Enum):
    """Algorithms for singular values: QR and DIVIDE_AND_CONQUER (which DEFAULT is) are what a CPU has."""

    DEFAULT = "default"
    QR = "QR"
    JACOBI = "Jacobi"
    POLAR = "polar"
    DIVIDE_AND_CONQUER = "divide_and_conquer"


class EigImplementation(enum.Enum):
    """Libraries for eigenvalues of any matrices: LAPACK is what a CPU has."""

    CUSOLVER = "cusolver"
    MAGMA = "magma"
    LAPACK = "lapack"


def real_type(dtype: Any) -> Any:
    return dtypes.to_real(dtype)


def complex_type(dtype: Any) -> np.dtype:
    return np.result_type(dtype, np.complex64)


def row(x: Any) -> Any:
    """Vectors as rows of matrices."""
    return expand_dims(x, (len(x.shape) - 1,))


def column(x: Any) -> Any:
    return expand_dims(x, (len(x.shape),))


def _scaled(x: Any, factors: Any) -> Any:
    """`x` times a matrix, or a row, of numbers that may be of the real type."""
    return mul(x, convert(factors, x.dtype))


def checked_subset(name: str, subset: Any, size: int) -> tuple[int, int]:
    """The range of indices that is asked for: all without a subset; ValueError for what is no range within `size`."""
    if subset is None:
        return 0, size
    start, end = subset
    if not 0 <= start <= end <= size:
        raise ValueError(f"{name}: subset_by_index must be a range within (0, {size}), got {tuple(subset)}.")
    return int(start), int(end)


def _part(x: Any, subset: tuple[int, int], axis: int) -> Any:
    return x if subset == (0, x.shape[axis]) else slice_in_dim(x, *subset, axis=axis)


def _reciprocal_differences(a: Any, b: Any) -> Any:
    """1 / (a[j] b[i, j]) off the diagonal, 0 on it; `a` is made of differences of columns and rows."""
    off = compare(ne, a.shape)
    safe = select(off, mul(a, b), full_like(a, 1))
    return select(off, div(full_like(a, 1), safe), full_like(a, 0))


# ---------------------------------------------------------------- Hermitian matrices


class Eigh(Factorization):
    """Eigenvectors and real eigenvalues, in ascending order, of a Hermitian matrix given by one triangle."""

    square = True

    def types(self, batch: Shape, m: int, n: int, dtype: Any, *, lower: bool,
              sort_eigenvalues: bool) -> list[ShapedArray]:
        return [ShapedArray((*batch, m, n), dtype), ShapedArray((*batch, n), real_type(dtype))]

    def compute(self, x: np.ndarray, *, lower: bool, sort_eigenvalues: bool) -> Sequence[np.ndarray]:
        outs = self.room(x, lower=lower, sort_eigenvalues=sort_eigenvalues)
        n = x.shape[-1]
        name = "heevd" if x.dtype.kind == "c" else "syevd"
        sizes = room_to_work(name, x.dtype, n)
        options = dict(zip(("lwork", "liwork", "lrwork"), sizes, strict=False))
        for index in np.ndindex(x.shape[:-2] if x.size else (0,)):
            values, vectors, info = lapack(name, x.dtype)(x[index], lower=lower, **options)
            outs[0][index], outs[1][index] = (vectors, values) if info == 0 else (np.nan, np.nan)
        return outs

    def tangents(self, outs: Sequence[Any], x: Any, t: Any, *, lower: bool, sort_eigenvalues: bool) -> Sequence[Any]:
        v, w = outs
        inside = batch_matmul(adjoint(v), batch_matmul(hermitian(t, lower), v))
        factors = _reciprocal_differences(sub(row(w), column(w)), full_like(inside, 1, w.dtype))
        slope = diagonal_part(inside)
        return [batch_matmul(v, _scaled(inside, factors)), real(slope) if is_complex(x) else slope]


eigh_p = Eigh("eigh")


def eigh(x: Any, *, lower: bool = True, symmetrize_input: bool = True, sort_eigenvalues: bool = True,
         subset_by_index: tuple[int, int] | None = None,
         implementation: EighImplementation | None = None) -> tuple[Any, Any]:
    """(v, w) of Hermitian x [..., n, n]: orthonormal eigenvectors, the columns of v, and eigenvalues, ascending.

    `symmetrize_input` takes (x + x^H) / 2 first; otherwise only the triangle that `lower` says is looked at.
    `subset_by_index` (start, end) gives only eigenvalues start to end - 1 and their vectors. TypeError or ValueError if
    `x` is not square, NotImplementedError for implementations that a CPU does not have.
    """
    if implementation is not None and EighImplementation(implementation) is not EighImplementation.QR:
        raise NotImplementedError(f"eigh: the implementation {implementation} is not there on a CPU.")
    if symmetrize_input:
        x = symmetrized("eigh", x)
    v, w = eigh_p.bind(x, lower=bool(lower), sort_eigenvalues=bool(sort_eigenvalues))
    subset = checked_subset("eigh", subset_by_index, w.shape[-1])
    return _part(v, subset, last(v)), _part(w, subset, last(w))


class EighTridiagonal(Stacked):
    """Eigenvalues, ascending, and if `vectors` orthonormal eigenvectors, of real symmetric matrices with the diagonal
    `d` and `e` beside it."""

    multiple_results = True

    def work(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], programs: Sequence[Work],
             **params: Any) -> Work:
        return Work(float(sum(o.size for o in outs) * avals[0].shape[-1]))

    def infer(self, d: ShapedArray, e: ShapedArray, *, vectors: bool) -> list[ShapedArray]:
        check_dtype(self.name, d.dtype)
        if e.dtype != d.dtype or e.shape != (*d.shape[:-1], max(d.shape[-1] - 1, 0)):
            raise ValueError(f"Incompatible arguments to eigh_tridiagonal: {d} and {e}.")
        return [d, *[ShapedArray((*d.shape, d.shape[-1]), d.dtype)] * vectors]

    def eval(self, d: np.ndarray, e: np.ndarray, *, vectors: bool) -> list[np.ndarray]:
        outs = [d.copy(), *[np.ones((*d.shape, d.shape[-1]), d.dtype)] * vectors]
        for index in np.ndindex(d.shape[:-1] if d.size and d.shape[-1] > 1 else (0,)):
            finite = np.isfinite(d[index]).all() and np.isfinite(e[index]).all()
            *found, info = lapack("stevd", d.dtype)(d[index], e[index], int(vectors)) if finite else (0, 0, 1)
            for out, value in zip(outs, found, strict=False):
                out[index] = value if info == 0 else np.nan
        return outs

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], *, vectors: bool) -> tuple[Any, Any]:
        w, v = self.bind(*primals, vectors=True)
        dd, de = map(instantiate, tangents)
        n = w.shape[-1]
        upper, lower = slice_in_dim(v, 0, n - 1, axis=last(w)), slice_in_dim(v, 1, n, axis=last(w))
        crossed = batch_matmul(adjoint(mul(upper, column(de))), lower)
        inside = add(batch_matmul(adjoint(mul(v, column(dd))), v), add(crossed, adjoint(crossed)))
        factors = _reciprocal_differences(sub(row(w), column(w)), full_like(inside, 1))
        slopes = [diagonal_part(inside), batch_matmul(v, mul(inside, factors))]
        return [w, v][:1 + vectors], slopes[:1 + vectors]


eigh_tridiagonal_p = EighTridiagonal("eigh_tridiagonal")


# ---------------------------------------------------------------- singular values


class Svd(Factorization):
    """Singular values in descending order, and if `compute_uv` the vectors U and V^H."""

    def types(self, batch: Shape, m: int, n: int, dtype: Any, *, full_matrices: bool, compute_uv: bool,
              algorithm: SvdAlgorithm | None = None) -> list[ShapedArray]:
        k = min(m, n)
        values = ShapedArray((*batch, k), real_type(dtype))
        if not compute_uv:
            return [values]
        left, right = (m, n) if full_matrices else (k, k)
        return [values, ShapedArray((*batch, m, left), dtype), ShapedArray((*batch, right, n), dtype)]

    def compute(self, x: np.ndarray, *, full_matrices: bool, compute_uv: bool,
                algorithm: SvdAlgorithm | None = None) -> Sequence[np.ndarray]:
        options = {"compute_uv": int(compute_uv), "full_matrices": int(full_matrices)}
        outs = self.room(x, full_matrices=full_matrices, compute_uv=compute_uv)
        if not x.size:
            return [identities(out) for out in outs]
        name = "gesvd" if algorithm is SvdAlgorithm.QR else "gesdd"
        (size,) = room_to_work(name, x.dtype, *x.shape[-2:], **options)
        for index in np.ndindex(x.shape[:-2]):
            u, s, vh, info = lapack(name, x.dtype)(x[index], lwork=size, **options)
            for out, found in zip(outs, (s, u, vh), strict=False):
                out[index] = found if info == 0 else np.nan
        return outs

    def tangents(self, outs: Sequence[Any], x: Any, t: Any, *, full_matrices: bool, compute_uv: bool,
                 algorithm: SvdAlgorithm | None = None) -> Sequence[Any]:
        m, n = x.shape[-2:]
        k = min(m, n)
        if not compute_uv:  # the derivative needs the vectors
            s, u, vh = self.bind(x, full_matrices=False, compute_uv=True, algorithm=algorithm)
        else:
            s, whole, whole_h = outs
            u, vh = slice_in_dim(whole, 0, k, axis=last(x)), slice_in_dim(whole_h, 0, k, axis=last(x) - 1)
        v = adjoint(vh)
        inside = batch_matmul(batch_matmul(adjoint(u), t), v)
        slope = diagonal_part(inside)
        ds = real(slope) if is_complex(x) else slope
        if not compute_uv:
            return [ds]
        # 1 / (s_j^2 - s_i^2), as a product: the difference of squares would lose digits.
        factors = _reciprocal_differences(sub(row(s), column(s)), add(row(s), column(s)))
        by_column, by_row = _scaled(inside, row(s)), _scaled(inside, column(s))
        left = _scaled(add(by_column, adjoint(by_column)), factors)
        right = _scaled(add(by_row, adjoint(by_row)), factors)
        inverse = row(div(full_like(s, 1), s))
        if is_complex(x):  # the phases that U and V share: all of the change is U's
            phase = imag(masked(inside, eq))
            left = add(left, _scaled(make_complex(full_like(phase, 0), phase), inverse))
        du, dv = batch_matmul(u, left), batch_matmul(v, right)
        if m > n:
            tv = _scaled(batch_matmul(t, v), inverse)
            du = add(du, sub(tv, batch_matmul(u, batch_matmul(adjoint(u), tv))))
        if n > m:
            tu = _scaled(batch_matmul(adjoint(t), u), inverse)
            dv = add(dv, sub(tu, batch_matmul(v, batch_matmul(vh, tu))))
        return [ds, _completed(whole, u, du), adjoint(_completed(adjoint(whole_h), v, dv))]


def _completed(whole: Any, part: Any, change: Any) -> Any:
    """The changes of all columns of `whole`, of which `part` are the first, which change so: the others, which the
    matrix does not determine, turn as little as they can."""
    n, k = whole.shape[-1], part.shape[-1]
    if n == k:
        return change
    rest = slice_in_dim(whole, k, n, axis=last(whole))
    turned = neg(batch_matmul(part, batch_matmul(adjoint(change), rest)))
    return concatenate([change, turned], last(whole))


svd_p = Svd("svd")


def svd(x: Any, *, full_matrices: bool = True, compute_uv: bool = True, subset_by_index: tuple[int, int] | None = None,
        algorithm: SvdAlgorithm | None = None) -> Any:
    """(U, s, Vh) with x = U diag(s) Vh for x [..., m, n], s descending; only s without `compute_uv`.

    U is [..., m, m] and Vh [..., n, n], or [..., m, k] and [..., k, n] with k = min(m, n) without `full_matrices`.
    `subset_by_index` (start, end) gives only singular values start to end - 1 and their vectors. ValueError for a
    subset of full matrices, NotImplementedError for algorithms that a CPU does not have.
    """
    if algorithm not in (None, SvdAlgorithm.DEFAULT, SvdAlgorithm.QR, SvdAlgorithm.DIVIDE_AND_CONQUER):
        raise NotImplementedError(f"svd: the algorithm {algorithm} is not there on a CPU.")
    if subset_by_index is not None and full_matrices and compute_uv:
        raise ValueError("full_matrices and subset_by_index cannot both be set")
    s, *uv = svd_p.bind(x, full_matrices=bool(full_matrices), compute_uv=bool(compute_uv),
                        algorithm=SvdAlgorithm.QR if algorithm is SvdAlgorithm.QR else None)
    if subset_by_index is None:
        return (uv[0], s, uv[1]) if compute_uv else s
    subset = checked_subset("svd", subset_by_index, s.shape[-1])
    s = _part(s, subset, last(s))
    return (_part(uv[0], subset, last(uv[0])), s, _part(uv[1], subset, last(uv[1]) - 1)) if compute_uv else s


# ---------------------------------------------------------------- any square matrix


class Eig(Factorization):
    """Complex eigenvalues, and left and right eigenvectors of length 1 whose largest component is real."""

    square = True

    def types(self, batch: Shape, m: int, n: int, dtype: Any, *, compute_left_eigenvectors: bool,
              compute_right_eigenvectors: bool, enable_eigvec_derivs: bool = False) -> list[ShapedArray]:
        to = complex_type(dtype)
        count = compute_left_eigenvectors + compute_right_eigenvectors
        return [ShapedArray((*batch, n), to)] + [ShapedArray((*batch, n, n), to)] * count

    def compute(self, x: np.ndarray, *, compute_left_eigenvectors: bool, compute_right_eigenvectors: bool,
                enable_eigvec_derivs: bool = False) -> Sequence[np.ndarray]:
        left, right = compute_left_eigenvectors, compute_right_eigenvectors
        outs = self.room(x, compute_left_eigenvectors=left, compute_right_eigenvectors=right)
        if not x.size:
            return outs
        geev = lapack("geev", x.dtype)
        for index in np.ndindex(x.shape[:-2]):
            size = _power_of_size(x[index])
            found = geev(x[index] / size, compute_vl=left, compute_vr=right) if np.isfinite(x[index]).all() else None
            if found is None or found[-1] != 0:
                for out in outs:
                    out[index] = complex(np.nan, np.nan)
                continue
            w = found[0] if x.dtype.kind == "c" else found[0] + 1j * found[1]
            outs[0][index].real, outs[0][index].imag = w.real * size, w.imag * size
            for out, vectors in zip(outs[1:], [v for v, on in zip(found[-3:-1], (left, right), strict=True) if on],
                                    strict=True):
                out[index] = vectors if x.dtype.kind == "c" else _paired(w, vectors)
        return outs

    def tangents(self, outs: Sequence[Any], x: Any, t: Any, *, compute_left_eigenvectors: bool,
                 compute_right_eigenvectors: bool, enable_eigvec_derivs: bool = False) -> Sequence[Any]:
        vectors = compute_left_eigenvectors or compute_right_eigenvectors
        if vectors and not enable_eigvec_derivs:
            raise NotImplementedError(
                "Derivatives of eigenvectors of general matrices are right only where all eigenvalues are distinct, "
                "which is not checked: allow them by anima.lax.linalg.eig(..., enable_eigvec_derivs=True).")
        if vectors:
            w, *found = outs
        else:
            w, *found = self.bind(x, compute_left_eigenvectors=False, compute_right_eigenvectors=True,
                                  enable_eigvec_derivs=True)
        slopes = []
        if compute_left_eigenvectors:  # the right ones of x^H, with conjugate eigenvalues
            dw, du = _eigenvector_slopes(conj(w), found[0], adjoint(convert(t, w.dtype)), True)
            dw, slopes = conj(dw), [du]
        if len(found) > len(slopes):
            dw, dv = _eigenvector_slopes(w, found[-1], convert(t, w.dtype), vectors)
            slopes += [dv] * vectors
        return [dw, *slopes]


def _eigenvector_slopes(w: Any, v: Any, t: Any, vectors: bool) -> tuple[Any, Any]:
    """Changes of the eigenvalues and, if asked for, eigenvectors `v` of a matrix that changes by `t`."""
    factors, _, permutation = lu_p.bind(v)
    inside = lu_solve_p.bind(v, factors, permutation, batch_matmul(t, v), transpose_a=False, conjugate_a=False)
    dw = diagonal_part(inside)
    if not vectors:
        return dw, None
    dv = batch_matmul(v, mul(inside, _reciprocal_differences(sub(row(w), column(w)), full_like(inside, 1))))
    return dw, _kept_normal(v, dv)


def safe_size(dtype: Any) -> float:
    """The largest size of matrices, and one over the least, that LAPACK finds eigenvalues of as they are.

    It scales others, and not every build of it scales their eigenvalues back.
    """
    kind = np.finfo(dtype)
    return float(kind.eps / np.sqrt(kind.tiny)) / 4


def _power_of_size(x: np.ndarray) -> np.floating:
    """What to divide the elements of `x` by, without rounding, where they are too large or too small: else 1."""
    kind = np.finfo(x.dtype)
    size = np.maximum(np.abs(x.real), np.abs(x.imag)).max()
    if not 0 < size < np.inf or 1 / safe_size(x.dtype) <= size <= safe_size(x.dtype):
        return kind.dtype.type(1)
    return np.ldexp(kind.dtype.type(1), np.frexp(np.clip(size, kind.tiny, kind.max / 4))[1] - 1)


def _paired(w: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Complex eigenvectors, of which LAPACK gives a conjugate pair as real and imaginary parts in two columns."""
    after, before = np.roll(v, -1, 1), np.roll(v, 1, 1)
    imaginary = np.where(w.imag > 0, after, np.where(w.imag < 0, -v, 0))
    return np.where(w.imag < 0, before, v) + 1j * imaginary


def _kept_normal(v: Any, dv: Any) -> Any:
    """Changes of vectors that keep their lengths at 1 and their largest components real."""
    axis = last(v) - 1
    along = real(reduce_sum(mul(conj(v), dv), (axis,)))
    size = abs(v)
    first = argmax(size, axis, np.int32)
    largest = eq(broadcasted_iota(np.int32, size.shape, axis), broadcast_to(row(first), size.shape))
    pick = reduce_sum(select(largest, imag(dv), full_like(size, 0)), (axis,))
    scale = reduce_sum(select(largest, real(v), full_like(size, 0)), (axis,))
    change = make_complex(along, div(pick, scale))
    return sub(dv, mul(v, row(change)))


eig_p = Eig("eig")


def eig(x: Any, *, compute_left_eigenvectors: bool = True, compute_right_eigenvectors: bool = True,
        enable_eigvec_derivs: bool = False, implementation: EigImplementation | None = None,
        use_magma: bool | None = None) -> list[Any]:
    """[w, left, right]: complex eigenvalues of x [..., n, n], in no order, and those vectors that are asked for.

    The columns of `right` are v with x v = w v, those of `left` u with u^H x = w u^H, of length 1. Their derivatives
    need `enable_eigvec_derivs`. ValueError if `x` is not square, and for libraries other than LAPACK.
    """
    if use_magma or implementation not in (None, EigImplementation.LAPACK):
        raise ValueError("Only the lapack implementation is supported on CPU.")
    return eig_p.bind(x, compute_left_eigenvectors=bool(compute_left_eigenvectors),
                      compute_right_eigenvectors=bool(compute_right_eigenvectors),
                      enable_eigvec_derivs=bool(enable_eigvec_derivs))
