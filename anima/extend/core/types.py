"""Types of values as programs know them: what stands for arrays, for elements of batches, for effects.

    mapped_aval(3, 0, ShapedArray((3, 2), float32))   ->   f32[2]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from anima import errors
from anima.core import dtypes
from anima.core.array import Array
from anima.core.avals import AbstractValue, ShapedArray, canonicalize_axis, tangent_aval
from anima.core.trace import Tracer, aval_of

array_types: set[type] = {np.ndarray, Array, *(d.type for d in dtypes.ALL_DTYPES)}


class Effect:
    """What an application does beyond its results: the base of classes of your own, which say what by their type."""


Effects = set[Effect]
no_effects: frozenset[Effect] = frozenset()


class EffectTypeSet:
    """Classes of effects."""

    def __init__(self) -> None:
        self._types: list[type] = []

    def add_type(self, effect_type: type) -> None:
        """Has effects of a class, and of its subclasses, belong to it."""
        self._types.append(effect_type)

    def contains(self, effect: Any) -> bool:
        """Whether an effect belongs to it."""
        return isinstance(effect, tuple(self._types))

    def filter_in(self, effects: Iterable[Any]) -> list[Any]:
        """The effects that belong to it."""
        return [e for e in effects if self.contains(e)]

    def filter_not_in(self, effects: Iterable[Any]) -> list[Any]:
        """The effects that do not."""
        return [e for e in effects if not self.contains(e)]


class AbstractToken(AbstractValue):
    """The type of a token."""

    __slots__ = ()

    def str_short(self) -> str:
        return "Tok"


class Token:
    """Stands for the order of effects: `buf` is what has to be computed first."""

    def __init__(self, buf: Any) -> None:
        self.buf = buf

    def block_until_ready(self) -> Token:
        self.buf.block_until_ready()
        return self


def mapped_aval(size: int, axis: int | None, aval: ShapedArray) -> ShapedArray:
    """The type of one element of a stack of `size` along `axis`; None: it is the same for all."""
    if axis is None:
        return aval
    if aval.shape[axis] != size:
        raise ValueError(f"axis {axis} of {aval.str_short()} does not have size {size}")
    axis = canonicalize_axis(axis, aval.ndim)
    return aval.update(shape=aval.shape[:axis] + aval.shape[axis + 1:])


def unmapped_aval(size: int, axis: int | None, aval: ShapedArray, explicit_mesh_axis: None = None) -> ShapedArray:
    """The type of a stack of `size` elements along `axis`; None: they are all the same."""
    if axis is None:
        return aval
    axis = canonicalize_axis(axis, aval.ndim + 1)
    return aval.update(shape=(*aval.shape[:axis], size, *aval.shape[axis:]))


def primal_dtype_to_tangent_dtype(primal_dtype: Any) -> Any:
    """The dtype of tangents: the same for floats, `float0` for what does not move."""
    return tangent_aval(ShapedArray((), np.dtype(primal_dtype))).dtype


def valid_jaxtype(x: Any) -> bool:
    """Whether operations accept `x`: an array, a tracer, a NumPy value or a Python number."""
    try:
        aval_of(x)
    except (TypeError, ValueError):
        return False
    return True


def concrete_or_error(force: Callable[[Any], Any] | None, val: Any, context: str = "") -> Any:
    """`force(val)`; ConcretizationTypeError, which ends with `context`, for a value that is being traced.

    >>> concrete_or_error(int, 3.0)
    3
    """
    if isinstance(val, Tracer):
        known = val.concrete()
        if known is None:
            raise errors.ConcretizationTypeError(val, context, errors.KNOWN_VALUE)
        val = known
    return val if force is None else force(val)
