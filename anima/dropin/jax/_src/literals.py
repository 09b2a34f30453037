"""`jax._src.literals`: numbers with an element type, which interpreters are given; and arrays, which nothing makes."""

import numpy as np

from anima.core.literals import (
    TypedComplex as TypedComplex,
    TypedFloat as TypedFloat,
    TypedInt as TypedInt,
)


class TypedNdArray(np.ndarray):
    """An array of NumPy's that is as a constant of a program."""
