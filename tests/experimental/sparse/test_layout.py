"""Elements of BCOO arrays: from and to dense arrays, in order, each once, in batches, as pytrees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima.experimental import sparse
from tests.experimental.sparse.arrays import check, doubled, layouts, random_dense, shuffled, variants

RNG = np.random.default_rng(0)
MATRIX = jnp.array([[1., 0, 2, 0], [0, 0, 3, 4], [0, 5, 0, 0]])
DOUBLE = sparse.BCOO((jnp.array([1., 2, 3, 4]), jnp.array([[1, 1], [0, 2], [1, 1], [3, 4]])), shape=(3, 4))


@pytest.mark.parametrize("n_batch, n_dense", layouts(3))
def test_every_layout(n_batch: int, n_dense: int) -> None:
    dense = random_dense(RNG, (2, 3, 4))
    for mat in variants(dense, n_batch, n_dense):
        assert (mat.n_batch, mat.n_sparse, mat.n_dense) == (n_batch, 3 - n_batch - n_dense, n_dense)
        check(mat, dense)
        check(mat.sort_indices(), dense)
        once = mat.sum_duplicates()
        check(once, dense, rtol=1e-6)
        assert once.indices_sorted and once.unique_indices
        check(sparse.bcoo_extract(mat, dense * 2), dense * 2 * (np.asarray(mat.todense()) != 0))
        for batch, rest in layouts(3):
            check(mat.update_layout(n_batch=batch, n_dense=rest, on_inefficient=None), dense, rtol=1e-6)
    np.testing.assert_array_equal(anima.jit(lambda x: sparse.BCOO.fromdense(
        x, nse=mat.nse, n_batch=n_batch, n_dense=n_dense).todense())(dense), dense)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32", "float16", "bfloat16", "float32", "complex64"])
@pytest.mark.parametrize("index_dtype", ["int8", "uint8", "int32"])
def test_dtypes(dtype: str, index_dtype: str) -> None:
    dense = jnp.asarray(random_dense(RNG, (3, 5))).astype(dtype)
    mat = sparse.BCOO.fromdense(dense, index_dtype=index_dtype)
    assert mat.dtype == dense.dtype and mat.indices.dtype == index_dtype
    check(mat, dense)
    check(anima.jit(shuffled)(mat).sum_duplicates(nse=15), dense)
    check(sparse.BCSR.from_bcoo(mat), dense)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (1, 1), (), (2, 0, 3)])
def test_nothing(shape: tuple[int, ...]) -> None:
    for n_batch, n_dense in layouts(len(shape)):
        mat = sparse.BCOO.fromdense(jnp.zeros(shape), n_batch=n_batch, n_dense=n_dense)
        assert mat.nse == 0
        for same in (mat, mat.sort_indices(), mat.sum_duplicates(), mat.sum_duplicates(nse=2), shuffled(mat)):
            check(same, np.zeros(shape, np.float32))


def test_elements_count_as_documented() -> None:
    mat = sparse.BCOO.fromdense(MATRIX)
    np.testing.assert_array_equal(mat.indices, [[0, 0], [0, 2], [1, 2], [1, 3], [2, 1]])
    assert sparse.BCOO.fromdense(MATRIX, nse=4).data.tolist() == [1, 2, 3, 4]
    assert sparse.BCOO.fromdense(MATRIX, nse=7).indices.tolist()[5:] == [[3, 4]] * 2
    assert sparse.BCOO.fromdense(jnp.stack([MATRIX, MATRIX.at[0, 0].set(0)]), n_batch=1).nse == 5
    assert DOUBLE.sum_duplicates().data.tolist() == [2, 4]
    assert DOUBLE.sum_duplicates(nse=1).indices.tolist() == [[0, 2]]
    assert DOUBLE.sum_duplicates(nse=3).indices.tolist() == [[0, 2], [1, 1], [3, 4]]
    zero = sparse.BCOO((jnp.array([0., 2.]), jnp.array([[0], [1]])), shape=(3,))
    assert zero.sum_duplicates().nse == 1 and zero.sum_duplicates(remove_zeros=False).nse == 2
    assert sparse.bcoo_sum_duplicates(zero).nse == 2
    assert DOUBLE.sort_indices().data.tolist() == [2, 1, 3, 4]
    assert sparse.bcoo_extract(DOUBLE, MATRIX.at[1, 1].set(7)).data.tolist() == [7, 2, 0, 0]
    assert sparse.bcoo_extract(DOUBLE, MATRIX.at[1, 1].set(7), assume_unique=True).data.tolist() == [7, 2, 7, 0]


def test_batches_may_share() -> None:
    data, indices = jnp.ones((1, 3)), jnp.array([[[0], [1], [1]], [[2], [2], [2]]])
    check(sparse.BCOO((data, indices), shape=(2, 4)), np.array([[1, 2, 0, 0], [0, 0, 3, 0]], np.float32))
    check(sparse.BCOO((indices[:, :, 0] + 0., indices[:1]), shape=(2, 4)), np.array([[0, 2, 0, 0], [2, 4, 0, 0]], "f4"))


def test_pytrees() -> None:
    mat = sparse.BCOO.fromdense(MATRIX)
    leaves, tree = anima.tree.flatten(mat)
    assert len(leaves) == 2 and anima.tree.structure(anima.tree.map(lambda x: x * 2, mat)) == tree
    assert anima.tree.map(lambda x: None, mat).shape == (3, 4)
    assert repr(anima.tree.map(lambda x: None, mat)) == "BCOO(<invalid>)"
    assert mat.tree_flatten()[1] == {"shape": (3, 4), "indices_sorted": True, "unique_indices": True}
    same = anima.jit(lambda m: m)(mat)
    assert same.indices_sorted and same.unique_indices and repr(same) == repr(mat) == "BCOO(float32[3, 4], nse=5)"
    carried, _ = anima.lax.scan(lambda m, x: (m.like(m.data * x), None), mat, jnp.full(3, 2.0))
    check(carried, MATRIX * 8)


def test_vmap_takes_batches_away_and_gives_them() -> None:
    stack = jnp.stack([MATRIX, 2 * MATRIX])
    mats = sparse.BCOO.fromdense(stack, n_batch=1)
    shapes: list[Any] = []
    out = anima.vmap(lambda m: (shapes.append((m.shape, m.n_batch)), m.todense())[1])(mats)
    np.testing.assert_array_equal(out, stack)
    assert shapes == [((3, 4), 0)]
    made = anima.vmap(lambda x: sparse.BCOO.fromdense(x, nse=5))(stack)
    assert repr(made) == "BCOO(float32[2, 3, 4], nse=5, n_batch=1)"
    check(made, stack)
    assert anima.vmap(lambda m, x: (m * x).sum(), in_axes=(None, 0))(mats, jnp.arange(2.)).tolist() == [0, 45]
    rows = sparse.BCSR.fromdense(stack, n_batch=1)
    np.testing.assert_array_equal(anima.vmap(lambda m: m.todense())(rows), stack)
    assert repr(anima.vmap(lambda x: sparse.BCSR.fromdense(x, nse=5))(stack)) == repr(rows)


def test_errors() -> None:
    ones, places = jnp.ones(3), jnp.zeros((3, 1), np.int32)
    for data, indices, shape in ((ones, places[:2], (4,)), (ones, places, (4, 4)), (ones[None], places, (4,)),
                                 (ones, jnp.zeros(3, np.int32), (4,))):
        with pytest.raises(ValueError):
            sparse.BCOO((data, indices), shape=shape)
    with pytest.raises(TypeError, match="integers"):
        sparse.BCOO((ones, places + 0.5), shape=(4,))
    with pytest.raises(anima.errors.ConcretizationTypeError, match="nse"):
        anima.jit(sparse.BCOO.fromdense)(MATRIX)
    with pytest.raises(ValueError, match="nse must be given"):
        anima.jit(lambda m: m.sum_duplicates())(DOUBLE)
    with pytest.raises(TypeError, match="BCOO"):
        sparse.bcoo_todense(MATRIX)
    with pytest.raises(TypeError, match="unhashable"):
        hash(DOUBLE)


def test_inefficient_layouts() -> None:
    mat = sparse.BCOO.fromdense(MATRIX)
    for layout in ({"n_batch": 1}, {"n_dense": 1}):
        with pytest.raises(sparse.SparseEfficiencyError, match="on_inefficient"):
            mat.update_layout(**layout)
        with pytest.warns(sparse.SparseEfficiencyWarning):
            check(mat.update_layout(**layout, on_inefficient="warn"), MATRIX)
    with pytest.raises(ValueError, match="on_inefficient"):
        mat.update_layout(n_batch=1, on_inefficient="perhaps")
    assert issubclass(sparse.CuSparseEfficiencyWarning, sparse.SparseEfficiencyWarning)


def test_dimensions_of_size_1_become_batch_or_dense_ones_at_no_cost() -> None:
    dense = jnp.array([[[0.0, 2.0, 0.0], [1.0, 0.0, 3.0]]])
    for array, layout in ((dense, {"n_batch": 1}), (dense.T, {"n_dense": 1})):
        new = sparse.BCOO.fromdense(array).update_layout(**layout)
        assert (new.n_batch, new.n_dense, new.nse) == (layout.get("n_batch", 0), layout.get("n_dense", 0), 3)
        check(new, array)
        with pytest.raises(sparse.SparseEfficiencyError):
            new.update_layout(**dict.fromkeys(layout, 2))


def test_large_arrays_are_compiled_alike() -> None:
    dense = random_dense(RNG, (90, 110))
    mat = sparse.BCOO.fromdense(dense)
    assert mat.nse > 4096
    check(mat, dense)
    check(doubled(shuffled(mat)).sum_duplicates(), dense)
    check(sparse.BCSR.from_bcoo(shuffled(mat)), dense)


@pytest.mark.parametrize("dense", [np.array([[0, 2, 0], [1, 0, 3]], np.float32), np.zeros((2, 3), np.float32)])
def test_rows_without_duplicates(dense: np.ndarray) -> None:
    """Of an array by rows, as of one by places: in order, once each, with as many elements as are asked for."""
    for mat in (doubled(sparse.BCOO.fromdense(dense)), doubled(sparse.BCOO.fromdense(dense, nse=5))):
        rows = sparse.BCSR.from_bcoo(mat)
        for nse in (None, 3, 7):
            for remove_zeros in (True, False):
                once, wanted = (m.sum_duplicates(nse=nse, remove_zeros=remove_zeros) for m in (rows, mat))
                check(once, dense)
                assert once.nse == wanted.nse and (nse is None or once.nse == nse)
            check(sparse.bcsr_sum_duplicates(rows, nse), dense)


def test_indices_that_are_shared_along_the_batch_stay_so() -> None:
    shared = jnp.array([[[1], [1], [2]]])
    for rows in (1, 2):
        given = sparse.BCOO((jnp.arange(3.0 * rows).reshape(rows, 3), shared), shape=(2, 3))
        found = sparse.bcoo_sum_duplicates(given)
        assert found.data.shape == (rows, 2) and found.indices.shape == (1, 2, 1)
        np.testing.assert_array_equal(found.todense(), given.todense())
    zeros = sparse.BCOO((jnp.array([[0.0, 0, 3], [1, 2, 0]]), shared), shape=(2, 3))
    assert zeros.sum_duplicates(remove_zeros=True).indices.shape[0] == 2
