"""BCOO arrays rearranged, cut, joined and summed, against NumPy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp
from anima import lax
from anima.experimental import sparse
from tests.experimental.sparse.arrays import check, layouts, random_dense, variants

RNG = np.random.default_rng(0)
DENSE = random_dense(RNG, (2, 3, 4))


@pytest.fixture(params=layouts(3), ids=str)
def mats(request: Any) -> list[sparse.BCOO]:
    return list(variants(DENSE, *request.param))


def test_transpose(mats: list[sparse.BCOO]) -> None:
    done = 0
    for mat, order in itertools.product(mats, itertools.permutations(range(3))):
        ends = (0, mat.n_batch, 3 - mat.n_dense, 3)
        if [d for a, b in itertools.pairwise(ends) for d in sorted(order[a:b])] == [0, 1, 2]:
            check(mat.transpose(order), DENSE.transpose(order))
            done += 1
        else:
            with pytest.raises(NotImplementedError, match="among others"):
                mat.transpose(order)
    assert done >= len(mats)


def test_reshape(mats: list[sparse.BCOO]) -> None:
    for mat, shape in itertools.product(mats, [(24,), (2, 12), (6, 4), (2, 2, 6), (1, 2, 3, 4), (2, 3, 2, 2)]):
        try:
            out = mat.reshape(shape)
        except NotImplementedError:
            assert mat.n_batch or mat.n_dense
            continue
        check(out, DENSE.reshape(shape))
    with pytest.raises(TypeError):
        sparse.bcoo_reshape(mats[0], new_sizes=(5,))


def test_broadcast(mats: list[sparse.BCOO]) -> None:
    for mat in mats:
        for shape, dims in (((5, 2, 3, 4), (1, 2, 3)), ((2, 5, 3, 4), (0, 2, 3)), ((2, 3, 5, 4), (0, 1, 3)),
                            ((2, 3, 4, 5), (0, 1, 2)), ((1, 2, 3, 1, 4), (1, 2, 4))):
            want = np.asarray(lax.broadcast_in_dim(DENSE, shape, dims))
            check(sparse.bcoo_broadcast_in_dim(mat, shape=shape, broadcast_dimensions=dims), want)
        for axis in range(3):
            one = DENSE.take([1], axis)
            narrow = sparse.BCOO.fromdense(one, n_batch=mat.n_batch, n_dense=mat.n_dense)
            wide = sparse.bcoo_broadcast_in_dim(narrow, shape=(2, 3, 4), broadcast_dimensions=(0, 1, 2))
            check(wide, np.broadcast_to(one, (2, 3, 4)))
            check(sparse.bcoo_squeeze(narrow, dimensions=(axis,)), one.squeeze(axis))


def test_concatenate(mats: list[sparse.BCOO]) -> None:
    for mat, axis in itertools.product(mats, range(3)):
        check(sparse.bcoo_concatenate([mats[0], mat, mat], dimension=axis), np.concatenate([DENSE] * 3, axis))
    with pytest.raises(ValueError):
        sparse.bcoo_concatenate([mats[0], DENSE], dimension=0)


def test_slices(mats: list[sparse.BCOO]) -> None:
    for mat in mats:
        for at in (np.s_[0:2, 1:3, 0:4], np.s_[1:2, 1:3, 1:4:2], np.s_[0:1, 2:3, 3:4], np.s_[0:0, 0:3, 0:4]):
            check(sparse.bcoo_slice(mat, start_indices=[s.start for s in at], limit_indices=[s.stop for s in at],
                                    strides=[s.step or 1 for s in at]), DENSE[at])
        cut = anima.jit(lambda m, i: sparse.bcoo_dynamic_slice(m, (i, 1, 5), (1, 2, 2)))
        check(cut(mat, 1), DENSE[1:2, 1:3, 2:4])
        for dims in itertools.chain.from_iterable(itertools.combinations(range(3), r) for r in range(4)):
            check(sparse.bcoo_rev(mat, dims), np.flip(DENSE, dims))


def test_sums(mats: list[sparse.BCOO]) -> None:
    for mat in mats:
        for axes in itertools.chain.from_iterable(itertools.combinations(range(3), r) for r in range(4)):
            check(sparse.bcoo_reduce_sum(mat, axes=axes), DENSE.sum(axes), rtol=1e-5, atol=1e-6)


def test_gather(mats: list[sparse.BCOO]) -> None:
    at = jnp.array([[1], [2], [-1], [7]])
    for mat, mode in itertools.product(mats, ("clip", "fill")):
        numbers, sizes = lax.GatherDimensionNumbers((1, 2), (1,), (1,)), (2, 1, 4)
        want = lax.gather(DENSE, at, numbers, sizes, mode=mode, fill_value=0 if mode == "fill" else None)
        check(sparse.bcoo_gather(mat, at, numbers, sizes, mode=mode, fill_value=0 if mode == "fill" else None), want)
    with pytest.raises(NotImplementedError):
        sparse.bcoo_gather(mats[0], at, lax.GatherDimensionNumbers((0, 1), (1,), (1,)), (2, 1, 4))


@pytest.mark.parametrize("options", [
    {"window_strides": (1,), "padding": "SAME"}, {"window_strides": (2,), "padding": "VALID"},
    {"window_strides": (1,), "padding": [(2, 1)], "lhs_dilation": (2,), "rhs_dilation": (3,)},
    {"window_strides": (3,), "padding": [(0, 4)]}], ids=str)
def test_convolutions(options: dict[str, Any]) -> None:
    x, w = random_dense(RNG, (2, 3, 9)), random_dense(RNG, (4, 3, 3))
    for n_batch in (0, 2):
        mat = sparse.BCOO.fromdense(x, n_batch=n_batch)
        check(sparse.bcoo_conv_general_dilated(mat, w, **options), lax.conv_general_dilated(x, w, **options),
              rtol=1e-4, atol=1e-5)
        both = sparse.bcoo_conv_general_dilated(mat, sparse.BCOO.fromdense(w), **options)
        check(both, lax.conv_general_dilated(x, w, **options), rtol=1e-4, atol=1e-5)
    with pytest.raises(NotImplementedError):
        sparse.bcoo_conv_general_dilated(mat, w, **options, feature_group_count=3)


def test_convolution_of_images() -> None:
    x, w = random_dense(RNG, (1, 2, 5, 6)), random_dense(RNG, (3, 2, 2, 3))
    got = anima.jit(lambda m, w: sparse.bcoo_conv_general_dilated(m, w, window_strides=(2, 1), padding="SAME"))(
        sparse.BCOO.fromdense(x), w)
    check(got, lax.conv_general_dilated(x, w, (2, 1), "SAME"), rtol=1e-4, atol=1e-5)


def test_convolution_of_volumes() -> None:
    x, w = random_dense(RNG, (1, 2, 4, 5, 3)), random_dense(RNG, (2, 2, 2, 2, 2))
    got = sparse.bcoo_conv_general_dilated(sparse.BCOO.fromdense(x), w, window_strides=(1, 2, 1), padding="SAME")
    check(got, lax.conv_general_dilated(x, w, (1, 2, 1), "SAME"), rtol=1e-4, atol=1e-5)


def test_a_transposed_matrix_looks_nothing_up() -> None:
    mat = sparse.BCOO.fromdense(np.float32([[0, 2, 0], [1, 0, 3]]))
    assert "gather" not in str(anima.make_jaxpr(lambda m: m.T.indices)(mat))
    np.testing.assert_array_equal(mat.T.indices, np.asarray(mat.indices)[:, ::-1])
