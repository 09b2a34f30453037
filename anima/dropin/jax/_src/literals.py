"""`jax._src.literals`: Python numbers with an element type, which libraries ask about and nothing here makes."""

from typing import Any


class TypedInt(int):
    """An integer with an element type."""

    def __new__(cls, value: int, dtype: Any) -> "TypedInt":
        number = super().__new__(cls, value)
        number.dtype = dtype  # type: ignore[attr-defined]
        return number


class TypedFloat(float):
    """A floating-point number with an element type."""

    def __new__(cls, value: float, dtype: Any) -> "TypedFloat":
        number = super().__new__(cls, value)
        number.dtype = dtype  # type: ignore[attr-defined]
        return number


class TypedComplex(complex):
    """A complex number with an element type."""

    def __new__(cls, value: complex, dtype: Any) -> "TypedComplex":
        number = super().__new__(cls, value)
        number.dtype = dtype  # type: ignore[attr-defined]
        return number
