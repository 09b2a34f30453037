"""Two arrays that are to be cut over devices in the same way."""

from __future__ import annotations

from typing import Any

from anima import tree
from anima.core.primitive import ShardingRule
from anima.core.sharding_rules import dimensions
from anima.core.trace import aval_of
from anima.names import access
from anima.ops.broadcast import as_array
from anima.transforms.composed import Composed


class _Alike(Composed):
    """Both operands, whose dimensions go together."""

    linear = True

    def sharding_rule(self, avals: Any, outs: Any, **params: Any) -> ShardingRule:
        return dimensions(avals, outs)


shard_alike_p = _Alike("shard_alike", lambda x, y: [x, y], multiple_results=True)


def shard_alike(x: Any, y: Any) -> tuple[Any, Any]:
    """Two pytrees of arrays of equal shapes as they are, each leaf cut as that of the other is.

    Raises:
      ValueError: for pytrees of different structures, or arrays of different shapes.

    >>> shard_alike(jnp.ones(2), jnp.zeros(2))
    (Array([1., 1.], dtype=float32), Array([0., 0.], dtype=float32))
    """
    xs, x_tree = tree.flatten(x)
    ys, y_tree = tree.flatten(y)
    if x_tree != y_tree:
        raise ValueError("Trees should match. Got tree structure of first argument: "
                         f"{x_tree}, of the second: {y_tree}")
    pairs = []
    for a, b in zip(map(as_array, xs), map(as_array, ys), strict=True):
        if aval_of(a).shape != aval_of(b).shape:
            raise ValueError("The leaves shapes of `x` and `y` should match. Got `x` leaf shape: "
                             f"{aval_of(a).shape} and `y` leaf shape: {aval_of(b).shape}.")
        pairs.append(shard_alike_p.bind(a, b))
    return tree.unflatten(x_tree, [a for a, _ in pairs]), tree.unflatten(y_tree, [b for _, b in pairs])


globals().update(access(__name__, globals()))
