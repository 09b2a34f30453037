"""Reflections: what QR decompositions are made of, kept as vectors and factors, and applied without the matrix Q.

    packed, taus = geqrf(A)          R is the upper triangle of `packed`; H_i = 1 - tau v v^H, with v below its diagonal
    ormqr(packed, taus, C)           H_0 H_1 ... C

Derivatives: H_0 H_1 ... = 1 - V T V^H with upper triangular T = (1 + D S)^-1 D, where D is diagonal with the factors
and S the strictly upper part of V^H V (Schreiber and Van Loan, "A storage-efficient WY representation for products of
Householder transformations", 1989). Of a matrix Q that is such a product, V is the lower factor of Q - 1, and the
factors are on the diagonal of the upper one (Ballard et al., "Reconstructing Householder vectors from TSQR", 2015).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anima.core.avals import Shape, ShapedArray, tangent_aval
from anima.core.primitive import Linear, Work, Zero
from anima.core.trace import aval_of
from anima.ops.broadcast import expand_dims, full_like, instantiate
from anima.ops.contract import batch_matmul
from anima.ops.elementwise import add, and_, eq, gt, mul, neg, select, sub
from anima.ops.linalg import (
    Factorization,
    adjoint,
    check_dtype,
    check_rank,
    check_same,
    compare,
    conjugate,
    diagonal_part,
    identity,
    masked,
    over_matrices,
    strictly_lower,
    triangular_solve,
    upper_part,
)
from anima.ops.linalg_factor import last, qr_p
from anima.ops.shape import slice_in_dim
from anima.ops.stacked import Stacked
from anima.routines import lapack


def columns(x: Any, start: int, stop: int) -> Any:
    return slice_in_dim(x, start, stop, axis=last(x))


def rows(x: Any, start: int, stop: int) -> Any:
    return slice_in_dim(x, start, stop, axis=last(x) - 1)


def reflectors(a: Any, count: int) -> Any:
    """The vectors of the first `count` reflections, as columns."""
    a = columns(a, 0, count)
    return add(strictly_lower(a), identity(a.shape, a.dtype))


def reflection_tangents(v: Any, q: Any, dq: Any) -> tuple[Any, Any]:
    """Changes (of V, of the factors) of the reflections whose product has the first columns `q`, which change by `dq`.

    With Q - 1 = V U: dV U + V dU = dQ, where V has ones on its diagonal, and the factors are on that of -U.
    """
    k = q.shape[-1]
    top, minus = rows(v, 0, k), sub(q, identity(q.shape, q.dtype))
    upper = triangular_solve(top, rows(minus, 0, k), left_side=True, lower=True, unit_diagonal=True)
    # A reflection that does nothing, whose factor is 0, has no vector that could change.
    idle = and_(compare(eq, upper.shape), eq(upper, full_like(upper, 0)))
    pivots = select(idle, full_like(upper, 1), upper)
    left = triangular_solve(top, rows(dq, 0, k), left_side=True, lower=True, unit_diagonal=True)
    d_upper = upper_part(sub(left, batch_matmul(strictly_lower(triangular_solve(pivots, left)), upper)))
    dv = strictly_lower(triangular_solve(pivots, sub(dq, batch_matmul(v, d_upper))))
    return dv, neg(diagonal_part(d_upper))


class Geqrf(Factorization):
    """R (the upper triangle) and the reflections that make it, I - tau v v^H, with v below the diagonal."""

    def types(self, batch: Shape, m: int, n: int, dtype: Any) -> list[ShapedArray]:
        return [ShapedArray((*batch, m, n), dtype), ShapedArray((*batch, min(m, n)), dtype)]

    def compute(self, x: np.ndarray) -> Sequence[np.ndarray]:
        outs = self.room(x)
        if x.size:
            geqrf = lapack("geqrf", x.dtype)
            for index, (packed, taus, _, _) in over_matrices(geqrf, x):
                outs[0][index], outs[1][index] = packed, taus
        return outs

    def tangents(self, outs: Sequence[Any], x: Any, t: Any) -> Sequence[Any]:
        packed, taus = outs
        k = taus.shape[-1]
        q = householder_product(columns(packed, 0, k), taus)
        dq, dr = qr_p.tangents([q, rows(upper_part(packed), 0, k)], x, t, full_matrices=False)
        dv, dtaus = reflection_tangents(reflectors(packed, k), q, dq)
        return [add(_embedded(dr, x.shape), _embedded(dv, x.shape)), dtaus]


def _embedded(x: Any, shape: Shape) -> Any:
    """`x` as the first rows and columns of matrices of this shape, zeros elsewhere."""
    if x.shape == shape:
        return x
    eye = identity((*shape[:-1], x.shape[-2]), x.dtype)
    return batch_matmul(batch_matmul(eye, x), identity((*shape[:-2], x.shape[-1], shape[-1]), x.dtype))


class Reflections(Stacked):
    """A product of reflections, given by their vectors, below the diagonal of a matrix, and factors."""

    def check(self, a: ShapedArray, taus: ShapedArray) -> None:
        check_rank(self.name, a)
        check_dtype(self.name, a.dtype)
        check_same("lax." + self.name, a, taus)
        if a.shape[:-2] != taus.shape[:-1] or taus.shape[-1] > min(a.shape[-2:]):
            raise ValueError(f"Incompatible arguments to {self.name}: {a} and {taus}.")


class HouseholderProduct(Reflections):
    """The first columns of the product."""

    def infer(self, a: ShapedArray, taus: ShapedArray) -> ShapedArray:
        self.check(a, taus)
        if a.shape[-1] > a.shape[-2]:
            raise ValueError(f"Incompatible arguments to householder_product: {a} and {taus}.")
        return ShapedArray(a.shape, a.dtype)

    def eval(self, a: np.ndarray, taus: np.ndarray) -> np.ndarray:
        out = np.empty(a.shape, a.dtype)
        if not a.size:
            return out
        if not taus.shape[-1]:
            out[...] = np.eye(*a.shape[-2:])
            return out
        orgqr = lapack("orgqr" if a.dtype.kind == "f" else "ungqr", a.dtype)
        for index in np.ndindex(a.shape[:-2]):
            out[index] = orgqr(a[index], taus[index])[0]
        return out

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        out = self.bind(*primals)
        (a, taus), (da, dtaus) = primals, tangents
        return out, _turned(a, taus, da, dtaus, identity(out.shape, out.dtype), True, False)


class Ormqr(Reflections):
    """Q C or C Q, or with Q^H in place of Q, where Q is the square product."""

    def work(self, avals: Sequence[ShapedArray], outs: Sequence[ShapedArray], programs: Sequence[Work],
             **params: Any) -> Work:
        return Work(4.0 * outs[0].size * avals[1].shape[-1])

    def infer(self, a: ShapedArray, taus: ShapedArray, c: ShapedArray, *, left: bool, transpose: bool) -> ShapedArray:
        check_same("lax.ormqr", a, taus, c)
        check_rank(self.name, c, 2)
        if not a.ndim == taus.ndim + 1 == c.ndim:
            raise TypeError("All inputs to ormqr must have the same number of batch dimensions, but got "
                            f"{[a.ndim - 2, taus.ndim - 1, c.ndim - 2]} batch dimensions for the inputs.")
        self.check(a, taus)
        if a.shape[:-2] != c.shape[:-2] or a.shape[-2] != c.shape[-2 if left else -1]:
            raise ValueError(f"ormqr with {left=} expects c to have the same number of {'rows' if left else 'columns'} "
                             f"as the Householder matrix a has rows. Got a shape {a.shape} and c shape {c.shape}.")
        return ShapedArray(c.shape, c.dtype)

    def eval(self, a: np.ndarray, taus: np.ndarray, c: np.ndarray, *, left: bool, transpose: bool) -> np.ndarray:
        k = taus.shape[-1]
        if not c.size or not k:
            return c.copy()
        real = c.dtype.kind == "f"
        ormqr = lapack("ormqr" if real else "unmqr", c.dtype)
        trans = "N" if not transpose else "T" if real else "C"
        out, room = np.empty_like(c), ormqr_room(c.shape[-1 if left else -2])
        for index in np.ndindex(c.shape[:-2]):
            packed = np.array(a[index][:, :k], order="F")  # LAPACK writes to it, though it puts back what was there
            out[index] = ormqr("L" if left else "R", trans, packed, taus[index], c[index], room)[0]
        return out

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        (a, taus, c), (da, dtaus, dc) = primals, tangents
        out = self.bind(*primals, **params)
        slope = None if isinstance(dc, Zero) else self.bind(a, taus, dc, **params)
        if not (isinstance(da, Zero) and isinstance(dtaus, Zero)):
            turned = _turned(a, taus, da, dtaus, c, params["left"], params["transpose"])
            slope = turned if slope is None else add(slope, turned)
        return out, Zero(tangent_aval(aval_of(out))) if slope is None else slope

    def transpose(self, ct: Any, a: Any, taus: Any, c: Any, **params: Any) -> Sequence[Any]:
        if isinstance(a, Linear) or isinstance(taus, Linear):
            raise self._missing("Transposition (reverse-mode differentiation)",
                                "It is linear in its last operand only.")
        if isinstance(ct, Zero):
            return [None, None, Zero(c.aval)]
        flipped = {**params, "transpose": not params["transpose"]}
        return [None, None, conjugate(self.bind(a, taus, conjugate(ct), **flipped))]


def ormqr_room(size: int) -> int:
    """The size of the work array of ormqr, for the size of `c` that it leaves as it is, in blocks of up to 64."""
    return 64 * size + 65 * 64


def _turned(a: Any, taus: Any, da: Any, dtaus: Any, c: Any, left: bool, transpose: bool) -> Any:
    """dQ C (or C dQ, or with dQ^H), for the product Q = 1 - V T V^H of reflections that change."""
    k = taus.shape[-1]
    v, dv = reflectors(a, k), strictly_lower(columns(instantiate(da), 0, k))
    factors, d_factors = (expand_dims(x, (last(a),)) for x in (taus, instantiate(dtaus)))  # D x is factors * x
    s = _strictly_upper(batch_matmul(adjoint(v), v))
    ds = _strictly_upper(add(batch_matmul(adjoint(dv), v), batch_matmul(adjoint(v), dv)))
    one = identity(s.shape, s.dtype)
    system = add(one, mul(factors, s))
    t = triangular_solve(system, mul(factors, one), left_side=True, unit_diagonal=True)
    change = add(mul(d_factors, s), mul(factors, ds))
    dt = triangular_solve(system, sub(mul(d_factors, one), batch_matmul(change, t)), left_side=True, unit_diagonal=True)

    def product(x: Any, middle: Any, y: Any) -> Any:
        """x middle y^H, or its adjoint, applied."""
        factors = (y, adjoint(middle), adjoint(x)) if transpose else (x, middle, adjoint(y))
        out = c
        for factor in reversed(factors) if left else factors:
            out = batch_matmul(factor, out) if left else batch_matmul(out, factor)
        return out

    return neg(add(add(product(dv, t, v), product(v, dt, v)), product(v, t, dv)))



def _strictly_upper(x: Any) -> Any:
    return masked(x, lambda i, j: gt(j, i))


geqrf_p = Geqrf("geqrf")
householder_product_p = HouseholderProduct("householder_product")
ormqr_p = Ormqr("ormqr")


def geqrf(a: Any) -> tuple[Any, Any]:
    """R in the upper triangle, and the reflections whose product is Q: (packed [..., m, n], taus)."""
    packed, taus = geqrf_p.bind(a)
    return packed, taus


def householder_product(a: Any, taus: Any) -> Any:
    """The first n columns of H_0 H_1 ..., where H_i = 1 - taus[i] v v^H, and v is column i of `a` [..., m, n] with
    a one in row i and zeros before it."""
    return householder_product_p.bind(a, taus)


def ormqr(a: Any, taus: Any, c: Any, *, left: bool = True, transpose: bool = False) -> Any:
    """Q c (or c Q unless `left`) for the product Q [..., m, m] of reflections, which is never made.

    `a` [..., m, n] holds their vectors below its diagonal and `taus` [..., k] their factors, as of LAPACK's geqrf;
    `transpose` takes Q^H in place of Q. The result has the shape of `c`. TypeError where dtypes or numbers of
    dimensions differ, ValueError for sizes that do not fit.

    >>> packed, taus = jnp.linalg.qr(jnp.array([[3.0], [4.0]]), mode="raw")
    >>> lax.linalg.ormqr(packed.mT, taus, jnp.array([[3.0], [4.0]]), transpose=True)
    Array([[-5.],
           [ 0.]], dtype=float32)
    """
    return ormqr_p.bind(a, taus, c, left=bool(left), transpose=bool(transpose))
