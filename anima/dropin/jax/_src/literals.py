"""`jax._src.literals`: Python numbers with an element type, which libraries ask about and nothing here makes."""

from typing import Any


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
