"""Functions of matrices: the exponential, the square root, and any function of eigenvalues."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anima.api.autodiff import jvp
from anima.control.scan import scan
from anima.control.while_loop import while_loop
from anima.core import dtypes
from anima.core.array import Array
from anima.numpy import linalg as jnp_linalg
from anima.numpy.creation import of_sequences
from anima.numpy.diagonals import diagonal
from anima.numpy.elementwise import abs
from anima.numpy.functions import ceil, exp2, log2
from anima.numpy.linear import matmul
from anima.numpy.manipulation import concatenate
from anima.numpy.promote import promote_dtypes_inexact
from anima.numpy.reductions import all as all_of, max as max_of, min as min_of, sum as sum_of
from anima.numpy.selection import where
from anima.ops import elementwise as ew, linalg as la, linalg_spectral as spectral, shape as sh
from anima.ops.index import dynamic_slice_in_dim
from anima.ops.linalg_systems import sylvester_p
from anima.scipy.linalg.decompositions import adjoint, schur
from anima.scipy.linalg.operands import of_matrices
from anima.transforms.custom import custom_jvp
from anima.typing import ArrayLike

_I32 = np.dtype(np.int32)


# ---------------------------------------------------------------- exponential

# Degree of the Pade approximant and the largest norm that it is accurate for, by the size of the real type.
_PADE = {4: (7, 3.925724783138660), 8: (13, 5.371920351148152)}


def _pade(x: Array, degree: int) -> tuple[Array, Array]:
    """(Odd part, even part) of the numerator of the diagonal approximant of exp."""
    b = [float(math.factorial(2 * degree - k) // (math.factorial(k) * math.factorial(degree - k)))
         for k in range(degree + 1)]
    one = la.identity(x.shape, x.dtype)
    powers = [one, matmul(x, x)]
    powers += [matmul(powers[1], powers[1])]
    powers += [matmul(powers[1], powers[2])]

    def part(first: int) -> Array:
        low = b[first] * powers[0]
        for k in range(1, 4):
            low = low + b[first + 2 * k] * powers[k]
        if degree < 8:
            return low
        high = b[first + 8] * powers[1] + b[first + 10] * powers[2]
        if first + 12 <= degree:
            high = high + b[first + 12] * powers[3]
        return low + matmul(powers[3], high)

    return matmul(x, part(1)), part(0)


@of_matrices
def expm(A: ArrayLike, *, upper_triangular: bool = False, max_squarings: int = 16) -> Array:
    """The exponentials of matrices A [..., n, n]: the sum of A^k / k!.

    By squaring that of A / 2^s, which a Pade approximant gives (Higham, "The scaling and squaring method for the matrix
    exponential revisited", 2005); NaN where s would be more than `max_squarings`. With `upper_triangular` only the
    upper triangle is looked at. TypeError for float16 and bfloat16, ValueError if A is not square.

    >>> expm(jnp.array([[0.0, 1.0], [0.0, 0.0]]))
    Array([[1., 1.],
           [0., 1.]], dtype=float32)
    """
    (x,) = promote_dtypes_inexact("expm", A)
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ValueError(f"Expected A to be a (batched) square matrix, got {x.shape=}.")
    if x.dtype not in la.LAPACK_TYPES:
        raise TypeError(f"A.dtype={dtypes.name(x.dtype)} is not supported.")
    if not x.size:
        return x
    x = la.upper_part(x) if upper_triangular else x
    degree, largest = _PADE[np.dtype(dtypes.to_real(x.dtype)).itemsize]
    norm = max_of(sum_of(abs(ew.stop_gradient(x)), axis=-2), axis=-1)
    needed = ceil(log2(where(norm > 0, norm, largest) / largest))
    squarings = ew.clamp(0.0, where(norm == norm, needed, 0), float(max_squarings))

    def along(v: Array) -> Array:
        return sh.expand_dims(v, (v.ndim, v.ndim + 1))

    odd, even = _pade(x * ew.convert(along(exp2(-squarings)), x.dtype), degree)
    if upper_triangular:
        power = la.triangular_solve(even - odd, even + odd, left_side=True)
    else:
        power = jnp_linalg.solve(even - odd, even + odd)
    count = ew.convert(squarings, _I32)
    most = max_of(count)

    def more(state: Any) -> Any:
        return state[1] < most

    def square(state: Any) -> Any:
        power, done = state
        return where(along(done < count), matmul(power, power), power), done + 1

    power, _ = while_loop(more, square, (power, np.int32(0)))
    return where(along(needed > max_squarings), np.nan, power)


@of_matrices
def expm_frechet(A: ArrayLike, E: ArrayLike, *, method: str | None = None, compute_expm: bool = True) -> Any:
    """(expm(A), its derivative in the direction E), for A and E [..., n, n]; only the derivative without
    `compute_expm`.

    `method` is "SPS" (the default: the derivative of `expm`), or "blockEnlarge": the corner of the exponential of
    [[A, E], [0, A]]. ValueError for another, or if A and E are not square and of one shape.
    """
    a, e = promote_dtypes_inexact("expm_frechet", A, E)
    for name, x in (("A", a), ("E", e)):
        if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
            raise ValueError(f"expected {name} to be a (batched) square matrix, got {name}.shape={x.shape}")
    if a.shape != e.shape:
        raise ValueError(f"expected A and E to be the same shape, got A.shape={a.shape} E.shape={e.shape}")
    if method not in (None, "SPS", "blockEnlarge"):
        raise ValueError(f"Unknown method {method!r}: use 'SPS' or 'blockEnlarge'.")
    if method == "blockEnlarge":
        n = a.shape[-1]
        block = expm(concatenate([concatenate([a, e], -1), concatenate([sh.full_like(a, 0), a], -1)], -2))
        out, slope = block[..., :n, :n], block[..., :n, n:]
    else:
        out, slope = jvp(expm, (a,), (e,))
    return (out, slope) if compute_expm else slope


# ---------------------------------------------------------------- of triangular matrices, column by column


def _by_columns(t: Array, values: Array, equation: Callable[[Array, Array, Any], tuple[Array, Array]]) -> Array:
    """The upper triangular F with `values` on its diagonal whose column j solves a triangular system above it.

    `equation(F so far, column j of t above the diagonal, j)` gives the system's matrix and its right side, of which the
    first j rows count.
    """
    n, axis = t.shape[-1], t.ndim - 1
    if not t.size:
        return t
    places = sh.broadcasted_iota(_I32, (*t.shape[:-1], 1), axis - 1)
    across = sh.broadcasted_iota(_I32, (*t.shape[:-2], 1, n), axis)
    eye = la.identity(t.shape, t.dtype)
    start = eye * sh.expand_dims(values, (values.ndim - 1,))

    def step(f: Array, j: Any) -> tuple[Array, None]:
        inside = places < j
        system, right = equation(f, where(inside, dynamic_slice_in_dim(t, j, 1, axis=axis), 0), j)
        system = where(inside, system, eye)
        system = where((system == 0) & (eye != 0), 1, system)  # an eigenvalue that repeats: nothing is divided by
        found = la.triangular_solve(system, where(inside, right, 0), left_side=True)
        return f + found * ew.convert(across == j, t.dtype), None

    return scan(step, start, sh.broadcasted_iota(_I32, (n,), 0))[0]


def _entry(x: Array, j: Any) -> Array:
    """The j-th element of each vector, as a matrix of one element."""
    at = dynamic_slice_in_dim(x, j, 1, axis=x.ndim - 1)
    return sh.expand_dims(at, (at.ndim,))


def _root(a: Array) -> tuple[Array, Array]:
    """(R, Z) of the square root Z R Z^H, with upper triangular R (Bjorck and Hammarling, "A Schur method for the square
    root of a matrix", 1983)."""
    t, z = schur(a, "complex")
    values = ew.sqrt(diagonal(t, axis1=-2, axis2=-1))
    eye = la.identity(t.shape, t.dtype)
    return _by_columns(t, values, lambda r, column, j: (r + eye * _entry(values, j), column)), z


@custom_jvp
def _sqrtm(a: Array) -> Array:
    r, z = _root(a)
    return matmul(matmul(z, r), adjoint(z))


@_sqrtm.defjvp
def _sqrtm_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """S dS + dS S = dA, where the root's triangular factor is its Schur form."""
    (a,), (t,) = primals, tangents
    s = _sqrtm(a)
    r, z = map(ew.stop_gradient, _root(ew.stop_gradient(a)))
    return s, sylvester_p.bind(s, r, z, s, r, z, t, transposed=False)


@of_matrices
def sqrtm(A: ArrayLike, blocksize: int = 1) -> Array:
    """The principal square roots S of A [..., n, n], S S = A, of complex dtype.

    NotImplementedError for another `blocksize` than 1, ValueError if A is not square.

    >>> sqrtm(jnp.array([[4.0, 1.0], [0.0, 4.0]])).real
    Array([[2.  , 0.25],
           [0.  , 2.  ]], dtype=float32)
    """
    if blocksize > 1:
        raise NotImplementedError("sqrtm by blocks is not implemented: blocksize must be 1.")
    (a,) = promote_dtypes_inexact("sqrtm", A)
    la.check_dtype("sqrtm", a.dtype)
    return _sqrtm(ew.convert(a, spectral.complex_type(a.dtype)))


@of_sequences
def funm(A: ArrayLike, func: Callable[[Array], Array], disp: bool = True) -> Any:
    """`func` of the matrix A [n, n], by its Schur form and Parlett's recurrence; of complex dtype.

    `func` is applied to the vector of eigenvalues. Without `disp`, also an estimate of the relative error, which is
    large where eigenvalues are close to each other. ValueError if A is not square.
    """
    (a,) = promote_dtypes_inexact("funm", A)
    if a.ndim != 2 or a.shape[0] != a.shape[1]:
        raise ValueError("expected square array_like input")
    t, z = schur(a, "complex")
    values = ew.convert(func(diagonal(t)), t.dtype)
    eigenvalues = diagonal(t)
    eye = la.identity(t.shape, t.dtype)
    f = _by_columns(t, values, lambda f, column, j: (
        t - eye * _entry(eigenvalues, j), matmul(f, column) - _entry(values, j) * column))
    out = matmul(matmul(z, f), adjoint(z))
    if disp:
        return out
    tol = float(dtypes.finfo(t.dtype).eps)
    gaps = abs(sh.expand_dims(eigenvalues, (1,)) - sh.expand_dims(eigenvalues, (0,)))
    gaps = where(la.compare(ew.gt, t.shape), gaps, np.inf)
    least = min_of(gaps, initial=np.inf)
    above = sum_of(abs(la.masked(t, lambda i, j: ew.gt(j, i))), axis=0)
    error = tol / where(least == 0, tol, least) * max_of(above, initial=0)
    error = ew.clamp(tol, error, 1.0)
    return out, where(all_of(abs(out) < np.inf), error, np.inf)
