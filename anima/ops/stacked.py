"""Operations on the last dimensions of their operands, such as those on matrices: the dimensions before count a stack.

    class Sylvester(Stacked): ...       # vmap of it: the same operation, on operands with one more dimension in front
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anima.core.primitive import Primitive
from anima.ops.shape import batch_at_front


class Stacked(Primitive):
    """An operation on the last dimensions of all operands, which are stacked alike."""

    def batch(self, size: int, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
        out = self.bind(*(batch_at_front(x, d, size) for x, d in zip(args, dims, strict=True)), **params)
        return out, [0] * len(out) if self.multiple_results else 0
