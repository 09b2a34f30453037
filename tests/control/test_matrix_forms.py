"""Hessenberg, tridiagonal and Schur forms, polar factors, eliminations: equations, derivatives, batches, errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import anima
from anima.compiler.rewriting.hoist import hoist
from anima.compiler.rewriting.inline import inline
from anima.control.similar import similarity
from anima.lax import linalg
from tests.ops.matrix_checks import both, check_derivatives, close, h, matrix, positive
from tests.ops.test_linalg_reflect import check_vmap

TYPES = ["float32", "float64", "complex64", "complex128"]
SHAPES = [(0, 0), (1, 1), (2, 2), (5, 5), (2, 4, 4), (0, 3, 3)]


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    with anima.enable_x64(True):
        yield


def is_unitary(q: Any, dtype: str) -> None:
    close(h(q) @ q, np.broadcast_to(np.eye(q.shape[-1]), (*q.shape[:-2], q.shape[-1], q.shape[-1])), dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_hessenberg(shape: tuple[int, ...], dtype: str) -> None:
    a = matrix(shape, dtype)
    packed, taus = both(linalg.hessenberg, a)
    (q,) = both(similarity, packed, taus)
    is_unitary(q, dtype)
    close(q @ np.triu(packed, -1) @ h(q), a, dtype)


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_tridiagonal(shape: tuple[int, ...], dtype: str, lower: bool) -> None:
    """Of the Hermitian matrix that one triangle gives; the other triangle is left alone."""
    a = matrix(shape, dtype)
    packed, d, e, taus = both(lambda x: linalg.tridiagonal(x, lower=lower), a)
    n = shape[-1]
    half = np.tril(a, -1) if lower else np.triu(a, 1)
    full = half + h(half) + np.eye(n) * a.real
    eye = np.eye(n, k=-1)[..., : max(n - 1, 0)] if n else np.zeros((0, 0))
    t = d[..., None] * np.eye(n) + (lambda x: x + h(x))((eye * e[..., None, :]) @ np.eye(n)[: max(n - 1, 0)])
    close(d, np.diagonal(packed, axis1=-2, axis2=-1).real, dtype)
    close(np.linalg.eigvalsh(t), np.linalg.eigvalsh(full), dtype)
    other = np.triu if lower else np.tril
    np.testing.assert_array_equal(other(packed, 1 if lower else -1), other(a, 1 if lower else -1))
    if lower and n > 1:
        q = np.asarray(similarity(packed, taus))
        close(q @ t @ h(q), full, dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_schur(shape: tuple[int, ...], dtype: str) -> None:
    a = matrix(shape, dtype)
    t, z = both(linalg.schur, a)
    is_unitary(z, dtype)
    close(z @ t @ h(z), a, dtype)
    blocks = np.abs(np.diagonal(t, -1, -2, -1)) > 0 if shape[-1] > 1 else np.zeros(0, bool)
    assert (np.tril(t, -2) == 0).all() and (np.dtype(dtype).kind == "f" or not blocks.any())
    assert not (blocks[..., 1:] & blocks[..., :-1]).any()
    (alone,) = both(lambda x: linalg.schur(x, compute_schur_vectors=False), a)
    close(np.sort_complex(np.linalg.eigvals(alone)), np.sort_complex(np.linalg.eigvals(a)), dtype)
    if a.size:
        for out in both(linalg.schur, a * np.nan):
            assert np.isnan(out).all()


@pytest.mark.parametrize("perturb", [True, False])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n", [0, 1, 2, 3, 9])
def test_tridiagonal_solve(n: int, dtype: str, perturb: bool) -> None:
    dl, d, du = (matrix((2, n), dtype, k) for k in "ldu")
    b = matrix((2, n, 3), dtype)
    (x,) = both(lambda *args: linalg.tridiagonal_solve(*args, perturb_singular=perturb), dl, d, du, b)
    for k in range(2):
        dense = np.diag(d[k]) + (np.diag(dl[k, 1:], -1) + np.diag(du[k, :-1], 1) if n > 1 else 0)
        close(dense @ x[k] if n else x[k], b[k], dtype)
    if n:
        zeros = [0 * v for v in (dl, d, du)]
        (none,) = both(lambda *args: linalg.tridiagonal_solve(*args, perturb_singular=perturb), *zeros, b)
        assert np.isfinite(none).all() if perturb else not np.isfinite(none).any()


def _systems(batch: tuple[int, ...], n: int, k: int, dtype: str) -> list[Any]:
    """Diagonals of which some elements are 0 or small, so that rows are exchanged, and right sides."""
    rng = np.random.default_rng(n + k)
    dl, d, du = (rng.normal(size=(*batch, n)) for _ in range(3))
    d[..., ::3] *= 1e-3
    d[..., 1::4] = 0
    dl[..., 0], du[..., -1] = np.nan, np.inf  # outside of the matrix
    d[..., -1] += 1
    return [x.astype(dtype) for x in (dl, d, du, rng.normal(size=(*batch, n, k)))]


def _dense(dl: Any, d: Any, du: Any) -> np.ndarray:
    n = d.shape[-1]
    a = np.zeros((*d.shape, n))
    at = np.arange(n)
    a[..., at, at] = d
    a[..., at[1:], at[:-1]], a[..., at[:-1], at[1:]] = dl[..., 1:], du[..., :-1]
    return a


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("batch, n, k", [
    ((), 1, 3), ((), 2, 1), ((), 2, 5), ((), 3, 2), ((), 17, 1), ((), 17, 16), ((), 64, 33), ((4,), 9, 1),
    ((2, 3), 7, 4), ((100,), 2, 1), ((0,), 3, 2), ((3,), 4, 0)])
def test_systems_with_three_diagonals_in_vectors(batch: tuple[int, ...], n: int, k: int, dtype: str) -> None:
    *matrix, b = _systems(batch, n, k, dtype)
    x = np.asarray(anima.jit(linalg.tridiagonal_solve)(*matrix, b), np.float64)
    if x.size:
        wanted = np.linalg.solve(_dense(*matrix).astype(np.float64), b.astype(np.float64))
        tolerance = 1e-8 if dtype == "float64" else 2e-2 if n > 30 else 2e-3
        np.testing.assert_allclose(x, wanted, tolerance, tolerance * np.abs(wanted).max())
    many = anima.jit(anima.vmap(linalg.tridiagonal_solve, (None, None, None, 0)))(*matrix, np.stack([b, 2 * b]))
    np.testing.assert_allclose(many, np.stack([x, 2 * x]), 1e-2 if dtype == "float32" else 1e-6, 1e-6)


@pytest.mark.parametrize("n, k", [(2, 1), (3, 4), (17, 1), (40, 20)])
def test_fixed_matrices_are_eliminated_once(n: int, k: int) -> None:
    """Before the loop; where the matrix changes, or the right side is fixed, too, nothing is."""
    *matrix, b = _systems((), n, k, "float64")

    def scale(x: Any) -> Any:
        return x / anima.numpy.linalg.norm(x)

    def fixed(dl: Any, d: Any, du: Any, b: Any) -> Any:
        return anima.lax.fori_loop(0, 5, lambda i, x: scale(linalg.tridiagonal_solve(dl, d, du, x)), b)

    def changing(dl: Any, d: Any, du: Any, b: Any) -> Any:
        return anima.lax.fori_loop(0, 5, lambda i, x: scale(linalg.tridiagonal_solve(dl, d + x[:, 0], du, x)), b)

    def still(dl: Any, d: Any, du: Any, b: Any) -> Any:
        return anima.lax.fori_loop(0, 5, lambda i, x: scale(x + linalg.tridiagonal_solve(dl, d, du, b)), b)

    for fun, count in ((fixed, 1), (changing, 0), (still, 0)):
        after = str(hoist(inline(anima.make_jaxpr(fun)(*matrix, b))).jaxpr)
        assert after.count("tridiagonal_factors") == after.count("tridiagonal_substitution") == count
        with anima.disable_jit():
            wanted = fun(*matrix, b)
        np.testing.assert_allclose(anima.jit(fun)(*matrix, b), wanted, 1e-6, 1e-8)
    gradient = anima.grad(lambda b: (fixed(*matrix, b) ** 3).sum())
    with anima.disable_jit():
        wanted = gradient(b)
    np.testing.assert_allclose(anima.jit(gradient)(b), wanted, 1e-5, 1e-8)


@pytest.mark.parametrize("diagonals", [
    ([0, 1, 1], [0, 0, 0], [1, 1, 0]), ([0, 0, 0], [1, 0, 1], [0, 0, 0]), ([0, 1, 1], [1, 1, 0], [1, 0, 0]),
    ([0, 2], [1, 2], [1, 0])])
def test_singular_matrices_have_no_solution_in_vectors(diagonals: Any) -> None:
    matrix = [np.array(x, np.float32) for x in diagonals]
    b = np.ones((len(matrix[0]), 4), np.float32)
    assert np.isnan(anima.jit(linalg.tridiagonal_solve)(*matrix, b)).all()
    assert np.isnan(linalg.tridiagonal_solve(*matrix, b)).all()
    loop = anima.jit(lambda b: anima.lax.fori_loop(0, 2, lambda i, x: linalg.tridiagonal_solve(*matrix, x), b))
    assert np.isnan(loop(b)).all()



@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("n", [0, 1, 6])
def test_cholesky_update(n: int, dtype: str) -> None:
    """What is below the diagonal is not looked at; diagonals of zeros and less are right."""
    some, vector = np.triu(matrix((n, n), dtype)), matrix((n,), dtype, "w")
    for r, w in ((some, vector), (some, 0 * vector), (0 * some, vector)):
        (s,) = both(linalg.cholesky_update, r + np.tril(np.ones_like(r), -1), w)
        tolerance = 1e-2 if dtype == "float16" else 1e-5
        np.testing.assert_allclose(s.T @ s, r.T @ r + np.outer(w, w), atol=tolerance, rtol=tolerance)
        assert (np.tril(s, -1) == 0).all()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(3, 3), (5, 2), (1, 1), (0, 0), (4, 0)])
def test_qdwh(shape: tuple[int, int], dtype: str) -> None:
    for condition in (1.0, 1e-6):
        a = matrix(shape, dtype)
        a[:, :1] *= condition
        u, p, count, converged = both(linalg.qdwh, a)
        is_unitary(u, dtype)
        close(u @ p, a, dtype)
        close(p, h(p), dtype)
        assert converged and count <= 8 and (np.linalg.eigvalsh(p) > -1e-6).all()
    assert not np.asarray(linalg.qdwh(matrix((3, 3)), max_iterations=2)[3])
    inner = linalg.qdwh(matrix((4, 4)), dynamic_shape=(3, 2))
    close(np.asarray(inner[0])[:3, :2], linalg.qdwh(matrix((4, 4))[:3, :2])[0], "float64")


def invariant(t: Any, z: Any) -> Any:
    """What of a Schur form does not depend on the signs and phases of the vectors."""
    return abs(t), abs(z), z @ t @ z.conj().mT


SMOOTH: list[tuple[str, Callable[..., Any], tuple[int, ...], tuple[str, ...]]] = [
    *[(f"hessenberg {s}", linalg.hessenberg, s, ("float64", "complex128")) for s in ((2, 2), (2, 4, 4))],
    *[(f"tridiagonal {k}", lambda x, k=k: linalg.tridiagonal(x, lower=k), (2, 4, 4), ("float64", "complex128"))
      for k in (True, False)],
    *[(f"schur {s}", lambda x: invariant(*linalg.schur(x + np.diag(8.0 * np.arange(len(x))))), s, ("float64",))
      for s in ((1, 1), (2, 2), (5, 5))],  # real eigenvalues: LAPACK may turn the blocks of the others as it likes
    ("complex schur", lambda x: invariant(*linalg.schur(x)), (2, 4, 4), ("complex128",)),
    *[(f"tridiagonal_solve {p}", lambda x, p=p: linalg.tridiagonal_solve(
        x[0], x[1], x[2], (x[:2] ** 2).mT, perturb_singular=p), (3, 5), (t,))
      for p, t in ((True, "float64"), (False, "float64"), (False, "complex128"))],
    ("cholesky_update", lambda x: linalg.cholesky_update(x @ x.mT + 2 * np.eye(3), x[0]), (3, 3), ("float64",)),
    *[(f"qdwh {s}", lambda x: linalg.qdwh(x)[:2], s, ("float64", "complex128")) for s in ((3, 3), (4, 2))],
]


@pytest.mark.parametrize("name,fun,shape,dtype", [(*s[:3], d) for s in SMOOTH for d in s[3]],
                         ids=[f"{s[0]} {d}" for s in SMOOTH for d in s[3]])
def test_derivatives(name: str, fun: Callable[..., Any], shape: tuple[int, ...], dtype: str) -> None:
    check_derivatives(fun, matrix(shape, dtype), name)


def test_derivatives_where_values_coincide() -> None:
    """Polar factors are smooth functions also of matrices with equal singular values."""
    check_derivatives(lambda x: linalg.qdwh(x)[:2], np.eye(3), "qdwh of the identity")


BATCHED: list[tuple[str, Callable[..., Any], tuple[tuple[int, ...], ...]]] = [
    ("hessenberg", linalg.hessenberg, ((4, 4),)), ("tridiagonal", linalg.tridiagonal, ((4, 4),)),
    ("schur", linalg.schur, ((4, 4),)), ("tridiagonal_solve", linalg.tridiagonal_solve, ((4,), (4,), (4,), (4, 2))),
    ("cholesky_update", linalg.cholesky_update, ((3, 3), (3,))), ("qdwh", linalg.qdwh, ((4, 3),)),
]


@pytest.mark.parametrize("name,fun,shapes", BATCHED, ids=[b[0] for b in BATCHED])
def test_vmap_is_a_loop(name: str, fun: Callable[..., Any], shapes: tuple[tuple[int, ...], ...]) -> None:
    check_vmap(name, fun, shapes)


@pytest.mark.parametrize("call,error,text", [
    (lambda x: linalg.schur(x[:2]), ValueError, "square"), (lambda x: linalg.schur(x[0]), TypeError, "rank"),
    (lambda x: linalg.schur(x, sort_eig_vals=True), NotImplementedError, "order"),
    (lambda x: linalg.schur(x.astype("float16")), NotImplementedError, "float16"),
    (lambda x: linalg.hessenberg(x[:2]), ValueError, "square"),
    (lambda x: linalg.tridiagonal(x.astype(int)), TypeError, "int64"),
    (lambda x: linalg.tridiagonal_solve(x[0], x[0], x[0], x[0]), TypeError, "Input 3"),
    (lambda x: linalg.tridiagonal_solve(x[0], x[0], x[0, :2], x), TypeError, "same shape"),
    (lambda x: linalg.tridiagonal_solve(x[0], x[0], x[0], x[:2]), TypeError, "leading"),
    (lambda x: linalg.tridiagonal_solve(x[0], x[0], x[0], x.astype("float32")), TypeError, "same dtypes"),
    (lambda x: linalg.cholesky_update(x, x), TypeError, "rank of exactly 1"),
    (lambda x: linalg.cholesky_update(x, x[0, :2]), ValueError, "same size"),
    (lambda x: linalg.cholesky_update(x + 0j, x[0] + 0j), TypeError, "subtypes of floating"),
    (lambda x: linalg.qdwh(x[:2]), ValueError, "M >= N"),
    (lambda x: linalg.qdwh(x.astype(int)), ValueError, "floating"),
])
def test_errors(call: Callable[[Any], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call(positive((3, 3)))


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("name", ["hessenberg", "upper", "lower"])
def test_slopes_of_forms_of_one_number(name: str, dtype: str) -> None:
    """The form is the number, of which a tridiagonal one has the real part on the diagonal."""
    x, t = matrix((2, 1, 1), dtype), matrix((2, 1, 1), dtype, "t")
    fun = linalg.hessenberg if name == "hessenberg" else lambda x: linalg.tridiagonal(x, lower=name == "lower")
    outs, slopes = anima.jvp(fun, (x,), (t,))
    part = (lambda v: v) if name == "hessenberg" else np.real
    for found, given in ((outs, x), (slopes, t)):
        close(part(found[0]), part(given), "float64")
        assert all(rest.shape == (2, 0) for rest in found[-1:])
    if name != "hessenberg":
        close(slopes[1], t.real[..., 0], "float64")
        assert slopes[1].dtype == np.float64 and slopes[2].shape == (2, 0)


@pytest.mark.parametrize("perturb", [False, True])
def test_slopes_of_right_sides_alone(perturb: bool) -> None:
    """Those are solutions with the slope as the right side."""
    below, diagonal, above = matrix((3, 4))
    b, t = matrix((4, 2)), matrix((4, 2), seed="t")
    dense = np.diag(diagonal) + np.diag(below[1:], -1) + np.diag(above[:-1], 1)
    out, slope = anima.jvp(lambda b: linalg.tridiagonal_solve(below, diagonal, above, b, perturb_singular=perturb),
                           (b,), (t,))
    close(dense @ out, b, "float64")
    close(dense @ slope, t, "float64")
