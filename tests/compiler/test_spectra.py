"""Eigenvalues of small matrices in loops of the program: residuals, LAPACK's values and signs, any numbers at all."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler.lowering.matrices import FILL, LARGE, LARGER
from tests.compiler.stages import agree
from tests.ops.matrix_checks import check_derivatives, h, matrix

TYPES = ("float32", "float64", "complex64", "complex128")
BATCHES = ((), (1,), (5,), (3, 7))


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    with anima.enable_x64(True):
        yield


def eigh(x: Any, lower: bool = True) -> Any:
    return lax.linalg.eigh(x, lower=lower, symmetrize_input=False)


def compiled(x: np.ndarray, lower: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Vectors and values by a program that calls nothing of LAPACK."""
    v, w = program(x.shape, x.dtype, lower)(x)
    return np.asarray(v), np.asarray(w)


@lru_cache(8)
def program(shape: tuple[int, ...], dtype: np.dtype, lower: bool) -> Any:
    """What computes these; the same for one test's matrices."""
    lowered = anima.jit(lambda x: eigh(x, lower)).lower(anima.ShapeDtypeStruct(shape, dtype))
    assert "evd" not in lowered.loops
    return lowered.compile()


def symmetric(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    a = matrix(shape, dtype)
    return a + h(a)


def largest(x: Any) -> float:
    return float(np.max(np.abs(x), initial=0.0))


def check(x: np.ndarray, v: np.ndarray, w: np.ndarray) -> None:
    """Residuals and orthogonality, and the order of values, in units of what rounding is due to change."""
    n, unit = x.shape[-1], float(np.finfo(x.dtype).eps)
    wide = np.complex128 if x.dtype.kind == "c" else np.float64
    x, v, w = x.astype(wide), v.astype(wide), w.astype(np.float64)
    assert largest(h(v) @ v - np.eye(n)) <= 4 * n * unit
    for one, vectors, values in zip(x.reshape(-1, n, n), v.reshape(-1, n, n), w.reshape(-1, n), strict=True):
        assert largest(one @ vectors - vectors * values) <= 4 * n * unit * largest(one) + 1e-44
        assert (np.diff(values) >= 0).all()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n", [*range(1, 10), 15, 16, 17, LARGER, LARGE])
def test_values_and_vectors(n: int, dtype: str) -> None:
    for lower in (True, False):
        for batch in BATCHES[lower::2] if n < 6 else BATCHES[2 * lower:][:1] if n <= LARGER else [(FILL,)]:
            x = symmetric((*batch, n, n), dtype)
            triangle = np.tri(n, dtype=bool) if lower else np.tri(n, dtype=bool).T
            given = np.where(triangle, x, np.asarray(np.nan, dtype))  # nothing else is looked at
            v, w = compiled(given, lower)
            check(x, v, w)
            np.testing.assert_allclose(w, eigh(x, lower)[1], rtol=0, atol=8 * n * np.finfo(dtype).eps * largest(x))


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("n", [2, 3, 4, 6, 11, 25])
def test_vectors_have_the_signs_of_lapack(n: int, dtype: str) -> None:
    for lower in (True, False):
        x = symmetric((7, n, n), dtype)
        np.testing.assert_allclose(compiled(x, lower)[0], eigh(x, lower)[0], rtol=0, atol=1e-9)


def special(n: int) -> dict[str, np.ndarray]:
    """Matrices that are not like random ones."""
    rng = np.random.default_rng(n)
    turn = np.linalg.qr(rng.normal(size=(n, n)))[0]
    line = np.diag(np.ones(n - 1), 1)
    graded = 10.0 ** -np.arange(n) * 10.0 ** -np.arange(n)[:, None]
    near = np.eye(n) + 1e-12 * (line + line.T)
    blocks = np.kron(np.eye(n), [[2.0, 1], [1, 2]])[:n, :n]
    return {"zero": np.zeros((n, n)), "one": np.eye(n), "ones": np.ones((n, n)), "line": line + line.T,
            "diagonal": np.diag(np.arange(n, 0, -1.0)), "negative": -np.diag(np.arange(1.0, n + 1)),
            "few values": turn @ np.diag(np.arange(n) % 2 + 1.0) @ turn.T,
            "rank one": np.outer(turn[0], turn[0]), "graded": graded, "graded upwards": graded[::-1, ::-1],
            "blocks": blocks, "close": near, "wilkinson": np.diag(abs(np.arange(n) - n // 2)) + line + line.T}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 21])
def test_special_matrices_at_any_scale(n: int, dtype: str) -> None:
    """In lanes beside each other, where each takes its own time."""
    exact = np.stack(list(special(n).values()))
    exact = (exact + h(exact)) / 2
    limits = np.finfo(dtype)
    for scale in (1.0, 1e-30, 1e30, float(limits.tiny), 1024 * float(limits.smallest_subnormal),
                  float(limits.max) / (4 * n * n)):
        x = (exact * scale).astype(dtype)
        v, w = compiled(x)
        size = np.abs(x.astype(np.float64)).max(axis=(-1, -2))
        bound = 8 * n * float(limits.eps) * size + 4 * n * float(limits.smallest_subnormal)
        assert largest(h(v).astype(np.float64) @ v - np.eye(n)) <= 4 * n * limits.eps
        residual = x.astype(np.float64) @ v - v.astype(np.float64) * w[:, None, :]
        assert (np.abs(residual).max(axis=(-1, -2)) <= bound).all()
        assert (np.diff(w) >= 0).all()
        np.testing.assert_array_less(np.abs(w - np.linalg.eigvalsh(x.astype(np.float64))).max(-1), bound + 1e-320)
        for k in range(len(x)):  # no lane changes what another one finds
            for together, alone in zip((v, w), compiled(x[k:k + 1].repeat(3, 0)), strict=True):
                np.testing.assert_array_equal(together[k], alone[1])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("n", [1, 3, 4, 6])
def test_what_is_not_finite_is_nan_by_itself(n: int, bad: float) -> None:
    x = symmetric((9, n, n), "float64")
    v, w = compiled(x)
    x[4, n - 1, 0] = bad
    got = compiled(x)
    for one, other in zip(got, (v, w), strict=True):
        assert np.isnan(one[4]).all()
        np.testing.assert_array_equal(np.delete(one, 4, 0), np.delete(other, 4, 0))


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("batch", [(), (6,)], ids=str)
def test_loops_compute_what_lapack_does(n: int, batch: tuple[int, ...]) -> None:
    agree(eigh, symmetric((*batch, n, n), "float64"), rtol=1e-7)


@pytest.mark.parametrize("n", [3, 5])
def test_inside_of_loops(n: int) -> None:
    """A scan, many scans, and their derivatives: nothing of LAPACK."""
    def steps(x: Any) -> Any:
        def step(c: Any, _: None) -> Any:
            v, w = eigh(c)
            return (v * jnp.exp(-w)) @ v.mT + 0.1 * x, w

        return lax.scan(step, x, None, length=4)

    x = symmetric((5, n, n), "float64")
    assert "evd" not in anima.jit(steps).lower(x[0]).loops
    for mapped, one in zip(anima.tree.leaves(anima.jit(anima.vmap(steps))(x)), range(2), strict=True):
        for k in range(5):
            np.testing.assert_allclose(mapped[k], anima.tree.leaves(anima.jit(steps)(x[k]))[one], rtol=1e-9, atol=1e-9)
    check_derivatives(lambda x: steps(x + x.mT)[1].sum(), matrix((n, n)), "steps")


def test_results_do_not_depend_on_what_is_beside() -> None:
    """Any number of matrices, odd ones too: each has the same bits."""
    x = symmetric((67, 6, 6), "float32")
    v, w = compiled(x)
    for count in (4, 17, 33):
        some, values = compiled(x[:count])
        np.testing.assert_array_equal(some, v[:count])
        np.testing.assert_array_equal(values, w[:count])


def test_larger_ones_go_to_lapack() -> None:
    n = LARGER + 1
    assert "syevd" in anima.jit(eigh).lower(symmetric((2, n, n), "float64")).loops
