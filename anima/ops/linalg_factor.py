"""Factors of matrices by elimination and by reflections: LU, QR.

    lu, pivots, permutation = lu(A)         A[permutation] = L U
    Q, R = qr(A, full_matrices=False)       A = Q R, Q^H Q = 1

Derivatives: with P A = L U, the strictly lower part of L^-1 dA U^-1 is that of L^-1 dL, the rest dU U^-1;
for QR see Walter and Lehmann, "Algorithmic differentiation of linear algebra functions" (2018): Q^H dQ is
skew-Hermitian, and R is upper triangular with a real diagonal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from anima.core import dtypes
from anima.core.avals import Shape, ShapedArray
from anima.core.primitive import Zero
from anima.ops.broadcast import full, full_like
from anima.ops.contract import batch_matmul
from anima.ops.elementwise import add, complex as make_complex, eq, imag, sub
from anima.ops.linalg import (
    Factorization,
    adjoint,
    identity,
    is_complex,
    masked,
    matrix_transpose,
    strictly_lower,
    take_rows,
    triangular_solve,
    upper_part,
)
from anima.ops.shape import concatenate, pad, slice_in_dim
from anima.ops.stacked import Stacked
from anima.routines import lapack

_I32 = np.dtype(np.int32)


@lru_cache(256)
def room_to_work(name: str, dtype: Any, *sizes: int, **options: int) -> list[int]:
    """Sizes of the work arrays that a routine asks for. With the least that they need, routines would round otherwise
    than in compiled programs."""
    *answers, info = lapack(f"{name}_lwork", dtype)(*sizes, **options)
    assert info == 0, f"{name} refuses matrices of sizes {sizes}"
    return [max(1, math.ceil(np.real(a) * (1 + 2.0**-23))) for a in answers]


def pivoting_room(n: int) -> int:
    """The size of the work array of geqp3 for n columns, in blocks of up to 64."""
    return 2 * n + 64 * (n + 1)


def identities(out: np.ndarray) -> np.ndarray:
    """`out`, made identities where it is a matrix: orthogonal factors of matrices without elements."""
    if out.ndim > 1 and out.shape[-1] == out.shape[-2]:
        out[...] = np.eye(out.shape[-1])
    return out


def last(x: Any) -> int:
    return len(x.shape) - 1


# ---------------------------------------------------------------- LU


class Lu(Factorization):
    """L (below the diagonal, which is 1) and U in one matrix, the row exchanged with each row, and the order
    that all exchanges together put the rows in."""

    def types(self, batch: Shape, m: int, n: int, dtype: Any) -> list[ShapedArray]:
        return [ShapedArray((*batch, m, n), dtype), ShapedArray((*batch, min(m, n)), _I32),
                ShapedArray((*batch, m), _I32)]

    def compute(self, x: np.ndarray) -> Sequence[np.ndarray]:
        outs = self.room(x)
        for index in np.ndindex(x.shape[:-2] if x.size else (0,)):
            outs[0][index], outs[1][index], _ = lapack("getrf", x.dtype)(x[index])
        outs[2][...] = lu_pivots_to_permutation_p.eval(outs[1], permutation_size=x.shape[-2])
        return outs

    def tangents(self, outs: Sequence[Any], x: Any, t: Any) -> Sequence[Any]:
        lu, _, permutation = outs
        m, n = lu.shape[-2:]
        k = min(m, n)
        batch = lu.shape[:-2]
        # Square factors: L with columns, U with rows, of the identity.
        left = add(strictly_lower(lu), identity((*batch, m, n), lu.dtype))
        right = upper_part(lu)
        if m > n:
            more = slice_in_dim(identity((*batch, m, m), lu.dtype), k, m, axis=last(lu))
            left = concatenate([left, more], last(lu))
            right = slice_in_dim(right, 0, k, axis=last(lu) - 1)
        elif m < n:
            left = slice_in_dim(left, 0, k, axis=last(lu))
            more = slice_in_dim(identity((*batch, n, n), lu.dtype), k, n, axis=last(lu) - 1)
            right = concatenate([right, more], last(lu) - 1)
        both = triangular_solve(left, take_rows(t, permutation), left_side=True, lower=True, unit_diagonal=True)
        both = triangular_solve(right, both)
        return [add(batch_matmul(left, strictly_lower(both)), batch_matmul(upper_part(both), right)), None, None]


class Permutation(Stacked):
    """The order of rows that a sequence of exchanges leads to."""

    def infer(self, pivots: ShapedArray, *, permutation_size: int) -> ShapedArray:
        if not dtypes.issubdtype(pivots.dtype, np.integer) or pivots.ndim < 1:
            raise ValueError("Argument to lu_pivots_to_permutation must have rank at least 1 and an integer type, "
                             f"got {pivots}")
        if permutation_size < pivots.shape[-1]:
            raise ValueError(f"Output permutation size {permutation_size} has to exceed the trailing dimension of the "
                             f"pivots. Got pivots size {pivots.shape[-1]}")
        return ShapedArray((*pivots.shape[:-1], permutation_size), pivots.dtype)

    def eval(self, pivots: np.ndarray, *, permutation_size: int) -> np.ndarray:
        exchanges = pivots.reshape(math.prod(pivots.shape[:-1]), pivots.shape[-1])
        if len(exchanges) == 1:
            order = [*range(permutation_size)]
            for i, other in enumerate(exchanges[0].tolist()):
                order[i], order[other] = order[other], order[i]
            return np.array(order, pivots.dtype).reshape(*pivots.shape[:-1], permutation_size)
        out = np.tile(np.arange(permutation_size, dtype=pivots.dtype), (len(exchanges), 1))
        lanes = np.arange(len(exchanges))
        for i, other in enumerate(exchanges.T):
            here = out[:, i].copy()
            out[:, i] = out[lanes, other]
            out[lanes, other] = here
        return out.reshape(*pivots.shape[:-1], permutation_size)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        out = self.bind(*primals, **params)
        return out, Zero(ShapedArray(out.shape, dtypes.float0))


lu_p = Lu("lu")
lu_pivots_to_permutation_p = Permutation("lu_pivots_to_permutation")


def lu(x: Any) -> tuple[Any, Any, Any]:
    """LU factors of x [..., m, n] by partial pivoting: (lu [..., m, n], pivots, permutation [..., m]).

    L is below the diagonal of `lu` (and has ones on it), U is the rest; row i was exchanged with row pivots[i], for
    each i in turn, so that x[permutation] = L U. Singular matrices have zeros on the diagonal of U.
    """
    out, pivots, permutation = lu_p.bind(x)
    return out, pivots, permutation


def lu_pivots_to_permutation(pivots: Any, permutation_size: int) -> Any:
    """The order of `permutation_size` rows after row i is exchanged with row pivots[..., i], for each i in turn."""
    return lu_pivots_to_permutation_p.bind(pivots, permutation_size=int(permutation_size))


# ---------------------------------------------------------------- QR


class Qr(Factorization):
    """Q with orthonormal columns and upper triangular R; with pivoting, of columns in an order that it gives, too."""

    def types(self, batch: Shape, m: int, n: int, dtype: Any, *, full_matrices: bool,
              pivoting: bool = False) -> list[ShapedArray]:
        k = m if full_matrices else min(m, n)
        order = [ShapedArray((*batch, n), _I32)] if pivoting else []
        return [ShapedArray((*batch, m, k), dtype), ShapedArray((*batch, k, n), dtype), *order]

    def compute(self, x: np.ndarray, *, full_matrices: bool, pivoting: bool = False) -> Sequence[np.ndarray]:
        if not pivoting:
            return list(np.linalg.qr(x, "complete" if full_matrices else "reduced"))
        outs = self.room(x, full_matrices=full_matrices, pivoting=pivoting)
        q, r, order = outs
        n = x.shape[-1]
        if not x.size:
            order[...] = np.arange(n)
            return [identities(q), r, order]
        geqp3, orgqr = lapack("geqp3", x.dtype), lapack("orgqr" if x.dtype.kind == "f" else "ungqr", x.dtype)
        reflections = np.zeros(q.shape[-2:], x.dtype)
        for index in np.ndindex(x.shape[:-2]):
            packed, columns, taus, _, _ = geqp3(x[index], lwork=pivoting_room(n))
            reflections[:, :n] = packed[:, :q.shape[-1]]
            q[index], r[index] = orgqr(reflections, taus)[0], np.triu(packed)[:q.shape[-1]]
            order[index] = columns - 1
        return outs

    def tangents(self, outs: Sequence[Any], x: Any, t: Any, *, full_matrices: bool,
                 pivoting: bool = False) -> Sequence[Any]:
        if pivoting:  # the order is constant
            moved = matrix_transpose(take_rows(matrix_transpose(t), outs[2]))
            return [*self.tangents(outs[:2], x, moved, full_matrices=full_matrices), None]
        q, r = outs
        m, n = x.shape[-2:]
        k = min(m, n)
        top = slice_in_dim(slice_in_dim(r, 0, k, axis=last(r)), 0, k, axis=last(r) - 1)
        slope = triangular_solve(top, slice_in_dim(t, 0, k, axis=last(t)))
        inside = batch_matmul(adjoint(q), slope)
        whole = q.shape[-1] == m  # a square Q turns; columns that A does not determine turn as little as they can
        if whole and k < m:
            inside = pad(inside, full((), 0, x.dtype), [*[(0, 0, 0)] * last(x), (0, m - k, 0)])
        low = strictly_lower(inside)
        turn = sub(low, adjoint(low))  # Q^H dQ
        if is_complex(x):
            on_diagonal = imag(masked(inside, eq))
            turn = add(turn, make_complex(full_like(on_diagonal, 0), on_diagonal))
        dq = batch_matmul(q, turn) if whole else add(batch_matmul(q, sub(turn, inside)), slope)
        return [dq, upper_part(sub(batch_matmul(adjoint(q), t), batch_matmul(turn, r)))]


qr_p = Qr("qr")


def qr(x: Any, *, pivoting: bool = False, full_matrices: bool = True, use_magma: bool | None = None) -> tuple[Any, ...]:
    """(Q, R) with x = Q R for x [..., m, n]: Q [..., m, k] with orthonormal columns, R [..., k, n] upper triangular.

    k is m, or min(m, n) without `full_matrices`. With `pivoting` (Q, R, order) with x[..., order] = Q R, where the
    absolute values on the diagonal of R descend. `use_magma` means nothing on a CPU.
    """
    return tuple(qr_p.bind(x, full_matrices=bool(full_matrices), pivoting=bool(pivoting)))
