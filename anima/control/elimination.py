"""Eliminations that go row by row: systems with three diagonals, and Cholesky factors after a change of rank one.

    x = tridiagonal_solve(dl, d, du, b)          dl[i] x[i-1] + d[i] x[i] + du[i] x[i+1] = b[i]
    S = cholesky_update(R, w)                    S^T S = R^T R + w w^T, both upper triangular

Both are loops over the rows; the first one is LAPACK's, unless it is to have an answer for singular matrices, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anima.control.scan import scan
from anima.core import dtypes
from anima.core.avals import ShapedArray
from anima.core.primitive import Linear, Work, Zero
from anima.ops.broadcast import (
    broadcast_to,
    broadcasted_iota,
    expand_dims,
    full,
    full_like,
    instantiate,
    reduce_sum,
    shape_of,
)
from anima.ops.composite import Composite
from anima.ops.contract import batch_matmul
from anima.ops.elementwise import abs, add, convert, div, eq, ge, gt, max, min, mul, neg, select, sign, sqrt, sub
from anima.ops.linalg import (
    check_dtype,
    check_rank,
    check_real,
    check_same,
    masked,
    matrix_transpose,
    triangular_solve,
    upper_part,
)
from anima.ops.linalg_factor import last
from anima.ops.linalg_spectral import column, row
from anima.ops.reduce import reduce_max, reduce_min
from anima.ops.shape import concatenate, moveaxis, pad, slice_in_dim, squeeze
from anima.ops.stacked import Stacked
from anima.routines import lapack

_I32 = np.dtype(np.int32)


# ---------------------------------------------------------------- three diagonals


class TridiagonalSolve(Stacked):
    """X with A X = B, where A has these diagonals; the first element of the lower and the last of the upper one are
    outside of the matrix."""

    def work(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], programs: Sequence[Work],
             **params: Any) -> Work:
        return Work(10.0 * outs[0].size)

    def infer(self, dl: ShapedArray, d: ShapedArray, du: ShapedArray, b: ShapedArray, *,
              perturb_singular: bool) -> ShapedArray:
        check_dtype(self.name, dl.dtype)
        check_same("lax.tridiagonal_solve", dl, d, du, b)
        check_rank(self.name, b, 3)
        if not dl.shape == d.shape == du.shape:
            raise TypeError("tridiagonal_solve requires that all diagonal arguments have the same shape.")
        if d.shape != b.shape[:-1]:
            raise TypeError("tridiagonal_solve requires that the leading ndim-1 dimensions of b equal the dimensions "
                            f"of the diagonal arguments, got {b.shape} and {d.shape}.")
        return ShapedArray(b.shape, b.dtype)

    def eval(self, dl: np.ndarray, d: np.ndarray, du: np.ndarray, b: np.ndarray, *,
             perturb_singular: bool) -> np.ndarray:
        if perturb_singular:
            return perturbed_p.eval(dl, d, du, b)
        if d.shape[-1] < 2 or not b.size:
            return np.where(d[..., None] == 0, np.nan, b / d[..., None]).astype(b.dtype)
        out = np.empty(b.shape, b.dtype)
        gtsv = lapack("gtsv", b.dtype)
        for index in np.ndindex(b.shape[:-2]):
            *_, x, info = gtsv(dl[index][1:], d[index], du[index][:-1], b[index])
            out[index] = x if info == 0 else np.nan
        return out

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        out = self.bind(*primals, **params)
        *matrix, right = map(instantiate, tangents)
        if not all(isinstance(t, Zero) for t in tangents[:3]):
            right = sub(right, tridiagonal_product(*matrix, out))
        return out, self.bind(*primals[:3], right, **params)

    def transpose(self, ct: Any, dl: Any, d: Any, du: Any, b: Any, **params: Any) -> Sequence[Any]:
        if any(isinstance(x, Linear) for x in (dl, d, du)):
            raise self._missing("Transposition (reverse-mode differentiation)",
                                "It is linear in its last operand only.")
        if isinstance(ct, Zero):
            return [None, None, None, Zero(b.aval)]
        return [None, None, None, self.bind(_shifted(du, 1, 0), d, _shifted(dl, -1, 0), ct, **params)]


def _shifted(x: Any, by: int, after: int) -> Any:
    """`x` moved by one place along the axis that has `after` axes after it; a zero comes in."""
    axis = last(x) - after
    return pad(x, full((), 0, x.dtype), [(by, -by, 0) if k == axis else (0, 0, 0) for k in range(len(x.shape))])


def tridiagonal_product(dl: Any, d: Any, du: Any, x: Any) -> Any:
    """A x for the matrix with these diagonals."""
    dl, d, du = (expand_dims(v, (last(x),)) for v in (dl, d, du))
    return add(mul(d, x), add(mul(dl, _shifted(x, 1, 1)), mul(du, _shifted(x, -1, 1))))


class _PartOfSolve(Composite):
    """What `tridiagonal_solve` runs, which has the rules."""

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        raise self._missing("Forward-mode differentiation", "It is what `tridiagonal_solve` runs.")

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
        raise self._missing("Batching (vmap)", "It is what `tridiagonal_solve` runs.")


class TridiagonalFactors(_PartOfSolve):
    """What elimination with exchanges of rows makes of a matrix with these diagonals: 1 / the diagonal of U (NaN at its
    end, if one is infinite), the two beside it by that diagonal, the parts of a row and of the next that are added up,
    and whether the two were exchanged before. The rows are along the first axis."""

    multiple_results = True

    def program(self, dl: Any, d: Any, du: Any) -> Any:
        dl, d, du = (moveaxis(v, last(v), 0) for v in (dl, d, du))
        n = d.shape[0]
        du = concatenate([slice_in_dim(du, 0, n - 1), full_like(slice_in_dim(du, 0, 1), 0)], 0)
        start = tuple(squeeze(slice_in_dim(v, 0, 1), (0,)) for v in (d, du))
        (end, _), (top, second, third, factor, exchange) = scan(_factor, start, [
            slice_in_dim(v, 1, n) for v in (dl, d, du)])
        least = min(reduce_min(abs(top), (0,)), abs(end))
        above, below = div(full_like(top, 1), top), div(full_like(end, 1), end)
        below = select(eq(least, 0), full_like(below, np.nan), below)
        one, minus = full_like(factor, 1), neg(factor)
        return [concatenate([above, expand_dims(below, (0,))], 0), mul(second, above), mul(third, above),
                select(exchange, one, minus), select(exchange, minus, one), exchange]


class TridiagonalSubstitution(_PartOfSolve):
    """X of A X = B, from `TridiagonalFactors` of A."""

    def program(self, inverse: Any, second: Any, third: Any, of_row: Any, of_next: Any, exchange: Any, b: Any) -> Any:
        n = b.shape[-2]
        b = moveaxis(b, last(b) - 1, 0)

        def down(above: Any, given: Any) -> Any:
            *row, right = given
            of_row, of_next, exchange = (broadcast_to(expand_dims(v, (last(right),)), right.shape) for v in row)
            return add(mul(of_next, right), mul(of_row, above)), select(exchange, right, above)

        def up(after: Any, given: Any) -> Any:
            (x1, x2), (*u, y) = after, given
            inverse, second, third = (broadcast_to(expand_dims(v, (last(y),)), y.shape) for v in u)
            x = sub(sub(mul(y, inverse), mul(third, x2)), mul(second, x1))
            return (x, x1), x

        def row(x: Any, k: int) -> Any:
            return squeeze(slice_in_dim(x, k, k + 1), (0,))

        end, kept = scan(down, row(b, 0), [of_row, of_next, exchange, slice_in_dim(b, 1, n)])
        end = mul(end, broadcast_to(expand_dims(row(inverse, n - 1), (last(end),)), end.shape))
        above = [slice_in_dim(inverse, 0, n - 1), second, third, kept]
        _, found = scan(up, (end, full_like(end, 0)), above, reverse=True)
        return moveaxis(concatenate([found, expand_dims(end, (0,))], 0), 0, last(b) - 1)


def _factor(row: Any, below: Any) -> Any:
    """(The next row of what is left, the row of U and how it came about): the larger first element is divided by."""
    (p, q), (low, diagonal, up) = row, below
    exchange, zero = gt(abs(low), abs(p)), full_like(up, 0)
    top, first = select(exchange, low, p), select(exchange, p, low)
    second, third = select(exchange, diagonal, q), select(exchange, up, zero)
    factor = div(first, top)
    rest = (sub(select(exchange, q, diagonal), mul(factor, second)),
            sub(select(exchange, zero, up), mul(factor, third)))
    return rest, (top, second, third, factor, exchange)


class PerturbedSolve(_PartOfSolve):
    """The same by elimination with exchanges of rows, where what is too small to divide by (below eps times the largest
    element of U) becomes larger by that."""

    def program(self, dl: Any, d: Any, du: Any, b: Any) -> Any:
        n = b.shape[-2]
        if not b.size:
            return b
        outside = eq(broadcasted_iota(_I32, du.shape, last(du)), n - 1)
        du = select(outside, full_like(du, 0), du)
        given = [*(moveaxis(expand_dims(v, (last(b),)), last(b) - 1, 0) for v in (dl, d, du)),
                 moveaxis(b, last(b) - 1, 0)]
        start = tuple(squeeze(slice_in_dim(v, 0, 1), (0,)) for v in given[1:])
        carry, kept = scan(_eliminate, start, [slice_in_dim(v, 1, n) for v in given])
        ends = (*carry[:2], full_like(carry[0], 0), carry[2])
        u0, u1, u2, y = (concatenate([v, expand_dims(end, (0,))], 0) for v, end in zip(kept, ends, strict=True))
        sizes = [reduce_max(abs(u), (0,)) for u in (u0, u1, u2)]
        eps = float(dtypes.finfo(b.dtype).eps)
        least = mul(max(sizes[0], max(sizes[1], sizes[2])), eps)
        least = select(gt(least, 0), least, full_like(least, eps))
        least = add(full_like(abs(u0), 0), expand_dims(least, (0,)))
        grown = add(u0, mul(sign(select(eq(u0, 0), full_like(u0, 1), u0)), convert(least, u0.dtype)))
        u0 = select(gt(least, abs(u0)), grown, u0)

        def up(after: Any, given: Any) -> Any:
            (x1, x2), (u0, u1, u2, y) = after, given
            x = div(sub(sub(y, mul(u1, x1)), mul(u2, x2)), u0)
            return (x, x1), x

        zero = full_like(start[2], 0)
        return moveaxis(scan(up, (zero, zero), (u0, u1, u2, y), reverse=True)[1], 0, last(b) - 1)


def _eliminate(row: Any, below: Any) -> Any:
    """(The next row without its first element, the row of U): of two rows the larger first element is divided by."""
    (p, q, y), (low, diagonal, up, right) = row, below
    exchange, zero = gt(abs(low), abs(p)), full_like(up, 0)
    many = broadcast_to(exchange, y.shape)
    top, first = select(exchange, low, p), select(exchange, p, low)
    second, third = select(exchange, diagonal, q), select(exchange, up, zero)
    kept = select(many, right, y)
    factor = div(first, select(eq(top, 0), full_like(top, 1), top))
    rest = (sub(select(exchange, q, diagonal), mul(factor, second)),
            sub(select(exchange, zero, up), mul(factor, third)),
            sub(select(many, y, right), mul(factor, kept)))
    return rest, (top, second, third, kept)


tridiagonal_solve_p = TridiagonalSolve("tridiagonal_solve")
tridiagonal_factors_p = TridiagonalFactors("tridiagonal_factors")
tridiagonal_substitution_p = TridiagonalSubstitution("tridiagonal_substitution")
perturbed_p = PerturbedSolve("tridiagonal_solve_perturbed")


def tridiagonal_solve(dl: Any, d: Any, du: Any, b: Any, *, perturb_singular: bool = False) -> Any:
    """x with dl[i] x[i-1] + d[i] x[i] + du[i] x[i+1] = b[i], for diagonals [..., n] and b [..., n, k].

    dl[0] and du[n-1] are outside of the matrix and not looked at. NaN where the matrix is singular; with
    `perturb_singular` finite answers there: elements of U that are too small to divide by grow by eps times the
    largest. TypeError for dtypes or shapes that do not fit.

    >>> one = jnp.ones(3)
    >>> lax.linalg.tridiagonal_solve(one, 4 * one, one, jnp.array([[5.0], [6.0], [5.0]])).round(3)
    Array([[1.],
           [1.],
           [1.]], dtype=float32)
    """
    return tridiagonal_solve_p.bind(dl, d, du, b, perturb_singular=bool(perturb_singular))


# ---------------------------------------------------------------- changes of rank one


class CholeskyUpdate(Stacked, Composite):
    """The upper triangular S with S^T S = R^T R + w w^T: rotations of each row of R and what is left of w."""

    def infer(self, r: ShapedArray, w: ShapedArray) -> ShapedArray:
        check_real(self.name, r, w)
        if r.shape[-2:] != w.shape[-1:] * 2 or r.shape[:-2] != w.shape[:-1]:
            raise ValueError("Rank-1 update to Cholesky decomposition takes a square matrix and a vector of the same "
                             f"size as input. Got shapes {r.shape} and {w.shape} instead")
        return ShapedArray(r.shape, r.dtype)

    def program(self, r: Any, w: Any) -> Any:
        n, axis = r.shape[-1], last(r) - 1
        places = broadcasted_iota(_I32, w.shape, last(w))

        def step(w: Any, given: Any) -> Any:
            row, j = given
            here = eq(places, j)
            zero = full_like(row, 0)
            a, b = (expand_dims(reduce_sum(select(here, v, zero), (last(v),)), (last(v),)) for v in (row, w))
            size = hypot(a, b)
            safe = select(eq(size, 0), full_like(size, 1), size)
            cosine, sine = select(eq(size, 0), full_like(a, 1), div(a, safe)), div(b, safe)
            inside = ge(places, j)
            new = select(inside, add(mul(cosine, row), mul(sine, w)), zero)
            return select(inside, sub(mul(cosine, w), mul(sine, row)), w), new

        rows = scan(step, w, (moveaxis(r, axis, 0), broadcasted_iota(_I32, (n,), 0)))[1]
        return moveaxis(rows, 0, axis)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        """That of a Cholesky factor, for a change of R^T R + w w^T."""
        out = self.bind(*primals)
        (r, w), (dr, dw) = primals, map(instantiate, tangents)
        both = add(batch_matmul(matrix_transpose(upper_part(r)), upper_part(dr)), mul(column(w), row(dw)))
        both = add(both, matrix_transpose(both))
        inside = triangular_solve(out, triangular_solve(out, both), left_side=True, transpose_a=True)
        half = add(masked(inside, lambda i, j: gt(j, i)), mul(masked(inside, eq), 0.5))
        return out, batch_matmul(half, out)


def hypot(a: Any, b: Any) -> Any:
    """sqrt(a^2 + b^2) without overflow on the way."""
    large, small = max(abs(a), abs(b)), min(abs(a), abs(b))
    ratio = div(small, select(eq(large, 0), full_like(large, 1), large))
    return mul(large, sqrt(add(mul(ratio, ratio), 1.0)))


cholesky_update_p = CholeskyUpdate("cholesky_update")


def cholesky_update(r_matrix: Any, w_vector: Any) -> Any:
    """The upper triangular S [n, n] with S^T S = R^T R + w w^T for upper triangular R [n, n] and w [n], real.

    It takes n^2 operations (Gill, Golub, Murray and Saunders, "Methods for modifying matrix factorizations", 1974).
    TypeError for other dtypes or numbers of dimensions, ValueError for sizes that do not fit.

    >>> lax.linalg.cholesky_update(3 * jnp.eye(2), jnp.array([4.0, 0.0]))
    Array([[5., 0.],
           [0., 3.]], dtype=float32)
    """
    for i, (x, rank) in enumerate(((r_matrix, 2), (w_vector, 1))):
        if len(shape_of(x)) != rank:
            raise TypeError(f"Input {i} to cholesky_update must have a rank of exactly {rank}, "
                            f"but got shape={shape_of(x)}")
    return cholesky_update_p.bind(r_matrix, w_vector)
