"""Memory that is not this machine's own: arrays on a GPU. Their elements are brought here when somebody looks at them.

    x.remote     the elements there; None for an array whose elements are here
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np


class Remote:
    """The elements of an array somewhere else, row-major."""

    __slots__ = ("__weakref__",)

    def host(self) -> np.ndarray:
        """The elements here, as soon as they are computed; read-only."""
        raise NotImplementedError

    def wait(self) -> None:
        """Returns when the elements are computed; raises what went wrong on the way."""
        raise NotImplementedError

    def is_ready(self) -> bool:
        """Whether the elements are computed."""
        raise NotImplementedError

    @property
    def address(self) -> int:
        """Where the elements are, in the memory of the device."""
        raise NotImplementedError


class Located:
    """What an array on devices says of itself by where its elements are: `_value` has them, here or elsewhere."""

    __slots__ = ()

    _value: Any
    _sharding: Any

    @property
    def remote(self) -> Remote | None:
        """The elements in the memory of another device, if that is where they are."""
        value = self._value
        return value if isinstance(value, Remote) else None

    @remote.setter
    def remote(self, value: Remote) -> None:
        self._value = value

    @classmethod
    def over(cls, remote: Remote, aval: Any, sharding: Any, committed: bool) -> Any:
        """An array whose elements are in the memory of another device."""
        new: Any = object.__new__(cls)
        new._value, new.aval, new._sharding, new.committed, new.is_cut = remote, aval, sharding, committed, False
        return new

    def block_until_ready(self) -> Any:
        """The array itself, once it is computed."""
        if self.remote is not None:
            self.remote.wait()
        return self

    def is_ready(self) -> bool:
        return self.remote is None or self.remote.is_ready()

    def platform(self) -> str:
        return next(iter(self._sharding.device_set)).platform

    def unsafe_buffer_pointer(self) -> int:
        remote = self.remote
        return super().unsafe_buffer_pointer() if remote is None else remote.address  # type: ignore[misc]

    def on_device_size_in_bytes(self) -> int:
        return self.nbytes if self.remote is not None else self.value.nbytes  # type: ignore[attr-defined]


class RemoteMachine(Protocol):
    """What runs programs on a device, as `core.device.machines` has it; its `kind` is the name of the card."""

    kind: str

    def put(self, array: np.ndarray) -> Remote:
        """The elements of an array in the memory of the device."""
        ...

    def program(self, closed: Any, name: str) -> Callable[[Sequence[Remote]], list[Remote]]:
        """A compiled program. NotImplementedError for what cannot run there yet, naming it."""
        ...
