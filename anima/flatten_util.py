"""A pytree of arrays as one vector, and back."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

from anima import tree
from anima.core import dtypes
from anima.core.avals import ShapedArray
from anima.core.trace import aval_of
from anima.ops.elementwise import convert
from anima.ops.shape import concatenate, reshape, split, zeros


def ravel_pytree(pytree: Any) -> tuple[Any, Callable[[Any], Any]]:
    """All leaves as one vector, of the dtype they promote to, and the function that takes it apart again.

    Raises:
      ValueError: where the vector given back has another size.

    >>> flat, unravel = ravel_pytree({"a": jnp.ones(2), "b": 3.0})
    >>> unravel(2 * flat)
    {'a': Array([2., 2.], dtype=float32), 'b': Array(6., dtype=float32)}
    """
    leaves, treedef = tree.flatten(pytree)
    if not leaves:
        return zeros(ShapedArray((0,), dtypes.default_float())), lambda flat: tree.unflatten(treedef, [])
    avals = list(map(aval_of, leaves))
    dtype, _ = dtypes.lattice_result_type(*((a.dtype, a.weak_type) for a in avals))
    flat = concatenate([reshape(convert(x, dtype), (a.size,)) for x, a in zip(leaves, avals, strict=True)], 0)
    *_, total = accumulate(a.size for a in avals)

    def unravel(vector: Any) -> Any:
        shape = aval_of(vector).shape
        if shape != (total,):
            raise ValueError(f"Sum of sizes {total} must be equal to dimension 0 of the operand shape {list(shape)}")
        parts = split(vector, [a.size for a in avals])
        return tree.unflatten(treedef, [convert(reshape(p, a.shape), a.dtype)
                                        for p, a in zip(parts, avals, strict=True)])

    return flat, unravel

