"""`jax._src.array`: the class of arrays that have a value, and how those that JAX has pickled are read."""

from collections.abc import Callable
from typing import Any

from anima.core.array import Array, ConcreteArray
from anima.core.trace import Tracer
from anima.numpy import asarray

__all__ = ["ArrayImpl"]


class _Valued(type):
    """What `isinstance` asks."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Array) and not isinstance(instance, Tracer)


class ArrayImpl(metaclass=_Valued):
    """All arrays but those that stand for values while a function is traced."""


def _reconstruct_array(fun: Callable[..., Any], args: tuple[Any, ...], arr_state: Any,
                       aval_state: dict[str, Any]) -> Array:
    """An array, from what NumPy's array of its elements is made of, and its weak type."""
    value = fun(*args)
    value.__setstate__(arr_state)
    x = asarray(value)
    return ConcreteArray(x.value, x.aval.update(weak_type=True)) if aval_state.get("weak_type") else x
