"""Arguments of sparse arrays and their functions that do not fit are refused, and those at the edge are taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.experimental import sparse
from tests.experimental.sparse.arrays import check

X = np.float32([[0, 2, 0, 4], [1, 0, 3, 0], [0, 0, 0, 5]])
CUBE = np.stack([X, 2 * X])
M, B, C = sparse.BCOO.fromdense(X), sparse.BCOO.fromdense(CUBE, n_batch=1), sparse.BCOO.fromdense(CUBE)
ROWS = sparse.BCSR.fromdense(X)
COO, CSR, CSC = (kind.fromdense(X) for kind in (sparse.COO, sparse.CSR, sparse.CSC))
ONES = jnp.ones(2)
INDEX, FLOATS = jnp.zeros(2, int), jnp.zeros(2)
DIMS = lax.GatherDimensionNumbers((1,), (0,), (0,))

REFUSED: dict[type[Exception], list[tuple[Callable[[], Any], str]]] = {
    ValueError: [
        (lambda: sparse.BCOO((jnp.ones((2, 3)), jnp.zeros((3, 3, 1), int)), shape=(2, 4)), "Invalid indices.shape"),
        (lambda: sparse.BCSR((ONES, INDEX, jnp.array([0, 1])), shape=(3, 4)), r"Invalid BCSR: data \(2,\)"),
        (lambda: sparse.BCSR((ONES[:1], INDEX, jnp.array([0, 1, 2])), shape=(2, 4)), r"Invalid BCSR: data \(1,\)"),
        (lambda: sparse.bcsr_fromdense(X[0]), "must have 2 sparse dimensions"),
        (lambda: sparse.bcsr_fromdense(CUBE), "must have 2 sparse dimensions"),
        (lambda: sparse.bcsr_fromdense(X, n_batch=1), "must have 2 sparse dimensions"),
        (lambda: sparse.bcsr_fromdense(X, n_dense=1), "must have 2 sparse dimensions"),
        *((lambda k=k: sparse.empty((2, 3, 4), sparse_format=k), "arrays are matrices; got shape") for k in (
            "coo", "csr", "csc")),
        *((lambda k=k: sparse.random_bcoo(anima.random.key(0), (2, 3), n_batch=k[0], n_dense=k[1]), "random_bcoo: n_b")
          for k in ((-1, 0), (0, -1), (2, 1), (3, 0))),
        *((lambda n=n: sparse.random_bcoo(anima.random.key(0), (2, 3), nse=n), "whole number, or a part between")
          for n in (1.5, -0.5)),
        *((lambda a=a: sparse.COO(a, shape=(2, 3)), "COO: vectors of shapes") for a in (
            (ONES, INDEX, INDEX[:1]), (ONES[:1], INDEX, INDEX), (ONES, INDEX[None], INDEX))),
        (lambda: sparse.COO((ONES, INDEX, INDEX), shape=(2, 3, 4)), "do not make a matrix of shape"),
        (lambda: sparse.CSR((ONES, INDEX, INDEX), shape=(2, 3)), r"CSR: indptr of shape \(2,\)"),
        (lambda: sparse.CSC((ONES, INDEX, jnp.zeros(3, int)), shape=(2, 3)), r"CSC: indptr of shape \(3,\)"),
        *((lambda f=f: f(X[0]), "expected a matrix, got shape") for f in (sparse.coo_fromdense, sparse.csr_fromdense)),
        (lambda: sparse.coo_fromdense(CUBE), "expected a matrix"),
        (lambda: sparse.bcoo_extract(M, X.T), r"bcoo_extract: arrays of shapes \(3, 4\) and \(4, 3\)"),
        *((lambda k=k: sparse.bcoo_fromdense(X, n_batch=k[0], n_dense=k[1]), "bcoo_fromdense: n_batch=") for k in (
            (-1, 0), (0, -1), (2, 1), (0, 3))),
        *((lambda k=k: sparse.bcoo_update_layout(M, n_batch=k[0], n_dense=k[1]), "bcoo_update_layout: n_batch=")
          for k in ((-1, 0), (0, -1), (2, 1), (0, 3))),
        (lambda: sparse.linalg.lobpcg_standard(np.eye(20), np.ones(20)), "X must be a matrix"),
        (lambda: sparse.linalg.lobpcg_standard(np.eye(19), np.ones((20, 1))), r"A must have the shape \(20, 20\)"),
        (lambda: sparse.bcoo_squeeze(C, dimensions=(0,)), "size not equal to one"),
        *((lambda d=d: sparse.bcoo_broadcast_in_dim(M, shape=(2, 3, 4), broadcast_dimensions=d),
           "of an array of 2 dimensions") for d in ((1,), (2, 1), (1, 1), (-1, 2), (1, 3))),
        (lambda: sparse.bcoo_broadcast_in_dim(M, shape=(3, 5), broadcast_dimensions=(0, 1)), "does not fit into"),
        (lambda: sparse.bcoo_concatenate([C, B], dimension=0), "the same n_batch, n_sparse and n_dense"),
        *((lambda d=d: sparse.bcoo_concatenate([M, M], dimension=d), "bcoo_concatenate: shapes") for d in (-1, 2)),
        (lambda: sparse.bcoo_concatenate([M, M.T], dimension=0), "bcoo_concatenate: shapes"),
        *((lambda s=s: sparse.bcoo_slice(M, start_indices=s[0], limit_indices=s[1], strides=s[2]), "as many as the dim")
          for s in (((0,), (3, 4), None), ((0, 0), (3,), None), ((0, 0), (3, 4), (1,)))),
        *((lambda s=s: sparse.bcoo_slice(M, start_indices=s[0], limit_indices=s[1], strides=s[2]), "invalid slice")
          for s in (((-1, 0), (3, 4), None), ((2, 0), (1, 4), None), ((0, 0), (3, 5), None), ((0, 0), (3, 4), (1, 0)))),
    ],
    TypeError: [
        (lambda: sparse.BCSR((ONES, FLOATS, jnp.array([0, 1, 2])), shape=(2, 4)), "BCSR: indices must be integers"),
        (lambda: sparse.BCSR((ONES, INDEX, jnp.zeros(3)), shape=(2, 4)), "BCSR: indices must be integers"),
        (lambda: sparse.bcsr_dot_general(X, X.T, dimension_numbers=(((1,), (0,)), ((), ()))), "needs a BCSR array"),
        (lambda: sparse.empty((2, 3), wrong=1), r"unexpected keyword arguments \['wrong'\]"),
        (lambda: sparse.eye(2, wrong=1), r"unexpected keyword arguments \['wrong'\]"),
        (lambda: sparse.COO((ONES, FLOATS, INDEX), shape=(2, 3)), "COO: indices must be integers, got float32"),
        (lambda: sparse.COO((ONES, INDEX, FLOATS), shape=(2, 3)), "COO: indices must be integers, got float32"),
        *((lambda d=d: sparse.linalg.lobpcg_standard(np.eye(20), np.ones((20, 1), d)), "must be of float32 or float64")
          for d in ("int32", "float16", "complex64")),
        (lambda: sparse.bcoo_dot_general(M, X, dimension_numbers=(((1,), (0,)), ((), ()))),
         r"requires contracting dimensions to have the same shape, got \(4,\) and \(3,\)"),
        (lambda: sparse.bcoo_dot_general(B, X, dimension_numbers=(((2,), (1,)), ((0,), (0,)))),
         r"requires batch dimensions to have the same shape, got \(2,\) and \(3,\)"),
        (lambda: sparse.bcoo_dot_general(M, CUBE, dimension_numbers=(((1, 1), (2, 2)), ((), ()))), "a dimension twice"),
        (lambda: sparse.bcoo_dot_general(sparse.BCOO.fromdense(X[:, :3]), np.ones((3, 3), "f"),
                                         dimension_numbers=(((0, 1), (0, 0)), ((), ()))), "a dimension twice"),
        *((lambda p=p: sparse.bcoo_transpose(M, permutation=p), "is not a permutation of 2") for p in (
            (0,), (0, 0), (0, 2), (0, 1, 2))),
        (lambda: sparse.bcoo_dynamic_slice(M, (0,), (1, 1)), "must be scalars, as many as the dimensions"),
        (lambda: sparse.bcoo_dynamic_slice(M, (0, 0), (1,)), "must be scalars, as many as the dimensions"),
        (lambda: sparse.bcoo_dynamic_slice(M, (0, jnp.array([0])), (1, 1)), "must be scalars"),
        *((lambda s=s: sparse.bcoo_dynamic_slice(M, (0, 0), s), "slice_sizes") for s in ((4, 1), (1, -1))),
        *((lambda d=d: sparse.bcoo_rev(M, d), "of an array of 2 dimensions") for d in ((2,), (-1,), (0, 0))),
    ],
    NotImplementedError: [
        (lambda: sparse.BCSR.from_bcoo(C), "needs two sparse dimensions"),
        (lambda: sparse.BCSR.from_bcoo(sparse.BCOO.fromdense(X, n_batch=1)), "needs two sparse dimensions"),
        *((lambda m=m, a=a: m.transpose(a), r"axes must be None or \(1, 0\)") for m in (COO, CSR, CSC) for a in (
            (0, 1), (1,))),
        *((lambda m=m: m * X, "arrays are multiplied and divided by numbers") for m in (COO, CSR, CSC)),
        *((lambda m=m: m * M, "arrays are multiplied and divided by numbers") for m in (COO, CSR, CSC)),
        (lambda: sparse.bcoo_gather(M, jnp.array([[0]]), DIMS, (1, 4), mode="fill", fill_value=1), "set fill_value=0"),
        (lambda: sparse.bcoo_gather(M, jnp.array([[0]]), DIMS, (1, 4), mode="fill"), "set fill_value=0"),
        (lambda: sparse.sparsify(lambda x, y: x * y + y)(M, CSR), "sparsify is for BCOO and BCSR arrays, got CSR"),
        (lambda: sparse.sparsify(lambda x, y: x + y)(M, sparse.BCOO.fromdense(X[:1])), "The sum of sparse arrays of"),
        (lambda: sparse.sparsify(jnp.maximum)(M, 2 * sparse.BCOO.fromdense(X[::-1])), "arrays with the same indices"),
    ],
}


@pytest.mark.parametrize("error, number", [(e, k) for e, cases in REFUSED.items() for k in range(len(cases))])
def test_refused(error: type[Exception], number: int) -> None:
    call, text = REFUSED[error][number]
    with pytest.raises(error, match=text):
        call()


@pytest.mark.parametrize("call, want", [
    (lambda: sparse.bcoo_slice(M, start_indices=(0, 4), limit_indices=(3, 4)), X[:, 4:]),
    (lambda: sparse.bcoo_slice(M, start_indices=(1, 0), limit_indices=(3, 4), strides=(1, 3)), X[1:, ::3]),
    (lambda: sparse.bcoo_dynamic_slice(M, (0, 1), (3, 0)), X[:, 1:1]),
    (lambda: sparse.bcoo_dynamic_slice(M, (9, -3), (1, 2)), X[2:, 1:3]),
    (lambda: sparse.bcoo_rev(M, (0, 1)), X[::-1, ::-1]), (lambda: sparse.bcoo_rev(M, ()), X),
    (lambda: sparse.bcoo_reshape(M, new_sizes=(2, 6), dimensions=(1, 0)), X.T.reshape(2, 6)),
    (lambda: sparse.bcoo_broadcast_in_dim(M, shape=(2, 3, 4), broadcast_dimensions=(1, 2)), np.stack([X, X])),
    (lambda: sparse.bcoo_concatenate([M, 2 * M], dimension=1), np.concatenate([X, 2 * X], 1)),
    (lambda: sparse.bcoo_fromdense(X, n_batch=1, n_dense=1), X), (lambda: sparse.bcoo_fromdense(X, n_dense=2), X),
    (lambda: sparse.bcoo_update_layout(M, n_batch=1, n_dense=1, on_inefficient=None), X),
    (lambda: sparse.bcoo_update_layout(M, n_batch=0, n_dense=0), X), (lambda: sparse.bcoo_extract(M, 2 * X), 2 * X),
    (lambda: sparse.bcsr_broadcast_in_dim(ROWS, shape=(2, 3, 4), broadcast_dimensions=(1, 2)), np.stack([X, X])),
    (lambda: sparse.bcsr_concatenate([ROWS, 2 * ROWS], dimension=0), np.concatenate([X, 2 * X])),
    (lambda: sparse.bcsr_concatenate([ROWS, 2 * ROWS], dimension=1), np.concatenate([X, 2 * X], 1)),
    (lambda: sparse.bcoo_squeeze(sparse.BCOO.fromdense(X[:, 1:2]), dimensions=(-1,)), X[:, 1]),
    (lambda: sparse.random_bcoo(anima.random.key(0), (2, 3), nse=0), np.zeros((2, 3), "f")),
    (lambda: sparse.random_bcoo(anima.random.key(0), (0, 3), nse=0.5), np.zeros((0, 3), "f")),
    (lambda: COO.transpose((1, 0)), X.T), (lambda: CSR.transpose((1, 0)), X.T), (lambda: CSC.transpose((1, 0)), X.T),
])
def test_taken(call: Callable[[], Any], want: np.ndarray) -> None:
    check(call(), want)


def test_products_where_one_is_larger() -> None:
    for small in (X[:1], X[:, :1], X[:1, :1], X[1:2, :1]):
        narrow = sparse.BCOO.fromdense(small)
        for args in ((M, narrow), (narrow, M)):
            check(sparse.bcoo_multiply_sparse(*args), X * small)


def test_products_of_rows_that_do_not_run_by_rows() -> None:
    """Those over the first dimension, of batches and of dense parts are those of the BCOO array."""
    many = sparse.BCSR.fromdense(CUBE, n_batch=1)
    parts = sparse.BCSR.fromdense(np.stack([X, 3 * X], -1), n_dense=1)
    for mat, dense, other, numbers in (
            (ROWS, X, X, (((0,), (0,)), ((), ()))), (ROWS, X, X.T, (((1,), (0,)), ((), ()))),
            (many, CUBE, CUBE, (((2,), (2,)), ((0,), (0,)))), (many, CUBE, X, (((2,), (1,)), ((), ()))),
            (parts, np.stack([X, 3 * X], -1), X, (((1,), (1,)), ((), ())))):
        got = sparse.bcsr_dot_general(mat, other, dimension_numbers=numbers)
        want = np.asarray(lax.dot_general(dense, other, numbers))
        np.testing.assert_allclose(got.todense() if isinstance(got, (sparse.BCOO, sparse.BCSR)) else got, want)


def test_small_facts() -> None:
    assert (COO.dtype, CSR.dtype, CSC.dtype, ROWS.dtype) == (np.float32,) * 4 and ROWS.n_sparse == 2
    assert (COO.nse, CSR.nse, CSC.nse, ROWS.nse) == (5, 5, 5, 5)
    for mat in (M, ROWS, COO, CSR, CSC):
        assert mat.block_until_ready() is mat
    assert repr(COO) == "COO(float32[3, 4], nse=5)" and repr(CSC) == "CSC(float32[3, 4], nse=5)"


def test_places_of_large_arrays() -> None:
    """Row-major places beyond an int32 need x64."""
    wide = sparse.BCOO((jnp.ones(1), jnp.array([[2**16, 3]])), shape=(2**17, 2**17))
    with pytest.raises(ValueError, match="does not fit into an int32: enable x64"):
        sparse.bcoo_reshape(wide, new_sizes=(2**18, 2**16))
    with anima.enable_x64(True):
        got = sparse.bcoo_reshape(sparse.BCOO((jnp.ones(1), jnp.array([[2**16, 2**16 + 3]])), shape=(2**17, 2**17)),
                                  new_sizes=(2**18, 2**16))
    assert got.indices.tolist() == [[2**17 + 1, 3]]
