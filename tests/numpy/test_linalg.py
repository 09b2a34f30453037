"""`anima.numpy.linalg` against NumPy: values, shapes, types, derivatives, compiled code, errors; polynomials."""

from __future__ import annotations

import inspect
import itertools
import math
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp

la = jnp.linalg


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    with anima.enable_x64(True):
        yield


def draw(*shape: int, dtype: Any = "float64", seed: str = "") -> np.ndarray:
    rng = np.random.default_rng(zlib.crc32(f"{shape}{seed}".encode()))
    x = rng.normal(size=shape)
    return (x + 1j * rng.normal(size=shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def check(fun: Callable[..., Any], want: Any, *args: Any, rtol: float = 1e-10) -> None:
    """The results, and those of compiled code, are NumPy's."""
    for f in (fun, anima.jit(fun)):
        for a, b in zip(anima.tree.leaves(f(*args)), anima.tree.leaves(want), strict=True):
            b = np.asarray(b)
            assert a.shape == b.shape and (a.dtype == b.dtype or a.dtype.kind in "ic"), (a.aval, b.dtype)
            np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


NAMES = [
    "cholesky", "cond", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "inv", "lstsq", "matmul",
    "matrix_norm", "matrix_power", "matrix_rank", "matrix_transpose", "multi_dot", "norm", "outer", "pinv", "qr",
    "slogdet", "solve", "svd", "svdvals", "tensordot", "tensorinv", "tensorsolve", "trace", "vecdot", "vector_norm"]


def test_names() -> None:
    assert sorted(la.__all__) == sorted(NAMES)
    assert all(inspect.getdoc(getattr(la, name)) for name in NAMES)


S, W = draw(2, 4, 4), draw(2, 3, 5)
H = S @ S.swapaxes(1, 2) + np.eye(4)
C = draw(3, 3, dtype="complex128")

SAME: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("cholesky", (H,), {}), ("cholesky", (H,), {"upper": True}),
    ("cholesky", (C @ C.conj().T + np.eye(3),), {"upper": True}),
    ("svdvals", (W,), {}), ("eigvalsh", (H,), {}), ("eigvalsh", (H, "U"), {}),
    ("inv", (S,), {}), ("inv", (C,), {}), ("det", (S,), {}), ("det", (C,), {}),
    *[("det", (draw(2, n, n),), {}) for n in (0, 1, 2, 3, 6)], ("slogdet", (S,), {}), ("slogdet", (C,), {}),
    ("slogdet", (np.zeros((2, 2)),), {}), ("solve", (S, draw(2, 4, 3)), {}), ("solve", (S, draw(4)), {}),
    ("solve", (S[0], draw(5, 4, 2)), {}), ("solve", (S, draw(4, 2)), {}), ("solve", (C, draw(3)), {}),
    ("pinv", (W,), {}), ("pinv", (H,), {"hermitian": True}), ("pinv", (C[:, :2],), {}),
    ("pinv", (np.ones((3, 2)),), {"rtol": 1e-10}), ("pinv", (np.zeros((0, 3)),), {}),
    ("matrix_rank", (W,), {}), ("matrix_rank", (np.ones((3, 3)),), {}), ("matrix_rank", (np.ones(3),), {}),
    ("matrix_rank", (np.diag([1.0, 1e-4, 0]),), {"tol": 1e-3}), ("matrix_rank", (H,), {"hermitian": True}),
    *[("matrix_power", (S, n), {}) for n in (-3, -1, 0, 1, 2, 7)],
    *[("cond", (S, p), {}) for p in (None, 1, -1, 2, -2, np.inf, -np.inf, "fro", "nuc")], ("cond", (W,), {}),
    ("multi_dot", ([draw(4), draw(4, 5), draw(5, 2), draw(2, 3)],), {}), ("multi_dot", ([draw(2, 3), draw(3, 4)],), {}),
    ("multi_dot", ([draw(4), draw(4, 5), draw(5)],), {}),
    ("cross", (draw(2, 3), draw(2, 3)), {}), ("outer", (draw(3), draw(4)), {}), ("trace", (W,), {"offset": 1}),
    ("diagonal", (W,), {"offset": -1}), ("matrix_transpose", (W,), {}), ("matmul", (S, H), {}),
    ("tensordot", (W, S), {"axes": ((0,), (0,))}), ("vecdot", (C, C), {}),
    ("tensorinv", (draw(4, 6, 8, 3),), {}), ("tensorinv", (draw(6, 3, 2),), {"ind": 1}),
    ("tensorsolve", (draw(2, 3, 6), draw(2, 3)), {}), ("tensorsolve", (draw(2, 6, 3), draw(2, 3)), {"axes": (1,)}),
]


@pytest.mark.parametrize("name,args,kwargs", SAME, ids=lambda v: v if isinstance(v, str) else "")
def test_as_numpy(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    want = getattr(np.linalg, name)(*args, **kwargs)
    static = [k for k, a in enumerate(args) if not isinstance(a, (np.ndarray, list))]
    given = [a for k, a in enumerate(args) if k not in static]

    def fun(*xs: Any) -> Any:
        rest = iter(xs)
        return getattr(la, name)(*(a if k in static else next(rest) for k, a in enumerate(args)), **kwargs)

    check(fun, want, *given, rtol=1e-9)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("ord", [None, 0, 1, 2, 3, 0.5, -1, -2, np.inf, -np.inf])
def test_vector_norms(ord: Any, keepdims: bool) -> None:
    for x in (W, C, np.arange(1.0, 5.0)):
        check(lambda x: la.norm(x, ord, axis=-1, keepdims=keepdims), np.linalg.norm(x, ord, -1, keepdims), x)
    if ord is not None:
        check(lambda x: la.vector_norm(x, ord=ord, keepdims=keepdims, axis=(0, 2)),
              np.linalg.vector_norm(W, ord=ord, keepdims=keepdims, axis=(0, 2)), W)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("ord", [None, "fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf])
def test_matrix_norms(ord: Any, keepdims: bool) -> None:
    for axes in ((0, 1), (2, 0), (-1, -2)):
        check(lambda x, axes=axes: la.norm(x, ord, axes, keepdims), np.linalg.norm(W, ord, axes, keepdims), W)
    if ord is not None:
        options = {"ord": ord, "keepdims": keepdims}
        check(lambda x: la.matrix_norm(x, **options), np.linalg.matrix_norm(W, **options), W)


def test_results_have_names() -> None:
    assert la.eigh(H)._fields == la.eig(S)._fields == ("eigenvalues", "eigenvectors")
    assert la.svd(W)._fields == ("U", "S", "Vh") and la.qr(W)._fields == ("Q", "R")
    assert la.slogdet(S)._fields == ("sign", "logabsdet")
    assert anima.jit(la.qr)(W).Q.shape == (2, 3, 3)


def test_types() -> None:
    with anima.enable_x64(False):
        integers = jnp.array([[2, 0], [1, 3]])
        for fun in (la.det, la.inv, la.cholesky, la.norm, la.svdvals, la.pinv):
            assert fun(integers).dtype == jnp.float32
        assert la.eigvals(integers).dtype == jnp.complex64 and float(la.det(integers)) == 6
        assert la.matrix_power(integers, 3).dtype == jnp.int32
        assert la.det(jnp.eye(2, dtype=jnp.bfloat16)).dtype == jnp.bfloat16
        with pytest.raises(NotImplementedError, match="bfloat16"):
            la.inv(jnp.eye(2, dtype=jnp.bfloat16))


@pytest.mark.parametrize("mode", ["reduced", "complete", "r", "raw"])
def test_qr_modes(mode: str) -> None:
    for x in (W[0], W[0].T, C):
        check(lambda x: la.qr(x, mode), np.linalg.qr(x, mode), x)


def test_svd_of_hermitian() -> None:
    x = H - 3 * np.eye(4)  # some eigenvalues are negative
    for uv in (True, False):
        out = anima.jit(lambda x, uv=uv: la.svd(x, hermitian=True, compute_uv=uv))(x)
        np.testing.assert_allclose(out.S if uv else out, np.linalg.svd(x, compute_uv=False), rtol=1e-10, atol=1e-10)
    u, s, vh = map(np.asarray, la.svd(x, hermitian=True))
    np.testing.assert_allclose(u * s[..., None, :] @ vh, x, atol=1e-10)


@pytest.mark.parametrize("shape,right", [((6, 3), (6,)), ((3, 6), (3, 2)), ((4, 4), (4, 2))])
def test_lstsq(shape: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = draw(*shape), draw(*right)
    want = np.linalg.lstsq(a, b)
    for given, expected in zip(la.lstsq(a, b, numpy_resid=True), want, strict=True):
        np.testing.assert_allclose(given, expected, atol=1e-10)
    x, residuals, *_ = anima.jit(la.lstsq)(a, b)
    np.testing.assert_allclose(x, want[0], atol=1e-10)
    np.testing.assert_allclose(residuals, np.sum(np.atleast_2d((a @ want[0] - b).T)**2, -1), atol=1e-10)
    low = np.outer(a[:, 0], a[0])
    np.testing.assert_allclose(la.lstsq(low, b, 1e-8)[0], np.linalg.lstsq(low, b, 1e-8)[0], atol=1e-8)
    assert int(la.lstsq(low, b, 1e-8)[2]) == 1


def test_which_singular_values_count() -> None:
    """From `rcond` times the largest on: eps max(m, n) if that is not given, eps if it is negative, all if it is 0."""
    eps = np.finfo(np.float64).eps
    a, b = np.diag([2.0, *[1.0] * 8, 6 * eps]), np.ones(10)
    for rcond, rank in ((None, 9), (-1.0, 10), (0.0, 10), (4 * eps, 9), (2 * eps, 10), (0.5, 9), (0.6, 1)):
        x, _, found, _ = la.lstsq(a, b, rcond)
        assert int(found) == rank
        np.testing.assert_allclose(x, np.where(np.arange(10) < rank, 1 / np.diagonal(a), 0), rtol=1e-12)
    assert int(la.lstsq(np.diag([1.0, 0.0]), np.ones(2), 0.0)[2]) == 1


# ---------------------------------------------------------------- derivatives

SLOPES: list[tuple[str, Callable[..., Any], tuple[int, ...]]] = [
    ("inv", la.inv, (2, 3, 3)), ("det", la.det, (2, 4, 4)), ("det 3", la.det, (3, 3)), ("slogdet", la.slogdet, (4, 4)),
    ("slogdet by qr", lambda x: la.slogdet(x, method="qr"), (4, 4)),
    ("solve", lambda a: la.solve(a, a[..., 0]), (3, 3)),
    ("solve of a batch", lambda a: la.solve(a[0], a), (2, 3, 3)), ("pinv", la.pinv, (4, 2)),
    ("wide pinv", la.pinv, (2, 4)),
    ("norm", la.norm, (3,)), ("3-norm", lambda x: la.norm(x, 3), (3,)),
    ("nuclear", lambda x: la.norm(x, "nuc"), (3, 2)),
    ("spectral", lambda x: la.norm(x, 2), (3, 2)), ("cond", la.cond, (3, 3)),
    ("matrix_power", lambda x: la.matrix_power(x, -2), (3, 3)),
    ("lstsq", lambda x: la.lstsq(x, x[:, 0] ** 2)[0], (4, 2)), ("eigvals", la.eigvals, (3, 3)),
    ("cholesky", lambda x: la.cholesky(x @ jnp.conj(x).mT + jnp.eye(3), upper=True), (3, 3)),
]


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("name,fun,shape", SLOPES, ids=[s[0] for s in SLOPES])
def test_derivatives(name: str, fun: Callable[..., Any], shape: tuple[int, ...], dtype: str) -> None:
    """To order 2, against differences, forwards and backwards."""
    x, t, step = draw(*shape, dtype=dtype, seed=name), draw(*shape, dtype=dtype, seed="t"), 1e-6

    def tangent(x: Any) -> Any:
        return anima.jvp(fun, (x,), (t,))[1]

    for f in (fun, tangent):
        slopes = anima.tree.leaves(anima.jvp(f, (x,), (t,))[1])
        above, below = (anima.tree.leaves(f(x + s * step * t)) for s in (1, -1))
        for slope, a, b in zip(slopes, above, below, strict=True):
            difference = (np.asarray(a) - np.asarray(b)) / (2 * step)
            scale = max(1.0, np.abs(difference).max())
            np.testing.assert_allclose(slope, difference, rtol=3e-5, atol=3e-5 * scale, err_msg=name)
    outs, pull = anima.vjp(fun, x)
    cts = anima.tree.map(lambda o: draw(*o.shape, dtype=o.dtype, seed="ct"), outs)
    (grad,) = anima.jit(lambda c: pull(c))(cts)
    pairing = sum(np.sum(np.asarray(c) * np.asarray(s)).real
                  for c, s in zip(*map(anima.tree.leaves, (cts, tangent(x))), strict=True))
    np.testing.assert_allclose(np.sum(np.asarray(grad) * t).real, pairing, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("zeros", [(3,), (0,), (1, 2), ()])
def test_slope_of_singular_determinants(zeros: tuple[int, ...]) -> None:
    """The gradient is the matrix of cofactors, whatever the rank."""
    a = np.round(draw(4, 4) * 3)
    for k in zeros:
        a[k] = 0 if k != 2 else a[1] * 2
    minors = [[np.linalg.det(np.delete(np.delete(a, i, 0), j, 1)) * (-1) ** (i + j) for j in range(4)]
              for i in range(4)]
    np.testing.assert_allclose(anima.grad(la.det)(a), minors, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(anima.jit(anima.grad(la.det))(a), minors, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rank", [4, 3, 2, 1, 0])
@pytest.mark.parametrize("dtype", [float, complex])
def test_second_derivatives_of_determinants_of_any_rank(rank: int, dtype: Any, x64: None) -> None:
    def by_columns(a: Any) -> Any:
        if a.shape[0] == 1:
            return a[0, 0]
        minors = [by_columns(jnp.delete(a[1:], k, 1)) for k in range(a.shape[1])]
        return sum((-1) ** k * a[0, k] * minor for k, minor in enumerate(minors))

    rng = np.random.default_rng(rank)
    a, t, s = (jnp.asarray(x).astype(dtype) * (1 if dtype is float else 1 + 0.5j) for x in (
        rng.normal(size=(4, rank)) @ rng.normal(size=(rank, 4)), rng.normal(size=(4, 4)), rng.normal(size=(4, 4))))

    def second(det: Any) -> Any:
        return anima.jvp(lambda x: anima.jvp(det, (x,), (t,))[1], (a,), (s,))[1]

    np.testing.assert_allclose(second(la.det), second(by_columns), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(anima.jit(lambda: second(la.det))(), second(by_columns), rtol=1e-9, atol=1e-9)
    if dtype is float:
        both = jnp.stack([a, t])
        np.testing.assert_allclose(anima.vmap(anima.hessian(la.det))(both),
                                   [anima.hessian(by_columns)(x) for x in both], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("fun", [la.inv, la.det, la.svdvals, la.slogdet, la.pinv, la.eigvalsh, la.matrix_rank],
                         ids=lambda f: f.__name__)
def test_vmap(fun: Callable[..., Any]) -> None:
    x = draw(3, 4, 4)
    rows = [anima.tree.leaves(fun(a)) for a in x]
    for axis in (0, 1, 2):
        got = anima.tree.leaves(anima.vmap(fun, in_axes=axis)(np.moveaxis(x, 0, axis)))
        for out, *want in zip(got, *rows, strict=True):
            np.testing.assert_allclose(out, np.stack([np.asarray(w) for w in want]), rtol=1e-10, atol=1e-12)


def test_vmap_of_solve() -> None:
    a, b = draw(3, 4, 4), draw(3, 4)
    for axes in itertools.product((0, None), repeat=2):
        if set(axes) != {None}:
            given = [x if d == 0 else x[0] for x, d in zip((a, b), axes, strict=True)]
            got = anima.jit(anima.vmap(la.solve, in_axes=axes))(*given)
            want = [np.linalg.solve(a[i if axes[0] == 0 else 0], b[i if axes[1] == 0 else 0]) for i in range(3)]
            np.testing.assert_allclose(got, want, rtol=1e-10)


# ---------------------------------------------------------------- what has no answer, and mistakes

def test_no_answer() -> None:
    assert np.isnan(np.asarray(la.cholesky(-np.eye(2)))[0, 0])
    for f in (la.inv, anima.jit(la.inv)):
        assert not np.isfinite(np.asarray(f(np.zeros((2, 2))))).all()
    assert float(la.det(np.zeros((4, 4)))) == 0 and la.cond(np.ones((2, 2)), 1) == np.inf
    assert np.isnan(float(la.cond(np.full((2, 2), np.nan), 1)))
    assert la.cond(np.ones((0, 2, 2))).shape == la.cond(np.ones((0, 2, 2)), "fro").shape == (0,)
    assert la.inv(np.zeros((0, 0))).shape == (0, 0)
    assert la.solve(np.zeros((3, 0, 0)), np.zeros((3, 0, 2))).shape == (3, 0, 2)
    assert la.lstsq(np.zeros((0, 3)), np.zeros(0))[0].shape == (3,)


WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: la.inv(np.ones(3)), ValueError, r"Argument to inv must have shape \[..., n, n\], got \(3,\)"),
    (lambda: la.det(W), ValueError, "must have shape"),
    (lambda: la.slogdet(S, method="x"), ValueError, "Unknown slogdet"),
    (lambda: la.cholesky(np.ones((2, 3))), TypeError, r"\(2, 3\)"), (lambda: la.eigh(S, "X"), ValueError, "UPLO"),
    (lambda: la.solve(np.eye(3), np.ones(4)), ValueError, "inconsistent size"),
    (lambda: la.solve(np.ones(3), np.ones(3)), ValueError, "at least two dimensional"),
    (lambda: la.qr(S, "zz"), ValueError, "Unsupported QR decomposition mode 'zz'"),
    (lambda: la.matrix_power(W, 2), TypeError, "square"), (lambda: la.matrix_power(S, 1.5), TypeError, "integer"),
    (lambda: la.cond(W, 1), ValueError, "must be square"),
    (lambda: la.norm(W, "x", (0, 1)), ValueError, "Invalid order 'x'"),
    (lambda: la.norm(np.ones(3), "fro"), ValueError, "Invalid order 'fro' for vector norm"),
    (lambda: la.norm(W, 2), ValueError, "Improper number of axes"),
    (lambda: la.multi_dot([np.ones((2, 3)), np.ones((2, 3))]), ValueError, "sizes do not match"),
    (lambda: la.lstsq(np.ones((2, 3)), np.ones(3)), ValueError, "Leading dimensions"),
    (lambda: la.lstsq(np.ones((2, 3)), np.ones((2, 2, 2))), TypeError, "3-dimensional array"),
    (lambda: la.cross(np.ones(2), np.ones(2)), ValueError, "3-dimensional vectors"),
    (lambda: la.outer(W, W), ValueError, "one-dimensional"),
    (lambda: la.tensorinv(np.eye(4), 0), ValueError, "positive integer"),
    (lambda: la.tensorsolve(np.ones((2, 3, 6)), np.ones(3)), ValueError, "leading shape"),
    (lambda: la.svd(S, subset_by_index=(0, 1)), ValueError, "cannot both be set"),
    (lambda: la.pinv(S, rtol=1, rcond=1), ValueError, "only one"),
    (lambda: jnp.roots(np.ones((2, 2))), ValueError, "rank-1"),
    (lambda: jnp.polyfit(np.arange(3.0), np.arange(3.0), -1), ValueError, "deg"),
    (lambda: jnp.polyfit(np.arange(4.0), np.arange(3.0), 1), TypeError, "same length"),
    (lambda: jnp.polyfit(np.arange(2.0), np.arange(2.0), 1, cov=True), ValueError, "number of data points"),
    (lambda: anima.jit(jnp.roots)(np.arange(3.0)), anima.errors.ConcretizationTypeError, "strip_zeros=False"),
]


@pytest.mark.parametrize("call,error,text", WRONG)
def test_errors(call: Callable[[], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()


# ---------------------------------------------------------------- polynomials

def in_order(x: Any) -> np.ndarray:
    return np.sort_complex(np.round(np.asarray(x), 9))


@pytest.mark.parametrize("p", [[1, -3, 2], [0, 0, 1, -3, 2, 0], [2, 0, 1, 0], [5], [0, 0], [3.0, 1]])
def test_roots(p: list[float]) -> None:
    np.testing.assert_allclose(in_order(jnp.roots(np.array(p))), in_order(np.roots(p)), atol=1e-8)
    missing = np.asarray(anima.jit(lambda p: jnp.roots(p, strip_zeros=False))(np.array(p, float)))
    count = max(len(p) - 1 - len(np.roots(p)), 0)
    assert len(missing) == len(p) - 1 and np.isnan(missing[len(missing) - count:]).all()
    np.testing.assert_allclose(in_order(missing[:len(missing) - count]), in_order(np.roots(p)), atol=1e-8)


def test_poly_of_a_matrix() -> None:
    check(jnp.poly, np.poly(S[0]).astype(complex), S[0])


@pytest.mark.parametrize("options", [{}, {"w": np.arange(1.0, 9.0)}, {"full": True}, {"cov": True},
                                     {"cov": "unscaled"}])
@pytest.mark.parametrize("columns", [(), (2,)])
def test_polyfit(options: dict[str, Any], columns: tuple[int, ...]) -> None:
    x, y = draw(8), draw(8, *columns)
    want = np.polyfit(x, y, 2, **options)
    check(lambda x, y: jnp.polyfit(x, y, 2, **options), want, x, y, rtol=1e-8)


@pytest.mark.parametrize("seed", range(6))
def test_a_chain_of_products_takes_the_fewest_multiplications(seed):
    sizes = [int(n) for n in np.random.RandomState(seed).randint(1, 30, 6)]

    def fewest(sizes):
        return min((fewest(sizes[:k + 1]) + fewest(sizes[k:]) + sizes[0] * sizes[k] * sizes[-1]
                    for k in range(1, len(sizes) - 1)), default=0)

    matrices = [np.ones(shape, "f") for shape in itertools.pairwise(sizes)]
    program = anima.make_jaxpr(lambda *xs: jnp.linalg.multi_dot(xs))(*matrices)
    products = [e for e in program.eqns if e.primitive.name == "dot_general"]
    assert sum(math.prod(e.invars[0].aval.shape) * e.invars[1].aval.shape[1] for e in products) == fewest(sizes)
