"""Operands of two types: what an operation refuses in one order it refuses in the other, traced as well as at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import anima
from anima import lax
from anima.ops.linalg_spectral import eigh_tridiagonal_p
from tests.test_every_op import EACH, Record, applied

LINALG: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "triangular_solve": (lax.linalg.triangular_solve, ((3, 3), (3, 3))),
    "tridiagonal_solve": (lax.linalg.tridiagonal_solve, ((4,), (4,), (4,), (4, 2))),
    "eigh_tridiagonal": (lambda d, e: eigh_tridiagonal_p.bind(d, e, vectors=True), ((4,), (3,))),
    "householder_product": (lax.linalg.householder_product, ((4, 3), (3,))),
    "ormqr": (lax.linalg.ormqr, ((4, 3), (3,), (4, 4))),
    "cholesky_update": (lax.linalg.cholesky_update, ((3, 3), (3,))),
    "dot": (lax.dot, ((3, 4), (4, 2))),
    "convolution": (lambda x, w: lax.conv(x, w, (1,), "SAME"), ((1, 2, 5), (3, 2, 3))),
    "select": (lambda x, y: lax.select(np.ones(3, bool), x, y), ((3,), (3,))),
    "clamp": (lax.clamp, ((3,), (3,), (3,))), "concatenate": (lambda *xs: lax.concatenate(xs, 0), ((3,), (2,))),
    "pad": (lambda x, v: lax.pad(x, v, [(1, 1, 0)]), ((3,), ())), "betainc": (lax.betainc, ((3,), (3,), (3,))),
    "dynamic_update_slice": (lambda x, u: lax.dynamic_update_slice(x, u, (0,)), ((3,), (2,)))}


@pytest.fixture(autouse=True)
def all_dtypes() -> Iterator[None]:
    """64-bit types on."""
    with anima.enable_x64(True):
        yield


def outcome(fun: Callable[..., Any], args: Sequence[np.ndarray]) -> Any:
    """Types of the results, or that there are none."""
    try:
        return [(x.shape, x.dtype) for x in anima.tree.leaves(fun(*args))]
    except (TypeError, ValueError):
        return None


def refused_alike(fun: Callable[..., Any], args: Sequence[np.ndarray]) -> None:
    floats = [k for k, x in enumerate(args) if x.dtype == np.float64]
    for k in floats:
        found = []
        for one, others in (("float32", "float64"), ("float64", "float32")):
            given = [x.astype(one if j == k else others) if j in floats else x for j, x in enumerate(args)]
            found.append(outcome(fun, given))
            assert outcome(lambda *args: anima.eval_shape(fun, *args), given) == found[-1], (k, one)
        if len(floats) > 1:
            assert (found[0] is None) == (found[1] is None), (k, found)


@pytest.mark.parametrize("record", [r for r in EACH if {"float32", "float64"} <= {*r.values[0].dtypes}])
def test_every_operation(record: Record) -> None:
    case = record.cases_for("float64")[0]
    refused_alike(applied(record, case, "float64"), record.draw(case, "float64"))


@pytest.mark.parametrize("name", LINALG)
def test_functions(name: str) -> None:
    fun, shapes = LINALG[name]
    args = [np.ones(s) + 3 * np.eye(*s) if len(s) == 2 and s[0] == s[1] else np.full(s, 0.5) for s in shapes]
    assert outcome(fun, args) is not None
    refused_alike(fun, args)
