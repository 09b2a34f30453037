"""`jax._src.random`: names of types; else the public functions."""

from anima.dropin.jax._src.typing import Shape as Shape
from anima.typing import ArrayLike, DTypeLike

RealArray = ArrayLike
DTypeLikeFloat = DTypeLike
__all__ = ["DTypeLikeFloat", "RealArray", "Shape"]
