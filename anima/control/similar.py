"""Matrices similar to a given one by unitary Q, A = Q B Q^H: Hessenberg, tridiagonal and Schur forms.

    packed, taus = hessenberg(A)          B is zero below the first subdiagonal, Q a product of reflections
    T, Z = schur(A)                       B is upper triangular (for real A, with blocks of 2 for complex eigenvalues)

Derivatives: Q changes by Q W with skew-Hermitian W, B by M - W B + B W where M = Q^H dA Q. That B keeps its zeros
determines W column by column, each from those before it: the rules are loops, which is why these stand here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anima.control.scan import scan
from anima.core.avals import Shape, ShapedArray
from anima.ops.broadcast import broadcasted_iota, full, full_like
from anima.ops.contract import batch_matmul
from anima.ops.elementwise import (
    abs,
    add,
    and_,
    complex as make_complex,
    conj,
    convert,
    div,
    eq,
    ge,
    gt,
    imag,
    le,
    mul,
    ne,
    neg,
    or_,
    real,
    select,
    sqrt,
    sub,
)
from anima.ops.index import dynamic_slice_in_dim
from anima.ops.linalg import (
    Factorization,
    adjoint,
    compare,
    diagonal_part,
    hermitian,
    identity,
    is_complex,
    masked,
    strictly_lower,
    triangular_solve,
    upper_part,
)
from anima.ops.linalg_factor import identities, last, room_to_work
from anima.ops.linalg_reflect import columns, householder_product, reflection_tangents, reflectors, rows
from anima.ops.linalg_spectral import complex_type, real_type, row
from anima.ops.shape import pad, rev
from anima.routines import lapack

_I32 = np.dtype(np.int32)


def below(x: Any) -> Any:
    """The elements just below the diagonal, as vectors."""
    n = x.shape[-1]
    return diagonal_part(columns(rows(x, 1, n), 0, n - 1))


def _places(x: Any) -> tuple[Any, Any]:
    """The index of each row as one column, and of each column as one row."""
    axis = last(x)
    return (broadcasted_iota(_I32, (*x.shape[:-1], 1), axis - 1),
            broadcasted_iota(_I32, (*x.shape[:-2], 1, x.shape[-1]), axis))


def _embedded(x: Any) -> Any:
    """Matrices with a first row and column in front: those of the identity."""
    n = x.shape[-1] + 1
    zero = full((), 0, x.dtype)
    inner = pad(x, zero, [*[(0, 0, 0)] * (last(x) - 1), (1, 0, 0), (1, 0, 0)])
    corner = compare(lambda i, j: and_(eq(i, j), eq(i, 0)), (*x.shape[:-2], n, n))
    return add(inner, convert(corner, x.dtype))


# ---------------------------------------------------------------- Hessenberg and tridiagonal forms


def _hessenberg_turn(h: Any, m: Any) -> Any:
    """W of the reduction to Hessenberg form `h`, whose first row is zero; `m` is Q^H dA Q.

    Column j of the zeros of h gives column j + 1 of W; its diagonal keeps the elements below h's diagonal real.
    """
    n, whole = h.shape[-1], is_complex(h)
    places, across = _places(h)

    def step(w: Any, j: Any) -> tuple[Any, None]:
        column = dynamic_slice_in_dim(h, j, 1, axis=last(h))
        before = select(le(places, j), column, full_like(column, 0))
        turned = batch_matmul(h, dynamic_slice_in_dim(w, j, 1, axis=last(h)))
        change = sub(add(dynamic_slice_in_dim(m, j, 1, axis=last(h)), turned), batch_matmul(w, before))
        found = div(change, dynamic_slice_in_dim(column, add(j, 1), 1, axis=last(h) - 1))
        at = convert(eq(across, add(j, 1)), h.dtype)
        low = mul(select(gt(places, add(j, 1)), found, full_like(found, 0)), at)
        w = add(w, sub(low, adjoint(low)))
        if not whole:
            return w, None
        phase = imag(select(eq(places, add(j, 1)), found, full_like(found, 0)))
        return add(w, mul(make_complex(full_like(phase, 0), phase), at)), None

    steps = max(n - 1 if whole else n - 2, 0)
    return scan(step, full_like(h, 0), broadcasted_iota(_I32, (steps,), 0))[0]


def similarity(packed: Any, taus: Any) -> Any:
    """Q of a reduction to Hessenberg form."""
    n = packed.shape[-1]
    if n < 2:
        return identity(packed.shape, packed.dtype)
    return _embedded(householder_product(columns(rows(packed, 1, n), 0, n - 1), taus))


def _hessenberg_tangents(packed: Any, taus: Any, h: Any, t: Any) -> tuple[Any, Any, Any]:
    """Changes of (the similar matrix `h`, the vectors of the reflections, their factors) for a change `t`."""
    n = h.shape[-1]
    inner = columns(rows(packed, 1, n), 0, n - 1)
    q = householder_product(inner, taus)
    whole = _embedded(q)
    m = batch_matmul(adjoint(whole), batch_matmul(t, whole))
    w = _hessenberg_turn(h, m)
    dq = batch_matmul(q, columns(rows(w, 1, n), 1, n))
    dv, dtaus = reflection_tangents(reflectors(inner, n - 1), q, dq)
    return add(m, sub(batch_matmul(h, w), batch_matmul(w, h))), dv, dtaus


def _lowered(x: Any) -> Any:
    """Matrices with a row of zeros above and a column of zeros at the end."""
    zero = full((), 0, x.dtype)
    return pad(x, zero, [*[(0, 0, 0)] * (last(x) - 1), (1, 0, 0), (0, 1, 0)])


class Hessenberg(Factorization):
    """The Hessenberg form (down to the first subdiagonal), with the reflections' vectors below; and their factors."""

    square = True

    def types(self, batch: Shape, m: int, n: int, dtype: Any) -> list[ShapedArray]:
        return [ShapedArray((*batch, n, n), dtype), ShapedArray((*batch, max(n - 1, 0)), dtype)]

    def compute(self, x: np.ndarray) -> Sequence[np.ndarray]:
        outs, n = self.room(x), x.shape[-1]
        outs[0][...] = x
        if n > 1:
            (size,) = room_to_work("gehrd", x.dtype, n)
            for index in np.ndindex(x.shape[:-2]):
                outs[0][index], outs[1][index], _ = lapack("gehrd", x.dtype)(x[index], lwork=size)
        return outs

    def tangents(self, outs: Sequence[Any], x: Any, t: Any) -> Sequence[Any]:
        packed, taus = outs
        if x.shape[-1] < 2:
            return [t, None]
        h = masked(packed, lambda i, j: ge(add(j, 1), i))
        dh, dv, dtaus = _hessenberg_tangents(packed, taus, h, t)
        kept = masked(dh, lambda i, j: ge(add(j, 1), i))
        return [add(kept, _lowered(dv)), dtaus]


class Tridiagonal(Factorization):
    """One triangle with the tridiagonal form and, beyond it, the reflections' vectors; diagonal; the elements next to
    it; the reflections' factors. The other triangle is that of the operand."""

    square = True

    def types(self, batch: Shape, m: int, n: int, dtype: Any, *, lower: bool) -> list[ShapedArray]:
        off = (*batch, max(n - 1, 0))
        return [ShapedArray((*batch, n, n), dtype), ShapedArray((*batch, n), real_type(dtype)),
                ShapedArray(off, real_type(dtype)), ShapedArray(off, dtype)]

    def compute(self, x: np.ndarray, *, lower: bool) -> Sequence[np.ndarray]:
        outs, n = self.room(x, lower=lower), x.shape[-1]
        outs[0][...] = x
        if n == 1:
            outs[0][...], outs[1][...] = x.real, x[..., 0].real
        elif x.size:
            name = "hetrd" if x.dtype.kind == "c" else "sytrd"
            (size,) = room_to_work(name, x.dtype, n, lower=lower)
            for index in np.ndindex(x.shape[:-2]):
                *found, _ = lapack(name, x.dtype)(x[index], lower=lower, lwork=size)
                for out, value in zip(outs, found, strict=True):
                    out[index] = value
        return outs

    def tangents(self, outs: Sequence[Any], x: Any, t: Any, *, lower: bool) -> Sequence[Any]:
        packed, d, e, taus = outs
        n, axes = x.shape[-1], (last(x) - 1, last(x))
        if n < 2:
            dd = real(t) if is_complex(x) else t
            return [convert(dd, x.dtype), diagonal_part(dd), None, None]
        if not lower:  # the same from the other end
            turned = self.tangents([rev(packed, axes), *(rev(v, (last(v),)) for v in (d, e, taus))], x, rev(t, axes),
                                   lower=True)
            return [rev(turned[0], axes), *(rev(v, (last(v),)) for v in turned[1:])]
        h = hermitian(masked(packed, lambda i, j: and_(ge(i, j), ge(add(j, 1), i))), True)
        dh, dv, dtaus = _hessenberg_tangents(packed, taus, h, hermitian(t, True))
        band = masked(dh, lambda i, j: and_(ge(i, j), ge(add(j, 1), i)))
        other = masked(t, lambda i, j: gt(j, i))
        dd, de = diagonal_part(dh), below(dh)
        if is_complex(x):
            dd, de = real(dd), real(de)
        return [add(add(band, other), _lowered(dv)), dd, de, dtaus]


hessenberg_p = Hessenberg("hessenberg")
tridiagonal_p = Tridiagonal("tridiagonal")


def hessenberg(a: Any) -> tuple[Any, Any]:
    """(packed [..., n, n], taus [..., n - 1]) of a [..., n, n] = Q H Q^H.

    H is `packed` down to the first subdiagonal; below that are the vectors of the reflections whose product is Q, with
    factors `taus`, as of LAPACK's gehrd. TypeError or ValueError unless `a` is square.

    >>> packed, taus = lax.linalg.hessenberg(jnp.ones((3, 3)))
    >>> packed[:2, :2].round(3)
    Array([[ 1.   , -1.414],
           [-1.414,  2.   ]], dtype=float32)
    """
    packed, taus = hessenberg_p.bind(a)
    return packed, taus


def tridiagonal(a: Any, *, lower: bool = True) -> tuple[Any, Any, Any, Any]:
    """(packed [..., n, n], d [..., n], e [..., n - 1], taus [..., n - 1]) of Hermitian a [..., n, n] = Q T Q^H.

    T has the real diagonal `d` and `e` beside it. The triangle of `a` that `lower` says is read, and holds in `packed`
    T and beyond it the vectors of the reflections whose product is Q; the other one is that of `a`.
    """
    packed, d, e, taus = tridiagonal_p.bind(a, lower=bool(lower))
    return packed, d, e, taus


# ---------------------------------------------------------------- Schur forms


def _triangular_turn(t: Any, m: Any) -> Any:
    """The strictly lower part of W for triangular `t`: of t W - W t + m nothing is below the diagonal."""
    n = t.shape[-1]
    places, across = _places(t)
    eye = identity(t.shape, t.dtype)

    def step(w: Any, j: Any) -> tuple[Any, None]:
        column = dynamic_slice_in_dim(t, j, 1, axis=last(t))
        before = select(gt(j, places), column, full_like(column, 0))
        right = sub(batch_matmul(w, before), dynamic_slice_in_dim(m, j, 1, axis=last(t)))
        right = select(gt(places, j), right, full_like(right, 0))
        value = dynamic_slice_in_dim(column, j, 1, axis=last(t) - 1)
        # t - t[j, j] in the rows below row j, the identity in the others
        inside = convert(gt(places, j), t.dtype)
        system = add(mul(inside, sub(t, mul(eye, value))), mul(sub(1.0, inside), eye))
        found = triangular_solve(system, right, left_side=True)
        return add(w, mul(found, convert(eq(across, j), t.dtype))), None

    return scan(step, full_like(t, 0), broadcasted_iota(_I32, (n,), 0))[0]


def block_rotations(t: Any) -> Any:
    """Unitary U, of blocks, for which U^H t U is triangular: `t` is real and triangular but for blocks of 2."""
    n, to = t.shape[-1], complex_type(t.dtype)
    c = below(t)
    low, high = columns(diagonal_part(t), 0, n - 1), columns(diagonal_part(t), 1, n)
    b = diagonal_part(columns(rows(t, 0, n - 1), 1, n))
    half = mul(sub(low, high), 0.5)
    inner = add(mul(half, half), mul(b, c))
    root = sqrt(abs(inner))
    nothing = full_like(root, 0)
    first = select(ge(inner, 0), make_complex(add(half, root), nothing), make_complex(half, root))
    size = sqrt(add(add(mul(real(first), real(first)), mul(imag(first), imag(first))), mul(c, c)))
    blocks = ne(c, 0)
    size = select(blocks, size, full_like(size, 1))
    cosine, sine = (div(x, convert(size, to)) for x in (first, convert(c, to)))
    zero, no = full((), 0, to), full((), False, np.dtype(np.bool_))

    def ended(x: Any, fill: Any, front: int) -> Any:
        return pad(x, fill, [*[(0, 0, 0)] * last(x), (front, 1 - front, 0)])

    first_of, second_of = (ended(blocks, no, k) for k in (0, 1))
    diagonal = select(first_of, ended(cosine, zero, 0), select(
        second_of, conj(ended(cosine, zero, 1)), full_like(ended(cosine, zero, 0), 1)))
    down = select(first_of, ended(sine, zero, 0), full_like(diagonal, 0))
    shape = (*t.shape[:-2], n, n)

    def put(vector: Any, offset: int) -> Any:
        """A matrix with the j-th element of the vector in column j, `offset` below the diagonal."""
        mask = compare(lambda i, j: eq(i, add(j, offset)), shape)
        return mul(convert(mask, to), row(vector))

    up = ended(select(blocks, sine, full_like(sine, 0)), zero, 1)
    return add(add(put(diagonal, 0), put(down, 1)), neg(put(up, -1)))


class Schur(Factorization):
    """The Schur form T and, if asked for, the unitary matrix Z of A = Z T Z^H."""

    square = True

    def types(self, batch: Shape, m: int, n: int, dtype: Any, *, compute_schur_vectors: bool, sort_eig_vals: bool,
              select_callable: None) -> list[ShapedArray]:
        return [ShapedArray((*batch, n, n), dtype)] * (1 + compute_schur_vectors)

    def compute(self, x: np.ndarray, *, compute_schur_vectors: bool, **params: Any) -> Sequence[np.ndarray]:
        outs = self.room(x, compute_schur_vectors=compute_schur_vectors, **params)
        if not x.size:
            return [identities(out) for out in outs]
        gees = lapack("gees", x.dtype)
        size = schur_room(gees, x.shape[-1], x.dtype)
        for index in np.ndindex(x.shape[:-2]):
            t, *_, z, _, info = [np.nan] * 2 + [1] * 2 if not np.isfinite(x[index]).all() else gees(
                _none, x[index], compute_v=compute_schur_vectors, lwork=size)
            for out, found in zip(outs, (t, z), strict=False):
                out[index] = found if info == 0 else np.nan
        return outs

    def tangents(self, outs: Sequence[Any], x: Any, t: Any, *, compute_schur_vectors: bool,
                 **params: Any) -> Sequence[Any]:
        form, z = outs if compute_schur_vectors else self.bind(x, compute_schur_vectors=True, **params)
        m = batch_matmul(adjoint(z), batch_matmul(t, z))
        if is_complex(x):
            low = _triangular_turn(form, m)
            w = sub(low, adjoint(low))
            kept = upper_part(sub(add(m, batch_matmul(form, w)), batch_matmul(w, form)))
        else:
            w = _block_turn(form, m)
            change = sub(add(m, batch_matmul(form, w)), batch_matmul(w, form))
            in_block = and_(compare(gt, form.shape), ne(form, 0))
            kept = select(or_(compare(le, form.shape), in_block), change, full_like(change, 0))
        return [kept, batch_matmul(z, w)][:len(outs)]


def _block_turn(form: Any, m: Any) -> Any:
    """W for a real form with blocks of 2: below them as for the triangular form that it turns into, and in each block
    the rotation that keeps the two elements on the diagonal equal."""
    n = form.shape[-1]
    if n == 1:
        return full_like(form, 0)
    u = block_rotations(form)

    def turned(x: Any, a: Any, b: Any) -> Any:
        return batch_matmul(batch_matmul(a, x), b)

    wide = turned(convert(form, u.dtype), adjoint(u), u)
    found = _triangular_turn(upper_part(wide), turned(convert(m, u.dtype), adjoint(u), u))
    in_block = and_(compare(gt, form.shape), ne(form, 0))
    low = real(turned(select(in_block, full_like(found, 0), found), u, adjoint(u)))
    w = sub(strictly_lower(low), adjoint(strictly_lower(low)))
    change = diagonal_part(sub(add(m, batch_matmul(form, w)), batch_matmul(w, form)))
    c, b = below(form), diagonal_part(columns(rows(form, 0, n - 1), 1, n))
    blocks = ne(c, 0)
    total = add(b, c)
    safe = and_(blocks, ne(total, 0))  # a multiple of a rotation stays one however it is turned
    gap = sub(columns(change, 1, n), columns(change, 0, n - 1))
    angle = select(safe, div(gap, mul(select(safe, total, full_like(total, 1)), 2.0)), full_like(gap, 0))
    angle = pad(angle, full((), 0, angle.dtype), [*[(0, 0, 0)] * last(angle), (0, 1, 0)])
    step = mul(convert(compare(lambda i, j: eq(i, add(j, 1)), form.shape), form.dtype), row(angle))
    return add(w, sub(step, adjoint(step)))


def _none(*eigenvalue: Any) -> bool:
    return False


def schur_room(gees: Any, n: int, dtype: Any) -> int:
    """The size of the work array that gees asks for."""
    return int(gees(_none, np.zeros((n, n), dtype), lwork=-1)[-2][0].real)


schur_p = Schur("schur")


def schur(x: Any, *, compute_schur_vectors: bool = True, sort_eig_vals: bool = False,
          select_callable: Any = None) -> list[Any]:
    """[T, Z] of x [..., n, n] = Z T Z^H with unitary Z; [T] alone without `compute_schur_vectors`.

    T is upper triangular; of real `x`, with a block of 2 rows for each pair of complex eigenvalues. NaN where the
    iteration finds no end. TypeError or ValueError if `x` is not square, NotImplementedError for `sort_eig_vals` or
    `select_callable`.
    """
    if sort_eig_vals or select_callable is not None:
        raise NotImplementedError("schur: the order of eigenvalues cannot be chosen (sort_eig_vals, select_callable).")
    return schur_p.bind(x, compute_schur_vectors=bool(compute_schur_vectors), sort_eig_vals=False, select_callable=None)
