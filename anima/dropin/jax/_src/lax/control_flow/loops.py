"""`jax._src.lax.control_flow.loops`: how `map` cuts what it maps into batches; else the public functions."""

from typing import Any

from anima import tree

__all__ = ["_batch_and_remainder"]


def _batch_and_remainder(x: Any, batch_size: int) -> tuple[Any, Any]:
    """The rows of all leaves in whole batches, stacked, and those left over; None where there are none of them."""
    leaves = tree.leaves(x)
    if not leaves:
        return x, None
    count, rest = divmod(leaves[0].shape[0], batch_size)
    whole = count * batch_size
    batches = tree.map(lambda y: y[:whole].reshape(count, batch_size, *y.shape[1:]), x) if count else None
    return batches, tree.map(lambda y: y[whole:], x) if rest or not count else None
