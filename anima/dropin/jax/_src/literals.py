"""`jax._src.literals`: numbers and arrays with an element type, which libraries ask about and nothing here makes."""

from typing import Any

import numpy as np


class _Typed:
    """A number with its element type."""

    dtype: Any

    def __new__(cls, value: Any, dtype: Any) -> Any:
        number = super().__new__(cls, value)  # type: ignore[call-arg]
        number.dtype = dtype
        return number


class TypedInt(_Typed, int):
    """An integer with an element type."""


class TypedFloat(_Typed, float):
    """A floating-point number with an element type."""


class TypedComplex(_Typed, complex):
    """A complex number with an element type."""


class TypedNdArray(np.ndarray):
    """An array of NumPy's that is as a constant of a program."""
