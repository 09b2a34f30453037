"""`jax._src.typing`: the public types of annotations."""

from anima import Array as Array
from anima.typing import ArrayLike as ArrayLike, DTypeLike as DTypeLike
