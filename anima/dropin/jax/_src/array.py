"""`jax._src.array`: the class of arrays that have a value."""

from typing import Any

from anima.core.array import Array
from anima.core.trace import Tracer

__all__ = ["ArrayImpl"]


class _Valued(type):
    """What `isinstance` asks."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Array) and not isinstance(instance, Tracer)


class ArrayImpl(metaclass=_Valued):
    """All arrays but those that stand for values while a function is traced."""
