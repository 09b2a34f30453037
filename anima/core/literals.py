"""Numbers of Python's that know the element type that they have beside arrays."""

from __future__ import annotations

from typing import Any


class TypedNumber:
    """A number of Python's with an element type."""

    dtype: Any

    def __new__(cls, value: Any, dtype: Any) -> Any:
        number = super().__new__(cls, value)  # type: ignore[call-arg]
        number.dtype = dtype
        return number

    def __reduce__(self) -> Any:
        return type(self), (+self, self.dtype)  # type: ignore[operator]


class TypedInt(TypedNumber, int):
    """An integer with an element type."""


class TypedFloat(TypedNumber, float):
    """A floating-point number with an element type."""


class TypedComplex(TypedNumber, complex):
    """A complex number with an element type."""


_KINDS = {"i": TypedInt, "u": TypedInt, "c": TypedComplex}


def typed(value: Any, dtype: Any) -> Any:
    """A number of Python's with this element type."""
    return _KINDS.get(dtype.kind, TypedFloat)(value, dtype)
