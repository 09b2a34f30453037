"""`jax._src.nn.initializers`: the sizes behind scaled weights, and types; else the public functions."""

from typing import Any

from anima.nn.initializers import Initializer as Initializer, _fans
from anima.typing import ArrayLike

__all__ = ["DTypeLikeInexact", "Initializer", "RealNumeric", "_compute_fans"]

DTypeLikeInexact = Any
RealNumeric = ArrayLike


def _compute_fans(shape: Any, in_axis: Any = -2, out_axis: Any = -1, batch_axis: Any = ()) -> tuple[float, float]:
    """The numbers of inputs and of outputs of a unit of weights of a shape."""
    return _fans(shape, in_axis, out_axis, batch_axis)
