"""Sharding rules that many operations have: see `ShardingRule`.

    each_alike((8, 2), [x, y], [out])      ->   x: (0,), (1,)   y: (0,), ()  if it is of shape (8, 1)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from anima.core.primitive import ShardingRule

Dims = tuple[tuple[Any, ...], ...]


class Factor:
    """A factor of a dimension that consists of several, with its size."""

    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size


def dims(*labels: Any) -> Dims:
    """One factor for each dimension; None: none."""
    return tuple(() if label is None else (label,) for label in labels)


def each_alike(shape: Sequence[int], operands: Iterable[Any], results: Iterable[Any],
               whole: Iterable[int] = ()) -> ShardingRule:
    """Dimension k of all of them goes together where it has the size `shape[k]`; scalars are whole."""
    def of(aval: Any) -> Dims:
        return dims(*(k if k < len(shape) and n == shape[k] else None for k, n in enumerate(aval.shape)))

    return ShardingRule([of(a) for a in operands], [of(a) for a in results], frozenset(whole))


def dimensions(operands: Iterable[Any], results: Iterable[Any]) -> ShardingRule:
    """Dimension k of all of them goes together, whatever its size; scalars are whole."""
    return ShardingRule([dims(*range(len(a.shape))) for a in operands], [dims(*range(len(a.shape))) for a in results])


def leading(count: int, operands: Iterable[Any], results: Iterable[Any]) -> ShardingRule:
    """The first `count` dimensions of all of them go together."""
    def of(aval: Any) -> Dims:
        return dims(*(k if k < count else None for k in range(len(aval.shape))))

    return ShardingRule([of(a) for a in operands], [of(a) for a in results])


def without(axes: Sequence[int], operand: Any, results: Iterable[Any], combines: str | None = None) -> ShardingRule:
    """The results lack some axes of the operand."""
    rank = len(operand.shape)
    kept = dims(*(k for k in range(rank) if k not in axes))
    return ShardingRule([dims(*range(rank))], [kept for _ in results], combines=combines)


def reshaped(before: Sequence[int], after: Sequence[int]) -> ShardingRule:
    """The factors that a shape and another of the same elements have in common."""
    known: tuple[list[list[Any]], list[list[Any]]] = ([[] for _ in before], [[] for _ in after])
    if math.prod(before) == 0:
        return ShardingRule([dims(*[None] * len(before))], [dims(*[None] * len(after))])
    i = j = 0
    left, right = list(before), list(after)
    while i < len(left) and j < len(right):
        if left[i] == 1 or right[j] == 1:
            i, j = i + (left[i] == 1), j + (right[j] == 1)
            continue
        size = math.gcd(left[i], right[j])
        if size == 1:
            break  # the rest has no factors in common, in this order
        if left[i] != size and right[j] != size:
            factor = Factor(size)
            known[0][i].append(factor)
            known[1][j].append(factor)
            break
        factor = Factor(size)
        known[0][i].append(factor)
        known[1][j].append(factor)
        left[i], right[j] = left[i] // size, right[j] // size
    return ShardingRule([tuple(map(tuple, known[0]))], [tuple(map(tuple, known[1]))])


def looked_up(operand: Any, indices: Any, windows: Any, numbers: Any, slice_sizes: Sequence[int]) -> ShardingRule:
    """The rule of a gather with these `GatherDimensionNumbers`: dimensions that windows have whole go along, and those
    of the indices, as each is looked up by itself."""
    places = [f"index{k}" for k in range(len(indices.shape) - 1)]
    batching = dict(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True))
    single = (*numbers.collapsed_slice_dims, *batching)
    rank = len(operand.shape)
    whole = [i for i in range(rank) if i not in batching and slice_sizes[i] != operand.shape[i]]
    labels = [places[batching[i]] if i in batching else i for i in range(rank)]
    window = iter([None if i in whole else labels[i] for i in range(rank) if i not in single])
    rest = iter(places)
    out = [next(window) if k in numbers.offset_dims else next(rest) for k in range(len(windows.shape))]
    return ShardingRule([dims(*labels), dims(*places, None)], [dims(*out)], frozenset(whole))
