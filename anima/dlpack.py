"""Exchanging arrays with other libraries without copying, by DLPack.

    >>> from_dlpack(np.array([1, 2], np.int32))
    Array([1, 2], dtype=int32)
"""

from __future__ import annotations

from typing import Any

from anima import errors as _errors
from anima.core.array import Array
from anima.core.dlpack import is_supported_dtype as is_supported_dtype
from anima.numpy import files as _files


def from_dlpack(external_array: Any, device: Any = None, copy: bool | None = None) -> Array:
    """`anima.numpy.from_dlpack`: an array over the memory of any object that exports DLPack.

    >>> from_dlpack(np.arange(3, dtype=np.float32))
    Array([0., 1., 2.], dtype=float32)
    """
    return _files.from_dlpack(external_array, device=device, copy=copy)


globals().update(_errors.public_face(__name__, globals()))  # errors show the user's frames only
