"""`jax._src.numpy.util`: operands brought to one element type."""

from typing import Any

import numpy as np

from anima.core.array import Array
from anima.numpy import promote, result_type

__all__ = ["promote_dtypes", "promote_dtypes_complex", "promote_dtypes_inexact"]


def promote_dtypes(*args: Any) -> list[Array]:
    """The operands as arrays of their common dtype; shapes as they are."""
    return promote.promote_dtypes("promote_dtypes", *args)


def promote_dtypes_inexact(*args: Any) -> list[Array]:
    """The operands as arrays of their common floating or complex dtype; shapes as they are."""
    return promote.promote_dtypes_inexact("promote_dtypes_inexact", *args)


def promote_dtypes_complex(*args: Any) -> list[Array]:
    """The operands as arrays of the complex dtype that can hold them all; shapes as they are."""
    found = promote_dtypes_inexact(*args)
    return [x.astype(result_type(x, np.complex64)) for x in found]
