"""`jax._src.lax.lax`: numbers beside arrays, and conversions; else the public functions."""

from typing import Any

import numpy as np

from anima.core.array import Array
from anima.core.dtypes import canonicalize_dtype, dtype_of, is_weakly_typed, scalar_type_of
from anima.ops.contract import canonicalize_precision as canonicalize_precision
from anima.ops.elementwise import convert

__all__ = ["_complex_basetype", "_const", "_convert_element_type", "canonicalize_precision"]


def _complex_basetype(dtype: Any) -> np.dtype:
    """The type of the parts of numbers of a type: of real ones, their own."""
    return np.finfo(dtype).dtype


def _const(example: Any, val: Any) -> Any:
    """A number of the element type of `example`: beside a number of Python's, one of Python's."""
    if isinstance(example, (bool, int, float, complex)):
        return scalar_type_of(example)(val)
    return np.array(val, dtype_of(example))


def _convert_element_type(operand: Any, new_dtype: Any = None, weak_type: bool = False, sharding: Any = None) -> Array:
    """`operand` as an array of a dtype and a weak type; of its own dtype without one."""
    dtype = dtype_of(operand) if new_dtype is None else canonicalize_dtype(new_dtype)
    return convert(operand, dtype, weak_type and (new_dtype is not None or is_weakly_typed(operand)))
