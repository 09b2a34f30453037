"""segment_sum and its likes: against a loop over the rows, under transformations, and their mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anima
import anima.numpy as jnp

COMBINE = {"sum": (np.add, 0), "prod": (np.multiply, 1), "max": (np.maximum, "least"), "min": (np.minimum, "greatest")}
FUNCTIONS = {name: getattr(anima.ops, f"segment_{name}") for name in COMBINE}


def by_loop(name: str, data: np.ndarray, ids: Any, count: int) -> np.ndarray:
    combine, start = COMBINE[name]
    if isinstance(start, str):
        kind = np.iinfo(data.dtype) if data.dtype.kind == "i" else None
        least, greatest = (kind.min, kind.max) if kind else (False, True) if data.dtype == bool else (-np.inf, np.inf)
        start = least if start == "least" else greatest
    out = np.full((count, *data.shape[1:]), start, data.dtype)
    for row, k in zip(data, ids, strict=True):
        if 0 <= k < count:
            out[k] = combine(out[k], row)
    return out


@pytest.mark.parametrize("name, dtype", [(n, d) for n in COMBINE for d in ("float32", "int32", "bool")
                                         if d != "bool" or n in ("max", "min")])
@pytest.mark.parametrize("shape", [(9,), (9, 2), (9, 2, 3)])
@pytest.mark.parametrize("options", [{}, {"bucket_size": 2}, {"bucket_size": 4}, {"bucket_size": 100}], ids=str)
def test_against_a_loop(name: str, dtype: str, shape: tuple[int, ...], options: Any) -> None:
    data = np.random.default_rng(0).integers(-3, 4, shape).astype(dtype)
    ids = np.array([0, 2, 2, 7, -1, 0, 4, 1, 2])                            # 7, -1 and 4 are outside
    for run in (FUNCTIONS[name], anima.jit(FUNCTIONS[name], static_argnames=("num_segments", "bucket_size"))):
        result = run(jnp.asarray(data), jnp.asarray(ids), num_segments=4, **options)
        assert result.dtype == dtype
        np.testing.assert_array_equal(result, by_loop(name, data, ids, 4))


def test_the_number_of_segments() -> None:
    data, ids = jnp.arange(5.0), jnp.array([0, 0, 1, 1, 2])
    assert anima.ops.segment_sum(data, ids).tolist() == [1.0, 5.0, 4.0]
    assert anima.ops.segment_sum(data[:0], ids[:0]).shape == (0,)
    with pytest.raises(anima.errors.ConcretizationTypeError, match="num_segments"):
        anima.jit(anima.ops.segment_sum)(data, ids)
    with pytest.raises(anima.errors.ConcretizationTypeError, match=r"segment_sum\(\) `num_segments` argument"):
        anima.jit(lambda n: anima.ops.segment_sum(data, ids, n))(3)
    with pytest.raises(ValueError, match="non-negative"):
        anima.ops.segment_sum(data, ids, -1)
    for size in (0, -1):
        with pytest.raises(ValueError, match="bucket_size must be positive"):
            anima.ops.segment_sum(data, ids, bucket_size=size)
    assert anima.ops.segment_sum(data, ids, bucket_size=1).tolist() == [1.0, 5.0, 4.0]
    with pytest.raises(ValueError, match="one segment number for each row"):
        anima.ops.segment_sum(data, ids[:4])
    with pytest.raises(TypeError):
        anima.ops.segment_sum([1.0, 2.0], [0, 1])
    assert anima.ops.segment_sum(data, jnp.array([0, 0, 1, 1, 9]), 2, mode="clip").tolist() == [1.0, 9.0]


def test_transformations() -> None:
    data, ids = jnp.array([1.0, 3.0, 2.0, 5.0]), jnp.array([0, 0, 2, 9])
    weights = jnp.array([2.0, 3.0, 5.0])
    assert anima.grad(lambda d: anima.ops.segment_sum(d, ids, 3) @ weights)(data).tolist() == [2.0, 2.0, 5.0, 0.0]
    assert anima.grad(lambda d: anima.ops.segment_max(d, ids, 3)[::2] @ weights[::2])(data).tolist() == [
        0.0, 2.0, 5.0, 0.0]
    batched = anima.vmap(lambda i: anima.ops.segment_sum(data, i, 3))(jnp.stack([ids, ids[::-1]]))
    assert batched.tolist() == [[4.0, 0.0, 2.0], [7.0, 0.0, 3.0]]


def test_one_row_stands_for_all() -> None:
    ids = jnp.array([0, 2, 2])
    assert anima.ops.segment_sum(1.0, ids, 3).tolist() == [1.0, 0.0, 2.0]
    assert anima.ops.segment_max(jnp.array([[4, 5]]), ids, 3, bucket_size=2)[2].tolist() == [4, 5]
    assert anima.ops.segment_sum(jnp.ones(2), jnp.array([[0, 1], [1, 1], [2, 0]]), 3).tolist() == [2.0, 3.0, 1.0]
    with pytest.raises(ValueError, match=r"one segment number for each row of data: shapes \(3,\) and \(2,\)"):
        anima.ops.segment_sum(jnp.ones(2), ids, 3)


@pytest.mark.parametrize("name", COMBINE)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("count, segments", [(300, 35), (300, 15), (40_000, 300), (40_000, 5000)])
def test_many_in_order(name: str, dtype: str, ordered: bool, count: int, segments: int) -> None:
    """The promise of order makes it faster and no other, even where it is broken: the same results, to the last bit but
    for floats whose sums and products are rounded in another order."""
    rng = np.random.default_rng(1)
    data = jnp.asarray(rng.integers(1, 4, count)).astype(dtype) / (7 if dtype[0] == "f" else 1)
    ids = rng.integers(-2, segments + 5, count)
    ids = jnp.asarray(np.sort(ids) if ordered else ids)
    run = anima.jit(FUNCTIONS[name], static_argnames=("num_segments", "indices_are_sorted"))
    got, want = (run(data, ids, num_segments=segments, indices_are_sorted=order) for order in (True, False))
    rounded = name in ("sum", "prod") and data.dtype != np.int32
    np.testing.assert_allclose(got, want, rtol=4e-6 if rounded and data.dtype == np.float32 else 0)


@pytest.mark.parametrize("count, segments, kept", [(1000, 10, True), (100_000, 100, True), (100_000, 50_000, False)])
def test_long_runs_in_order_keep_their_totals(count: int, segments: int, kept: bool) -> None:
    """Each adds to a register; short ones add to memory, and many are added in parts of their own."""
    total = anima.jit(lambda x, ids: anima.ops.segment_sum(x, ids, segments, indices_are_sorted=True))
    loops = str(total.lower(jnp.ones(count), jnp.zeros(count, jnp.int32)).loops)
    assert ("if " in loops and ": f32 = 0.0" in loops) is kept
    assert ("scatter_add_parts" in loops) is (count // segments > 4 and count > 1 << 13)


@pytest.mark.parametrize("name", ["sum", "prod"])
@pytest.mark.parametrize("bucket_size", [1, 2, 3, 5, 8, 9, 10])
def test_buckets_are_combined_one_by_one(name: str, bucket_size: int) -> None:
    """As many rows at a time: that shows where sums, and products, are rounded."""
    combine = COMBINE[name][0]
    data = np.array([1e8, 1, 1, 1e8, 1, -1e8, 3, 1, -1e8] if name == "sum" else
                    [1.1, 1.3, 0.7, 0.9, 3, 1.7, 0.6, 1.9, 0.3], np.float32)
    ids = np.array([0, 0, 0, 0, 1, 0, 0, 1, 0])
    parts = [by_loop(name, data[k:k + bucket_size], ids[k:k + bucket_size], 2) for k in range(0, 9, bucket_size)]
    wanted = combine.reduce(np.stack(parts), 0)
    for run in (FUNCTIONS[name], anima.jit(FUNCTIONS[name], static_argnames=("num_segments", "bucket_size"))):
        np.testing.assert_array_equal(run(jnp.asarray(data), jnp.asarray(ids), num_segments=2, bucket_size=bucket_size),
                                      wanted)
