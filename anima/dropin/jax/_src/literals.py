"""`jax._src.literals`: Python numbers with an element type, which libraries ask about and nothing here makes."""


class TypedInt(int):
    """An integer with an element type."""


class TypedFloat(float):
    """A floating-point number with an element type."""


class TypedComplex(complex):
    """A complex number with an element type."""
