"""What rules defined with `symbolic_zeros=True` see of tangents that are zero, and of arguments of `fwd`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anima.core.avals import tangent_aval
from anima.core.primitive import Zero
from anima.core.trace import aval_of
from anima.ops.broadcast import instantiate
from anima.tree import map as map_tree
from anima.util import record


class SymbolicZero(Zero):
    """A tangent or cotangent that is zero, as rules defined with `symbolic_zeros=True` see it.

    It has the `shape` and `dtype` of what it stands for, and rules may return it.
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.aval, name)

    @staticmethod
    def from_primal_value(val: Any) -> SymbolicZero:
        """The zero tangent of a value."""
        return SymbolicZero(tangent_aval(aval_of(val)))


@record
class CustomVJPPrimal:
    """An argument as a `fwd` rule defined with `symbolic_zeros=True` sees it: its value, and whether a
    gradient with respect to it is wanted."""

    value: Any
    perturbed: bool


def custom_vjp_primal_tree_values(tree: Any) -> Any:
    """The values in a pytree of `CustomVJPPrimal`s; TypeError for other leaves."""
    def value(leaf: Any) -> Any:
        if type(leaf) is not CustomVJPPrimal:
            raise TypeError(f"unexpected leaf type {type(leaf)}")
        return leaf.value

    return map_tree(value, tree)


def tangents_for_user(tangents: Sequence[Any], symbolic_zeros: bool) -> list[Any]:
    """Tangents or cotangents as a user's rule takes them."""
    return [instantiate(t) if not symbolic_zeros else SymbolicZero(t.aval) if isinstance(t, Zero) else t
            for t in tangents]
