"""`jax._src.typing`: types of annotations, of which JAX has a few more than are public."""

from collections.abc import Sequence
from types import EllipsisType
from typing import Any, Protocol, runtime_checkable

import numpy as np

from anima import Array as Array
from anima.typing import ArrayLike as ArrayLike, DTypeLike as DTypeLike, SupportsDType as SupportsDType

DType = np.dtype
ExtendedDType = Any
DimSize = int | Any  # symbolic ones too
Shape = Sequence[DimSize]
AnyInt = int | np.integer
StaticScalar = np.bool_ | np.number | bool | int | float | complex
StaticIndex = AnyInt | slice | EllipsisType
Index = StaticIndex | None | Sequence[AnyInt] | Array | np.ndarray


class DeprecatedArg:
    """The default of an argument that is on its way out."""


class SupportsShape(Protocol):
    """Anything with a `shape`."""

    @property
    def shape(self) -> tuple[int, ...]: ...


@runtime_checkable
class DuckTypedArray(Protocol):
    """Anything with the type of an array."""

    @property
    def dtype(self) -> np.dtype: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
