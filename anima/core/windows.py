"""Windows of an axis, whose start need not be known: `x[ds(start, size)]`."""

from __future__ import annotations

from typing import Any

from anima import tree
from anima.util import record


@record
class Slice:
    """`size` elements of an axis from `start` on, in steps of `stride`; `start` may be a traced integer."""

    start: Any
    size: Any
    stride: int = 1

    @property
    def is_dynamic_start(self) -> bool:
        """Whether the start is not a Python integer."""
        return not isinstance(self.start, int)

    @property
    def is_dynamic_size(self) -> bool:
        """Whether the size is not a Python integer: no array can be indexed so."""
        return not isinstance(self.size, int)

    @staticmethod
    def from_slice(slc: slice, size: int) -> Slice:
        """What a slice with a positive step takes of an axis of this size."""
        start, stop, step = slc.indices(size)
        return Slice(start, len(range(start, stop, step)), step)

    def tree_flatten(self) -> tuple[list[Any], tuple[Any, ...]]:
        """(the parts that are no integers, the others with None in the places of these)."""
        parts = (self.start, self.size)
        return ([p for p in parts if not isinstance(p, int)],
                (*(p if isinstance(p, int) else None for p in parts), self.stride))

    @staticmethod
    def tree_unflatten(aux: tuple[Any, ...], children: Any) -> Slice:
        rest = iter(children)
        start, size = (next(rest) if part is None else part for part in aux[:2])
        return Slice(start, size, aux[2])


tree.register_pytree_node_class(Slice)


def ds(start: Any, size: Any = None, stride: int | None = None) -> slice | Slice:
    """A part of an axis by its start, which may be traced, and its size.

    `ds(None)` is `:`, `ds(n)` the first `n` elements, `ds(i, n)` is `i:i+n` and `ds(i, n, s)` every `s`-th of
    `i:i+s*n`. Where it does not fit, reading takes the nearest window that does, and writing is dropped.

    >>> x = jnp.arange(10)
    >>> jit(lambda i: x[anima.ds(i, 3)])(4)
    Array([4, 5, 6], dtype=int32)
    """
    if start is None:
        return slice(None)
    if stride is not None and stride < 0:
        raise ValueError(f"ds: the stride must not be negative, got {stride}.")
    start, size = (0, start) if size is None else (start, size)
    return Slice(start, size, 1 if stride is None else stride)
