"""Singular values of small matrices in loops of the program: residuals, LAPACK's values and signs, any numbers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.compiler.lowering.matrices import FILL, LARGE, LARGER, LARGEST, MANY
from tests.compiler.stages import agree
from tests.compiler.test_spectra import largest, special
from tests.ops.matrix_checks import check_derivatives, matrix

SHAPES = [(1, 1), (1, 4), (2, 2), (3, 2), (3, 3), (4, 4), (5, 4), (4, 5), (7, 4), (2, 9), (13, 13), (16, 16), (16, 3),
          (11, 16), (LARGEST + 1, LARGEST + 1), (LARGER, 3), (5, LARGER), (LARGER, LARGER),
          (LARGE, 7), (LARGER + 1, LARGER + 1)]


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    with anima.enable_x64(True):
        yield


def svd(x: Any, full: bool = True) -> Any:
    return lax.linalg.svd(x, full_matrices=full)


def compiled(x: np.ndarray, full: bool = True) -> list[np.ndarray]:
    """U, values and V^T by a program that calls nothing of LAPACK."""
    return [np.asarray(y) for y in program(x.shape, x.dtype, full)(x)]


@lru_cache(8)
def program(shape: tuple[int, ...], dtype: np.dtype, full: bool) -> Any:
    """What computes these; the same for one test's matrices."""
    lowered = anima.jit(lambda x: svd(x, full)).lower(anima.ShapeDtypeStruct(shape, dtype))
    assert "gesdd" not in lowered.loops
    return lowered.compile()


def values(x: Any) -> Any:
    return lax.linalg.svd(x, compute_uv=False)


def orthogonal(x: np.ndarray) -> bool:
    """Whether columns are."""
    n, x = x.shape[-1], x.astype(np.float64) if (unit := np.finfo(x.dtype).eps) else x
    return largest(x.swapaxes(-1, -2) @ x - np.eye(n)) <= 4 * x.shape[-2] * unit


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_vectors(shape: tuple[int, int], dtype: str) -> None:
    k, unit = min(shape), float(np.finfo(dtype).eps)
    for full in (True, False):
        for batch in ((3, 7),) if max(shape) > LARGEST else ((), (3, 7)) if full else ((5,),):
            x = matrix((*batch, *shape), dtype)
            u, s, vh = compiled(x, full)
            assert u.shape[-1] == (shape[0] if full else k)
            assert vh.shape[-2] == (shape[1] if full else k)
            assert orthogonal(u)
            assert orthogonal(vh.swapaxes(-1, -2))
            assert (np.diff(s) <= 0).all()
            assert (s >= 0).all()
            u, s, vh = (y.astype(np.float64) for y in (u, s, vh))
            assert largest((u[..., :k] * s[..., None, :]) @ vh[..., :k, :] - x) <= 8 * max(shape) * unit * largest(s)
            np.testing.assert_allclose(s, svd(x, full)[1], rtol=0, atol=8 * max(shape) * unit * largest(s))
            alone = anima.jit(values)(x)
            np.testing.assert_allclose(alone, s, rtol=0, atol=8 * max(shape) * unit * largest(s))


@pytest.mark.parametrize("shape", [s for s in SHAPES if max(s) < 10], ids=str)
def test_vectors_have_the_signs_of_lapack(shape: tuple[int, int]) -> None:
    """All of them, be they determined by the matrix or not."""
    x = matrix((7, *shape), "float64", "signs")
    for got, want in zip(compiled(x), svd(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(2, 2), (3, 3), (5, 5), (16, 16), (6, 4), (4, 9)], ids=str)
def test_special_matrices_at_any_scale(shape: tuple[int, int], dtype: str) -> None:
    """In lanes beside each other, where each takes its own time; of all ranks."""
    n, k, limits = max(shape), min(shape), np.finfo(dtype)
    exact = [x for a in special(n).values() for x in (a, a[::-1], np.triu(a), np.tril(a, -1))]
    exact = np.stack(exact)[..., :shape[0], :shape[1]]
    for scale in (1.0, 1e-30, 1e30, float(limits.tiny), 1024 * float(limits.smallest_subnormal),
                  float(limits.max) / (4 * n * n)):
        x = (exact * scale).astype(dtype)
        u, s, vh = compiled(x)
        size = np.abs(x.astype(np.float64)).max(axis=(-1, -2))
        bound = 8 * n * n * float(limits.eps) * size + 4 * n * float(limits.smallest_subnormal)
        assert orthogonal(u)
        assert orthogonal(vh.swapaxes(-1, -2))
        back = (u[..., :k].astype(np.float64) * s[..., None, :]) @ vh[..., :k, :].astype(np.float64)
        assert (np.abs(back - x).max(axis=(-1, -2)) <= bound).all()
        assert (np.diff(s) <= 0).all()
        assert (s >= 0).all()
    for number in range(0, len(x), 5):  # no lane changes what another one finds
        for together, alone in zip((u, s, vh), compiled(x[number:number + 1].repeat(3, 0)), strict=True):
            np.testing.assert_array_equal(together[number], alone[1])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (2, 4), (6, 5)], ids=str)
def test_what_is_not_finite_is_nan_by_itself(shape: tuple[int, int], bad: float) -> None:
    x = matrix((9, *shape))
    want = compiled(x)
    x[4, -1, 0] = bad
    for one, other in zip(compiled(x), want, strict=True):
        assert np.isnan(one[4]).all()
        np.testing.assert_array_equal(np.delete(one, 4, 0), np.delete(other, 4, 0))


@pytest.mark.parametrize("shape", [(1, 2), (2, 2), (3, 2), (4, 5), (5, 2)], ids=str)
@pytest.mark.parametrize("batch", [(), (6,)], ids=str)
def test_loops_compute_what_lapack_does(shape: tuple[int, int], batch: tuple[int, ...]) -> None:
    agree(svd, matrix((*batch, *shape), "float64", "loops"), rtol=1e-7)


@pytest.mark.parametrize("n", [3, 5])
def test_inside_of_loops(n: int) -> None:
    """A scan, many scans, and their derivatives: nothing of LAPACK."""
    def steps(x: Any) -> Any:
        def step(c: Any, _: None) -> Any:
            u, s, vh = svd(c)
            return (u * jnp.exp(-s)) @ vh + 0.1 * x, s

        return lax.scan(step, x, None, length=4)

    x = matrix((5, n, n))
    assert "gesdd" not in anima.jit(steps).lower(x[0]).loops
    for mapped, one in zip(anima.tree.leaves(anima.jit(anima.vmap(steps))(x)), range(2), strict=True):
        for k in range(5):
            np.testing.assert_allclose(mapped[k], anima.tree.leaves(anima.jit(steps)(x[k]))[one], rtol=1e-9, atol=1e-9)
    check_derivatives(lambda x: steps(x)[1].sum(), matrix((n, n)), "steps")


def test_others_go_to_lapack() -> None:
    """Larger ones, complex ones, and those by the other algorithm."""
    algorithm = lax.linalg.SvdAlgorithm.QR
    for x, options in ((matrix((MANY - 1, LARGEST + 1, 3)), {}), (matrix((FILL - 1, 3, LARGER + 1)), {}),
                       (matrix((FILL, LARGE + 1, 3)), {}),
                       (matrix((2, 3, 3), "complex128"), {}),
                       (matrix((2, 3, 3)), {"algorithm": algorithm})):
        text = anima.jit(lambda x, options=options: lax.linalg.svd(x, **options)).lower(x).loops
        assert "gesdd" in text or "gesvd" in text
