"""Products of many points by small matrices: every way the operands may lie, on both sides of where it begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.compiler.lowering.contract import FEW_NUMBERS, SMALL_PRODUCT
from anima.compiler.lowering.thin import COORDINATES, NUMBERS, POINTS, by_numbers

RNG = np.random.default_rng(11)
FORMS = ["nk,kj->nj", "nk,jk->nj", "kn,kj->nj", "kj,nk->jn", "jk,kn->jn", "jk,nk->nj", "nk,kj->jn",
         "bnk,bkj->bnj", "nbk,bjk->nbj", "bkn,bjk->bjn", "nmk,jk->nmj", "nkm,jk->jnm", "njk,jk->nj", "nkj,nk->nj"]
SUMS = ["nk,nj->kj", "kn,nj->kj", "kn,jn->jk", "nmk,nmj->kj", "mnk,nmj->jk"]


def numbers(shape: list[int], dtype: str) -> Any:
    x = RNG.integers(-3, 4, shape)
    return (x + 1j * RNG.integers(-3, 4, shape)).astype(dtype) if dtype[0] == "c" else x.astype(dtype)


def check(form: str, sizes: dict[str, int], dtype: str) -> str:
    """Compares a product with NumPy's; returns the loops that it becomes."""
    first, second = form.split("->")[0].split(",")
    x, y = (numbers([sizes[c] for c in axes], dtype) for axes in (first, second))
    product = anima.jit(lambda x, y: jnp.einsum(form, x, y))
    want = np.einsum(form, x.astype("complex128" if dtype[0] == "c" else "float64"), y)
    np.testing.assert_array_equal(np.asarray(product(x, y)), want.astype(dtype))
    return str(product.lower(x, y).loops)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("k, j", [(2, 2), (3, 3), (3, 2), (4, 3), (6, 6), (8, 4)])
def test_points_times_a_matrix(form: str, k: int, j: int) -> None:
    enough = POINTS * (k * j) ** 2
    batch = 3 if "b" in form else 1
    other = 5 if "m" in form else 1
    for n in {-(-enough // batch // other) + more for more in (-1, 0, 1)}:
        sizes = {"n": n, "k": k, "j": j, "b": batch, "m": other}
        gemm = "gemm" in check(form, sizes, "float32")
        if form == "nk,kj->nj":
            assert not gemm
        if form == "jk,kn->jn":
            assert gemm == (n < enough and n * k * j > SMALL_PRODUCT and k * j > FEW_NUMBERS)


@pytest.mark.parametrize("form", SUMS)
@pytest.mark.parametrize("k, j", [(2, 2), (2, 3), (3, 3), (6, 6)])
def test_sums_over_points(form: str, k: int, j: int) -> None:
    for more in (-1, 0, 1):
        check(form, {"n": POINTS * (k * j) ** 2 // (5 if "m" in form else 1) + more, "k": k, "j": j, "m": 5}, "float32")


@pytest.mark.parametrize("dtype", ["int32", "int8", "float16", "bfloat16", "float64", "complex64", "complex128"])
def test_types(dtype: str) -> None:
    with anima.enable_x64(True):
        for form in ("nk,kj->nj", "jk,kn->jn", "bnk,bkj->bnj"):
            check(form, {"n": POINTS * 81, "k": 3, "j": 3, "b": 2}, dtype)
        if dtype not in ("float16", "bfloat16", "int8"):  # whose sums are no longer exact
            check("nk,nj->kj", {"n": POINTS * 81, "k": 3, "j": 3}, dtype)


def test_what_is_as_small_but_has_few_points_is_not_written_out() -> None:
    assert by_numbers(1, 4, 4, 4) is None and by_numbers(10_000, 4, 4, 4) is None
    assert by_numbers(1, 10**6, 1, 3) is None and by_numbers(1, 1, 10**6, 3) is None
    assert by_numbers(1, 10**6, COORDINATES + 1, 2) is None and by_numbers(1, 10**6, 7, 6) is None
    assert by_numbers(2, 3, 3, 10**6) is None and by_numbers(1, 7, 6, 10**7) is None and NUMBERS == 36
    assert by_numbers(200, COORDINATES - 1, 2, 2) is None and by_numbers(200, COORDINATES, 2, 2) == "columns"


ROTATE: dict[str, Callable[[Any, Any], Any]] = {
    "rows": lambda x, w: jnp.tanh(x @ w) @ w.T, "mapped": lambda x, w: anima.vmap(lambda v: w @ jnp.sin(v))(x),
    "columns": lambda x, w: w @ x.T + 1, "twice": lambda x, w: (x @ w) * (x @ (w + 1)) + (x @ w)[::-1],
    "normal": lambda x, w: jnp.linalg.solve(x.T @ x + jnp.eye(3), x.T @ x[:, :1]),
    "far": lambda x, w: ((x @ w)[:50, None] - (x @ w)[None, :50]).sum(-1)}


@pytest.mark.parametrize("name", sorted(ROTATE))
def test_in_programs_and_gradients(name: str) -> None:
    x, w = RNG.normal(size=(POINTS * 81, 3)), RNG.normal(size=(3, 3))
    with anima.enable_x64(True):
        run = ROTATE[name]
        with anima.disable_jit():
            want, slopes = run(jnp.array(x), jnp.array(w)), anima.grad(lambda *a: run(*a).sum(), (0, 1))(x, w)
        np.testing.assert_allclose(anima.jit(run)(x, w), want, rtol=1e-12, atol=1e-12)
        for got, slope in zip(anima.jit(anima.grad(lambda *a: run(*a).sum(), (0, 1)))(x, w), slopes, strict=True):
            np.testing.assert_allclose(got, slope, rtol=1e-10, atol=1e-10)
