"""Factors of small matrices and systems with them in loops of the program, against LAPACK and by residuals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler.lowering.lanes import WRITTEN_OUT
from anima.compiler.lowering.matrices import FILL, LARGE, LARGER, LARGEST
from tests.compiler.stages import agree
from tests.ops.matrix_checks import check_derivatives, h, matrix, positive

TYPES = ("float32", "float64", "complex64", "complex128")
SIZES = (1, 2, 3, WRITTEN_OUT, WRITTEN_OUT + 1, 8, LARGEST, LARGEST + 1, LARGER, LARGER + 1, LARGE)
LAPACK = ("potrf", "getrf", "trsm", "geqrf")


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    with anima.enable_x64(True):
        yield


def batches(n: int) -> tuple[tuple[int, ...], ...]:
    """Batches in which matrices of n rows are in lanes, or in vectors if they are few."""
    return ((), (3,), (2, 9)) if n <= LARGER else ((FILL,),)


def eps(dtype: str) -> float:
    return float(np.finfo(dtype).eps)


def largest(x: Any) -> float:
    return float(np.max(np.abs(x), initial=0.0))


def compiled(fun: Callable[..., Any], *args: Any) -> list[np.ndarray]:
    """Results of a program that calls nothing of LAPACK."""
    program = anima.jit(fun).lower(*args)
    assert not any(name in program.loops for name in LAPACK)
    return [np.asarray(x) for x in anima.tree.leaves(program.compile()(*args))]


def lower_factor(x: Any) -> Any:
    return lax.linalg.cholesky(x, symmetrize_input=False)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n", SIZES)
def test_cholesky(n: int, dtype: str) -> None:
    for batch in (*batches(n), (0,), *[(1,)] * (n <= LARGEST)):
        x = positive((*batch, n, n), dtype)
        (factor,) = compiled(lower_factor, np.where(np.tri(n, dtype=bool), x, np.asarray(np.nan, dtype)))
        np.testing.assert_array_equal(factor, np.tril(factor))
        assert largest(factor @ h(factor) - x) <= 4 * n * eps(dtype) * largest(x)
        np.testing.assert_array_equal(np.diagonal(factor, 0, -1, -2).imag, 0)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("batch", [(), (9,)], ids=str)
def test_what_is_not_positive_definite_is_nan_by_itself(n: int, batch: tuple[int, ...]) -> None:
    program = None
    for k in {0, n // 2, n - 1}:
        for bad in (-1.0, 0.0, -0.0, -np.inf, np.nan, np.inf):
            x = np.array(np.broadcast_to(np.eye(n), (*batch, n, n)))
            x[(4, k, k) if batch else (k, k)] = bad
            program = program or anima.jit(lower_factor).lower(x).compile()
            factor = np.asarray(program(x))
            np.testing.assert_array_equal(factor, lower_factor(x))
            if bad <= 0:
                want = np.array(np.broadcast_to(np.eye(n), (*batch, n, n)))
                want[4 if batch else ...] = np.tril(np.full((n, n), np.nan))
                np.testing.assert_array_equal(factor, want)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [*((n, n) for n in SIZES), (3, 4), (4, 3), (5, 16), (16, 5), (1, 9), (9, 1)], ids=str)
def test_lu(shape: tuple[int, int], dtype: str) -> None:
    k = min(shape)
    for batch in batches(max(shape)):
        x = matrix((*batch, *shape), dtype)
        lu, pivots, order = compiled(lax.linalg.lu, x)
        _, same_pivots, same_order = lax.linalg.lu(x)
        np.testing.assert_array_equal(pivots, same_pivots)
        np.testing.assert_array_equal(order, same_order)
        left = np.tril(lu, -1)[..., :k] + np.eye(shape[0], k, dtype=dtype)
        rows = np.take_along_axis(x, np.asarray(order)[..., None], -2)
        assert largest(left @ np.triu(lu)[..., :k, :] - rows) <= 4 * k * eps(dtype) * max(largest(lu), largest(x))


@pytest.mark.parametrize("n", [2, 4, 5, 8, 16])
@pytest.mark.parametrize("batch", [(), (6,)], ids=str)
def test_singular_matrices_have_the_factors_of_lapack(n: int, batch: tuple[int, ...]) -> None:
    """Integers, so that all is exact: a pivot that is 0 divides nothing, ties go to the first row."""
    ones = np.ones((*batch, n, n))
    below = np.tril(ones)
    for x in (0 * ones, ones, below - np.eye(n), np.triu(ones, 1), below * [0.0, *[1.0] * (n - 1)],
              np.where(np.arange(n) % 2, ones, -ones)):
        for got, want in zip(compiled(lax.linalg.lu, x), lax.linalg.lu(x), strict=True):
            np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(anima.jit(jnp.linalg.det)(x), np.zeros(batch))
        for got, want in zip(anima.jit(jnp.linalg.slogdet)(x), (0, -np.inf), strict=True):
            np.testing.assert_array_equal(got, np.full(batch, want))
        assert not np.isfinite(np.asarray(anima.jit(jnp.linalg.inv)(x))).all(axis=(-1, -2)).any()


@pytest.mark.parametrize("scale", [1e-310, 1e-300, 1e300])
@pytest.mark.parametrize("n", [4, 6])
def test_pivots_of_any_size(n: int, scale: float) -> None:
    """Those whose reciprocals are infinite, too."""
    x = matrix((5, n, n)) * scale
    lu, _, order = compiled(lax.linalg.lu, x)
    left, rows = np.tril(lu, -1) + np.eye(n), np.take_along_axis(x, order[..., None], -2)
    assert largest(left) == 1
    assert largest(left @ np.triu(lu) - rows) <= 4 * n * (eps("float64") * largest(x) + 5e-324)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (4, 3), (3, 4), (5, 5), (8, 5), (6, 9), (16, 16), (1, 7)], ids=str)
def test_qr(shape: tuple[int, int], dtype: str) -> None:
    """LAPACK's, to rounding, signs and all; columns may be of any size."""
    m, n = shape
    for batch in ((), (9,)):
        for scale, full in ((1, True), (1e-30, False), (1e30, False)):
            x = (matrix((*batch, m, n), dtype) * np.asarray(scale, dtype)).astype(dtype)
            q, r = compiled(lambda x, full=full: jnp.linalg.qr(x, "complete" if full else "reduced"), x)
            for got, want in zip((q, r), jnp.linalg.qr(x, "complete" if full else "reduced"), strict=True):
                np.testing.assert_allclose(got, want, rtol=0, atol=300 * eps(dtype) * largest(want))
            assert largest(q @ r - x) <= 4 * (m + n) * eps(dtype) * largest(x)
            assert largest(h(q) @ q - np.eye(q.shape[-1])) <= 4 * (m + n) * eps(dtype)
            np.testing.assert_array_equal(r, np.triu(r))


@pytest.mark.parametrize("n", [3, 6])
def test_columns_that_are_zero_already_are_not_reflected(n: int) -> None:
    x = np.zeros((6, n, n))
    x[1, n - 1, 1], x[2], x[3, 0, 0], x[4] = 1, 1, -2, -np.eye(n)
    q, r = compiled(jnp.linalg.qr, x)
    np.testing.assert_allclose(q @ r, x, atol=1e-14)
    for k in (0, 1, 3, 4):
        for got, want in zip((q, r), jnp.linalg.qr(x), strict=True):
            np.testing.assert_allclose(got[k], want[k], atol=1e-15)


@pytest.mark.parametrize("n", [3, 6])
def test_subnormal_columns_have_orthogonal_factors(n: int) -> None:
    x = (matrix((5, n, n)) * 1e-41).astype("float32")
    q, r = (y.astype("float64") for y in compiled(jnp.linalg.qr, x))
    assert largest(h(q) @ q - np.eye(n)) <= 4 * n * eps("float32")
    assert largest(q @ r - x) <= 8 * n * 1.5e-45


FLAGS = [(left, lower, mode, unit) for left in (True, False) for lower in (True, False)
         for mode in ((False, False), (True, False), (True, True)) for unit in (True, False)]


@pytest.mark.parametrize("n,batch,sides", [
    (1, (), 1), (3, (), 2), (3, (5,), 1), (4, (2,), 9), (5, (), 1), (6, (), 11), (6, (5,), 2), (16, (2, 3), 1)])
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_triangular_solve(n: int, batch: tuple[int, ...], sides: int, dtype: str) -> None:
    a = matrix((*batch, n, n), dtype, "a") / n + 2 * np.eye(n, dtype=dtype)
    for left, lower, (transpose, conjugate), unit in FLAGS:
        b = matrix((*batch, *((n, sides) if left else (sides, n))), dtype, "b")
        used = np.tril(a) if lower else np.triu(a)
        op = used - np.eye(n) * used + np.eye(n) if unit else used
        op = op.swapaxes(-1, -2) if transpose else op
        op = op.conj() if conjugate else op
        read = np.tri(n, k=-int(unit), dtype=bool)
        given = np.where(read if lower else read.T, used, np.asarray(np.nan, dtype))
        (x,) = compiled(lambda a, b, flags=(left, lower, transpose, conjugate, unit): lax.linalg.triangular_solve(
            a, b, left_side=flags[0], lower=flags[1], transpose_a=flags[2], conjugate_a=flags[3],
            unit_diagonal=flags[4]), given, b)
        back = op @ x if left else x @ op
        assert largest(back - b) <= 8 * n * eps(dtype) * (largest(op) * largest(x) + largest(b))


@pytest.mark.parametrize("n", [1, 3, 5, 8])
def test_zeros_on_the_diagonal(n: int) -> None:
    a = np.tril(np.ones((5, n, n)))
    a[2, n // 2, n // 2] = 0
    for b in (np.ones((5, n, 1)), np.eye(n) * np.ones((5, 1, 1))):
        (x,) = compiled(lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True), a, b)
        assert np.isfinite(x[[0, 1, 3, 4]]).all()
        assert not np.isfinite(x[2]).all()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n", SIZES)
def test_solve_and_inv(n: int, dtype: str) -> None:
    for batch in batches(n)[:1 + (dtype == "float64")]:
        a = matrix((*batch, n, n), dtype, "a")
        for sides in (1, 2) if batch else (1, 8):
            b = matrix((*batch, n, sides), dtype, "b")
            (x,) = compiled(jnp.linalg.solve, a, b)
            assert largest(a @ x - b) <= 8 * n * eps(dtype) * (n * largest(a) * largest(x) + largest(b))
        (x,) = compiled(jnp.linalg.inv, a)
        assert largest(a @ x - np.eye(n)) <= 8 * n * eps(dtype) * (n * largest(a) * largest(x) + 1)
        a = a / np.asarray(n**0.5, a.real.dtype)  # no determinant is too large for its type
        (d,) = compiled(jnp.linalg.det, a)
        np.testing.assert_allclose(d, np.linalg.det(a.astype("complex128")), rtol=1e5 * eps(dtype))


@pytest.mark.parametrize("mode", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("n,batch,sides", [(3, (), 1), (4, (7,), 2), (6, (), 9), (6, (7,), 2), (16, (5,), 1)])
def test_solve_with_transposes(n: int, batch: tuple[int, ...], sides: int, mode: tuple[bool, bool]) -> None:
    from anima.ops.linalg import lu_solve_p

    a, b = matrix((*batch, n, n), "complex128", "a"), matrix((*batch, n, sides), "complex128", "b")

    def solve(a: Any, b: Any) -> Any:
        lu, _, order = lax.linalg.lu(a)
        return lu_solve_p.bind(a, lu, order, b, transpose_a=mode[0], conjugate_a=mode[1])

    op = a.swapaxes(-1, -2) if mode[0] else a
    op = op.conj() if mode[1] else op
    np.testing.assert_allclose(op @ compiled(solve, a, b)[0], b, atol=1e-10)


@pytest.mark.parametrize("n", [4, 8, 12])
def test_ill_conditioned_systems_have_small_residuals(n: int) -> None:
    """Hilbert's matrices, in lanes beside well conditioned ones: backward stable is not accurate."""
    hilbert = 1 / (np.arange(n)[:, None] + np.arange(n) + 1.0)
    a, b = np.stack([hilbert, np.eye(n), hilbert[::-1], hilbert + np.eye(n)]), matrix((4, n, 1))
    (x,) = compiled(jnp.linalg.solve, a, b)
    for one, right, solution in zip(a, b, x, strict=True):
        assert largest(one @ solution - right) <= 8 * n * eps("float64") * (n * largest(one) * largest(solution) + 1)


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("batch", [(), (3,), (6,)], ids=str)
def test_loops_compute_what_lapack_does(n: int, batch: tuple[int, ...]) -> None:
    """The loops themselves, in any order of those that are independent."""
    x, b = positive((*batch, n, n)), matrix((*batch, n, 2))
    agree(lower_factor, x, rtol=1e-9)
    agree(lax.linalg.lu, x, rtol=1e-9)
    agree(lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True), x, b, rtol=1e-9)
    agree(jnp.linalg.solve, x, b, rtol=1e-9)
    agree(jnp.linalg.qr, x[..., 1:], rtol=1e-9)


def step(x: Any, z: Any) -> Any:
    """The measurement of a Kalman filter: a mean and a covariance, and what is observed."""
    mean, cov = x
    n = mean.shape[-1]
    seen = jnp.eye(max(n - 1, 1), n)
    innovation = seen @ cov @ seen.T + 0.1 * jnp.eye(seen.shape[0])
    gain = jnp.linalg.solve(innovation, seen @ cov).T
    factor = jnp.linalg.cholesky(innovation)
    cov = (jnp.eye(n) - gain @ seen) @ cov + 0.01 * jnp.eye(n)
    mean = mean + gain @ (z - seen @ mean)
    return (mean, cov), jnp.log(jnp.diagonal(factor)).sum() + jnp.linalg.det(innovation)


def filtered(z: Any) -> Any:
    n = z.shape[-1] + 1
    return lax.scan(step, (jnp.zeros(n), jnp.eye(n) + 0.1), z)


@pytest.mark.parametrize("n", [2, 4, 5, 9])
def test_inside_of_loops(n: int) -> None:
    """In a scan, in many scans, in a loop that ends at different times, and its derivatives."""
    z = matrix((2, 7, n - 1))

    def plainly(z: Any) -> Any:
        state, total = (np.zeros(n), np.eye(n) + 0.1), []
        for one in z:
            state, t = step(state, one)
            total.append(t)
        return state, np.stack(total)

    want = [anima.tree.leaves(plainly(one)) for one in z]
    for got, other in zip(anima.tree.leaves(anima.jit(filtered)(z[0])), want[0], strict=True):
        np.testing.assert_allclose(got, other, rtol=1e-10)
    for got, *others in zip(anima.tree.leaves(anima.jit(anima.vmap(filtered))(z)), *want, strict=True):
        np.testing.assert_allclose(got, np.stack(others), rtol=1e-10)

    def halved(a: Any, times: Any) -> Any:
        return lax.while_loop(lambda s: s[1] > 0, lambda s: (jnp.linalg.inv(s[0]) * 0.5, s[1] - 1), (a, times))[0]

    a, times = positive((5, n, n)), np.arange(5)
    inverse = [np.linalg.inv(x) * 0.5 if t % 2 else x for x, t in zip(a, times, strict=True)]
    np.testing.assert_allclose(anima.jit(anima.vmap(halved))(a, times), np.stack(inverse), rtol=1e-8)


@pytest.mark.parametrize("n", [2, 4, 6])
def test_derivatives(n: int) -> None:
    check_derivatives(lambda z: filtered(z)[1].sum(), matrix((3, n - 1)), "a filter")
    for fun in (lower_factor, jnp.linalg.inv, jnp.linalg.det, jnp.linalg.qr, lambda x: lax.linalg.lu(x)[0]):
        check_derivatives(lambda x, fun=fun: fun(x @ x.swapaxes(-1, -2) + jnp.eye(n)), matrix((3, n, n)), "a function")


def test_large_matrices_go_to_lapack() -> None:
    for count, n, fun in ((FILL - 1, LARGER + 1, lower_factor), (1, LARGER + 1, jnp.linalg.inv),
                          (1, LARGE + 1, jnp.linalg.qr)):
        for batch, size in ((count, n), (FILL, LARGE + 1)):
            text = anima.jit(fun).lower(positive((batch, size, size))).loops
            assert any(name in text for name in LAPACK)
    assert not any(name in anima.jit(jnp.linalg.qr).lower(positive((1, LARGE, LARGE))).loops for name in LAPACK)


def test_what_lanes_hold_is_apart() -> None:
    """Many matrices in lanes with memory of their own; rows of one in vectors; small ones in no memory."""
    def text(*shape: int) -> str:
        return str(anima.jit(lower_factor).lower(positive(shape)).loops)

    assert "apart" in text(40, 6, 6)
    assert "apart" not in text(6, 6) and "local" in text(6, 6) and "vector" in text(6, 6)
    assert "local" not in text(40, 3, 3) and "vector" in text(40, 3, 3)


@pytest.mark.parametrize("n", [1, 3, 16, 20, 33, 48])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_cholesky_of_hermitian_parts(n: int, dtype: str) -> None:
    """That of a matrix whose Hermitian part is made in place has the bits of that of the part."""
    x = positive((19, n, n), dtype) + np.triu(np.ones((n, n), dtype), 1) * (0.5 if dtype == "float32" else 0.5j)
    part = np.asarray((x + h(x)) / np.asarray(2, dtype))
    plain = anima.jit(lambda x: lax.linalg.cholesky(x, symmetrize_input=False))
    expected = plain(part)
    for fun in (lambda x: plain((x.mT.conj() + x) / 2), lambda x: jnp.linalg.cholesky(3 * x / 3 + 0)):
        np.testing.assert_allclose(anima.jit(fun)(x), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(compiled(jnp.linalg.cholesky, x)[0], expected)
    np.testing.assert_allclose(anima.jit(lambda x: lax.linalg.cholesky((x + x.mT) / 2, symmetrize_input=False))(x.real),
                               np.linalg.cholesky((x.real + x.real.mT) / 2), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(anima.jit(lambda x: lax.linalg.cholesky((x + x) / 2, symmetrize_input=False))(part),
                               expected, rtol=1e-5, atol=1e-5)
