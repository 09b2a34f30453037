"""Derivatives by sparse arrays, beside those by their elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.experimental import sparse
from tests.experimental.sparse.arrays import random_dense

RNG = np.random.default_rng(0)
DENSE = random_dense(RNG, (3, 4))
V = jnp.arange(4.0)
KINDS = (sparse.BCOO, sparse.BCSR, sparse.COO, sparse.CSR, sparse.CSC)


def loss(mat: Any, v: Any) -> Any:
    return jnp.sum(jnp.sin(mat @ v))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_have_the_elements_of_the_argument(kind: Any) -> None:
    mat = kind.fromdense(DENSE)
    by_data = anima.grad(lambda d: loss(mat.like(d), V))(mat.data)
    for found in (sparse.grad(loss)(mat, V), anima.jit(sparse.grad(loss))(mat, V)):
        assert isinstance(found, kind) and found.shape == mat.shape
        np.testing.assert_allclose(found.data, by_data, rtol=1e-6)
    value, (one, two) = sparse.value_and_grad(loss, argnums=(0, 1))(mat, V)
    np.testing.assert_allclose(value, loss(mat, V), rtol=1e-6)
    np.testing.assert_allclose(one.data, by_data, rtol=1e-6)
    np.testing.assert_allclose(two, anima.grad(loss, 1)(jnp.asarray(DENSE), V), rtol=1e-4, atol=1e-5)


def test_aux_and_trees() -> None:
    mat = sparse.BCOO.fromdense(DENSE)
    found, aux = sparse.grad(lambda t, s: (loss(t["m"], t["v"]) * s, "aux"), has_aux=True)({"m": mat, "v": V}, 2.0)
    assert aux == "aux" and isinstance(found["m"], sparse.BCOO)
    np.testing.assert_allclose(found["m"].data, 2 * sparse.grad(loss)(mat, V).data, rtol=1e-5)
    (value, aux), _ = sparse.value_and_grad(lambda m: (m.sum(), 3), has_aux=True)(mat)
    assert aux == 3 and value.shape == ()
    with pytest.raises(ValueError, match="argnums"):
        sparse.grad(loss, argnums=2)(mat, V)


@pytest.mark.parametrize("kind", [sparse.BCOO, sparse.BCSR])
def test_jacobians_are_batches(kind: Any) -> None:
    mat = kind.fromdense(DENSE)
    want = np.einsum("ik,l->ikl", np.eye(3), V) * (DENSE != 0)
    for transform in (sparse.jacfwd, sparse.jacrev, sparse.jacobian):
        out = transform(lambda m: m @ V)(mat)
        assert isinstance(out, kind) and out.shape == (3, 3, 4) and out.n_batch == 1
        np.testing.assert_allclose(out.todense(), want)
        scalar = transform(lambda m: jnp.sum(m @ V))(mat)
        assert scalar.shape == (3, 4)
        both = transform(lambda m, v: {"a": m @ v}, argnums=(0, 1))(mat, V)
        np.testing.assert_allclose(both["a"][0].todense(), want)
        np.testing.assert_allclose(both["a"][1], DENSE, rtol=1e-6)
    with pytest.raises(NotImplementedError, match="BCOO"):
        sparse.jacrev(lambda m: m @ V)(sparse.COO.fromdense(DENSE))


def test_second_derivatives() -> None:
    mat = sparse.BCOO.fromdense(DENSE)
    twice = sparse.jacfwd(lambda v: sparse.grad(loss)(mat, v).data)(V)
    want = anima.jacfwd(lambda v: anima.grad(lambda d: loss(mat.like(d), v))(mat.data))(V)
    np.testing.assert_allclose(twice, want, rtol=1e-6)
    assert sparse.grad(lambda m: m.sum() * 1.0, allow_int=True)(mat.astype(int)).data.dtype == anima.float0
