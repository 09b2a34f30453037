"""Reflections, pivoted QR, parts of spectra and their implementations: equations, derivatives, batches, errors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import anima
from anima.lax import linalg
from anima.ops.linalg_spectral import eigh_tridiagonal_p
from tests.ops.matrix_checks import both, check_derivatives, close, h, matrix, positive

TYPES = ["float32", "float64", "complex64", "complex128"]
SHAPES = [(3, 3), (5, 3), (3, 5), (1, 1), (2, 4, 3), (0, 3), (3, 0), (0, 2, 2)]


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    with anima.enable_x64(True):
        yield


def product(a: np.ndarray, taus: np.ndarray) -> np.ndarray:
    """The square product of reflections of one matrix, as written."""
    out = np.eye(len(a), dtype=a.dtype)
    for i, tau in enumerate(taus):
        v = np.where(np.arange(len(a)) > i, a[:, i], np.arange(len(a)) == i)
        out = out @ (np.eye(len(a)) - tau * np.outer(v, v.conj()))
    return out


@pytest.mark.parametrize("left,transpose", [*itertools.product((True, False), repeat=2)])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_ormqr(shape: tuple[int, ...], dtype: str, left: bool, transpose: bool) -> None:
    """Whatever the factors are, and with fewer reflections than columns; the operands stay as they are."""
    m, n = shape[-2:]
    for k in {min(m, n), min(m, n) // 2}:
        a, taus = matrix(shape, dtype), matrix((*shape[:-2], k), dtype) * 0.5
        c = matrix((*shape[:-2], m, 2) if left else (*shape[:-2], 2, m), dtype)
        before = a.copy()
        (got,) = both(lambda a, t, c: linalg.ormqr(a, t, c, left=left, transpose=transpose), a, taus, c)
        np.testing.assert_array_equal(a, before)
        want = np.empty_like(c)
        for index in np.ndindex(shape[:-2]):
            q = product(a[index], taus[index])
            q = h(q) if transpose else q
            want[index] = q @ c[index] if left else c[index] @ q
        close(got, want, dtype)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_pivoted_qr(shape: tuple[int, ...], dtype: str, full: bool) -> None:
    a = matrix(shape, dtype)
    q, r, order = both(lambda x: linalg.qr(x, pivoting=True, full_matrices=full), a)
    k = shape[-2] if full else min(shape[-2:])
    assert q.shape == (*shape[:-1], k) and r.shape == (*shape[:-2], k, shape[-1]) and order.dtype == np.int32
    close(q @ r, np.take_along_axis(a, order[..., None, :], -1), dtype)
    close(h(q) @ q, np.broadcast_to(np.eye(k), (*shape[:-2], k, k)), dtype)
    sizes = np.abs(np.diagonal(r, axis1=-2, axis2=-1))
    assert (np.diff(sizes) <= 1e-5).all() and (np.tril(r, -1) == 0).all()


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(3, 3), (5, 3), (3, 5), (2, 4, 3)])
def test_svd_by_qr(shape: tuple[int, ...], dtype: str, full: bool) -> None:
    a, k = matrix(shape, dtype), min(shape[-2:])
    u, s, vh = both(lambda x: linalg.svd(x, full_matrices=full, algorithm=linalg.SvdAlgorithm.QR), a)
    close((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], a, dtype)
    (alone,) = both(lambda x: linalg.svd(x, compute_uv=False, algorithm=linalg.SvdAlgorithm.QR), a)
    close(alone, s, dtype)


def test_parts_of_spectra() -> None:
    a = positive((2, 4, 4))
    v, w = linalg.eigh(a)
    for subset in ((0, 4), (1, 3), (2, 2)):
        some_v, some_w = both(lambda x, p=subset: linalg.eigh(x, subset_by_index=p), a)
        np.testing.assert_array_equal(some_w, np.asarray(w)[:, slice(*subset)])
        np.testing.assert_array_equal(some_v, np.asarray(v)[:, :, slice(*subset)])
        u, s, vh = both(lambda x, p=subset: linalg.svd(x, subset_by_index=p, full_matrices=False), a)
        assert (u.shape[2], s.shape[1], vh.shape[1]) == (subset[1] - subset[0],) * 3
        close(linalg.svd(a, subset_by_index=subset, compute_uv=False), s, "float64")
        close(a @ vh.swapaxes(1, 2), u * s[:, None], "float64")


@pytest.mark.parametrize("vectors", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [0, 1, 2, 6])
def test_eigh_tridiagonal(n: int, dtype: str, vectors: bool) -> None:
    d, e = matrix((2, n), dtype), matrix((2, max(n - 1, 0)), dtype, "e")
    w, *v = both(lambda d, e: eigh_tridiagonal_p.bind(d, e, vectors=vectors), d, e)
    beside = [np.diag(y, 1) + np.diag(y, -1) if n > 1 else 0 for y in e]
    dense = np.stack([np.diag(x) + y for x, y in zip(d, beside, strict=True)])
    close(w, np.linalg.eigvalsh(dense), dtype)
    if vectors:
        close(dense @ v[0], v[0] * w[:, None], dtype)
    if n > 1:
        for out in both(lambda d, e: eigh_tridiagonal_p.bind(d, e, vectors=vectors), d * np.nan, e):
            assert np.isnan(out).all()


SMOOTH: list[tuple[str, Callable[..., Any], tuple[int, ...]]] = [
    *[(f"geqrf {s}", linalg.geqrf_p.bind, s) for s in ((4, 2), (3, 3), (2, 4), (2, 3, 2))],
    *[(f"ormqr {k}", lambda x, k=k: linalg.ormqr(x[:, :3], x[0, :2], x if k[0] else x.mT, left=k[0], transpose=k[1]),
       (4, 4)) for k in itertools.product((True, False), repeat=2)],
    ("householder product", lambda x: linalg.householder_product(x, x[..., 0, :2]), (2, 4, 3)),
    ("pivoted qr", lambda x: linalg.qr(x, pivoting=True, full_matrices=False), (2, 4, 3)),
    *[(f"full svd {s}", lambda x: (lambda u, e, vh: (e, abs(u[:, :2]), abs(vh[:2]), u[:, 2:] @ u[:, 2:].conj().mT,
                                                     vh[2:].conj().mT @ vh[2:]))(*linalg.svd(x)), s)
      for s in ((4, 2), (2, 4))],
    ("left eigenvectors", lambda x: (lambda w, u, v: (w, u * u.conj(), v * v.conj()))(*linalg.eig(
        x, enable_eigvec_derivs=True)), (3, 3)),
    ("part of eigenvectors", lambda x: abs(linalg.eigh(x, subset_by_index=(1, 3))[0]), (3, 3)),
]


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("name,fun,shape", SMOOTH, ids=[s[0] for s in SMOOTH])
def test_derivatives(name: str, fun: Callable[..., Any], shape: tuple[int, ...], dtype: str) -> None:
    check_derivatives(fun, matrix(shape, dtype), name)


def test_real_derivatives() -> None:
    check_derivatives(lambda x: linalg.symmetric_product(x, x[:2, :2], alpha=2.0, beta=0.5), matrix((2, 3)), "product")
    check_derivatives(lambda x: (lambda w, v: (w, v * v))(*eigh_tridiagonal_p.bind(x[0], x[1, :-1], vectors=True)),
                      matrix((2, 5)), "eigh_tridiagonal")
    check_derivatives(lambda x: eigh_tridiagonal_p.bind(x[0], x[1, :-1], vectors=False), matrix((2, 5)), "eigenvalues")


BATCHED: list[tuple[str, Callable[..., Any], tuple[tuple[int, ...], ...]]] = [
    ("ormqr", linalg.ormqr, ((3, 2), (2,), (3, 4))),
    ("pivoted qr", lambda x: linalg.qr(x, pivoting=True), ((3, 2),)),
    ("eigh_tridiagonal", lambda d, e: eigh_tridiagonal_p.bind(d, e, vectors=True), ((4,), (3,))),
    ("symmetric_product", linalg.symmetric_product, ((2, 3), (2, 2))),
]


@pytest.mark.parametrize("name,fun,shapes", BATCHED, ids=[b[0] for b in BATCHED])
def test_vmap_is_a_loop(name: str, fun: Callable[..., Any], shapes: tuple[tuple[int, ...], ...]) -> None:
    check_vmap(name, fun, shapes)


def check_vmap(name: str, fun: Callable[..., Any], shapes: tuple[tuple[int, ...], ...]) -> None:
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


@pytest.mark.parametrize("call,error,text", [
    (lambda x: linalg.ormqr(x, x[0], x[:2]), ValueError, "same number of rows"),
    (lambda x: linalg.ormqr(x, x[0], x[:, :2], left=False), ValueError, "same number of columns"),
    (lambda x: linalg.ormqr(x, x[0], x[0]), TypeError, "rank at least 2"),
    (lambda x: linalg.ormqr(x, x[0], x[None]), TypeError, "batch dimensions"),
    (lambda x: linalg.ormqr(x, x[0], x.astype("float32")), TypeError, "same dtypes"),
    (lambda x: linalg.ormqr(x[:, :2], x[0], x), ValueError, "Incompatible"),
    (lambda x: linalg.svd(x, subset_by_index=(0, 1)), ValueError, "cannot both be set"),
    (lambda x: linalg.svd(x, subset_by_index=(0, 9), compute_uv=False), ValueError, "range within"),
    (lambda x: linalg.svd(x, algorithm=linalg.SvdAlgorithm.POLAR), NotImplementedError, "CPU"),
    (lambda x: linalg.eigh(x, subset_by_index=(2, 1)), ValueError, "range within"),
    (lambda x: linalg.eigh(x, implementation=linalg.EighImplementation.QDWH), NotImplementedError, "CPU"),
    (lambda x: linalg.eig(x, implementation=linalg.EigImplementation.MAGMA), ValueError, "lapack"),
    (lambda x: linalg.eig(x, use_magma=True), ValueError, "lapack"),
    (lambda x: linalg.symmetric_product(x + 0j, x + 0j), TypeError, "subtypes of floating"),
    (lambda x: linalg.symmetric_product(x, x.astype("float32")), TypeError, "same dtypes"),
])
def test_errors(call: Callable[[Any], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call(matrix((3, 3)))


@pytest.mark.parametrize("shape", [(4, 2), (2, 3, 1), (3, 3)])
def test_no_reflections_leave_the_identity(shape: tuple[int, ...]) -> None:
    (got,) = both(linalg.householder_product, matrix(shape), np.zeros((*shape[:-2], 0)))
    close(got, np.broadcast_to(np.eye(*shape[-2:]), shape), "float64")


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 0, 2), (0, 2, 2)])
def test_factors_of_no_elements(shape: tuple[int, ...]) -> None:
    packed, taus = both(linalg.geqrf_p.bind, np.zeros(shape))
    assert packed.shape == shape and taus.shape == (*shape[:-2], min(shape[-2:]))


@pytest.mark.parametrize("left,transpose", [*itertools.product((True, False), repeat=2)])
def test_slopes_in_what_is_reflected_alone(left: bool, transpose: bool) -> None:
    """The function is linear in it: the slope is the function of the direction."""
    a, taus, c, t = matrix((3, 2)), matrix((2,)), matrix((3, 3)), matrix((3, 3), seed="t")
    slope = anima.jvp(lambda c: linalg.ormqr(a, taus, c, left=left, transpose=transpose), (c,), (t,))[1]
    q = h(product(a, taus)) if transpose else product(a, taus)
    close(slope, q @ t if left else t @ q, "float64")


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_slopes_of_left_eigenvectors_alone(dtype: str) -> None:
    """They are the right ones of the adjoint, whose slopes are in all components those of its."""
    x, t = matrix((3, 3), dtype), matrix((3, 3), dtype, "t")

    def vectors(x: Any, left: bool) -> Any:
        w, u = linalg.eig(x, compute_left_eigenvectors=left, compute_right_eigenvectors=not left,
                          enable_eigvec_derivs=True)
        return w, u * u.conj()

    (w, u), (dw, du) = anima.jvp(lambda x: vectors(x, True), (x,), (t,))
    (w2, u2), (dw2, du2) = anima.jvp(lambda x: vectors(x, False), (h(x),), (h(t),))
    here, there = np.argsort(np.asarray(w).imag + 9 * np.asarray(w).real), np.argsort(
        -np.asarray(w2).imag + 9 * np.asarray(w2).real)
    for got, want in ((w, np.conj(w2)), (dw, np.conj(dw2)), (np.asarray(u).T, np.asarray(u2).T),
                      (np.asarray(du).T, np.asarray(du2).T)):
        close(np.asarray(got)[here], np.asarray(want)[there], "float64")
