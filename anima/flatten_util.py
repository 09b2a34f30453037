"""A pytree of arrays as one vector, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anima import names as _names, tree
from anima.core import dtypes
from anima.core.avals import ShapedArray
from anima.core.trace import aval_of
from anima.ops.elementwise import convert
from anima.ops.shape import concatenate, reshape, split, zeros
from anima.util import record


def ravel_pytree(pytree: Any) -> tuple[Any, Callable[[Any], Any]]:
    """All leaves as one vector, of the dtype they promote to, and the function that takes it apart again.

    Where all leaves have one dtype, vectors of any other may be taken apart too.

    Raises:
      ValueError: where the vector given back has another size.
      TypeError: where it has another dtype, and the leaves have several.

    >>> flat, unravel = ravel_pytree({"a": jnp.ones(2), "b": 3.0})
    >>> unravel(2 * flat)
    {'a': Array([2., 2.], dtype=float32), 'b': Array(6., dtype=float32)}
    """
    leaves, treedef = tree.flatten(pytree)
    if not leaves:
        flat = zeros(ShapedArray((0,), dtypes.default_float()))
        return flat, Unravel(treedef, (), flat.dtype, False)
    avals = list(map(aval_of, leaves))
    dtype, _ = dtypes.lattice_result_type(*((a.dtype, False) for a in avals))
    mixed = any(a.dtype != dtype for a in avals)
    weak = not mixed and all(a.weak_type for a in avals)
    flat = concatenate([reshape(convert(x, dtype, weak), (a.size,)) for x, a in zip(leaves, avals, strict=True)], 0)
    return flat, Unravel(treedef, tuple(ShapedArray(a.shape, a.dtype) for a in avals), dtype, mixed)


@record
class Unravel:
    """Takes a vector apart into the leaves of a structure. Those of equal structures and types are equal."""

    treedef: tree.PyTreeDef
    avals: tuple[ShapedArray, ...]
    dtype: Any
    mixed: bool

    def __call__(self, vector: Any) -> Any:
        if not self.avals:
            return tree.unflatten(self.treedef, [])
        given = aval_of(vector)
        sizes = [a.size for a in self.avals]
        if given.shape != (sum(sizes),):
            raise ValueError(f"Sum of sizes {sum(sizes)} must be equal to dimension 0 of the operand shape "
                             f"{list(given.shape)}")
        if self.mixed and given.dtype != self.dtype:
            raise TypeError(f"unravel function given array of dtype {dtypes.name(given.dtype)}, but expected dtype "
                            f"{dtypes.name(self.dtype)}")
        parts = [reshape(p, a.shape) for p, a in zip(split(vector, sizes), self.avals, strict=True)]
        return tree.unflatten(self.treedef, [convert(p, a.dtype) if self.mixed else p
                                             for p, a in zip(parts, self.avals, strict=True)])


globals().update(_names.access(__name__, globals()))
