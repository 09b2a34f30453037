"""Which keys a query sees: boolean arrays [queries, keys], computed where they are looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_Shape = tuple[int, int]
_Window = tuple[int | None, int | None]
_Rule = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Mask:
    """A mask of a shape, indexed as an array is; masks are combined by `&` and `|`."""

    def __init__(self, shape: Sequence[int], rule: _Rule, *key: Any):
        self._shape, self._rule, self._key = tuple(shape), rule, (type(self), tuple(shape), *key)

    @property
    def shape(self) -> tuple[int, ...]:
        """[queries, keys]."""
        return self._shape

    def __getitem__(self, index: Any) -> np.ndarray:
        queries, keys = self._shape
        seen = self._rule(np.arange(queries)[:, None], np.arange(keys))
        return np.broadcast_to(seen, self._shape)[index]

    def __bool__(self) -> bool:
        raise NotImplementedError("a mask has no truth value: combine masks by & and |.")

    def __or__(self, other: Mask) -> Mask:
        return LogicalOr(self, other)

    def __and__(self, other: Mask) -> Mask:
        return LogicalAnd(self, other)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mask) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


class _Pair(Mask):
    """Two masks of one shape."""

    def __init__(self, left: Mask, right: Mask):
        if left.shape != right.shape:
            raise ValueError(f"masks must have one shape, got {left.shape} and {right.shape}.")
        super().__init__(left.shape, lambda q, k: self._of(left[:], right[:]), left, right)
        self.left, self.right = left, right

    def _of(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        raise NotImplementedError


class LogicalOr(_Pair):
    """What either of two masks shows."""

    def _of(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        return left | right


class LogicalAnd(_Pair):
    """What both of two masks show."""

    def _of(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        return left & right


class FullMask(Mask):
    """Each query sees all keys."""

    def __init__(self, _shape: Sequence[int]):
        super().__init__(_shape, lambda q, k: np.ones((), bool))


class CausalMask(Mask):
    """Query i sees the keys up to i + offset."""

    def __init__(self, shape: Sequence[int], offset: int = 0, shard_count: int = 1):
        super().__init__(shape, lambda q, k: q + offset >= k, offset)
        self.offset = offset


class LocalMask(Mask):
    """Query i sees the keys from i + offset - left to i + offset + right; None is no limit."""

    def __init__(self, shape: Sequence[int], window_size: _Window, offset: int, shard_count: int = 1):
        left, right = (np.inf if size is None else size for size in window_size)
        super().__init__(shape, lambda q, k: (q + offset - left <= k) & (q + offset + right >= k),
                         tuple(window_size), offset)
        self.window_size, self.offset = window_size, offset


class ChunkedCausalMask(Mask):
    """Query i sees the keys up to i within its own chunk."""

    def __init__(self, shape: Sequence[int], chunk_size: int, shard_count: int = 1):
        if chunk_size <= 0:
            raise ValueError(f"chunk_size must be positive, got {chunk_size}.")
        super().__init__(shape, lambda q, k: (q // chunk_size == k // chunk_size) & (q >= k), chunk_size)
        self.chunk_size = chunk_size


class NumpyMask(Mask):
    """An array as a mask."""

    def __init__(self, array: np.ndarray):
        if array.ndim != 2 or array.dtype != np.bool_:
            raise ValueError(f"a mask is a boolean array [queries, keys], got {array.dtype}{list(array.shape)}.")
        super().__init__(array.shape, lambda q, k: array, array.tobytes())
        self.array = array


class MultiHeadMask(Mask):
    """A mask for each head: of shape [heads, queries, keys]."""

    def __init__(self, masks: Sequence[Mask]):
        shapes = {mask.shape for mask in masks}
        if len(shapes) != 1 or len(*shapes) != 2:
            raise ValueError(f"the masks of heads must all be [queries, keys] of one shape, got {sorted(shapes)}.")
        super().__init__((len(masks), *masks[0].shape), lambda q, k: np.ones((), bool), *masks)
        self.masks = masks

    def __getitem__(self, index: Any) -> np.ndarray:
        return np.stack([mask[:] for mask in self.masks])[index]


def make_causal_mask(shape: _Shape, offset: int = 0) -> np.ndarray:
    """`CausalMask` as an array."""
    return CausalMask(shape, offset)[:]


def make_local_attention_mask(shape: _Shape, window_size: _Window, *, offset: int = 0) -> np.ndarray:
    """`LocalMask` as an array."""
    return LocalMask(shape, window_size, offset)[:]


def make_chunk_attention_mask(shape: _Shape, chunk_size: int) -> np.ndarray:
    """`ChunkedCausalMask` as an array."""
    return ChunkedCausalMask(shape, chunk_size)[:]


def make_random_mask(shape: _Shape, sparsity: float, seed: int) -> np.ndarray:
    """A mask that hides each pair with probability `sparsity`."""
    return np.random.RandomState(seed).binomial(1, 1 - sparsity, shape).astype(bool)
