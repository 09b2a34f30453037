"""Products of many points by a small matrix, and of two thin matrices over all points: by numbers, not by rows.

    x[i, :] @ w, w of 3x3:      stack([x[:, 0]*w[0, j] + x[:, 1]*w[1, j] + x[:, 2]*w[2, j] for j in 0 .. 2], -1)
    x.T @ y, of 3 columns:      stack([sum(x[:, i] * y[:, j]) for i in 0 .. 2 for j in 0 .. 2])

So a vector holds a coordinate of as many points, and what is done with the results is part of the same loop.
"""

from __future__ import annotations

from typing import Any

from anima.ops import elementwise as el
from anima.ops.broadcast import broadcast_in_dim, expand_dims
from anima.ops.shape import concatenate, reduce_sum_p, reshape, slice_in_dim, squeeze

COORDINATES = 8  # of a point, at most
NUMBERS = 36     # of a small matrix, at most: each is code, which takes time to compile; so there must be ...
POINTS = 64      # ... so many times its square points at least


def by_numbers(batch: int, m: int, n: int, k: int) -> str | None:
    """How products of `batch` matrices m x k by k x n are done: by "columns" of few numbers, by "sums" over points k;
    None: in another way."""
    few, many = min(m, n), max(m, n)
    if 1 < few <= COORDINATES <= many and 1 < k <= COORDINATES and few * k <= NUMBERS:
        return "columns" if batch * many >= POINTS * (few * k) ** 2 else None
    return "sums" if batch == 1 and m > 1 < n and m * n <= NUMBERS and k >= POINTS * (m * n) ** 2 else None


def of_points(m: int, n: int, k: int) -> bool:
    """Whether a product of matrices m x k by k x n is one of points, which come first, by a small matrix."""
    return 1 < n <= COORDINATES < m and 1 < k <= COORDINATES


def _part(x: Any, axis: int, index: int) -> Any:
    return squeeze(slice_in_dim(x, index, index + 1, axis=axis), (axis,))


def columns(points: Any, small: Any, batch: int, axis: int) -> Any:
    """`sum over l of points[b, ..., l] * small[b, j, l]` for `batch` axes b, with j as axis `axis` of the result."""
    last = len(points.shape) - 1
    made = []
    for j in range(small.shape[batch]):
        row = broadcast_in_dim(_part(small, batch, j), points.shape, (*range(batch), last))
        made.append(expand_dims(reduce_sum_p.bind(el.mul(points, row), axes=(last,)), (axis,)))
    return concatenate(made, axis)


def sums(x: Any, y: Any) -> Any:
    """x.T @ y for matrices of as many rows."""
    m, n = x.shape[1], y.shape[1]
    left, right = ([_part(v, 1, j) for j in range(v.shape[1])] for v in (x, y))
    totals = [reshape(reduce_sum_p.bind(el.mul(a, b), axes=(0,)), (1,)) for a in left for b in right]
    return reshape(concatenate(totals, 0), (m, n))
