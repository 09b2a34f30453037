"""`jax._src.interpreters.mlir`: operations that lowering rules are made of; else the public functions.

Rules get arrays, as functions that are traced do, and so they may compute with these.
"""

from collections.abc import Sequence
from typing import Any

from anima import lax

__all__ = ["broadcast_in_dim", "compare_hlo", "full_like_aval"]


def full_like_aval(ctx: Any, value: Any, aval: Any) -> Any:
    """An array of one number, of a type."""
    return lax.full(aval.shape, value, aval.dtype)


def compare_hlo(x: Any, y: Any, direction: str, comparison_type: str | None = None) -> Any:
    """Where `x` stands to `y` as one of EQ, NE, GE, GT, LE and LT says."""
    return getattr(lax, direction.lower())(x, y)


def broadcast_in_dim(ctx: Any, op: Any, aval_out: Any, *, broadcast_dimensions: Sequence[int],
                     sharding: Any = None) -> Any:
    """An array of a type, along whose dimensions those of `op` lie as told."""
    return lax.broadcast_in_dim(op, aval_out.shape, tuple(broadcast_dimensions))
