"""Dtypes as NumPy spells them (`anima.numpy.float32`), their limits, and constants.

    >>> jnp.float32(1.5), jnp.finfo(jnp.bfloat16).eps
    (Array(1.5, dtype=float32), 0.0078125)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anima.config import enable_x64
from anima.core import dtypes
from anima.core.array import Array
from anima.core.dtypes import ScalarType, finfo, iinfo, isdtype, issubdtype, make_scalar_type
from anima.numpy.creation import array, astype


def _make(x: Any, dtype: np.dtype) -> Array:
    """What calling a dtype makes: an array of it."""
    dtype = dtypes.canonicalize_dtype(dtype)
    if type(x) in (bool, int, float, complex):
        return array(x, dtype)
    try:
        found = array(x)
    except TypeError:  # texts, which need a dtype
        return array(x, dtype)
    return astype(found, dtype)


def _type(name: str) -> ScalarType:
    return make_scalar_type(dtypes.np_dtype(name), _make)


bool_ = _type("bool")
int2, int4 = _type("int2"), _type("int4")
uint2, uint4 = _type("uint2"), _type("uint4")
int8, int16, int32, int64 = (_type(f"int{n}") for n in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (_type(f"uint{n}") for n in (8, 16, 32, 64))
float16, float32, float64, bfloat16 = (_type(n) for n in ("float16", "float32", "float64", "bfloat16"))
float8_e3m4, float8_e4m3, float8_e8m0fnu = (_type(f"float8_{n}") for n in ("e3m4", "e4m3", "e8m0fnu"))
float8_e4m3fn, float8_e4m3fnuz = (_type(f"float8_{n}") for n in ("e4m3fn", "e4m3fnuz"))
float8_e4m3b11fnuz = _type("float8_e4m3b11fnuz")
float8_e5m2, float8_e5m2fnuz = (_type(f"float8_{n}") for n in ("e5m2", "e5m2fnuz"))
float4_e2m1fn = _type("float4_e2m1fn")
float6_e2m3fn = _type("float6_e2m3fn")
float6_e3m2fn = _type("float6_e3m2fn")
complex64, complex128 = _type("complex64"), _type("complex128")
int1, uint1 = _type("int1"), _type("uint1")

single, double, float_ = float32, float64, float64
csingle, cdouble, complex_ = complex64, complex128, complex128
int_, uint = int64, uint64

dtype = np.dtype
generic, number, integer, signedinteger, unsignedinteger = (
    np.generic, np.number, np.integer, np.signedinteger, np.unsignedinteger)
inexact, floating, complexfloating = np.inexact, np.floating, np.complexfloating
flexible, character, object_ = np.flexible, np.character, np.object_

e, pi, euler_gamma, inf, nan, newaxis = np.e, np.pi, np.euler_gamma, np.inf, np.nan, None

ComplexWarning = np.exceptions.ComplexWarning


def result_type(*args: Any) -> Any:
    """The dtype that values and dtypes promote to together.

    >>> jnp.result_type(jnp.int32, 1.5)
    dtype('float32')
    """
    return dtypes.result_type(*args)


def can_cast(from_: Any, to: Any, casting: str = "safe") -> bool:
    """Whether NumPy would cast between the dtypes under the rule `casting`."""
    return np.can_cast(dtypes.np_dtype(from_), dtypes.np_dtype(to), casting=casting)  # type: ignore[arg-type]


def promote_types(a: Any, b: Any) -> Any:
    """The dtype that the dtypes `a` and `b` promote to; `int`, `float`, `complex` give way to any of their kind.

    64-bit types are told as they are, whether or not `enable_x64` allows arrays of them.
    """
    wide = any(t in (int, float, complex) or dtypes.canonicalize_dtype(np.dtype(t)) != np.dtype(t) for t in (a, b))
    with enable_x64(enable_x64.value or wide):
        return dtypes.promote_types(a, b)


def isscalar(element: Any) -> bool:
    """Whether `element` is a number: Python's, NumPy's, or an array (NumPy's, too) without dimensions."""
    if isinstance(element, np.ndarray):
        return element.ndim == 0
    if isinstance(element, Array) or hasattr(element, "__jax_array__"):
        return array(element, copy=False).ndim == 0
    return np.isscalar(element)


__all__ = [
    "ComplexWarning",
    "bfloat16",
    "bool_",
    "can_cast",
    "cdouble",
    "character",
    "complex64",
    "complex128",
    "complex_",
    "complexfloating",
    "csingle",
    "double",
    "dtype",
    "e",
    "euler_gamma",
    "finfo",
    "flexible",
    "float4_e2m1fn",
    "float6_e2m3fn",
    "float6_e3m2fn",
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float16",
    "float32",
    "float64",
    "float_",
    "floating",
    "generic",
    "iinfo",
    "inexact",
    "inf",
    "int1",
    "int2",
    "int4",
    "int8",
    "int16",
    "int32",
    "int64",
    "int_",
    "integer",
    "isdtype",
    "isscalar",
    "issubdtype",
    "nan",
    "newaxis",
    "number",
    "object_",
    "pi",
    "promote_types",
    "result_type",
    "signedinteger",
    "single",
    "uint",
    "uint1",
    "uint2",
    "uint4",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "unsignedinteger",
]
