"""`jax._src.random.prng`: how keys that JAX has pickled are read, and their types."""

from typing import Any

from anima.core.array import ConcreteArray
from anima.core.dtypes import KeyDType
from anima.random.implementation import Implementation, named
from anima.random.keys import wrap_key_data


class PRNGImpl:
    """A generator, by its name."""

    def __new__(cls, *fields: Any) -> Implementation:  # type: ignore[misc]
        return named(fields[-2])


class PRNGKeyArray(ConcreteArray):
    """Keys until what they are is read."""

    __slots__ = ()

    def __setstate__(self, state: dict[str, Any]) -> None:
        keys = wrap_key_data(state["_base_array"], impl=state["_impl"].name)
        self._value, self.aval = keys._value, keys.aval
        self.__class__ = ConcreteArray  # type: ignore[assignment]


class KeyTy(KeyDType):
    """A type of keys until what it is is read."""

    __slots__ = ()

    def __setstate__(self, state: dict[str, Any]) -> None:
        dtype = state["_impl"].dtype
        KeyDType.__init__(self, dtype.tag, dtype.base, dtype.element_shape)
        object.__setattr__(self, "__class__", KeyDType)  # which are immutable
