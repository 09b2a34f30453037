"""Determinants. Their derivatives are polynomials: the first and the second are right for singular matrices, too.

    det' = sum(cofactors * dA)          cofactors = det(A) A^-T, which there are without A^-1 as well

What is factored is the matrix as a constant: derivatives are those of the functions here, by rules of their own. Third
ones of singular matrices are through singular vectors, which have derivatives where the singular values differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from anima.control.cond import cond
from anima.core import dtypes
from anima.core.array import Array
from anima.numpy.diagonals import diagonal, trace
from anima.numpy.elementwise import abs, conj
from anima.numpy.linalg.decompositions import svd
from anima.numpy.linear import matmul
from anima.numpy.manipulation import matrix_transpose
from anima.numpy.reductions import any as any_of, cumprod, max as max_of, min as min_of, prod, sum as sum_of
from anima.numpy.selection import where
from anima.ops import elementwise as ew, linalg as la, linalg_factor as factor, shape as sh
from anima.transforms.custom import custom_jvp

Values = Sequence[Any]  # a matrix and its factors, pivots and permutation; tangents of these


def determinant(a: Array) -> Array:
    """The determinants of matrices with elements of an inexact type."""
    return _det(a, *factor.lu(ew.stop_gradient(a)))


def parity(pivots: Array, dtype: Any) -> Array:
    """-1 for an odd number of exchanges of rows, 1 for an even one."""
    moved = pivots != sh.broadcasted_iota(pivots.dtype, pivots.shape, pivots.ndim - 1)
    return (1 - 2 * (sum_of(moved, axis=-1) % 2)).astype(dtype)


def _diagonal(x: Array) -> Array:
    return diagonal(x, axis1=-2, axis2=-1)


def _times(numbers: Array, x: Array) -> Array:
    """Each matrix times a number."""
    return sh.expand_dims(numbers, (numbers.ndim, numbers.ndim + 1)) * x


@custom_jvp
def _det(a: Array, factors: Array, pivots: Array, permutation: Array) -> Array:
    return prod(_diagonal(factors), axis=-1) * parity(pivots, a.dtype)


@_det.defjvp
def _det_jvp(primals: Values, tangents: Values) -> tuple[Any, Any]:
    return _det(*primals), sum_of(_cofactors(*primals) * tangents[0], axis=(-2, -1))


@custom_jvp
def _cofactors(a: Array, factors: Array, pivots: Array, permutation: Array) -> Array:
    """Zeros on the diagonal of U are replaced by numbers too small to change the result."""
    values = _diagonal(factors)
    largest = max_of(abs(values), axis=-1, keepdims=True)
    tiny = float(dtypes.finfo(a.dtype).eps)**2 * where(largest == 0, 1, largest)
    nonzero = where(values == 0, tiny.astype(a.dtype), values)
    factors = where(la.compare(ew.eq, factors.shape), sh.expand_dims(nonzero, (nonzero.ndim,)), factors)
    return _times(prod(nonzero, axis=-1) * parity(pivots, a.dtype), matrix_transpose(_inverse(a, factors, permutation)))


@_cofactors.defjvp
def _cofactors_jvp(primals: Values, tangents: Values) -> tuple[Any, Any]:
    sizes = abs(_diagonal(primals[1]))
    least, most = min_of(sizes, axis=-1), max_of(sizes, axis=-1)
    singular = any_of(least <= math.sqrt(dtypes.finfo(sizes.dtype).eps) * most)
    return _cofactors(*primals), cond(singular, _slope_by_svd, _slope_by_inverse, *primals, tangents[0])


def _slope_by_inverse(a: Array, factors: Array, pivots: Array, permutation: Array, s: Array) -> Array:
    """det(A) (trace(A^-1 S) A^-1 - A^-1 S A^-1), transposed, which loses digits where A is nearly singular."""
    cofactors = _cofactors(a, factors, pivots, permutation)
    turned = matmul(_inverse(a, factors, permutation), s)
    rest = matrix_transpose(matmul(turned, matrix_transpose(cofactors)))
    return _times(trace(turned, axis1=-2, axis2=-1), cofactors) - rest


def _slope_by_svd(a: Array, factors: Array, pivots: Array, permutation: Array, s: Array) -> Array:
    """The slope of the cofactors of U diag(x) V^H: those of diag(x) are products of all x but one, and slopes of these
    products of all but two."""
    u, sizes, vh = svd(a)
    turned = matmul(matmul(matrix_transpose(conj(u)), s), matrix_transpose(conj(vh)))
    products = _without_two(sizes).astype(a.dtype)
    own = matmul(products, sh.expand_dims(_diagonal(turned), (turned.ndim - 1,)))
    core = where(la.compare(ew.eq, s.shape), own, -products * matrix_transpose(turned))
    return _times(determinant(u) * determinant(vh), matmul(matmul(conj(u), core), conj(vh)))


def _without_two(x: Array) -> Array:
    """The product of all elements but i and j, at [..., i, j]; zeros on the diagonal."""
    shape, last = (*x.shape, x.shape[-1]), (x.ndim - 1,)
    after = la.compare(ew.lt, shape)  # j comes after i
    between = _before(where(after, sh.expand_dims(x, last), 1))
    before, behind = _before(x), sh.rev(_before(sh.rev(x, last)), last)
    pairs = where(after, sh.expand_dims(before, (x.ndim,)) * between * sh.expand_dims(behind, last), 0)
    return pairs + matrix_transpose(pairs)


def _before(x: Array) -> Array:
    """The products of the elements before each, along the last axis."""
    one = sh.full((*x.shape[:-1], 1), 1, x.dtype)
    return sh.concatenate([one, sh.slice_in_dim(cumprod(x, axis=-1), 0, x.shape[-1] - 1, axis=-1)], x.ndim - 1)


@custom_jvp
def _inverse(a: Array, factors: Array, permutation: Array) -> Array:
    rows = la.take_rows(la.identity(a.shape, a.dtype), permutation)
    inner = la.triangular_solve(factors, rows, left_side=True, lower=True, unit_diagonal=True)
    return la.triangular_solve(factors, inner, left_side=True)


@_inverse.defjvp
def _inverse_jvp(primals: Values, tangents: Values) -> tuple[Any, Any]:
    inverse = _inverse(*primals)
    return inverse, -matmul(matmul(inverse, tangents[0]), inverse)
