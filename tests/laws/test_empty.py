"""Arrays without elements go through every transformation that others go through: `jit`, derivatives of first and
second order, `vmap`, also over no element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
import anima.ops
from anima import lax, nn
from anima.lax import linalg
from anima.scipy import linalg as sl

SQUARE: list[tuple[int, ...]] = [(0, 0), (2, 0, 0), (0, 3, 3)]
MATRICES: list[tuple[int, ...]] = [*SQUARE, (0, 3), (3, 0), (2, 3, 0), (0, 2, 3)]
ARRAYS: list[tuple[int, ...]] = [(0,), (0, 3), (3, 0), (2, 0, 3)]

CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    **{f"lax.linalg.{n}": (getattr(linalg, n), SQUARE)
       for n in ["cholesky", "eigh", "hessenberg", "schur", "tridiagonal"]},
    **{f"lax.linalg.{n}": (getattr(linalg, n), MATRICES) for n in ["lu", "qr", "svd"]},
    **{f"numpy.linalg.{n}": (getattr(jnp.linalg, n), SQUARE) for n in (
        ["det", "eigh", "eigvals", "eigvalsh", "inv", "slogdet", "cholesky"])},
    **{f"numpy.linalg.{n}": (getattr(jnp.linalg, n), MATRICES) for n in ["pinv", "norm", "svdvals", "trace"]},
    **{f"scipy.linalg.{n}": (getattr(sl, n), SQUARE) for n in ["expm", "polar", "sqrtm", "schur", "hessenberg"]},
    "lu": (lambda a: sl.lu(a)[1:], MATRICES), "lu, rows in order": (lambda a: sl.lu(a, permute_l=True), MATRICES),
    "lu_solve": (lambda a: sl.lu_solve(sl.lu_factor(a), a), SQUARE),
    "solve": (lambda a: jnp.linalg.solve(a, a), SQUARE),
    "complete qr": (lambda a: jnp.linalg.qr(a, mode="complete"), MATRICES),
    "triangular_solve": (lambda a: linalg.triangular_solve(a, a), SQUARE),
    **{f"numpy.{n}": (getattr(jnp, n), ARRAYS)
       for n in ["sort", "cumsum", "cumprod", "prod", "sum", "flip", "nansum", "sinc", "ravel"]},
    **{f"lax.{n}": (getattr(lax, n), ARRAYS) for n in ["cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum"]},
    **{f"nn.{n}": (getattr(nn, n), ARRAYS) for n in ["softmax", "log_softmax", "logsumexp", "standardize"]},
    "scan": (lambda a: lax.scan(lambda c, x: (c + jnp.sum(x), jnp.sin(x)), jnp.zeros((), a.dtype), a), ARRAYS),
    "associative_scan": (lambda a: lax.associative_scan(jnp.multiply, a), ARRAYS),
    "einsum": (lambda a: jnp.einsum("i...,i...->...", a, a), ARRAYS),
    "segment_sum": (lambda a: anima.ops.segment_sum(a, jnp.zeros(a.shape[:1], "int32"), 3), ARRAYS),
    "conv": (lambda a: lax.conv(a, jnp.ones((2, 3, 2, 2), a.dtype), (1, 1), "SAME"), [(0, 3, 4, 4), (2, 3, 0, 4)]),
    "grouped conv": (lambda a: lax.conv_general_dilated(a, jnp.ones((4, 1, 2), a.dtype), (1,), "SAME",
                                                        feature_group_count=2), [(0, 2, 4), (2, 2, 0)]),
    "kernel": (lambda a: lax.conv(jnp.ones((2, 3, 4), a.dtype), a, (1,), "VALID"), [(0, 3, 2)])}


def floats(result: Any) -> list[Any]:
    return [x for x in anima.tree.leaves(result) if jnp.issubdtype(x.dtype, np.inexact)]


@pytest.mark.parametrize("name,shape", [(name, shape) for name, (_, shapes) in CASES.items() for shape in shapes])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_nothing_goes_through(name: str, shape: tuple[int, ...], dtype: str) -> None:
    function = CASES[name][0]

    def f(x: Any) -> list[Any]:
        return floats(function(x))

    def back(x: Any) -> Any:
        return anima.vjp(f, x)[1](outs)[0]

    x = jnp.zeros(shape, dtype)
    outs = f(x)
    for got in (anima.jit(f)(x), anima.jvp(f, (x,), (x,))[1]):
        assert [(y.shape, y.dtype) for y in got] == [(y.shape, y.dtype) for y in outs]
    for got in (back(x), anima.jit(back)(x), anima.jvp(back, (x,), (x,))[1], anima.vjp(back, x)[1](x)[0]):
        assert (got.shape, got.dtype) == (shape, x.dtype)
    for size in (0, 2):
        mapped = anima.vmap(f)(jnp.zeros((size, *shape), dtype))
        assert [(y.shape, y.dtype) for y in mapped] == [((size, *y.shape), y.dtype) for y in outs]
