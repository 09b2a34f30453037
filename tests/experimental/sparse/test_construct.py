"""Empty arrays, identities, random ones, SciPy's matrices; eigenvectors and systems of equations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse

import anima
import anima.numpy as jnp
from anima import random
from anima.experimental import sparse
from anima.test_util import check_grads
from tests.experimental.sparse.arrays import check, random_dense

RNG = np.random.default_rng(0)
FORMATS = {"bcoo": sparse.BCOO, "bcsr": sparse.BCSR, "coo": sparse.COO, "csr": sparse.CSR, "csc": sparse.CSC}


@pytest.mark.parametrize("name", FORMATS)
def test_eye_and_empty(name: str) -> None:
    for shape in ((3, 3), (3, 4), (4, 3), (0, 2), (1, 1)):
        for k in (-5, -1, 0, 2, 5):
            mat = sparse.eye(*shape, k, sparse_format=name, dtype="int32", index_dtype="int16")
            assert isinstance(mat, FORMATS[name]) and mat.nse == np.eye(*shape, k).sum()
            check(mat, np.eye(*shape, k, dtype=np.int32))
        check(sparse.empty(shape, sparse_format=name), np.zeros(shape, np.float32))
    with pytest.raises(ValueError, match="sparse_format"):
        sparse.eye(3, sparse_format="dia")


def test_layouts_of_eye_and_empty() -> None:
    for n_batch, n_dense, nse in ((1, 0, 1), (0, 1, 3), (2, 0, 1), (1, 1, 1), (0, 2, 1)):
        mat = sparse.eye(3, 4, n_batch=n_batch, n_dense=n_dense)
        assert (mat.n_batch, mat.n_dense, mat.nse) == (n_batch, n_dense, nse)
        check(mat, np.eye(3, 4, dtype=np.float32))
        check(sparse.eye(3, 4, -1, n_batch=n_batch, n_dense=n_dense), np.eye(3, 4, -1, dtype=np.float32))
    mat = sparse.empty((2, 3, 4), n_batch=1, nse=2)
    assert mat.nse == 2 and mat.indices.tolist() == [[[3, 4]] * 2] * 2
    check(mat, np.zeros((2, 3, 4), np.float32))


def test_random() -> None:
    key = random.PRNGKey(0)
    mat = sparse.random_bcoo(key, (4, 5), nse=4)  # as JAX draws
    np.testing.assert_array_equal(mat.indices, [[1, 3], [3, 4], [1, 1], [3, 1]])
    np.testing.assert_allclose(mat.data, [0.5552479, 0.91476071, 0.29765356, 0.50811303], rtol=1e-6)
    batch = sparse.random_bcoo(key, (2, 4, 5), nse=4, n_batch=1)
    np.testing.assert_array_equal(batch.indices[1], [[2, 1], [1, 2], [0, 3], [3, 2]])
    np.testing.assert_allclose(batch.data[0], [0.11867166, 0.76182508, 0.82342553, 0.46149123], rtol=1e-6)
    for n_batch, n_dense in ((0, 0), (1, 0), (0, 1), (1, 1), (3, 0)):
        mat = sparse.random_bcoo(key, (2, 30, 5), nse=0.3, n_batch=n_batch, n_dense=n_dense, sorted_indices=True)
        assert mat.indices_sorted and mat.unique_indices
        check(mat, mat.todense())
    assert sparse.random_bcoo(key, (9,), nse=20, unique_indices=False, generator=random.normal).nse == 20
    with pytest.raises(ValueError, match="between 0 and 4"):
        sparse.random_bcoo(key, (4,), nse=9)


def test_scipy_matrices() -> None:
    a = scipy.sparse.random(20, 30, 0.2, "coo", random_state=RNG, dtype="float32")
    for kind in (sparse.BCOO, sparse.BCSR):
        for other in (a, a.tocsr(), a.tocsc(), a.todia(), scipy.sparse.coo_array(a)):
            mat = kind.from_scipy_sparse(other, index_dtype="int16")
            assert mat.indices.dtype == np.int16
            check(mat, a.toarray())
        with pytest.raises(NotImplementedError):
            kind.from_scipy_sparse(a, n_batch=1)
    mat = sparse.BCOO.from_scipy_sparse(a.tocsr())
    assert mat.indices_sorted and mat.unique_indices
    back = scipy.sparse.coo_array((np.asarray(mat.data), np.asarray(mat.indices).T), shape=mat.shape)
    assert (back - a).nnz == 0


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_spsolve(dtype: str, x64: None) -> None:
    a = (random_dense(RNG, (8, 8), dtype) + 9 * np.eye(8)).astype(dtype)
    b = random_dense(RNG, (8,), dtype) + np.ones(8, dtype)
    mat = sparse.CSR.fromdense(a)
    args = (mat.data, mat.indices, mat.indptr, jnp.asarray(b))
    for reorder in (0, 1):
        x = sparse.linalg.spsolve(*args, reorder=reorder)
        assert x.dtype == dtype
        np.testing.assert_allclose(x, np.linalg.solve(a, b), rtol=1e-4 if dtype in ("float32", "complex64") else 1e-10)
    np.testing.assert_allclose(anima.jit(sparse.linalg.spsolve)(*args), x, rtol=1e-5)
    if dtype in ("float64", "complex128"):
        check_grads(lambda d, y: sparse.linalg.spsolve(d, mat.indices, mat.indptr, y), (mat.data, b), order=2)
    many = anima.vmap(lambda y: sparse.linalg.spsolve(*args[:3], y))(jnp.stack([b, 2 * b]))
    np.testing.assert_allclose(many[1], 2 * np.asarray(x), rtol=1e-4)


def test_spsolve_refuses() -> None:
    mat = sparse.CSR.fromdense(np.eye(3, dtype=np.float32))
    with pytest.raises(ValueError, match="reorder"):
        sparse.linalg.spsolve(mat.data, mat.indices, mat.indptr, jnp.ones(3), reorder=7)
    with pytest.raises(ValueError, match="system"):
        sparse.linalg.spsolve(mat.data, mat.indices, mat.indptr, jnp.ones(4))
    with pytest.raises(TypeError):
        sparse.linalg.spsolve(mat.data.astype(int), mat.indices, mat.indptr, jnp.ones(3, int))


@pytest.mark.parametrize("n, k", [(20, 2), (50, 1), (120, 5)])
def test_lobpcg(n: int, k: int, x64: None) -> None:
    q, _ = np.linalg.qr(RNG.normal(size=(n, n)))
    values = np.linspace(1, 10, n) ** 2
    a = (q * values) @ q.T
    start = RNG.normal(size=(n, k))
    operands: dict[str, Any] = {"dense": jnp.asarray(a), "sparse": sparse.BCOO.fromdense(a),
                                "function": lambda x: a @ x}
    for operand in operands.values():
        found, vectors, steps = sparse.linalg.lobpcg_standard(operand, start, m=300, tol=1e-14)
        np.testing.assert_allclose(found, values[::-1][:k], rtol=1e-8)
        np.testing.assert_allclose(a @ vectors, vectors * found, atol=1e-4)
        np.testing.assert_allclose(vectors.T @ vectors, np.eye(k), atol=1e-8)
        assert 0 < steps <= 300
    jitted = anima.jit(lambda m, x: sparse.linalg.lobpcg_standard(m, x, 300, 1e-14))
    np.testing.assert_allclose(jitted(operands["sparse"], start)[0], found, rtol=1e-8)
    assert sparse.linalg.lobpcg_standard(a, start, m=1)[2] == 1
    with pytest.raises(ValueError, match="5 k"):
        sparse.linalg.lobpcg_standard(a, a)


@pytest.mark.parametrize("kind", [sparse.BCOO, sparse.BCSR, sparse.COO, sparse.CSR, sparse.CSC])
def test_known_matrices_become_sparse_while_a_function_is_traced(kind: Any) -> None:
    matrix = np.float32([[0, 2, 0], [1, 0, 3]])
    run = anima.jit(lambda v: kind.fromdense(matrix) @ v)
    np.testing.assert_array_equal(run(jnp.ones(3)), matrix.sum(1))
    with pytest.raises(anima.errors.ConcretizationTypeError, match="nse argument"):
        anima.jit(lambda m: kind.fromdense(m).todense())(matrix)
