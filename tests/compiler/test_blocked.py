"""Large factorizations and triangular systems by blocks, against NumPy and LAPACK, and by residuals."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import anima
import anima.numpy as jnp
import anima.scipy.linalg as jsl
from anima import lax
from anima.compiler.lowering import blocked
from anima.compiler.lowering.blocked import LEAST
from anima.compiler.products.substitution import MOST_ROWS
from tests.compiler.stages import agree, check_threads
from tests.ops.matrix_checks import check_derivatives, matrix, positive

TYPES = ("float32", "float64")
SIZES = (LEAST, LEAST + 1, 127, 128, 129, 200, MOST_ROWS + 5)
SHAPES = [(m, n) for m in (LEAST, 161, 300) for n in (LEAST, 161, 300)] + [(MOST_ROWS + 9, 80), (80, MOST_ROWS + 9)]


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    with anima.enable_x64(True):
        yield


def system(n: int, dtype: str) -> np.ndarray:
    """A matrix of which both triangles are well conditioned, with a unit diagonal too."""
    return (matrix((n, n)) / n + np.eye(n) * 1.5).astype(dtype)


def near(got: Any, want: np.ndarray, dtype: str) -> None:
    scale = np.max(np.abs(want), initial=1e-300)
    assert np.max(np.abs(np.asarray(got, np.float64) - want), initial=0) <= 300 * np.finfo(dtype).eps * scale


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n,columns", [(33, 1), (33, 2), (40, 17), (64, 49), (65, 16), (100, 130), (MOST_ROWS, 5),
                                       (MOST_ROWS + 1, 33), (2 * MOST_ROWS + 76, 3)])
def test_triangular_systems(n: int, columns: int, dtype: str) -> None:
    """Every way to read the matrix; the other triangle, and the diagonal where it counts as ones, are never read."""
    a = system(n, dtype)
    for left, lower, transposed, unit in itertools.product([True, False], repeat=4):
        b = matrix((n, columns) if left else (columns, n)).astype(dtype)
        triangle = (np.tril if lower else np.triu)(a.astype(np.float64))
        hidden = np.where(triangle != 0, a, np.asarray(np.nan, dtype))
        if unit:
            np.fill_diagonal(triangle, 1)
            np.fill_diagonal(hidden, np.nan)
        op = triangle.T if transposed else triangle
        want = np.linalg.solve(op, b) if left else np.linalg.solve(op.T, b.T).T
        kind = {"left_side": left, "lower": lower, "transpose_a": transposed, "unit_diagonal": unit}
        solve = anima.jit(lambda a, b, kind=kind: lax.linalg.triangular_solve(a, b, **kind))
        near(solve(hidden, b), want, dtype)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("left,lower,transposed,conjugated", list(itertools.product([True, False], repeat=4)))
def test_one_right_side_of_complex_numbers(left: bool, lower: bool, transposed: bool, conjugated: bool, dtype: str
                                           ) -> None:
    n = 50
    a, b = matrix((n, n), dtype) / n + 1.5 * np.eye(n, dtype=dtype), matrix((n, 1) if left else (1, n), dtype)
    op = (np.tril if lower else np.triu)(a.astype(np.complex128))
    op = op.T if transposed else op
    op = op.conj() if conjugated else op
    want = np.linalg.solve(op, b) if left else np.linalg.solve(op.T, b.T).T
    got = anima.jit(lambda a, b: lax.linalg.triangular_solve(
        a, b, left_side=left, lower=lower, transpose_a=transposed, conjugate_a=conjugated))(a, b)
    assert np.max(np.abs(got - want)) <= 300 * np.finfo(dtype).eps * np.max(np.abs(want))


def test_a_batch_of_systems() -> None:
    solve = anima.jit(lambda a, b: jsl.solve_triangular(a, b, lower=True))
    for n, columns in ((40, 3), (MOST_ROWS + 30, 20)):
        a, b = np.stack([system(n, "float64") + k * np.eye(n) for k in range(3)]), matrix((3, n, columns))
        near(solve(a, b), np.linalg.solve(np.tril(a), b), "float64")
        near(anima.jit(anima.vmap(solve, (None, 0)))(a[0], b), np.linalg.solve(np.tril(a[0]), b), "float64")


def test_what_is_singular_is_not_finite() -> None:
    a = system(100, "float32")
    a[40, 40] = 0
    x = anima.jit(lambda a, b: jsl.solve_triangular(a, b, lower=True))(a, np.ones((100, 4), np.float32))
    assert np.isfinite(x[:40]).all()
    assert not np.isfinite(x[40]).any()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n", SIZES)
def test_cholesky(n: int, dtype: str) -> None:
    """Only the lower triangle is read; matrices that are not positive definite, wherever that shows, have no factor."""
    x = positive((n, n), dtype)
    factor = anima.jit(lambda x: lax.linalg.cholesky(x, symmetrize_input=False))
    near(factor(np.where(np.tri(n, dtype=bool), x, np.asarray(np.nan, dtype))),
         np.linalg.cholesky(x.astype(np.float64)), dtype)
    for place in (0, n // 2, n - 1):
        bad = x.copy()
        bad[place, place] = -1
        got = factor(bad)
        assert np.isnan(got[np.tril_indices(n)]).all()
        assert not np.triu(got, 1).any()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_lu(shape: tuple[int, int], dtype: str) -> None:
    """With the exchanges of LAPACK."""
    x = matrix(shape).astype(dtype)
    lu, pivots, permutation = map(np.asarray, anima.jit(lax.linalg.lu)(x))
    k = min(shape)
    lower, upper = np.tril(lu[:, :k], -1) + np.eye(shape[0], k), np.triu(lu[:k])
    assert np.abs(lower).max() <= 1
    near(lower.astype(np.float64) @ upper, x[permutation], dtype)
    (getrf,) = scipy.linalg.get_lapack_funcs(("getrf",), (x,))
    np.testing.assert_array_equal(pivots, getrf(x)[1])


@pytest.mark.parametrize("n", [LEAST, 200])
@pytest.mark.parametrize("fill", [np.nan, np.inf, 0.0])
def test_exchanges_stay_inside(n: int, fill: float) -> None:
    for x in (np.full((n, n), fill), np.where(np.arange(n)[:, None] == n // 2, fill, matrix((n, n)))):
        _, pivots, permutation = anima.jit(lax.linalg.lu)(x.astype(np.float32))
        assert (pivots >= np.arange(n)).all()
        assert (pivots < n).all()
        np.testing.assert_array_equal(np.sort(permutation), np.arange(n))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("mode", ["reduced", "complete", "r", "raw"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_qr(shape: tuple[int, int], mode: str, dtype: str) -> None:
    """The signs are LAPACK's."""
    x = matrix(shape).astype(dtype)
    got = anima.jit(lambda x: jnp.linalg.qr(x, mode=mode))(x)
    want = np.linalg.qr(x.astype(np.float64), mode=mode)  # type: ignore[call-overload]
    if mode in ("reduced", "complete"):
        q, r = got
        near(q.astype(np.float64) @ r, x, dtype)
        near(q.T.astype(np.float64) @ q, np.eye(q.shape[1]), dtype)
        near(r, want[1], dtype)
    elif mode == "r":
        near(got, want, dtype)
    else:
        near(got[0], want[0], dtype)
        near(got[1], want[1], dtype)


FUNCTIONS = {
    "cholesky": lambda x: jnp.linalg.cholesky(x @ x.T + x.shape[0] * jnp.eye(x.shape[0])),
    "lu": lax.linalg.lu, "qr": jnp.linalg.qr, "inv": jnp.linalg.inv, "slogdet": jnp.linalg.slogdet,
    "right": lambda x: lax.linalg.triangular_solve(x + 40 * jnp.eye(x.shape[0], dtype=x.dtype), x)}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_any_number_of_threads_gives_the_same_bits(name: str) -> None:
    check_threads(anima.jit(FUNCTIONS[name]), matrix((300, 300)).astype("float32"))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_calls_compute_what_lapack_does(name: str) -> None:
    """Whatever order the loops around them run in."""
    agree(FUNCTIONS[name], matrix((LEAST + 3, LEAST + 3)), rtol=1e-8)


def test_evaluation_does_the_same() -> None:
    """One equation after the other, on NumPy's arrays."""
    n = LEAST + 3
    x, b = positive((n, n)), matrix((n, 3))
    near(blocked.solve(x, b, "L", True, "N", False), np.linalg.solve(np.tril(x), b), "float64")
    factor, info = blocked.cholesky(x)
    near(np.tril(factor), np.linalg.cholesky(x), "float64")
    assert not np.any(info)
    lu, pivots = blocked.lu(x)
    want = scipy.linalg.lu_factor(x)
    near(lu, want[0], "float64")
    np.testing.assert_array_equal(pivots, want[1])
    packed, taus, vectors, triangles = blocked.reflections(x)
    near(blocked.orthogonal(vectors, triangles, n), np.linalg.qr(x)[0], "float64")
    near(np.triu(packed), np.linalg.qr(x)[1], "float64")
    assert taus.shape == (n,)


def test_derivatives() -> None:
    n = LEAST + 1
    for name in ("cholesky", "qr", "inv", "slogdet"):
        fun = FUNCTIONS[name]
        check_derivatives(lambda x, fun=fun: anima.tree.leaves(fun(x + 3 * jnp.eye(n)))[-1], matrix((n, n)) / n, name)


def test_inside_of_loops_and_batches() -> None:
    """In a loop; where there are several matrices, each has the factors that it has alone."""
    n = LEAST
    x = positive((3, n, n))

    def whitened(x: Any) -> Any:
        return lax.fori_loop(0, 3, lambda k, y: jnp.linalg.solve(jnp.linalg.cholesky(x), y) + k, jnp.eye(n))

    one, several = anima.jit(whitened), anima.jit(anima.vmap(whitened))
    want = []
    for a in x:
        y, factor = np.eye(n), np.linalg.cholesky(a)
        for k in range(3):
            y = np.linalg.solve(factor, y) + k
        want.append(y)
    near(one(x[0]), want[0], "float32")
    near(several(x), np.stack(want), "float32")
