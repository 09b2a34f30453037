"""Types for annotations: what functions take for an array, and for an element type."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, Union

import numpy as np

from anima.core.array import Array
from anima.names import access


class SupportsDType(Protocol):
    """Anything with a `dtype`."""

    @property
    def dtype(self) -> np.dtype: ...


ArrayLike: TypeAlias = Union[Array, np.ndarray, np.bool_, np.number, bool, int, float, complex]
DTypeLike: TypeAlias = Union[str, type[Any], np.dtype, SupportsDType]

globals().update(access(__name__, globals()))
