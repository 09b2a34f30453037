"""Functions that say themselves what `vmap` makes of them.

    f = custom_vmap(f);  f.def_vmap(lambda axis_size, in_batched, *args: (outs, outs_batched))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from anima import names as _names, tree
from anima.lax.mapping import map as _map
from anima.transforms.custom_vmap import custom_vmap as custom_vmap


def sequential_vmap(f: Callable[..., Any]) -> custom_vmap:
    """`f`, with a `vmap` that applies it to one element after the other, in a loop.

    >>> vmap(sequential_vmap(lambda x, y: x + y), (0, None))(jnp.arange(3), 10)
    Array([10, 11, 12], dtype=int32)
    """
    mapped = custom_vmap(f)

    @mapped.def_vmap
    def rule(axis_size: int, in_batched: Sequence[Any], *args: Any) -> tuple[Any, Any]:
        leaves, in_tree = tree.flatten(args)
        batched = tree.leaves(in_batched)

        def one(stacked: Sequence[Any]) -> Any:
            given = iter(stacked)
            return mapped(*tree.unflatten(in_tree, [next(given) if b else x
                                                    for x, b in zip(leaves, batched, strict=True)]))

        outs = _map(one, [x for x, b in zip(leaves, batched, strict=True) if b])
        return outs, tree.map(lambda _: True, outs)

    return mapped


globals().update(_names.access(__name__, globals()))
