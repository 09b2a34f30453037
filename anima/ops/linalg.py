"""Matrices, and systems of equations with them: Cholesky factors, triangular solves, solves by LU factors.

    L = cholesky(A)                                  A = L L^H, Hermitian and positive definite
    X = triangular_solve(L, B, left_side=True, lower=True)       L X = B

The last two axes are those of the matrix, all others are a batch. What has no solution in numbers is NaN or
infinite, never an exception. Derivatives are in the solution itself: from A X = B, dX = A^-1 (dB - dA X)
(Giles, "Collected matrix derivative results for forward and reverse mode", 2008; for Cholesky, Murray,
"Differentiation of the Cholesky decomposition", 2016).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from anima.core import dtypes
from anima.core.avals import Shape, ShapedArray, tangent_aval
from anima.core.primitive import Linear, ShardingRule, Work, Zero
from anima.core.sharding_rules import dims, leading
from anima.core.trace import aval_of
from anima.ops.broadcast import broadcast_in_dim, broadcasted_iota, expand_dims, full_like, instantiate, shape_of
from anima.ops.composite import Composite
from anima.ops.contract import batch_matmul
from anima.ops.elementwise import add, conj, convert, div, eq, ge, gt, mul, select, sub
from anima.ops.family import INEXACT, REAL, WIDER, is_kind
from anima.ops.gather import GatherDimensionNumbers, GatherScatterMode, gather
from anima.ops.shape import moveaxis, reshape, slice_in_dim, squeeze, transpose
from anima.ops.stacked import Stacked
from anima.routines import blas, one_thread

_I32 = np.dtype(np.int32)
LAPACK_TYPES = tuple(map(np.dtype, (np.float32, np.float64, np.complex64, np.complex128)))


# ---------------------------------------------------------------- matrices


def is_complex(x: Any) -> bool:
    return dtypes.issubdtype(x.dtype, np.complexfloating)


def matrix_transpose(x: Any) -> Any:
    """The matrices with rows and columns exchanged."""
    n = len(shape_of(x))
    return transpose(x, (*range(n - 2), n - 1, n - 2))


def conjugate(x: Any) -> Any:
    return conj(x) if is_complex(x) else x


def adjoint(x: Any) -> Any:
    """The conjugate transposes."""
    return conjugate(matrix_transpose(x))


def compare(test: Callable[[Any, Any], Any], shape: Shape) -> Any:
    """`test(row, column)` at each element of matrices of this shape."""
    flat = shape[-2:]
    mask = test(broadcasted_iota(_I32, flat, 0), broadcasted_iota(_I32, flat, 1))
    return broadcast_in_dim(mask, shape, (len(shape) - 2, len(shape) - 1)) if len(shape) > 2 else mask


def masked(x: Any, test: Callable[[Any, Any], Any]) -> Any:
    """`x` where `test(row, column)` holds, 0 elsewhere."""
    return select(compare(test, x.shape), x, full_like(x, 0))


def lower_part(x: Any) -> Any:
    """The triangle below the diagonal, and the diagonal."""
    return masked(x, ge)


def strictly_lower(x: Any) -> Any:
    return masked(x, gt)


def upper_part(x: Any) -> Any:
    return masked(x, lambda i, j: ge(j, i))


def identity(shape: Shape, dtype: Any) -> Any:
    """Identity matrices of this shape."""
    return convert(compare(eq, shape), dtype)


def diagonal_part(x: Any) -> Any:
    """The diagonals of square matrices, as vectors."""
    n, m = x.shape[-2:]
    count = min(n, m)
    flat = reshape(x, (*x.shape[:-2], n * m))  # in which a diagonal is a slice with step m + 1
    return slice_in_dim(flat, 0, (count - 1) * (m + 1) + 1 if count else 0, m + 1, axis=len(flat.shape) - 1)


def hermitian(x: Any, lower: bool) -> Any:
    """The Hermitian matrices that have this triangle."""
    half = masked(x, gt if lower else lambda i, j: gt(j, i))
    diagonal = masked(x, eq)
    if is_complex(x):
        diagonal = div(add(diagonal, conj(diagonal)), 2.0)
    return add(add(half, adjoint(half)), diagonal)


def symmetrized(name: str, x: Any) -> Any:
    """(x + x^H) / 2; TypeError unless the matrices are square."""
    shape = shape_of(x)
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise TypeError(f"{name} requires square matrices [..., n, n], got shape {shape}.")
    dtype = aval_of(x).dtype
    x = x if is_kind(dtype, INEXACT) else convert(x, dtypes.to_inexact(dtype))
    return div(add(x, adjoint(x)), 2.0)


def take_rows(x: Any, rows: Any) -> Any:
    """Row rows[..., i] of each matrix of `x` [..., m, n] as row i."""
    rank = len(x.shape) - 2
    batch = tuple(range(rank))
    numbers = GatherDimensionNumbers(offset_dims=(rank + 1,), collapsed_slice_dims=(rank,), start_index_map=(rank,),
                                     operand_batching_dims=batch, start_indices_batching_dims=batch)
    return gather(x, expand_dims(rows, (rank + 1,)), numbers, (1,) * (rank + 1) + x.shape[-1:],
                  mode=GatherScatterMode.PROMISE_IN_BOUNDS)


# ---------------------------------------------------------------- checks, and the family of factorizations


def check_dtype(name: str, dtype: Any, position: int = 0) -> None:
    """TypeError unless inexact, NotImplementedError for the types that LAPACK does not have."""
    if not is_kind(dtype, INEXACT):
        raise TypeError(f"{name} does not accept dtype {dtypes.name(dtype)} at position {position}. Accepted dtypes at "
                        f"position {position} are subtypes of floating, complexfloating.")
    if dtype not in LAPACK_TYPES:
        raise NotImplementedError(f"{name}: unsupported dtype {dtypes.name(dtype)}. Convert to float32 first.")


def check_real(name: str, *avals: ShapedArray) -> None:
    """TypeError unless the operands have one floating dtype."""
    for i, x in enumerate(avals):
        if not is_kind(x.dtype, REAL):
            raise TypeError(f"{name} does not accept dtype {dtypes.name(x.dtype)} at position {i}. "
                            f"Accepted dtypes at position {i} are subtypes of floating.")
    check_same("lax." + name, *avals)


def check_same(name: str, *avals: ShapedArray) -> None:
    """TypeError unless the operands have one dtype."""
    if len({x.dtype for x in avals}) > 1:
        listed = ", ".join(dtypes.name(x.dtype) for x in avals)
        raise TypeError(f"{name} requires arguments to have the same dtypes, got {listed}.")


def check_rank(name: str, aval: ShapedArray, position: int = 0) -> None:
    """TypeError for what is no matrix."""
    if aval.ndim < 2:
        raise TypeError(f"Input {position} to {name} must have rank at least 2, but got shape={aval.shape}")


def check_square(name: str, aval: ShapedArray, what: str = "input") -> None:
    check_rank(name, aval)
    if aval.shape[-1] != aval.shape[-2]:
        raise ValueError(f"The {what} to {name} must be a square matrix. Got shape {aval.shape}.")


def over_matrices(fun: Callable[..., Any], *xs: np.ndarray) -> Iterator[tuple[tuple[int, ...], Any]]:
    """(batch index, fun(the matrices there)) for each; None in place of what LAPACK found no answer to."""
    for index in np.ndindex(xs[0].shape[:-2]):
        try:
            yield index, fun(*(x[index] for x in xs))
        except np.linalg.LinAlgError:
            yield index, None


class Factorization(Stacked):
    """A function of matrices, each by itself, with one or several results.

    Subclasses write `types` (of the results, from the operand's), `compute` (on NumPy arrays; LinAlgError where there
    is no answer, which becomes NaN) and `tangents` (of the results, from that of the operand).
    """

    multiple_results = True
    square = False

    def infer(self, x: ShapedArray, **params: Any) -> Any:
        check_rank(self.name, x)
        check_dtype(self.name, x.dtype)
        if self.square:
            check_square(self.name, x)
        return self.types(x.shape[:-2], x.shape[-2], x.shape[-1], x.dtype, **params)

    def sharding_rule(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], **params: Any) -> ShardingRule:
        return leading(avals[0].ndim - 2, avals, outs)

    def work(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], programs: Sequence[Work],
             **params: Any) -> Work:
        """The leading term without its factor, which is between 1/3 (Cholesky) and some 25 (eigenvectors)."""
        return Work(float(avals[0].size * min(avals[0].shape[-2:])))

    def types(self, batch: Shape, m: int, n: int, dtype: Any, **params: Any) -> Any:
        raise self._missing("Type inference")

    def compute(self, x: np.ndarray, **params: Any) -> Sequence[np.ndarray]:
        raise self._missing("Evaluation")

    def tangents(self, outs: Sequence[Any], x: Any, t: Any, **params: Any) -> Sequence[Any]:
        raise self._missing("Forward-mode differentiation")

    def eval(self, x: np.ndarray, **params: Any) -> Any:
        avals = self.abstract_out([ShapedArray(x.shape, x.dtype)], params)
        m, n = x.shape[-2:]
        try:
            with one_thread(m * n * min(m, n)):
                outs = [np.asarray(o).astype(a.dtype, copy=False)
                        for o, a in zip(self.compute(x, **params), avals, strict=True)]
        except np.linalg.LinAlgError:
            outs = [np.empty(a.shape, a.dtype) for a in avals]
            for index, found in over_matrices(lambda m: self.compute(m, **params), x):
                for k, out in enumerate(outs):
                    out[index] = self.failure(out[index]) if found is None else found[k]
        return outs if self.multiple_results else outs[0]

    def room(self, x: np.ndarray, **params: Any) -> list[np.ndarray]:
        """Arrays for the results."""
        m, n = x.shape[-2:]
        return [np.empty(a.shape, a.dtype) for a in self.types(x.shape[:-2], m, n, x.dtype, **params)]

    def failure(self, out: np.ndarray) -> Any:
        """What a result is where there is none."""
        return np.nan

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        (x,), (t,) = primals, tangents
        outs = self.bind(x, **params)
        listed = outs if self.multiple_results else [outs]
        zeros = [Zero(tangent_aval(aval_of(o))) for o in listed]
        slopes = zeros if isinstance(t, Zero) or not aval_of(x).size else [
            z if s is None else s for s, z in zip(self.tangents(listed, x, t, **params), zeros, strict=True)]
        return (outs, slopes) if self.multiple_results else (outs, slopes[0])


# ---------------------------------------------------------------- Cholesky


class Cholesky(Factorization):
    """The lower triangular L with L L^H = A, from the lower triangle of A."""

    multiple_results = False
    square = True

    def types(self, batch: Shape, m: int, n: int, dtype: Any) -> Any:
        return ShapedArray((*batch, m, n), dtype)

    def compute(self, x: np.ndarray) -> Sequence[np.ndarray]:
        return [np.linalg.cholesky(x)]

    def failure(self, out: np.ndarray) -> Any:
        return np.tril(np.full(out.shape, np.nan, out.dtype))

    def tangents(self, outs: Sequence[Any], x: Any, t: Any) -> Sequence[Any]:
        # dA = dL L^H + L dL^H, so L^-1 dA L^-H is the sum of L^-1 dL, which is lower triangular, and its adjoint.
        (factor,) = outs
        right = triangular_solve(factor, hermitian(t, True), lower=True, transpose_a=True, conjugate_a=True)
        both = triangular_solve(factor, right, left_side=True, lower=True)
        return [batch_matmul(factor, add(strictly_lower(both), mul(masked(both, eq), 0.5)))]


cholesky_p = Cholesky("cholesky")


def cholesky(x: Any, *, symmetrize_input: bool = True) -> Any:
    """The lower triangular L with L L^H = x, for Hermitian positive definite x [..., n, n].

    NaN in the lower triangle where `x` is not positive definite. `symmetrize_input` takes (x + x^H) / 2 first;
    otherwise only the lower triangle of `x` is looked at, also by derivatives. TypeError or ValueError if `x` is
    not square.
    """
    return cholesky_p.bind(symmetrized("cholesky", x) if symmetrize_input else x)


# ---------------------------------------------------------------- triangular systems


class TriangularSolve(Stacked):
    """The solution X of op(A) X = B, or X op(A) = B, for triangular A."""

    def work(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], programs: Sequence[Work],
             **params: Any) -> Work:
        return Work(float(outs[0].size * avals[0].shape[-1]))

    def infer(self, a: ShapedArray, b: ShapedArray, *, left_side: bool, lower: bool, transpose_a: bool,
              conjugate_a: bool, unit_diagonal: bool) -> ShapedArray:
        check_same("lax.triangular_solve", a, b)
        if a.dtype not in WIDER:
            check_dtype(self.name, a.dtype)
        check_square(self.name, a, "first input")
        check_rank(self.name, b, 1)
        if a.ndim != b.ndim:
            raise TypeError("All inputs to triangular_solve must have the same number of batch dimensions, but got "
                            f"{[a.ndim - 2, b.ndim - 2]} batch dimensions for the inputs.")
        if a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2 if left_side else -1]:
            raise ValueError(f"Incompatible shapes for arguments to triangular_solve: {a.shape} and {b.shape}.")
        return ShapedArray(b.shape, b.dtype)

    def sharding_rule(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray],
                      *, left_side: bool, **params: Any) -> ShardingRule:
        batch, free = avals[0].ndim - 2, "free"
        kept = dims(*range(batch), None, free) if left_side else dims(*range(batch), free, None)
        return ShardingRule([dims(*range(batch), None, None), kept], [kept])

    def eval(self, a: np.ndarray, b: np.ndarray, *, left_side: bool, lower: bool, transpose_a: bool, conjugate_a: bool,
             unit_diagonal: bool) -> np.ndarray:
        dtype, wide = b.dtype, WIDER.get(b.dtype, b.dtype)
        a, b = a.astype(wide, copy=False), b.astype(wide, copy=False)
        trsm = blas("trsm", wide)
        if conjugate_a and not transpose_a:
            a = a.conj()
        trans = 0 if not transpose_a else 2 if conjugate_a else 1
        out = np.empty(b.shape, wide)
        if b.size:
            for index in np.ndindex(b.shape[:-2]):
                out[index] = trsm(1.0, a[index], b[index], side=not left_side, lower=lower, trans_a=trans,
                                  diag=unit_diagonal)
        return out.astype(dtype, copy=False)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        (a, b), (da, db) = primals, tangents
        out = self.bind(a, b, **params)
        if isinstance(da, Zero) and isinstance(db, Zero):
            return out, Zero(tangent_aval(aval_of(out)))
        right = None if isinstance(db, Zero) else db
        if not isinstance(da, Zero):
            # op(A) dX = dB - op(dA) X, where dA is a triangle, too
            used = masked(da, _triangle(params["lower"], params["unit_diagonal"]))
            used = matrix_transpose(used) if params["transpose_a"] else used
            used = conjugate(used) if params["conjugate_a"] else used
            moved = batch_matmul(used, out) if params["left_side"] else batch_matmul(out, used)
            right = mul(moved, -1.0) if right is None else sub(right, moved)
        return out, self.bind(a, right, **params)

    def transpose(self, ct: Any, a: Any, b: Any, **params: Any) -> Sequence[Any]:
        if isinstance(a, Linear):
            raise self._missing("Transposition (reverse-mode differentiation)",
                                "It is linear in its second operand only.")
        if isinstance(ct, Zero):
            return [None, Zero(b.aval)]
        return [None, self.bind(a, ct, **{**params, "transpose_a": not params["transpose_a"]})]

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, int]:
        (a, b), (da, db) = args, dims
        if da is None and db is not None and len(a.shape) == 2:  # one matrix: all right sides are columns of one
            left = params["left_side"]
            b = moveaxis(b, db, 1 if left else 0)
            shape = b.shape
            flat = (shape[0], shape[1] * shape[2]) if left else (shape[0] * shape[1], shape[2])
            return reshape(self.bind(a, reshape(b, flat), **params), shape), 1 if left else 0
        return super().batch(size, args, dims, **params)


def _triangle(lower: bool, strict: bool) -> Callable[[Any, Any], Any]:
    test = gt if strict else ge
    return test if lower else lambda i, j: test(j, i)


triangular_solve_p = TriangularSolve("triangular_solve")


def triangular_solve(a: Any, b: Any, *, left_side: bool = False, lower: bool = False, transpose_a: bool = False,
                     conjugate_a: bool = False, unit_diagonal: bool = False) -> Any:
    """X with op(a) X = b (`left_side`) or X op(a) = b, for triangular a [..., n, n]; b may be one vector.

    Only the triangle that `lower` says is looked at, with ones on the diagonal if `unit_diagonal`; op transposes
    and conjugates. Division by zero gives infinities and NaN. TypeError or ValueError for shapes that do not fit.
    """
    vector = len(shape_of(b)) == len(shape_of(a)) - 1
    if vector:
        b = expand_dims(b, (len(shape_of(b)) - (0 if left_side else 1),))
    conjugate_a = bool(conjugate_a and is_complex(a))
    out = triangular_solve_p.bind(a, b, left_side=bool(left_side), lower=bool(lower), transpose_a=bool(transpose_a),
                                  conjugate_a=conjugate_a, unit_diagonal=bool(unit_diagonal))
    return squeeze(out, (len(out.shape) - (1 if left_side else 2),)) if vector else out


# ---------------------------------------------------------------- systems with known LU factors


class LuSolve(Stacked):
    """X with op(A) X = B, by the factors `lu` and `permutation` of A: they are functions of A, so that the
    derivative, which is in A and B, ignores them."""

    def infer(self, a: ShapedArray, lu: ShapedArray, permutation: ShapedArray, b: ShapedArray, *, transpose_a: bool,
              conjugate_a: bool) -> ShapedArray:
        check_dtype(self.name, a.dtype)
        check_square(self.name, a)
        if not (a.shape == lu.shape and a.dtype == lu.dtype == b.dtype and permutation.shape == a.shape[:-1]
                and a.shape[:-1] == b.shape[:-1]):
            raise ValueError(f"Incompatible types for arguments to lu_solve: {a}, {lu}, {permutation} and {b}.")
        return ShapedArray(b.shape, b.dtype)

    def sharding_rule(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], **params: Any) -> ShardingRule:
        batch = avals[0].ndim - 2
        matrix, columns = dims(*range(batch), None, None), dims(*range(batch), None, "free")
        return ShardingRule([matrix, matrix, matrix[:-1], columns], [columns])

    def eval(self, a: np.ndarray, lu: np.ndarray, permutation: np.ndarray, b: np.ndarray, *, transpose_a: bool,
             conjugate_a: bool) -> np.ndarray:
        def solve(b: np.ndarray, lower: bool) -> np.ndarray:
            return triangular_solve_p.eval(lu, b, left_side=True, lower=lower, transpose_a=transpose_a,
                                           conjugate_a=conjugate_a, unit_diagonal=lower)

        if not transpose_a:
            return solve(solve(np.take_along_axis(b, permutation[..., None], -2), True), False)
        return np.take_along_axis(solve(solve(b, False), True), np.argsort(permutation, -1)[..., None], -2)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        (a, lu, permutation, b), (da, _, _, db) = primals, tangents
        out = self.bind(a, lu, permutation, b, **params)
        if isinstance(da, Zero) and isinstance(db, Zero):
            return out, Zero(tangent_aval(aval_of(out)))
        right = instantiate(db)
        if not isinstance(da, Zero):
            da = matrix_transpose(da) if params["transpose_a"] else da
            right = sub(right, batch_matmul(conjugate(da) if params["conjugate_a"] else da, out))
        return out, self.bind(a, lu, permutation, right, **params)

    def transpose(self, ct: Any, a: Any, lu: Any, permutation: Any, b: Any, **params: Any) -> Sequence[Any]:
        if any(isinstance(x, Linear) for x in (a, lu, permutation)):
            raise self._missing("Transposition (reverse-mode differentiation)",
                                "It is linear in its last operand only.")
        if isinstance(ct, Zero):
            return [None, None, None, Zero(b.aval)]
        flipped = {**params, "transpose_a": not params["transpose_a"]}
        return [None, None, None, self.bind(a, lu, permutation, ct, **flipped)]

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, int]:
        *matrix, b = args
        *fixed, db = dims
        if all(d is None for d in fixed) and db is not None and len(b.shape) == 3:
            b = moveaxis(b, db, 1)
            flat = reshape(b, (b.shape[0], b.shape[1] * b.shape[2]))
            return reshape(self.bind(*matrix, flat, **params), b.shape), 1
        return super().batch(size, args, dims, **params)


lu_solve_p = LuSolve("lu_solve")


# ---------------------------------------------------------------- products with the own transpose


class SymmetricProduct(Stacked, Composite):
    """alpha A A^T + beta C."""

    def infer(self, a: ShapedArray, c: ShapedArray, *, alpha: float, beta: float) -> ShapedArray:
        check_rank(self.name, a)
        check_rank(self.name, c, 1)
        if c.shape != (*a.shape[:-1], a.shape[-2]):
            raise ValueError("symmetric_product requires shapes [..., n, k] and [..., n, n], "
                             f"got {a.shape} and {c.shape}")
        check_real(self.name, a, c)
        return ShapedArray(c.shape, c.dtype)

    def program(self, a: Any, c: Any, *, alpha: float, beta: float) -> Any:
        return add(mul(batch_matmul(a, matrix_transpose(a)), alpha), mul(c, beta))

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], *, alpha: float, beta: float) -> tuple[Any, Any]:
        (a, c), (da, dc) = primals, tangents
        out = self.bind(a, c, alpha=alpha, beta=beta)
        parts = [] if isinstance(dc, Zero) else [mul(dc, beta)]
        if not isinstance(da, Zero):
            half = mul(batch_matmul(da, matrix_transpose(a)), alpha)
            parts.append(add(half, matrix_transpose(half)))
        return out, add(*parts) if len(parts) > 1 else parts[0] if parts else Zero(tangent_aval(aval_of(out)))


symmetric_product_p = SymmetricProduct("symmetric_product")


def symmetric_product(a_matrix: Any, c_matrix: Any, *, alpha: float = 1.0, beta: float = 0.0,
                      symmetrize_output: bool = False) -> Any:
    """alpha A A^T + beta C for real A [..., n, k] and symmetric C [..., n, n].

    With `symmetrize_output` exactly symmetric: the lower triangle is copied to the upper one. TypeError for other
    dtypes, ValueError for shapes that do not fit.
    """
    out = symmetric_product_p.bind(a_matrix, c_matrix, alpha=float(alpha), beta=float(beta))
    return add(lower_part(out), matrix_transpose(strictly_lower(out))) if symmetrize_output else out
