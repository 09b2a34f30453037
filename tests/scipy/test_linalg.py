"""`scipy.linalg` against SciPy: values, compiled code, batches, derivatives, types, errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.linalg as reference

import anima
import anima.numpy as jnp
from anima.scipy import linalg
from tests.ops.matrix_checks import both, check_derivatives, close, h, matrix, positive

TYPES = ["float32", "float64", "complex64", "complex128"]


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    with anima.enable_x64(True):
        yield


def same(name: str, *args: Any, dtype: str = "float64", **kwargs: Any) -> None:
    """The same results as SciPy's, of one matrix and of a batch, eagerly and compiled."""
    want = getattr(reference, name)(*args, **kwargs)
    wants = want if isinstance(want, tuple) else (want,)
    fun = lambda *xs: getattr(linalg, name)(*xs, **kwargs)
    for got, expected in zip(both(fun, *args), wants, strict=True):
        close(got, expected, dtype)
    for got, expected in zip(both(fun, *(np.stack([x, 2 * x]) for x in args)), wants, strict=True):
        close(got[0], expected, dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_as_scipy(dtype: str) -> None:
    a, p, b = matrix((4, 4), dtype), positive((4, 4), dtype), matrix((4, 2), dtype)
    for name in ("det", "inv"):
        same(name, a, dtype=dtype)
    for name in ("cholesky", "cho_factor"):
        for lower in (True, False):
            got, want = getattr(linalg, name)(p, lower), getattr(reference, name)(p, lower)
            part = np.tril if lower else np.triu
            close(*(part(x[0] if isinstance(x, tuple) else x) for x in (got, want)), dtype)
    for assumed, m in (("gen", a), ("sym", a + a.T), ("her", p), ("pos", p)):
        for lower in (True, False):
            used = m if assumed != "pos" else np.tril(m) if lower else np.triu(m)
            for right in (b, b[:, 0]):
                (x,) = both(lambda m, b, k=assumed, low=lower: linalg.solve(m, b, lower=low, assume_a=k), used, right)
                close(m @ x, right, dtype)
    for trans in (0, 1, 2):
        op = (lambda x, t=trans: x if t == 0 else x.T if t == 1 else h(x))
        for right in (b, b[:, 0]):
            (x,) = both(lambda a, b, t=trans: linalg.lu_solve(linalg.lu_factor(a), b, trans=t), a, right)
            close(op(a) @ x, right, dtype)
            (x,) = both(lambda a, b, t=trans: linalg.solve_triangular(a, b, t, lower=True), p, right)
            close(op(np.tril(p)) @ x, right, dtype)
        pairs = np.stack([a, p]), np.stack([b, b])
        (x,) = both(lambda a, b, t=trans: linalg.lu_solve(linalg.lu_factor(a), b, trans=t), *pairs)
        close(np.stack([op(a) @ x[0], op(p) @ x[1]]), pairs[1], dtype)
    (x,) = both(lambda a, b: linalg.cho_solve(linalg.cho_factor(a), b), p, np.stack([b, 2 * b]))
    close(p @ x, np.stack([b, 2 * b]), dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(3, 3), (5, 3), (3, 5), (2, 4, 3)])
def test_factors(shape: tuple[int, ...], dtype: str) -> None:
    a = matrix(shape, dtype)
    m, k = shape[-2], min(shape[-2:])
    p, low, up = both(linalg.lu, a)
    close(p @ low @ up, a, dtype)
    moved, again = both(lambda x: linalg.lu(x, permute_l=True), a)
    close(moved, p @ low, dtype)
    close(again, up, dtype)
    for driver in ("gesdd", "gesvd"):
        u, s, vh = both(lambda x, d=driver: linalg.svd(x, full_matrices=False, lapack_driver=d), a)
        close((u * s[..., None, :]) @ vh, a, dtype)
    q, r = both(lambda x: linalg.qr(x, mode="economic"), a)
    close(q @ r, a, dtype)
    (alone,) = both(lambda x: linalg.qr(x, mode="r"), a)
    close(alone[..., :k, :], r, dtype)
    for conjugate in (True, False):
        used = q.conj() if conjugate else q
        for mode, c in (("left", matrix((*shape[:-2], k, 2), dtype)), ("right", matrix((*shape[:-2], 2, m), dtype))):
            out, r2 = both(lambda x, c, o=mode, j=conjugate: linalg.qr_multiply(x, c, o, conjugate=j), a, c)
            close(out, used @ c if mode == "left" else c @ used, dtype)
            close(r2, r, dtype)
            out, _, _ = both(lambda x, c, o=mode: linalg.qr_multiply(x, c, o, pivoting=True), a, c)
            assert out.shape == ((*shape[:-2], m, 2) if mode == "left" else (*shape[:-2], 2, k))
    for method, side in (("svd", "left"), ("svd", "right"), ("qdwh", "right" if m >= shape[-1] else "left")):
        u, p = both(lambda x, v=method, s=side: linalg.polar(x, s, method=v), a)
        close(u @ p if side == "right" else p @ u, a, dtype)
        close(p, h(p), dtype)
        assert (np.linalg.eigvalsh(p) > -1e-5).all()


@pytest.mark.parametrize("dtype", TYPES)
def test_similar_forms(dtype: str) -> None:
    a = np.stack([matrix((5, 5), dtype), positive((5, 5), dtype)])
    form, q = both(lambda x: linalg.hessenberg(x, calc_q=True), a)
    close(q @ form @ h(q), a, dtype)
    assert (np.tril(form, -2) == 0).all()
    for output in ("real", "complex"):
        t, z = both(lambda x, o=output: linalg.schur(x, output=o), a)
        close(z @ t @ h(z), a, dtype)
    t, z = both(lambda x: linalg.rsf2csf(*linalg.schur(x)), a)
    assert (np.tril(t, -1) == 0).all() and t.dtype.kind == "c"
    close(z @ t @ h(z), a, dtype)
    d, e = a[0].diagonal().real.astype(dtype), a[0].diagonal(1)
    w, v = both(linalg.eigh_tridiagonal, d, e)
    close(v @ (w[:, None] * h(v)), np.diag(d) + np.diag(e, 1) + np.diag(e.conj(), -1), dtype)
    some, _ = both(lambda d, e: linalg.eigh_tridiagonal(d, e, select="i", select_range=(1, 3)), d, e)
    close(some, w[1:4], dtype)


@pytest.mark.parametrize("method", ["schur", "eigen"])
@pytest.mark.parametrize("dtype", TYPES)
def test_solve_sylvester(dtype: str, method: str) -> None:
    a, b, c = matrix((2, 4, 4), dtype), matrix((3, 3), dtype) + 4 * np.eye(3, dtype=dtype), matrix((2, 4, 3), dtype)
    (x,) = both(lambda a, b, c: linalg.solve_sylvester(a, b, c, method=method), a, b, c)
    assert x.dtype == dtype
    np.testing.assert_allclose(a @ x + x @ b, c, atol=2e-4 if "32" in dtype or "64" in dtype else 1e-10)
    (none,) = both(lambda a, c: linalg.solve_sylvester(a, -a, c, method=method, tol=1e-3), a, a)
    assert np.isnan(none).all()


@pytest.mark.parametrize("dtype", TYPES)
def test_functions_of_matrices(dtype: str) -> None:
    a, p = matrix((4, 4), dtype), positive((4, 4), dtype)
    for scale in (1e-3, 1.0, 30.0):
        (got,) = both(linalg.expm, scale * a)
        want = reference.expm(scale * a.astype(complex))
        single = dtype in ("float32", "complex64")
        np.testing.assert_allclose(got, want, atol=np.abs(want).max() * (1e-3 if single else 1e-10))
    (got,) = both(lambda x: linalg.expm(x, upper_triangular=True), a)
    close(got, reference.expm(np.triu(a)), dtype)
    assert np.isnan(np.asarray(linalg.expm(1e4 * a, max_squarings=3))).all()
    for squarings in range(4):  # exactly as many as are needed; one less is not enough
        x = np.array([[0.0, 1.0], [0.0, 0.0]], dtype) * (3.0 if np.finfo(dtype).eps > 1e-12 else 4.5) * 2**squarings
        close(linalg.expm(x, max_squarings=squarings), reference.expm(x), dtype)
        assert squarings == 0 or np.isnan(np.asarray(linalg.expm(x, max_squarings=squarings - 1))).all()
    for method in ("SPS", "blockEnlarge"):
        value, slope = both(lambda x, e, m=method: linalg.expm_frechet(x, e, method=m), a, p)
        close(value, reference.expm(a), dtype)
        wants = reference.expm_frechet(a.astype(complex), p.astype(complex), compute_expm=False)
        np.testing.assert_allclose(slope, wants, atol=np.abs(wants).max() * 1e-4)
    for x in (p, a, np.triu(a) + 3 * np.eye(4, dtype=dtype), np.stack([a, p])):
        (root,) = both(linalg.sqrtm, x)
        assert root.dtype.kind == "c"
        close(root @ root, x, dtype)
    value, error = both(lambda x: linalg.funm(x, jnp.exp, disp=False), p)
    np.testing.assert_allclose(value, reference.expm(p), rtol=1e-3 if error > 1e-12 else 1e-9)


@pytest.mark.parametrize("mode", [anima.numpy_dtype_promotion("strict"), anima.numpy_rank_promotion("raise")])
def test_nothing_is_promoted(mode: Any) -> None:
    """Arguments of one type are enough under the strictest rules."""
    p, b = positive((2, 3, 3), "float32"), matrix((2, 3, 3), "float32")
    with mode:
        for name in ("cho_factor", "cholesky", "det", "eigh", "expm", "hessenberg", "inv", "lu", "lu_factor", "qr",
                     "schur", "svd", "polar", "sqrtm", "toeplitz", "hankel", "circulant", "fiedler", "companion",
                     "fiedler_companion", "convolution_matrix"):
            extra = (2,) if name == "convolution_matrix" else ()
            outs = anima.tree.leaves(getattr(linalg, name)(p, *extra))
            assert all(jnp.asarray(o).dtype in ("float32", "complex64", "int32", "bool") for o in outs), name
        for name in ("solve", "solve_triangular", "qr_multiply", "expm_frechet"):
            outs = anima.tree.leaves(getattr(linalg, name)(p, b))
            assert all(o.dtype == np.float32 for o in outs), name
        for method in ("schur", "eigen"):
            assert linalg.solve_sylvester(p, p, b, method=method).dtype == np.float32
        assert linalg.leslie(b[0], b[0, :, :2]).dtype == np.float32
        assert linalg.lu_solve(linalg.lu_factor(p), b).dtype == np.float32
        assert linalg.funm(p[0], jnp.exp, disp=False)[0].dtype == np.complex64


SMOOTH: list[tuple[str, Callable[..., Any], tuple[int, ...], tuple[str, ...]]] = [
    *[(f"expm {s}", lambda x, s=s: linalg.expm(s * x), (2, 3, 3), ("float64", "complex128")) for s in (0.1, 6.0)],
    ("expm_frechet", lambda x: linalg.expm_frechet(x, x @ x, compute_expm=False), (3, 3), ("float64",)),
    ("sqrtm", lambda x: linalg.sqrtm(x @ x + 20 * np.eye(3)), (2, 3, 3), ("complex128",)),
    *[(f"sylvester {m}", lambda x, m=m: linalg.solve_sylvester(x, x[:2, :2] + 9 * np.eye(2), x[:, :2] ** 2, method=m),
       (3, 3), ("float64", "complex128")) for m in ("schur", "eigen")],
    ("lu_solve", lambda x: linalg.lu_solve(linalg.lu_factor(x), x[:, :2], trans=2), (3, 3), ("float64", "complex128")),
    ("qr_multiply", lambda x: linalg.qr_multiply(x, x.mT), (4, 3), ("float64",)),
    ("funm", lambda x: linalg.funm(x, jnp.exp), (3, 3), ("complex128",)),
]


@pytest.mark.parametrize("name,fun,shape,dtype", [(*s[:3], d) for s in SMOOTH for d in s[3]],
                         ids=[f"{s[0]} {d}" for s in SMOOTH for d in s[3]])
def test_derivatives(name: str, fun: Callable[..., Any], shape: tuple[int, ...], dtype: str) -> None:
    check_derivatives(fun, matrix(shape, dtype), name, 2e-5)


@pytest.mark.parametrize("kind,lower,x,slope", [
    ("pos", False, [-0.125, 0.75], [[0.015625, -0.09375], [0.03125, -0.1875]]),
    ("pos", True, [8 / 47, 30 / 47], [[-80 / 2209, -300 / 2209], [-112 / 2209, -420 / 2209]]),
    *[(k, low, [-1 / 11, 7.5 / 11], [[2.5 / 121, -18.75 / 121], [2 / 121, -15 / 121]])
      for k in ("gen", "sym", "her") for low in (True, False)],
])
def test_both_triangles_have_slopes(kind: str, lower: bool, x: list[float], slope: list[list[float]]) -> None:
    m, b = np.array([[4, 2], [0.5, 3]]), np.array([1.0, 2.0])
    solve = lambda m: linalg.solve(m, b, lower=lower, assume_a=kind)
    np.testing.assert_allclose(solve(m), x, rtol=1e-12)
    for grad in (anima.grad(lambda m: solve(m).sum()), anima.jit(anima.jacfwd(lambda m: solve(m).sum()))):
        np.testing.assert_allclose(grad(m), slope, rtol=1e-12)


def test_derivatives_where_eigenvalues_coincide() -> None:
    """Of the root and the equation's solution, whose Schur forms have none there."""
    check_derivatives(lambda x: linalg.sqrtm(x).real, 4 * np.eye(3), "root of a multiple of one")
    check_derivatives(lambda x: linalg.solve_sylvester(x, x, x @ x), np.eye(3), "sylvester")
    check_derivatives(linalg.expm, np.zeros((3, 3)), "exponential of zero")


# ---------------------------------------------------------------- matrices with a structure


@pytest.mark.parametrize("n", [0, 1, 2, 3, 8, 20])
def test_named_matrices(n: int) -> None:
    kinds = (None, "symmetric", "lower", "upper")
    cases: list[tuple[str, tuple[Any, ...]]] = [
        ("hilbert", ()), ("invhilbert", ()), ("dft", ()), ("dft", ("sqrtn",)), ("dft", ("n",)), ("hadamard", ()),
        ("helmert", ()), ("helmert", (True,)), *[(name, (k,)) for name in ("pascal", "invpascal") for k in kinds]]
    for name, args in cases:
        if n == 0 or (name == "hadamard" and n & (n - 1)):
            continue
        given = tuple("symmetric" if a is None and "pascal" in name else a for a in args)
        want = np.asarray(getattr(reference, name)(n, *given), float if name != "dft" else complex)
        np.testing.assert_allclose(getattr(linalg, name)(n, *args), want, rtol=1e-14, atol=1e-13)
    for name in ("hilbert", "invhilbert", "pascal", "invpascal", "dft"):
        assert getattr(linalg, name)(0).shape == (0, 0)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7])
def test_matrices_of_vectors(n: int) -> None:
    x, y = np.arange(2, n + 2) * 1.5, np.arange(n + 1) - 3.0
    for name in ("toeplitz", "hankel", "circulant", "fiedler", "companion", "fiedler_companion"):
        if n > 1 or "companion" not in name:
            (got,) = both(getattr(linalg, name), x)
            np.testing.assert_allclose(got, getattr(reference, name)(x), rtol=1e-14)
            (got,) = both(getattr(linalg, name), np.stack([x, x + 1]))
            np.testing.assert_allclose(got[1], getattr(reference, name)(x + 1), rtol=1e-14)
    for name in ("toeplitz", "hankel"):
        np.testing.assert_array_equal(getattr(linalg, name)(x, y), getattr(reference, name)(x, y))
    if n > 1:
        np.testing.assert_array_equal(linalg.leslie(x, y[1:n]), reference.leslie(x, y[1:n]))
    for mode in ("full", "same", "valid"):
        for m in (1, 2, 5, 9):
            got = np.asarray(linalg.convolution_matrix(x, m, mode))
            np.testing.assert_array_equal(got, reference.convolution_matrix(x, m, mode))
    np.testing.assert_array_equal(linalg.block_diag(x, np.ones((2, n)), 3), reference.block_diag(x, np.ones((2, n)), 3))
    assert linalg.toeplitz(1j * x).dtype == np.complex128 and linalg.block_diag().shape == (1, 0)
    check_derivatives(lambda v: linalg.toeplitz(v[0], v[1]), np.stack([x, x]), "toeplitz")


@pytest.mark.parametrize("call,error", [
    (lambda x: linalg.solve(x, x[0, :2]), ValueError), (lambda x: linalg.solve(x, x[0], assume_a="none"), ValueError),
    (lambda x: linalg.cho_solve((x, True), x[0, :2]), ValueError),
    (lambda x: linalg.solve_triangular(x, x, 3), ValueError),
    (lambda x: linalg.lu_solve(linalg.lu_factor(x), x, trans=3), ValueError), (lambda x: linalg.inv(x[:2]), ValueError),
    (lambda x: linalg.eigh(x, x), NotImplementedError), (lambda x: linalg.eigh(x, type=2), NotImplementedError),
    (lambda x: linalg.qr(x, mode="raw"), ValueError), (lambda x: linalg.qr_multiply(x, x, "middle"), ValueError),
    (lambda x: linalg.qr_multiply(x, x[:2, :2]), ValueError),
    (lambda x: linalg.svd(x, lapack_driver="none"), ValueError),
    (lambda x: linalg.schur(x, "imaginary"), ValueError), (lambda x: linalg.rsf2csf(x, x[:2]), ValueError),
    (lambda x: linalg.polar(x, "up"), ValueError), (lambda x: linalg.polar(x[:2]), NotImplementedError),
    (lambda x: linalg.polar(x, method="none"), ValueError), (lambda x: linalg.sqrtm(x, 2), NotImplementedError),
    (lambda x: linalg.solve_sylvester(x, x, x[:, :2]), ValueError), (lambda x: linalg.funm(x[:2], jnp.exp), ValueError),
    (lambda x: linalg.solve_sylvester(x, x, x, method="none"), ValueError), (lambda x: linalg.expm(x[0]), ValueError),
    (lambda x: linalg.expm(x.astype("float16")), TypeError), (lambda x: linalg.expm_frechet(x, x[:2]), ValueError),
    (lambda x: linalg.expm_frechet(x, x, method="none"), ValueError), (lambda x: linalg.hadamard(3), ValueError),
    (lambda x: linalg.eigh_tridiagonal(x[0], x[1]), TypeError), (lambda x: linalg.helmert(0), ValueError),
    (lambda x: linalg.eigh_tridiagonal(x[0], x[1, 1:], select="v"), NotImplementedError),
    (lambda x: linalg.eigh_tridiagonal(x[0], x[1, 1:], select="i"), ValueError),
    (lambda x: linalg.eigh_tridiagonal(x[0], x[1, 1:] + 0j), TypeError), (lambda x: linalg.hilbert(-1), TypeError),
    (lambda x: linalg.pascal(3, "none"), ValueError), (lambda x: linalg.dft(3, "none"), ValueError),
    (lambda x: linalg.dft(3, dtype="float32"), ValueError), (lambda x: linalg.companion(x[0, :1]), ValueError),
    (lambda x: linalg.leslie(x[0], x[0]), ValueError), (lambda x: linalg.convolution_matrix(x[0], 0), ValueError),
    (lambda x: linalg.block_diag(x[None]), ValueError), (lambda x: linalg.toeplitz([1.0, 2.0]), TypeError),
])
def test_errors(call: Callable[[Any], Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        call(positive((3, 3)))


def test_the_error_that_funm_estimates_is_small_where_eigenvalues_are_apart() -> None:
    apart, near = np.diag([1.0, 5.0, 9.0]) + np.triu(np.ones((3, 3)), 1), np.diag([1.0, 1.0, 9.0]) + np.eye(3, k=1)
    for a, small in ((apart, True), (near, False)):
        out, error = linalg.funm(a, jnp.exp, disp=False)
        assert (float(error) < 1e-14) == small
        if small:
            np.testing.assert_allclose(out, reference.expm(a), rtol=1e-12, atol=1e-12)
