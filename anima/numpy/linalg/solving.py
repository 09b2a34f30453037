"""Systems of equations, inverses, determinants, ranks and powers of matrices."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from anima.api.eager import compiled, repeated
from anima.core import dtypes
from anima.core.array import Array
from anima.numpy.creation import eye
from anima.numpy.diagonals import diagonal, trace
from anima.numpy.elementwise import abs, conj
from anima.numpy.functions import log
from anima.numpy.linalg.decompositions import svd, svdvals
from anima.numpy.linalg.determinants import determinant, parity
from anima.numpy.linalg.norms import norm
from anima.numpy.linear import matmul
from anima.numpy.manipulation import broadcast_shapes, broadcast_to, matrix_transpose, moveaxis, reshape
from anima.numpy.promote import (
    as_array,
    as_arrays,
    is_complex,
    promote_dtypes,
    promote_dtypes_inexact,
    static_value,
)
from anima.numpy.reductions import any as any_of, max as max_of, prod, sum as sum_of
from anima.numpy.selection import where
from anima.ops import elementwise as ew, linalg as la, linalg_factor as factor, linalg_reflect as reflect, shape as sh
from anima.transforms.custom import custom_jvp

ArrayLike = Any


class SlogdetResult(NamedTuple):
    """Results of `slogdet`."""

    sign: Array
    logabsdet: Array


def _square(name: str, a: Array) -> None:
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise ValueError(f"Argument to {name} must have shape [..., n, n], got {a.shape}.")


# ---------------------------------------------------------------- solutions


@compiled
def solve(a: ArrayLike, b: ArrayLike) -> Array:
    """x with a x = b for a [..., n, n] and b [n] or [..., n, m]; the leading axes broadcast.

    Infinities and NaN where `a` is singular. ValueError if shapes do not fit.

    >>> jnp.linalg.solve(jnp.array([[2.0, 0.0], [0.0, 4.0]]), jnp.array([2.0, 2.0]))
    Array([1. , 0.5], dtype=float32)
    """
    a, b = promote_dtypes_inexact("solve", a, b)
    if a.ndim < 2:
        raise ValueError(f"left hand array must be at least two dimensional; got {a.shape=}")
    if not b.ndim:
        raise ValueError(f"right hand array must be at least one dimensional; got {b.shape=}")
    _square("solve", a)
    vector = b.ndim == 1
    if b.shape[-1 if vector else -2] != a.shape[-1]:
        raise ValueError(f"inconsistent sizes for solve: {a.shape} and {b.shape} differ in the number of rows")
    out = _solve(a, sh.expand_dims(b, (1,)) if vector else b)
    return sh.squeeze(out, (out.ndim - 1,)) if vector else out


def _solve(a: Array, b: Array) -> Array:
    """Solutions for matrices `b`, with broadcasting."""
    if a.ndim == 2 and b.ndim > 2:  # one matrix: all right sides are columns
        columns = moveaxis(b, -2, 0)
        return moveaxis(reshape(_solve(a, reshape(columns, (a.shape[0], -1))), columns.shape), 0, -2)
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    factors, permutation = _factors(a)
    n = a.shape[-1]
    return la.lu_solve_p.bind(broadcast_to(a, (*batch, n, n)), broadcast_to(factors, (*batch, n, n)),
                              broadcast_to(permutation, (*batch, n)), broadcast_to(b, (*batch, *b.shape[-2:])),
                              transpose_a=False, conjugate_a=False)


def _factors(a: Array) -> tuple[Array, Array]:
    """LU factors and the order of rows, which derivatives do not look into."""
    factors, _, permutation = factor.lu(ew.stop_gradient(a))
    return factors, permutation


@compiled
def inv(a: ArrayLike) -> Array:
    """The inverses of a [..., n, n]; infinities and NaN where there is none. ValueError if `a` is not square."""
    (a,) = promote_dtypes_inexact("inv", a)
    _square("inv", a)
    return _solve(a, la.identity(a.shape, a.dtype))


@repeated
def pinv(a: ArrayLike, rtol: ArrayLike | None = None, hermitian: bool = False, *,
         rcond: ArrayLike | None = None) -> Array:
    """The pseudo-inverses [..., n, m] of a [..., m, n] (Moore, Penrose).

    Singular values up to `rtol` (default 10 max(m, n) eps; also called `rcond`) times the largest count as zero.
    Derivative: Golub and Pereyra, "The differentiation of pseudo-inverses" (1973), for matrices of constant rank.
    """
    if rtol is not None and rcond is not None:
        raise ValueError("pinv: only one of rtol and rcond may be specified.")
    (a,) = promote_dtypes_inexact("pinv", a)
    if a.ndim < 2:
        raise ValueError(f"pinv requires arrays of at least two dimensions, got shape {a.shape}")
    rtol = rcond if rtol is None else rtol
    return _pinv(a, 10.0 * max(a.shape[-2:]) * float(dtypes.finfo(a.dtype).eps) if rtol is None else rtol,
                 hermitian)


@functools.partial(custom_jvp, nondiff_argnums=(2,))
def _pinv(a: Array, rtol: Any, hermitian: bool) -> Array:
    if not a.size:
        return sh.full((*a.shape[:-2], a.shape[-1], a.shape[-2]), 0, a.dtype)
    u, s, vh = svd(conj(a), full_matrices=False, hermitian=hermitian)
    (limit,) = as_arrays("pinv", rtol)
    limit = ew.convert(limit, s.dtype)
    limit = sh.expand_dims(limit, (limit.ndim,)) * s[..., :1]
    large, s = (sh.expand_dims(x, (x.ndim,)) for x in (s > limit, s))
    return matmul(matrix_transpose(vh), where(large, matrix_transpose(u) / where(large, s, 1).astype(u.dtype), 0))


@_pinv.defjvp
def _pinv_jvp(hermitian: bool, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    (a, rtol), (t, _) = primals, tangents
    p = _pinv(a, rtol, hermitian)

    def h(x: Array) -> Array:
        return conj(matrix_transpose(x))

    left = matmul(p, matmul(h(p), h(t)))
    right = matmul(matmul(h(t), h(p)), p)
    slope = -matmul(matmul(p, t), p) + left - matmul(matmul(left, a), p) + right - matmul(p, matmul(a, right))
    return p, slope


@repeated
def lstsq(a: ArrayLike, b: ArrayLike, rcond: float | None = None, *,
          numpy_resid: bool = False) -> tuple[Array, Array, Array, Array]:
    """(x, squared residuals, rank, singular values): the shortest x that makes the length of a x - b least.

    a is [m, n], b [m] or [m, k]. Singular values up to `rcond` (default eps max(m, n)) times the largest count as
    zero. `numpy_resid` gives, as NumPy does, no residuals where the rank is not n or m <= n, for which the rank must
    be known. TypeError or ValueError if shapes do not fit.
    """
    a, b = promote_dtypes_inexact("lstsq", a, b)
    if a.shape[:1] != b.shape[:1]:
        raise ValueError("Leading dimensions of input arrays must match")
    if b.ndim not in (1, 2):
        raise TypeError(f"{b.ndim}-dimensional array given. Array must be one or two-dimensional")
    if a.ndim != 2:
        raise TypeError(f"{a.ndim}-dimensional array given. Array must be two-dimensional")
    m, n = a.shape
    columns = sh.expand_dims(b, (1,)) if b.ndim == 1 else b
    eps = float(dtypes.finfo(a.dtype).eps)
    if a.size == 0:
        s = sh.full((0,), 0, dtypes.to_real(a.dtype))
        rank: Any = sh.full((), 0, np.dtype(np.int32))
        x = sh.full((n, columns.shape[1]), 0, a.dtype)
    else:
        limit = eps * max(n, m) if rcond is None else where(as_array(rcond) < 0, eps, rcond)
        u, s, vh = svd(a, full_matrices=False)
        large = (s > 0) & (s >= limit * s[0])
        rank = sum_of(large)
        inverse = where(large, 1 / where(large, s, 1), 0).astype(a.dtype)
        x = matmul(conj(vh.T), sh.expand_dims(inverse, (1,)) * matmul(conj(u.T), columns))
    if numpy_resid and (m <= n or int(static_value(rank, "lstsq with numpy_resid must know the rank.")) < n):
        residuals = sh.full((0,), 0, s.dtype)
    else:
        rest = columns - matmul(a, x)
        residuals = sum_of((rest * conj(rest)).real, axis=0)
    return (x[:, 0] if b.ndim == 1 else x), residuals, rank, s


@repeated
def tensorsolve(a: ArrayLike, b: ArrayLike, axes: Sequence[int] | None = None) -> Array:
    """x with tensordot(a, x, x.ndim) = b; the axes `axes` of `a` are moved to its end first."""
    a, b = promote_dtypes_inexact("tensorsolve", a, b)
    if axes is not None:
        a = moveaxis(a, axes, tuple(range(a.ndim - len(axes), a.ndim)))
    unknowns = a.shape[b.ndim:]
    if a.shape[:b.ndim] != b.shape:
        raise ValueError("After moving axes to end, leading shape of a must match shape of b. got "
                         f"a.shape={a.shape}, b.shape={b.shape}")
    if b.size != math.prod(unknowns):
        raise ValueError("Input arrays must have prod(a.shape[:b.ndim]) == prod(a.shape[b.ndim:]); "
                         f"got a.shape={a.shape}, b.ndim={b.ndim}.")
    return reshape(solve(reshape(a, (b.size, b.size)), reshape(b, (b.size,))), unknowns)


@repeated
def tensorinv(a: ArrayLike, ind: int = 2) -> Array:
    """The inverse in the sense of tensordot(a, inverse, ind), where the first `ind` axes of `a` are the rows."""
    (a,) = promote_dtypes_inexact("tensorinv", a)
    ind = operator.index(ind)
    if ind <= 0:
        raise ValueError(f"ind must be a positive integer; got ind={ind}")
    rows, columns = a.shape[:ind], a.shape[ind:]
    if math.prod(rows) != math.prod(columns):
        raise ValueError(f"The first {ind} axes and the others must have equal products of sizes, got shape {a.shape}")
    return reshape(inv(reshape(a, (math.prod(rows), math.prod(columns)))), (*columns, *rows))


# ---------------------------------------------------------------- determinants


@custom_jvp
def _slogdet_lu(a: Array) -> tuple[Array, Array]:
    factors, pivots, _ = factor.lu(a)
    values = diagonal(factors, axis1=-2, axis2=-1)
    sizes = abs(values)
    signs = prod(where(sizes == 0, 0, values / where(sizes == 0, 1, sizes).astype(a.dtype)), axis=-1)
    return signs * parity(pivots, a.dtype), sum_of(log(sizes), axis=-1)


@custom_jvp
def _slogdet_qr(a: Array) -> tuple[Array, Array]:
    packed, taus = reflect.geqrf(a)
    values = diagonal(packed, axis1=-2, axis2=-1)
    # A reflection 1 - tau v v^H has determinant -tau / conj(tau).
    turns = where(taus == 0, 1, -taus / where(taus == 0, 1, conj(taus)))
    sizes = abs(values)
    signs = where(sizes == 0, 0, values / where(sizes == 0, 1, sizes).astype(a.dtype))
    return prod(turns * signs, axis=-1), sum_of(log(sizes), axis=-1)


def _slogdet_jvp(primals: Sequence[Any], tangents: Sequence[Any], method: Any = None) -> tuple[Any, Any]:
    """The derivative of log det A is the trace of A^-1 dA."""
    (a,), (t,) = primals, tangents
    sign, size = method(a)
    slope = trace(_solve(a, t), axis1=-1, axis2=-2)
    if is_complex(a.dtype):
        return (sign, size), (sign * ew.complex(sh.full_like(slope.real, 0), slope.imag), slope.real)
    return (sign, size), (sh.full_like(sign, 0), slope)


_slogdet_lu.defjvp(functools.partial(_slogdet_jvp, method=_slogdet_lu))
_slogdet_qr.defjvp(functools.partial(_slogdet_jvp, method=_slogdet_qr))


@compiled
def slogdet(a: ArrayLike, *, method: str | None = None) -> SlogdetResult:
    """(sign, log of the absolute value) of the determinants of a [..., n, n]; (0, -inf) where that is 0.

    `method` is "lu" (the default) or "qr". ValueError for another, or if `a` is not square.
    """
    (a,) = promote_dtypes_inexact("slogdet", a)
    _square("slogdet()", a)
    if method not in (None, "lu", "qr"):
        raise ValueError(f"Unknown slogdet method '{method}'. Supported methods are 'lu' (`None`), and 'qr'.")
    return SlogdetResult(*(_slogdet_qr if method == "qr" else _slogdet_lu)(a))


@compiled
def det(a: ArrayLike) -> Array:
    """The determinants of a [..., n, n]. ValueError if `a` is not square."""
    (a,) = promote_dtypes_inexact("det", a)
    _square("det", a)
    n = a.shape[-1]
    if n == 0:
        return sh.full(a.shape[:-2], 1, a.dtype)
    if n == 1:
        return a[..., 0, 0]
    if n == 2:
        return a[..., 0, 0] * a[..., 1, 1] - a[..., 0, 1] * a[..., 1, 0]
    if n == 3:
        rows = [[a[..., i, j] for j in range(3)] for i in range(3)]
        (p, q, r), (s, t, u), (v, w, x) = rows
        return p * (t * x - u * w) - q * (s * x - u * v) + r * (s * w - t * v)
    return determinant(a)


# ---------------------------------------------------------------- numbers that describe a matrix


@compiled
def matrix_rank(M: ArrayLike, rtol: ArrayLike | None = None, *, hermitian: bool = False,
                tol: ArrayLike | None = None) -> Array:
    """The number of singular values above `rtol` (default max(m, n) eps) times the largest, or above `tol`."""
    if rtol is not None and tol is not None:
        raise ValueError("matrix_rank: only one of tol or rtol may be specified.")
    (x,) = promote_dtypes_inexact("matrix_rank", M)
    if x.ndim < 2:
        return any_of(x != 0).astype(np.int32)
    s = svd(x, full_matrices=False, compute_uv=False, hermitian=hermitian)
    if not s.shape[-1]:
        return sh.full(s.shape[:-1], 0, np.dtype(np.int32))
    if rtol is None:
        rtol = max(x.shape[-2:]) * float(dtypes.finfo(s.dtype).eps)
    limit = ew.convert(as_array(rtol if tol is None else tol, "matrix_rank", 1), s.dtype)
    limit = sh.expand_dims(limit, (limit.ndim,))
    return sum_of(s > (limit * max_of(s, axis=-1, keepdims=True) if tol is None else limit), axis=-1)


def cond(x: ArrayLike, p: Any = None) -> Array:
    """The condition numbers |x| |x^-1| of x [..., m, n] in the norm `p` (None or 2: the ratio of singular values).

    ValueError for other norms unless `x` is square.
    """
    (x,) = promote_dtypes_inexact("cond", x)
    if x.ndim < 2:
        raise ValueError(f"jnp.linalg.cond: input array must be at least 2D; got {x.shape=}")
    if not x.shape[-1] * x.shape[-2]:
        raise ValueError(f"jnp.linalg.cond: input array must not be empty; got {x.shape=}")
    if p is None or p in (2, -2):
        s = svdvals(x)
        if p != -2:
            return s[..., 0] / s[..., -1]
        out = s[..., -1] / s[..., 0]
    elif x.shape[-1] != x.shape[-2]:
        raise ValueError(f"jnp.linalg.cond: for {p=}, array must be square; got arr.shape={x.shape}")
    else:
        out = norm(x, ord=p, axis=(-2, -1)) * norm(inv(x), ord=p, axis=(-2, -1))
    singular = ew.ne(out, out) & ~any_of(x != x, axis=(-2, -1))
    return where(singular, np.inf, out)


# ---------------------------------------------------------------- powers and chains


@repeated
def matrix_power(a: ArrayLike, n: int) -> Array:
    """The n-th powers of a [..., m, m], by repeated squaring; of the inverse for negative n.

    TypeError unless n is an integer and `a` square.
    """
    a = as_array(a, "matrix_power")
    try:
        n = operator.index(n)
    except TypeError:
        raise TypeError(f"exponent must be an integer, got {n}") from None
    if a.ndim < 2:
        raise TypeError(f"{a.ndim}-dimensional array given. Array must be at least two-dimensional")
    if a.shape[-1] != a.shape[-2]:
        raise TypeError("Last 2 dimensions of the array must be square")
    if n == 0:
        return broadcast_to(eye(a.shape[-1], dtype=a.dtype), a.shape)
    if n < 0:
        a, n = inv(a), -n
    result = None
    while True:
        if n & 1:
            result = a if result is None else matmul(result, a)
        n >>= 1
        if not n:
            assert result is not None
            return result
        a = matmul(a, a)


@repeated
def multi_dot(arrays: Sequence[ArrayLike], *, precision: Any = None) -> Array:
    """The product of a chain of matrices in the order that takes the fewest multiplications.

    The first and the last may be vectors. ValueError if sizes do not fit.
    """
    if not len(arrays):
        raise ValueError("multi_dot requires at least one array")
    given = promote_dtypes("multi_dot", *arrays)
    if len(given) == 1:
        return given[0]
    if any(x.ndim != 2 for x in given[1:-1]) or any(x.ndim not in (1, 2) for x in (given[0], given[-1])):
        raise ValueError("multi_dot: all arrays must be matrices, but the first and the last, which may be vectors; "
                         f"got shapes {[x.shape for x in given]}")
    row, column = given[0].ndim == 1, given[-1].ndim == 1
    chain = [sh.expand_dims(given[0], (0,)) if row else given[0], *given[1:-1],
             sh.expand_dims(given[-1], (1,)) if column else given[-1]]
    sizes = [x.shape[0] for x in chain] + [chain[-1].shape[1]]
    if [x.shape[1] for x in chain] != sizes[1:]:
        raise ValueError(f"multi_dot: sizes do not match: {[x.shape for x in given]}")

    @functools.cache
    def best(i: int, j: int) -> tuple[int, int]:
        """(multiplications, where to cut) for the product of matrices i to j."""
        if i == j:
            return 0, i
        return min((best(i, k)[0] + best(k + 1, j)[0] + sizes[i] * sizes[k + 1] * sizes[j + 1], k) for k in range(i, j))

    def product(i: int, j: int) -> Array:
        k = best(i, j)[1]
        return chain[i] if i == j else matmul(product(i, k), product(k + 1, j), precision=precision)

    out = product(0, len(chain) - 1)
    gone = ((0,) if row else ()) + ((1,) if column else ())
    return sh.squeeze(out, gone) if gone else out
