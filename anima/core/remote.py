"""Memory that is not this machine's own: arrays on a GPU. Their elements are brought here when somebody looks at them.

    x.remote     the elements there; None for an array whose elements are here
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from anima.core import dlpack
from anima.core.device import machines


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

    @property
    def dlpack_device(self) -> tuple[int, int]:
        """The device, as DLPack calls it."""
        raise NotImplementedError

    def lend(self, wait: bool = True) -> int:
        """The address, for others who read there as long as this object lives; the elements are computed, unless they
        are not to be waited for."""
        raise NotImplementedError

    def copy(self) -> Remote:
        """The same elements in memory of their own."""
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

    def brought(self) -> Remote | None:
        """The elements in the memory of the array's device, where they are brought if they are not there yet; None for
        an array on a CPU, and for a deleted one."""
        machine = machines.get(getattr(self._sharding, "device", None))  # type: ignore[arg-type]
        if machine is not None and isinstance(self._value, np.ndarray):
            self._value = machine.put(self._value)
        return self.remote

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
        remote = self.brought()
        return super().unsafe_buffer_pointer() if remote is None else remote.address  # type: ignore[misc]

    def __dlpack__(self, **kwargs: Any) -> Any:
        remote = self.brought()
        is_here = remote is None or not isinstance(self.dtype, np.dtype)  # type: ignore[attr-defined]
        if is_here or kwargs.get("dl_device") == dlpack.CPU_DEVICE:
            if remote is not None:
                kwargs["stream"] = None  # the elements are waited for
            return super().__dlpack__(**kwargs)  # type: ignore[misc]
        return dlpack.lent(remote, self.shape, self.dtype, **kwargs)  # type: ignore[attr-defined]

    def __dlpack_device__(self) -> tuple[int, int]:
        remote = self.brought()
        return super().__dlpack_device__() if remote is None else remote.dlpack_device  # type: ignore[misc]

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """How libraries for NVIDIA's GPUs read an array that is there; AttributeError for another one."""
        remote = self.brought()
        if remote is None or remote.dlpack_device[0] != dlpack.CUDA:
            raise AttributeError("__cuda_array_interface__ is of arrays in the memory of an NVIDIA GPU alone.")
        return dlpack.cuda_interface(remote, self.shape, self.dtype)  # type: ignore[attr-defined]

    def on_device_size_in_bytes(self) -> int:
        return self.nbytes if self.remote is not None else self.value.nbytes  # type: ignore[attr-defined]


class RemoteMachine(Protocol):
    """What runs programs on a device, as `core.device.machines` has it; its `kind` is the name of the card."""

    kind: str
    compute_capability: str
    core_count: int

    def put(self, array: np.ndarray) -> Remote:
        """The elements of an array in the memory of the device."""
        ...

    def program(self, closed: Any, name: str, donated: Sequence[int] = ()
                ) -> Callable[[Sequence[Remote]], list[Remote]]:
        """A compiled program, which may write over the arguments at `donated`. NotImplementedError for what cannot run
        there yet, naming it."""
        ...

    def borrow(self, lent: dlpack.Lent) -> Remote:
        """Memory of another library on the device."""
        ...

    def memory_stats(self) -> dict[str, int]:
        """How much memory is in use, and was, by JAX's names."""
        ...
