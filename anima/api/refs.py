"""Making and ending mutable references to arrays: `new_ref`, `empty_ref`, `freeze`, `free_ref`."""

from __future__ import annotations

from typing import Any

from anima.api.stages import type_of
from anima.core.array import Array
from anima.core.refs import AbstractRef, Ref
from anima.core.trace import is_array_like
from anima.ops.broadcast import as_array
from anima.transforms.refs import empty_ref_p, free_p, freeze_p, new_ref_p


def new_ref(init_val: Any, *, memory_space: Any = None, kind: Any = None) -> Ref:
    """A mutable reference to a copy of an array.

    `r[i]` reads, `r[i] = v` writes, `r[i] += v` and `r.addupdate(v, i)` add; `r[...]` is the whole. Outside of `jit`
    and in compiled code, loops included, this is done in place. A reference may be passed to transformed functions or
    closed over by them, but not returned by them.

    Args:
      init_val: an array or a number.
      memory_space, kind: None; there is one memory.

    Raises:
      TypeError: for what is no array.
      NotImplementedError: for another memory space.

    >>> r = new_ref(jnp.zeros(3))
    >>> r[1] += 2.0
    >>> r
    Ref([0., 2., 0.], dtype=float32)
    """
    _check_memory("new_ref", memory_space)
    if not is_array_like(init_val):
        raise TypeError(f"Error interpreting argument to new_ref as an array. The problematic value is of type "
                        f"{type(init_val)} and was passed to new_ref at position 0.")
    return new_ref_p.bind(as_array(init_val), memory_space=memory_space, kind=kind)


def empty_ref(ty: Any, memory_space: Any = None) -> Ref:
    """A mutable reference to an array of a type (of anything with a shape and a dtype): zeros.

    >>> empty_ref(anima.ShapeDtypeStruct((2,), jnp.int32))
    Ref([0, 0], dtype=int32)
    """
    _check_memory("empty_ref", memory_space)
    if not (hasattr(ty, "shape") and hasattr(ty, "dtype")):
        raise TypeError(f"Cannot interpret value of type {type(ty)} as an abstract array; it does not have a dtype "
                        "attribute")
    aval: Any = type_of(ty)
    aval = aval.inner_aval if isinstance(aval, AbstractRef) else aval
    return empty_ref_p.bind(ty=aval.strip_weak_type(), memory_space=memory_space)


def _check_memory(what: str, memory_space: Any) -> None:
    if memory_space is not None:
        raise NotImplementedError(f"{what}: memory_space={memory_space!r} is not supported: there is one memory.")


def freeze(ref: Ref) -> Array:
    """The array that a reference holds; the reference cannot be used any more.

    Raises:
      ValueError: for a reference that was made outside of the function being transformed.
      RuntimeError: for one that was ended already.

    >>> r = new_ref(jnp.zeros(2))
    >>> r[0] = 1.0
    >>> freeze(r)
    Array([1., 0.], dtype=float32)
    """
    return freeze_p.bind(ref)


def free_ref(ref: Ref) -> None:
    """Ends a reference whose array nobody needs any more."""
    free_p.bind(ref)
