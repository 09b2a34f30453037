"""Sparse arrays for tests, in every layout, and what must hold of each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

import anima.numpy as jnp
from anima.experimental import sparse
from anima.experimental.sparse.bcoo import parts_of
from anima.experimental.sparse.layout import spread


def random_dense(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    """Half zeros."""
    x = rng.normal(size=shape) * 3
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.normal(size=shape)
    if np.dtype(dtype).kind in "iub":
        x = np.abs(x)
    return np.where(rng.random(shape) < 0.5, 0, x).astype(dtype)


def layouts(ndim: int) -> list[tuple[int, int]]:
    """All pairs of n_batch and n_dense."""
    return [(batch, dense) for batch in range(ndim + 1) for dense in range(ndim + 1 - batch)]


def shuffled(mat: sparse.BCOO) -> sparse.BCOO:
    """The elements in reverse order, which nothing is known of."""
    axis = mat.n_batch
    return sparse.BCOO((jnp.flip(mat.data, axis), jnp.flip(mat.indices, axis)), shape=mat.shape)


def doubled(mat: sparse.BCOO) -> sparse.BCOO:
    """Each element twice, of half its value."""
    axis = mat.n_batch
    return sparse.BCOO((jnp.concatenate([mat.data / 2] * 2, axis), jnp.concatenate([mat.indices] * 2, axis)),
                       shape=mat.shape)


def with_outside(mat: sparse.BCOO) -> sparse.BCOO:
    """With elements outside of the array, before and behind it in each sparse dimension: they count nothing."""
    data, indices = spread(mat)
    axis, sizes = mat.n_batch, parts_of(mat)[1]
    beyond = [[at if d == k else 0 for d in range(len(sizes))] for k, n in enumerate(sizes)
              for at in (-1, n, n + 5, -n)]
    more = np.broadcast_to(np.array(beyond, indices.dtype), (*indices.shape[:axis], len(beyond), len(sizes)))
    values = np.full((*data.shape[:axis], len(beyond), *data.shape[axis + 1:]), 7, data.dtype)
    return sparse.BCOO((jnp.concatenate([values, data], axis), jnp.concatenate([more, indices], axis)), shape=mat.shape)


def variants(dense: np.ndarray, n_batch: int = 0, n_dense: int = 0) -> Iterator[sparse.BCOO]:
    """The same array in order, padded, in another order, with elements outside, with duplicates."""
    mat = sparse.BCOO.fromdense(dense, n_batch=n_batch, n_dense=n_dense)
    yield mat
    padded = sparse.BCOO.fromdense(dense, n_batch=n_batch, n_dense=n_dense, nse=mat.nse + 2)
    yield padded
    yield shuffled(padded)
    if mat.n_sparse:
        yield with_outside(mat)
    if dense.dtype.kind in "fc":
        yield doubled(mat)


def check(mat: Any, dense: Any, **tolerance: float) -> None:
    """The array has these elements, and its promises hold."""
    dense = np.asarray(dense)
    assert mat.shape == dense.shape, (mat, dense.shape)
    got = np.asarray(mat.todense())
    assert got.dtype == dense.dtype, (got.dtype, dense.dtype)
    if tolerance:
        np.testing.assert_allclose(got, dense, **tolerance)
    else:
        np.testing.assert_array_equal(got, dense)
    if isinstance(mat, sparse.BCOO):
        sizes = np.array(parts_of(mat)[1])
        count = math.prod(parts_of(mat)[0])
        for rows in np.asarray(spread(mat)[1]).reshape(count, mat.nse, mat.n_sparse):
            inside = ((rows >= 0) & (rows < sizes)).all(1)
            listed = [tuple(r) for r in rows]
            if mat.indices_sorted:
                assert listed == sorted(listed) and list(inside) == sorted(inside, reverse=True), mat
            if mat.unique_indices and mat.n_sparse:
                assert len(set(map(tuple, rows[inside]))) == inside.sum(), mat
