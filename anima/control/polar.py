"""The polar decomposition A = U H: U has orthonormal columns, H is Hermitian and positive semidefinite.

    u, h, iterations, converged = qdwh(a)

Derivatives follow from the equation: with W = U^H dU skew-Hermitian, W H + H W = U^H dA - dA^H U.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from anima.control.cond import cond
from anima.control.while_loop import while_loop
from anima.core import dtypes
from anima.core.avals import tangent_aval
from anima.core.primitive import Zero
from anima.core.trace import aval_of
from anima.ops.broadcast import as_array, broadcasted_iota, full_like, instantiate, reduce_sum, shape_of
from anima.ops.contract import batch_matmul
from anima.ops.elementwise import abs, add, and_, convert, div, gt, lt, mul, select, sqrt, sub
from anima.ops.family import INEXACT, constant, is_kind
from anima.ops.index import dynamic_index_in_dim
from anima.ops.linalg import adjoint, cholesky, identity, lu_solve_p, triangular_solve
from anima.ops.linalg_factor import lu_p, qr
from anima.ops.linalg_spectral import eigh_p, row
from anima.ops.linalg_systems import sylvester_p
from anima.ops.reduce import reduce_max
from anima.ops.shape import concatenate, slice_in_dim
from anima.transforms.custom import custom_jvp

_MOST = 10  # iterations: 6 are enough for condition numbers up to 1e16
_QR_ABOVE = 100.0  # weights for which the step by a Cholesky factor would lose digits


def _weights(least: float, count: int) -> np.ndarray:
    """Rows (a, b, c, least after it) of the steps x (a + b x^2) / (1 + c x^2) that take singular values from [least, 1]
    closest to 1."""
    rows = []
    for _ in range(count):
        square = least * least
        d = np.cbrt(4 * (1 - square) / square**2)
        root = np.sqrt(1 + d)
        a = root + np.sqrt(max(8 - 4 * d + 8 * (2 - square) / (square * root), 0.0)) / 2
        b = (a - 1) ** 2 / 4
        c = a + b - 1
        least = min(least * (a + b * square) / (1 + c * square), 1.0)
        rows.append((a, b, c, least))
    return np.array(rows)


def _step(x: Any, a: Any, b: Any, c: Any) -> Any:
    """The step, by a QR decomposition where `c` is large, else by a Cholesky factor."""
    n = x.shape[-1]
    ratio = div(b, c)

    def by_qr(x: Any) -> Any:
        stack = concatenate([mul(x, convert(sqrt(c), x.dtype)), identity((n, n), x.dtype)], 0)
        q, _ = qr(stack, full_matrices=False)
        upper, lower = slice_in_dim(q, 0, x.shape[0]), slice_in_dim(q, x.shape[0], x.shape[0] + n)
        moved = batch_matmul(upper, adjoint(lower))
        return add(mul(x, convert(ratio, x.dtype)), mul(moved, convert(div(sub(a, ratio), sqrt(c)), x.dtype)))

    def by_cholesky(x: Any) -> Any:
        z = add(identity((n, n), x.dtype), mul(batch_matmul(adjoint(x), x), convert(c, x.dtype)))
        factor = cholesky(z, symmetrize_input=False)
        half = triangular_solve(factor, x, lower=True, transpose_a=True, conjugate_a=True)
        moved = triangular_solve(factor, half, lower=True)
        return add(mul(x, convert(ratio, x.dtype)), mul(moved, convert(sub(a, ratio), x.dtype)))

    return cond(gt(c, _QR_ABOVE), by_qr, by_cholesky, x)


def _norm(x: Any) -> Any:
    size = abs(x)
    return sqrt(reduce_sum(mul(size, size), (0, 1)))


@functools.partial(custom_jvp, nondiff_argnums=(1, 2))
def _polar(x: Any, most: int, eps: float) -> tuple[Any, Any, Any, Any]:
    kind = dtypes.to_real(x.dtype)
    size = abs(x)
    bound = sqrt(mul(reduce_max(reduce_sum(size, (0,)), (0,)), reduce_max(reduce_sum(size, (1,)), (0,))))
    start = div(x, convert(select(gt(bound, 0), bound, full_like(bound, 1)), x.dtype))
    weights = _weights(float(dtypes.finfo(x.dtype).eps), max(most, 1)).astype(kind)
    near = (4 * eps) ** (1 / 3)

    def more(state: Any) -> Any:
        _, count, converged = state
        return and_(converged == np.False_, lt(count, most))

    def step(state: Any) -> Any:
        x, count, _ = state
        a, b, c, least = (dynamic_index_in_dim(weights[:, k], count, keepdims=False) for k in range(4))
        new = _step(x, a, b, c)
        # The first steps hardly move large singular values, while small ones are far from 1.
        done = and_(lt(_norm(sub(new, x)), mul(_norm(new), near)), gt(least, 1 - near))
        return new, count + 1, done

    u, count, converged = while_loop(more, step, (start, 0, np.False_))
    h = batch_matmul(adjoint(u), x)
    return u, div(add(h, adjoint(h)), 2.0), count, converged


@_polar.defjvp
def _polar_jvp(most: int, eps: float, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    (x,), (t,) = primals, tangents
    outs = _polar(x, most, eps)
    u, h = outs[:2]
    v, w = eigh_p.bind(h, lower=True, sort_eigenvalues=True)
    form = mul(identity(h.shape, h.dtype), row(convert(w, h.dtype)))
    along = batch_matmul(adjoint(u), t)
    turn = sylvester_p.bind(h, form, v, h, form, v, sub(along, adjoint(along)), transposed=False)
    du = batch_matmul(u, turn)
    if x.shape[0] > x.shape[1]:
        rest = sub(t, batch_matmul(u, along))
        factors, _, permutation = lu_p.bind(h)
        du = add(du, adjoint(lu_solve_p.bind(h, factors, permutation, adjoint(rest), transpose_a=False,
                                             conjugate_a=False)))
    dh = sub(along, batch_matmul(turn, h))
    zeros = [instantiate(Zero(tangent_aval(aval_of(o)))) for o in outs[2:]]
    return outs, (du, div(add(dh, adjoint(dh)), 2.0), *zeros)


def qdwh(x: Any, *, is_hermitian: bool = False, max_iterations: int | None = None, eps: float | None = None,
         dynamic_shape: tuple[int, int] | None = None) -> tuple[Any, Any, Any, Any]:
    """(u, h, iterations, converged) with x = u h for x [m, n] of full rank, m >= n.

    u [m, n] has orthonormal columns, h [n, n] is Hermitian and positive semidefinite. The iteration ends when it
    changes u by less than (4 eps)^(1/3) of its size (by default eps is that of the dtype), or after `max_iterations`.
    Only the first rows and columns that `dynamic_shape` says are looked at. `is_hermitian` makes no difference.
    ValueError for matrices with more columns than rows, and for integers.

    Nakatsukasa, Bai and Gygi, "Optimizing Halley's iteration for computing the matrix polar decomposition" (2010).

    >>> u, h, _, converged = lax.linalg.qdwh(jnp.array([[0.0, -2.0], [3.0, 0.0]]))
    >>> h.round(3), converged
    (Array([[3., 0.],
           [0., 2.]], dtype=float32), Array(True, dtype=bool))
    """
    m, n = shape_of(x)
    x = as_array(x)
    if not is_kind(x.dtype, INEXACT):
        raise ValueError(f"qdwh needs a floating or complex matrix, got dtype {dtypes.name(x.dtype)}.")
    if m < n:
        raise ValueError("The input matrix of shape M x N must have M >= N.")
    if dynamic_shape is not None:
        inside = [lt(broadcasted_iota(np.dtype(np.int32), (m, n), k), size) for k, size in enumerate(dynamic_shape)]
        x = select(and_(*inside), x, full_like(x, 0))
    most = _MOST if max_iterations is None else int(max_iterations)
    eps = float(dtypes.finfo(x.dtype).eps) if eps is None else float(eps)
    if not n:
        return x, identity((n, n), x.dtype), constant(0, dtypes.canonicalize_dtype(int)), np.True_
    return _polar(x, most, eps)
