"""Matrices with a structure: Toeplitz and its kin, companions of polynomials, and those that have a name."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from anima.api.eager import compiled, repeated
from anima.core import dtypes
from anima.core.array import Array
from anima.numpy.creation import asarray
from anima.numpy.elementwise import abs, conj
from anima.numpy.manipulation import atleast_1d, broadcast_shapes, broadcast_to, concatenate
from anima.numpy.promote import as_array, promote_dtypes, promote_dtypes_inexact
from anima.numpy.selection import where
from anima.ops import elementwise as ew, linalg as la, shape as sh
from anima.typing import ArrayLike


def _at(values: Array, which: np.ndarray) -> Array:
    """Element `which[i, j]` of the vectors `values` as element [i, j] of matrices."""
    return values[..., np.asarray(which, np.int32)]


def _vectors(name: str, *args: ArrayLike) -> list[Array]:
    """The operands, of one dtype, as arrays of at least one axis, with equal leading axes."""
    xs = [atleast_1d(x) for x in promote_dtypes(name, *args)]
    batch = broadcast_shapes(*(x.shape[:-1] for x in xs))
    return [broadcast_to(x, (*batch, x.shape[-1])) for x in xs]


# ---------------------------------------------------------------- equal elements along diagonals


@repeated
def toeplitz(c: ArrayLike, r: ArrayLike | None = None) -> Array:
    """The matrices [..., n, m] with first column c [..., n] and first row r [..., m], equal along all diagonals.

    r[..., 0] is not looked at; by default r is conj(c). Leading axes broadcast.

    >>> anima.scipy.linalg.toeplitz(jnp.array([1, 2, 3]))
    Array([[1, 2, 3],
           [2, 1, 2],
           [3, 2, 1]], dtype=int32)
    """
    c, r = _vectors("toeplitz", c, conj(as_array(c, "toeplitz")) if r is None else r)
    n, m = c.shape[-1], r.shape[-1]
    values = concatenate([sh.rev(r[..., 1:], (r.ndim - 1,)), c], -1)
    out = _at(values, np.arange(n)[:, None] - np.arange(m) + max(m - 1, 0))
    return ew.convert(out, out.dtype)


@repeated
def circulant(c: ArrayLike) -> Array:
    """The matrices [..., n, n] with first column c [..., n], each column the one before it, moved down by one.

    >>> anima.scipy.linalg.circulant(jnp.array([1, 2, 3]))
    Array([[1, 3, 2],
           [2, 1, 3],
           [3, 2, 1]], dtype=int32)
    """
    (c,) = _vectors("circulant", c)
    n = c.shape[-1]
    return _at(c, (np.arange(n)[:, None] - np.arange(n)) % max(n, 1))


@repeated
def hankel(c: ArrayLike, r: ArrayLike | None = None) -> Array:
    """The matrices [..., n, m] with first column c [..., n] and last row r [..., m], equal along all antidiagonals.

    r[..., 0] is not looked at; by default r is zeros. Leading axes broadcast. ValueError if `c` or `r` is a scalar.

    >>> anima.scipy.linalg.hankel(jnp.array([1, 2, 3]))
    Array([[1, 2, 3],
           [2, 3, 0],
           [3, 0, 0]], dtype=int32)
    """
    given = promote_dtypes("hankel", c) if r is None else promote_dtypes("hankel", c, r)
    for name, x in zip("cr", given, strict=False):
        if not x.ndim:
            raise ValueError(f"hankel: {name} must be at least 1-dimensional, got a scalar.")
    c, r = _vectors("hankel", *given, *([sh.full_like(given[0], 0)] if r is None else []))
    n, m = c.shape[-1], r.shape[-1]
    return _at(concatenate([c, r[..., 1:]], -1), np.arange(n)[:, None] + np.arange(m))


@repeated
def convolution_matrix(a: ArrayLike, n: int, mode: str = "full") -> Array:
    """The matrices M [..., k, n] with M @ v = convolve(a, v, mode) for a [..., m].

    k is m + n - 1 ("full"), max(m, n) ("same") or max(m, n) - min(m, n) + 1 ("valid"). ValueError for another mode, for
    n < 1, and if `a` has no elements.

    >>> anima.scipy.linalg.convolution_matrix(jnp.array([1, 2]), 2)
    Array([[1, 0],
           [2, 1],
           [0, 2]], dtype=int32)
    """
    n = operator.index(n)
    (a,) = _vectors("convolution_matrix", a)
    m = a.shape[-1]
    if n <= 0:
        raise ValueError(f"n must be a positive integer; got {n}.")
    if not m:
        raise ValueError(f"len(a) must be at least 1; got shape {a.shape}.")
    if mode not in ("full", "valid", "same"):
        raise ValueError(f"mode must be one of 'full', 'valid', 'same'; got {mode!r}.")
    rows = m + n - 1
    if mode != "full":
        kept = max(m, n) if mode == "same" else max(m, n) - min(m, n) + 1
        first = (rows - kept) // 2
    else:
        kept, first = rows, 0
    which = first + np.arange(kept)[:, None] - np.arange(n)
    inside = (which >= 0) & (which < m)
    return where(inside, _at(a, np.where(inside, which, 0)), 0)


# ---------------------------------------------------------------- of polynomials, populations, points, blocks


@repeated
def companion(a: ArrayLike) -> Array:
    """The matrices [..., n, n] whose eigenvalues are the roots of polynomials a [..., n + 1], highest power first.

    ValueError if there are fewer than two coefficients.
    """
    (a,) = _vectors("companion", *promote_dtypes_inexact("companion", a))
    n = a.shape[-1] - 1
    if n < 1:
        raise ValueError(f"The length of `a` along the last axis must be at least 2; got shape {a.shape}.")
    row = -a[..., 1:] / a[..., :1]
    below = sh.broadcast_to(np.eye(n - 1, n, dtype=a.dtype), (*a.shape[:-1], n - 1, n))
    return concatenate([sh.expand_dims(row, (row.ndim - 1,)), below], -2)


@repeated
def fiedler_companion(a: ArrayLike) -> Array:
    """As `companion`, with five diagonals (Fiedler, "A note on companion matrices", 2003).

    ValueError if there is no coefficient.
    """
    (a,) = promote_dtypes_inexact("fiedler_companion", a)
    a = atleast_1d(a)
    n = a.shape[-1] - 1
    if n < 0:
        raise ValueError("fiedler_companion requires the last axis of 'a' to have nonzero length, but got an array of "
                         f"shape {a.shape}.")
    which = np.full((n, n), n + 1)  # coefficients 0 to n, then a zero; the leading one divided by itself is 1
    for i in range(0, n, 2):
        if i > 0:
            which[i, i - 1] = i + 1
        for j, k in ((i + 1, i + 2), (i + 2, 0)):
            if j < n:
                which[i, j] = k
    for i in range(3, n, 2):
        which[i, i - 2] = 0
    if n:
        which[0, 0] = 1
    if n > 1:
        which[1, 0] = 0
    monic = -a[..., 1:] / a[..., :1]
    ends = [sh.full_like(a[..., :1], value) for value in (1, 0)]
    return _at(concatenate([ends[0], monic, ends[1]], -1), which)


@repeated
def leslie(f: ArrayLike, s: ArrayLike) -> Array:
    """The matrices [..., n, n] of populations with births f [..., n] (first row) and survivals s [..., n - 1] (below
    the diagonal). ValueError if sizes do not fit, or n < 2.

    >>> anima.scipy.linalg.leslie(jnp.array([1.0, 2.0]), jnp.array([0.5]))
    Array([[1. , 2. ],
           [0.5, 0. ]], dtype=float32)
    """
    f, s = _vectors("leslie", f, s)
    n = f.shape[-1]
    if n < 2:
        raise ValueError(f"The length of f along the last axis must be at least 2; got shape {f.shape}.")
    if s.shape[-1] != n - 1:
        raise ValueError("Incorrect lengths for f and s. The length of s along the last axis must be one less than the "
                         f"length of f; got f shape {f.shape} and s shape {s.shape}.")
    below = sh.expand_dims(s, (s.ndim,)) * la.identity((*s.shape, n), s.dtype)
    return concatenate([sh.expand_dims(f, (f.ndim - 1,)), below], -2)


@repeated
def fiedler(a: ArrayLike) -> Array:
    """The symmetric matrices [..., n, n] of distances |a_i - a_j| for a [..., n]."""
    (a,) = _vectors("fiedler", a)
    return abs(sh.expand_dims(a, (a.ndim,)) - sh.expand_dims(a, (a.ndim - 1,)))


@repeated
def block_diag(*arrs: ArrayLike) -> Array:
    """The matrix with these matrices along its diagonal, and zeros; vectors are rows, scalars have one element.

    ValueError for more than two dimensions.

    >>> anima.scipy.linalg.block_diag(jnp.array([1, 2]), 3)
    Array([[1, 2, 0],
           [0, 0, 3]], dtype=int32)
    """
    given = promote_dtypes("block_diag", *arrs) if arrs else [asarray(np.zeros((1, 0)))]
    for i, x in enumerate(given):
        if x.ndim > 2:
            raise ValueError(f"Arguments to block_diag must have at most 2 dimensions, got {x.aval} at argument {i}.")
    blocks = [sh.broadcast_to_rank(ew.convert(x, x.dtype), 2) for x in given]
    columns, before, rows = sum(x.shape[1] for x in blocks), 0, []
    for x in blocks:
        zero = sh.full((), 0, x.dtype)
        rows.append(sh.pad(x, zero, ((0, 0, 0), (before, columns - before - x.shape[1], 0))))
        before += x.shape[1]
    return concatenate(rows, 0)


# ---------------------------------------------------------------- with names


def _size(n: Any) -> int:
    """A size, which may be given as a float; negative ones are none."""
    return max(int(n) if isinstance(n, float) and n.is_integer() else operator.index(n), 0)


_of_sizes = functools.partial(compiled, static=("n",))


def _filled(n: int, rows: Iterable[Sequence[int]]) -> Array:
    """The matrix [n, n] of exact integers, rounded once; too large ones are infinite."""
    def rounded(value: int) -> float:
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf

    values = np.empty((n, n))
    for i, row in enumerate(rows):
        try:
            values[i] = row
        except OverflowError:
            values[i] = [rounded(x) for x in row]
    with np.errstate(over="ignore"):
        return asarray(values.astype(dtypes.canonicalize_dtype(float)))


def _signed(row: Sequence[int], i: int) -> list[int]:
    """Row i of a matrix with (-1)^(i + j) before each element."""
    return [-x if (i + j) % 2 else x for j, x in enumerate(row)]


def _triangle(n: int) -> Iterator[list[int]]:
    """The first n rows of Pascal's triangle, with zeros up to n numbers."""
    row = [1] + [0] * (n - 1)
    for _ in range(n):
        yield row
        row = [1, *map(operator.add, row, row[1:])]


@_of_sizes
def hilbert(n: int) -> Array:
    """The matrix [n, n] of 1 / (i + j + 1)."""
    n = operator.index(n)
    if n < 0:
        raise TypeError(f"hilbert: the size must not be negative, got {n}.")
    places = np.arange(n)
    return asarray((1.0 / (places[:, None] + places + 1)).astype(dtypes.canonicalize_dtype(float)))


@_of_sizes
def invhilbert(n: int) -> Array:
    """The inverse of `hilbert(n)`, whose elements are integers: exact, and rounded once."""
    n = _size(n)
    return _filled(n, ([(-1) ** (i + j) * (i + j + 1) * math.comb(n + i, n - j - 1) * math.comb(n + j, n - i - 1)
                        * math.comb(i + j, i) ** 2 for j in range(n)] for i in range(n)))


def _kind(kind: str | None) -> str:
    kinds = ["symmetric", "lower", "upper"]
    if kind is None:
        return "symmetric"
    if kind not in kinds:
        raise ValueError(f"Expected kind to be one of: {kinds}; got {kind}")
    return kind


@_of_sizes
def pascal(n: int, kind: str | None = None) -> Array:
    """Pascal's triangle as a matrix [n, n]: "lower", "upper", or their product, "symmetric" (the default).

    Exact, and rounded once. ValueError for another kind.

    >>> anima.scipy.linalg.pascal(3)
    Array([[1., 1., 1.],
           [1., 2., 3.],
           [1., 3., 6.]], dtype=float32)
    """
    n, kind = _size(n), _kind(kind)
    if kind == "symmetric":
        return _filled(n, itertools.islice(itertools.accumulate(
            itertools.repeat([1] * n), lambda row, _: [*itertools.accumulate(row)]), n))
    lower = _filled(n, _triangle(n))
    return lower if kind == "lower" else lower.T


@_of_sizes
def invpascal(n: int, kind: str | None = None) -> Array:
    """The inverse of `pascal(n, kind)`: exact, and rounded once."""
    n, kind = _size(n), _kind(kind)
    rows: Iterable[list[int]] = _triangle(n)
    if kind == "symmetric":
        columns = [*zip(*rows, strict=True)]
        rows = ([sum(map(operator.mul, a[max(i, j):], b[max(i, j):])) for j, b in enumerate(columns)]
                for i, a in enumerate(columns))
    inverse = _filled(n, (_signed(row, i) for i, row in enumerate(rows)))
    return inverse.T if kind == "upper" else inverse


@_of_sizes
def hadamard(n: int, dtype: Any = int) -> Array:
    """Sylvester's Hadamard matrix [n, n] of 1 and -1, whose rows are orthogonal. ValueError unless n is a power of
    2."""
    if not n > 0 or (size := _size(n)) & (size - 1):
        raise ValueError(f"n must be a positive power of 2; got {n}.")
    dtype = dtypes.check_user_dtype(dtype, "hadamard")
    if dtype == np.bool_:
        raise TypeError("hadamard does not accept dtype bool: its elements are 1 and -1.")
    out = np.ones((1, 1), np.int8)
    while len(out) < size:
        out = np.block([[out, out], [out, -out]])
    return asarray(out.astype(dtype))


@_of_sizes
def helmert(n: int, full: bool = False) -> Array:
    """Helmert's matrix [n - 1, n] of orthonormal contrasts, or [n, n] with a row of 1 / sqrt(n) before them if `full`.

    ValueError if n < 1.
    """
    if not n > 0:
        raise ValueError(f"n must be a positive integer; got {n}.")
    size = _size(n)
    k = np.arange(1, size)[:, None]
    out = (np.tri(size - 1, size) - k * np.eye(size - 1, size, 1)) / np.sqrt(k * (k + 1))
    if full:
        out = np.concatenate([np.full((1, size), 1 / np.sqrt(size)), out])
    return asarray(out.astype(dtypes.canonicalize_dtype(float)))


@_of_sizes
def dft(n: int, scale: str | None = None, *, dtype: Any = None) -> Array:
    """The matrix [n, n] of the discrete Fourier transform, exp(-2 pi i j k / n); `scale` divides it by "sqrtn" or "n".

    ValueError for another scale, or a dtype that is not complex.
    """
    if scale not in (None, "sqrtn", "n"):
        raise ValueError(f"scale must be None, 'sqrtn', or 'n'; got {scale!r}.")
    dtype = dtypes.check_user_dtype(complex if dtype is None else dtype, "dft")
    if not dtypes.issubdtype(dtype, np.complexfloating):
        raise ValueError(f"dtype must be a complex floating-point type; got {dtypes.name(dtype)}.")
    size = _size(n)
    places = np.arange(size)
    out = np.exp(-2j * np.pi * (places[:, None] * places % max(size, 1)) / max(size, 1))
    factor = {None: 1.0, "sqrtn": np.sqrt(max(size, 1)), "n": max(size, 1)}[scale]
    return asarray((out / factor).astype(dtype))
