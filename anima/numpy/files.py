"""Arrays in files, and as text; what cannot be pure is refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np

from anima.core.array import Array
from anima.numpy.creation import asarray

save, savez = np.save, np.savez
set_printoptions, get_printoptions, printoptions = np.set_printoptions, np.get_printoptions, np.printoptions


def load(file: Any, *args: Any, **kwargs: Any) -> Any:
    """The array in a .npy file (of a .npz file, NumPy's mapping of names to arrays)."""
    out = np.load(file, *args, **kwargs)
    return asarray(out) if isinstance(out, np.ndarray) else out


def array_repr(arr: Any, max_line_width: int | None = None, precision: int | None = None,
               suppress_small: bool | None = None) -> str:
    """The text of an array with its type."""
    if isinstance(arr, Array):
        return repr(arr)
    return np.array_repr(np.asarray(arr), max_line_width, precision, suppress_small)


def array_str(a: Any, max_line_width: int | None = None, precision: int | None = None,
              suppress_small: bool | None = None) -> str:
    """The text of an array's elements."""
    return np.array_str(np.asarray(a), max_line_width, precision, suppress_small)


def _refused(name: str) -> Any:
    def function(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"anima.numpy.{name}() is not implemented because it may be non-pure and thus unsafe "
                                  "for use with transformations. Consider using "
                                  f"anima.numpy.asarray(numpy.{name}(...)) instead.")

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Not implemented, as it may be impure: use anima.numpy.asarray(numpy.{name}(...))."
    return function


fromfile, fromiter = _refused("fromfile"), _refused("fromiter")
