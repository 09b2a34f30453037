"""Functions, classes and devices of the host that the devices are of: this one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class _Colocated:
    """A function that runs here; `specialize` says more of it than a call here needs."""

    def __init__(self, fun: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fun)
        self._fun = fun

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._fun(*args, **kwargs)

    def specialize(self, in_specs: Any = None, out_specs_fn: Callable[..., Any] | None = None,
                   devices: Any = None) -> _Colocated:
        """The same function: the types of its results are those of what it returns."""
        return self


def colocated_python(fun: Callable[..., Any]) -> _Colocated:
    """The function, as one that runs on the host of its arguments' devices."""
    return _Colocated(fun)


def colocated_python_class(cls: type) -> type:
    """The class, whose objects live on the host of the devices."""
    return cls


def colocated_cpu_devices(devices_or_mesh: Any) -> Any:
    """The CPUs beside these devices, or beside those of a mesh: every device here is a CPU."""
    return devices_or_mesh
