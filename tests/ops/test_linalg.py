"""Factorizations and solves: defining equations, compiled code, derivatives, batches, and what has no answer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.compiler.driver import lower
from anima.compiler.ir import interpret
from anima.core import dtypes
from anima.lax import linalg
from anima.ops.linalg import lu_solve_p
from tests.ops.matrix_checks import both, check_derivatives, check_slope, close, h, matrix, positive

TYPES = ["float32", "float64", "complex64", "complex128"]
SHAPES = [(3, 3), (2, 5), (5, 2), (1, 1), (2, 4, 4), (2, 1, 3, 2)]


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    with anima.enable_x64(True):
        yield


# ---------------------------------------------------------------- values: the equations that define them


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [s for s in SHAPES if s[-1] == s[-2]])
def test_cholesky(shape: tuple[int, ...], dtype: str) -> None:
    a = positive(shape, dtype)
    (low,) = both(linalg.cholesky, a)
    assert low.dtype == dtype and (np.triu(low, 1) == 0).all() and (np.diagonal(low, axis1=-2, axis2=-1).real > 0).all()
    close(low @ h(low), a, dtype)
    (other,) = both(lambda x: linalg.cholesky(x, symmetrize_input=False), np.tril(a) + np.triu(matrix(shape, dtype), 1))
    close(other, low, dtype)


FLAGS = list(itertools.product((True, False), repeat=5))


@pytest.mark.parametrize("left_side,lower,transpose_a,conjugate_a,unit_diagonal", FLAGS)
def test_triangular_solve(left_side: bool, lower: bool, transpose_a: bool, conjugate_a: bool,
                          unit_diagonal: bool) -> None:
    a = matrix((2, 3, 3), "complex128") + 3 * np.eye(3)
    b = matrix((2, 3, 4) if left_side else (2, 4, 3), "complex128")
    (x,) = both(lambda a, b: linalg.triangular_solve(
        a, b, left_side=left_side, lower=lower, transpose_a=transpose_a, conjugate_a=conjugate_a,
        unit_diagonal=unit_diagonal), a, b)
    op = np.tril(a) if lower else np.triu(a)
    if unit_diagonal:
        op = op * (1 - np.eye(3)) + np.eye(3)
    op = op.swapaxes(-1, -2) if transpose_a else op
    op = op.conj() if conjugate_a else op
    close(op @ x if left_side else x @ op, b, "complex128")


@pytest.mark.parametrize("dtype", [*TYPES, "float16", ml_dtypes.bfloat16])
def test_triangular_solve_types_and_vectors(dtype: Any) -> None:
    a, b = np.array([[2, 0], [1, 4]], dtype), np.array([2, 9], dtype)
    for left in (True, False):
        (x,) = both(lambda a, b, left=left: linalg.triangular_solve(a, b, left_side=left, lower=True), a, b)
        assert x.dtype == dtype
        np.testing.assert_array_equal(x.astype(complex), [1, 2] if left else [-0.125, 2.25])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_lu(shape: tuple[int, ...], dtype: str) -> None:
    a = matrix(shape, dtype)
    lu, pivots, permutation = both(linalg.lu, a)
    k = min(shape[-2:])
    low = (np.tril(lu, -1) + np.eye(*shape[-2:]))[..., :k]
    close(low @ np.triu(lu)[..., :k, :], np.take_along_axis(a, permutation[..., None], -2), dtype)
    assert pivots.dtype == permutation.dtype == np.int32 and pivots.shape == (*shape[:-2], k)
    (again,) = both(lambda p: linalg.lu_pivots_to_permutation(p, shape[-2]), pivots)
    np.testing.assert_array_equal(again, permutation)


def test_permutation_stays_inside() -> None:
    got = anima.jit(lambda p: linalg.lu_pivots_to_permutation(p, 3))(np.array([5, -7], np.int32))
    assert sorted(np.asarray(got).tolist()) == [0, 1, 2]


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_qr(shape: tuple[int, ...], dtype: str, full: bool) -> None:
    a = matrix(shape, dtype)
    q, r = both(lambda x: linalg.qr(x, full_matrices=full), a)
    k = shape[-2] if full else min(shape[-2:])
    assert q.shape == (*shape[:-1], k) and r.shape == (*shape[:-2], k, shape[-1])
    close(q @ r, a, dtype)
    close(h(q) @ q, np.broadcast_to(np.eye(k), (*shape[:-2], k, k)), dtype)
    assert (np.tril(r, -1) == 0).all()


@pytest.mark.parametrize("dtype", TYPES)
def test_reflections(dtype: str) -> None:
    a = matrix((2, 5, 3), dtype)
    packed, taus = both(lambda x: linalg.geqrf_p.bind(x), a)
    (q,) = both(linalg.householder_product, packed, taus)
    close(q @ np.triu(packed)[..., :3, :], a, dtype)


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [s for s in SHAPES if s[-1] == s[-2]])
def test_eigh(shape: tuple[int, ...], dtype: str, lower: bool) -> None:
    a = matrix(shape, dtype)
    half = np.tril(a, -1) if lower else np.triu(a, 1)
    a_h = half + h(half) + np.eye(shape[-1]) * a.real
    v, w = both(lambda x: linalg.eigh(x, lower=lower, symmetrize_input=False), a)
    assert w.dtype == dtypes.to_real(np.dtype(dtype)) and (np.diff(w) >= 0).all()
    close(a_h @ v, v * w[..., None, :], dtype)
    close(h(v) @ v, np.broadcast_to(np.eye(shape[-1]), shape), dtype)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_svd(shape: tuple[int, ...], dtype: str, full: bool) -> None:
    a = matrix(shape, dtype)
    u, s, vh = both(lambda x: linalg.svd(x, full_matrices=full), a)
    (alone,) = both(lambda x: linalg.svd(x, compute_uv=False), a)
    k = min(shape[-2:])
    close((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], a, dtype)
    close(h(u) @ u, np.broadcast_to(np.eye(u.shape[-1]), (*shape[:-2], u.shape[-1], u.shape[-1])), dtype)
    close(vh @ h(vh), np.broadcast_to(np.eye(vh.shape[-2]), (*shape[:-2], vh.shape[-2], vh.shape[-2])), dtype)
    assert (np.diff(s) <= 0).all() and s.dtype == dtypes.to_real(np.dtype(dtype))
    close(alone, s, dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n", [1, 2, 5])
def test_eig(n: int, dtype: str) -> None:
    a = np.stack([matrix((n, n), dtype, str(k)) for k in range(4)])
    w, left, right = both(linalg.eig, a)
    close(a @ right, right * w[..., None, :], dtype)
    close(h(left) @ a, w[..., None] * h(left), dtype)
    close(np.linalg.norm(right, axis=-2), np.ones((4, n)), dtype)
    (alone,) = both(lambda x: linalg.eig(x, compute_left_eigenvectors=False, compute_right_eigenvectors=False), a)
    close(alone, w, dtype)
    if n == 5 and np.dtype(dtype).kind == "f":
        assert (w.imag != 0).any()  # pairs were among them


@pytest.mark.parametrize("dtype", TYPES)
def test_eigenvalues_of_any_size(dtype: str) -> None:
    """LAPACK scales large and small matrices: what it finds of them has to be scaled back."""
    kind = np.finfo(dtype)
    a, powers = matrix((4, 4), dtype), [kind.minexp, kind.minexp // 2, -42, 42, kind.maxexp // 2, kind.maxexp - 4]
    a = (a / np.abs(a).max()).astype(dtype)
    expected = both(linalg.eig, a)[0]
    for size in np.ldexp(kind.dtype.type(1), powers):
        w, _, right = both(linalg.eig, (a * size).astype(dtype))
        close(w / size, expected, dtype)
        close(a @ right, right * (w / size), dtype)
        w = both(linalg.eig, np.stack([np.eye(3, dtype=dtype) * size, np.eye(3, dtype=dtype)]))[0]
        np.testing.assert_array_equal(w, [[size] * 3, [1] * 3])


@pytest.mark.parametrize("transpose_a,conjugate_a", [(False, False), (True, False), (True, True)])
def test_lu_solve(transpose_a: bool, conjugate_a: bool) -> None:
    a, b = matrix((2, 3, 3), "complex128"), matrix((2, 3, 2), "complex128")

    def solve(a: Any, b: Any) -> Any:
        lu, _, permutation = linalg.lu(a)
        return lu_solve_p.bind(a, lu, permutation, b, transpose_a=transpose_a, conjugate_a=conjugate_a)

    (x,) = both(solve, a, b)
    op = a.swapaxes(-1, -2) if transpose_a else a
    close((op.conj() if conjugate_a else op) @ x, b, "complex128")


# ---------------------------------------------------------------- compiled code by the interpreter, and in loops


@pytest.mark.parametrize("fun", [
    linalg.cholesky, linalg.lu, linalg.qr, linalg.eigh, linalg.svd, linalg.eig,
    lambda x: linalg.triangular_solve(x, x, lower=True)], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_interpreter(fun: Callable[..., Any], dtype: str) -> None:
    a = positive((2, 3, 3), dtype)
    closed = anima.make_jaxpr(fun)(a)
    outs = interpret.run(lower(closed).loops, [a])
    for got, want in zip(outs, anima.tree.leaves(fun(a)), strict=True):
        close(got.reshape(want.shape), want, dtype)


def test_inside_of_loops_and_branches() -> None:
    a = positive((3, 3))

    def step(x: Any, _: Any) -> Any:
        low = linalg.cholesky(x)
        return low @ low.mT + jnp.eye(3), low[0, 0]

    def fun(x: Any) -> Any:
        y, trail = anima.lax.scan(step, x, None, length=4)
        return anima.lax.cond(trail[0] > 0, lambda y: linalg.qr(y)[1], lambda y: y, y), trail

    r, trail = anima.jit(fun)(a)
    np.testing.assert_allclose(np.asarray(trail) ** 2, a[0, 0] + np.arange(4), rtol=1e-12)
    want = np.linalg.qr(a + 4 * np.eye(3))[1]
    np.testing.assert_allclose(r, want, rtol=1e-11, atol=1e-11)


def test_many_matrices_and_large_ones() -> None:
    """Work arrays are as large as the routines need them: an overrun would show."""
    for shape in ((50, 7, 7), (130, 90), (90, 130)):
        a = matrix(shape, "float32")
        both(lambda x: linalg.svd(x, full_matrices=False)[1], a)
        q, r = anima.jit(linalg.qr)(a)
        close(np.asarray(q) @ np.asarray(r), a, "float32")
    a = positive((150, 150))
    v, w = anima.jit(linalg.eigh)(a)
    np.testing.assert_allclose(np.asarray(v) * np.asarray(w) @ np.asarray(v).T, a, rtol=1e-9, atol=1e-9)


# ---------------------------------------------------------------- derivatives


def triangle(x: Any) -> Any:
    return jnp.tril(x) + 3 * jnp.eye(x.shape[-1])


SMOOTH: list[tuple[str, Callable[..., Any], Callable[[str], np.ndarray]]] = [
    ("cholesky", linalg.cholesky, lambda d: positive((2, 3, 3), d)),
    ("cholesky of a triangle", lambda x: linalg.cholesky(x, symmetrize_input=False), lambda d: positive((3, 3), d)),
    *[(f"lu {s}", lambda x: linalg.lu(x)[0], lambda d, s=s: matrix(s, d)) for s in ((2, 3, 3), (2, 4), (4, 2))],
    *[(f"qr {s}", lambda x: linalg.qr(x, full_matrices=False), lambda d, s=s: matrix(s, d))
      for s in ((2, 3, 3), (2, 4), (4, 2))],
    ("complete qr", lambda x: (lambda q, r: (q @ r, r))(*linalg.qr(x)), lambda d: matrix((4, 2), d)),
    ("eigenvalues", lambda x: linalg.eigh(x)[1], lambda d: matrix((2, 3, 3), d)),
    ("eigenvectors", lambda x: (lambda v, w: (v * v.conj(), v * w**2 @ v.conj().mT))(
        *linalg.eigh(x, symmetrize_input=False, lower=False)), lambda d: matrix((3, 3), d)),
    ("singular values", lambda x: linalg.svd(x, compute_uv=False), lambda d: matrix((2, 3, 4), d)),
    *[(f"svd {s}", lambda x: (lambda u, e, vh: (u * u.conj(), e, vh * vh.conj(), u @ vh))(
        *linalg.svd(x, full_matrices=False)), lambda d, s=s: matrix(s, d)) for s in ((3, 3), (2, 4), (4, 2))],
    ("eigenvalues of any", lambda x: linalg.eig(
        x, compute_left_eigenvectors=False, compute_right_eigenvectors=False)[0], lambda d: matrix((3, 3), d)),
    ("eigenvectors of any", lambda x: (lambda w, v: (w, v * v.conj()))(*linalg.eig(
        x, compute_left_eigenvectors=False, enable_eigvec_derivs=True)), lambda d: matrix((3, 3), d)),
    *[(f"triangular solve {k}", lambda x, k=k: linalg.triangular_solve(
        triangle(x), x, left_side=k[0], lower=k[1], transpose_a=k[2], conjugate_a=k[3], unit_diagonal=k[4]),
       lambda d: matrix((3, 3), d)) for k in FLAGS[::5]],
    ("solve", lambda x: jnp.linalg.solve(x, x[..., :1] ** 2), lambda d: matrix((2, 3, 3), d)),
]


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("name,fun,draw", SMOOTH, ids=[s[0] for s in SMOOTH])
def test_derivatives(name: str, fun: Callable[..., Any], draw: Callable[[str], np.ndarray], dtype: str) -> None:
    check_derivatives(fun, draw(dtype), name)


def test_gradient_of_gradient() -> None:
    a = positive((3, 3))
    hessian = np.asarray(anima.jit(anima.hessian(lambda x: linalg.cholesky(x).sum()))(a)).reshape(9, 9)
    np.testing.assert_allclose(hessian, hessian.T, atol=1e-12)
    check_slope(anima.grad(lambda x: linalg.svd(x, compute_uv=False).prod()), matrix((3, 3)), "gradient of svd")


SOLVES: dict[str, Callable[..., Any]] = {
    "solve": lambda a, b: jnp.linalg.solve(a, b), "of the transpose": lambda a, b: jnp.linalg.solve(a.mT, b),
    "vector": lambda a, b: jnp.linalg.solve(a, b[:, 0]), "inverse": lambda a, b: jnp.linalg.inv(a) @ b,
    "logarithm of the determinant": lambda a, b: jnp.linalg.slogdet(a)[1] * b,
    **{f"triangle {lower} {turned}": lambda a, b, lower=lower, turned=turned: linalg.triangular_solve(
        a, b, left_side=True, lower=lower, transpose_a=turned) for lower in (False, True) for turned in (False, True)}}


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("name", SOLVES)
def test_second_derivatives_of_systems(name: str, dtype: str) -> None:
    """Reverse mode solves with the transposed matrix, and the derivative of that is one by the matrix, too."""
    a, b = matrix((3, 3), dtype) + 4 * np.eye(3, dtype=dtype), matrix((3, 2), dtype)

    def loss(a: Any) -> Any:
        y = SOLVES[name](a, b)
        return jnp.sum(jnp.abs(y) ** 2 * (1.0 + jnp.arange(float(y.size)).reshape(y.shape)))

    direction, slope = matrix((3, 3), dtype), anima.grad(loss)
    step = 1e-6
    want = (np.asarray(slope(a + step * direction)) - np.asarray(slope(a - step * direction))) / (2 * step)
    got = anima.jvp(slope, (a,), (direction,))[1]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
    # The derivative along a direction of the derivative along another, in reverse.
    twice = anima.grad(lambda a: jnp.real(jnp.sum(slope(a) * direction)))(a)
    np.testing.assert_allclose(np.real(np.sum(np.asarray(twice) * direction)),
                               np.real(np.sum(np.asarray(got) * direction)), rtol=1e-6)


def test_derivatives_that_do_not_exist_say_so() -> None:
    wide = matrix((2, 3))
    with pytest.raises(NotImplementedError, match="enable_eigvec_derivs"):
        anima.jvp(linalg.eig, (wide[:, :2],), (wide[:, :2],))


# ---------------------------------------------------------------- batches


BATCHED: list[tuple[str, Callable[..., Any], tuple[tuple[int, ...], ...]]] = [
    ("cholesky", lambda x: linalg.cholesky(x @ x.mT + jnp.eye(3)), ((3, 3),)),
    ("lu", linalg.lu, ((3, 2),)), ("qr", linalg.qr, ((3, 2),)), ("svd", linalg.svd, ((3, 2),)),
    ("eigh", linalg.eigh, ((3, 3),)), ("eig", linalg.eig, ((3, 3),)),
    ("geqrf", linalg.geqrf_p.bind, ((3, 2),)),
    ("householder_product", linalg.householder_product, ((3, 2), (2,))),
    ("left solve", lambda a, b: linalg.triangular_solve(a, b, left_side=True), ((3, 3), (3, 2))),
    ("right solve", linalg.triangular_solve, ((3, 3), (2, 3))),
    ("batched solve", linalg.triangular_solve, ((2, 3, 3), (2, 2, 3))),
    ("solve", jnp.linalg.solve, ((3, 3), (3, 2))),
]


@pytest.mark.parametrize("name,fun,shapes", BATCHED, ids=[b[0] for b in BATCHED])
def test_vmap_is_a_loop(name: str, fun: Callable[..., Any], shapes: tuple[tuple[int, ...], ...]) -> None:
    lanes = [[matrix(s, seed=f"{name}{k}{lane}") for k, s in enumerate(shapes)] for lane in range(3)]
    for axes in itertools.product((None, 0, -1), repeat=len(shapes)):
        if set(axes) == {None}:
            continue
        mixed = [[lanes[0 if axes[k] is None else lane][k] for k in range(len(shapes))] for lane in range(3)]
        args = [lanes[0][k] if d is None else np.stack([m[k] for m in mixed], d) for k, d in enumerate(axes)]
        got = anima.tree.leaves(anima.vmap(fun, in_axes=axes)(*args))
        wants = zip(*(anima.tree.leaves(fun(*m)) for m in mixed), strict=True)
        for out, want in zip(got, wants, strict=True):
            stacked = np.stack([np.asarray(w) for w in want])
            np.testing.assert_allclose(out, stacked, rtol=1e-12, atol=1e-12, err_msg=name)


# ---------------------------------------------------------------- no elements, no answer, no such type


@pytest.mark.parametrize("fun,shape,shapes", [
    (linalg.cholesky, (0, 0), [(0, 0)]), (linalg.cholesky, (0, 2, 2), [(0, 2, 2)]),
    (linalg.lu, (3, 0), [(3, 0), (0,), (3,)]), (linalg.lu, (2, 0, 3), [(2, 0, 3), (2, 0), (2, 0)]),
    (linalg.qr, (3, 0), [(3, 3), (3, 0)]), (linalg.qr, (0, 3), [(0, 0), (0, 3)]),
    (linalg.svd, (2, 0), [(2, 2), (0,), (0, 0)]), (linalg.svd, (0, 3), [(0, 0), (0,), (3, 3)]),
    (linalg.eigh, (0, 0), [(0, 0), (0,)]), (linalg.eig, (2, 0, 0), [(2, 0), (2, 0, 0), (2, 0, 0)]),
    (lambda x: linalg.triangular_solve(x, x), (0, 0), [(0, 0)])])
def test_without_elements(fun: Callable[..., Any], shape: tuple[int, ...], shapes: list[tuple[int, ...]]) -> None:
    outs = both(fun, np.zeros(shape))
    assert [o.shape for o in outs] == shapes
    for out in outs:
        if out.ndim == 2 and out.size:
            np.testing.assert_array_equal(out, np.eye(3)[:out.shape[0], :out.shape[1]])
        elif out.size:
            np.testing.assert_array_equal(out, np.arange(3))


def test_no_answer_is_nan() -> None:
    """One bad matrix among good ones: only its results are NaN, and nothing raises."""
    good, bad, nan = np.diag([2.0, 1.0]), np.array([[1.0, 2.0], [2.0, 1.0]]), np.full((2, 2), np.nan)
    stack = np.stack([good, bad])
    (low,) = both(linalg.cholesky, stack)
    np.testing.assert_array_equal(low[1], [[np.nan, 0], [np.nan, np.nan]])
    close(low[0], np.sqrt(good), "float64")
    for fun in (linalg.eigh, linalg.svd, linalg.eig):
        for out in both(fun, np.stack([good, nan])):
            assert np.isnan(out[1]).all() and not np.isnan(out[0]).any()
    (x,) = both(lambda a: linalg.triangular_solve(a, np.ones((2, 1)), left_side=True), np.zeros((2, 2)))
    assert not np.isfinite(x).any()
    lu, _, _ = both(linalg.lu, np.zeros((2, 2)))
    assert (lu == 0).all()


def test_coinciding_eigenvalues_have_slopes_but_vectors_have_none() -> None:
    t = np.diag([1.0, 2.0, 3.0])
    dv, dw = anima.jvp(linalg.eigh, (np.eye(3),), (matrix((3, 3)),))[1]
    assert np.isfinite(np.asarray(dw)).all() and not np.isfinite(np.asarray(dv)).all()
    slope = anima.grad(lambda x: linalg.eigh(x)[1].sum())(np.eye(3))
    np.testing.assert_allclose(slope, np.eye(3), atol=1e-12)
    assert np.asarray(anima.jvp(lambda x: linalg.eigh(x)[1], (np.eye(3),), (t,))[1]).tolist() == [1, 2, 3]


@pytest.mark.parametrize("call,error,text", [
    (lambda: linalg.cholesky(np.ones((2, 3))), TypeError, "square"),
    (lambda: linalg.cholesky(np.ones((2, 3)), symmetrize_input=False), ValueError, r"square matrix. Got shape"),
    (lambda: linalg.eigh(np.ones((2, 3))), TypeError, "square"),
    (lambda: linalg.eig(np.ones((2, 3))), ValueError, "square"),
    (lambda: linalg.svd(np.ones(3)), TypeError, "Input 0 to svd must have rank at least 2"),
    (lambda: linalg.qr(np.ones(3)), TypeError, "rank at least 2"),
    (lambda: linalg.svd(np.eye(2, dtype=int)), TypeError, "svd does not accept dtype int64 at position 0"),
    (lambda: linalg.lu(np.eye(2, dtype="float16")), NotImplementedError, "float16"),
    (lambda: linalg.triangular_solve(np.ones((2, 3)), np.ones((2, 2))), ValueError, "square"),
    (lambda: linalg.triangular_solve(np.eye(2), np.ones((2, 3))), ValueError, "Incompatible shapes"),
    (lambda: linalg.triangular_solve(np.eye(2), np.ones((3, 2, 2))), TypeError, "batch dimensions"),
    (lambda: linalg.triangular_solve(np.eye(2), np.eye(2, dtype="float32")), TypeError, "same dtypes"),
    (lambda: linalg.lu_pivots_to_permutation(np.zeros(3, np.int32), 2), ValueError, "permutation size 2"),
    (lambda: linalg.householder_product(np.ones((2, 3)), np.ones(2)), ValueError, "Incompatible"),
    (lambda: linalg.symmetric_product(np.ones((2, 3)), np.ones((3, 3))), ValueError, "symmetric_product requires"),
    (lambda: linalg.lu_pivots_to_permutation(np.ones(2), 3), ValueError, "rank at least 1 and an integer type"),
    (lambda: linalg.lu_pivots_to_permutation(np.int32(1), 3), ValueError, "rank at least 1 and an integer type"),
])
def test_errors(call: Callable[[], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()


def test_symmetric_product() -> None:
    a, c = matrix((2, 3, 4)), matrix((2, 3, 3))
    c = c + c.swapaxes(1, 2)
    for symmetric in (True, False):
        (out,) = both(lambda a, c, s=symmetric: linalg.symmetric_product(
            a, c, alpha=2.0, beta=0.5, symmetrize_output=s), a, c)
        close(out, 2 * a @ a.swapaxes(1, 2) + 0.5 * c, "float64")


def test_permutations_of_many_pivots() -> None:
    """Mapped over any axis, each sequence of exchanges of rows is one of its own."""
    pivots = np.array([[1, 2, 3], [0, 3, 2], [2, 2, 2]], np.int32)
    wants = []
    for row in pivots:
        order = list(range(5))
        for i, other in enumerate(row):
            order[i], order[other] = order[other], order[i]
        wants.append(order)
    for run in (lambda f: f, anima.jit):
        for axis in (0, 1):
            given = pivots if axis == 0 else pivots.T
            got = run(anima.vmap(lambda p: linalg.lu_pivots_to_permutation(p, 5), in_axes=axis))(given)
            np.testing.assert_array_equal(got, wants)
    slope = anima.jvp(lambda x: linalg.lu_pivots_to_permutation(pivots[0], 5) * x, (2.0,), (1.0,))[1]
    assert slope.tolist() == wants[0]


@pytest.mark.parametrize("which", [0, 1, 2])
def test_slopes_of_symmetric_products_and_sylvester_in_one_operand(which: int) -> None:
    a, b, c = matrix((3, 3)), matrix((2, 2), seed="b") + 4 * np.eye(2), matrix((3, 2))

    def solved(x: Any) -> Any:
        return anima.scipy.linalg.solve_sylvester(*[x if k == which else v for k, v in enumerate((a, b, c))])

    check_slope(solved, (a, b, c)[which], f"sylvester in {which}")
    if which < 2:
        check_slope(lambda x: linalg.symmetric_product(*((x, a) if which == 0 else (c, x)), alpha=3.0, beta=0.5),
                    a, f"product in {which}")
