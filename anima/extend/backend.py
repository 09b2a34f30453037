"""What programs run on: one backend, the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from anima.api import devices as _devices
from anima.core.array import ConcreteArray
from anima.core.device import CPU, Client, Device, accelerators
from anima.core.shardings import device_of
from anima.names import access
from anima.util import clear_all, cleared


class Backend(Client):
    """The devices of one platform."""

    __slots__ = ()

    host_id = Client.process_index

    def live_arrays(self) -> list[ConcreteArray]:
        return _devices.live_arrays(self.platform)


def backends() -> dict[str, Backend]:
    """The backends by name of their platform."""
    return {platform: Backend(platform) for platform in (CPU.platform, *(d.platform for d in accelerators()))}


def get_backend(platform: str | None = None) -> Backend:
    """The backend of a platform (default: the only one); RuntimeError for one that is not there."""
    return Backend(_devices.devices(platform)[0].platform)


def backend_xla_version(platform: str | None = None) -> None:
    """None: programs are not compiled by XLA. RuntimeError for a platform that is not there."""
    get_backend(platform)


def get_default_device() -> Device:
    """The device that arrays are made on."""
    return device_of()


def clear_backends() -> None:
    """Forgets every traced and compiled program, and what registered caches hold."""
    clear_all()


def clear_in_memory_compilation_cache() -> None:
    """Forgets every compiled program of this process."""
    clear_all()


def register_backend_cache(cache: Any, for_what: str) -> Any:
    """Has a cache (with `cache_clear`) emptied whenever `clear_backends` or `clear_caches` is called."""
    cleared(cache.cache_clear)
    return cache


def get_compile_options(num_replicas: int, num_partitions: int, device_assignment: Any = None,
                        env_options_overrides: dict[str, str] | None = None, fdo_profile: bytes | None = None,
                        detailed_logging: bool = True, backend: Any = None) -> NoReturn:
    """Not available: programs are not compiled by XLA."""
    raise NotImplementedError("get_compile_options: programs are not compiled by XLA, and have none of its options.")


def register_backend_factory(name: str, factory: Callable[[], Any], *, priority: int = 0, fail_quietly: bool = True,
                             experimental: bool = False, make_topology: Callable[..., Any] | None = None,
                             c_api: Any = None) -> NoReturn:
    """Not available: the CPU is the only backend."""
    raise NotImplementedError(f"The CPU is the only backend: {name!r} cannot be added to it.")

globals().update(access(__name__, globals()))
