"""What the Python array API standard asks a namespace about itself.

    >>> jnp.__array_namespace_info__().default_dtypes()["integral"]
    dtype('int32')
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anima.config import enable_x64
from anima.core import dtypes
from anima.core.device import Device, devices

_KINDS = {
    "bool": ("bool",), "signed integer": ("int8", "int16", "int32", "int64"),
    "unsigned integer": ("uint8", "uint16", "uint32", "uint64"), "real floating": ("float32", "float64"),
    "complex floating": ("complex64", "complex128")}
_GROUPS = {
    "integral": ("signed integer", "unsigned integer"),
    "numeric": ("signed integer", "unsigned integer", "real floating", "complex floating")}


class ArrayNamespaceInfo:
    """What the namespace can do, on which devices, with which element types: while `enable_x64` is off, those of up to
    32 bits (of each part of a complex number)."""

    def capabilities(self) -> dict[str, Any]:
        """Whether masks can be indices and shapes depend on values (not while tracing); the highest rank."""
        return {"boolean indexing": False, "data-dependent shapes": False, "max dimensions": 64}

    def default_device(self) -> Device | None:
        """Where arrays go by default; None says that they may move."""
        return None

    def devices(self) -> list[Device | None]:
        """What may be given as `device`."""
        return [None, *devices()]

    def default_dtypes(self, *, device: Any = None) -> dict[str, np.dtype]:
        """The element types of each kind that numbers get."""
        real = dtypes.default_float()
        return {"real floating": real, "complex floating": dtypes.canonicalize_dtype(np.complex128),
                "integral": dtypes.default_int(), "indexing": dtypes.default_int()}

    def dtypes(self, *, device: Any = None, kind: str | tuple[str, ...] | None = None) -> dict[str, np.dtype]:
        """The element types of a kind of the standard, of several, or all; KeyError for an unknown kind."""
        wanted = ("bool", "numeric") if kind is None else kind if isinstance(kind, tuple) else (kind,)
        names = [name for k in wanted for part in _GROUPS.get(k, (k,)) for name in _KINDS[part]]
        found = {name: np.dtype(name) for name in names}
        return {name: d for name, d in found.items() if enable_x64.value or dtypes.canonicalize_dtype(d) == d}


def __array_namespace_info__() -> ArrayNamespaceInfo:
    """The answers of `anima.numpy` to what the Python array API standard asks.

    >>> jnp.__array_namespace_info__().dtypes(kind="real floating")
    {'float32': dtype('float32')}
    """
    return ArrayNamespaceInfo()
