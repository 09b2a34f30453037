"""Mutable references to arrays.

    r = anima.new_ref(x); r[0] += 1.0; y = anima.freeze(r)
"""

from typing import Any

from anima import errors as _errors
from anima.api.refs import empty_ref as empty_ref, free_ref as free_ref, freeze as freeze, new_ref as new_ref
from anima.core.array import Array as _Array, operator as _operator
from anima.core.refs import AbstractRef as AbstractRef, Ref as Ref


def get(ref: Any, idx: Any = None) -> _Array:
    """The elements of a reference at a NumPy index; all of them for None.

    >>> get(new_ref(jnp.arange(3)), 1)
    Array(1, dtype=int32)
    """
    return _operator("ref_get")(ref, idx)


def set(ref: Any, idx: Any, value: Any) -> None:
    """Puts a value at a NumPy index of a reference.

    The value is broadcast to the shape there; Python numbers take the element type of the reference.

    Raises:
      ValueError: for a value of another element type or of a shape that does not fit.

    >>> r = new_ref(jnp.arange(3))
    >>> set(r, 1, 7)
    >>> r
    Ref([0, 7, 2], dtype=int32)
    """
    _operator("ref_set")(ref, idx, value)


def swap(ref: Any, idx: Any, value: Any, _function_name: str = "ref_swap") -> _Array:
    """As `set`; gives what was there before.

    >>> swap(new_ref(jnp.arange(3)), 2, 7)
    Array(2, dtype=int32)
    """
    return _operator("ref_swap")(ref, idx, value, _function_name)


def addupdate(ref: Any, idx: Any, x: Any) -> None:
    """Adds a value to the elements at a NumPy index of a reference; repeated indices add up.

    >>> r = new_ref(jnp.zeros(2))
    >>> addupdate(r, jnp.array([1, 1]), jnp.ones(2))
    >>> r
    Ref([0., 2.], dtype=float32)
    """
    _operator("ref_addupdate")(ref, idx, x)


globals().update(_errors.public_face(__name__, globals()))
