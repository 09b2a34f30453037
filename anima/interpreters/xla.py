"""Applying single operations as compiled code, and values of other types."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from anima.api.jit import jit
from anima.core import dtypes
from anima.core.primitive import Primitive
from anima.extend.backend import Backend as Backend
from anima.names import access
from anima.util import cleared


def _canonicalize(x: Any) -> np.ndarray:
    """A NumPy value, of a type of numbers that programs compute with now."""
    return np.asarray(x, dtypes.canonicalize_dtype(x.dtype))


# By type. Other libraries add theirs; values with a `dtype` and an `__array__` method are arrays without an entry.
canonicalize_dtype_handlers: dict[type, Callable[[Any], Any]] = {
    np.ndarray: _canonicalize, **dict.fromkeys((d.type for d in dtypes.ALL_DTYPES), _canonicalize)}


def apply_primitive(prim: Primitive, *args: Any, **params: Any) -> Any:
    """The results of an operation, as a compiled program of this one operation gives them."""
    try:
        compiled = _compiled(prim, tuple(sorted(params.items())))
    except TypeError:  # parameters without a hash
        compiled = jit(partial(prim.bind, **params))
    return compiled(*args)


@functools.lru_cache(maxsize=1024)
def _compiled(prim: Primitive, params: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
    return jit(partial(prim.bind, **dict(params)))


cleared(_compiled.cache_clear)

globals().update(access(__name__, globals()))
